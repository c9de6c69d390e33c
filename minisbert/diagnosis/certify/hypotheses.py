"""The vectors that known differences of other engines would give: other tokens, pads, poolings, endings.

``certificate`` compares them with the vectors in question.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from minisbert.core.encoder import normalize
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.diagnosis.certify.comparison import row_differences
from minisbert.diagnosis.certify.tokenizations import Clue, Tokenization, padded_lengths, tokenizations
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.sentence_encoder import SentenceEncoder

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
