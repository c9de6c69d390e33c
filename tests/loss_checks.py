"""Parity checks of the losses: the value and the gradient of every input against ``losses.safetensors``.

Importing this module adds them to ``checks.CHECKS``. The values come from ``reference/losses_reference.py``.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from minisbert.core import losses
from minisbert.objectives import more_losses
from tests.checks import check
from tests.parity import GRADIENT, PIECE, Comparison, compare, golden


def with_golden(name: str, loss: Callable[..., Tensor], inputs: str) -> Iterator[Comparison]:
    """One loss as a function of the named golden inputs: its value, then the gradient of each."""
    reference = golden("losses")
    tensors = [reference[key].requires_grad_() for key in inputs.split()]
    value = loss(*tensors)
    yield compare(name, value, reference[f"{name}.value"], PIECE)
    gradients = torch.autograd.grad(value, tensors, allow_unused=True)
    for key, gradient in zip(inputs.split(), gradients, strict=True):
        expected = reference[f"{name}.grad.{key}"]
        # an input that is ignored has no gradient, which is wrong: the right one is not 0
        gradient = torch.zeros_like(expected) if gradient is None else gradient
        yield compare(f"{name}, gradient of {key}", gradient, expected, GRADIENT)


@check
def mse_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    targets, quarters = reference["targets"], reference["quarters"]
    weighted = more_losses.weighted_mse_loss
    yield from with_golden("mse", lambda x: losses.mse_loss(x, targets), "scores")
    yield from with_golden("weighted_mse", lambda x: weighted(x, targets), "scores")
    yield from with_golden("weighted_mse_other", lambda x: weighted(x, targets, threshold=0.6, weight=0.3), "scores")
    yield from with_golden("cosine_mse", lambda u, v: losses.cosine_mse_loss(u, v, quarters), "u v")


@check
def cross_entropy_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    labels, classes = reference["labels"], reference["classes"]
    binary = more_losses.binary_cross_entropy_loss
    yield from with_golden("binary_cross_entropy", lambda z: binary(z, labels), "logits")
    yield from with_golden("binary_cross_entropy_weighted", lambda z: binary(z, labels, pos_weight=2.3), "logits")
    softmax = losses.softmax_cross_entropy_loss
    yield from with_golden("softmax_cross_entropy", lambda z: softmax(z, classes), "class_logits")


@check
def contrastive_loss() -> Iterator[Comparison]:
    labels = golden("losses")["labels"]
    yield from with_golden("contrastive", lambda u, v: losses.contrastive_loss(u, v, labels), "u v")
    yield from with_golden("contrastive_wide", lambda u, w: losses.contrastive_loss(u, w, labels, margin=1.3), "u w")


@check
def triplet_loss() -> Iterator[Comparison]:
    yield from with_golden("triplet", lambda u, v, w: losses.triplet_loss(u, v, w), "u v w")
    yield from with_golden(
        "triplet_cosine", lambda u, v, w: losses.triplet_loss(u, v, w, margin=0.2, distance="cosine"), "u v w"
    )


@check
def cosent_loss() -> Iterator[Comparison]:
    targets = golden("losses")["targets"]
    yield from with_golden("cosent", lambda u, v: more_losses.cosent_loss(u, v, targets), "u v")
    yield from with_golden("cosent_scale_3", lambda u, v: more_losses.cosent_loss(u, v, targets, scale=3.0), "u v")


@check
def multiple_negatives_ranking_loss() -> Iterator[Comparison]:
    duplicates = golden("losses")["duplicates"]
    for name, inputs, options in (
        ("ranking", "u v", {}),
        ("ranking_hard", "u v negatives", {"scale": 8.0}),
        ("ranking_symmetric", "u v", {"symmetric": True}),
        ("ranking_symmetric_hard", "u v negatives", {"scale": 8.0, "symmetric": True}),
        ("ranking_duplicates", "u v negatives", {"scale": 8.0, "symmetric": True, "duplicates": duplicates}),
    ):
        yield from with_golden(
            name,
            lambda *vectors, options=options: losses.multiple_negatives_ranking_loss(*vectors, **options),
            inputs,
        )


@check
def simcse_loss() -> Iterator[Comparison]:
    simcse = losses.simcse_loss
    yield from with_golden("simcse", lambda u, v: simcse(u, v), "u v")
    yield from with_golden("simcse_hard", lambda u, v, w: simcse(u, v, w, temperature=0.2), "u v w")
    yield from with_golden(
        "simcse_weighted", lambda u, v, w: simcse(u, v, w, temperature=0.2, hard_negative_weight=0.7), "u v w"
    )


@check
def nt_xent_loss() -> Iterator[Comparison]:
    yield from with_golden("nt_xent", lambda u, v: more_losses.nt_xent_loss(u, v), "u v")
    yield from with_golden("nt_xent_warm", lambda u, v: more_losses.nt_xent_loss(u, v, temperature=0.5), "u v")
