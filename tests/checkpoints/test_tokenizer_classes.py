"""Token ids of generated folders equal transformers': families, classes and edits at random."""

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
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
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
    pieces = [(piece, 0.0) for piece in SPECIAL]
    pieces += [(letter, -3 - i / 100) for i, letter in enumerate(LETTERS)]
    pieces += [("▁cat", -1.0), ("▁the", -1.5)]
    backend = Backend(models.Unigram(pieces, 3, False))
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


KINDS = [content(wordpiece()), content(byte_level()), content(sentencepiece()), content(unigram())]
NAMES = [None, *TOKENIZER_CLASSES]
NAMES += [f"{name}Fast" for name in TOKENIZER_CLASSES]
NAMES += ["PreTrainedTokenizerFast", "TokenizersBackend"]
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
# changes of tokenizer_config.json
OPTIONS: list[dict] = [
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
# changes of tokenizer.json
EDITS: list[dict] = [
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


def write_folder(folder: Path, chance: random.Random, family: str) -> dict:
    """Write a random folder of a family, with a vocabulary for its class; say what was chosen."""
    config = json.loads((SOURCES[family] / "config.json").read_text())
    config |= {"model_type": family, "vocab_size": ROWS}
    options = dict(chance.choice([{}, BERT, ROBERTA]))

    # The class, in one of two files.
    name = chance.choice(NAMES)
    if name is not None:
        if chance.random() < 0.7:
            options["tokenizer_class"] = name
        else:
            config["tokenizer_class"] = name

    # A tokenizer.json with a model that the class can take.
    kinds = [json.loads(kind) for kind in KINDS]
    class_name = (name or DEFAULT_CLASSES[family]).removesuffix("Fast")
    if class_name in TOKENIZER_CLASSES and family != "modernbert":
        model = TOKENIZER_CLASSES[class_name].model.__name__
        kinds = [kind for kind in kinds if kind["model"]["type"] == model]
    tokenizer = chance.choice(kinds)

    # Changes that somebody may have made.
    for change in chance.sample(OPTIONS, chance.choice([0, 0, 1, 2])):
        options |= change
    edit: dict = {}
    edited = chance.choice(["nothing", "nothing", "stages", "model", "tokens"])
    if edited == "stages":
        edit = chance.choice(EDITS)
        tokenizer |= edit
    if edited == "model":
        edit = chance.choice(MODEL_EDITS[tokenizer["model"]["type"]])
        tokenizer["model"] |= edit
    if edited == "tokens":
        edit = chance.choice(TOKEN_EDITS)
        tokenizer["added_tokens"] = [token | edit for token in tokenizer["added_tokens"]]
    special = {}
    if chance.random() < 0.15:
        special = chance.choice(MAPS)

    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return {"class": name, "options": options, edited: edit, "special": special}


@pytest.mark.reference
@pytest.mark.parametrize("family", DEFAULT_CLASSES)
def test_token_ids_of_generated_folders_equal_transformers(family, tmp_path):
    """Opened there and here with the same ids, or refused there, or here for one of two reasons."""
    transformers = pytest.importorskip("transformers", reason="needs the reference extra")
    chance = random.Random(family)
    counts: Counter = Counter()
    refusals = []
    for _ in range(FOLDERS // len(SOURCES)):
        chosen = write_folder(tmp_path, chance, family)
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        except Exception:  # whatever its own reader or the library raises
            counts["refused there"] += 1
            continue
        try:
            ours = read_tokenizer(tmp_path)
        except InputError as error:
            refusals.append(str(error))
            continue
        ours.limit = 10
        expected = theirs(TEXTS, truncation=True, max_length=10)["input_ids"]
        assert ours.encode(TEXTS).ids == expected, chosen
        expected = theirs(TEXTS, TEXTS[::-1], truncation=True, max_length=10)["input_ids"]
        assert ours.encode_pairs(TEXTS, TEXTS[::-1]).ids == expected, chosen
        counts["equal"] += 1
    assert counts["equal"] > 100, counts
    for message in refusals:
        assert "padding_side" in message or "unk_id" in message, message
