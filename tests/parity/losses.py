"""Losses: the value and the gradient of every input, beside ``losses.safetensors``.

The golden values come from ``reference/losses_reference.py``. Where a constant could fairly be a
float32 tensor (a weight, a temperature), the reference is torch's own function, with constants that
float32 holds exactly.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from lessons.by_hand import losses as by_hand
from minisbert.core import losses
from minisbert.training import gradient_cache, masked
from minisbert.training import losses as more_losses
from tests.parity import GRADIENT, PIECE, Comparison, compare, golden
from tests.parity.comparison import compare_gradients, double, normal, with_gradients


def with_golden(name: str, loss: Callable[..., Tensor], *inputs: str) -> Iterator[Comparison]:
    """One loss as a function of the named golden inputs: its value, then the gradient of each."""
    reference = golden("losses")
    tensors = {key: reference[key].requires_grad_() for key in inputs}
    gradients = [reference[f"{name}.grad.{key}"] for key in inputs]
    value = loss(*tensors.values())
    yield from compare_gradients(name, value, reference[f"{name}.value"], tensors, gradients)


def inputs_of(*names: str) -> list[Tensor]:
    """Golden inputs that require a gradient."""
    reference = golden("losses")
    return [reference[name].requires_grad_() for name in names]


def cosines(u: Tensor, v: Tensor) -> Tensor:
    """All cosines of two sets of rows, (B, D) and (N, D) -> (B, N), by torch."""
    return functional.cosine_similarity(u[:, None], v[None], dim=-1)


# ------------------------------------------------------------------------------- scores and classes


def cosine_mse_loss() -> Iterator[Comparison]:
    target = torch.linspace(-0.5, 1, 5, dtype=torch.float64)

    def ours(u: Tensor, v: Tensor) -> Tensor:
        return losses.cosine_mse_loss(u, v, target)

    def theirs(u: Tensor, v: Tensor) -> Tensor:
        return functional.mse_loss(functional.cosine_similarity(u, v), target)

    yield from with_gradients("cosine_mse_loss", ours, theirs, normal(5, 7), normal(5, 7, seed=1))


def mse_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    targets = reference["targets"]
    quarters = reference["quarters"]

    yield from with_golden("mse", lambda x: losses.mse_loss(x, targets), "scores")
    weighted = by_hand.weighted_mse_loss
    yield from with_golden("weighted_mse", lambda x: weighted(x, targets), "scores")

    def ours(x: Tensor) -> Tensor:
        return weighted(x, targets, threshold=0.625, weight=0.25)

    def theirs(x: Tensor) -> Tensor:
        roots = torch.where(targets < 0.625, 0.25, 1.0).double().sqrt()
        return functional.mse_loss(x * roots, targets * roots)

    name = "weighted_mse, threshold 0.625, weight 0.25"
    yield from with_gradients(name, ours, theirs, *inputs_of("scores"))

    def cosine_mse(u: Tensor, v: Tensor) -> Tensor:
        return losses.cosine_mse_loss(u, v, quarters)

    yield from with_golden("cosine_mse", cosine_mse, "u", "v")


def cross_entropy_losses() -> Iterator[Comparison]:
    reference = golden("losses")
    labels = reference["labels"]
    classes = reference["classes"]
    binary = more_losses.binary_cross_entropy_loss
    yield from with_golden("binary_cross_entropy", lambda z: binary(z, labels), "logits")

    def ours(z: Tensor) -> Tensor:
        return binary(z, labels, pos_weight=2.5)

    def theirs(z: Tensor) -> Tensor:
        weight = double(2.5)
        return functional.binary_cross_entropy_with_logits(z, labels.double(), pos_weight=weight)

    name = "binary_cross_entropy, pos_weight 2.5"
    yield from with_gradients(name, ours, theirs, *inputs_of("logits"))

    softmax = losses.softmax_cross_entropy_loss
    yield from with_golden("softmax_cross_entropy", lambda z: softmax(z, classes), "class_logits")


# ------------------------------------------------------------------------------------- masked words


def mlm_loss() -> Iterator[Comparison]:
    words = golden("losses")["classes"]

    def loss(logits: Tensor) -> Tensor:
        return by_hand.mlm_loss(logits, words)

    yield from with_golden("softmax_cross_entropy", loss, "class_logits")


def mask_tokens() -> Iterator[Comparison]:
    """Token by token, by BERT's rule as section 3.1 has it."""
    generator = torch.Generator().manual_seed(0)
    ids, other = torch.randint(5, 99, (2, 5, 40), generator=generator)
    chance = torch.rand(5, 40, generator=generator, dtype=torch.float64)
    words = torch.rand(5, 40, generator=generator) < 0.9

    expected = ids.clone()
    asked = torch.zeros(5, 40)
    for row, column in torch.cartesian_prod(torch.arange(5), torch.arange(40)).tolist():
        at = row, column
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


