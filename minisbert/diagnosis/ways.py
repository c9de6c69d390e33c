"""The ways in which another engine may have computed vectors, each with its difference from ours.

A way is a choice of tokens (cut elsewhere, cased, with another prompt) and of a pooling of their
states. The model's own tokens are also tried with pads that count where they should not.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor

from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.models.batching import chunks
from minisbert.models.pooling import first_last_pool, last_token_pool
from minisbert.models.properties import with_prompt
from minisbert.models.sentence_encoder import SentenceEncoder

# The numbers of tokens at which engines cut, and the fixed lengths to which they pad.
USUAL_LIMITS = (8, 16, 32, 64, 128, 256, 384, 512)
# The prompts of E5, Nomic and others.
USUAL_PROMPTS = ("query: ", "passage: ", "search_query: ", "search_document: ")

# A pooling gets the outputs of all layers, (1, T, D) each, and gives the vector (1, D).
Pool = Callable[[list[Tensor]], Tensor]


class Clue(NamedTuple):
    """A difference from the model's own way."""

    cause: str
    clause: str  # the cause in words: "the texts were lower-cased"


class Tokenization(NamedTuple):
    """One way from texts to tokens."""

    clues: list[Clue]
    ids: list[Sequence[int]]  # of each text
    skip: int  # how many tokens of the prompt are not pooled


class Way(NamedTuple):
    """One way from texts to vectors."""

    clues: list[Clue]
    vectors: Iterator[Tensor]  # for each text (C, D) before scaling, computed while it is read


def ways(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str, all_texts: Sequence[str]
) -> Iterator[Way]:
    """Yield every way to compute the vectors of ``texts``, the model's own way first.

    The caller should stop reading a way's vectors at the first text that does not fit. C is 1, or
    the number of lengths to which a text may have been padded. ``all_texts`` are those of the file,
    because an engine may have padded to the length of any of them.
    """

    # All poolings of one tokenization follow each other, so they share its forward passes. There is
    # room for two tokenizations, because many texts have the same tokens in the next one, too.
    @lru_cache(maxsize=2 * len(texts))
    def layers(ids: tuple[int, ...]) -> list[Tensor]:
        hidden = encoder.bert.hidden_states(torch.tensor([ids], device=encoder.device))
        return hidden[1:]  # without the embeddings

    def pooled(rows: list[Sequence[int]], pool: Pool) -> Iterator[Tensor]:
        for ids in rows:
            yield encoder.dense(pool(layers(tuple(ids))))

    tokenized = list(tokenizations(encoder, texts, prompt))
    for token_clues, rows, skip in tokenized:
        for pooling_clues, pool in poolings(encoder, skip):
            yield Way(token_clues + pooling_clues, pooled(rows, pool))

    # Pads come last, because they need the most forward passes. They stand beside the model's own
    # tokens.
    prompted = (prompt + text for text in all_texts)
    yield from padded_ways(encoder, tokenized[0], prompted)


# ------------------------------------------------------------------------------------------- tokens


def tokenizations(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str
) -> Iterator[Tokenization]:
    """Yield the model's own tokens, then those of other limits, another case and other prompts."""
    prompted, skip = with_prompt(texts, encoder.settings, encoder.tokenizer, prompt, name=None)
    own_ids = encoder.tokenizer.encode(prompted).ids
    yield Tokenization([], own_ids, skip)
    if skip:
        clue = Clue("prompt pooled", "the prompt's tokens were pooled too")
        yield Tokenization([clue], own_ids, 0)

    for clue, ids in cut_elsewhere(encoder, prompted):
        if ids != own_ids:
            yield Tokenization([clue], ids, skip)
    for clue, ids in in_another_case(encoder, prompted):
        if ids != own_ids:
            yield Tokenization([clue], ids, skip)
    yield from with_other_prompts(encoder, texts, prompt)


