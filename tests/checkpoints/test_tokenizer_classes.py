"""Token ids of generated folders beside transformers': families, kinds of tokenizer.json, classes,
edits.
"""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from minisbert.checkpoints.tokenizer_files import DEFAULT_CLASSES, TOKENIZER_CLASSES, read_tokenizer
from minisbert.core import InputError
from tests.architectures.tiny import folder_of
from tests.conftest import ROOT
from tests.parity import REFERENCE

FOLDERS = 2000
ROWS = 2000  # of the embedding table, more than any tokenizer here has
SOURCES = {
    "bert": ROOT / "weights" / "tiny",
    "electra": ROOT / "weights" / "tiny",
    "distilbert": REFERENCE / "tiny-distiluse",
    "roberta": REFERENCE / "tiny-roberta",
    "xlm-roberta": REFERENCE / "tiny-roberta",
    "camembert": REFERENCE / "tiny-roberta",
    "mpnet": folder_of("mpnet"),
    "modernbert": folder_of("modernbert"),
    "qwen3": folder_of("qwen3"),
    "gemma3_text": folder_of("gemma"),
}
SPECIAL = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "<mask>",
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "<|endoftext|>",
    "<bos>",
    "<eos>",
]
LETTERS = [*map(chr, range(33, 127)), "é", "中", "▁"]
MERGES = [("h", "e"), ("c", "a"), ("ca", "t")]
TEXTS = [
    "The Cat sits",
    "the cat the dogs",
    "café 12 345 it's",
    "a cat <mask> sits [MASK] x",
    "中文 ab",
    "  two  spaces \n new",
    "[UNK]<s>cat</s>",
    "DOG <unk>",
]


def numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


def wordpiece() -> Backend:
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), "cat", "##s"]
    backend = Backend(models.WordPiece(numbered(pieces), unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    return backend


def byte_level() -> Backend:
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ca", "cat"]
    backend = Backend(models.BPE(numbered(pieces), MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def sentencepiece() -> Backend:
    pieces = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256)), *LETTERS, "he", "ca", "cat"]
    backend = Backend(
        models.BPE(numbered(pieces), MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return backend


def unigram() -> Backend:
    scores = [(piece, 0.0) for piece in SPECIAL] + [
        (letter, -3 - i / 100) for i, letter in enumerate(LETTERS)
    ]
    backend = Backend(models.Unigram([*scores, ("▁cat", -1.0), ("▁the", -1.5)], 3, False))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(" ", "▁")]
    )
    return backend


def content(backend: Backend) -> str:
    """``tokenizer.json`` with [CLS] and [SEP] around a text."""
    ends = [(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends
    )
    backend.add_special_tokens(SPECIAL)
    return backend.to_str()


KINDS = [content(make()) for make in (wordpiece, byte_level, sentencepiece, unigram)]
NAMES = [
    None,
    *TOKENIZER_CLASSES,
    *(f"{name}Fast" for name in TOKENIZER_CLASSES),
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
]
ROBERTA = {
    "cls_token": "<s>",
    "sep_token": "</s>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
BERT = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
}
OPTIONS: list[dict] = [  # changes of tokenizer_config.json
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"do_lower_case": False},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False},
    {"cls_token": "[MASK]", "bos_token": "[MASK]"},
    {"sep_token": "<mask>", "eos_token": "<mask>"},
    {"unk_token": "<s>"},
    {"additional_special_tokens": ["cat"]},
    {"extra_special_tokens": {"image_token": "dog"}},
    {"split_special_tokens": True},
    {"legacy": True},
    {"add_bos_token": True, "add_eos_token": True},
    {"truncation_side": "left"},
]
EDITS: list[dict] = [  # of tokenizer.json
    {"normalizer": None},
    {"normalizer": {"type": "Lowercase"}},
    {"pre_tokenizer": None},
    {"pre_tokenizer": {"type": "Whitespace"}},
    {"post_processor": None},
]
MODEL_EDITS = {
    "WordPiece": [{"max_input_chars_per_word": 3}],
    "BPE": [
        {"fuse_unk": True},
        {"byte_fallback": False},
        {"ignore_merges": True},
        {"end_of_word_suffix": "</w>"},
    ],
    "Unigram": [{"unk_id": 0}, {"unk_id": 4}, {"byte_fallback": True}],
}
TOKEN_EDITS: list[dict] = [{"lstrip": True}, {"normalized": True, "special": False}]
MAPS: list[dict] = [
    {"sep_token": "<eos>"},
    {"cls_token": "[MASK]"},
    {"additional_special_tokens": ["dog"]},
]


