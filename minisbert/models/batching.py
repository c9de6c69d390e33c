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
from dataclasses import dataclass, field
from heapq import heapreplace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_shape, check_texts
from minisbert.core.tokenizer import Encoded, check_limit
from minisbert.core.weights import BertConfig

# A batch of ``batch_size`` texts has as many tokens as so many texts of TEXT_TOKENS each. On two
# cores no other size is faster than the default.
BATCH_SIZE = 32
TEXT_TOKENS = 64
BATCH_TOKENS = BATCH_SIZE * TEXT_TOKENS
# On a GPU a batch costs some 5 ms of Python, however small it is. On an H200 batches of so many
# tokens were twice as fast as those of BATCH_TOKENS, and larger ones no faster.
GPU_BATCH_TOKENS = 512 * TEXT_TOKENS
LONG_TEXT = 512  # a call with a longer text forms batches of BATCH_TOKENS on a GPU, too
# In a stream, texts of so many characters are encoded at once.
CHARACTERS = 2**18
# Texts of so many characters are tokenized at once: two such chunks keep all cores busy.
TOKENIZED_CHARACTERS = 2**16
# A text of more tokens that is alone in a batch gets no pads: they need a mask, for which decoders
# would build T x T numbers.
UNPADDED_ABOVE = 512
# A text of at most so many tokens that is alone in a call gets no pads either: one would take 3 %
# of its time. Between the two limits lengths are rounded up by pads, for fewer kernels.
UNPADDED_UP_TO = 24
# For rows up to this length compiled packages may compute attention in another way, so these and
# longer ones share no batch.
SHORT = 200
# Above SHORT, batches of so few tokens keep the scores of written-out attention near the caches:
# measured in a prototype (8 x 256 tokens, a Zen 5), 512 to 1,024 tokens were 1.24 times as fast in
# int8 and 1.27 in bfloat16, 2,048 tokens 1.13 and 1.23 times.
LONG_TOKENS = 512
# So many pads cost about as much time as one more forward pass.
FEW_PADS = 32
# Tokens of a row that short texts share, on average: 56 and 62 were within 2 % (float32, a Zen 4).
ROW = 60


# ----------------------------------------------------------------------------------------- tokens


def chunks(texts: Iterable[str], characters: int = CHARACTERS) -> Iterator[list[str]]:
    """Yield the texts in order, in lists of about ``characters`` characters, to bound memory."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text) + 1
        if size >= characters:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


@dataclass
class Tokens:
    """The tokens of a call: ids as arrays, which take a tenth of the memory of lists."""

    ids: list[array] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)  # which texts were cut
    unpooled: int = 0  # so many tokens at the start of each text, its prompt's, are not pooled
    dtype: torch.dtype = torch.float32  # that of the matrix products

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, encoded: Encoded) -> None:
        """Append more texts."""
        self.ids += [array("i", ids) for ids in encoded.ids]
        self.truncated += encoded.truncated


def with_limit(tokenizer: ModelTokenizer, limit: int) -> ModelTokenizer:
    """Return a copy that cuts texts at another length; other encoders may share the tokenizer."""
    check_limit(limit, tokenizer.single_template)
    limited = copy.copy(tokenizer)
    limited.limit = limit
    return limited


def tokenize(
    tokenizer: ModelTokenizer, texts: Sequence[str], characters: int = TOKENIZED_CHARACTERS
) -> Tokens:
    """Tokenize texts, in chunks of so many characters.

    The lists of all ids at once would take ten times as much memory as the arrays.
    """
    tokens = Tokens()
    if sum(map(len, texts)) < characters:  # few texts start no threads
        tokens.add(tokenizer.encode(texts))
        return tokens
    # In two threads, because the library computes outside of Python's lock and hands its results
    # over within it.
    with ThreadPoolExecutor(2) as pool:
        for encoded in pool.map(tokenizer.encode, chunks(texts, characters)):
            tokens.add(encoded)
    return tokens


def valid_texts(texts: Any) -> Iterator[str]:
    """Yield the texts one by one; ``InputError`` gives the index of one that is not valid."""
    # A generator is welcome here. ``check_texts`` refuses whatever else is no list of texts.
    is_table = isinstance(texts, dict | set) or hasattr(texts, "columns")
    if isinstance(texts, str) or is_table or not isinstance(texts, Iterable):
        check_texts(texts)
    for i, text in enumerate(texts):
        check_texts([text], i)
        yield text


# The ids of texts, in lists or in arrays.
AnyTokens = TypeVar("AnyTokens", Encoded, Tokens)


def check_tokens(encoded: AnyTokens, texts: Sequence[str]) -> AnyTokens:
    """Return ``encoded``; ``InputError`` for a text without a token, which no encoder can read."""
    if all(map(len, encoded.ids)):
        return encoded
    for text, ids in zip(texts, encoded.ids, strict=True):
        if not len(ids):
            raise InputError(
                f"the text {one_line(text)} has no token, and this tokenizer adds none: remove the "
                f"text"
            )
    return encoded


def distinct_rows(rows: Sequence[array]) -> tuple[list[array], list[int]]:
    """Return each of the different rows of ids once, and for every row its place among them.

    ``[a, b, a]`` gives ``[a, b]`` and ``[0, 1, 0]``.
    """
    distinct: dict[bytes, array] = {}
    place_of: dict[bytes, int] = {}
    places = []
    for ids in rows:
        key = ids.tobytes()
        if key not in distinct:
            place_of[key] = len(distinct)
            distinct[key] = ids
        places.append(place_of[key])
    return list(distinct.values()), places


# ---------------------------------------------------------------------------------- padded batches


def budgeted_batches(lengths: Sequence[int] | np.ndarray, batch_tokens: int) -> list[list[int]]:
    """Group row numbers by length, longest first, to at most ``batch_tokens`` with padding."""
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])  # a batch is padded to its first row
        count = max(1, batch_tokens // longest)
        batches.append(order[start : start + count].tolist())
        start += count
    return batches


# ---------------------------------------------------------------------------------- packed batches


@dataclass(frozen=True)
class PackedBatch:
    """N texts in R rows of T tokens: several short texts share a row, which needs few pads.

    Such a row is [CLS] a [SEP] [CLS] b [SEP]. ``ids``, ``positions`` and ``text_index`` are (R, T):
    a token, its place in its own text, and the number of that text in the batch, -1 for the few
    pads. ``places`` (N, S) has the places of each text's tokens in the flattened rows, -1 beyond
    its end. ``texts`` are the numbers of the N texts in the call, ``tokens`` counts all but the
    pads.
    """

    ids: Tensor
    positions: Tensor
    text_index: Tensor
    places: Tensor
    texts: list[int]
    tokens: int
    unpooled: int  # so many tokens at the start of each text, its prompt's, are not pooled
    dtype: torch.dtype  # that of the matrix products


def same_text(text_index: Tensor) -> Tensor:
    """Mark tokens of a row that belong to the same text: (R, T) -> attention mask (R, 1, T, T)."""
    return text_index[:, None, :, None] == text_index[:, None, None, :]


def unpack(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Take rows apart: hidden (R, T, D), ``places`` (N, S) -> states (N, S, D), mask (N, S)."""
    return hidden.flatten(0, 1)[places.clamp_min(0)], places >= 0


