"""Golden values of the losses: each value in float64, and the gradient of every differentiable
input.

They come from sentence-transformers, from torch's functions, and for the rest from slow loops, one
number at a time, that follow the papers' equations. This file imports nothing of minisbert.
"""

from collections.abc import Callable

import torch
from sentence_transformers.sentence_transformer.losses import (
    ContrastiveLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)
from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric
from torch import Tensor, nn

BATCH, WIDTH, CLASSES = 5, 7, 3
BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


def inputs() -> dict[str, Tensor]:
    """Vectors u, similar ones v and w, 2B negatives, scores and labels; with ties and a target at
    the threshold.
    """
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    u = normal(BATCH, WIDTH) * torch.tensor([0.3, 1.0, 2.0, 0.7, 1.5], dtype=torch.float64)[:, None]
    near = u.norm(dim=1, keepdim=True) * WIDTH**-0.5
    return {
        "u": u,
        "v": u + 0.9 * near * normal(BATCH, WIDTH),
        "w": u + 1.1 * near * normal(BATCH, WIDTH),
        "negatives": normal(2 * BATCH, WIDTH),
        "scores": normal(BATCH),
        "logits": 2 * normal(BATCH),
        "class_logits": normal(BATCH, CLASSES),
        "targets": torch.tensor([0.2, 0.05, 0.6, 0.6, 1.0], dtype=torch.float64),
        # exact in float32, to which sentence-transformers rounds the targets of a cosine
        "quarters": torch.tensor([0.25, -0.5, 0.75, 0.75, 1.0], dtype=torch.float64),
        "labels": torch.tensor([1, 0, 0, 1, 0]),
        "classes": torch.tensor([2, 0, 1, 1, 2]),
        "duplicates": torch.eye(BATCH).roll(2, dims=0).bool()
        & (torch.arange(BATCH) > 1),  # not symmetric
    }


def cos(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two vectors (D,)."""
    return (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt())


def minus_log_share(logit: Tensor, wrong: list[Tensor]) -> Tensor:
    """-log of the share of exp(logit) in its sum with the wrong ones."""
    return -(logit.exp() / sum((other.exp() for other in wrong), logit.exp())).log()


def weighted_mse(scores: Tensor, targets: Tensor) -> Tensor:
    terms = [
        (2 if y < 0.2 else 1) * (x - y) ** 2 for x, y in zip(scores, targets.tolist(), strict=True)
    ]
    return sum(terms) / len(terms)


def ranking_without_duplicates(
    u: Tensor, v: Tensor, negatives: Tensor, duplicates: Tensor, scale: float
) -> Tensor:
    """Both directions; duplicates of an anchor's positive are not among its wrong answers."""
    rows = range(len(u))
    total = torch.zeros((), dtype=u.dtype)
    for i in rows:
        wrong = [scale * cos(u[i], v[j]) for j in rows if j != i and not duplicates[i, j]]
        wrong += [scale * cos(u[i], negative) for negative in negatives]
        total = total + minus_log_share(scale * cos(u[i], v[i]), wrong)
        wrong = [scale * cos(u[j], v[i]) for j in rows if j != i and not duplicates[j, i]]
        total = total + minus_log_share(scale * cos(u[i], v[i]), wrong)
    return total / (2 * len(u))


def simcse(u: Tensor, v: Tensor, temperature: float) -> Tensor:
    """SimCSE, equation 4."""
    total = torch.zeros((), dtype=u.dtype)
    for i in range(len(u)):
        top = (cos(u[i], v[i]) / temperature).exp()
        bottom = sum((cos(u[i], v[j]) / temperature).exp() for j in range(len(u)))
        total = total - (top / bottom).log()
    return total / len(u)


def nt_xent(u: Tensor, v: Tensor, temperature: float) -> Tensor:
    """SimCLR, equation 1, over all 2N rows in the paper's order: rows 2k - 1 and 2k are two views
    of one text.
    """
    rows = [row for pair in zip(u, v, strict=True) for row in pair]
    total = torch.zeros((), dtype=u.dtype)
    for i, row in enumerate(rows):
        partner = i ^ 1
        wrong = [
            cos(row, other) / temperature for j, other in enumerate(rows) if j not in (i, partner)
        ]
        total = total + minus_log_share(cos(row, rows[partner]) / temperature, wrong)
    return total / len(rows)


def losses_golden() -> dict[str, Tensor]:
    """The inputs, and for each loss ``NAME.value`` and ``NAME.grad.INPUT``."""
    given = inputs()
    targets, labels, classes = given["targets"], given["labels"], given["classes"]
    model, functional = nn.Identity(), nn.functional
    cosine_distance = TripletDistanceMetric.COSINE

    def library(
        loss: Callable[..., Tensor], target: Tensor | None = None, **options: object
    ) -> Callable[..., Tensor]:
        return lambda *vectors: loss(model, **options).compute_loss_from_embeddings(
            list(vectors), target
        )

    def ranking(**options: object) -> Callable[..., Tensor]:
        """With the negatives as two columns, as sentence-transformers takes several negatives."""
        loss = library(MultipleNegativesRankingLoss, **options)
        return lambda u, v, negatives: loss(u, v, *negatives.chunk(2))

    references: dict[str, tuple[Callable[..., Tensor], str]] = {
        "mse": (lambda x: functional.mse_loss(x, targets), "scores"),
        "weighted_mse": (lambda x: weighted_mse(x, targets), "scores"),
        "binary_cross_entropy": (
            lambda z: functional.binary_cross_entropy_with_logits(z, labels.double()),
            "logits",
        ),
        "softmax_cross_entropy": (lambda z: functional.cross_entropy(z, classes), "class_logits"),
        "cosine_mse": (library(CosineSimilarityLoss, given["quarters"]), "u v"),
        "contrastive": (library(ContrastiveLoss, labels), "u v"),
        "triplet": (library(TripletLoss, triplet_margin=1.0), "u v w"),
        "triplet_cosine": (
            library(TripletLoss, distance_metric=cosine_distance, triplet_margin=0.2),
            "u v w",
        ),
        "cosent": (library(CoSENTLoss, targets), "u v"),
        "cosent_scale_3": (library(CoSENTLoss, targets, scale=3.0), "u v"),
        "ranking": (library(MultipleNegativesRankingLoss), "u v"),
        "ranking_hard": (ranking(scale=8.0), "u v negatives"),
        "ranking_symmetric": (library(MultipleNegativesRankingLoss, **BOTH_WAYS), "u v"),
        "ranking_symmetric_hard": (ranking(scale=8.0, **BOTH_WAYS), "u v negatives"),
        "ranking_duplicates": (
            lambda u, v, negatives: ranking_without_duplicates(
                u, v, negatives, given["duplicates"], 8.0
            ),
            "u v negatives",
        ),
        "simcse": (lambda u, v: simcse(u, v, 0.05), "u v"),
        "nt_xent": (lambda u, v: nt_xent(u, v, 0.05), "u v"),
    }
    golden = dict(given)
    for name, (reference, names) in references.items():
        tensors = [given[key].clone().requires_grad_() for key in names.split()]
        golden[f"{name}.value"] = value = reference(*tensors)
        gradients = torch.autograd.grad(value, tensors)
        golden |= {
            f"{name}.grad.{key}": gradient
            for key, gradient in zip(names.split(), gradients, strict=True)
        }
    return golden
