"""The book's losses: properties and bad input. The grader and ``parity/losses.py`` have values and
gradients.
"""

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

LABELS, TARGETS = (
    torch.tensor([1, 0, 1, 0]),
    torch.tensor([0.1, 0.7, 0.7, 0.4], dtype=torch.float64),
)
RANKING = multiple_negatives_ranking_loss
TWINS = torch.eye(4, dtype=torch.bool)[[0, 3, 2, 1]]  # 1 and 3 are the same text
ON_VECTORS = {
    "cosine": lambda u, v, w: cosine_mse_loss(u, v, TARGETS),
    "contrastive": lambda u, v, w: contrastive_loss(u, v, LABELS, margin=1.5),
    "triplet": triplet_loss,
    "triplet, cosine": lambda u, v, w: triplet_loss(u, v, w, distance="cosine"),
    "ranking": lambda u, v, w: multiple_negatives_ranking_loss(
        u, v, w, 3.0, symmetric=True, duplicates=TWINS
    ),
    "simcse": lambda u, v, w: simcse_loss(u, v, w, temperature=0.5, hard_negative_weight=0.3),
}


def vectors(seed: int = 2) -> list[Tensor]:
    """Three batches (4, 6) that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]


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
        "labels",
        softmax_cross_entropy_loss(logits, labels.to(dtype)),
        F.cross_entropy(logits, labels),
        PIECE,
    )


def test_the_mask_of_duplicates():
    ranking = RANKING
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
    (
        softmax_cross_entropy_loss,
        (ROWS, torch.tensor([0, 3])),
        {},
        "out of bounds",
    ),  # torch says it
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
