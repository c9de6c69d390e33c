"""Group many texts into batches of token ids, in bounded memory and nearly without pads.

    texts ── tokenize ──> Tokens ── packed_batches ──> rows that several texts share

``budgeted_batches`` makes batches of similar length for code that pads. Nothing here loops over
tokens, and over texts only where a step takes a fraction of a microsecond: a GPU encodes 100,000
texts a second.
"""

import copy
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.core.bert import BertConfig
from minisbert.core.checks import check_shape, check_texts
from minisbert.core.tokenizer import Encoded, check_limit
from minisbert.system.progress import Bar

CHARACTERS = 2**18  # to encode at once, in a stream
TOKENIZED = 2**16  # characters to tokenize at once: two such chunks keep all cores busy
# a longer text alone in a batch has no pads: decoders would build a mask of T x T numbers for them
LONG = 512
# nor has a shorter text alone in a call: a pad takes 3 % of its time. Between, kernels would be too
# many
UNPADDED = 24
# of rows up to this length compiled packages may compute attention in another way: they share no
# batch
SHORT = 200
# Above it, batches of so few tokens keep the scores of written-out attention near the caches:
# measured in a prototype (8 x 256 tokens, a Zen 5), 512 to 1,024 tokens were 1.24 times as fast in
# int8 and 1.27 in bfloat16, 2,048 tokens 1.13 and 1.23 times
LONG_TOKENS = 512
FEW_PADS = 32  # cost about as much time as one more forward pass
# tokens of a row that short texts share, on average: 56 and 62 were within 2 % (float32, a Zen 4)
ROW = 60


