"""Judge vectors of another engine: equal to the model's, rounded, explained by a cause, or unexplained.

``certify`` computes the right vectors of all texts. If the others differ by more than rounding, it recomputes a dozen
texts in every way of ``hypotheses.py``, and names a cause only if it gives the vectors of all of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.encoder import cosine, cosine_matrix, normalize
from minisbert.diagnosis.hypotheses import ways
from minisbert.loading import Encoder, uncompiled
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
HALF = 0.02  # arithmetic in float16 or bfloat16 stays below it
LOOKED_UP = 128  # rows that are looked up among the others
NORMALISED = ("normalised", "the vectors were scaled to length 1")
NOT_NORMALISED = ("not normalised", "the vectors were not scaled to length 1")
EQUAL, ROUNDED, EXPLAINED, UNEXPLAINED = "equal", "rounded", "explained", "unexplained"


@dataclass(frozen=True)
class Certificate:
    """The verdict, and the numbers that show it. Rows count from 0, differences are relative to a vector's length."""

    verdict: str  # EQUAL, ROUNDED, EXPLAINED or UNEXPLAINED
    meaning: str
    causes: tuple[str, ...]
    difference: float  # the largest
    row: int  # where it is
    cosine: float  # the smallest
    differing: list[int]  # rows beyond rounding
    checked: int = 0  # rows that were recomputed
    left: float | None = None  # the largest difference under the explanation

    @property
    def harmless(self) -> bool:
        return self.verdict in (EQUAL, ROUNDED)

    @property
    def digits(self) -> int:
        """Decimal digits to which the vectors agree."""
        return min(16, int(-math.log10(max(self.difference, 1e-16))))


@torch.no_grad()
def certify(
    encoder: Encoder,
    texts: Sequence[str],
    values: np.ndarray,
    prompt: str | None = None,
    name: object = "the vectors",
) -> Certificate:
    """Compare ``values`` (N, D), float64, with the vectors of N texts. Errors call them ``name``.

    Raises ``InputError`` for another number of rows or columns.
    """
    # before minutes of encoding
    if len(values) != len(texts):
        numbers = f"{len(values):,} vectors for {len(texts):,} texts"
        raise InputError(f"{name}: {numbers}: one for each, in the same order, is needed")
    width = encoder.encode(texts[:1], prompt=prompt).shape[1]
    if values.shape[1] != width:
        widths = f"the vectors have {values.shape[1]} columns, the model's have {width}"
        raise InputError(f"{name}: {widths}: another model's, or without its dense layer, or cut (--truncate-dim)?")
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)

    # from the numbers alone
    precision, rounding = stored_precision(values)
    gaps, differences = row_differences(ours, values, rounding), row_differences(ours, values)  # (N,) both
    cosines = cosine(torch.from_numpy(ours), torch.from_numpy(values))
    worst = int(differences.argmax())
    differing = np.flatnonzero(~(gaps <= FLOAT32)).tolist()  # NaN differs, too
    found = Certificate(UNEXPLAINED, "", (), float(differences[worst]), worst, float(cosines.min()), differing)
    if not differing:
        if found.difference <= FLOAT32:
            return replace(found, verdict=EQUAL)
        return replace(found, verdict=ROUNDED, meaning=f"stored as {precision}", causes=(precision,))
    line = line_of_another(ours[differing], values[differing], rounding[differing])
    if line is not None:
        meaning = f"the rows are in another order: row {differing[0] + 1} is the vector of line {differing[line] + 1}"
        return replace(found, verdict=EXPLAINED, meaning=meaning, causes=("order",))

    # by recomputing the worst, the longest, and some across the file; the worst first, because most causes fail there.
    # stable, so that the same file is judged by the same texts on every machine
    model, prompt = uncompiled(encoder), choose_prompt(encoder.settings, prompt)
    if isinstance(model, SentenceEncoder):  # a static model has no layers
        longest = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
        across = np.linspace(0, len(texts) - 1, 4).astype(int).tolist()
        rows = list(dict.fromkeys([*np.argsort(-gaps, kind="stable").tolist()[:4], *longest[:4], *across]))
        say(f"not equal: {len(rows)} texts are computed again in every known way")
        found = replace(found, checked=len(rows))
        for clues, vectors in ways(model, [texts[row] for row in rows], prompt, texts):
            scaled, left = fit(model.normalize, vectors, values[rows], rounding[rows])
            if scaled != model.normalize:
                clues.append(NORMALISED if scaled else NOT_NORMALISED)
            if left <= FLOAT32 and clues:
                meaning, causes = ", and ".join(clause for _, clause in clues), tuple(cause for cause, _ in clues)
                return replace(found, verdict=EXPLAINED, meaning=meaning, causes=causes, left=left)

    typical = float(cosines.median())
    meaning = f"no cause found: half of the cosines are below {typical:.4f}"
    if typical < 0.5:
        meaning += ", as with another model's vectors, or those of other texts"
    if found.difference < HALF:
        meaning += ". Arithmetic in float16 or bfloat16 can differ as much: compare vectors computed in float32"
    return replace(found, meaning=meaning)


