"""WordPiece by hand equals the ``tokenizers`` library, on odd texts and on every sentence of the STS Benchmark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers

from minisbert.core import read_json
from minisbert.core.tokenizer import split_words, token_ids, word_pieces
from minisbert.models.tokenizer import Tokenizer
from minisbert.objectives.scored_pairs import SPLITS, read_scored_pairs
from tests.parity import ROOT
from tests.reference.texts import SENTENCES, TEXTS

VOCABULARY = read_json(ROOT / "weights" / "tiny" / "tokenizer.json")["model"]["vocab"]
LIBRARY = Backend(models.WordPiece(VOCABULARY, unk_token="[UNK]"))


def words_of_library(text: str) -> list[str]:
    normal = normalizers.BertNormalizer(lowercase=True).normalize_str(text)
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normal)]


@pytest.mark.parametrize("text", TEXTS)
def test_words_of_difficult_texts(text):
    assert split_words(text) == words_of_library(text)


# scripts whose characters have been in Unicode for long: the library's tables are older than Python's
@given(st.text(st.characters(max_codepoint=0x58F) | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5)))
def test_words_of_any_text(text):
    assert split_words(text) == words_of_library(text)


@pytest.mark.parametrize("character", [0x3400, 0x20000, 0x2B740, 0x2B820, 0x2B920, 0x2F800, 0xF900, 0x3042, 0xAC00])
def test_ideographs_stand_alone_and_other_east_asian_letters_do_not(character):
    text = f"a{chr(character)}b"
    assert split_words(text) == words_of_library(text)


def test_the_example_of_split_words():
    assert split_words("Café, it's 5!") == ["cafe", ",", "it", "'", "s", "5", "!"]


@pytest.mark.parametrize("text", ["", "  \t\n", "\x00\x07\u200b"])
def test_nothing_to_split(text):
    assert split_words(text) == []


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("playing", ["play", "##ing"]),
        ("play", ["play"]),
        ("playx", ["[UNK]"]),  # not play and [UNK]
        ("ing", ["[UNK]"]),  # ##ing does not begin a word
        ("pi", ["p", "##i"]),
        ("", []),
    ],
)
def test_pieces_by_hand(word, pieces):
    assert word_pieces(word, {"play", "p", "##ing", "##i"}) == pieces


@given(st.text("abcdghinopsty", min_size=1, max_size=12))
def test_pieces_of_any_word(word):
    assert word_pieces(word, VOCABULARY) == LIBRARY.encode(word).tokens


@pytest.mark.parametrize("length", [100, 101])
def test_a_word_beyond_100_characters_is_unknown(length):
    assert word_pieces("a" * length, VOCABULARY) == LIBRARY.encode("a" * length).tokens


def test_ids_of_a_text(tiny):
    library = Tokenizer.load(tiny, limit=32)
    assert [token_ids(text, VOCABULARY) for text in SENTENCES] == library.encode(SENTENCES).ids


@pytest.mark.weights
def test_ids_of_every_sentence_of_the_sts_benchmark(minilm, stsb):
    library = Tokenizer.load(minilm)
    vocabulary = library.backend.get_vocab()
    pairs = [pair for split in SPLITS for pair in read_scored_pairs(stsb / f"sts-{split}.csv")]
    texts = sorted({text for pair in pairs for text in (pair.sentence1, pair.sentence2)})
    assert len(texts) > 15_000
    assert [token_ids(text, vocabulary) for text in texts] == library.encode(texts).ids