def chunks(texts: Iterable[str], characters: int = CHARACTERS) -> Iterator[list[str]]:
    """Yield the texts in order, in lists of about ``characters`` characters each, which bounds
    memory.
    """
    chunk, size = [], 0
    for text in texts:
        chunk.append(text)
        size += len(text) + 1
        if size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def budgeted_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Group row numbers into batches of similar length, longest first, of at most ``batch_tokens``
    with padding.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        # to the longest row, its first, a batch is padded
        count = max(1, batch_tokens // max(1, lengths[order[start]]))
        batches.append(order[start : start + count].tolist())
        start += count
    return batches


@dataclass
class Tokens(Encoded):
    """The tokens of a call: ids as arrays, in a tenth of the memory of lists, and what happens to
    them.
    """

    prompt: int = 0  # so many tokens at the start of each text are its prompt's, and are not pooled
    dtype: torch.dtype = torch.float32  # of the matrix products
    progress: Bar | None = None  # counts the texts of each batch that is done


def with_limit(tokenizer: ModelTokenizer, limit: int) -> ModelTokenizer:
    """Return a copy that cuts texts at another length; other encoders may share the tokenizer."""
    check_limit(limit, tokenizer.pair_template)
    other = copy.copy(tokenizer)
    other.limit = limit
    return other


def tokenize(tokenizer: ModelTokenizer, texts: Sequence[str]) -> Tokens:
    """Tokenize many texts in chunks, because the lists of all ids at once would take ten times as
    much memory.
    """
    tokens = Tokens([], [], [])
    # In two threads, because the library computes outside of Python's lock and hands its results
    # over within it. Few texts start none.
    few = sum(map(len, texts)) < TOKENIZED
    with nullcontext() if few else ThreadPoolExecutor(2) as pool:
        parts = (
            pool.map(tokenizer.encode, chunks(texts, TOKENIZED))
            if pool
            else [tokenizer.encode(texts)]
        )
        for encoded in parts:
            tokens.ids += [array("i", ids) for ids in encoded.ids]
            tokens.truncated += encoded.truncated
    return tokens


@dataclass(frozen=True)
class PackedBatch:
    """N texts in R rows of T tokens: several short texts share a row, as [CLS] a [SEP] [CLS] b
    [SEP] with few pads.

    ``ids``, ``positions`` and ``text_index`` are (R, T): a token, its place in its own text, and
    the number of that text in the batch, -1 for the few pads. ``places`` (N, S) has the places of
    each text's tokens in the flattened rows, -1 beyond its end. ``texts`` are the numbers of the N
    texts in the call, ``tokens`` counts all but the pads.
    """

    ids: Tensor
    positions: Tensor
    text_index: Tensor
    places: Tensor
    texts: list[int]
    tokens: int
    prompt: int  # so many tokens at the start of each text are not pooled
    dtype: torch.dtype  # of the matrix products


def valid_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts one by one; ``InputError`` gives the index of one that is not a valid Unicode
    string.
    """
    if (
        isinstance(texts, str | dict | set)
        or hasattr(texts, "columns")
        or not isinstance(texts, Iterable)
    ):
        check_texts(texts)  # type: ignore[arg-type]  # which refuses them
    for i, text in enumerate(texts):
        check_texts([text], i)
        yield text


def check_tokens(encoded: Encoded, texts: Sequence[str]) -> Encoded:
    """Return what was given. Raises ``InputError`` for a text without a token, which an encoder
    cannot read.
    """
    for text, ids in zip(texts, encoded.ids, strict=True):
        if not len(ids):
            raise InputError(
                f"the text {one_line(text)} has no token, and this tokenizer adds none: remove the "
                f"text"
            )
    return encoded


def same_text(text_index: Tensor) -> Tensor:
    """Mark tokens of a row that belong to the same text: ``text_index`` (R, T) -> attention mask
    (R, 1, T, T).
    """
    return text_index[:, None, :, None] == text_index[:, None, None, :]


def unpack(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Take rows apart: hidden (R, T, D), ``places`` (N, S) -> each text by itself (N, S, D), its
    mask (N, S).
    """
    return hidden.flatten(0, 1)[places.clamp_min(0)], places >= 0


def reporting(batches: Iterator[Any], progress: Bar | None) -> Iterator[Any]:
    """Yield batches, and tell ``progress``, if there is one, of each that is done."""
    for batch in batches:
        yield batch
        if progress is not None:
            progress.update(len(batch.texts))


def packed_batches(
    tokens: Tokens, batch_tokens: int, long_tokens: float = math.inf
) -> Iterator[PackedBatch]:
    """Pack texts into batches of at most ``batch_tokens`` tokens, the longest rows first.

    A row larger than that is a batch by itself. Rows above ``SHORT`` share one of at most
    ``long_tokens``.
    """
    if not tokens.ids:
        return
    if len(tokens.ids) == 1:
        yield single_batch(tokens)
        return
    lengths = np.fromiter(map(len, tokens.ids), np.int64, len(tokens.ids))  # (N,)
    rows = share_rows(lengths, min(ROW, batch_tokens))
    tokens_of = [int(lengths[row].sum()) for row in rows]
    # The longest first: rows of similar length share a batch, and memory does not grow towards the
    # end.
    order = np.argsort(-np.array(tokens_of, dtype=np.int64), kind="stable").tolist()
    batch: list[np.ndarray] = []
    width = 0  # tokens of the current batch's rows: its first row's, rounded
    for place, number in enumerate(order):
        size = tokens_of[number]
        most = batch_tokens if width <= SHORT else min(batch_tokens, long_tokens)
        full = width * (len(batch) + 1) > most
        # A row may be padded by an eighth. Beyond that, a batch more costs as much as FEW_PADS pads
        # in all rows left.
        pads = width - size
        wasteful = 8 * pads > width and pads * (len(rows) - place) > FEW_PADS
        other_attention = rounded(size) <= SHORT < width
        if batch and (full or wasteful or other_attention):
            yield make_batch(tokens, lengths, batch, width)
            batch = []
        if not batch:
            width = rounded(size)
        batch.append(rows[number])
    if batch:
        yield make_batch(tokens, lengths, batch, width)


def share_rows(lengths: np.ndarray, tokens: int = ROW) -> list[np.ndarray]:
    """Group texts into rows of about ``tokens`` tokens, as equal as possible; a longer text has a
    row to itself.

    Attention in such a row costs little, and several sentences fit into it. With rows of equal
    length all batches of a call have one shape.
    """
    order = np.argsort(-lengths, kind="stable")  # equal ones in the caller's order
    alone = int((lengths > tokens).sum())
    short = lengths[order[alone:]]
    # The longest text left goes to the emptiest row, which the heap has in front: of several, to
    # the first. One integer is a row's tokens, and below them its number.
    heap = list(range(math.ceil(short.sum() / tokens)))
    number = (1 << 32) - 1
    row_of = []
    for length in short.tolist():
        row_of.append(heap[0] & number)
        heapreplace(heap, heap[0] + (length << 32))
    # first the texts alone, then the rows as they lie in the heap
    place_of = np.empty(len(heap), np.int64)
    place_of[[filled & number for filled in heap]] = np.arange(len(heap)) + alone
    places = np.concatenate([np.arange(alone), place_of[np.array(row_of, dtype=np.int64)]])
    ends = np.bincount(places).cumsum()
    return np.split(order[np.argsort(places, kind="stable")], ends[:-1])


def rounded(tokens: int) -> int:
    """Round up the length of a row, for few shapes: oneDNN compiles and keeps a kernel for each."""
    step = 4 if tokens <= 2 * ROW else 8
    return tokens + -tokens % step


def single_batch(tokens: Tokens) -> PackedBatch:
    """Write the only text of a call into a row: what ``make_batch`` does, in a fraction of its
    time.
    """
    count = len(tokens.ids[0])
    width = count if count <= UNPADDED or count > LONG else rounded(count)
    places = np.arange(count)[None]  # (1, S)
    ids, positions, text_index = (
        np.zeros((1, width), np.int64),
        np.zeros((1, width), np.int64),
        np.full((1, width), -1),
    )
    ids[:, :count] = tokens.ids[0]
    positions[:, :count] = places
    text_index[:, :count] = 0
    rows = [torch.from_numpy(x) for x in (ids, positions, text_index)]
    about = [0], count, tokens.prompt, tokens.dtype
    return PackedBatch(rows[0], rows[1], rows[2], torch.from_numpy(places), *about)


def make_batch(
    tokens: Tokens, lengths: np.ndarray, rows: Sequence[np.ndarray], width: int
) -> PackedBatch:
    """Write the texts of R rows into tensors (R, ``width``)."""
    texts = np.concatenate(rows)
    counts = lengths[texts]  # (N,)
    longest, total = int(counts.max()), int(counts.sum())
    if len(texts) == 1 and longest > LONG:
        width = longest
    before = counts.cumsum() - counts  # tokens of the texts before each text, (N,)
    sizes = np.array([len(row) for row in rows])
    row_of = np.repeat(np.arange(len(rows)), sizes)  # (N,)
    # where the texts begin in the flattened rows: those before them in other rows take no place of
    # their own row
    first = row_of * width + before - before[sizes.cumsum() - sizes][row_of]  # (N,)
    text_of = np.repeat(np.arange(len(texts)), counts)  # of each token, as all below
    within = np.arange(total) - before[text_of]
    here = first[text_of] + within
    size = len(rows) * width
    ids, positions, text_index = (
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.full(size, -1),
    )
    ids[here] = np.frombuffer(b"".join([tokens.ids[text] for text in texts]), dtype=np.intc)
    positions[here], text_index[here] = within, text_of
    places = np.full((len(texts), longest), -1)
    places[text_of, within] = here
    rows_of = [torch.from_numpy(x.reshape(-1, width)) for x in (ids, positions, text_index)]
    about = texts.tolist(), total, tokens.prompt, tokens.dtype
    return PackedBatch(rows_of[0], rows_of[1], rows_of[2], torch.from_numpy(places), *about)


def check_inputs(
    config: BertConfig, ids: Tensor, mask: Tensor | None = None, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for inputs that would crash the model or silently give wrong numbers.

    These are a shape other than (B, T), a row of the mask without a real token, and what
    ``check_ids`` refuses.
    """
    if isinstance(ids, dict):
        raise TypeError(
            'ids must be a tensor (B, T), not a dict: features["input_ids"], '
            'features["attention_mask"]'
        )
    check_shape("ids", ids, None, None)
    for name, x in (("mask", mask), ("token_types", token_types)):
        if x is not None:
            check_shape(name, x, *ids.shape)
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return  # whoever records a graph has checked its input: values cannot be read then
    # On a GPU a lookup beyond a table is a failed assertion on the device, after which the process
    # cannot use it.
    check_ids(config, ids, ids.shape[1], token_types)
    if mask is None:
        return
    real = mask.bool().any(dim=1)  # (B,)
    if not real.all():
        raise ValueError(
            f"row {int(real.int().argmin())} of the mask has no real token: attention would be 0/0"
        )


def check_ids(
    config: BertConfig, ids: Tensor | np.ndarray, longest: int, token_types: Tensor | None = None
) -> None:
    """Raise ``ValueError`` for ids or token types that the model does not have, or more tokens than
    positions.
    """
    if longest > config.positions:
        raise ValueError(
            f"{longest} tokens, but the position table has {config.positions}: let the tokenizer "
            f"cut them"
        )
    tables = [
        (
            "ids",
            ids,
            config.vocab_size,
            "in its vocabulary: do tokenizer and weights belong together?",
        )
    ]
    if token_types is not None:
        tables.append(("token_types", token_types, config.type_vocab_size, "types"))
    for name, values, size, things in tables:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= max(size, 1):  # a model without token types is given zeros
            raise ValueError(
                f"{name} run from {low} to {high}, this model has {size or 'no'} {things}"
            )
