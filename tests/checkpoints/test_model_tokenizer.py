"""What the tokenizer of a model does beyond the book's: the other end, token types, a refusal."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError
from minisbert.core.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.reference.texts import SENTENCES

TINY = ROOT / "weights" / "tiny"

# What a text of many characters may be made of: words, every kind of space, a word that is [UNK],
# an accent that stands alone, characters that vanish, Chinese, and special tokens.
PARTS = [
    "the cat",
    " ",
    " ",
    "\n",
    "\u3000",
    "x" * 120,
    "e\u0301",
    "\u0301",
    "\u200b",
    "中",
    "?",
    "[MASK]",
    "[SEP] ",
    "[ MASK ]",
]


class Recorder:
    """A backend that records how many characters it has read."""

    def __init__(self):
        self.backend = backend()
        self.characters = 0

    def encode(self, text, **options):
        self.characters += len(text)
        return self.backend.encode(text, **options)

    def encode_batch_fast(self, texts, **options):
        self.characters += sum(len(text) for text in texts)
        return self.backend.encode_batch_fast(texts, **options)


def backend() -> Backend:
    return Backend.from_file(str(TINY / "tokenizer.json"))


@pytest.mark.parametrize("limit", [5, 8, 32])
def test_the_books_tokenizer_gives_the_same(limit):
    """Lesson 02 reads the book's, models run this one."""
    books = Tokenizer.load(TINY, limit)
    models = ModelTokenizer(backend(), limit)
    seconds = SENTENCES[::-1]
    assert models.encode(SENTENCES) == books.encode(SENTENCES)
    assert models.encode_pairs(SENTENCES, seconds) == books.encode_pairs(SENTENCES, seconds)
    assert models.tokens(range(9)) == books.tokens(range(9))


def test_a_long_text_may_lose_its_start():
    """``truncation_side`` left: the end of a text says more in some models."""
    tokenizer = ModelTokenizer(backend(), 5, cut_start=True)
    encoded = tokenizer.encode(["the cat sits on the mat", "a cat"])
    assert tokenizer.tokens(encoded.ids[0]) == ["[CLS]", "on", "the", "mat", "[SEP]"]
    assert tokenizer.tokens(encoded.ids[1]) == ["[CLS]", "a", "cat", "[SEP]"]
    assert encoded.truncated == [True, False]


def test_a_long_pair_may_lose_its_starts():
    """Both texts are cut at the same end."""
    tokenizer = ModelTokenizer(backend(), 6, cut_start=True)
    encoded = tokenizer.encode_pairs(["the cat sits"], ["a dog"])
    assert tokenizer.tokens(encoded.ids[0]) == ["[CLS]", "cat", "sits", "[SEP]", "dog", "[SEP]"]


def test_an_encoder_without_token_types_gets_zeros():
    """DistilBERT has no table of token types."""
    tokenizer = ModelTokenizer(backend(), 9, token_types=False)
    assert tokenizer.encode_pairs(["a cat"], ["a dog"]).token_types == [[0] * 7]


@pytest.mark.parametrize("texts", [["the mat"], ["a dog", "the mat"]])
def test_a_token_without_a_position_is_refused(texts):
    """RoBERTa's positions are counted from its pad, which has none."""
    the = backend().token_to_id("the")
    tokenizer = ModelTokenizer(backend(), 9, forbidden=the)
    with pytest.raises(InputError, match="'the mat' contains the, which has no position"):
        tokenizer.encode(texts)


@pytest.mark.parametrize("limit", [3, 4])
def test_a_limit_too_small_for_pairs_does_for_texts(limit):
    """A search of single words may have it; a cross-encoder cannot."""
    tokenizer = ModelTokenizer(backend(), limit)
    assert [len(ids) for ids in tokenizer.encode(["the cat sits"]).ids] == [limit]
    with pytest.raises(InputError, match="a pair needs 5"):
        tokenizer.encode_pairs(["a cat"], ["a dog"])


def test_a_framed_text_is_cut():
    """A static model frames the pieces of each of its words."""
    tokenizer = ModelTokenizer(backend(), 5)
    cls, sep = tokenizer.frame([])
    assert tokenizer.frame([7, 8]) == [cls, 7, 8, sep]
    assert tokenizer.frame([6, 7, 8, 9]) == [cls, 6, 7, 8, sep]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PARTS), min_size=10, max_size=60).map("".join))
def test_the_beginning_of_a_long_text_has_the_ids_of_the_whole(text):
    """The book's tokenizer reads all of it."""
    books = Tokenizer.load(TINY, 5)
    models = ModelTokenizer(backend(), 5)
    assert models.reads_beginnings
    assert models.encode([text, "a cat"]) == books.encode([text, "a cat"])


def test_a_long_text_is_not_read_whole():
    """Whoever embeds a book must not hold up all others of a server."""
    tokenizer = ModelTokenizer(backend(), 10)
    tokenizer.backend = Recorder()
    encoded = tokenizer.encode(["the cat sits " * 10_000])
    assert encoded.truncated == [True]
    assert tokenizer.backend.characters < 1000


def test_words_after_a_long_unknown_one_are_read():
    """[UNK] stands for a word of any length, so the beginning has a single token."""
    tokenizer = ModelTokenizer(backend(), 5)
    encoded = tokenizer.encode(["a " + "x" * 500 + " the cat"])
    assert tokenizer.tokens(encoded.ids[0]) == ["[CLS]", "a", "[UNK]", "the", "[SEP]"]
    assert encoded.truncated == [True]


def test_a_forbidden_token_is_refused_anywhere_in_a_long_text():
    """Whether a text is refused must not depend on the model's limit."""
    mat = backend().token_to_id("mat")
    tokenizer = ModelTokenizer(backend(), 5, forbidden=mat)
    with pytest.raises(InputError, match="contains mat"):
        tokenizer.encode(["the cat " * 100 + "mat"])


def test_a_long_text_that_loses_its_start_is_read_to_its_end():
    tokenizer = ModelTokenizer(backend(), 4, cut_start=True)
    encoded = tokenizer.encode(["the cat " * 100 + "a dog"])
    assert tokenizer.tokens(encoded.ids[0]) == ["[CLS]", "a", "dog", "[SEP]"]


@pytest.mark.parametrize("content", ["a cat", "the中"])
def test_an_added_token_with_a_space_may_stand_where_a_text_is_cut(content):
    """It would be found in the whole text only. The normalizer puts spaces around 中."""
    own = backend()
    own.add_tokens([AddedToken(content, normalized=True)])
    assert not ModelTokenizer(own, 5).reads_beginnings


def test_texts_of_other_tokenizers_are_read_whole():
    """Their stages may look beyond a space."""
    own = backend()
    own.normalizer = normalizers.Sequence([normalizers.Lowercase(), own.normalizer])
    assert not ModelTokenizer(own, 5).reads_beginnings


def test_a_vocabulary_without_unknown_reads_texts_whole():
    """An unknown word is an error, wherever it stands."""
    content = json.loads(backend().to_str())
    content["model"]["unk_token"] = "[NOTHING]"
    own = Backend.from_str(json.dumps(content))
    assert not ModelTokenizer(own, 5).reads_beginnings
