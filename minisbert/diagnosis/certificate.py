"""Judge vectors of another engine: equal to the model's, rounded, explained by a cause, or unexplained.

``certify`` computes the right vectors of all texts. If the others differ by more than rounding, it recomputes a dozen
texts under every hypothesis, and names a cause only if it gives the vectors of all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis import comparison
from minisbert.diagnosis.hypotheses import Hypothesis, Sample, full_lengths
from minisbert.diagnosis.mistakes import with_each_mistake
from minisbert.loading import uncompiled
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

FLOAT32 = 2e-6  # the tolerance for real unit embeddings in float32; correct engines stay below 1e-6
RECOMPUTED = 12  # that are recomputed
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
        if self.difference is None:
            return None
        return min(16, int(-math.log10(max(self.difference, 1e-16))))


def certify(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    values: np.ndarray,
    prompt: str | None = None,
    name: object = "the vectors",
) -> Certificate:
    """Compare ``values`` (N, W), which errors call ``name``, with the vectors of N texts.

    Raises ``InputError`` for another number of rows, and for a width that no known cause gives.
    """
    check_number(texts, values, name)  # before minutes of encoding
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)
    return certify_vectors(uncompiled(encoder), texts, ours, values, choose_prompt(encoder.settings, prompt), name)


def check_number(texts: Sequence[str], values: np.ndarray, name: object) -> None:
    if len(values) != len(texts):
        numbers = f"{len(values):,} vectors for {len(texts):,} texts"
        raise InputError(f"{name}: {numbers}: one for each, in the same order, is needed")


def certify_vectors(
    encoder: SentenceEncoder | None,
    texts: Sequence[str],
    ours: np.ndarray,
    values: np.ndarray,
    prompt: str = "",
    name: object = "the vectors",
) -> Certificate:
    """Compare ``values`` (N, W) with ours (N, D). Without an encoder no text can be recomputed to find a cause.

    Raises ``InputError`` as ``certify`` does.
    """
    check_number(texts, values, name)
    code = comparison.quantization(ours, values)
    if code is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    case = Case(encoder, texts, ours, values, prompt)
    # the first explanation that holds is the verdict; ``hypothesis`` and ``mistake`` recompute, and cope with any width
    explanations = [case.zeros, case.rounded, case.order, case.hypothesis, case.lengths, case.mistake]
    explanations += [case.half_precision, case.unexplained]
    if ours.shape != values.shape:
        explanations = [case.hypothesis, case.mistake]
    if encoder is None:
        recomputing = (case.hypothesis, case.mistake, case.half_precision)
        explanations = [explanation for explanation in explanations if explanation not in recomputing]
    for explanation in explanations:
        certificate = explanation()
        if certificate is not None:
            return certificate
    widths = f"the vectors have {values.shape[1]} columns, the model's have {ours.shape[1]}"
    raise InputError(f"{name}: {widths}, and no known cause gives these: another model's?")


class Case:
    """The vectors in question, (N, W), beside ours, (N, D). Each method is one explanation, None if it does not hold.

    Each returns ``base``, the numbers of the comparison, with a verdict and a meaning.
    """

    def __init__(
        self, encoder: SentenceEncoder | None, texts: Sequence[str], ours: np.ndarray, values: np.ndarray, prompt: str
    ):
        self.encoder, self.texts, self.prompt = encoder, texts, prompt
        self.ours, self.values = ours, values
        self.precision = comparison.stored_precision(values)
        # the difference that each leaves; without its vectors
        self.tried: list[tuple[float, Hypothesis]] = []
        self.gaps = np.zeros(len(texts))  # beyond rounding, (N,)
        self.base = Certificate(UNEXPLAINED)
        if ours.shape == values.shape:
            self.gaps = comparison.row_differences(ours, values, self.precision)
            differences = comparison.row_differences(ours, values)  # (N,)
            worst = int(differences.argmax())
            self.base = Certificate(
                UNEXPLAINED,
                difference=float(differences[worst]),
                row=worst,
                cosine=float(comparison.row_cosines(ours, values).min()),
                differing=np.flatnonzero(self.gaps > FLOAT32).tolist(),
            )

    # ------------------------------------------------------------------------------- from the numbers alone

    def zeros(self) -> Certificate | None:
        zero = np.flatnonzero(~self.values.any(axis=1))
        if not len(zero):
            return None
        meaning = f"{len(zero):,} of {len(self.values):,} vectors are all zeros, such as line {zero[0] + 1}"
        return replace(self.base, verdict=UNEXPLAINED, meaning=meaning, causes=("zeros",))

    def rounded(self) -> Certificate | None:
        if self.base.differing:
            return None
        if self.base.difference <= FLOAT32:
            return replace(self.base, verdict=EQUAL)
        name = self.precision.name
        return replace(self.base, verdict=ROUNDED, meaning=f"stored as {name}", causes=(name,))

    def order(self, bound: float = FLOAT32) -> Certificate | None:
        """Look each row up among ours: right vectors in another order."""
        rows = comparison.nearest_rows(self.ours, self.values)
        left = comparison.row_differences(self.ours[rows], self.values[: len(rows)], self.precision)
        if (left > bound).any() or (rows == np.arange(len(rows))).all():
            return None
        measures = [[len(text) for text in self.texts]]
        if self.encoder is not None:
            tokens, limit = full_lengths(self.encoder.tokenizer, self.texts), self.encoder.tokenizer.limit
            measures += [tokens, [min(count, limit) for count in tokens]]
        meaning = comparison.order_in_words(rows, measures, len(self.ours))
        certificate = replace(self.base, verdict=EXPLAINED, meaning=meaning, causes=("order",))
        return replace(certificate, checked=len(rows), left=float(left.max()))

    def lengths(self) -> Certificate | None:
        """Compare directions only: right directions, wrong lengths."""
        # relative to a small vector this rounding could be anything
        if self.precision.absolute:
            return None
        directions = comparison.Precision("", 2 * self.precision.relative)
        ours, given = comparison.unit_rows(self.ours), comparison.unit_rows(self.values)
        left = comparison.row_differences(ours, given, directions).max()
        sizes = np.linalg.norm(self.values, axis=1)
        # up to 1 % is rounding in bfloat16
        if left > 2 * FLOAT32 or np.abs(sizes / np.linalg.norm(self.ours, axis=1) - 1).max() < 0.01:
            return None
        meaning = f"the directions are right, the lengths are not: {sizes.min():.4g} to {sizes.max():.4g}"
        return replace(self.base, verdict=EXPLAINED, meaning=meaning, causes=("lengths",), left=float(left))

    # ------------------------------------------------------------------------------------ by recomputing

    @cached_property
    def sample(self) -> Sample:
        """The texts to recompute: the worst, the best, the longest, the shortest, and some across the file."""
        texts, count = self.texts, min(RECOMPUTED, len(self.texts))
        say(f"not equal: {count} texts are computed again under every known cause")
        lengths = full_lengths(self.encoder.tokenizer, [self.prompt + text for text in texts])
        # stable, so that the same file is judged by the same texts on every machine
        worst = np.argsort(-self.gaps, kind="stable")
        longest = np.argsort(-np.array(lengths), kind="stable")
        across = np.linspace(0, len(texts) - 1, count).astype(int)
        wanted = np.concatenate([worst[:4], longest[:3], longest[-1:], worst[-1:], across])
        distinct = list(dict.fromkeys(wanted.tolist()))
        rows = sorted(distinct[:RECOMPUTED])
        self.base = replace(self.base, checked=len(rows))
        return Sample(self.encoder, [texts[row] for row in rows], rows, lengths, self.prompt, self.values.shape[1])

    def hypothesis(self) -> Certificate | None:
        """Search for a hypothesis that gives the vectors of the sample."""
        given = self.values[self.sample.rows]  # (S, W)
        for hypothesis in self.sample.hypotheses():
            if not hypothesis.steps:  # the model's own way
                continue
            left = 0.0
            for candidates, vector in zip(hypothesis.vectors, given, strict=True):  # (C, W), (W,)
                gaps = comparison.row_differences(candidates, vector[None], self.precision)
                left = max(left, float(gaps.min()))
            if left <= FLOAT32:
                return self.by_hypothesis(hypothesis, left)
            self.tried.append((left, replace(hypothesis, vectors=[])))
        return None

    def by_hypothesis(self, hypothesis: Hypothesis, left: float, more: str = "") -> Certificate:
        showing: list[int] = []
        if hypothesis.limit is not None:
            showing = np.flatnonzero(np.array(self.sample.lengths) > hypothesis.limit).tolist()
        certificate = replace(self.base, verdict=EXPLAINED, meaning=hypothesis.meaning + more)
        return replace(certificate, causes=hypothesis.causes, left=left, showing=showing)

    def mistake(self) -> Certificate | None:
        """Plant each mistake of the catalogue in the forward pass until one gives these vectors.

        Only for vectors of the model's width, and not if the model leaves the prompt's tokens out of the pooling.
        """
        if self.encoder.width != self.values.shape[1]:
            return None
        if self.prompt and not self.encoder.settings.include_prompt:
            return None
        for mistake, explains in with_each_mistake(self.gives_the_sample):
            if explains:
                return replace(self.base, verdict=EXPLAINED, meaning=mistake.meaning, causes=(mistake.name,), left=0.0)
        return None

    @torch.no_grad()
    def gives_the_sample(self) -> bool:
        """Return whether the encoder as it is now, in padded batches, gives the vectors of the sample."""
        encoder, given = self.encoder, self.values[self.sample.rows]
        ids = encoder.tokenizer.encode([self.prompt + text for text in self.sample.texts]).ids
        shortest_first = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for rows in (shortest_first[:FIRST], shortest_first):
            padded, mask = pad_batch([ids[row] for row in rows], encoder.tokenizer.pad_id)
            if mask is not None:
                mask = mask.to(encoder.device)
            vectors = encoder(padded.to(encoder.device), mask)[:, : given.shape[1]]  # (S, W)
            gaps = comparison.row_differences(vectors.double().cpu().numpy(), given[rows], self.precision)
            if not gaps.max() <= FLOAT32:  # NaN is not
                return False
        return True

    # ------------------------------------------------------------------------------- without a proof

    def half_precision(self) -> Certificate | None:
        """Explain up to the rounding of float16 and bfloat16 arithmetic, which differs from engine to engine."""
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            error = self.sample.rounding_error(dtype)
            bound = NOISE * error
            note = f"{name} arithmetic, which by itself is off by up to {error:.1e} on these texts"
            if self.base.difference <= bound:
                return replace(self.base, verdict=ROUNDED, meaning=note, causes=(name,))
            # a cause beside the rounding: it must leave little, and half of what any other cause leaves
            left, best = min(self.tried, key=lambda pair: pair[0])
            others = [other for other, hypothesis in self.tried if hypothesis.meaning != best.meaning]
            if left <= min(bound, self.base.difference / LESS) and 2 * left < min(others):
                return self.by_hypothesis(best, left, f"; the rest is {note}")
            order = self.order(bound)
            if order is not None:
                return order
        return None

    def unexplained(self) -> Certificate:
        """Say what the cosines say: the same model with something unknown, or another model."""
        rows = comparison.nearest_rows(self.ours, self.values)
        in_place = float((rows == np.arange(len(rows))).mean())
        typical = float(np.median(np.abs(comparison.row_cosines(self.ours, self.values))))
        if typical >= 0.5 or in_place >= 0.5:
            meaning = f"no known cause: half of the cosines are below {typical:.4f}"
            meaning += f", and {100 * in_place:.0f} % of the vectors are closest to their own text's"
            return replace(self.base, verdict=UNEXPLAINED, meaning=meaning)
        alike = comparison.agreement(self.ours, self.values)
        meaning = "another model's vectors of these texts"
        if alike <= 0.5:
            meaning += ", or vectors of other texts"
        meaning += f": half of the cosines are below {typical:.2f}, and the similarities"
        meaning += f" of the texts with each other correlate at {alike:.2f}"
        return replace(self.base, verdict=UNEXPLAINED, meaning=meaning, causes=("other",))
