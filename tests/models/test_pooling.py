"""Poolings beyond the book: first-last, pooler, several at once."""

import math

import pytest
import torch

from minisbert.core import pooling
from minisbert.models.pooling import MORE_POOLINGS, POOLING_NAMES, Pooling, first_last_pool
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.core.test_pooling import MODES, REAL, book_pooling, random_hidden, slow_pool
from tests.parity import GRADIENT, PIECE, assert_parity


def learned(mode: str) -> Pooling:
    """A pooling with attention, with the parameters of the book's."""
    found = Pooling(mode, 3).double()
    found.load_state_dict(book_pooling("attention").state_dict())
    return found


@pytest.mark.parametrize("mode", MODES[:3])
@pytest.mark.parametrize("mask", [None, REAL])
def test_the_books_poolings_by_name(mode, mask):
    hidden = random_hidden()
    assert torch.equal(Pooling(mode)(hidden, mask), pooling.Pooling(mode)(hidden, mask))
    assert torch.equal(learned("attention")(hidden, mask), book_pooling("attention")(hidden, mask))


@pytest.mark.parametrize("name", ["median", "", "MEAN", "cls-max"])
def test_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=f"unknown pooling '{name}': choose from mean, cls, max"):
        Pooling(name)


def test_every_pooling_is_tested_here():
    assert {*POOLING_NAMES} == {*MODES, *MORE_POOLINGS, "first-last", "pooler"}
    assert "max" in repr(Pooling("max"))


@pytest.mark.parametrize(
    ("name", "pooled"), [("mean_sqrt_len_tokens", 8 / math.sqrt(3)), ("weightedmean", 22 / 6), ("lasttoken", 6.0)]
)
def test_the_poolings_of_sentence_transformers_by_hand(name, pooled):
    """Tokens 0, 2, 6 and a pad: 8 over the root of 3; (0 + 4 + 18) / 6 and not over 10; 6."""
    hidden = torch.tensor([[[0.0], [2.0], [6.0], [math.nan]]])
    mask = torch.tensor([[True, True, True, False]])
    for states, real in ((hidden, mask), (hidden[:, :3], None)):
        torch.testing.assert_close(Pooling(name)(states, real), torch.tensor([[pooled]]))


@pytest.mark.reference
@pytest.mark.parametrize("mask", [None, REAL])
@pytest.mark.parametrize("name", MORE_POOLINGS)
def test_the_poolings_of_sentence_transformers_forward_and_backward(name, mask):
    """Also with pads in the middle of a text."""
    modules = pytest.importorskip("sentence_transformers.models", reason="needs the reference extra")
    hidden, again = random_hidden().requires_grad_(), random_hidden().requires_grad_()
    real = torch.ones(hidden.shape[:2]) if mask is None else mask
    features = {"token_embeddings": again, "attention_mask": real.long()}
    expected = modules.Pooling(hidden.shape[-1], name)(features)["sentence_embedding"]
    found = Pooling(name)(hidden, mask)
    assert_parity(name, found, expected, PIECE)
    for vectors in (found, expected):
        vectors.pow(2).sum().backward()
    assert_parity(f"{name}, gradient", hidden.grad, again.grad, GRADIENT)


def test_first_last_by_hand_and_the_slow_way_with_gradients():
    """Last states 1, 3 and first states 5, 7 give 4; the pad in between does not count."""
    last, first = torch.tensor([[[1.0], [50.0], [3.0]]]), torch.tensor([[[5.0], [-90.0], [7.0]]])
    assert first_last_pool(last, torch.tensor([[True, False, True]]), first).tolist() == [[4.0]]

    hidden, first = random_hidden().requires_grad_(), random_hidden(seed=3).requires_grad_()
    slow = (slow_pool("mean", hidden, REAL) + slow_pool("mean", first, REAL)) / 2
    pooled = Pooling("first-last")(hidden, REAL, first)
    assert_parity("first-last", pooled, slow, PIECE)
    assert torch.autograd.gradcheck(lambda hidden, first: first_last_pool(hidden, REAL, first), (hidden, first))
    pooled.sum().backward()
    assert (hidden.grad[~REAL] == 0).all()
    assert (first.grad[~REAL] == 0).all()


@pytest.mark.parametrize("content", [0.0, 1e30, -math.inf, math.nan])
@pytest.mark.parametrize("spoiled", [0, 1])
def test_the_content_of_a_pad_does_not_matter_for_first_last(content, spoiled):
    states = [random_hidden(), random_hidden(seed=3)]
    expected = first_last_pool(states[0], REAL, states[1])
    states[spoiled] = states[spoiled].masked_fill(~REAL[..., None], content).requires_grad_()
    pooled = first_last_pool(states[0], REAL, states[1])
    assert torch.equal(pooled, expected)
    pooled.sum().backward()
    assert states[spoiled].grad.isfinite().all()


def test_several_poolings_are_concatenated_in_the_order_of_the_name():
    states, first, pooler = random_hidden(), random_hidden(seed=3), random_hidden((4, 3), seed=4)
    names = ["pooler", "attention", "max", "first-last"]
    joined = learned("+".join(names))
    alone = [learned(name) if name == "attention" else Pooling(name) for name in names]
    expected = torch.cat([single(states, REAL, first, pooler) for single in alone], dim=-1)
    assert torch.equal(joined(states, REAL, first, pooler), expected)
    assert joined.width(3) == expected.shape[1] == 12
    assert [name for name, _ in joined.named_parameters()] == ["score.weight", "score.bias"]
    assert not list(Pooling("mean+first-last+pooler", 3).parameters())


def test_an_encoder_computes_only_what_its_pooling_needs(tiny, monkeypatch):
    for mode, expected in (("mean", [False, False]), ("first-last", [True, False]), ("cls+pooler", [False, True])):
        encoder, given = SentenceEncoder.load(tiny, mode), []
        forward = encoder.pooling.forward
        spy = lambda *states, forward=forward, given=given: given.append(states[2:]) or forward(*states)  # noqa: E731
        monkeypatch.setattr(encoder.pooling, "forward", spy)
        encoder.encode(["a cat"])
        assert [state is not None for state in given[0]] == expected, mode
