"""Parity checks of the losses: the value and the gradient of every input against
``losses.safetensors``.

Importing this module adds them to ``checks.CHECKS``. The values come from
``reference/losses_reference.py``. Where a constant could fairly be a float32 tensor (a weight, a
temperature), the reference is torch's own function, with constants that float32 holds exactly.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from lessons.by_hand import losses as by_hand
from minisbert.core import losses
from minisbert.training import gradient_cache, masked
from minisbert.training import losses as more_losses
from tests.checks import check, compare_gradients, with_gradients
from tests.parity import GRADIENT, PIECE, Comparison, compare, golden


def with_golden(name: str, loss: Callable[..., Tensor], inputs: str) -> Iterator[Comparison]:
    """One loss as a function of the named golden inputs: its value, then the gradient of each."""
    reference = golden("losses")
    tensors = {key: reference[key].requires_grad_() for key in inputs.split()}
    gradients = [reference[f"{name}.grad.{key}"] for key in tensors]
    yield from compare_gradients(
        name, loss(*tensors.values()), reference[f"{name}.value"], tensors, gradients
    )


@check
def mse_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    targets, quarters = reference["targets"], reference["quarters"]
    weighted = by_hand.weighted_mse_loss
    yield from with_golden("mse", lambda x: losses.mse_loss(x, targets), "scores")
    yield from with_golden("weighted_mse", lambda x: weighted(x, targets), "scores")
    weights = torch.where(targets < 0.625, 0.25, 1.0).double()
    yield from with_gradients(
        "weighted_mse, threshold 0.625, weight 0.25",
        lambda x: weighted(x, targets, threshold=0.625, weight=0.25),
        lambda x: functional.mse_loss(x * weights.sqrt(), targets * weights.sqrt()),
        reference["scores"].requires_grad_(),
    )
    yield from with_golden("cosine_mse", lambda u, v: losses.cosine_mse_loss(u, v, quarters), "u v")


@check
def cross_entropy_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    labels, classes = reference["labels"], reference["classes"]
    binary = more_losses.binary_cross_entropy_loss
    yield from with_golden("binary_cross_entropy", lambda z: binary(z, labels), "logits")
    theirs = functional.binary_cross_entropy_with_logits
    yield from with_gradients(
        "binary_cross_entropy, pos_weight 2.5",
        lambda z: binary(z, labels, pos_weight=2.5),
        lambda z: theirs(z, labels.double(), pos_weight=torch.tensor(2.5).double()),
        reference["logits"].requires_grad_(),
    )
    softmax = losses.softmax_cross_entropy_loss
    yield from with_golden("softmax_cross_entropy", lambda z: softmax(z, classes), "class_logits")


@check
def mlm_loss() -> Iterator[Comparison]:
    words = golden("losses")["classes"]
    yield from with_golden(
        "softmax_cross_entropy", lambda z: by_hand.mlm_loss(z, words), "class_logits"
    )


@check
def mask_tokens() -> Iterator[Comparison]:
    """Token by token, by BERT's rule as section 3.1 has it."""
    generator = torch.Generator().manual_seed(0)
    ids, other = torch.randint(5, 99, (2, 5, 40), generator=generator)
    chance = torch.rand(5, 40, generator=generator, dtype=torch.float64)
    words = torch.rand(5, 40, generator=generator) < 0.9
    expected, asked = ids.clone(), torch.zeros(5, 40)
    for place in torch.cartesian_prod(torch.arange(5), torch.arange(40)):
        at = tuple(place.tolist())
        if not words[at] or chance[at] >= 0.15:
            continue
        asked[at] = 1
        share = chance[at] / 0.15  # of the chosen tokens
        if share < 0.8:
            expected[at] = 4
        elif share < 0.9:
            expected[at] = other[at]
    inputs, chosen = masked.mask_tokens(ids, words, 4, chance, other)
    yield compare("inputs", inputs.double(), expected.double(), PIECE)
    yield compare("chosen", chosen.double(), asked.double(), PIECE)


