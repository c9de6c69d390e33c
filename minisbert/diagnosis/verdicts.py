"""The verdict on vectors of another engine, and what it is drawn from: a sample, rounding, an order of rows."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from minisbert.core.metrics import spearman
from minisbert.diagnosis.certificate import FLOAT32, Storage, differences, order_of, partners
from minisbert.diagnosis.certificate import unit as unit_rows
from minisbert.diagnosis.hypotheses import Trial
from minisbert.diagnosis.other_inputs import whole_lengths
from minisbert.models.sentence_encoder import SentenceEncoder

SAMPLE = 12  # texts that are recomputed
EQUAL, ROUNDED, EXPLAINED, UNEXPLAINED = "equal", "rounded", "explained", "unexplained"


@dataclass(frozen=True)
class Certificate:
    """The verdict, and the numbers that show it. Rows count from 0."""

    verdict: str  # EQUAL, ROUNDED, EXPLAINED or UNEXPLAINED
    meaning: str = ""
    causes: tuple[str, ...] = ()
    difference: float | None = None  # the largest; None if the widths differ
    row: int | None = None  # where it is
    cosine: float | None = None  # the smallest
    differing: list[int] = field(default_factory=list)  # rows beyond rounding
    checked: int = 0  # rows that were recomputed
    left: float | None = None  # the largest difference under the explanation
    showing: list[int] = field(default_factory=list)  # rows that the cause can change, if only some

    @property
    def harmless(self) -> bool:
        return self.verdict in (EQUAL, ROUNDED)

    @property
    def digits(self) -> int | None:
        """Decimal digits to which the vectors agree, relative to their length."""
        return None if self.difference is None else min(16, int(-math.log10(max(self.difference, 1e-16))))


def permuted(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    ours: np.ndarray,
    values: np.ndarray,
    kept: Storage,
    bound: float = FLOAT32,
) -> dict[str, object] | None:
    """The finding that the rows are right but in another order; None if they are not."""
    found = partners(ours, values)
    left = differences(ours[found], values[: len(found)], kept)
    if (left > bound).any() or (found == np.arange(len(found))).all():
        return None
    tokens = whole_lengths(encoder.tokenizer, texts)
    lengths = [[min(n, encoder.tokenizer.limit) for n in tokens], tokens, list(map(len, texts))]
    meaning = order_of(found, lengths, len(ours))
    return {"meaning": meaning, "causes": ("order",), "checked": len(found), "left": float(left.max())}


def rounding(trial: Trial, right: np.ndarray, dtype: torch.dtype) -> float:
    """How far our own vectors are off if weights and every module's result are rounded to ``dtype``.

    Computed in float32, because many CPUs take minutes for what a GPU does in float16; GPUs also add up in float32.
    """
    other = copy.copy(trial)
    other.known, other.encoder = {}, copy.deepcopy(trial.encoder)
    for parameter in other.encoder.parameters():
        parameter.data = parameter.data.to(dtype).float()
    for module in other.encoder.bert.modules():
        if not any(True for _ in module.children()):  # Linear, LayerNorm, Embedding
            module.register_forward_hook(lambda _, __, result: result.to(dtype).float())
    return float(differences(right, other.own()).max())


def chosen(gaps: np.ndarray, lengths: Sequence[int]) -> list[int]:
    """The texts to recompute: the worst, the best, the longest, the shortest, and some across the file."""
    worst, longest = np.argsort(-gaps, kind="stable"), np.argsort(-np.array(lengths), kind="stable")
    across = np.linspace(0, len(gaps) - 1, min(SAMPLE, len(gaps))).astype(int)
    wanted = [*worst[:4], *longest[:3], longest[-1], worst[-1], *across]
    return sorted(list(dict.fromkeys(map(int, wanted)))[:SAMPLE])


def agreement(ours: np.ndarray, values: np.ndarray, most: int = 64) -> float:
    """Spearman's correlation of the cosines among texts on both sides; 0 for fewer than four texts."""
    first, second = unit_rows(ours[:most]), unit_rows(values[:most])
    pairs = np.triu_indices(len(first), k=1)
    x, y = (first @ first.T)[pairs], (second @ second.T)[pairs]
    return spearman(x, y) if len(first) > 3 and np.ptp(x) and np.ptp(y) else 0.0
