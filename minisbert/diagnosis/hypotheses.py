"""How two sets of vectors for the same texts differ: by rounding, as codes, in the order of rows; and the verdict.

Differences are relative to the length of a vector, so that for vectors of length 1 they are plain absolute ones.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from minisbert.core.encoder import normalize
from minisbert.core.metrics import spearman
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.diagnosis.tokenizations import Clue, Tokenization, padded_lengths, tokenizations
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.quantized import calibrate, to_bits, to_int8

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
COMPARED = 512  # rows that are looked up among all others
CODE = 1.0 + 1e-6  # steps of an int8 code: an engine may round to the nearest level or down to the next one
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
        if self.difference is None:
            return None
        return min(16, int(-math.log10(max(self.difference, 1e-16))))


@dataclass(frozen=True)
class Precision:
    """The precision in which vectors were stored: errors of at most ``relative`` of each value plus ``absolute``."""

    name: str
    relative: float = 0.0
    absolute: float = 0.0

    def bound(self, values: np.ndarray) -> np.ndarray:
        """The largest distance of each value from the number that was rounded."""
        return 1.001 * (self.relative * np.abs(values) + self.absolute)


def stored_precision(values: np.ndarray) -> Precision:
    """The coarsest precision that holds all values (N, D) exactly. ``[[0.12, 0.35]]`` are two decimals."""
    tensor = torch.from_numpy(values)
    for digits in range(1, 7):
        # float32 numbers that were rounded to decimals are those decimals only after rounding to float32 again
        rounded = np.round(values, digits)
        if (rounded == values).all() or (rounded.astype(np.float32) == values).all():
            return Precision(f"{digits} decimals", absolute=0.5 * 10**-digits)
    for dtype, relative, absolute in ((torch.bfloat16, 2**-8, 0.0), (torch.float16, 2**-11, 2**-25)):
        if (tensor.to(dtype).double() == tensor).all():
            return Precision(str(dtype).removeprefix("torch."), relative, absolute)
    return Precision("float32")


def unit(values: np.ndarray) -> np.ndarray:
    """Rows (..., D) scaled to length 1; a row of zeros stays one."""
    return values / np.linalg.norm(values, axis=-1, keepdims=True).clip(1e-30)


def row_differences(ours: np.ndarray, other: np.ndarray, precision: Precision | None = None) -> np.ndarray:
    """The largest difference of each row, (..., D) twice -> (...), relative to the length of ours.

    The rounding to ``precision`` is subtracted first: 0 means that it explains everything.
    """
    gap = np.abs(ours - other)
    if precision is not None:
        gap = (gap - precision.bound(other)).clip(0)
    return gap.max(axis=-1) / np.linalg.norm(ours, axis=-1).clip(1e-30)


def row_cosines(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The cosine of matching rows (N, D) -> (N,), exact near 1: from the distance of the unit vectors."""
    return 1 - ((unit(ours) - unit(other)) ** 2).sum(axis=-1) / 2


def agreement(ours: np.ndarray, other: np.ndarray, most: int = 64) -> float:
    """Spearman's correlation of the cosines among the texts on both sides; 0 for fewer than four texts."""
    x, y = ((rows @ rows.T)[np.triu_indices(len(rows), k=1)] for rows in (unit(ours[:most]), unit(other[:most])))
    return spearman(x, y) if len(ours) > 3 and np.ptp(x) and np.ptp(y) else 0.0


# --------------------------------------------------------------------------------------------- codes


