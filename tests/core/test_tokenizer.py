"""WordPiece by hand equals the ``tokenizers`` library, and the book's class around that library
cuts and pads.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from minisbert.core import InputError, read_json
from minisbert.core.tokenizer import Tokenizer, split_words, token_ids
from tests.parity import ROOT
from tests.reference.texts import SENTENCES

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]


# ---------------------------------------------------------------------------------------- WordPiece


def words_of_library(text: str) -> list[str]:
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


MARKS = "\t\n\r\x00\x07\x7f\xa0\xad\u200b\u2028\u2029\u3000\ue000\ufffd$^~\u2014"


# the first of each block of ideographs, which are words, then Hiragana and Hangul, which are not
LETTERS = map(chr, [0x3400, 0x20000, 0x2B740, 0x2B820, 0x2B920, 0x2F800, 0xF900, 0x3042, 0xAC00])


@pytest.mark.parametrize("text", ["", "  \t\n", *(f"a{mark}b" for mark in [*MARKS, *LETTERS])])
def test_words_of_difficult_texts(text):
    assert split_words(text) == words_of_library(text)


# scripts that have been in Unicode for a long time: the library's tables are older than Python's
@given(
    st.text(
        st.characters(max_codepoint=0x58F)
        | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5)
    )
)
def test_words_of_any_text(text):
    assert split_words(text) == words_of_library(text)


def test_ids_of_a_text(tiny):
    library = Tokenizer.load(tiny, limit=32)
    assert [token_ids(text, VOCABULARY) for text in SENTENCES] == library.encode(SENTENCES).ids


# -------------------------------------------------------------------------------------- the library


@pytest.fixture
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.load(tiny, limit=9)


def test_stored_padding_and_truncation_are_cleared(tiny, tmp_path):
    """As in all-MiniLM-L6-v2, whose file pads every text to 128 tokens and cuts at 128."""
    baked = Backend.from_file(str(tiny / "tokenizer.json"))
    baked.enable_padding(length=5)
    baked.enable_truncation(5)
    baked.save(str(tmp_path / "tokenizer.json"))
    encoded = Tokenizer.load(tmp_path, limit=9).encode(["cat", "the cat sits on the mat"])
    assert [len(ids) for ids in encoded.ids] == [3, 8]
    assert (
        encoded.ids == Tokenizer.load(tiny, limit=9).encode(["cat", "the cat sits on the mat"]).ids
    )


def test_a_missing_or_damaged_file_is_named(tmp_path):
    for content in (None, b"{}", b"\xff"):
        if content is not None:
            (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(
            InputError, match=r"tokenizer\.json(: Cannot instantiate| does not exist)"
        ):
            Tokenizer.load(tmp_path, limit=9)


def test_a_limit_must_leave_room_for_a_pair(tiny):
    assert Tokenizer.load(tiny, limit=5).encode_pairs(["a cat"], ["a dog"]).token_types == [
        [0, 0, 0, 1, 1]
    ]
    with pytest.raises(InputError, match="a token limit of 4 is too small: a pair needs 5"):
        Tokenizer.load(tiny, limit=4)


BERTS = processors.TemplateProcessing(
    "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
)


def test_the_template_of_a_vocabulary_without_latin_letters():
    """A byte-pair vocabulary without an unknown token: every text was [CLS] [SEP]."""
    backend = Backend(models.BPE({"[CLS]": 0, "[SEP]": 1, "д": 2, "а": 3, "да": 4}, [("д", "а")]))
    backend.post_processor = BERTS
    encoded = Tokenizer(backend, limit=9).encode_pairs(["да", "ад"], ["а", "да"])
    assert encoded.ids == [[0, 4, 1, 3, 1], [0, 3, 2, 1, 4, 1]]
    assert encoded.token_types == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1]]


def test_the_template_of_other_processors():
    backend = Backend(models.WordLevel({"x": 3, "y": 4}, unk_token="x"))
    for processor, ids, types in (
        (None, [4, 3], [0, 1]),
        (processors.BertProcessing(("[SEP]", 7), ("[CLS]", 8)), [8, 4, 7, 3, 7], [0, 0, 0, 1, 1]),
    ):
        backend.post_processor = processor
        encoded = Tokenizer(backend, limit=9).encode_pairs(["y"], ["x"])
        assert (encoded.ids, encoded.token_types) == ([ids], [types])


def test_the_template_does_not_depend_on_how_many_pieces_its_probe_has():
    backend = Backend(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "x": 3, "y": 4}, unk_token="y"))
    backend.normalizer, backend.pre_tokenizer = (
        normalizers.Replace("a", "x y"),
        pre_tokenizers.Whitespace(),
    )
    backend.post_processor = BERTS
    tokenizer = Tokenizer(backend, limit=9)
    assert tokenizer.pad_id == 0  # as in BERT, unless stated
    assert tokenizer.encode(["a", "x"]).ids == [[0, 3, 4, 1], [0, 3, 1]]
    assert tokenizer.encode_pairs(["a"], ["x a"]).ids == [[0, 3, 4, 1, 3, 3, 4, 1]]


def test_a_text_is_cut_to_the_limit_and_counted(tokenizer):
    """Nine tokens leave seven word pieces; the text of eight loses its last one."""
    texts = ["the cat sits on the mat .", "the cat sits on the mat . .", ""]
    encoded = tokenizer.encode(texts)
    assert len(encoded) == 3
    assert [len(ids) for ids in encoded.ids] == [9, 9, 2]
    assert encoded.ids[0] == encoded.ids[1]
    assert sum(encoded.truncated) == 1
    assert encoded.token_types == [[0] * 9, [0] * 9, [0] * 2]
    assert tokenizer.tokens(encoded.ids[2]) == ["[CLS]", "[SEP]"]


def test_a_pair_is_two_texts_between_special_tokens(tokenizer):
    """Nine tokens leave six for both: of five and two the longer keeps four."""
    encoded = tokenizer.encode_pairs(["a cat", "the cat sits on the"], ["the dog sits", "a dog"])
    assert tokenizer.tokens(encoded.ids[0]) == [
        "[CLS]",
        "a",
        "cat",
        "[SEP]",
        "the",
        "dog",
        "sits",
        "[SEP]",
    ]
    assert tokenizer.tokens(encoded.ids[1]) == [
        "[CLS]",
        "the",
        "cat",
        "sits",
        "on",
        "[SEP]",
        "a",
        "dog",
        "[SEP]",
    ]
    assert encoded.token_types == [[0] * 4 + [1] * 4, [0] * 6 + [1] * 3]
    assert sum(encoded.truncated) == 1
    assert tokenizer.encode_pairs(["the cat sits on"], ["a dog"]).truncated == [False], "just fits"
    assert tokenizer.pad_id == 0


def test_bad_texts_are_refused_with_their_place(tokenizer):
    with pytest.raises(InputError, match="text 1 is not a string but int"):
        tokenizer.encode(["a cat", 3])
    for firsts, seconds, message in (
        (["a \ud800"], ["a cat"], "text 0 is not valid Unicode"),
        (["a cat"], ["a \ud800"], "text 0 is not valid Unicode: a lone surrogate at character 2"),
        (["a", "b"], ["c"], "2 first and 1 second"),
    ):
        with pytest.raises(InputError, match=message):
            tokenizer.encode_pairs(firsts, seconds)
