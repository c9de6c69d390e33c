"""Compute a few texts in every way in which another engine may have computed them.

A hypothesis is one choice from each of four lists: the tokens that went in (``tokenizations.py``), the pooling of their
states, the dense layer, the scaling. Pads that took part where they should not are a fifth, for the right tokens only.
``certificate.py`` compares each with the vectors in question.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from minisbert.core.encoder import normalize
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.diagnosis.comparison import row_differences
from minisbert.diagnosis.tokenizations import Clue, Tokenization, padded_lengths, tokenizations
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.sentence_encoder import SentenceEncoder

PADDED = (32, 64, 128, 256, 512)  # fixed lengths to which texts are padded
PADS_POOLED = ("pads pooled", "pads were pooled with the tokens")
PADS_ATTENDED = ("pads attended", "tokens attended to pads: the attention mask was left out")
PADS_IN_BOTH = ("pads attended and pooled", f"{PADS_ATTENDED[1]}, and the pads were pooled too")


def inner_pool(hidden: Tensor) -> Tensor:
    """Average the states without the first and the last token, [CLS] and [SEP]."""
    if hidden.shape[1] > 2:
        hidden = hidden[:, 1:-1]
    return mean_pool(hidden)


# name -> the function of states (1, T, D), what it takes
TOKEN_POOLINGS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens"),
    "cls": (cls_pool, "[CLS], the first token,"),
    "max": (max_pool, "the largest value of each column"),
    "last": (last_token_pool, "the last token"),
    "inner": (inner_pool, "the mean without [CLS] and [SEP]"),
}


@dataclass(frozen=True)
class Pooled:
    """The pooled vectors (C, D) of each text: usually one, or one for each number of pads.

    ``steps`` are the differences from the model's own way so far; only texts with more than ``limit`` tokens differ.
    """

    steps: list[Clue]
    vectors: list[Tensor]
    limit: int | None = None


@dataclass(frozen=True)
class Hypothesis:
    """The vectors (C, W) that each text has under it. The model's own way has no steps."""

    steps: list[Clue]
    vectors: list[np.ndarray]
    limit: int | None = None  # only texts with more tokens are affected

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(cause for cause, _ in self.steps)

    @property
    def meaning(self) -> str:
        return ", and ".join(clause for _, clause in self.steps)


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
        """Yield every hypothesis, the model's own way first, then the cheap ones: the reader may stop at any."""
        for pooled in self.pooled():
            starts = np.cumsum([len(vectors) for vectors in pooled.vectors])[:-1]
            # not a product of lists: what fits after a step depends on the width that it gives
            for dense_steps, vectors in self.dense_layers(torch.cat(pooled.vectors)):
                for scale_steps, result in self.scalings(vectors):
                    steps = pooled.steps + dense_steps + scale_steps
                    yield Hypothesis(steps, np.split(result.double().cpu().numpy(), starts), pooled.limit)

    def rounding_error(self, dtype: torch.dtype) -> float:
        """Measure how far the right vectors are off if weights and every module's result are rounded to ``dtype``.

        Computed in float32, because many CPUs take minutes for what a GPU does in float16; GPUs also add up in float32.
        """
        other = replace(self, encoder=copy.deepcopy(self.encoder), cache={})
        for parameter in other.encoder.parameters():
            parameter.data = parameter.data.to(dtype).float()
        for module in other.encoder.bert.modules():
            if not list(module.children()):  # Linear, LayerNorm, Embedding
                module.register_forward_hook(lambda _, __, result: result.to(dtype).float())
        right = np.concatenate(next(self.hypotheses()).vectors)  # (S, W)
        rounded = np.concatenate(next(other.hypotheses()).vectors)
        return float(row_differences(right, rounded).max())

    # ------------------------------------------------------------------------------- tokens and pooling

    def pooled(self) -> Iterator[Pooled]:
        """Yield every choice of tokens with every pooling. Lazily: each needs forward passes."""
        tokens = tokenizations(self.encoder, self.texts, self.prompt)
        right = next(tokens)
        yield from self.poolings(right)
        yield from self.pads_pooled(right)
        for tokenization in tokens:
            yield from self.poolings(tokenization)
        yield from self.pads_attended(right)  # last, because it needs the most forward passes

    def poolings(self, tokenization: Tokenization) -> Iterator[Pooled]:
        """Pool the states of each text, (1, D), in every way; the model's own first."""
        encoder, mode, skip = self.encoder, self.encoder.pooling_mode, tokenization.skip
        states = [self.states(ids, tokenization.token_type) for ids in tokenization.ids]

        def way(pool: Callable[[Tensor, Tensor], Tensor], *clue: Clue) -> Pooled:
            vectors = [pool(hidden, first) for hidden, first in states]
            return Pooled([*tokenization.steps, *clue], vectors, tokenization.limit)

        if all(hidden.shape[1] > skip for hidden, _ in states):
            yield way(lambda hidden, first: encoder.pool(hidden, None, first, skip))
        instead = f"the model has {mode} pooling"
        for name, (pool, meaning) in TOKEN_POOLINGS.items():
            if name != mode:
                clue = (f"{name} pooling", f"{meaning} was taken, {instead}")
                yield way(lambda hidden, _, pool=pool: pool(hidden), clue)
        if mode != "first-last":
            clue = ("first-last pooling", f"the first and the last layer were averaged, {instead}")
            yield way(lambda hidden, first: first_last_pool(hidden, None, first), clue)
        if mode != "pooler" and encoder.bert.pooler is not None:
            clue = ("pooler", f"BERT's pooler output was taken, {instead}")
            yield way(lambda hidden, _: encoder.bert.pool(hidden), clue)
        if skip:
            clue = ("prompt pooled", "the prompt's tokens were pooled too")
            yield way(lambda hidden, first: encoder.pool(hidden, None, first), clue)

    def states(self, ids: Sequence[int], token_type: int = 0) -> tuple[Tensor, Tensor]:
        """Return the last layer's and the first layer's output for one text, (1, T, D) each."""
        key = (token_type, *ids)
        if key not in self.cache:
            trace: dict[str, Tensor] = {}
            row = torch.tensor([list(ids)], device=self.encoder.device)  # (1, T)
            types = None
            if token_type:
                types = torch.full_like(row, token_type)
            self.cache[key] = self.encoder.bert(row, None, types, trace), trace["layers.0"]
        return self.cache[key]

    # ------------------------------------------------------------------------------------------- pads

    def padded(self, ids: list[int], size: int) -> Tensor:
        pads = [self.encoder.tokenizer.pad_id] * (size - len(ids))
        return torch.tensor([ids + pads], device=self.encoder.device)  # (1, P)

    @property
    def longest(self) -> int:
        """The longest row to which a text is padded."""
        return min(self.encoder.bert.config.positions, max(PADDED[-1], self.encoder.tokenizer.limit))

    def pads_pooled(self, right: Tokenization) -> Iterator[Pooled]:
        """Pool each text with 0, 1, 2, ... pads, (C, D).

        No token attends to a pad here, so a pad's state does not depend on how many others there are: one forward pass
        with all of them, and running results over its tokens, give every number of pads.
        """
        mode = self.encoder.pooling_mode
        if mode not in ("mean", "max", "lasttoken"):
            return
        vectors, size = [], self.longest
        for ids in right.ids:
            count = torch.arange(1, size + 1, device=self.encoder.device)  # (P,)
            # (P, D): row p is the state of the last token of a text of p tokens, pads included
            running = self.encoder.bert(self.padded(ids, size), count[None] <= len(ids))[0]
            if mode == "mean":
                running = running.double().cumsum(dim=0) / count[:, None]
            if mode == "max":
                running = running.cummax(dim=0).values
            vectors.append(running[len(ids) - 1 :].to(self.encoder.dtype))
        yield Pooled([PADS_POOLED], vectors)

    def pads_attended(self, right: Tokenization) -> Iterator[Pooled]:
        """Pool the tokens, and then everything, of each text in rows of every likely length, (C, D) each."""
        if self.encoder.pooling_mode not in TOKEN_POOLINGS:
            return
        pool, limit = TOKEN_POOLINGS[self.encoder.pooling_mode][0], self.encoder.tokenizer.limit
        cut = [min(length, limit) for length in self.lengths]
        tokens, everything = [], []
        for number, ids in zip(self.rows, right.ids, strict=True):
            likely = {len(ids), limit, *PADDED, *padded_lengths(number, cut)}
            without_pads, with_pads = [], []
            for size in sorted(likely):
                if len(ids) <= size <= self.longest:
                    hidden = self.encoder.bert(self.padded(ids, size))  # (1, P, D)
                    without_pads.append(pool(hidden[:, : len(ids)]))
                    with_pads.append(pool(hidden))
            tokens.append(torch.cat(without_pads))
            everything.append(torch.cat(with_pads))
        yield Pooled([PADS_ATTENDED], tokens)
        yield Pooled([PADS_IN_BOTH], everything)

    # --------------------------------------------------------------------------- dense layer and scaling

    def dense_layers(self, pooled: Tensor) -> list[tuple[list[Clue], Tensor]]:
        """Apply the model's dense layers to vectors (S, D), if they fit, and leave them out."""
        dense = self.encoder.dense
        if not len(dense):
            return [([], pooled)]
        without: list[tuple[list[Clue], Tensor]] = [([("no dense", "the dense layer was left out")], pooled)]
        if dense[0].linear.in_features != pooled.shape[1]:
            return without
        return [([], dense(pooled)), *without]

    def scalings(self, vectors: Tensor) -> list[tuple[list[Clue], Tensor]]:
        """Cut vectors (S, D) to the width in question, scaled to length 1 or not; the model's own way first."""
        width, full = self.width, vectors.shape[1]
        if width > full:
            return []
        cut: list[Clue] = []
        usual = min(self.encoder.settings.truncate_dim or full, full)
        if width != usual:
            cut = [("truncated", f"the first {width} columns were kept, the model has {usual}")]
        raw, scaled = vectors[:, :width], normalize(vectors)[:, :width]
        if self.encoder.normalize:
            clue = ("not normalised", "the vectors were not scaled to length 1")
            ways = [(cut, scaled), ([*cut, clue], raw)]
        else:
            clue = ("normalised", "the vectors were scaled to length 1")
            ways = [(cut, raw), ([*cut, clue], scaled)]
        if width < full:
            clue = ("normalised after truncation", "the remaining columns were scaled to length 1")
            ways.append(([*cut, clue], normalize(raw)))
        return ways