# ------------------------------------------------------------------------------- pairs and triplets


def contrastive_loss() -> Iterator[Comparison]:
    labels = golden("losses")["labels"]

    def usual(u: Tensor, v: Tensor) -> Tensor:
        return losses.contrastive_loss(u, v, labels)

    yield from with_golden("contrastive", usual, "u", "v")

    def ours(u: Tensor, w: Tensor) -> Tensor:
        return losses.contrastive_loss(u, w, labels, margin=1.25)

    def theirs(u: Tensor, w: Tensor) -> Tensor:
        d = 1 - functional.cosine_similarity(u, w)
        return torch.where(labels == 1, d**2, functional.relu(1.25 - d) ** 2).mean() / 2

    yield from with_gradients("contrastive, margin 1.25", ours, theirs, *inputs_of("u", "w"))


def triplet_loss() -> Iterator[Comparison]:
    yield from with_golden("triplet", losses.triplet_loss, "u", "v", "w")


def cosine_triplet_loss() -> Iterator[Comparison]:
    def loss(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return by_hand.cosine_triplet_loss(u, v, w, margin=0.2)

    yield from with_golden("triplet_cosine", loss, "u", "v", "w")


def cosent_loss() -> Iterator[Comparison]:
    targets = golden("losses")["targets"]

    def usual(u: Tensor, v: Tensor) -> Tensor:
        return more_losses.cosent_loss(u, v, targets)

    def scale_3(u: Tensor, v: Tensor) -> Tensor:
        return more_losses.cosent_loss(u, v, targets, scale=3.0)

    yield from with_golden("cosent", usual, "u", "v")
    yield from with_golden("cosent_scale_3", scale_3, "u", "v")


# ------------------------------------------------------------------------------- in-batch negatives


def multiple_negatives_ranking_loss() -> Iterator[Comparison]:
    ranking = losses.multiple_negatives_ranking_loss

    def scale_8(u: Tensor, v: Tensor, negatives: Tensor) -> Tensor:
        return ranking(u, v, negatives, scale=8.0)

    yield from with_golden("ranking", ranking, "u", "v")
    yield from with_golden("ranking_hard", scale_8, "u", "v", "negatives")


def symmetric_ranking_loss() -> Iterator[Comparison]:
    ranking = more_losses.symmetric_ranking_loss

    def scale_8(u: Tensor, v: Tensor, negatives: Tensor) -> Tensor:
        return ranking(u, v, negatives, scale=8.0)

    yield from with_golden("ranking_symmetric", ranking, "u", "v")
    yield from with_golden("ranking_symmetric_hard", scale_8, "u", "v", "negatives")


def ranking_among_duplicates_loss() -> Iterator[Comparison]:
    duplicates = golden("losses")["duplicates"]

    def loss(u: Tensor, v: Tensor, negatives: Tensor) -> Tensor:
        ranking = by_hand.ranking_among_duplicates_loss
        return ranking(u, v, negatives, duplicates=duplicates, scale=8.0)

    yield from with_golden("ranking_duplicates", loss, "u", "v", "negatives")


def simcse_loss() -> Iterator[Comparison]:
    u, v, w = inputs_of("u", "v", "w")

    def cool(u: Tensor, v: Tensor) -> Tensor:
        return losses.simcse_loss(u, v, temperature=0.0625)

    def torch_cool(u: Tensor, v: Tensor) -> Tensor:
        return torch_simcse(u, v, temperature=0.0625)

    yield from with_gradients("simcse, temperature 1/16", cool, torch_cool, u, v)

    def hard(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return losses.simcse_loss(u, v, w, temperature=0.25)

    def torch_hard(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return torch_simcse(u, v, w, temperature=0.25)

    yield from with_gradients("simcse, hard negatives", hard, torch_hard, u, v, w)


def weighted_simcse_loss() -> Iterator[Comparison]:
    def ours(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        loss = by_hand.weighted_simcse_loss
        return loss(u, v, w, temperature=0.25, hard_negative_weight=0.75)

    def theirs(u: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return torch_simcse(u, v, w, temperature=0.25, weight=0.75)

    name = "simcse, hard negatives with weight 0.75"
    yield from with_gradients(name, ours, theirs, *inputs_of("u", "v", "w"))


def torch_simcse(
    u: Tensor, v: Tensor, w: Tensor | None = None, *, temperature: float, weight: float = 0.0
) -> Tensor:
    """SimCSE's loss by torch; ``weight`` is added to the logit of a text's own hard negative."""
    logits = cosines(u, v) / temperature
    if w is not None:
        hard = cosines(u, w) / temperature + weight * torch.eye(len(u)).double()
        logits = torch.cat([logits, hard], 1)
    return functional.cross_entropy(logits, torch.arange(len(u)))


def nt_xent_loss() -> Iterator[Comparison]:
    for name, temperature in (
        ("nt_xent, temperature 1/16", 0.0625),
        ("nt_xent, temperature 1/2", 0.5),
    ):

        def ours(u: Tensor, v: Tensor, temperature: float = temperature) -> Tensor:
            return by_hand.nt_xent_loss(u, v, temperature=temperature)

        def theirs(u: Tensor, v: Tensor, temperature: float = temperature) -> Tensor:
            z = torch.cat([u, v])
            logits = (cosines(z, z) / temperature).fill_diagonal_(-torch.inf)
            return functional.cross_entropy(logits, torch.arange(len(z)).roll(len(u)))

        yield from with_gradients(name, ours, theirs, *inputs_of("u", "v"))


def default_temperatures() -> Iterator[Comparison]:
    """1/20, which float32 does not hold: of the package alone, not asked of a learner."""
    yield from with_golden("simcse", losses.simcse_loss, "u", "v")
    yield from with_golden("nt_xent", by_hand.nt_xent_loss, "u", "v")


# ------------------------------------------------------------------------------ around other losses


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
        x = functional.dropout(self.table(ids), 0.25)  # (B, 3, 5)
        x = self.layer(x).tanh()  # (B, 3, 4)
        return functional.dropout(x, 0.25)


def batch_in_parts() -> Iterator[Comparison]:
    """A batch of seven triplets in four parts, with dropout, and the same masks in one graph."""
    network = Texts()
    rows = [6, 3, 0, 1, 4, 2, 5]
    lengths = [20, 30, 90, 40, 30, 50, 30]

    def loss(vectors: Tensor) -> Tensor:
        u, v, w = vectors.unbind(1)  # (B, 4) each
        return torch_simcse(u, v, w, temperature=0.25, weight=3.0)

    torch.manual_seed(11)
    expected_vectors = torch.cat([network(part) for part in ([6, 3], [0, 1, 4], [2], [5])])
    after = torch.rand(1)
    expected = loss(expected_vectors)
    gradients = torch.autograd.grad(expected, list(network.parameters()))

    torch.manual_seed(11)
    parts = gradient_cache.cut(rows, lengths, 90)
    vectors = gradient_cache.GradientCache(network, lambda _: parts)(rows)
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


def distillation_loss() -> Iterator[Comparison]:
    """Against torch's mse_loss, which has no gradient for a detached teacher."""
    u, v = inputs_of("u", "v")
    value = more_losses.distillation_loss(u, v)
    expected = functional.mse_loss(u, v.detach())
    (gradient,) = torch.autograd.grad(expected, u)
    named = {"student": u, "teacher": v}
    gradients = [gradient, torch.zeros_like(v)]
    yield from compare_gradients("distillation", value, expected, named, gradients)


def matryoshka_loss() -> Iterator[Comparison]:
    """Prefixes cut and scaled by torch, under a loss that depends on their length."""
    u, v = inputs_of("u", "v")
    width = u.shape[1]
    mse = functional.mse_loss

    def cut(x: Tensor, dims: int) -> Tensor:
        return functional.normalize(x[:, :dims], dim=1)

    def two(u: Tensor, v: Tensor) -> Tensor:
        return more_losses.matryoshka_loss(mse, u, v, dims=(2, width))

    def torch_two(u: Tensor, v: Tensor) -> Tensor:
        return mse(cut(u, 2), cut(v, 2)) + mse(cut(u, width), cut(v, width))

    yield from with_gradients("matryoshka", two, torch_two, u, v)

    def weighted(u: Tensor, v: Tensor) -> Tensor:
        dims = (1, 3, width - 1)
        return more_losses.matryoshka_loss(mse, u, v, dims=dims, weights=(0.5, 2.0, 0.25))

    def torch_weighted(u: Tensor, v: Tensor) -> Tensor:
        loss = 0.5 * mse(cut(u, 1), cut(v, 1))
        loss = loss + 2.0 * mse(cut(u, 3), cut(v, 3))
        return loss + 0.25 * mse(cut(u, width - 1), cut(v, width - 1))

    yield from with_gradients("matryoshka, weights", weighted, torch_weighted, u, v)
