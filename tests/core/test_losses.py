"""The book's losses: gradients, properties, bad input. The grader and ``loss_checks.py`` have the values."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minisbert.core.losses import (
    contrastive_loss,
    cosine_mse_loss,
    mse_loss,
    multiple_negatives_ranking_loss,
    simcse_loss,
    softmax_cross_entropy_loss,
    triplet_loss,
)
from tests.parity import PIECE, assert_parity

# ---------------------------------------------------------------------------------------- gradients

LABELS, TARGETS = torch.tensor([1, 0, 1, 0]), torch.tensor([0.1, 0.7, 0.7, 0.4], dtype=torch.float64)
RANKING = multiple_negatives_ranking_loss
TWINS = torch.eye(4, dtype=torch.bool)[[0, 3, 2, 1]]  # 1 and 3 are the same text
ON_VECTORS = {
    "cosine": lambda u, v, w: cosine_mse_loss(u, v, TARGETS),
    "contrastive": lambda u, v, w: contrastive_loss(u, v, LABELS, margin=1.5),
    "triplet": triplet_loss,
    "triplet, cosine": lambda u, v, w: triplet_loss(u, v, w, distance="cosine"),
    "ranking": lambda u, v, w: multiple_negatives_ranking_loss(u, v, w, 3.0, symmetric=True, duplicates=TWINS),
    "simcse": lambda u, v, w: simcse_loss(u, v, w, temperature=0.5, hard_negative_weight=0.3),
}


def vectors(seed: int = 2) -> list[Tensor]:
    """Three batches (4, 6) that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("name", ON_VECTORS)
def test_gradients_on_vectors(name):
    assert torch.autograd.gradcheck(ON_VECTORS[name], vectors())


@pytest.mark.parametrize("name", ON_VECTORS)
def test_new_tensors_are_on_the_device_of_the_vectors(name):
    """With another default device than theirs, as when the vectors are on a GPU."""
    inputs = vectors()
    with torch.device("meta"):
        loss = ON_VECTORS[name](*inputs)
    assert torch.equal(loss, ON_VECTORS[name](*inputs))


@pytest.mark.parametrize("name", ON_VECTORS)
def test_equal_and_zero_vectors_have_finite_gradients(name):
    zeros, ones, twins = (torch.full((4, 6), x, requires_grad=True) for x in (0.0, 1.0, 1.0))
    for inputs in ((zeros, ones, twins), (ones, ones, twins)):
        loss = ON_VECTORS[name](*inputs)
        gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
        assert all(x is None or x.isfinite().all() for x in (loss, *gradients))


# --------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_dtype(dtype):
    logits, labels = vectors()[0], torch.tensor([5, 0, 3, 3])
    assert_parity(
        "labels", softmax_cross_entropy_loss(logits, labels.to(dtype)), F.cross_entropy(logits, labels), PIECE
    )


def test_the_order_of_the_batch_does_not_matter():
    inputs, order = vectors(), torch.tensor([2, 0, 3, 1])
    for loss, options, shuffled in (
        (RANKING, {"symmetric": True, "duplicates": TWINS}, {"duplicates": TWINS[order][:, order]}),
        (simcse_loss, {"hard_negative_weight": 0.3}, {}),
    ):
        value = loss(*inputs, **options)
        assert value > 0.1
        assert_parity(loss.__name__, loss(*(x[order] for x in inputs), **options | shuffled), value, PIECE)


def test_perfect_positives_cost_little_and_wrong_ones_much():
    u = torch.eye(4, dtype=torch.float64)
    apart = u.roll(1, dims=0)  # cosine 0, distance sqrt(2)
    for loss in (multiple_negatives_ranking_loss, simcse_loss):
        assert loss(u, u) < 1e-7
        assert loss(u, apart) > 19  # a right answer at cosine 0, a wrong one at 1: 20 apart
    assert triplet_loss(u, u, apart) == 0  # sqrt(2) is more than the margin
    assert triplet_loss(u, apart, u) == pytest.approx(1 + math.sqrt(2))
    assert triplet_loss(u, u, 9 * apart, margin=3.0) == 0  # a Euclidean margin may be above 2
    assert contrastive_loss(u, u, torch.ones(4)) == 0
    for margin, over in ((1.0, 0), (1.5, 0.5)):
        assert contrastive_loss(u, apart, torch.zeros(4), margin=margin).item() == pytest.approx(over**2 / 2)
        assert triplet_loss(u, u, apart, margin=margin, distance="cosine").item() == pytest.approx(over)