def quantization(ours: np.ndarray, other: np.ndarray) -> str | None:
    """Which int8 or binary code of ours (N, D) the other vectors are, in words; None if they are none."""
    if (other != np.round(other)).any():
        return None
    if other.shape == ours.shape:
        for low in (-1, 0):
            if ((other == low) | (other == 1)).all() and same_bits(ours, other > 0):
                return f"binary: the signs of the columns, as {low} and 1"
        return int8_code(ours, other)
    if other.shape[1] != -(-ours.shape[1] // 8):
        return None
    for name, shift in (("ubinary", 0), ("binary", 128)):
        codes = other + shift
        fits = codes.min() >= 0 and codes.max() <= 255
        if fits and same_bits(ours, np.unpackbits(codes.astype(np.uint8), axis=1, count=ours.shape[1])):
            return f"binary: one bit for each column ({name} in sentence-transformers)"
    return None


def same_bits(ours: np.ndarray, bits: np.ndarray) -> bool:
    """Whether bits (N, D) are those of ours. A value close to 0 may have either, unless all are so close."""
    expected = np.unpackbits(to_bits(ours), axis=1, count=ours.shape[1])
    clear = np.abs(ours) > 1e-4 * np.linalg.norm(ours, axis=1, keepdims=True)
    return bool(clear.any() and (expected == bits)[clear].all())


def int8_code(ours: np.ndarray, other: np.ndarray) -> str | None:
    if other.min() < -128 or other.max() > 127 or len(ours) < 2:
        return None
    if np.abs(to_int8(ours, calibrate(ours)) - other).max() <= CODE:
        return "int8: each column's own range in 255 steps"
    inside = np.abs(other) < 127  # clipped values do not tell the scale
    if np.abs(other).max() <= 8 or not (ours[inside] ** 2).sum():
        return None
    scale = (ours[inside] * other[inside]).sum() / (ours[inside] ** 2).sum()
    if scale > 0 and np.abs((scale * ours).clip(-128, 127) - other).max() <= CODE:
        return f"int8: one scale for all columns, {scale:.4g}"
    return None


# --------------------------------------------------------------------------------------------- order


def nearest(ours: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each of the first ``COMPARED`` rows of the other vectors, the row of ours with the highest cosine."""
    return (unit(other[:COMPARED]) @ unit(ours).T).argmax(axis=1)


def order_in_words(rows: np.ndarray, lengths: Sequence[Sequence[int]], total: int) -> str:
    """An order of rows: the vector in row i is that of text ``rows[i]``.

    ``lengths`` are the lengths of all texts, measured in one way or several: tokens, characters.
    """
    in_place = np.arange(len(rows))
    whole = len(rows) == total and (np.sort(rows) == in_place).all()
    if whole and (rows == in_place[::-1]).all():
        return "the rows are in reverse order"
    for steps in (np.diff(np.array(measure)[rows]) for measure in lengths if whole):
        if steps.any() and ((steps <= 0).all() or (steps >= 0).all()):
            first = "longest" if steps.min() < 0 else "shortest"
            return f"the rows are sorted by length, {first} first, as batches are; the order was not restored"
    shift = int(rows[0])
    if shift and (rows == (in_place + shift) % total).all():
        return f"the rows are shifted by {shift}"
    row = int((rows != in_place).argmax())
    return f"the rows are in another order: row {row + 1} is the vector of line {rows[row] + 1}"


PADDED = (32, 64, 128, 256, 512)  # fixed lengths to which texts are padded
PADS = ("pads pooled", "pads were pooled with the tokens")
ATTENDED = ("pads attended", "tokens attended to pads: the attention mask was left out")
BOTH = ("pads attended and pooled", f"{ATTENDED[1]}, and the pads were pooled too")


@dataclass(frozen=True)
class Hypothesis:
    """A way in which the vectors may have been computed.

    ``vectors`` has for each text the vectors (C, W) that it can give: usually one, or one for each number of pads.
    """

    steps: list[Clue]
    vectors: list[np.ndarray]
    limit: int | None = None  # only texts with more tokens are affected

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(cause for cause, _ in self.steps)

    @property
    def meaning(self) -> str:
        return ", and ".join(clause for _, clause in self.steps)


def inner_pool(hidden: Tensor) -> Tensor:
    """The mean without the first and the last token, [CLS] and [SEP]."""
    if hidden.shape[1] > 2:
        hidden = hidden[:, 1:-1]
    return mean_pool(hidden)


POOLINGS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens"),
    "cls": (cls_pool, "[CLS], the first token,"),
    "max": (max_pool, "the largest value of each column"),
    "last": (last_token_pool, "the last token"),
    "inner": (inner_pool, "the mean without [CLS] and [SEP]"),
}


@dataclass
class Sample:
    """A few of the texts, computed under every hypothesis."""

    encoder: SentenceEncoder
    texts: list[str]
    rows: list[int]  # their numbers among all texts
    lengths: Sequence[int]  # of all texts, in tokens
    prompt: str
    width: int  # columns of the vectors in question
    cache: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @torch.no_grad()
    def hypotheses(self) -> Iterator[Hypothesis]:
        """All of them, the cheap ones first. The model's own way, which has no steps, comes before them."""
        others = tokenizations(self.encoder, self.texts, self.prompt)
        right = next(others)
        yield from self.without_pads(right)
        yield from self.finished([PADS], self.pads_pooled(right))
        for tokenization in others:
            yield from self.without_pads(tokenization)
        if self.encoder.pooling_mode in POOLINGS:
            tokens, everything = self.pads_attended(right)
            yield from self.finished([ATTENDED], tokens)
            yield from self.finished([BOTH], everything)

    def rounding_error(self, dtype: torch.dtype) -> float:
        """How far the right vectors are off if weights and every module's result are rounded to ``dtype``.

        Computed in float32, because many CPUs take minutes for what a GPU does in float16; GPUs also add up in float32.
        """
        other = replace(self, encoder=copy.deepcopy(self.encoder), cache={})
        for parameter in other.encoder.parameters():
            parameter.data = parameter.data.to(dtype).float()
        for module in other.encoder.bert.modules():
            if not any(True for _ in module.children()):  # Linear, LayerNorm, Embedding
                module.register_forward_hook(lambda _, __, result: result.to(dtype).float())
        right, rounded = (np.concatenate(next(sample.hypotheses()).vectors) for sample in (self, other))  # (S, W)
        return float(row_differences(right, rounded).max())

    # ----------------------------------------------------------------------------------- tokens to vectors

    def states(self, ids: Sequence[int], token_type: int = 0) -> tuple[Tensor, Tensor]:
        """The last layer's and the first layer's output for one text, (1, T, D) each."""
        key = (token_type, *ids)
        if key not in self.cache:
            trace: dict[str, Tensor] = {}
            row = torch.tensor([list(ids)], device=self.encoder.device)  # (1, T)
            types = None
            if token_type:
                types = torch.full_like(row, token_type)
            self.cache[key] = self.encoder.bert(row, None, types, trace), trace["layers.0"]
        return self.cache[key]

    def without_pads(self, tokenization: Tokenization) -> Iterator[Hypothesis]:
        """Every pooling and every ending."""
        for steps, pooled in self.poolings(tokenization):
            yield from self.finished(tokenization.steps + steps, pooled, tokenization.limit)

    def poolings(self, tokenization: Tokenization) -> Iterator[tuple[list[Clue], list[Tensor]]]:
        """Pooled vectors (1, D) of each text under each hypothesis about the pooling; the model's own first."""
        states = [self.states(ids, tokenization.token_type) for ids in tokenization.ids]
        mode, encoder, skip = self.encoder.pooling_mode, self.encoder, tokenization.skip
        instead = f"the model has {mode} pooling"
        if all(hidden.shape[1] > skip for hidden, _ in states):
            yield [], [encoder.pool(hidden, None, first, skip) for hidden, first in states]
        for name, (pool, meaning) in POOLINGS.items():
            if name != mode:
                step = (f"{name} pooling", f"{meaning} was taken, {instead}")
                yield [step], [pool(hidden) for hidden, _ in states]
        if mode != "first-last":
            step = ("first-last pooling", f"the first and the last layer were averaged, {instead}")
            yield [step], [first_last_pool(hidden, None, first) for hidden, first in states]
        if mode != "pooler" and encoder.bert.pooler is not None:
            step = ("pooler", f"BERT's pooler output was taken, {instead}")
            yield [step], [encoder.bert.pool(hidden) for hidden, _ in states]
        if skip:
            step = ("prompt pooled", "the prompt's tokens were pooled too")
            yield [step], [encoder.pool(hidden, None, first) for hidden, first in states]

    def finished(self, steps: list[Clue], pooled: list[Tensor], limit: int | None = None) -> Iterator[Hypothesis]:
        """The hypotheses about what follows the pooling, the model's own way first; pooled (C, D) for each text."""
        if not pooled:
            return
        starts = np.cumsum([len(rows) for rows in pooled])[:-1]
        joined, dense = torch.cat(pooled), self.encoder.dense
        ways = []
        if not len(dense) or dense[0].linear.in_features == joined.shape[1]:
            ways.append((steps, dense(joined)))
        if len(dense):
            ways.append(([*steps, ("no dense", "the dense layer was left out")], joined))
        for before, vectors in ways:
            for more, result in self.scaled(vectors):
                yield Hypothesis(before + more, np.split(result.double().cpu().numpy(), starts), limit)

    def scaled(self, vectors: Tensor) -> Iterator[tuple[list[Clue], Tensor]]:
        """Vectors (S, D) cut to the width in question, and scaled to length 1 or not; the model's own way first."""
        width, full = self.width, vectors.shape[1]
        if width > full:
            return
        usual = min(self.encoder.settings.truncate_dim or full, full)
        cut: list[Clue] = []
        if width != usual:
            cut = [("truncated", f"the first {width} columns were kept, the model has {usual}")]
        raw, unit = vectors[:, :width], normalize(vectors)[:, :width]
        if self.encoder.normalize:
            yield cut, unit
            yield [*cut, ("not normalised", "the vectors were not scaled to length 1")], raw
        else:
            yield cut, raw
            yield [*cut, ("normalised", "the vectors were scaled to length 1")], unit
        if width < full:
            step = ("normalised after truncation", "the remaining columns were scaled to length 1")
            yield [*cut, step], normalize(raw)

    # ------------------------------------------------------------------------------------------- pads

    def padded(self, ids: list[int], size: int) -> Tensor:
        pads = [self.encoder.tokenizer.pad_id] * (size - len(ids))
        return torch.tensor([ids + pads], device=self.encoder.device)  # (1, P)

    def pads_pooled(self, tokenization: Tokenization) -> list[Tensor]:
        """For each text the pooled vectors with 0, 1, 2, ... pads, (C, D).

        No token attends to a pad here, so that a pad's state does not depend on how many others there are.
        """
        mode, tokenizer = self.encoder.pooling_mode, self.encoder.tokenizer
        if mode not in ("mean", "max", "lasttoken"):
            return []
        pooled, size = [], min(self.encoder.bert.config.positions, max(PADDED[-1], tokenizer.limit))
        for ids in tokenization.ids:
            count = torch.arange(1, size + 1, device=self.encoder.device)  # (P,)
            # (P, D): the state of the last pad, for texts that have that many pads
            running = self.encoder.bert(self.padded(ids, size), count[None] <= len(ids))[0]
            if mode == "mean":
                running = running.double().cumsum(dim=0) / count[:, None]
            if mode == "max":
                running = running.cummax(dim=0).values
            pooled.append(running[len(ids) - 1 :].to(self.encoder.dtype))
        return pooled

    def pads_attended(self, tokenization: Tokenization) -> tuple[list[Tensor], list[Tensor]]:
        """For each text and each likely number of pads: the tokens pooled, and everything pooled, (C, D) each."""
        tokenizer, pool = self.encoder.tokenizer, POOLINGS[self.encoder.pooling_mode][0]
        longest = min(self.encoder.bert.config.positions, max(PADDED[-1], tokenizer.limit))
        cut = [min(length, tokenizer.limit) for length in self.lengths]
        tokens, everything = [], []
        for number, ids in zip(self.rows, tokenization.ids, strict=True):
            likely = {len(ids), tokenizer.limit}
            likely.update(PADDED, padded_lengths(number, cut))
            sizes = [size for size in sorted(likely) if len(ids) <= size <= longest]
            hidden = [self.encoder.bert(self.padded(ids, size)) for size in sizes]  # (1, P, D) each
            tokens.append(torch.cat([pool(x[:, : len(ids)]) for x in hidden]))
            everything.append(torch.cat([pool(x) for x in hidden]))
        return tokens, everything
