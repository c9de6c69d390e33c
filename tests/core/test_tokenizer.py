"""WordPiece by hand equals the ``tokenizers`` library; the book's class around it cuts and pads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors

from minisbert.core import InputError, read_json
from minisbert.core.tokenizer import (
    Slot,
    Tokenizer,
    assemble,
    is_ideograph,
    longest_first,
    split_words,
    token_ids,
)
from tests.parity import ROOT
from tests.reference.texts import SENTENCES

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]


# -------------------------------------------------------------------------------------- WordPiece


def words_of_library(text: str) -> list[str]:
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


@pytest.mark.parametrize("text", ["", "  \t\n", "ΟΔΟΣ", "İstanbul", "e\u0301", "\u0915\u093e"])
def test_words_of_difficult_texts(text):
    assert split_words(text) == words_of_library(text)


@pytest.mark.parametrize(
    "mark",
    [
        "\t",
        "\n",
        "\r",
        "\x00",
        "\x07",
        "\x7f",
        "\xa0",  # a space that does not break
        "\xad",  # a soft hyphen
        "\u200b",  # a space of no width
        "\u2028",
        "\u2029",
        "\u3000",
        "\ue000",  # for private use
        "\ufffd",
        "$",
        "^",
        "~",
        "\u2014",
    ],
)
def test_a_mark_inside_a_word(mark):
    """Whether it separates, vanishes or stands alone is a rule of its own for each."""
    assert split_words(f"a{mark}b") == words_of_library(f"a{mark}b")


@pytest.mark.parametrize("first", [0x3400, 0x20000, 0x2B740, 0x2B820, 0x2B920, 0x2F800, 0xF900])
def test_an_ideograph_inside_a_word(first):
    """The first of each block is a word; the library has another beginning for one block."""
    assert split_words(f"a{chr(first)}b") == words_of_library(f"a{chr(first)}b")


@pytest.mark.parametrize("letter", ["あ", "가"])
def test_hiragana_and_hangul_are_letters(letter):
    """They are no ideographs: a word of them is not split."""
    assert not is_ideograph(letter)
    assert split_words(f"a{letter}b") == words_of_library(f"a{letter}b")


# scripts that have been in Unicode for a long time: the library's tables are older than Python's
@given(
    st.text(
        st.characters(max_codepoint=0x58F)
        | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5)
    )
)
def test_words_of_any_text(text):
    """The first half of the chapter is what the library runs in Rust."""
    assert split_words(text) == words_of_library(text)


def test_ids_of_a_text(tiny):
    """The words, their pieces and the special tokens together."""
    library = Tokenizer.load(tiny, limit=32)
    assert [token_ids(text, VOCABULARY) for text in SENTENCES] == library.encode(SENTENCES).ids


# ------------------------------------------------------------------------------------ the library


@pytest.fixture
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.load(tiny, limit=9)


def test_stored_padding_and_truncation_are_cleared(tiny, tmp_path):
    """As in all-MiniLM-L6-v2, whose file pads every text to 128 tokens and cuts at 128."""
    baked = Backend.from_file(str(tiny / "tokenizer.json"))
    baked.enable_padding(length=5)
    baked.enable_truncation(5)
    baked.save(str(tmp_path / "tokenizer.json"))
    texts = ["cat", "the cat sits on the mat"]
    encoded = Tokenizer.load(tmp_path, limit=9).encode(texts)
    assert [len(ids) for ids in encoded.ids] == [3, 8]
    assert encoded.ids == Tokenizer.load(tiny, limit=9).encode(texts).ids


def test_a_missing_file_is_named(tmp_path):
    """The path in the message tells a student which folder has been opened."""
    with pytest.raises(InputError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path, limit=9)


@pytest.mark.parametrize("content", [b"{}", b"\xff"])
def test_a_damaged_file_is_named(tmp_path, content):
    """The library's own message does not say which file it is about."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: Cannot instantiate"):
        Tokenizer.load(tmp_path, limit=9)


def test_a_limit_must_leave_room_for_a_text(tiny):
    """Two special tokens and a token of the text."""
    encoded = Tokenizer.load(tiny, limit=3).encode(["a cat"])
    assert len(encoded.ids[0]) == 3
    with pytest.raises(InputError, match="a token limit of 2 is too small: a text needs 3"):
        Tokenizer.load(tiny, limit=2)


def test_a_limit_must_leave_room_for_a_pair(tiny):
    """Three special tokens and a token of each text. Whoever encodes single texts may have less."""
    encoded = Tokenizer.load(tiny, limit=5).encode_pairs(["a cat"], ["a dog"])
    assert encoded.token_types == [[0, 0, 0, 1, 1]]
    with pytest.raises(InputError, match="a token limit of 4 is too small: a pair needs 5"):
        Tokenizer.load(tiny, limit=4).encode_pairs(["a cat"], ["a dog"])


