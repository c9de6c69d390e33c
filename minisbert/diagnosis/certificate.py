"""Judge another engine's vectors: equal to the model's, rounded, explained, or unexplained.

``certify`` computes the right vectors of all texts. If the others differ by more than rounding, it
recomputes a dozen texts in every way in which another engine may have computed them (``ways.py``),
and names a cause only if it gives the vectors of all of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.encoder import cosine, cosine_matrix, normalize
from minisbert.diagnosis.ways import Clue, ways
from minisbert.loading import uncompiled
from minisbert.models.properties import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.text_encoder import TextEncoder
from minisbert.system.console import say

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
HALF = 0.02  # arithmetic in float16 or bfloat16 stays below it
LOOKED_UP = 128  # rows that are looked for among the right vectors of other rows


@dataclass(frozen=True)
class Certificate:
    """The verdict, and the numbers that show it.

    Rows count from 0, differences are relative to a vector's length.
    """

    verdict: str  # equal, rounded, explained or unexplained
    meaning: str
    causes: tuple[str, ...]
    difference: float  # the largest
    row: int  # where it is
    cosine: float  # the smallest
    differing: list[int]  # rows beyond rounding
    checked: int = 0  # rows that were recomputed
    left: float | None = None  # the largest difference that is left if computed as explained

    @property
    def harmless(self) -> bool:
        return self.verdict in ("equal", "rounded")

    @property
    def digits(self) -> int:
        """Decimal digits to which the vectors agree: at most 16, those of float64."""
        difference = max(self.difference, 1e-16)
        return int(-math.log10(difference))


@torch.no_grad()
def certify(
    encoder: TextEncoder,
    texts: Sequence[str],
    values: np.ndarray,
    prompt: str | None = None,
    name: object = "the vectors",
) -> Certificate:
    """Compare ``values`` (N, D), float64, with the vectors of N texts. Errors call them ``name``.

    Raises ``InputError`` for another number of rows or columns.
    """
    check_shape_of_vectors(encoder, texts, values, prompt, name)  # before minutes of encoding
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)

    # First comes what the numbers alone say.
    precision, rounding = stored_precision(values)
    gaps = row_differences(ours, values, rounding)  # (N,)
    differences = row_differences(ours, values)  # (N,)
    cosines = cosine(torch.from_numpy(ours), torch.from_numpy(values))  # (N,)
    worst = int(differences.argmax())
    is_differing = ~(gaps <= FLOAT32)  # not ``gaps > FLOAT32``: NaN differs, too
    certificate = Certificate(
        verdict="unexplained",
        meaning="",
        causes=(),
        difference=float(differences[worst]),
        row=worst,
        cosine=float(cosines.min()),
        differing=np.flatnonzero(is_differing).tolist(),
    )

    if not certificate.differing:
        if certificate.difference <= FLOAT32:
            return replace(certificate, verdict="equal")
        meaning = f"stored as {precision}"
        return replace(certificate, verdict="rounded", meaning=meaning, causes=(precision,))

    meaning = another_order(ours, values, rounding, certificate.differing)
    if meaning:
        return replace(certificate, verdict="explained", meaning=meaning, causes=("order",))

    # Then a few texts are computed in other ways. A static model has none: it has no layers.
    model = uncompiled(encoder)
    if isinstance(model, SentenceEncoder):
        rows = rows_to_recompute(texts, gaps)
        say(f"not equal: {len(rows)} texts are computed again in every known way")
        certificate = replace(certificate, checked=len(rows))
        prompt = choose_prompt(encoder.settings, prompt)
        clues, left = find_clues(model, texts, rows, prompt, values[rows], rounding[rows])
        if clues:
            return replace(
                certificate,
                verdict="explained",
                meaning=", and ".join(clue.clause for clue in clues),
                causes=tuple(clue.cause for clue in clues),
                left=left,
            )

    return replace(certificate, meaning=describe_unexplained(cosines, certificate.difference))


def describe_unexplained(cosines: Tensor, difference: float) -> str:
    """Say how far apart vectors are for which no cause was found: cosines (N,)."""
    typical = float(cosines.median())
    meaning = f"no cause found: half of the cosines are below {typical:.4f}"
    if typical < 0.5:
        meaning += ", as with another model's vectors, or those of other texts"
    if difference < HALF:
        meaning += (
            ". Arithmetic in float16 or bfloat16 can differ as much: compare vectors computed in "
            "float32"
        )
    return meaning


def check_shape_of_vectors(
    encoder: TextEncoder, texts: Sequence[str], values: np.ndarray, prompt: str | None, name: object
) -> None:
    """Raise ``InputError`` unless there is a vector for each text, as wide as the model's."""
    if len(values) != len(texts):
        raise InputError(
            f"{name}: {len(values):,} vectors for {len(texts):,} texts: one for each, in the same "
            f"order, is needed"
        )
    width = encoder.encode(texts[:1], prompt=prompt).shape[1]
    if values.shape[1] != width:
        raise InputError(
            f"{name}: the vectors have {values.shape[1]} columns, the model's have {width}: "
            f"another model's, or without its dense layer, or cut (--truncate-dim)?"
        )


# ----------------------------------------------------------------------- what the numbers alone say


