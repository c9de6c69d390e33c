"""Compute a few texts in the ways in which another engine may have computed them.

A way is a choice of tokens (cut elsewhere, cased, with another prompt) and of a pooling of their states. The model's
own tokens are also tried with pads that count where they should not. ``certificate.py`` compares the vectors.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.core.tokenizer import Tokenizer
from minisbert.models.batching import chunks
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.prompts import with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder

LIMITS = (8, 16, 32, 64, 128, 256, 384, 512)  # that engines cut at, and fixed lengths that they pad to
USUAL_PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ")  # of E5, Nomic and others

Clue = tuple[str, str]  # a difference from the model's own way: its key among the causes, and a clause that says it
Way = tuple[list[Clue], Iterator[Tensor]]  # the clues; for each text its vectors (C, D) before scaling
Pool = Callable[[list[Tensor]], Tensor]  # of the layers' outputs, (1, T, D) each -> (1, D)


def ways(encoder: SentenceEncoder, texts: Sequence[str], prompt: str, everything: Sequence[str]) -> Iterator[Way]:
    """Yield every way to compute the ``texts``, which are a few of ``everything``, the model's own way first.

    The vectors of a way are computed text by text while they are read, so a reader should stop at the first that does
    not fit. C is 1, or the number of lengths to which a text may have been padded.
    """

    # poolings of the same tokens follow each other
    @lru_cache(maxsize=2 * len(texts))
    def layers(ids: tuple[int, ...]) -> list[Tensor]:
        return layer_outputs(encoder, torch.tensor([ids], device=encoder.device))

    tokens = list(tokenizations(encoder, texts, prompt))
    right, own_skip = tokens[0][1:]
    for clues, rows, skip in tokens:
        for more, pool in poolings(encoder, skip):
            yield clues + more, (encoder.dense(pool(layers(tuple(ids)))) for ids in rows)

    # last, because they need the most forward passes: rows of fixed lengths, and of those of the other texts
    longest = min(encoder.bert.config.positions, LIMITS[-1])
    lengths = {limit for limit in (encoder.tokenizer.limit, *LIMITS) if limit <= longest}
    for chunk in chunks(prompt + text for text in everything):  # all ids of a large corpus would not fit in memory
        lengths.update(map(len, encoder.tokenizer.encode(chunk).ids))
    for clue, masked, pooled in (
        (("pads pooled", "pads were pooled with the tokens"), True, True),
        (("pads attended", "tokens attended to pads: the attention mask was left out"), False, False),
        (("pads attended and pooled", "tokens attended to pads, and the pads were pooled too"), False, True),
    ):
        yield [clue], (padded(encoder, ids, sorted(lengths), masked, pooled, own_skip) for ids in right)


def layer_outputs(encoder: SentenceEncoder, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """Return every layer's output for ids (1, T), (1, T, D) each; the last is what the encoder returns."""
    trace: dict[str, Tensor] = {}
    hidden = encoder.bert(ids, mask, None, trace)
    return [trace[f"layers.{i}"] for i in range(len(encoder.bert.layers) - 1)] + [hidden]


def tokenizations(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str
) -> Iterator[tuple[list[Clue], list[Sequence[int]], int]]:
    """Yield clues, the ids of each text, and how many tokens of the prompt are not pooled; the model's own first."""
    tokenizer, settings = encoder.tokenizer, encoder.settings
    usual, positions = tokenizer.limit, encoder.bert.config.positions
    prompted, skip = with_prompt(texts, settings, tokenizer, prompt, None)
    right = tokenizer.encode(prompted).ids
    yield [], right, skip
    if skip:
        yield [("prompt pooled", "the prompt's tokens were pooled too")], right, 0

    for limit in sorted({*LIMITS, positions}):
        if len(tokenizer.pair_template) <= limit <= positions:
            limited = copy.copy(tokenizer)
            limited.limit = limit
            ids = limited.encode(prompted).ids
            clause = f"texts were cut at {limit} tokens, not at {usual}"
            if limit > max(map(len, ids)):
                clause = f"texts were not cut at {usual} tokens"
            if ids != right:
                yield [("cut", clause)], ids, skip

    for clue, ids in cased(tokenizer, prompted):
        if ids != right:
            yield [clue], ids, skip

    for other in dict.fromkeys(["", *settings.prompts.values(), *USUAL_PROMPTS]):
        if other == prompt:
            continue
        clue = ("another prompt", f"the prompt was {other!r}, not {prompt!r}")
        if not prompt:
            clue = ("prompt added", f"the prompt {other!r} was added")
        elif not other:
            clue = ("prompt missing", f"the prompt {prompt!r} is missing")
        others, unpooled = with_prompt(texts, settings, tokenizer, other, None)
        yield [clue], tokenizer.encode(others).ids, unpooled


