"""Compute a few texts in every way in which another engine may have computed them.

A hypothesis is one choice from each of four lists: the tokens that went in (cut elsewhere, cased, with another prompt,
without [CLS]), the pooling of their states, the dense layer, the scaling. Pads that took part where they should not are
a fifth, for the right tokens only. ``certificate.py`` compares each with the vectors in question.
"""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minisbert.core.encoder import normalize
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.diagnosis.comparison import row_differences
from minisbert.models.batching import chunks
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.prompts import with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer

# what servers, libraries and examples cut at; two more if they do not count [CLS] and [SEP]
TOKEN_LIMITS = (8, 16, 24, 32, 64, 66, 100, 128, 130, 200, 256, 258, 300, 384, 400, 500, 510, 512, 514)
USUAL_PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ", "classification: ")
BATCH_SIZES = (8, 16, 32, 64)
PADDED = (32, 64, 128, 256, 512)  # fixed lengths to which texts are padded
PADS_POOLED = ("pads pooled", "pads were pooled with the tokens")
PADS_ATTENDED = ("pads attended", "tokens attended to pads: the attention mask was left out")
PADS_IN_BOTH = ("pads attended and pooled", f"{PADS_ATTENDED[1]}, and the pads were pooled too")

Clue = tuple[str, str]  # a difference from the model's own way: its key among the causes, and a clause that says it

# ---------------------------------------------------------------------------------------------- tokens


@dataclass(frozen=True)
class Tokenization:
    """The ids of each text. ``steps`` is empty for the model's own."""

    steps: list[Clue]
    ids: list[list[int]]
    skip: int = 0  # tokens of the prompt that are not pooled
    token_type: int = 0
    limit: int | None = None  # only texts with more tokens are affected


def tokenizations(encoder: SentenceEncoder, texts: Sequence[str], prompt: str) -> Iterator[Tokenization]:
    """Yield the ids under each hypothesis, the model's own first."""
    tokenizer, settings, positions = encoder.tokenizer, encoder.settings, encoder.bert.config.positions
    usual = tokenizer.limit
    prompted, skip = with_prompt(texts, settings, tokenizer, prompt, None)
    right = tokenizer.encode(prompted).ids
    yield Tokenization([], right, skip)

    # cut at another length, or at the model's without [SEP]
    for limit in sorted({*TOKEN_LIMITS, positions} - {usual}):
        if len(tokenizer.pair_template) <= limit <= positions:
            clue = ("cut", f"texts were cut at {limit} tokens, not at {usual}")
            yield Tokenization([clue], limited(tokenizer, limit).encode(prompted).ids, skip, limit=min(limit, usual))
    if usual < positions:
        clue = ("cut without [SEP]", f"texts were cut at {usual} tokens without a [SEP] at their end")
        ids = [row[:usual] for row in limited(tokenizer, usual + 1).encode(prompted).ids]
        yield Tokenization([clue], ids, skip, limit=usual)

    for clue, ids in cased(tokenizer, prompted):
        yield Tokenization([clue], ids, skip)

    for other in dict.fromkeys(["", *settings.prompts.values(), *USUAL_PROMPTS]):
        if other != prompt:
            others, unpooled = with_prompt(texts, settings, tokenizer, other, None)
            yield Tokenization([prompt_clue(prompt, other)], tokenizer.encode(others).ids, unpooled)

    # [CLS] and [SEP] missing or twice, for tokenizers that add one token on each side
    special = [token for sequence, token, _ in tokenizer.single_template if sequence is None]
    if len(special) == 2 and all(len(row) > 2 for row in right):
        clue = ("no special tokens", "[CLS] and [SEP] are missing")
        longer = limited(tokenizer, min(positions, usual + 2)).encode(prompted).ids
        for rows in (longer, right):  # cut to as many tokens as otherwise, or to two fewer
            yield Tokenization([clue], [row[1:-1] for row in rows])
        clue = ("special tokens twice", "[CLS] and [SEP] were added twice")
        yield Tokenization([clue], [[row[0], *row, row[-1]][:positions] for row in right])

    if encoder.bert.config.type_vocab_size > 1:
        yield Tokenization([("token types", "the token types are 1, not 0")], right, skip, token_type=1)


def prompt_clue(right: str, other: str) -> Clue:
    if not right:
        return "prompt added", f"the prompt {other!r} was added"
    if not other:
        return "prompt missing", f"the prompt {right!r} is missing"
    return "another prompt", f"the prompt was {other!r}, not {right!r}"


def cased(tokenizer: Tokenizer, texts: list[str]) -> Iterator[tuple[Clue, list[list[int]]]]:
    """Yield the ids with capitals left in, or lower-cased if the model has capitals."""
    spec = json.loads(tokenizer.backend.to_str())
    normalizer = spec["normalizer"] or {}
    parts = normalizer.get("normalizers", [normalizer])
    if not any(part.get("type") == "Lowercase" or part.get("lowercase") for part in parts):
        clue = ("lower-cased", "the texts were lower-cased, and this model has capitals")
        yield clue, tokenizer.encode([text.lower() for text in texts]).ids
        return
    # by default accents are stripped only together with lower-casing
    for strip_accents in (None, True):
        changed = []
        for part in parts:
            if part.get("lowercase"):
                part = part | {"lowercase": False, "strip_accents": strip_accents}
            if part.get("type") != "Lowercase":
                changed.append(part)
        spec["normalizer"] = {"type": "Sequence", "normalizers": changed}
        other = copy.copy(tokenizer)
        other.backend = Backend.from_str(json.dumps(spec))
        yield ("lower-casing missing", "the texts were not lower-cased"), other.encode(texts).ids