def cut_elsewhere(
    encoder: SentenceEncoder, texts: list[str]
) -> Iterator[tuple[Clue, list[Sequence[int]]]]:
    """Yield the ids of the texts cut at each usual limit, and at the size of the position table."""
    tokenizer = encoder.tokenizer
    positions = encoder.bert.config.positions
    for limit in sorted({*USUAL_LIMITS, positions}):
        # A tokenizer takes no limit below the length of its template for pairs.
        if not len(tokenizer.pair_template) <= limit <= positions:
            continue
        limited = copy.copy(tokenizer)
        limited.limit = limit
        ids = limited.encode(texts).ids
        longest = max(len(row) for row in ids)
        if longest < limit:  # none of them is cut here
            clause = f"texts were not cut at {tokenizer.limit} tokens"
        else:
            clause = f"texts were cut at {limit} tokens, not at {tokenizer.limit}"
        yield Clue("cut", clause), ids


def in_another_case(
    encoder: SentenceEncoder, texts: list[str]
) -> Iterator[tuple[Clue, list[Sequence[int]]]]:
    """Yield the ids of lower-cased texts, and those without BERT's lower-casing."""
    tokenizer = encoder.tokenizer
    clue = Clue("lower-cased", "the texts were lower-cased, and this model has capitals")
    lowered = [text.lower() for text in texts]
    yield clue, tokenizer.encode(lowered).ids

    with_capitals = copy.copy(tokenizer)
    with_capitals.backend = Backend.from_str(tokenizer.backend.to_str())
    if getattr(with_capitals.backend.normalizer, "lowercase", False):
        with_capitals.backend.normalizer.lowercase = False
        clue = Clue("lower-casing missing", "the texts were not lower-cased")
        yield clue, with_capitals.encode(texts).ids


def with_other_prompts(
    encoder: SentenceEncoder, texts: Sequence[str], prompt: str
) -> Iterator[Tokenization]:
    """Yield the ids without a prompt, with each of the model's and with the usual ones."""
    others = dict.fromkeys(["", *encoder.settings.prompts.values(), *USUAL_PROMPTS])
    for other in others:
        if other == prompt:
            continue
        if not prompt:
            clue = Clue("prompt added", f"the prompt {other!r} was added")
        elif not other:
            clue = Clue("prompt missing", f"the prompt {prompt!r} is missing")
        else:
            clue = Clue("another prompt", f"the prompt was {other!r}, not {prompt!r}")
        prompted, skip = with_prompt(texts, encoder.settings, encoder.tokenizer, other, name=None)
        yield Tokenization([clue], encoder.tokenizer.encode(prompted).ids, skip)


# ----------------------------------------------------------------------------------------- poolings


def inner_mean_pool(hidden: Tensor) -> Tensor:
    """Average without the first and the last token, [CLS] and [SEP]: (1, T, D) -> (1, D)."""
    return mean_pool(hidden[:, 1:-1])


# The poolings of the last layer's states, each with what an engine did if it used it.
LAST_LAYER_POOLINGS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "mean": (mean_pool, "the mean over the tokens was taken"),
    "cls": (cls_pool, "[CLS], the first token, was taken"),
    "max": (max_pool, "the largest value of each column was taken"),
    "lasttoken": (last_token_pool, "the last token was taken"),
    "inner": (inner_mean_pool, "the mean without the first and the last token was taken"),
}


def poolings(encoder: SentenceEncoder, skip: int) -> Iterator[tuple[list[Clue], Pool]]:
    """Yield the model's own pooling, without the first ``skip`` tokens, then other ones."""
    last = len(encoder.bert.layers)
    yield [], own_pooling(encoder, skip, last)
    for number in range(1, last):
        clue = Clue("layer", f"layer {number} was pooled, not layer {last}")
        yield [clue], own_pooling(encoder, skip, number)

    # Vectors of one pooling alone are narrower than those of several side by side, and do not fit
    # the dense layer.
    if len(encoder.pooling.names) > 1:
        return
    for name, meaning, pool in other_poolings(encoder):
        if name != encoder.pooling_mode:
            clause = f"{meaning}; the model has {encoder.pooling_mode} pooling"
            yield [Clue(f"{name} pooling", clause)], pool