def fit(normalizes: bool, vectors: Iterable[Tensor], values: np.ndarray, rounding: np.ndarray) -> tuple[bool, float]:
    """Return whether the computed vectors, (C, D) for each text, fit better scaled, and the largest difference then.

    ``values`` and ``rounding`` (S, W) are those of the texts. Stops at the first text that fits in neither way.
    """
    left = np.zeros(2)  # not scaled, scaled
    for candidates, value, rounded in zip(vectors, values, rounding, strict=False):
        both = torch.stack([candidates, normalize(candidates)])[:, :, : len(value)]  # (2, C, W)
        left = np.maximum(left, row_differences(both.double().cpu().numpy(), value, rounded).min(axis=1))
        if not (left <= FLOAT32).any():  # NaN does not fit
            break
    # the model's own way if both fit
    scaled = normalizes if left[int(normalizes)] <= FLOAT32 else not normalizes
    return scaled, float(left[int(scaled)])


def stored_precision(values: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the coarsest precision that holds all values (N, D) exactly, and how much it may have rounded off each."""
    tensor, rounding, name = torch.from_numpy(values), np.zeros_like(values), "float32"
    if (tensor.half().double() == tensor).all():
        # the second part is that of subnormal numbers
        name, rounding = "float16", 2**-11 * np.abs(values) + 2**-25
    if (tensor.bfloat16().double() == tensor).all():
        name, rounding = "bfloat16", 2**-8 * np.abs(values)
    for digits in (6, 5, 4, 3):
        rounded = np.round(values, digits)
        # float32 numbers that were rounded to decimals are those decimals only after rounding to float32 again
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            name, rounding = f"{digits} decimals", np.full_like(values, 0.5 * 10**-digits)
    return name, 1.001 * rounding  # a per mille more, for what was rounded by another rule than to the nearest


def row_differences(ours: np.ndarray, other: np.ndarray, rounding: np.ndarray | float = 0.0) -> np.ndarray:
    """Return the largest difference beyond rounding of each row, (..., D) twice -> (...), relative to ours' length."""
    gap = (np.abs(ours - other) - rounding).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def line_of_another(ours: np.ndarray, other: np.ndarray, rounding: np.ndarray) -> int | None:
    """Return which row of ours (N, D) the first of the other vectors is; None unless each of them is one of ours.

    All of these rows differ, so they are right vectors in another order. The first ``LOOKED_UP`` are looked up.
    """
    similar = cosine_matrix(torch.from_numpy(other[:LOOKED_UP]), torch.from_numpy(ours))
    nearest = similar.argmax(dim=1).numpy()
    left = row_differences(ours[nearest], other[:LOOKED_UP], rounding[:LOOKED_UP])
    return int(nearest[0]) if (left <= FLOAT32).all() else None
