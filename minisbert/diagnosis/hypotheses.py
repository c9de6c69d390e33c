"""The vectors that known differences of other engines would give: other tokens, pads, poolings, endings, mistakes.

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
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.comparison import differences
from minisbert.diagnosis.tokenizations import Tokenization, padded_lengths, tokenizations
from minisbert.models.poolings import first_last_pool
from minisbert.models.sentence_encoder import SentenceEncoder

PADDED = (32, 64, 128, 256, 512)  # fixed lengths to which texts are padded


@dataclass(frozen=True)
class Hypothesis:
    """A way in which the vectors may have been computed. ``causes`` are keys, ``meaning`` says the same in words.

    ``vectors`` has for each text the vectors (C, W) that it can give: usually one, or one for each number of pads.
    """

    causes: tuple[str, ...]
    meaning: str
    vectors: list[np.ndarray]
    limit: int | None = None  # only texts with more tokens are affected


def last_pool(hidden: Tensor) -> Tensor:
    return hidden[:, -1]


def inner_pool(hidden: Tensor) -> Tensor:
    """The mean without the first and the last token, [CLS] and [SEP]."""
    return mean_pool(hidden[:, 1:-1] if hidden.shape[1] > 2 else hidden)


POOLINGS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens"),
    "cls": (cls_pool, "[CLS], the first token,"),
    "max": (max_pool, "the largest value of each column"),
    "last": (last_pool, "the last token"),
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
        """All of them, the cheap ones first. The model's own way, which has no causes, comes before them."""
        others = tokenizations(self.encoder, self.texts, self.prompt)
        right = next(others)
        yield from self.without_pads(right)
        yield from self.finished(["pads pooled"], ["pads were pooled with the tokens"], self.pads_pooled(right))
        for tokenization in others:
            yield from self.without_pads(tokenization)
        if self.encoder.pooling_mode in POOLINGS:
            tokens, everything = self.pads_attended(right)
            said = "tokens attended to pads: the attention mask was left out"
            yield from self.finished(["pads attended"], [said], tokens)
            yield from self.finished(["pads attended and pooled"], [said, "the pads were pooled too"], everything)

    def without_pads(self, tokenization: Tokenization) -> Iterator[Hypothesis]:
        """Every pooling and every ending."""
        for cause, said, pooled in self.poolings(tokenization):
            clauses = [tokenization.meaning, said]
            yield from self.finished([tokenization.cause, cause], clauses, pooled, tokenization.limit)

    def finished(
        self, causes: list[str], clauses: list[str], pooled: list[Tensor], limit: int | None = None
    ) -> Iterator[Hypothesis]:
        """The hypotheses about what follows the pooling; pooled (C, D) for each text."""
        if not pooled:
            return
        starts = np.cumsum([len(vectors) for vectors in pooled])[:-1]
        for more_causes, more_clauses, vectors in self.endings(torch.cat(pooled)):
            meaning = ", and ".join(filter(None, [*clauses, *more_clauses]))
            every = tuple(filter(None, [*causes, *more_causes]))
            yield Hypothesis(every, meaning, np.split(vectors.double().cpu().numpy(), starts), limit)

    def right(self) -> np.ndarray:
        """The vectors (S, W) as the model asks for them."""
        return np.concatenate(next(self.hypotheses()).vectors)

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
        return float(differences(self.right(), other.right()).max())

    @torch.no_grad()
    def batch(self, rows: list[list[int]]) -> np.ndarray:
        """The vectors (S, W) of a padded batch of ids, by the model as it is now."""
        padded = pad_batch(rows, self.encoder.tokenizer.pad_id)
        ids, mask = (x if x is None else x.to(self.encoder.device) for x in padded)
        states: dict[str, Tensor] = {}
        hidden = self.encoder.bert(ids, mask, None, states)  # (S, T, D)
        _, _, vectors = next(self.endings(self.encoder.pool(hidden, mask, states["layers.0"])))
        return vectors.double().cpu().numpy()

    # ----------------------------------------------------------------------------------- tokens to vectors

    def states(self, ids: Sequence[int], token_type: int = 0) -> tuple[Tensor, Tensor]:
        """The last layer's and the first layer's output for one text, (1, T, D) each."""
        key = (token_type, *ids)
        if key not in self.cache:
            trace: dict[str, Tensor] = {}
            row = torch.tensor([list(ids)], device=self.encoder.device)  # (1, T)
            types = torch.full_like(row, token_type) if token_type else None
            self.cache[key] = self.encoder.bert(row, None, types, trace), trace["layers.0"]
        return self.cache[key]

    def poolings(self, tokenization: Tokenization) -> Iterator[tuple[str, str, list[Tensor]]]:
        """Pooled vectors (1, D) of each text under each hypothesis about the pooling; the model's own first."""
        states = [self.states(ids, tokenization.token_type) for ids in tokenization.ids]
        mode, encoder, skip = self.encoder.pooling_mode, self.encoder, tokenization.skip
        if all(hidden.shape[1] > skip for hidden, _ in states):
            yield "", "", [encoder.pool(hidden, None, first, skip) for hidden, first in states]
        for name, (pool, meaning) in POOLINGS.items():
            if name != mode:
                said = f"{meaning} was taken, the model has {mode} pooling"
                yield f"{name} pooling", said, [pool(hidden) for hidden, _ in states]
        if mode != "first-last":
            said = f"the first and the last layer were averaged, the model has {mode} pooling"
            yield "first-last pooling", said, [first_last_pool(hidden, None, first) for hidden, first in states]
        if mode != "pooler" and encoder.bert.pooler is not None:
            said = f"BERT's pooler output was taken, the model has {mode} pooling"
            yield "pooler", said, [encoder.bert.pool(hidden) for hidden, _ in states]
        if skip:
            said = "the prompt's tokens were pooled too"
            yield "prompt pooled", said, [encoder.pool(hidden, None, first) for hidden, first in states]

    def endings(self, pooled: Tensor) -> Iterator[tuple[list[str], list[str], Tensor]]:
        """Vectors (S, W) under each hypothesis about what follows the pooling; the model's own way first."""
        dense = self.encoder.dense
        if not len(dense) or dense[0].linear.in_features == pooled.shape[1]:
            yield from self.scaled(dense(pooled))
        if len(dense):
            for causes, clauses, vectors in self.scaled(pooled):
                yield ["no dense", *causes], ["the dense layer was left out", *clauses], vectors

    def scaled(self, vectors: Tensor) -> Iterator[tuple[list[str], list[str], Tensor]]:
        """Vectors (S, D) cut to the width in question, and scaled to length 1 or not."""
        width, full = self.width, vectors.shape[1]
        if width > full:
            return
        usual = min(self.encoder.settings.truncate_dim or full, full)
        causes = ["truncated"] if width != usual else []
        clauses = [f"the first {width} columns were kept, the model has {usual}"] if causes else []
        raw, unit = vectors[:, :width], normalize(vectors)[:, :width]
        if self.encoder.normalize:
            yield causes, clauses, unit
            yield [*causes, "not normalised"], [*clauses, "the vectors were not scaled to length 1"], raw
        else:
            yield causes, clauses, raw
            yield [*causes, "normalised"], [*clauses, "the vectors were scaled to length 1"], unit
        if width < full:
            said = "the remaining columns were scaled to length 1"
            yield [*causes, "normalised after truncation"], [*clauses, said], normalize(raw)

    # ------------------------------------------------------------------------------------------- pads

    def pads_pooled(self, tokenization: Tokenization) -> list[Tensor]:
        """For each text the pooled vectors with 0, 1, 2, ... pads, (C, D).

        No token attends to a pad here, so that a pad's state does not depend on how many others there are.
        """
        mode, tokenizer = self.encoder.pooling_mode, self.encoder.tokenizer
        if mode not in ("mean", "max", "lasttoken"):
            return []
        pooled, size = [], min(self.encoder.bert.config.positions, max(*PADDED, tokenizer.limit))
        for ids in tokenization.ids:
            row = torch.tensor([ids + [tokenizer.pad_id] * (size - len(ids))], device=self.encoder.device)
            count = torch.arange(1, size + 1, device=row.device)  # (P,)
            hidden = self.encoder.bert(row, count[None] <= len(ids))[0]  # (P, D)
            running = hidden  # the last pad's own state
            if mode != "lasttoken":
                sums = hidden.double().cumsum(dim=0) / count[:, None]
                running = hidden.cummax(dim=0).values if mode == "max" else sums
            pooled.append(running[len(ids) - 1 :].to(hidden.dtype))
        return pooled

    def pads_attended(self, tokenization: Tokenization) -> tuple[list[Tensor], list[Tensor]]:
        """For each text and each likely number of pads: the tokens pooled, and everything pooled, (C, D) each."""
        tokenizer, pool = self.encoder.tokenizer, POOLINGS[self.encoder.pooling_mode][0]
        longest = min(self.encoder.bert.config.positions, max(*PADDED, tokenizer.limit))
        cut = [min(length, tokenizer.limit) for length in self.lengths]
        tokens, everything = [], []
        for number, ids in zip(self.rows, tokenization.ids, strict=True):
            sizes = sorted({len(ids), tokenizer.limit, *PADDED, *padded_lengths(number, cut)})
            rows = [ids + [tokenizer.pad_id] * (size - len(ids)) for size in sizes if len(ids) <= size <= longest]
            hidden = [self.encoder.bert(torch.tensor([row], device=self.encoder.device)) for row in rows]  # (1, P, D)
            tokens.append(torch.cat([pool(x[:, : len(ids)]) for x in hidden]))
            everything.append(torch.cat([pool(x) for x in hidden]))
        return tokens, everything