def limited(tokenizer: Tokenizer, limit: int) -> Tokenizer:
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def full_lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """Count the tokens of each text before it is cut."""
    whole = limited(tokenizer, 2**31)
    lengths: list[int] = []
    for chunk in chunks(texts):  # all ids of a large corpus would not fit in memory
        lengths += [len(ids) for ids in whole.encode(chunk).ids]
    return lengths


def padded_lengths(row: int, lengths: Sequence[int]) -> set[int]:
    """Return the lengths to which a text may have been padded: the longest of its batch, for batches of usual sizes.

    Batches in the order of the file, and of texts sorted by length. ``lengths`` are those of all texts.
    """
    longest_first = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    likely = {max(lengths)}
    for order in (list(range(len(lengths))), longest_first):
        place = order.index(row)
        for size in BATCH_SIZES:
            start = place // size * size
            likely.add(max(lengths[i] for i in order[start : start + size]))
    return likely


# -------------------------------------------------------------------------------------- what follows them


def inner_pool(hidden: Tensor) -> Tensor:
    """Average the states without the first and the last token, [CLS] and [SEP]."""
    return mean_pool(hidden[:, 1:-1] if hidden.shape[1] > 2 else hidden)


# name -> the function of states (1, T, D), what it takes
TOKEN_POOLINGS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens"),
    "cls": (cls_pool, "[CLS], the first token,"),
    "max": (max_pool, "the largest value of each column"),
    "last": (last_token_pool, "the last token"),
    "inner": (inner_pool, "the mean without [CLS] and [SEP]"),
}


@dataclass(frozen=True)
class Hypothesis:
    """The vectors that each text has under it: pooled tensors (C, D) at first, in the end arrays (C, W).

    C is usually 1, or as many as there are numbers of pads. ``steps`` are the differences from the model's own way.
    """

    steps: list[Clue]
    vectors: list[Any]
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
            starts = np.cumsum(list(map(len, pooled.vectors)))[:-1]
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

    def pooled(self) -> Iterator[Hypothesis]:
        """Yield every choice of tokens with every pooling. Lazily: each needs forward passes."""
        tokens = tokenizations(self.encoder, self.texts, self.prompt)
        right = next(tokens)
        yield from self.poolings(right)
        yield from self.pads_pooled(right)
        for tokenization in tokens:
            yield from self.poolings(tokenization)
        yield from self.pads_attended(right)  # last, because it needs the most forward passes

    def poolings(self, tokenization: Tokenization) -> Iterator[Hypothesis]:
        """Pool the states of each text, (1, D), in every way; the model's own first."""
        encoder, mode, skip = self.encoder, self.encoder.pooling_mode, tokenization.skip
        states = [self.states(ids, tokenization.token_type) for ids in tokenization.ids]
        ways: list[tuple[list[Clue], Callable[[Tensor, Tensor], Tensor]]] = []  # of the last and the first layer
        if all(hidden.shape[1] > skip for hidden, _ in states):
            ways.append(([], lambda hidden, first: encoder.pool(hidden, None, first, skip)))
        instead = f"the model has {mode} pooling"
        for name, (pool, meaning) in TOKEN_POOLINGS.items():
            if name != mode:
                clue = (f"{name} pooling", f"{meaning} was taken, {instead}")
                ways.append(([clue], lambda hidden, _, pool=pool: pool(hidden)))
        if mode != "first-last":
            clue = ("first-last pooling", f"the first and the last layer were averaged, {instead}")
            ways.append(([clue], lambda hidden, first: first_last_pool(hidden, None, first)))
        if mode != "pooler" and encoder.bert.pooler is not None:
            clue = ("pooler", f"BERT's pooler output was taken, {instead}")
            ways.append(([clue], lambda hidden, _: encoder.bert.pool(hidden)))
        if skip:
            clue = ("prompt pooled", "the prompt's tokens were pooled too")
            ways.append(([clue], lambda hidden, first: encoder.pool(hidden, None, first)))
        for steps, pool_states in ways:
            vectors = [pool_states(hidden, first) for hidden, first in states]
            yield Hypothesis(tokenization.steps + steps, vectors, tokenization.limit)

    def states(self, ids: Sequence[int], token_type: int = 0) -> tuple[Tensor, Tensor]:
        """Return the last layer's and the first layer's output for one text, (1, T, D) each."""
        key = (token_type, *ids)
        if key not in self.cache:
            trace: dict[str, Tensor] = {}
            row = torch.tensor([list(ids)], device=self.encoder.device)  # (1, T)
            types = torch.full_like(row, token_type) if token_type else None
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

    def pads_pooled(self, right: Tokenization) -> Iterator[Hypothesis]:
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
        yield Hypothesis([PADS_POOLED], vectors)

    def pads_attended(self, right: Tokenization) -> Iterator[Hypothesis]:
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
        yield Hypothesis([PADS_ATTENDED], tokens)
        yield Hypothesis([PADS_IN_BOTH], everything)

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
        ways = [(cut, raw), ([*cut, ("normalised", "the vectors were scaled to length 1")], scaled)]
        if self.encoder.normalize:
            ways = [(cut, scaled), ([*cut, ("not normalised", "the vectors were not scaled to length 1")], raw)]
        if width < full:
            clue = ("normalised after truncation", "the remaining columns were scaled to length 1")
            ways.append(([*cut, clue], normalize(raw)))
        return ways
