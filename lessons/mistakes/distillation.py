"""Mistakes in making a model smaller: layers, students, prefixes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from lessons.mistakes.planting import mistake
from minisbert.core.bert import Bert
from minisbert.core.encoder import normalize
from minisbert.training import losses

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_keep, _matryoshka = losses.keep_layers, losses.matryoshka_loss

# ------------------------------------------------------------------------------------------- layers


@mistake(
    losses,
    "spread_layers",
    "layers dropped from the top",
    "the first layers are kept, and the last are lost",
)
def _(total: int, keep: int) -> list[int]:
    return list(range(keep))


@mistake(
    losses,
    "spread_layers",
    "every n-th from 0",
    "the last layer, which makes the vectors, is dropped",
)
def _(total: int, keep: int) -> list[int]:
    return [i * total // keep for i in range(keep)]


@mistake(
    losses,
    "spread_layers",
    "middle of each stretch",
    "neither the first nor the last layer is kept",
)
def _(total: int, keep: int) -> list[int]:
    return [((2 * i + 1) * total - keep) // (2 * keep) for i in range(keep)]


@mistake(
    losses, "spread_layers", "halves rounded to even", "Python's round takes 2.5 to 2, and 3.5 to 4"
)
def _(total: int, keep: int) -> list[int]:
    return [round(i * (total - 1) / (keep - 1)) for i in range(keep)] if keep > 1 else [total - 1]


@mistake(
    losses,
    "spread_layers",
    "rounded down",
    "the layers in between are the ones before, not the nearest",
)
def _(total: int, keep: int) -> list[int]:
    return [i * (total - 1) // (keep - 1) for i in range(keep)] if keep > 1 else [total - 1]


@mistake(
    losses,
    "keep_layers",
    "layers shared with the teacher",
    "training the student changes its teacher",
)
def _(bert: Bert, layers: Sequence[int]) -> Bert:
    student = _keep(bert, layers)
    student.layers = nn.ModuleList(bert.layers[i] for i in layers)
    return student


@mistake(
    losses,
    "keep_layers",
    "as many layers from the bottom",
    "only the number of layers is looked at",
)
def _(bert: Bert, layers: Sequence[int]) -> Bert:
    return _keep(bert, range(len(layers)))


@mistake(
    losses, "keep_layers", "the named layers dropped", "the layers to keep are the ones left out"
)
def _(bert: Bert, layers: Sequence[int]) -> Bert:
    rest = [i for i in range(len(bert.layers)) if i not in layers]
    return _keep(bert, rest or layers)


@mistake(
    losses,
    "keep_layers",
    "the teacher's config kept",
    "the config counts layers that are not there any more",
)
def _(bert: Bert, layers: Sequence[int]) -> Bert:
    student = _keep(bert, layers)
    student.config = replace(bert.config)
    return student


# ------------------------------------------------------------------------------------------- losses


@mistake(
    losses,
    "distillation_loss",
    "teacher with gradients",
    "the teacher is pulled towards its student",
)
def _(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).pow(2).mean()


@mistake(
    losses,
    "distillation_loss",
    "distilled against itself",
    "the target is the student's own vectors",
)
def _(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - student.detach()).pow(2).mean()


@mistake(
    losses, "distillation_loss", "student without gradients", "the detach is on the wrong side"
)
def _(student: Tensor, teacher: Tensor) -> Tensor:
    return (student.detach() - teacher).pow(2).mean()


@mistake(
    losses, "distillation_loss", "columns summed", "the squares are averaged over the rows only"
)
def _(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher.detach()).pow(2).sum(dim=1).mean()


@mistake(losses, "distillation_loss", "root of the mean", "the distance is taken, not its square")
def _(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher.detach()).pow(2).mean().sqrt()


def _prefixes(
    cut: Callable,
    loss: Callable[..., Tensor],
    vectors: Sequence[Tensor],
    dims: Sequence[int],
    weights: Sequence | None,
) -> Tensor:
    pairs = zip(dims, weights or [1.0] * len(dims), strict=True)
    return sum(weight * loss(*(cut(x, dim) for x in vectors)) for dim, weight in pairs)


@mistake(
    losses,
    "matryoshka_loss",
    "prefix not renormalised",
    "a prefix is scaled before it is cut, not after",
)
def _(loss, *vectors, dims, weights=None):
    return _prefixes(lambda x, dim: normalize(x)[:, :dim], loss, vectors, dims, weights)


@mistake(losses, "matryoshka_loss", "prefix not scaled", "the prefixes have any length")
def _(loss, *vectors, dims, weights=None):
    return _prefixes(lambda x, dim: x[:, :dim], loss, vectors, dims, weights)


@mistake(
    losses,
    "matryoshka_loss",
    "last columns",
    "the end of the vectors is trained, and the front is cut out",
)
def _(loss, *vectors, dims, weights=None):
    return _prefixes(lambda x, dim: normalize(x[:, -dim:]), loss, vectors, dims, weights)


@mistake(losses, "matryoshka_loss", "weights left out", "every prefix counts as much as the others")
def _(loss, *vectors, dims, weights=None):
    return _matryoshka(loss, *vectors, dims=dims)


@mistake(
    losses,
    "matryoshka_loss",
    "averaged over the prefixes",
    "the sum is divided by the number of prefixes",
)
def _(loss, *vectors, dims, weights=None):
    return _matryoshka(loss, *vectors, dims=dims, weights=weights) / len(dims)