@check
def contrastive_loss() -> Iterator[Comparison]:
    labels = golden("losses")["labels"]
    yield from with_golden("contrastive", lambda u, v: losses.contrastive_loss(u, v, labels), "u v")
    u, w = (golden("losses")[key].requires_grad_() for key in ("u", "w"))

    def reference(u: Tensor, w: Tensor) -> Tensor:
        d = 1 - functional.cosine_similarity(u, w)
        return torch.where(labels == 1, d**2, functional.relu(1.25 - d) ** 2).mean() / 2

    yield from with_gradients(
        "contrastive, margin 1.25",
        lambda u, w: losses.contrastive_loss(u, w, labels, margin=1.25),
        reference,
        u,
        w,
    )


@check
def triplet_loss() -> Iterator[Comparison]:
    yield from with_golden("triplet", losses.triplet_loss, "u v w")
    yield from with_golden(
        "triplet_cosine", partial(losses.triplet_loss, margin=0.2, distance="cosine"), "u v w"
    )


@check
def cosent_loss() -> Iterator[Comparison]:
    targets = golden("losses")["targets"]
    yield from with_golden("cosent", lambda u, v: more_losses.cosent_loss(u, v, targets), "u v")
    yield from with_golden(
        "cosent_scale_3", lambda u, v: more_losses.cosent_loss(u, v, targets, scale=3.0), "u v"
    )


@check
def multiple_negatives_ranking_loss() -> Iterator[Comparison]:
    ranking, duplicates = losses.multiple_negatives_ranking_loss, golden("losses")["duplicates"]
    for name, inputs, options in (
        ("ranking", "u v", {}),
        ("ranking_hard", "u v negatives", {"scale": 8.0}),
        ("ranking_symmetric", "u v", {"symmetric": True}),
        ("ranking_symmetric_hard", "u v negatives", {"scale": 8.0, "symmetric": True}),
        (
            "ranking_duplicates",
            "u v negatives",
            {"scale": 8.0, "symmetric": True, "duplicates": duplicates},
        ),
    ):
        yield from with_golden(name, partial(ranking, **options), inputs)


def cosines(u: Tensor, v: Tensor) -> Tensor:
    """All cosines of two sets of rows, (B, D) and (N, D) -> (B, N), by torch."""
    return functional.cosine_similarity(u[:, None], v[None], dim=-1)


@check
def simcse_loss() -> Iterator[Comparison]:
    reference = golden("losses")
    u, v, w = (reference[key].requires_grad_() for key in "uvw")

    def expected(
        u: Tensor, v: Tensor, w: Tensor | None = None, *, temperature: float, weight: float = 0.0
    ) -> Tensor:
        logits = cosines(u, v) / temperature
        if w is not None:
            logits = torch.cat(
                [logits, cosines(u, w) / temperature + weight * torch.eye(len(u)).double()], 1
            )
        return functional.cross_entropy(logits, torch.arange(len(u)))

    warm, weight = {"temperature": 0.25}, 0.75
    ours = partial(losses.simcse_loss, temperature=0.0625)
    yield from with_gradients(
        "simcse, temperature 1/16", ours, partial(expected, temperature=0.0625), u, v
    )
    ours = partial(losses.simcse_loss, **warm)
    yield from with_gradients("simcse, hard negatives", ours, partial(expected, **warm), u, v, w)
    ours = partial(losses.simcse_loss, hard_negative_weight=weight, **warm)
    theirs = partial(expected, weight=weight, **warm)
    yield from with_gradients("simcse, hard negatives with weight 0.75", ours, theirs, u, v, w)


@check
def nt_xent_loss() -> Iterator[Comparison]:
    reference = golden("losses")
    u, v = (reference[key].requires_grad_() for key in "uv")

    def expected(u: Tensor, v: Tensor, temperature: float) -> Tensor:
        z = torch.cat([u, v])
        logits = (cosines(z, z) / temperature).fill_diagonal_(-torch.inf)
        return functional.cross_entropy(logits, torch.arange(len(z)).roll(len(u)))

    for name, temperature in (
        ("nt_xent, temperature 1/16", 0.0625),
        ("nt_xent, temperature 1/2", 0.5),
    ):
        sides = (
            partial(side, temperature=temperature) for side in (by_hand.nt_xent_loss, expected)
        )
        yield from with_gradients(name, *sides, u, v)