def stored_precision(values: np.ndarray) -> tuple[str, np.ndarray]:
    """Return the coarsest precision that holds all values (N, D) exactly, and each one's rounding.

    The second result (N, D) is how much may have been rounded off.
    """
    # From the finest precision to the coarsest: the last one that holds the values counts.
    tensor = torch.from_numpy(values)
    name = "float32"
    rounding = np.zeros_like(values)
    if (tensor.half().double() == tensor).all():
        name = "float16"
        rounding = 2**-11 * np.abs(values) + 2**-25  # the second part is that of subnormal numbers
    if (tensor.bfloat16().double() == tensor).all():
        name = "bfloat16"
        rounding = 2**-8 * np.abs(values)
    for digits in (6, 5, 4, 3):
        rounded = np.round(values, digits)
        # The second comparison is for decimals that were stored as float32, the nearest of which is
        # not exactly the decimal.
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            name = f"{digits} decimals"
            rounding = np.full_like(values, 0.5 * 10**-digits)
    # A per mille more is for what was rounded by another rule than to the nearest.
    return name, 1.001 * rounding


def row_differences(
    ours: np.ndarray, other: np.ndarray, rounding: np.ndarray | float = 0.0
) -> np.ndarray:
    """Return the largest difference beyond rounding of each row, relative to the length of ours.

    Both (..., D) -> (...).
    """
    gap = (np.abs(ours - other) - rounding).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def another_order(
    ours: np.ndarray, values: np.ndarray, rounding: np.ndarray, differing: list[int]
) -> str:
    """Say so if each of the differing rows is the right vector of another one; else return ""."""
    # Rows that change places are all among those that differ: C of them, of which S are looked up.
    looked_up = differing[:LOOKED_UP]
    theirs = values[looked_up]  # (S, D)
    candidates = ours[differing]  # (C, D)

    # Each one must equal the candidate that it resembles most.
    cosines = cosine_matrix(torch.from_numpy(theirs), torch.from_numpy(candidates))  # (S, C)
    nearest = cosines.argmax(dim=1).numpy()  # (S,)
    differences = row_differences(candidates[nearest], theirs, rounding[looked_up])  # (S,)
    if not (differences <= FLOAT32).all():  # NaN is no vector of another row
        return ""

    row = differing[0] + 1
    line = differing[nearest[0]] + 1
    return f"the rows are in another order: row {row} is the vector of line {line}"


# ---------------------------------------------------------------------- what other computations say


def rows_to_recompute(texts: Sequence[str], gaps: np.ndarray) -> list[int]:
    """Choose the four worst rows, the four longest, and four across the file.

    The worst come first, because most causes fail there. Sorting is stable, so that the same file
    is judged by the same texts on every machine.
    """
    worst = np.argsort(-gaps, kind="stable").tolist()[:4]
    longest = sorted(range(len(texts)), key=lambda row: -len(texts[row]))[:4]
    across = np.linspace(0, len(texts) - 1, 4).astype(int).tolist()
    return list(dict.fromkeys(worst + longest + across))


def find_clues(
    model: SentenceEncoder,
    texts: Sequence[str],
    rows: list[int],
    prompt: str,
    values: np.ndarray,
    rounding: np.ndarray,
) -> tuple[list[Clue], float]:
    """Find the first way to compute vectors that gives the ``values`` (S, D) of these rows.

    Returns how it differs from the model's own way, and the largest difference left; no clue if no
    way gives them.
    """
    chosen = [texts[row] for row in rows]
    for clues, vectors in ways(model, chosen, prompt, texts):
        scaled, left = better_scaling(model.normalize, vectors, values, rounding)
        if scaled and not model.normalize:
            clues.append(Clue("normalised", "the vectors were scaled to length 1"))
        if model.normalize and not scaled:
            clues.append(Clue("not normalised", "the vectors were not scaled to length 1"))
        if left <= FLOAT32 and clues:
            return clues, left
    return [], math.inf


def better_scaling(
    normalizes: bool, vectors: Iterable[Tensor], values: np.ndarray, rounding: np.ndarray
) -> tuple[bool, float]:
    """Return whether the computed vectors, (C, D) for each text, fit better if scaled to length 1.

    The second result is the largest difference, of the vectors that fit better. ``values`` and
    ``rounding`` (S, W) are those of the texts; the computed vectors are cut to their W columns.
    Stops at the first text that fits in neither way.
    """
    # The largest difference of the vectors as they are, and that of the scaled ones.
    left_unscaled = 0.0
    left_scaled = 0.0
    for candidates, value, rounded in zip(vectors, values, rounding, strict=True):
        unscaled = closest_difference(candidates, value, rounded)
        scaled = closest_difference(normalize(candidates), value, rounded)
        left_unscaled = np.maximum(left_unscaled, unscaled)  # not ``max``: NaN stays NaN
        left_scaled = np.maximum(left_scaled, scaled)
        fits_unscaled = bool(left_unscaled <= FLOAT32)  # NaN does not fit
        fits_scaled = bool(left_scaled <= FLOAT32)
        if not fits_unscaled and not fits_scaled:
            break

    # If both fit, the model's own way counts.
    if fits_scaled and (normalizes or not fits_unscaled):
        return True, float(left_scaled)
    return False, float(left_unscaled)


def closest_difference(candidates: Tensor, value: np.ndarray, rounding: np.ndarray) -> float:
    """Return the difference of a vector (W,) from the nearest of the candidates (C, D)."""
    columns = candidates[:, : len(value)].double().cpu().numpy()  # (C, W)
    return float(row_differences(columns, value, rounding).min())