def test_a_template_is_special_tokens_and_sentences(tokenizer):
    """[CLS] first [SEP] second [SEP]; the last two belong to the second sentence."""
    cls, sep = VOCABULARY["[CLS]"], VOCABULARY["[SEP]"]
    slots = tokenizer.pair_template
    assert [slot.sentence for slot in slots] == [None, 0, None, 1, None]
    assert [slots[0].token, slots[2].token, slots[4].token] == [cls, sep, sep]
    assert [slot.token_type for slot in slots] == [0, 0, 0, 1, 1]


def test_sentences_in_their_places_of_a_template():
    """The second sentence may come first, and special tokens may be anywhere."""
    slots = [Slot(1, 0, 0), Slot(None, 9, 1), Slot(0, 0, 1)]
    assert assemble(slots, [[5, 6], [7]]) == ([7, 9, 5, 6], [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("first", "second", "room", "kept"),
    [
        (3, 5, 8, (3, 5)),
        (10, 3, 8, (5, 3)),
        (3, 10, 8, (3, 5)),
        (10, 9, 8, (4, 4)),
        (10, 9, 7, (4, 3)),
        (9, 10, 7, (3, 4)),
        (9, 9, 7, (3, 4)),
    ],
)
def test_the_longer_sentence_is_cut_first(first, second, room, kept):
    """An odd number of tokens leaves one more to the longer, and of equal ones to the second."""
    assert longest_first(first, second, room) == kept


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


@pytest.mark.parametrize(
    ("processor", "ids", "types"),
    [
        (None, [4, 3], [0, 1]),
        (processors.BertProcessing(("[SEP]", 7), ("[CLS]", 8)), [8, 4, 7, 3, 7], [0, 0, 0, 1, 1]),
    ],
)
def test_the_template_of_other_processors(processor, ids, types):
    """The special tokens come from the file's processor, whatever kind it is."""
    backend = Backend(models.WordLevel({"x": 3, "y": 4}, unk_token="x"))
    backend.post_processor = processor
    encoded = Tokenizer(backend, limit=9).encode_pairs(["y"], ["x"])
    assert encoded.ids == [ids]
    assert encoded.token_types == [types]


def test_the_template_does_not_depend_on_how_many_pieces_its_probe_has():
    """A normalizer may turn the probe's letter into several words."""
    backend = Backend(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "x": 3, "y": 4}, unk_token="y"))
    backend.normalizer = normalizers.Replace("a", "x y")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
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
    assert encoded.truncated == [False, True, False]
    assert encoded.token_types == [[0] * 9, [0] * 9, [0] * 2]
    assert tokenizer.tokens(encoded.ids[2]) == ["[CLS]", "[SEP]"]


def test_a_pair_is_two_texts_between_special_tokens(tokenizer):
    """Nine tokens leave six for both: of five and two the longer keeps four."""
    encoded = tokenizer.encode_pairs(["a cat", "the cat sits on the"], ["the dog sits", "a dog"])
    first = ["[CLS]", "a", "cat", "[SEP]", "the", "dog", "sits", "[SEP]"]
    second = ["[CLS]", "the", "cat", "sits", "on", "[SEP]", "a", "dog", "[SEP]"]
    assert tokenizer.tokens(encoded.ids[0]) == first
    assert tokenizer.tokens(encoded.ids[1]) == second
    assert encoded.token_types == [[0] * 4 + [1] * 4, [0] * 6 + [1] * 3]
    assert encoded.truncated == [False, True]


def test_a_pair_that_just_fits_is_not_cut(tokenizer):
    """Four and two tokens fill the six places."""
    assert tokenizer.encode_pairs(["the cat sits on"], ["a dog"]).truncated == [False]


def test_a_text_that_is_no_string_is_refused_with_its_index(tokenizer):
    """Of a long list one must learn which text is wrong."""
    with pytest.raises(InputError, match="text 1 is not a string but int"):
        tokenizer.encode(["a cat", 3])


@pytest.mark.parametrize(
    ("firsts", "seconds", "message"),
    [
        (["a \ud800"], ["a cat"], "text 0 is not valid Unicode"),
        (["a cat"], ["a \ud800"], "text 0 is not valid Unicode: a lone surrogate at character 2"),
        (["a", "b"], ["c"], "2 first and 1 second"),
    ],
)
def test_pairs_that_cannot_be_encoded(tokenizer, firsts, seconds, message):
    """Either side may be wrong, or one may lack a text."""
    with pytest.raises(InputError, match=message):
        tokenizer.encode_pairs(firsts, seconds)