def cased(tokenizer: Tokenizer, texts: list[str]) -> Iterator[tuple[Clue, list[Sequence[int]]]]:
    """Yield the ids of lower-cased texts, and those with capitals left in if BERT's tokenizer lower-cases."""
    lower = tokenizer.encode([text.lower() for text in texts]).ids
    yield ("lower-cased", "the texts were lower-cased, and this model has capitals"), lower
    other = copy.copy(tokenizer)
    other.backend = Backend.from_str(tokenizer.backend.to_str())
    if getattr(other.backend.normalizer, "lowercase", False):
        other.backend.normalizer.lowercase = False
        yield ("lower-casing missing", "the texts were not lower-cased"), other.encode(texts).ids


def own_pooling(encoder: SentenceEncoder, hidden: Tensor, first: Tensor, skip: int) -> Tensor:
    """Pool as the model does, before its dense layers, without the first ``skip`` tokens."""
    return encoder.pooling(hidden[:, skip:], None, encoder.given(hidden, None, first, skip))


def poolings(encoder: SentenceEncoder, skip: int) -> Iterator[tuple[list[Clue], Pool]]:
    """Yield the model's own pooling, which leaves out ``skip`` tokens, then the others and the other layers."""

    def own(layers: list[Tensor], number: int = -1) -> Tensor:
        if layers[number].shape[1] <= skip:  # another tokenization left nothing to pool
            return layers[number][:, 0] * torch.nan
        return own_pooling(encoder, layers[number], layers[0], skip)

    yield [], own
    last = len(encoder.bert.layers)
    for number in range(last - 1):
        yield [("layer", f"layer {number + 1} was pooled, not layer {last}")], partial(own, number=number)

    others: dict[str, tuple[str, Pool]] = {
        "mean": ("the mean over the tokens was taken", lambda x: mean_pool(x[-1])),
        "cls": ("[CLS], the first token, was taken", lambda x: cls_pool(x[-1])),
        "max": ("the largest value of each column was taken", lambda x: max_pool(x[-1])),
        "lasttoken": ("the last token was taken", lambda x: last_token_pool(x[-1])),
        "inner": ("the mean without the first and the last token was taken", lambda x: mean_pool(x[-1][:, 1:-1])),
        "first-last": ("the first and the last layer were averaged", lambda x: first_last_pool(x[-1], None, x[0])),
    }
    bert = encoder.bert
    if bert.pooler is not None:
        others["pooler"] = ("BERT's pooler output was taken", lambda x: bert.pool(x[-1]))
    # a dense layer fits other poolings only if they give vectors of the same width
    if len(encoder.pooling.names) == 1:
        for name, (meaning, pool) in others.items():
            if name != encoder.pooling_mode:
                yield [(f"{name} pooling", f"{meaning}, the model has {encoder.pooling_mode} pooling")], pool


def padded(
    encoder: SentenceEncoder, ids: Sequence[int], sizes: Sequence[int], masked: bool, pooled: bool, skip: int
) -> Tensor:
    """Pool a text in rows of each possible size -> (C, D); ``masked`` hides the pads, ``pooled`` pools them too."""
    vectors = []
    for size in sizes:
        if size < len(ids):
            continue
        row = torch.tensor([[*ids] + [encoder.tokenizer.pad_id] * (size - len(ids))], device=encoder.device)  # (1, P)
        mask = torch.arange(size, device=encoder.device)[None] < len(ids) if masked else None
        layers = layer_outputs(encoder, row, mask)
        kept = size if pooled else len(ids)
        vectors.append(own_pooling(encoder, layers[-1][:, :kept], layers[0][:, :kept], skip))
    return encoder.dense(torch.cat(vectors))
