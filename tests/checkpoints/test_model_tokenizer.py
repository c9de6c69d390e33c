"""What the tokenizer of a model does beyond the book's: the other end, token types, a refusal."""

import pytest
from tokenizers import Tokenizer as Backend

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError
from minisbert.core.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.reference.texts import SENTENCES

TINY = ROOT / "weights" / "tiny"


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