@dataclass
class Row:
    """The numbers of the texts that share a row, and their tokens."""

    texts: list[int]
    tokens: int


def packed_batches(
    tokens: Tokens, batch_tokens: int, long_tokens: float = math.inf
) -> Iterator[PackedBatch]:
    """Pack texts into batches of at most ``batch_tokens`` tokens, the longest rows first.

    A row larger than that is a batch by itself. Rows above ``SHORT`` share one of at most
    ``long_tokens``.
    """
    if len(tokens) == 0:
        return
    if len(tokens) == 1:
        yield single_batch(tokens)
        return

    lengths = [len(ids) for ids in tokens.ids]
    rows = share_rows(lengths, min(ROW, batch_tokens))
    # The longest first: rows of similar length share a batch, and memory does not grow towards the
    # end. The sort is stable.
    rows.sort(key=attrgetter("tokens"), reverse=True)
    batch: list[Row] = []
    width = 0  # tokens of the current batch's rows: its first row's, rounded
    for number, row in enumerate(rows):
        limit = batch_tokens
        if width > SHORT:
            limit = min(batch_tokens, long_tokens)
        full = width * (len(batch) + 1) > limit
        # A row may be padded by an eighth. Beyond that a new batch begins if so many pads in each
        # row that is left would be more than FEW_PADS.
        pads = width - row.tokens
        wasteful = 8 * pads > width and pads * (len(rows) - number) > FEW_PADS
        # Rows up to SHORT and longer ones share no batch.
        other_attention = round_up(row.tokens) <= SHORT < width
        if batch and (full or wasteful or other_attention):
            yield make_batch(tokens, batch, width)
            batch = []
        if not batch:
            width = round_up(row.tokens)
        batch.append(row)
    yield make_batch(tokens, batch, width)


