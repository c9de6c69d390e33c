"""Folders that ask for all memory or all time: refused in one sentence, with the limit in it."""

import base64
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors

from minisbert import SentenceEncoder, StaticEncoder
from minisbert.checkpoints.tokenizer_limits import character_growth, check_stages, stages_of
from minisbert.core import InputError
from minisbert.models.static_encoder import distill

GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
SECONDS = 20  # on a busy machine; each case took minutes, or never ended


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model whose tokenizer.json is read as it is."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(json.dumps(GENERIC))
    return folder


def replace(pattern: str, content: str) -> dict[str, Any]:
    """A normalizer, as tokenizer.json has it."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def million_of_one(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = replace("a", "b" * 10**6)


def thirty_doublings(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [replace("a", "aa")] * 30}


def nested_doublings(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [replace("a", "aa")] * 5}
    for _ in range(3):
        sequence = {"type": "Sequence", "normalizers": [tokenizer["normalizer"]] * 3}
        tokenizer["normalizer"] = sequence


def many_pre_tokenizers(tokenizer: dict[str, Any]) -> None:
    stages = [{"type": "Whitespace"}] * 100_000
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": stages}


def long_added_token(tokenizer: dict[str, Any]) -> None:
    token = dict(tokenizer["added_tokens"][0])
    token["content"] = "x" * 10**7
    token["id"] = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"].append(token)


def more_special_tokens_than_positions(tokenizer: dict[str, Any]) -> None:
    cls = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"]["single"] = [cls] * 60 + [text]


def million_special_tokens(tokenizer: dict[str, Any]) -> None:
    token = tokenizer["post_processor"]["special_tokens"]["[CLS]"]
    token["ids"] = token["ids"] * 10**6
    token["tokens"] = token["tokens"] * 10**6


def doubling_templates(tokenizer: dict[str, Any]) -> None:
    text = {"Sequence": {"id": "A", "type_id": 0}}
    other = {"Sequence": {"id": "B", "type_id": 0}}
    double = {"type": "TemplateProcessing", "single": [text, text], "pair": [text, other]}
    stages = [double | {"special_tokens": {}}] * 30
    tokenizer["post_processor"] = {"type": "Sequence", "processors": stages}


def special_token_beyond_the_table(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"]["special_tokens"]["[SEP]"]["ids"] = [131]


BOMBS = [
    (million_of_one, "may make 1,000,000 characters of one; at most 1,000"),
    (thirty_doublings, "may make 1,073,741,824 characters of one; at most 1,000"),
    (nested_doublings, "137 stages"),
    (many_pre_tokenizers, "100,002 stages; at most 100"),
    (long_added_token, "10,000,026 characters together; at most 1,048,576"),
    (more_special_tokens_than_positions, "a text needs 61"),
    (million_special_tokens, "may make 1,000,004 tokens of one; at most 1,000"),
    (doubling_templates, "may make 1,073,741,824 tokens of one; at most 1,000"),
    (special_token_beyond_the_table, "the token 131 .* 131 rows"),
]


@pytest.mark.parametrize(("change", "message"), BOMBS)
def test_a_tokenizer_that_makes_too_much_of_a_text(change: Callable, message: str, folder: Path):
    """The library does as the file says, until the memory is full."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    change(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    start = time.monotonic()
    with pytest.raises(InputError, match=message) as error:
        SentenceEncoder.load(folder)
    assert time.monotonic() - start < SECONDS
    assert len(str(error.value)) < 500


def test_a_static_model_has_the_same_limits(tiny: Path, tmp_path: Path):
    """It reads its tokenizer.json by another way."""
    distill(SentenceEncoder.load(tiny), 8).save(tmp_path / "table")
    path = tmp_path / "table" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    million_of_one(tokenizer)
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(InputError, match="characters of one"):
        StaticEncoder.load(tmp_path / "table")


def test_what_published_tokenizers_do_is_within_the_limits():
    """XLM-RoBERTa's, Gemma's and Llama 3's stages, and one more of each kind."""
    backend = Tokenizer.from_str(
        json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}})
    )
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    stages = [
        normalizers.Nmt(),
        normalizers.NFKC(),
        spaces,
        normalizers.Lowercase(),
        normalizers.Replace(" ", "▁"),
    ]
    backend.normalizer = normalizers.Sequence(stages)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]
    )
    template = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    backend.post_processor = processors.Sequence([processors.ByteLevel(), template])
    check_stages(backend, Path("tokenizer.json"))
    kinds = [stage["type"] for stage in stages_of(backend.normalizer)]
    assert kinds == ["Nmt", "NFKC", "Replace", "Lowercase", "Replace"]


def test_the_growth_of_sentence_pieces_table():
    """A search tree of eight bytes, then the replacements, the longest of which has four."""
    table = (8).to_bytes(4, "little") + bytes(8) + b"a\0bcde\0fg\0"
    content = base64.b64encode(table).decode()
    assert character_growth({"type": "Precompiled", "precompiled_charsmap": content}) == 4


def test_many_modules(folder: Path):
    """The message does not list them."""
    module = {"type": "sentence_transformers.models.Dense", "path": ""}
    (folder / "modules.json").write_text(json.dumps([module] * 100_000))
    with pytest.raises(InputError, match="lists 100,000 modules; at most 100") as error:
        SentenceEncoder.load(folder)
    assert len(str(error.value)) < 500


def test_weights_of_a_terabyte(folder: Path):
    """A sparse file takes no room on a disk, and no machine of ours has the memory."""
    rows = 10**12 // (4 * 24)
    size = rows * 4 * 24
    name = "embeddings.word_embeddings.weight"
    table = {"dtype": "F32", "shape": [rows, 24], "data_offsets": [0, size]}
    header = json.dumps({name: table}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
    os.truncate(folder / "model.safetensors", 8 + len(header) + size)
    with pytest.raises(InputError, match=r"model\.safetensors .* bytes of memory"):
        SentenceEncoder.load(folder)
