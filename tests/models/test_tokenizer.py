"""Tokenizers of every kind of folder, on small vocabularies.

``tests/checkpoints/test_tokenizer_classes.py`` compares them with transformers.
"""

import json
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.tokenizer_files import read_tokenizer, write_tokenizer
from minisbert.core import InputError
from minisbert.core.tokenizer import Tokenizer
from minisbert.loading import load_tokenizer
from minisbert.models.static_encoder import StaticEncoder, bare_tokenizer

# letters at the start of a word and inside it (##); "e" only at the start, so a word that continues
# with it is unknown
PIECES = """
    [PAD] [UNK] [CLS] [SEP] [MASK]
    a b c d e ##a ##b ##c ##d A B E ##A ##B
    ab abc abcd bad cab dad bead ##ab ##abc ##bc ##bcd ##cd ##da ##dab
    cat dog sits on the mat ##s ##ting sit ##t run ##ner ##ning
    . , ! ? ' - ( ) 1 2 ##2 中 é ##é
"""
VOCAB = PIECES.split()
IDS = {piece: i for i, piece in enumerate(VOCAB)}
CLS = IDS["[CLS]"]
SEP = IDS["[SEP]"]
LIMIT = 16  # what the folders state, unless a test changes it
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(VOCAB),
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 40,
}
# Without modules.json sentence_bert_config.json would not be read.
MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": ""},
]
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}

words = st.text("abcdeAB", min_size=1, max_size=9)
texts = st.lists(words | st.sampled_from(list(" .,!'-12中é\t\n")), max_size=12).map("".join)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def make_folder(folder: Path, **tokenizer_config: object) -> Path:
    """A folder like published ones, whose tokenizer.json pads to 128 tokens and cuts at 128."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "modules.json", MODULES)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LIMIT})
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    backend = BertWordPieceTokenizer(vocab=IDS, lowercase=True)
    backend.enable_padding(length=128)
    backend.enable_truncation(128)
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def baked(tmp_path_factory) -> Path:
    return make_folder(tmp_path_factory.mktemp("baked"))


@pytest.fixture(scope="module")
def from_json(baked) -> Tokenizer:
    return read_tokenizer(baked, limit=40)


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        ({"do_lower_case": False}, ["[CLS]", "a", "##B", "##é", "[UNK]", "[SEP]"]),
        ({"strip_accents": False}, ["[CLS]", "ab", "##é", "the", "[SEP]"]),
        ({}, ["[CLS]", "[UNK]", "the", "[SEP]"]),
    ],
)
def test_case_and_accents_are_kept_if_asked(tmp_path, options, pieces):
    """tokenizer_config.json decides, not the normalizer that tokenizer.json holds."""
    tokenizer = read_tokenizer(make_folder(tmp_path, **options))
    assert tokenizer.tokens(tokenizer.encode(["aBé The"]).ids[0]) == pieces


# ------------------------------------------------------------------------------------------ limits


@pytest.mark.parametrize(
    ("argument", "max_seq_length", "model_max_length", "expected"),
    [
        (9, 16, 12, 9),
        (20, 16, 12, 20),  # an argument may exceed the stated limit
        (40, 16, 12, 40),
        (None, None, 1e30, 40),
    ],
)
def test_a_limit_is_the_arguments_or_the_first_that_a_file_states(
    tmp_path, argument, max_seq_length, model_max_length, expected
):
    make_folder(tmp_path, model_max_length=model_max_length)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    tokenizer = read_tokenizer(tmp_path, argument)
    assert tokenizer.limit == len(tokenizer.encode(["a " * 100]).ids[0]) == expected


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (41, "above the position table .* 40"),
        (2, "2 is too small.* 3"),
        (0, "integer from 1, not 0"),
        (2.5, "integer from 1, not 2.5"),
    ],
)
def test_limit_out_of_range(tmp_path, limit, message):
    """The encoder would fail at the first long text, far from the argument."""
    with pytest.raises(InputError, match=message):
        read_tokenizer(make_folder(tmp_path), limit)


@pytest.mark.parametrize(
    ("stated", "expected"), [({"pad_token_id": 4}, 4), ({"pad_token_id": None}, 0), ({}, 0)]
)
def test_pad_id_comes_from_the_model_config(tmp_path, stated, expected):
    """RoBERTa's is 1."""
    write_json(make_folder(tmp_path) / "config.json", CONFIG | stated)
    assert read_tokenizer(tmp_path).pad_id == expected


