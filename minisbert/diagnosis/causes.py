"""Vectors of another engine against what the model gives: equal, rounded, explained by a known cause, or not.

``certify`` computes the right vectors of all texts. If they differ by more than rounding, it recomputes a dozen texts
under every hypothesis, and names one only if it gives the vectors of all of them.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.certificate import FLOAT32, Storage, code_of, cosines, differences, partners, storage
from minisbert.diagnosis.certificate import unit as unit_rows
from minisbert.diagnosis.divergence import FORWARD, TWINS
from minisbert.diagnosis.hypotheses import Guess, Trial
from minisbert.diagnosis.mistakes import MISTAKES, planted
from minisbert.diagnosis.other_inputs import not_pooled, whole_lengths
from minisbert.diagnosis.verdicts import (
    EQUAL,
    EXPLAINED,
    ROUNDED,
    UNEXPLAINED,
    Certificate,
    agreement,
    chosen,
    permuted,
    rounding,
)
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

FEW = 4  # texts of the sample, for a first look
NOISE = 4  # another engine's float16 may be this many times as far off as ours
LESS = 4  # in float16 and bfloat16 a cause must leave at most this part of the difference


def certify(
    encoder: SentenceEncoder, texts: Sequence[str], values: np.ndarray, prompt: str | None = None
) -> Certificate:
    """Compare ``values`` (N, W) with the vectors of N texts.

    Raises ``InputError`` for another number of rows, and for a width that the model cannot have.
    """
    if len(values) != len(texts):
        raise InputError(f"{len(values):,} vectors for {len(texts):,} texts: one for each is needed")
    ours = encoder.encode(texts, progress=True, prompt=prompt).astype(np.float64)  # (N, D)
    encoder = encoder.eager()  # causes are looked for in the modules
    prompt = choose_prompt(encoder.settings, prompt)
    if (code := code_of(ours, values)) is not None:
        return Certificate(ROUNDED, code, ("binary",) if code.startswith("binary") else ("int8",))
    check_width(encoder, ours, values)
    kept = storage(values)
    base = Certificate(UNEXPLAINED)
    if ours.shape == values.shape:
        plain, beyond = differences(ours, values), differences(ours, values, kept)  # (N,) each
        row = int(plain.argmax())
        rows = np.flatnonzero(beyond > FLOAT32).tolist()
        base = replace(base, difference=float(plain[row]), row=row, cosine=float(cosines(ours, values).min()))
        base = replace(base, differing=rows)
        if zero := np.flatnonzero(~values.any(axis=1)).tolist():
            said = f"{len(zero):,} of {len(values):,} vectors hold nothing but zeros, such as line {zero[0] + 1}"
            return replace(base, meaning=said, causes=("zeros",))
        if plain[row] <= FLOAT32:
            return replace(base, verdict=EQUAL)
        if not rows:
            return replace(base, verdict=ROUNDED, meaning=f"stored as {kept.name}", causes=(kept.name,))
        if (order := permuted(encoder, texts, ours, values, kept)) is not None:
            return replace(base, verdict=EXPLAINED, **order)
    return Search(encoder, texts, ours, values, kept, prompt).find(base)


def check_width(encoder: SentenceEncoder, ours: np.ndarray, values: np.ndarray) -> None:
    widest = max(encoder.width, encoder.pooling.width(encoder.bert.config.hidden_size))
    if values.shape[1] > widest:
        known = f"the model's have {ours.shape[1]}"
        raise InputError(f"the vectors have {values.shape[1]} columns, {known}: they are another model's")


class Search:
    """The search for a cause, from proofs to what is only possible."""

    def __init__(
        self,
        encoder: SentenceEncoder,
        texts: Sequence[str],
        ours: np.ndarray,
        values: np.ndarray,
        kept: Storage,
        prompt: str,
    ):
        self.encoder, self.texts, self.ours, self.values, self.kept = encoder, texts, ours, values, kept
        self.lengths = whole_lengths(encoder.tokenizer, [prompt + text for text in texts])
        self.sample = chosen(self.gaps(), self.lengths)
        self.given = values[self.sample]  # (S, W)
        self.trial = Trial(encoder, texts, self.sample, prompt, values.shape[1])
        self.prompt = prompt

    def gaps(self) -> np.ndarray:
        """How far each row is off, (N,); zeros where the widths differ."""
        if self.ours.shape != self.values.shape:
            return np.zeros(len(self.ours))
        return differences(self.ours, self.values, self.kept)

    def find(self, base: Certificate) -> Certificate:
        base = replace(base, checked=len(self.sample))
        say(f"not equal: {len(self.sample)} texts are computed again under every known cause")
        seen: list[tuple[float, Guess]] = []
        scaled = self.other_lengths(base)  # then only the scaling can be at fault, which is guessed first
        for guess in itertools.islice(self.trial.guesses(self.lengths), 2 if scaled else None):
            left = self.left_by(guess)
            if left <= FLOAT32:
                return self.explained(base, guess, left)
            seen.append((left, replace(guess, vectors=None, choices=[])))
        if scaled:
            return scaled
        if (name := next(self.catalogue(), None)) is not None:
            mistake = MISTAKES[name]
            return replace(base, verdict=EXPLAINED, meaning=mistake.meaning, causes=(name,), left=0.0)
        if base.difference is None:
            columns = f"{self.values.shape[1]} columns, the model's have {self.ours.shape[1]}"
            raise InputError(f"the vectors have {columns}, and they are not its first ones: another model's?")
        return self.in_half_precision(base, seen) or replace(base, **self.unexplained())

    def left_by(self, guess: Guess) -> float:
        """The largest difference that a guess leaves, beyond the rounding of what was stored."""
        if guess.vectors is not None:
            return float(differences(guess.vectors, self.given, self.kept).max())
        pairs = zip(guess.choices, self.given, strict=True)
        return max(float(differences(many, one[None], self.kept).min()) for many, one in pairs)

    def explained(self, base: Certificate, guess: Guess, left: float, more: str = "") -> Certificate:
        showing = [] if guess.limit is None else [i for i, n in enumerate(self.lengths) if n > guess.limit]
        found = replace(base, verdict=EXPLAINED, meaning=guess.meaning + more, causes=guess.causes)
        return replace(found, left=left, showing=showing)

    @torch.no_grad()
    def catalogue(self) -> Iterator[str]:
        """The known mistakes of the forward pass that give these vectors; tried on few texts first, the shortest."""
        if not_pooled(self.encoder, self.prompt) or self.encoder.width != self.values.shape[1]:
            return
        texts = self.encoder.tokenizer.encode([self.prompt + text for text in self.trial.texts]).ids
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        for name, mistake in MISTAKES.items():
            if not mistake.target.startswith(FORWARD) or name in TWINS:
                continue
            try:
                with planted(mistake):
                    equal = all(self.gives(texts, rows) for rows in (order[:FEW], order))
            except Exception:  # a mistake may break the code in any way; then it does not explain these numbers
                continue
            if equal:
                yield name

    def gives(self, texts: list[list[int]], rows: list[int]) -> bool:
        """Are the vectors of these rows what the book's modules compute, in which a mistake is planted?"""
        ids, mask = pad_batch([texts[row] for row in rows], self.encoder.tokenizer.pad_id)
        ids, mask = (x if x is None else x.to(self.encoder.device) for x in (ids, mask))
        found = self.forward(ids, mask)
        given = self.given[rows]
        return found.shape == given.shape and bool(differences(found, given, self.kept).max() <= FLOAT32)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> np.ndarray:
        """The vectors (S, W) by way of the book's modules, in which a mistake is planted."""
        states: dict[str, torch.Tensor] = {}
        hidden = self.encoder.bert(ids, mask, None, states)  # (S, T, D)
        _, _, vectors = next(self.trial.finished(self.encoder.pool(hidden, mask, states["layers.0"])))
        return vectors

    def other_lengths(self, base: Certificate) -> Certificate | None:
        """Right directions, wrong lengths."""
        if base.difference is None or self.kept.step:
            return None
        ours, values = unit_rows(self.ours), unit_rows(self.values)
        left = float(differences(ours, values, Storage("", 2 * self.kept.unit)).max())
        if left > 2 * FLOAT32:
            return None
        sizes = np.linalg.norm(self.values, axis=1)
        if np.abs(sizes / np.linalg.norm(self.ours, axis=1) - 1).max() < 0.01:  # rounding in bfloat16
            return None
        meaning = f"the directions are right, the lengths are not: {sizes.min():.4g} to {sizes.max():.4g}"
        return replace(base, verdict=EXPLAINED, meaning=meaning, causes=("lengths",), left=left)

    # ------------------------------------------------------------------------------- without a proof

    def in_half_precision(self, base: Certificate, seen: list[tuple[float, Guess]]) -> Certificate | None:
        """Explanations up to the rounding of float16 and bfloat16 arithmetic, which differs from engine to engine."""
        right = self.trial.own()
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            bound = NOISE * rounding(self.trial, right, dtype)
            note = f"{name} arithmetic, which by itself is off by up to {bound / NOISE:.1e} on these texts"
            if base.difference <= bound:
                return replace(base, verdict=ROUNDED, meaning=note, causes=(name,))
            left, guess = min(seen, key=lambda pair: pair[0])
            others = [other for other, its in seen if its.meaning != guess.meaning]
            if left <= min(bound, base.difference / LESS) and 2 * left < min(others):
                return self.explained(base, guess, left, f"; the rest is {note}")
            order = permuted(self.encoder, self.texts, self.ours, self.values, self.kept, bound)
            if order is not None:
                return replace(base, verdict=EXPLAINED, **order)
        return None

    def unexplained(self) -> dict[str, object]:
        """What can be said without a cause."""
        found = partners(self.ours, self.values)
        own = float((found == np.arange(len(found))).mean())
        typical = float(np.median(np.abs(cosines(self.ours, self.values))))
        if typical < 0.5 and own < 0.5:
            alike = agreement(self.ours, self.values)
            other = "of these texts" if alike > 0.5 else "of these texts, or vectors of other texts"
            said = f"another model's vectors {other}: half of the cosines are below {typical:.2f}, and the similarities"
            return {"meaning": f"{said} of the texts with each other correlate at {alike:.2f}", "causes": ("other",)}
        said = f"no known cause: half of the cosines are below {typical:.4f}"
        return {"meaning": f"{said}, and {100 * own:.0f} % of the vectors are closest to their own text's"}