def write_folder(folder: Path, chance: random.Random, family: str) -> list:
    """A random folder of a family, with a vocabulary for its class; what was chosen."""
    config = json.loads((SOURCES[family] / "config.json").read_text()) | {
        "model_type": family,
        "vocab_size": ROWS,
    }
    name, in_options = chance.choice(NAMES), chance.random() < 0.7
    kinds, stated = (
        list(map(json.loads, KINDS)),
        (name or DEFAULT_CLASSES[family]).removesuffix("Fast"),
    )
    if stated in TOKENIZER_CLASSES and family != "modernbert":
        model = TOKENIZER_CLASSES[stated].model.__name__
        kinds = [kind for kind in kinds if kind["model"]["type"] == model]
    tokenizer, options = chance.choice(kinds), dict(chance.choice([{}, BERT, ROBERTA]))
    if name is not None:
        (options if in_options else config)["tokenizer_class"] = name
    changes = chance.sample(OPTIONS, chance.choice([0, 0, 1, 2]))
    for change in changes:
        options |= change
    kind = tokenizer["model"]["type"]
    edit, model_edit, token_edit = (
        chance.choice(EDITS),
        chance.choice(MODEL_EDITS[kind]),
        chance.choice(TOKEN_EDITS),
    )
    edited = chance.choice(["nothing", "nothing", "stages", "model", "tokens"])
    if edited == "stages":
        tokenizer |= edit
    if edited == "model":
        tokenizer["model"] |= model_edit
    if edited == "tokens":
        tokenizer["added_tokens"] = [token | token_edit for token in tokenizer["added_tokens"]]
    special = chance.choice(MAPS) if chance.random() < 0.15 else {}
    files = {
        "config": config,
        "tokenizer": tokenizer,
        "tokenizer_config": options,
        "special_tokens_map": special,
    }
    for file, stated in files.items():
        (folder / f"{file}.json").write_text(json.dumps(stated))
    return [family, kind, name, in_options, options, edited, edit, model_edit, token_edit, special]


@pytest.mark.reference
@pytest.mark.parametrize("family", DEFAULT_CLASSES)
def test_token_ids_of_generated_folders_equal_transformers(family, tmp_path):
    """Opened there and here with the same ids, or refused there, or refused here for one of two
    reasons.
    """
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    chance, counts, refusals = random.Random(family), Counter(), []
    for _ in range(FOLDERS // len(SOURCES)):
        chosen = write_folder(tmp_path, chance, family)
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        except Exception:  # of whatever its own reader or the library raises
            counts["refused there"] += 1
            continue
        try:
            ours = read_tokenizer(tmp_path)
        except InputError as error:
            refusals.append(str(error))
            continue
        ours.limit = limit = 10
        assert (
            ours.encode(TEXTS).ids == theirs(TEXTS, truncation=True, max_length=limit)["input_ids"]
        ), chosen
        pairs = theirs(TEXTS, TEXTS[::-1], truncation=True, max_length=limit)["input_ids"]
        assert ours.encode_pairs(TEXTS, TEXTS[::-1]).ids == pairs, chosen
        counts["equal"] += 1
    assert counts["equal"] > 100, counts
    for message in refusals:
        assert "padding_side" in message or "unk_id" in message, message