@check
def default_temperatures() -> Iterator[Comparison]:
    """1/20, which float32 does not hold: of the package alone, not asked of a learner."""
    yield from with_golden("simcse", losses.simcse_loss, "u v")
    yield from with_golden("nt_xent", by_hand.nt_xent_loss, "u v")


class Texts(nn.Module):
    """Row numbers -> vectors (B, 3, 4) of three texts each, with dropout, by torch alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(21, 5)
        self.layer = nn.Linear(5, 4)
        generator = torch.Generator().manual_seed(7)
        for parameter in self.double().parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)

    def forward(self, rows: list[int]) -> Tensor:
        ids = 3 * torch.tensor(rows)[:, None] + torch.arange(3)  # (B, 3)
        return functional.dropout(
            self.layer(functional.dropout(self.table(ids), 0.25)).tanh(), 0.25
        )


@check
def batch_in_parts() -> Iterator[Comparison]:
    """A batch of seven triplets in four parts, with dropout, and the same masks in one graph."""
    network, lengths = Texts(), [20, 30, 90, 40, 30, 50, 30]

    def loss(vectors: Tensor) -> Tensor:
        u, v, w = vectors.unbind(1)  # (B, 4) each
        logits = (
            torch.cat([cosines(u, v), cosines(u, w) + 0.75 * torch.eye(len(u)).double()], 1) / 0.25
        )
        return functional.cross_entropy(logits, torch.arange(len(u)))

    torch.manual_seed(11)
    expected_vectors = torch.cat([network(part) for part in ([6, 3], [0, 1, 4], [2], [5])])
    expected, after = loss(expected_vectors), torch.rand(1)
    gradients = torch.autograd.grad(expected, list(network.parameters()))

    torch.manual_seed(11)
    parts = gradient_cache.cut([6, 3, 0, 1, 4, 2, 5], lengths, 90)
    vectors = gradient_cache.GradientCache(network, lambda _: parts)([6, 3, 0, 1, 4, 2, 5])
    found = torch.zeros_like(expected_vectors)
    found[: len(vectors)] = vectors.detach()  # rows that no part has are 0
    yield compare("batch in parts, vectors", found, expected_vectors, PIECE)
    value = loss(vectors)
    yield compare("batch in parts, loss", value, expected, PIECE)
    value.backward()
    for (name, parameter), gradient in zip(network.named_parameters(), gradients, strict=True):
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        yield compare(f"batch in parts, gradient of {name}", found, gradient, GRADIENT)
    yield compare("batch in parts, the next random number", torch.rand(1), after, PIECE)


@check
def distillation_loss() -> Iterator[Comparison]:
    """Against torch's mse_loss, which has no gradient for a detached teacher."""
    u, v = (golden("losses")[key].requires_grad_() for key in "uv")
    value, expected = more_losses.distillation_loss(u, v), functional.mse_loss(u, v.detach())
    gradients = [*torch.autograd.grad(expected, u), torch.zeros_like(v)]
    yield from compare_gradients(
        "distillation", value, expected, {"student": u, "teacher": v}, gradients
    )


@check
def matryoshka_loss() -> Iterator[Comparison]:
    """Prefixes cut and scaled by torch, under a loss that depends on their length."""
    u, v = (golden("losses")[key].requires_grad_() for key in "uv")
    width, cut = u.shape[1], functional.normalize

    def expected(
        u: Tensor, v: Tensor, dims: tuple[int, ...], weights: tuple[float, ...] = (1.0, 1.0)
    ) -> Tensor:
        ends = zip(dims, weights, strict=True)
        return sum(
            w * functional.mse_loss(cut(u[:, :d], dim=1), cut(v[:, :d], dim=1)) for d, w in ends
        )

    for name, options in (
        ("matryoshka", {"dims": (2, width)}),
        ("matryoshka, weights", {"dims": (1, 3, width - 1), "weights": (0.5, 2.0, 0.25)}),
    ):
        ours = partial(more_losses.matryoshka_loss, functional.mse_loss, **options)
        yield from with_gradients(name, ours, partial(expected, **options), u, v)