def test_duplicates_are_not_negatives():
    """Rows 1 and 3 are the same text: with the mask neither is a negative of the other."""
    u = torch.eye(4, dtype=torch.float64)
    u[3] = u[1]
    ranking = RANKING
    # rows 1 and 3 each have two equal candidates
    assert ranking(u, u).item() == pytest.approx(math.log(2) / 2, abs=1e-7)
    assert ranking(u, u, duplicates=TWINS) < 1e-7
    with_diagonal = TWINS | torch.eye(4, dtype=torch.bool)  # the diagonal is ignored
    x, y, _ = vectors()
    for symmetric in (False, True):
        expected = ranking(x, y, symmetric=symmetric, duplicates=TWINS)
        assert torch.equal(ranking(x, y, symmetric=symmetric, duplicates=with_diagonal), expected)
        none = ranking(x, y, symmetric=symmetric, duplicates=TWINS & False)
        assert torch.equal(none, ranking(x, y, None, 20, symmetric))
    one_way = torch.zeros(4, 4, dtype=torch.bool)
    one_way[1, 3] = True  # positive 3 is correct for anchor 1
    swapped = ranking(y, x, symmetric=True, duplicates=one_way.T)
    assert_parity("swapped", ranking(x, y, symmetric=True, duplicates=one_way), swapped, PIECE)


def test_hard_negatives_of_any_number():
    u, v, w = vectors()
    more = torch.cat([w, w[:1]])
    assert multiple_negatives_ranking_loss(u, v, more) > multiple_negatives_ranking_loss(u, v, w)
    one = multiple_negatives_ranking_loss(u[:1], v[:1], w[:1], scale=2.0)  # a batch of one, with a negative
    gap = F.cosine_similarity(u[:1], w[:1]) - F.cosine_similarity(u[:1], v[:1])
    assert_parity("one row", one, (2 * gap).exp().log1p().squeeze(), PIECE)


# ---------------------------------------------------------------------------------------- bad input

ROWS, OTHER, FLAT = torch.ones(2, 3), torch.ones(2, 4), torch.ones(2)
BAD = [
    (cosine_mse_loss, (ROWS, ROWS, ROWS[:, :1]), {}, "target"),  # would broadcast to (2, 2)
    (cosine_mse_loss, (ROWS, ROWS[:1], FLAT), {}, "v must"),
    *((cosine_mse_loss, (ROWS, ROWS, x * FLAT), {}, "target") for x in (1.001, math.nan)),
    (mse_loss, (ROWS[:, :1], FLAT), {}, "scores"),  # would broadcast to (2, 2)
    (mse_loss, (FLAT, FLAT[:1]), {}, "target"),
    (softmax_cross_entropy_loss, (FLAT, FLAT.long()), {}, "logits"),
    (softmax_cross_entropy_loss, (ROWS, torch.ones(3).long()), {}, "labels"),
    (softmax_cross_entropy_loss, (ROWS, torch.tensor([0, 3])), {}, "out of bounds"),  # torch says it
    (softmax_cross_entropy_loss, (ROWS, FLAT), {}, "labels"),
    (contrastive_loss, (ROWS, OTHER, FLAT), {}, "v must"),
    (contrastive_loss, (ROWS, ROWS, FLAT * 0.5), {}, "labels"),
    (contrastive_loss, (ROWS, ROWS, FLAT), {"margin": 5.0}, "margin"),
    (triplet_loss, (ROWS, ROWS, OTHER), {}, "negative"),
    (triplet_loss, (ROWS, ROWS, ROWS), {"margin": -1.0}, "margin"),
    (triplet_loss, (ROWS, ROWS, ROWS), {"margin": 5.0, "distance": "cosine"}, "margin"),
    (triplet_loss, (ROWS, ROWS, ROWS), {"distance": "manhattan"}, "manhattan"),
    (RANKING, (ROWS, OTHER), {}, "positives"),
    (RANKING, (ROWS, ROWS, OTHER), {}, "hard_negatives"),
    (RANKING, (ROWS, ROWS), {"scale": 0}, "scale"),
    (RANKING, (ROWS[:1], ROWS[:1]), {}, "negatives"),
    (RANKING, (ROWS, ROWS), {"duplicates": torch.eye(2)}, "Float"),  # torch says it
    (RANKING, (ROWS, ROWS), {"duplicates": torch.eye(3).bool()}, "duplicates"),
    (simcse_loss, (ROWS, ROWS, ROWS[:1]), {}, "hard_negatives"),
    (simcse_loss, (ROWS, ROWS), {"temperature": 0.0}, "temperature"),
    (simcse_loss, (ROWS, ROWS), {"hard_negative_weight": 1.0}, "hard_negative_weight"),
    (simcse_loss, (ROWS, ROWS, ROWS), {"hard_negative_weight": math.inf}, "hard_negative_weight"),
    (simcse_loss, (ROWS[:1], ROWS[:1]), {}, "negatives"),
]


@pytest.mark.parametrize(("loss", "inputs", "options", "noun"), BAD)
def test_bad_input_is_named(loss, inputs, options, noun):
    with pytest.raises((ValueError, RuntimeError), match=noun):
        loss(*inputs, **options)