def share_rows(lengths: Sequence[int], tokens: int = ROW) -> list[Row]:
    """Group texts into rows of about ``tokens`` tokens; a longer text has a row to itself.

    The rows are as equal as possible. Attention in such a row costs little, and several sentences
    fit into it. With rows of equal length all batches of a call have one shape.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable").tolist()  # equal ones as they came
    rows = []
    short_texts = []
    for text in order:
        if lengths[text] > tokens:
            rows.append(Row([text], lengths[text]))
        else:
            short_texts.append(text)

    # The longest text left goes to the emptiest row, which the heap has in front; of several, to
    # the one with the lowest number.
    total = sum(lengths[text] for text in short_texts)
    heap = [(0, number) for number in range(math.ceil(total / tokens))]  # tokens, number of a row
    texts_by_number: list[list[int]] = [[] for _ in heap]
    for text in short_texts:
        filled, number = heap[0]
        heapreplace(heap, (filled + lengths[text], number))
        texts_by_number[number].append(text)
    for filled, number in heap:
        rows.append(Row(texts_by_number[number], filled))
    return rows


def round_up(tokens: int) -> int:
    """Round up the length of a row, for few shapes: oneDNN compiles and keeps a kernel for each."""
    step = 8
    if tokens <= 2 * ROW:
        step = 4
    return math.ceil(tokens / step) * step


def single_batch(tokens: Tokens) -> PackedBatch:
    """Write the only text of a call into a row: ``make_batch``, in a fraction of its time."""
    count = len(tokens.ids[0])
    width = round_up(count)
    if count <= UNPADDED_UP_TO or count > UNPADDED_ABOVE:
        width = count
    places = np.arange(count)[None]  # (1, S)
    ids = np.zeros((1, width), np.int64)
    ids[:, :count] = tokens.ids[0]
    positions = np.zeros((1, width), np.int64)
    positions[:, :count] = places
    text_index = np.full((1, width), -1)
    text_index[:, :count] = 0
    return PackedBatch(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        text_index=torch.from_numpy(text_index),
        places=torch.from_numpy(places),
        texts=[0],
        tokens=count,
        unpooled=tokens.unpooled,
        dtype=tokens.dtype,
    )


def make_batch(tokens: Tokens, rows: Sequence[Row], width: int) -> PackedBatch:
    """Write the texts of R rows into tensors (R, ``width``)."""
    # Of each of the N texts: its number in the call, its tokens, and where it begins in the rows,
    # flattened.
    texts = []
    lengths = []
    starts = []
    for number, row in enumerate(rows):
        start = number * width
        for text in row.texts:
            texts.append(text)
            lengths.append(len(tokens.ids[text]))
            starts.append(start)
            start += lengths[-1]
    longest = max(lengths)
    total = sum(lengths)
    if len(texts) == 1 and longest > UNPADDED_ABOVE:
        width = longest  # no pads

    # Of each token of the batch, M in all: the number of its text in the batch, its position in
    # that text, and its place in the rows, flattened.
    counts = np.array(lengths)  # (N,)
    text_of_token = np.repeat(np.arange(len(texts)), counts)  # (M,)
    before = counts.cumsum() - counts  # tokens of the texts before each text, (N,)
    position_of_token = np.arange(total) - before[text_of_token]  # (M,)
    place_of_token = np.array(starts)[text_of_token] + position_of_token  # (M,)

    # Each table has a number for every place, and that of a pad where no token is.
    size = len(rows) * width
    ids = np.zeros(size, np.int64)
    ids[place_of_token] = np.frombuffer(
        b"".join([tokens.ids[text] for text in texts]), dtype=np.intc
    )
    positions = np.zeros(size, np.int64)
    positions[place_of_token] = position_of_token
    text_index = np.full(size, -1)
    text_index[place_of_token] = text_of_token
    places = np.full((len(texts), longest), -1)  # (N, S)
    places[text_of_token, position_of_token] = place_of_token
    return PackedBatch(
        ids=torch.from_numpy(ids.reshape(-1, width)),
        positions=torch.from_numpy(positions.reshape(-1, width)),
        text_index=torch.from_numpy(text_index.reshape(-1, width)),
        places=torch.from_numpy(places),
        texts=texts,
        tokens=total,
        unpooled=tokens.unpooled,
        dtype=tokens.dtype,
    )


# ------------------------------------------------------------------------------------ input checks


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
    if mask is not None:
        check_shape("mask", mask, *ids.shape)
    if token_types is not None:
        check_shape("token_types", token_types, *ids.shape)
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
    """Raise ``ValueError`` for ids, token types or a length that the model has no row for."""
    if longest > config.positions:
        raise ValueError(
            f"{longest} tokens, but the position table has {config.positions}: let the tokenizer "
            f"cut them"
        )
    words = f"{config.vocab_size} in its vocabulary: do tokenizer and weights belong together?"
    check_range("ids", ids, config.vocab_size, words)
    if token_types is not None:
        types = f"{config.type_vocab_size} types"
        if config.type_vocab_size == 0:
            types = "no types"
        check_range("token_types", token_types, config.type_vocab_size, types)


def check_range(name: str, values: Tensor | np.ndarray, size: int, needed: str) -> None:
    """Raise ``ValueError`` for a number below 0 or from ``size`` on.

    The message ends in what the model has: ``needed``.
    """
    low = int(values.min())
    high = int(values.max())
    if low < 0 or high >= max(size, 1):  # a model without token types is given zeros
        raise ValueError(f"{name} run from {low} to {high}, this model has {needed}")
