"""Group many texts into batches of token ids, in bounded memory and nearly without pads.

    texts ── chunks ──> lists of texts ── tokenize ──> ids as bytes ── packed_batches ──> rows that several texts share

``budgeted_batches`` makes batches of similar length for code that pads. Imports the book's tokenizer, nothing else.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from minisbert.core.tokenizer import Tokenizer

CHARACTERS = 2**18  # to tokenize at once
ID_BYTES = array("i").itemsize  # bytes per token id
LONG = 512  # a longer text alone in a batch has no pads: decoders would build a mask of T x T numbers for them
SHORT = 200  # of rows up to this length compiled packages may compute attention in another way: they share no batch
FEW_PADS = 32  # cost about as much time as one more forward pass
ROW = 60  # tokens of a row that short texts share, on average: docs/speed.md has the rates of other lengths


def chunks(texts: Iterable[str], characters: int = CHARACTERS) -> Iterator[list[str]]:
    """Yield the texts in order, in lists of about ``characters`` characters each, which bounds memory."""
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
    """Group row numbers into batches of similar length, longest first, of at most ``batch_tokens`` with padding."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    longest = 0  # tokens of the longest row of the current batch, to which every row is padded
    for row in order:
        if not batches or longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return batches


def as_key(ids: Sequence[int]) -> bytes:
    """Store token ids as bytes: they can be dict keys, and take a tenth of the memory of a list."""
    return array("i", ids).tobytes()


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[bytes], int]:
    """Return the ids of each text as bytes, which finds texts with the same tokens, and how many texts were cut."""
    keys: list[bytes] = []
    truncated = 0
    # In chunks, because the lists of all ids at once would take ten times as much memory as the keys.
    for chunk in chunks(texts):
        encoded = tokenizer.encode(chunk)
        keys += map(as_key, encoded.ids)
        truncated += encoded.truncated
    return keys, truncated


@dataclass(frozen=True)
class Batch:
    """N texts in R rows of T tokens: several short texts share a row, as [CLS] a [SEP] [CLS] b [SEP] with few pads.

    ``ids``, ``positions`` and ``text_index`` are (R, T): a token, its place in its own text, and the number of that
    text in the batch, -1 for the few pads. ``places`` (N, S) has the places of each text's tokens in the flattened
    rows, -1 beyond its end. ``texts`` are the numbers of the N texts in the call, ``tokens`` counts all but the pads.
    """

    ids: Tensor
    positions: Tensor
    text_index: Tensor
    places: Tensor
    texts: list[int]
    tokens: int

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Move ``ids``, ``positions``, ``text_index`` and ``places``, the inputs of a compiled encoder, to a device."""
        return tuple(x.to(device) for x in (self.ids, self.positions, self.text_index, self.places))


def same_text(text_index: Tensor) -> Tensor:
    """Mark tokens of a row that belong to the same text: ``Batch.text_index`` (R, T) -> attention mask (R, 1, T, T)."""
    return text_index[:, None, :, None] == text_index[:, None, None, :]


def unpack(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Take rows apart: hidden (R, T, D), ``Batch.places`` (N, S) -> each text by itself (N, S, D), its mask (N, S)."""
    return hidden.flatten(0, 1)[places.clamp_min(0)], places >= 0


def packed_batches(keys: Sequence[bytes], batch_tokens: int) -> Iterator[Batch]:
    """Pack texts, given by their keys, into batches of at most ``batch_tokens`` tokens, the longest rows first.

    A row larger than that is a batch by itself.
    """
    lengths = [len(key) // ID_BYTES for key in keys]
    rows = share_rows(lengths, min(ROW, batch_tokens))
    tokens_of = [sum(lengths[text] for text in row) for row in rows]
    # The longest first: rows of similar length share a batch, and memory does not grow towards the end.
    order = sorted(range(len(rows)), key=lambda row: -tokens_of[row])
    batch: list[list[int]] = []
    width = 0  # tokens of the current batch's rows: its first row's, rounded
    for place, number in enumerate(order):
        tokens = tokens_of[number]
        full = width * (len(batch) + 1) > batch_tokens
        # A row may be padded by an eighth. Beyond that, a batch more costs as much as FEW_PADS pads in all rows left.
        pads = width - tokens
        wasteful = 8 * pads > width and pads * (len(rows) - place) > FEW_PADS
        other_attention = rounded(tokens) <= SHORT < width
        if batch and (full or wasteful or other_attention):
            yield make_batch(keys, lengths, batch, width)
            batch = []
        if not batch:
            width = rounded(tokens)
        batch.append(rows[number])
    if batch:
        yield make_batch(keys, lengths, batch, width)


def share_rows(lengths: Sequence[int], tokens: int = ROW) -> list[list[int]]:
    """Group texts into rows of about ``tokens`` tokens, as equal as possible; a longer text has a row to itself.

    Attention in such a row costs little, and several sentences fit into it. With rows of equal length all batches of a
    call have one shape.
    """
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    rows = [[text] for text in order if lengths[text] > tokens]
    short = order[len(rows) :]
    count = math.ceil(sum(lengths[text] for text in short) / tokens)
    # The longest text left goes to the emptiest row, which the heap has in front. A row's number decides between rows
    # of equal size, because lists of texts must not: they would be compared element by element.
    heap: list[tuple[int, int, list[int]]] = [(0, number, []) for number in range(count)]
    for text in short:
        filled, number, row = heap[0]
        row.append(text)
        heapreplace(heap, (filled + lengths[text], number, row))
    rows += [row for _, _, row in heap if row]
    return rows


def rounded(tokens: int) -> int:
    """Round up the length of a row, for few shapes: oneDNN compiles and keeps a kernel for each."""
    step = 4 if tokens <= 2 * ROW else 8
    return tokens + -tokens % step


def make_batch(keys: Sequence[bytes], lengths: Sequence[int], rows: list[list[int]], width: int) -> Batch:
    """Write the texts of R rows into tensors (R, ``width``)."""
    texts = list(chain.from_iterable(rows))
    longest = max(lengths[text] for text in texts)
    if len(texts) == 1 and longest > LONG:
        width = longest
    size = len(rows) * width
    # Flat arrays, filled text by text: NumPy writes small slices faster than torch.
    ids, positions, text_index = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, -1)
    places = np.full((len(texts), longest), -1)
    within = np.arange(longest)
    number = 0
    for row_number, row in enumerate(rows):
        first = row_number * width
        for text in row:
            count = lengths[text]
            here = slice(first, first + count)
            ids[here] = np.frombuffer(keys[text], dtype=np.intc)
            positions[here] = within[:count]
            text_index[here] = number
            places[number, :count] = first + within[:count]
            first += count
            number += 1
    tensors = [torch.from_numpy(x.reshape(-1, width)) for x in (ids, positions, text_index)]
    return Batch(*tensors, torch.from_numpy(places), texts, sum(lengths[text] for text in texts))
