"""Vectors of another engine against the model's own: equal, rounded, explained by a known cause, or not.

``certify`` computes the right vectors of all texts. If they differ by more than rounding, it recomputes a dozen texts
under every hypothesis, and names one only if it gives the vectors of all of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.hypotheses import (
    EQUAL,
    EXPLAINED,
    FLOAT32,
    ROUNDED,
    UNEXPLAINED,
    Certificate,
    Hypothesis,
    Precision,
    Sample,
    agreement,
    nearest,
    order_in_words,
    quantization,
    row_cosines,
    row_differences,
    stored_precision,
    unit,
)
from minisbert.diagnosis.mistakes import with_each_mistake
from minisbert.diagnosis.tokenizations import full_lengths
from minisbert.loading import uncompiled
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

SAMPLE = 12  # texts that are recomputed
FIRST = 4  # of these, the shortest: most mistakes are ruled out by them alone
NOISE = 4  # another engine's float16 may be this many times as far off as ours
LESS = 4  # in float16 and bfloat16 a cause must leave at most this part of the difference


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
    check_count(texts, values, name)
    ours = encoder.encode(texts, show_progress_bar=True, prompt=prompt).astype(np.float64)  # (N, D)
    code = quantization(ours, values)
    if code is not None:
        return Certificate(ROUNDED, code, (code.partition(":")[0],))
    case = Case(uncompiled(encoder), texts, ours, values, choose_prompt(encoder.settings, prompt))
    explanations = [case.hypothesis, case.mistake]
    if ours.shape == values.shape:
        explanations = [case.zeros, case.rounded, case.order, case.hypothesis, case.lengths, case.mistake]
        explanations += [case.half_precision, case.unexplained]
    for explanation in explanations:
        found = explanation()
        if found is not None:
            return found
    widths = f"the vectors have {values.shape[1]} columns, the model's have {ours.shape[1]}"
    raise InputError(f"{name}: {widths}, and no known cause gives these: another model's?")


def check_count(texts: Sequence[str], values: np.ndarray, name: object) -> None:
    if len(values) != len(texts):
        numbers = f"{len(values):,} vectors for {len(texts):,} texts"
        raise InputError(f"{name}: {numbers}: one for each, in the same order, is needed")


class Case:
    """The vectors in question, (N, W), beside our own, (N, D). Every method is one explanation, or None.

    Only ``hypothesis`` and ``mistake`` apply if the widths differ, and neither without an encoder.
    """

    def __init__(
        self, encoder: SentenceEncoder | None, texts: Sequence[str], ours: np.ndarray, values: np.ndarray, prompt: str
    ):
        self.encoder, self.texts, self.prompt = encoder, texts, prompt
        self.ours, self.values = ours, values
        self.precision = stored_precision(values)
        self.tried: list[tuple[float, Hypothesis]] = []  # what each leaves, without its vectors
        self.gaps = np.zeros(len(texts))  # beyond rounding, (N,)
        self.base = Certificate(UNEXPLAINED)
        if ours.shape == values.shape:
            self.gaps = row_differences(ours, values, self.precision)
            differences = row_differences(ours, values)  # (N,)
            worst = int(differences.argmax())
            self.base = Certificate(
                UNEXPLAINED,
                difference=float(differences[worst]),
                row=worst,
                cosine=float(row_cosines(ours, values).min()),
                differing=np.flatnonzero(self.gaps > FLOAT32).tolist(),
            )

    @cached_property
    def sample(self) -> Sample:
        """The texts to recompute: the worst, the best, the longest, the shortest, and some across the file."""
        texts, count = self.texts, min(SAMPLE, len(self.texts))
        say(f"not equal: {count} texts are computed again under every known cause")
        lengths = full_lengths(self.encoder.tokenizer, [self.prompt + text for text in texts])
        worst = np.argsort(-self.gaps, kind="stable")
        longest = np.argsort(-np.array(lengths), kind="stable")
        across = np.linspace(0, len(texts) - 1, count).astype(int)
        wanted = np.concatenate([worst[:4], longest[:3], longest[-1:], worst[-1:], across])
        distinct = list(dict.fromkeys(wanted.tolist()))
        rows = sorted(distinct[:SAMPLE])
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
        measures = [list(map(len, self.texts))]
        if self.encoder is not None:
            tokens, limit = full_lengths(self.encoder.tokenizer, self.texts), self.encoder.tokenizer.limit
            measures += [tokens, [min(n, limit) for n in tokens]]
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
        showing: list[int] = []
        if hypothesis.limit is not None:
            showing = np.flatnonzero(np.array(self.sample.lengths) > hypothesis.limit).tolist()
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
        if self.encoder.width != self.values.shape[1]:
            return None
        if self.prompt and not self.encoder.settings.include_prompt:
            return None
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
            padded, mask = pad_batch([ids[row] for row in rows], encoder.tokenizer.pad_id)
            if mask is not None:
                mask = mask.to(encoder.device)
            vectors = encoder(padded.to(encoder.device), mask)[:, : given.shape[1]]  # (S, W)
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
            order = self.order(bound)
            if order is not None:
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
