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

LABELS = torch.tensor([1, 0, 1, 0])
TARGETS = torch.tensor([0.1, 0.7, 0.7, 0.4], dtype=torch.float64)
RANKING = multiple_negatives_ranking_loss
ON_VECTORS = {
    "cosine": lambda u, v, w: cosine_mse_loss(u, v, TARGETS),
    "contrastive": lambda u, v, w: contrastive_loss(u, v, LABELS, margin=1.5),
    "triplet": triplet_loss,
    "ranking": lambda u, v, w: multiple_negatives_ranking_loss(u, v, w, 3.0),
    "simcse": lambda u, v, w: simcse_loss(u, v, w, temperature=0.5),
}


def vectors() -> list[Tensor]:
    """Three batches (4, 6) that require gradients."""
    generator = torch.Generator().manual_seed(2)
    batches = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    return [batch.requires_grad_() for batch in batches]


@pytest.mark.parametrize("name", ON_VECTORS)
def test_new_tensors_are_on_the_device_of_the_vectors(name):
    """With another default device than theirs, as when the vectors are on a GPU."""
    inputs = vectors()
    with torch.device("meta"):
        loss = ON_VECTORS[name](*inputs)
    assert torch.equal(loss, ON_VECTORS[name](*inputs))


@pytest.mark.parametrize("name", ON_VECTORS)
@pytest.mark.parametrize("first", [0.0, 1.0])
def test_equal_and_zero_vectors_have_finite_gradients(name, first):
    """A root has an infinite slope at 0, and a vector of zeros has no direction."""
    u = torch.full((4, 6), first, requires_grad=True)
    v = torch.ones(4, 6, requires_grad=True)
    w = torch.ones(4, 6, requires_grad=True)
    loss = ON_VECTORS[name](u, v, w)
    loss.backward()
    assert loss.isfinite()
    for x in (u, v, w):
        assert x.grad is None or x.grad.isfinite().all()


# --------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_whole_dtype(dtype):
    """Files of labels are read as the smallest type that holds them."""
    logits = vectors()[0]
    labels = torch.tensor([5, 0, 3, 3])
    found = softmax_cross_entropy_loss(logits, labels.to(dtype))
    assert_parity("labels", found, F.cross_entropy(logits, labels), PIECE)


# ---------------------------------------------------------------------------------------- bad input

ROWS = torch.ones(2, 3)
WIDER = torch.ones(2, 4)
COLUMN = torch.ones(2, 1)  # would broadcast with (2,) to (2, 2)
FLAT = torch.ones(2)
BAD = [
    (cosine_mse_loss, (ROWS, ROWS, COLUMN), {}, "target"),
    (cosine_mse_loss, (ROWS, ROWS[:1], FLAT), {}, "v must"),
    (cosine_mse_loss, (ROWS, ROWS, 1.001 * FLAT), {}, "target"),
    (cosine_mse_loss, (ROWS, ROWS, math.nan * FLAT), {}, "target"),
    (mse_loss, (COLUMN, FLAT), {}, "scores"),
    (mse_loss, (FLAT, FLAT[:1]), {}, "target"),
    (softmax_cross_entropy_loss, (FLAT, torch.tensor([1, 1])), {}, "logits"),
    (softmax_cross_entropy_loss, (ROWS, torch.tensor([1, 1, 1])), {}, "labels"),
    (softmax_cross_entropy_loss, (ROWS, torch.tensor([0, 3])), {}, "out of bounds"),  # torch's
    (softmax_cross_entropy_loss, (ROWS, FLAT), {}, "labels"),
    (contrastive_loss, (ROWS, WIDER, FLAT), {}, "v must"),
    (contrastive_loss, (ROWS, ROWS, 0.5 * FLAT), {}, "labels"),
    (contrastive_loss, (ROWS, ROWS, FLAT), {"margin": 5.0}, "margin"),
    (triplet_loss, (ROWS, ROWS, WIDER), {}, "negative"),
    (triplet_loss, (ROWS, ROWS, ROWS), {"margin": -1.0}, "margin"),
    (RANKING, (ROWS, WIDER), {}, "positives"),
    (RANKING, (ROWS, ROWS, WIDER), {}, "hard_negatives"),
    (RANKING, (ROWS, ROWS), {"scale": 0}, "scale"),
    (RANKING, (ROWS[:1], ROWS[:1]), {}, "negatives"),
    (simcse_loss, (ROWS, ROWS, ROWS[:1]), {}, "hard_negatives"),
    (simcse_loss, (ROWS, ROWS), {"temperature": 0.0}, "temperature"),
    (simcse_loss, (ROWS[:1], ROWS[:1]), {}, "negatives"),
]


@pytest.mark.parametrize(("loss", "inputs", "options", "noun"), BAD)
def test_bad_input_is_named(loss, inputs, options, noun):
    """Nearly all would give a number without an error, and a wrong one."""
    with pytest.raises((ValueError, RuntimeError), match=noun):
        loss(*inputs, **options)
