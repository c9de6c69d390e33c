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

from minisbert.diagnosis.comparison import (
    FLOAT32,
    Precision,
    agreement,
    cosines,
    differences,
    nearest,
    order_in_words,
    quantization,
    stored_precision,
    unit,
)
from minisbert.diagnosis.hypotheses import Hypothesis, Sample
from minisbert.diagnosis.mistakes import forward_mistakes, planted
from minisbert.diagnosis.mistakes.planting import written_out
from minisbert.diagnosis.tokenizations import full_lengths, unpooled
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

SAMPLE = 12  # texts that are recomputed
FEW = 4  # texts of the sample, for a first look
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

    Raises ``ValueError`` for another number of rows, and for a width that the model cannot have.
    """
    if len(values) != len(texts):
        raise ValueError(
            f"{len(values):,} vectors for {len(texts):,} texts: one for each, in the same order, is needed"
        )
    ours = encoder.encode(texts, progress=True, prompt=prompt).astype(np.float64)  # (N, D)
    if (code := quantization(ours, values)) is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    case = Case(encoder.eager(), texts, ours, values, choose_prompt(encoder.settings, prompt))
    steps = (case.zeros, case.rounded, case.order, case.hypothesis, case.lengths, case.mistake, case.half_precision)
    found = (step() for step in steps)
    return next((certificate for certificate in found if certificate is not None), None) or case.unexplained()


class Case:
    """The vectors in question, (N, W), beside our own, (N, D). Every method is one explanation, or None."""

    def __init__(
        self, encoder: SentenceEncoder, texts: Sequence[str], ours: np.ndarray, values: np.ndarray, prompt: str
    ):
        self.encoder, self.texts, self.ours, self.values, self.prompt = encoder, texts, ours, values, prompt
        self.precision, self.same_width = stored_precision(values), ours.shape == values.shape
        self.base, self.tried = Certificate(UNEXPLAINED), []
        widest = max(encoder.width, encoder.pooling.width(encoder.bert.config.hidden_size))
        if values.shape[1] > widest:
            raise ValueError(f"{self.widths()}: they are another model's")
        if self.same_width:
            plain, beyond = differences(ours, values), differences(ours, values, self.precision)  # (N,) each
            row, differing = int(plain.argmax()), np.flatnonzero(beyond > FLOAT32).tolist()
            cosine = float(cosines(ours, values).min())
            self.base = Certificate(UNEXPLAINED, "", (), float(plain[row]), row, cosine, differing)

    def widths(self) -> str:
        return f"the vectors have {self.values.shape[1]} columns, the model's have {self.ours.shape[1]}"

    @cached_property
    def sample(self) -> Sample:
        """The texts to recompute: the worst, the best, the longest, the shortest, and some across the file."""
        say(f"not equal: {min(SAMPLE, len(self.texts))} texts are computed again under every known cause")
        texts = self.texts
        lengths = full_lengths(self.encoder.tokenizer, [self.prompt + text for text in texts])
        gaps = differences(self.ours, self.values, self.precision) if self.same_width else np.zeros(len(texts))
        worst, longest = np.argsort(-gaps, kind="stable"), np.argsort(-np.array(lengths), kind="stable")
        across = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts))).astype(int)
        wanted = map(int, [*worst[:4], *longest[:3], longest[-1], worst[-1], *across])
        rows = sorted(list(dict.fromkeys(wanted))[:SAMPLE])
        self.base = replace(self.base, checked=len(rows))
        return Sample(self.encoder, [texts[row] for row in rows], rows, lengths, self.prompt, self.values.shape[1])

    def found(self, meaning: str, *causes: str, verdict: str = EXPLAINED, **numbers: object) -> Certificate:
        return replace(self.base, verdict=verdict, meaning=meaning, causes=causes, **numbers)

    def zeros(self) -> Certificate | None:
        zero = np.flatnonzero(~self.values.any(axis=1))
        if not self.same_width or not len(zero):
            return None
        said = f"{len(zero):,} of {len(self.values):,} vectors are all zeros, such as line {zero[0] + 1}"
        return self.found(said, "zeros", verdict=UNEXPLAINED)

    def rounded(self) -> Certificate | None:
        if not self.same_width or self.base.differing:
            return None
        if self.base.difference <= FLOAT32:
            return replace(self.base, verdict=EQUAL)
        return self.found(f"stored as {self.precision.name}", self.precision.name, verdict=ROUNDED)

    def order(self, bound: float = FLOAT32) -> Certificate | None:
        """The rows are right, but in another order."""
        if not self.same_width:
            return None
        rows = nearest(self.ours, self.values)
        left = differences(self.ours[rows], self.values[: len(rows)], self.precision)
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
            if not hypothesis.causes:
                continue
            pairs = zip(hypothesis.vectors, given, strict=True)
            left = max(float(differences(many, one[None], self.precision).min()) for many, one in pairs)
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
        if not self.same_width or self.precision.absolute:
            return None
        left = differences(unit(self.ours), unit(self.values), Precision("", 2 * self.precision.relative)).max()
        sizes = np.linalg.norm(self.values, axis=1)
        # up to 1 % is rounding in bfloat16
        if left > 2 * FLOAT32 or np.abs(sizes / np.linalg.norm(self.ours, axis=1) - 1).max() < 0.01:
            return None
        meaning = f"the directions are right, the lengths are not: {sizes.min():.4g} to {sizes.max():.4g}"
        return self.found(meaning, "lengths", left=float(left))

    def mistake(self) -> Certificate | None:
        """The known mistake of the forward pass that gives these vectors."""
        comparable = self.encoder.width == self.values.shape[1] and not unpooled(self.encoder, self.prompt)
        for mistake in forward_mistakes() if comparable else []:
            try:
                with written_out(), planted(mistake):  # PyTorch's own operations contain what it replaces
                    equal = self.computed()
            except Exception:  # a mistake may break the code in any way; then it does not explain these numbers
                continue
            if equal:
                return self.found(mistake.meaning, mistake.name, left=0.0)
        if not self.same_width:
            raise ValueError(f"{self.widths()}, and they are not its first ones: another model's?")
        return None

    def computed(self) -> bool:
        """Whether the sample's vectors are what the encoder computes now; the shortest texts first."""
        ids = self.encoder.tokenizer.encode([self.prompt + text for text in self.sample.texts]).ids
        order, given = sorted(range(len(ids)), key=lambda row: len(ids[row])), self.values[self.sample.rows]
        gaps = (
            differences(self.sample.batch([ids[row] for row in rows]), given[rows], self.precision)
            for rows in (order[:FEW], order)
        )
        return all(bool(gap.max() <= FLOAT32) for gap in gaps)

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
        typical = float(np.median(np.abs(cosines(self.ours, self.values))))
        if typical < 0.5 and in_place < 0.5:
            alike = agreement(self.ours, self.values)
            other = "of these texts" if alike > 0.5 else "of these texts, or vectors of other texts"
            said = f"another model's vectors {other}: half of the cosines are below {typical:.2f}, and the similarities"
            said = f"{said} of the texts with each other correlate at {alike:.2f}"
            return self.found(said, "other", verdict=UNEXPLAINED)
        said = f"no known cause: half of the cosines are below {typical:.4f}"
        said = f"{said}, and {100 * in_place:.0f} % of the vectors are closest to their own text's"
        return self.found(said, verdict=UNEXPLAINED)
