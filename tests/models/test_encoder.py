"""sentence-transformers' names on every encoder, by hand;
``test_calls_of_sentence_transformers.py`` compares them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from minisbert.core import InputError
from minisbert.models.batching import tokenize
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import not_finite
from tests.parity import assert_parity

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon"]
PROMPTS = {"query": "a bird ", "document": "the sun "}


@pytest.fixture
def encoder(tiny):
    return SentenceEncoder.load(tiny, device="cpu")


def test_one_text_has_one_vector(encoder):
    """A string is one text, not a list of characters."""
    vector, rows = encoder.encode("a dog"), encoder.encode(["a dog"])
    assert vector.shape == (24,)
    np.testing.assert_array_equal(vector, rows[0])
    assert encoder.encode("a dog", output_value="token_embeddings").shape == (4, 24)
    assert encoder.encode("a dog", convert_to_tensor=True).shape == (24,)
    assert type(encoder.encode("a dog", convert_to_numpy=False)) is torch.Tensor, (
        "as in sentence-transformers"
    )
    rows = encoder.encode(TEXTS, convert_to_numpy=False)
    assert [type(row) for row in rows] == [torch.Tensor] * 4


def test_the_first_text_whose_numbers_are_not_finite_is_named(encoder):
    """By its tokens. A sum of finite numbers may overflow."""
    tokens = tokenize(encoder.tokenizer, ["a dog", "moon"])
    for numbers in ([[1.0], [torch.inf]], [[1.0], [torch.nan]], [[3e38, 3e38], [torch.nan, 1.0]]):
        for results in (torch.tensor(numbers), [torch.tensor([row]) for row in numbers]):
            assert "'moon'" in str(not_finite(encoder.tokenizer, tokens, results))
    both = str(not_finite(encoder.tokenizer, tokens, torch.tensor([[torch.inf], [-torch.inf]])))
    assert "'a dog'" in both
    assert "1 more" in both


def test_settings_at_load_and_later_are_the_same(tiny, encoder):
    """Each may be set at any time, for this encoder alone."""
    chosen = {
        "max_seq_length": 5,
        "truncate_dim": 7,
        "prompts": PROMPTS,
        "default_prompt_name": "query",
    }
    loaded = SentenceEncoder.load(tiny, **chosen)
    for name, value in chosen.items():
        setattr(encoder, name, value)
        assert getattr(encoder, name) == getattr(loaded, name) == value
    found = encoder.encode(TEXTS)
    assert found.shape == (4, loaded.get_embedding_dimension()) == (4, 7)
    np.testing.assert_array_equal(loaded.encode(TEXTS), found)
    assert encoder.truncated == 3, (
        "with the prompt all texts but the last have more than five tokens"
    )
    plain = SentenceEncoder.load(tiny)
    assert plain.max_seq_length > 5, "the limit of one encoder is not another's"
    encoder.max_seq_length, encoder.truncate_dim = plain.max_seq_length, None
    np.testing.assert_array_equal(encoder.encode(["dog"]), plain.encode(["a bird dog"]))
    np.testing.assert_array_equal(encoder.encode_document(["dog"]), plain.encode(["the sun dog"]))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_seq_length", 10_000, "positions"),
        ("max_seq_length", 2.5, "integer"),
        ("max_seq_length", 1, "too small"),
        ("truncate_dim", 25, "24"),
        ("prompts", {"query": 3}, "dictionary"),
        ("prompts", "query", "dictionary"),
        ("default_prompt_name", "song", "song"),
        ("similarity_fn_name", "angle", "cosine"),
    ],
)
def test_values_that_cannot_be(encoder, name, value, message):
    """Refused where they are set, not at the next call."""
    with pytest.raises(InputError, match=rf"{name}.*{message}|{message}"):
        setattr(encoder, name, value)


def test_a_model_with_two_prompts_says_once_that_none_was_asked_for(encoder, capsys):
    """Without its prompt such a model is several points worse."""
    encoder.prompts = PROMPTS
    encoder.encode_query(TEXTS)
    assert capsys.readouterr().err == ""
    encoder.encode(TEXTS)
    encoder.encode(TEXTS)
    assert capsys.readouterr().err.count("encode_query") == 1


def test_similarities_by_hand(encoder):
    """Each by its formula, as an array or a tensor, for one vector or many."""
    a, b = np.array([[3.0, 4], [1, 0]]), np.array([[4.0, 3], [0, 2]])
    a.setflags(write=False)  # as np.load(mmap_mode="r") gives them
    expected = {
        "cosine": [0.96, 0],
        "dot": [24, 0],
        "euclidean": [-(2**0.5), -(5**0.5)],
        "manhattan": [-2, -3],
    }
    for name, values in expected.items():
        encoder.similarity_fn_name = name
        np.testing.assert_allclose(encoder.similarity_pairwise(a, b), values, atol=1e-12)
        matrix = encoder.similarity(torch.tensor(a), b)
        assert type(matrix) is torch.Tensor
        np.testing.assert_allclose(matrix.diagonal(), values, atol=1e-12)
    assert encoder.similarity(a[0], b[0]).shape == (1, 1)
    assert encoder.similarity(a, b[:0]).shape == (2, 0)
    with pytest.raises(InputError, match="pairs"):
        encoder.similarity_pairwise(a, b[:1])
    with pytest.raises(ValueError, match="width"):
        encoder.similarity(a, b[:, :1])


def test_precision_is_that_of_the_output(encoder):
    """Codes by hand: -128 and 127 at the ends of each column's range, a bit for each value above
    0.
    """
    vectors, codes = encoder.encode(TEXTS), encoder.encode(TEXTS, precision="int8")
    assert codes.dtype == np.int8
    assert {*codes.min(axis=0)} == {-128}
    assert {*codes.max(axis=0)} <= {126, 127}  # a float may fall short of the last level
    np.testing.assert_array_equal(encoder.encode(TEXTS, precision="uint8"), codes.astype(int) + 128)
    bits = encoder.encode(TEXTS, precision="ubinary")
    np.testing.assert_array_equal(np.unpackbits(bits, axis=1), vectors > 0)
    np.testing.assert_array_equal(encoder.encode(TEXTS, precision="binary"), bits.astype(int) - 128)
    assert encoder.encode("a dog", precision="ubinary").shape == (3,)
    for precision, dtype, width in (
        ("int8", np.int8, 24),
        ("uint8", np.uint8, 24),
        ("binary", np.int8, 3),
    ):
        none = encoder.encode([], precision=precision)
        assert (none.shape, none.dtype) == ((0, width), dtype)
    with pytest.raises(InputError, match="int8"):  # the reference refuses it too
        encoder.encode("a dog", precision="int8")


# These are the numbers at which sentence-transformers warns.
@pytest.mark.parametrize(("count", "warns"), [(0, False), (2, True), (99, True), (100, False)])
def test_codes_of_few_texts_are_warned_about(encoder, capsys, count, warns):
    """The ranges of a few texts do not hold for others."""
    encoder.encode([f"dog {number}" for number in range(count)], precision="uint8")
    assert ("ranges" in capsys.readouterr().err) == warns


def test_token_ids_are_encoded_as_their_text(encoder):
    """The server tokenizes first, to count tokens."""
    tokens = tokenize(encoder.tokenizer, TEXTS)
    assert list(tokens.ids[3]) == [
        2,
        *encoder.tokenizer.backend.encode("moon", add_special_tokens=False).ids,
        3,
    ]
    np.testing.assert_array_equal(encoder.vectors_of(tokens).numpy(), encoder.encode(TEXTS))
    # the first two of four tokens are not pooled: the mean of "dog" and [SEP], of length 1
    states = encoder.encode("a dog", output_value="token_embeddings")[2:].mean(dim=0)
    (vector,) = encoder.vectors_of(replace(tokenize(encoder.tokenizer, ["a dog"]), unpooled=2))
    assert_parity("skip", vector, states / states.norm(), 2e-6)  # float32
    with pytest.raises(InputError, match="prompt"):
        encoder.vectors_of(replace(tokens, unpooled=3))
