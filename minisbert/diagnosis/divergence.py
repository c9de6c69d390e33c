"""Compare two sets of named tensors: where they first differ, and which known mistake explains the difference."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minisbert.diagnosis.mistakes import MISTAKES, planted

# what is computed between the previous tensor and this one
PARTS = {
    "embeddings": "the word table, the positions, the token types and the LayerNorm over their sum",
    "attention": "queries and keys (weights, biases, how the heads are split), the scale 1/sqrt(K), the mask, softmax",
    "layer": "values, merging the heads, the output layer, both residual sums, both LayerNorms, feed-forward and GELU",
    "pooler": "the dense layer over the first token and its tanh",
    "pooled": "the kind of pooling, and whether it leaves out the pads",
    "vector": "the steps after the pooling: a dense layer in some models, then scaling to length 1",
}
# in a whole encoder these give the numbers of a mistake in ``attention``, which is named
TWINS = ("layer drops the mask", "encoder's mask inverted")
FORWARD = ("bert.", "pooling.", "poolings.", "sentence_encoder.")  # mistakes elsewhere do not change these tensors


@dataclass(frozen=True)
class Row:
    """The comparison of one named tensor."""

    name: str
    shape: tuple[int, ...]
    difference: float  # the largest, absolute, at real tokens; infinite if either side has a NaN
    at: tuple[int, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.difference <= self.tolerance


def compare(ours: dict[str, Tensor], other: dict[str, Tensor], mask: Tensor, tolerances: dict[str, float]) -> list[Row]:
    """The tensors that both sides have, in our order; mask (B, T).

    Only real tokens count: a pad's states and the probabilities (B, H, T, T) with which it attends to others are
    ignored. The probabilities with which real tokens attend to a pad are compared.
    """
    rows = []
    for name in (name for name in ours if name in other):
        difference = (ours[name].double() - other[name].double()).abs().nan_to_num(nan=torch.inf)
        if difference.ndim == 3:  # (B, T, D)
            difference = difference.masked_fill(~mask[:, :, None], 0.0)
        if difference.ndim == 4:  # (B, H, T, T)
            difference = difference.masked_fill(~mask[:, None, :, None], 0.0)
        at = torch.unravel_index(difference.argmax(), difference.shape)
        largest = difference.max().item()
        rows.append(Row(name, tuple(difference.shape), largest, tuple(map(int, at)), tolerances[name]))
    return rows


def first_divergence(rows: list[Row]) -> Row | None:
    return next((row for row in rows if not row.ok), None)


def suspects(rows: list[Row], again: Callable[[], list[Row]]) -> tuple[list[str], dict[str, str]]:
    """Plant each known mistake of the forward pass on our side and compare ``again``.

    Returns the mistakes that make everything equal; and those that remove at least the first divergence of ``rows``,
    each with the first one left. Of the latter, only those whose remaining divergence comes last.
    """
    order = [row.name for row in rows]
    first = order.index(first_divergence(rows).name)
    whole: list[str] = []
    part: dict[str, str] = {}
    for name, mistake in MISTAKES.items():
        if not mistake.target.startswith(FORWARD) or name in TWINS:
            continue
        try:
            with planted(mistake):
                found = again()
        except Exception:  # a mistake may break the code in any way; then it does not explain these numbers
            continue
        left = first_divergence(found)
        if [row.name for row in found] != order:
            continue
        if left is None:
            whole.append(name)
        elif order.index(left.name) > first:
            part[name] = left.name
    furthest = max(map(order.index, part.values()), default=0)
    return whole, {name: left for name, left in part.items() if order.index(left) == furthest}


def explain(rows: list[Row], whole: list[str], part: dict[str, str], names: list[str]) -> str:
    """The verdict in words; ``names`` are all tensors that could have been compared, in order."""
    first = first_divergence(rows)
    if first is None:
        worst = max(rows, key=lambda row: row.difference / row.tolerance)
        share = 100 * worst.difference / worst.tolerance
        return f"Equal: all {len(rows)} tensors agree. The worst, {worst.name}, uses {share:.2g} % of its tolerance."
    causes = ", or when ".join(
        f"{MISTAKES[name].meaning} ({name}, {MISTAKES[name].target})" for name in whole or list(part)
    )
    if whole:
        return f"{first.name} is the first to differ: these are exactly the numbers you get when {causes}."
    if part:
        left = next(iter(part.values()))
        return (
            f"{first.name} is the first to differ: these are exactly the numbers you get when {causes}. "
            f"But that is not all: with the same mistake on our side {left} still differs."
        )
    path = [name for name in names if name == first.name or name != "pooler"]  # nothing comes after the pooler
    before = [row.name for row in rows[: rows.index(first)] if row.name in path]
    between = path[path.index(before[-1]) + 1 if before else 0 : path.index(first.name) + 1]
    parts = "; ".join(dict.fromkeys(PARTS[part_of(name)] for name in between))
    where = f"between {before[-1]}, which agrees, and {first.name}" if before else f"before {first.name}"
    return f"{first.name} is the first to differ, and no known mistake explains it. Look {where}: {parts}."


def part_of(name: str) -> str:
    """The key of ``PARTS`` that a tensor's name belongs to."""
    if name.startswith("layers."):
        return "attention" if name.endswith(".attention") else "layer"
    return name