def own_pooling(encoder: SentenceEncoder, skip: int, number: int) -> Pool:
    """Return the model's pooling of the output of layer ``number``, counted from 1."""

    def pool(layers: list[Tensor]) -> Tensor:
        hidden = layers[number - 1]  # (1, T, D)
        if hidden.shape[1] <= skip:  # another tokenization left nothing to pool
            return torch.full_like(hidden[:, 0], torch.nan)  # fits nothing
        return encoder.pooling(hidden[:, skip:])

    return pool


def other_poolings(encoder: SentenceEncoder) -> Iterator[tuple[str, str, Pool]]:
    """Yield the name of each pooling that engines use, what they did then, and the pooling."""
    for name, (pool, meaning) in LAST_LAYER_POOLINGS.items():
        yield name, meaning, of_last_layer(pool)

    def first_last(layers: list[Tensor]) -> Tensor:
        return first_last_pool(layers[-1], None, layers[0])

    yield "first-last", "the first and the last layer were averaged", first_last
    if encoder.bert.pooler is not None:
        yield "pooler", "BERT's pooler output was taken", of_last_layer(encoder.bert.pool)


def of_last_layer(pool: Callable[[Tensor], Tensor]) -> Pool:
    """Return a pooling of hidden states (1, T, D) as one of all layers' outputs."""

    def pool_last(layers: list[Tensor]) -> Tensor:
        return pool(layers[-1])

    return pool_last


# --------------------------------------------------------------------------------------------- pads


def padded_ways(
    encoder: SentenceEncoder, own: Tokenization, all_texts: Iterable[str]
) -> Iterator[Way]:
    """Yield the ways in which pads count, in rows as long as engines pad to.

    Those are the usual limits and the lengths of the other texts.
    """
    longest = min(encoder.bert.config.positions, USUAL_LIMITS[-1])
    limits = [encoder.tokenizer.limit, *USUAL_LIMITS]
    sizes = {limit for limit in limits if limit <= longest}
    for chunk in chunks(all_texts):  # all ids of a large corpus would not fit in memory
        sizes.update(len(ids) for ids in encoder.tokenizer.encode(chunk).ids)

    def padded(masked: bool, pooled: bool) -> Iterator[Tensor]:
        for ids in own.ids:
            yield in_padded_rows(encoder, ids, sorted(sizes), masked, pooled, own.skip)

    clue = Clue("pads pooled", "pads were pooled with the tokens")
    yield Way([clue], padded(masked=True, pooled=True))
    clue = Clue("pads attended", "tokens attended to pads: the attention mask was left out")
    yield Way([clue], padded(masked=False, pooled=False))
    clause = "tokens attended to pads, and the pads were pooled too"
    yield Way([Clue("pads attended and pooled", clause)], padded(masked=False, pooled=True))


def in_padded_rows(
    encoder: SentenceEncoder,
    ids: Sequence[int],
    sizes: Sequence[int],
    masked: bool,
    pooled: bool,
    skip: int,
) -> Tensor:
    """Pool a text in rows of each possible size P -> (C, D).

    ``masked`` hides the pads from attention, ``pooled`` pools them with the tokens.
    """
    vectors = []
    for size in sizes:
        if size < len(ids):
            continue
        pads = [encoder.tokenizer.pad_id] * (size - len(ids))
        row = torch.tensor([[*ids, *pads]], device=encoder.device)  # (1, P)
        mask = None
        if masked:
            mask = torch.arange(size, device=encoder.device)[None] < len(ids)  # (1, P)
        last_layer = encoder.bert.hidden_states(row, mask)[-1]  # (1, P, D)
        end = size if pooled else len(ids)
        vectors.append(encoder.pooling(last_layer[:, skip:end]))
    return encoder.dense(torch.cat(vectors))
