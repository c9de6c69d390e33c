"""Vectors of another engine against the model's own: equal, rounded, explained by a known cause, or not.

``certify`` computes the right vectors of all texts. If they differ by more than rounding, it recomputes a dozen texts
under every hypothesis, and names one only if it gives the vectors of all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.certify.comparison import (
    FLOAT32,
    Precision,
    agreement,
    nearest,
    order_in_words,
    quantization,
    row_cosines,
    row_differences,
    stored_precision,
    unit,
)
from minisbert.diagnosis.certify.hypotheses import Hypothesis, Sample
from minisbert.diagnosis.certify.tokenizations import full_lengths
from minisbert.diagnosis.mistakes import with_each_mistake
from minisbert.loading import uncompiled
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

SAMPLE = 12  # texts that are recomputed
FIRST = 4  # of these, the shortest: most mistakes are ruled out by them alone
NOISE = 4  # another engine's float16 may be this many times as far off as ours
LESS = 4  # in float16 and bfloat16 a cause must leave at most this part of the difference
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


def certify(
    encoder: SentenceEncoder, texts: Sequence[str], values: np.ndarray, prompt: str | None = None
) -> Certificate:
    """Compare ``values`` (N, W) with the vectors of N texts.

    Raises ``ValueError`` for another number of rows, and for a width that no known cause gives.
    """
    if len(values) != len(texts):
        raise ValueError(
            f"{len(values):,} vectors for {len(texts):,} texts: one for each, in the same order, is needed"
        )
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)
    if (code := quantization(ours, values)) is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    case = Case(uncompiled(encoder), texts, ours, values, choose_prompt(encoder.settings, prompt))
    steps = [case.hypothesis, case.mistake]
    if ours.shape == values.shape:
        steps = [case.zeros, case.rounded, case.order, case.hypothesis, case.lengths, case.mistake]
        steps += [case.half_precision, case.unexplained]
    found = next(filter(None, (step() for step in steps)), None)
    if found is None:
        widths = f"the vectors have {values.shape[1]} columns, the model's have {ours.shape[1]}"
        raise ValueError(f"{widths}, and no known cause gives these: another model's?")
    return found


class Case:
    """The vectors in question, (N, W), beside our own, (N, D). Every method is one explanation, or None.

    Only ``hypothesis`` and ``mistake`` apply if the widths differ.
    """

    def __init__(
        self, encoder: SentenceEncoder, texts: Sequence[str], ours: np.ndarray, values: np.ndarray, prompt: str
    ):
        self.encoder, self.texts, self.ours, self.values, self.prompt = encoder, texts, ours, values, prompt
        self.precision = stored_precision(values)
        self.base, self.gaps = Certificate(UNEXPLAINED), np.zeros(len(texts))
        self.tried: list[tuple[float, Hypothesis]] = []  # what each leaves, without its vectors
        if ours.shape == values.shape:
            plain, self.gaps = row_differences(ours, values), row_differences(ours, values, self.precision)  # (N,)
            row, differing = int(plain.argmax()), np.flatnonzero(self.gaps > FLOAT32).tolist()
            cosine = float(row_cosines(ours, values).min())
            self.base = Certificate(UNEXPLAINED, "", (), float(plain[row]), row, cosine, differing)

    @cached_property
    def sample(self) -> Sample:
        """The texts to recompute: the worst, the best, the longest, the shortest, and some across the file."""
        texts, count = self.texts, min(SAMPLE, len(self.texts))
        say(f"not equal: {count} texts are computed again under every known cause")
        lengths = full_lengths(self.encoder.tokenizer, [self.prompt + text for text in texts])
        worst, longest = np.argsort(-self.gaps, kind="stable"), np.argsort(-np.array(lengths), kind="stable")
        across = np.linspace(0, len(texts) - 1, count).astype(int)
        wanted = map(int, [*worst[:4], *longest[:3], longest[-1], worst[-1], *across])
        rows = sorted(list(dict.fromkeys(wanted))[:SAMPLE])
        self.base = replace(self.base, checked=len(rows))
        return Sample(self.encoder, [texts[row] for row in rows], rows, lengths, self.prompt, self.values.shape[1])

    def found(self, meaning: str, *causes: str, verdict: str = EXPLAINED, **numbers: object) -> Certificate:
        return replace(self.base, verdict=verdict, meaning=meaning, causes=causes, **numbers)

    def zeros(self) -> Certificate | None:
        zero = np.flatnonzero(~self.values.any(axis=1))
        if not len(zero):
            return None
        said = f"{len(zero):,} of {len(self.values):,} vectors are all zeros, such as line {zero[0] + 1}"
        return self.found(said, "zeros", verdict=UNEXPLAINED)

    def rounded(self) -> Certificate | None:
        if self.base.differing:
            return None
        if self.base.difference <= FLOAT32:
            return replace(self.base, verdict=EQUAL)
        return self.found(f"stored as {self.precision.name}", self.precision.name, verdict=ROUNDED)

    def order(self, bound: float = FLOAT32) -> Certificate | None:
        """The rows are right, but in another order."""
        rows = nearest(self.ours, self.values)
        left = row_differences(self.ours[rows], self.values[: len(rows)], self.precision)
        if (left > bound).any() or (rows == np.arange(len(rows))).all():
            return None
        tokens, limit = full_lengths(self.encoder.tokenizer, self.texts), self.encoder.tokenizer.limit
        measures = [[min(n, limit) for n in tokens], tokens, list(map(len, self.texts))]
        meaning = order_in_words(rows, measures, len(self.ours))
        return self.found(meaning, "order", checked=len(rows), left=float(left.max()))

    def hypothesis(self) -> Certificate | None:
        """The first hypothesis that gives the vectors of the sample."""
        given = self.values[self.sample.rows]  # (S, W)
        for hypothesis in self.sample.hypotheses():
            if not hypothesis.steps:  # the model's own way
                continue
            pairs = zip(hypothesis.vectors, given, strict=True)
            left = max(float(row_differences(many, one[None], self.precision).min()) for many, one in pairs)
            if left <= FLOAT32:
                return self.explained(hypothesis, left)
            self.tried.append((left, replace(hypothesis, vectors=[])))
        return None

    def explained(self, hypothesis: Hypothesis, left: float, more: str = "") -> Certificate:
        limit = hypothesis.limit
        showing = [] if limit is None else [row for row, n in enumerate(self.sample.lengths) if n > limit]
        return self.found(hypothesis.meaning + more, *hypothesis.causes, left=left, showing=showing)

    def lengths(self) -> Certificate | None:
        """Right directions, wrong lengths."""
        if self.precision.absolute:
            return None
        directions = Precision("", 2 * self.precision.relative)
        left = row_differences(unit(self.ours), unit(self.values), directions).max()
        sizes = np.linalg.norm(self.values, axis=1)
        # up to 1 % is rounding in bfloat16
        if left > 2 * FLOAT32 or np.abs(sizes / np.linalg.norm(self.ours, axis=1) - 1).max() < 0.01:
            return None
        meaning = f"the directions are right, the lengths are not: {sizes.min():.4g} to {sizes.max():.4g}"
        return self.found(meaning, "lengths", left=float(left))

    def mistake(self) -> Certificate | None:
        """The known mistake of the forward pass that gives these vectors.

        Only for vectors of the model's width, and unless the model leaves the prompt's tokens out of the pooling.
        """
        if self.encoder.width == self.values.shape[1] and (self.encoder.settings.include_prompt or not self.prompt):
            for mistake, explains in with_each_mistake(self.computed):
                if explains:
                    return self.found(mistake.meaning, mistake.name, left=0.0)
        return None

    @torch.no_grad()
    def computed(self) -> bool:
        """Whether the encoder as it is now gives the vectors of the sample, in padded batches; shortest texts first."""
        encoder, given = self.encoder, self.values[self.sample.rows]
        ids = encoder.tokenizer.encode([self.prompt + text for text in self.sample.texts]).ids
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for rows in (order[:FIRST], order):
            padded = pad_batch([ids[row] for row in rows], encoder.tokenizer.pad_id)
            vectors = encoder(*(x if x is None else x.to(encoder.device) for x in padded))
            vectors = vectors[:, : given.shape[1]]  # (S, W)
            gaps = row_differences(vectors.double().cpu().numpy(), given[rows], self.precision)
            if not gaps.max() <= FLOAT32:
                return False
        return True

    # ------------------------------------------------------------------------------- without a proof

    def half_precision(self) -> Certificate | None:
        """Explanations up to the rounding of float16 and bfloat16 arithmetic, which differs from engine to engine."""
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            error = self.sample.rounding_error(dtype)
            bound = NOISE * error
            note = f"{name} arithmetic, which by itself is off by up to {error:.1e} on these texts"
            if self.base.difference <= bound:
                return self.found(note, name, verdict=ROUNDED)
            left, best = min(self.tried, key=lambda pair: pair[0])
            others = [other for other, hypothesis in self.tried if hypothesis.meaning != best.meaning]
            if left <= min(bound, self.base.difference / LESS) and 2 * left < min(others):
                return self.explained(best, left, f"; the rest is {note}")
            if (order := self.order(bound)) is not None:
                return order
        return None

    def unexplained(self) -> Certificate:
        """What can be said without a cause."""
        rows = nearest(self.ours, self.values)
        in_place = float((rows == np.arange(len(rows))).mean())
        typical = float(np.median(np.abs(row_cosines(self.ours, self.values))))
        if typical >= 0.5 or in_place >= 0.5:
            said = f"no known cause: half of the cosines are below {typical:.4f}"
            said += f", and {100 * in_place:.0f} % of the vectors are closest to their own text's"
            return self.found(said, verdict=UNEXPLAINED)
        alike = agreement(self.ours, self.values)
        other = "of these texts" if alike > 0.5 else "of these texts, or vectors of other texts"
        said = f"another model's vectors {other}: half of the cosines are below {typical:.2f}, and the similarities"
        said += f" of the texts with each other correlate at {alike:.2f}"
        return self.found(said, "other", verdict=UNEXPLAINED)