@given(first=texts, second=texts, limit=st.integers(5, 20))
def test_any_cut_text_and_pair_equals_the_library(baked, from_json, first, second, limit):
    """We cut ourselves, because the library takes memory for what it cuts."""
    library = Backend.from_file(str(baked / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(limit, strategy="longest_first")
    expected = library.encode(first)
    expected_pair = library.encode(first, second)

    from_json.limit = limit
    text = from_json.encode([first])
    pair = from_json.encode_pairs([first], [second])
    from_json.limit = 40
    assert text.ids == [expected.ids]
    assert text.truncated == [bool(expected.overflowing)]
    assert (pair.ids, pair.token_types) == ([expected_pair.ids], [expected_pair.type_ids])
    assert pair.truncated == [bool(expected_pair.overflowing)]


def peak_memory() -> float:
    """The peak memory of this process in bytes."""
    resource = pytest.importorskip("resource", reason="peak memory is read with a Unix module")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.parametrize(
    ("text", "tokens", "truncated"), [("a.b," * 250_000, 40, True), ("ab" * 500_000, 3, False)]
)
def test_a_million_characters_are_fast_and_small(from_json, text, tokens, truncated):
    """The library's own truncation keeps every combination of both sides, and fills the memory."""
    before = peak_memory()
    started = time.process_time()  # not the clock's time: the machine may be busy
    single = from_json.encode([text])
    pair = from_json.encode_pairs([text], [text])
    assert time.process_time() - started < 20
    assert peak_memory() - before < 1e9
    assert (len(single.ids[0]), single.truncated) == (tokens, [truncated])
    assert (len(pair.ids[0]), pair.truncated) == (40 if truncated else 5, [truncated])


# ------------------------------------------------------------------------------------------ errors


def test_a_folder_without_a_tokenizer(tmp_path):
    """The line names the file that is needed."""
    (make_folder(tmp_path) / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
    with pytest.raises(InputError, match=r"has no tokenizer\.json; transformers writes it"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "sentence_bert_config.json"]
)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"a": }', ", line 2: not valid JSON"),
        (b"[1]", " must hold a JSON dict, not a list"),
        (b"\xff", ": not UTF-8"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, content, message):
    """A download that broke off is found at once, and which file it was."""
    (make_folder(tmp_path) / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/{name}{message}")):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{broken", b"[]", b"{}", b"", b"\xff\xfe"])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    """The library's own errors name no file."""
    (make_folder(tmp_path) / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}/tokenizer.json: ")):
        read_tokenizer(tmp_path)


def test_tokens_beyond_the_embedding_table_are_named_at_load(tmp_path):
    """Otherwise the first text with one would crash, on a GPU for good."""
    write_json(make_folder(tmp_path) / "config.json", CONFIG | {"vocab_size": len(VOCAB) - 5})
    beyond = ", ".join(repr(f"{piece} ({IDS[piece]})") for piece in VOCAB[-5:-2])
    message = f"has {len(VOCAB) - 5} rows, and the tokenizer has {beyond} and 2"
    with pytest.raises(InputError, match=re.escape(message)):
        read_tokenizer(tmp_path)


# a length of 4, and "aaaa"
CHARACTERS = {"type": "Precompiled", "precompiled_charsmap": "BAAAAGFhYWEA"}


def test_a_damaged_table_is_refused_at_load(tmp_path):
    """The library panics, with what is no ``Exception``, when a text needs the table."""
    path = make_folder(tmp_path, **GENERIC) / "tokenizer.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | {"normalizer": CHARACTERS})
    with pytest.raises(InputError, match=r"tokenizer\.json: index out of bounds"):
        read_tokenizer(tmp_path)


def test_an_unknown_token_that_is_missing_is_named_at_the_text_that_needs_it(tmp_path):
    """Most texts need none."""
    path = make_folder(tmp_path, **GENERIC) / "tokenizer.json"
    spec = json.loads(path.read_text(encoding="utf-8"))
    spec["model"]["unk_token"] = "[NONE]"
    write_json(path, spec)
    for texts in (["zebra"], ["zebra", "moon"]):
        with pytest.raises(InputError, match=r"cannot encode \['zebra'\].*\[UNK\]"):
            read_tokenizer(tmp_path).encode(texts)


def test_a_folder_of_static_vectors_has_its_own_tokenizer(baked, tmp_path):
    """``inspect --model`` counts by it."""
    words = bare_tokenizer(Backend.from_file(str(baked / "tokenizer.json")))
    StaticEncoder(torch.ones(len(VOCAB), 2), words, normalize=False).save(tmp_path / "static")
    encoded = load_tokenizer(tmp_path / "static", limit=3).encode(["the cat sits on", ""])
    assert encoded.ids == [[IDS["the"], IDS["cat"], IDS["sits"]], []]


# -------------------------------------------------------------------------------------------- save


def test_saved_tokenizer_is_clean_and_gives_the_same_ids(tmp_path):
    """Beside tokenizer.json a vocab.txt is not read."""
    tokenizer = read_tokenizer(make_folder(tmp_path / "original", strip_accents=False, odd="é"))
    saved = tmp_path / "saved"
    saved.mkdir()
    write_tokenizer(tokenizer, saved)
    settings = json.loads((saved / "tokenizer_config.json").read_text())
    assert settings == {"strip_accents": False, "odd": "é"}

    (saved / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    write_json(saved / "config.json", CONFIG)
    reloaded = read_tokenizer(saved, limit=LIMIT)
    many = ["The cat sits.", "é 中 babcd!", "", "a " * 40, "[MASK] [SEP]"]
    assert reloaded.encode(many) == tokenizer.encode(many)
    assert reloaded.encode_pairs(many, many[::-1]) == tokenizer.encode_pairs(many, many[::-1])

    # Any other reader of the file gives the same.
    library = Backend.from_file(str(saved / "tokenizer.json"))
    assert (library.padding, library.truncation) == (None, None)
    assert library.encode("cat é").ids == [CLS, IDS["cat"], IDS["é"], SEP]
