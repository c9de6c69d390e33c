"""Many texts to batches of token ids: in bounded memory, and nearly without pads.

    texts ── chunks ──> lists of texts ── tokenize ──> ids as bytes ── packed_batches ──> rows that several texts share

``budgeted_batches`` makes batches of similar length for code that pads.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np
import torch
from torch import Tensor

from minisbert.core.tokenizer import Tokenizer

CHARACTERS = 2**18  # to tokenize at once
ID_BYTES = array("i").itemsize  # bytes per token id
LONG = 512  # a longer text alone in a batch has no pads: decoders would build a mask of T x T numbers for them
SHORT = 200  # of rows up to this length compiled packages may compute attention in another way: they share no batch
PADS = 32  # cost about as much time as a forward pass more
ROW = 60  # tokens of a row that short texts share, on average: docs/speed.md has the rates of other lengths


def chunks(texts: Iterable[str], characters: int = CHARACTERS) -> Iterator[list[str]]:
    """The texts in order, in lists of about ``characters`` characters each, which bounds memory."""
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
    """Row numbers in batches of similar length, longest first, of at most ``batch_tokens`` tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    longest = 0  # tokens of the longest row of the current batch, to which every row is padded
    for row in order:
        if not batches or longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return batches


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[bytes], int]:
    """The ids of each text as bytes, and how many texts were cut.

    Bytes can be dict keys, which finds texts with the same tokens, and take a tenth of the memory of lists.
    """
    keys: list[bytes] = []
    truncated = 0
    for chunk in chunks(texts):
        encoded = tokenizer.encode(chunk)
        keys += [array("i", ids).tobytes() for ids in encoded.ids]
        truncated += encoded.truncated
    return keys, truncated


@dataclass(frozen=True)
class Batch:
    """N texts in R rows of T tokens without a mask of pads: several short texts share a row, one after the other.

    ``ids``, ``positions`` and ``text_index`` are (R, T): a token, its place in its own text, and the number of that
    text in the batch, -1 for the few pads. ``places`` (N, S) has the places of each text's tokens in the flattened
    rows, -1 beyond its end. ``texts`` are the numbers of the N texts in the call, ``tokens`` all that are no pads.
    """

    ids: Tensor
    positions: Tensor
    text_index: Tensor
    places: Tensor
    texts: list[int]
    tokens: int

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``ids``, ``positions``, ``text_index`` and ``places`` on a device: what a compiled encoder takes."""
        return tuple(x.to(device) for x in (self.ids, self.positions, self.text_index, self.places))


def same_text(text_index: Tensor) -> Tensor:
    """Which tokens of a row belong to the same text: ``Batch.text_index`` (R, T) -> an attention mask (R, 1, T, T)."""
    return text_index[:, None, :, None] == text_index[:, None, None, :]


def unpack(hidden: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states (R, T, D), ``Batch.places`` (N, S) -> each text by itself, (N, S, D), and its mask (N, S)."""
    return hidden.flatten(0, 1)[places.clamp_min(0)], places >= 0


def packed_batches(keys: Sequence[bytes], batch_tokens: int) -> Iterator[Batch]:
    """Texts from ``tokenize`` in batches of at most ``batch_tokens`` tokens, the longest rows first.

    A row larger than that is a batch by itself.
    """
    lengths = [len(key) // ID_BYTES for key in keys]
    rows = [(sum(lengths[text] for text in row), row) for row in share_rows(lengths, min(ROW, batch_tokens))]
    batch: list[list[int]] = []
    width = 0
    for number, (tokens, row) in enumerate(sorted(rows, key=lambda pair: -pair[0])):
        # rows are padded to the first one's length: by an eighth at most, unless all that are left need few pads
        wasteful = 8 * tokens < 7 * width and (width - tokens) * (len(rows) - number) > PADS
        other = wasteful or rounded(tokens) <= SHORT < width
        if batch and (other or width * (len(batch) + 1) > batch_tokens):
            yield make_batch(keys, lengths, batch, width)
            batch = []
        if not batch:
            width = rounded(tokens)
        batch.append(row)
    if batch:
        yield make_batch(keys, lengths, batch, width)


def share_rows(lengths: Sequence[int], tokens: int = ROW) -> list[list[int]]:
    """Numbers of texts in rows of about ``tokens`` tokens, as equal as possible; a longer text has a row to itself.

    Attention in such a row costs little, and several sentences fit into it. With rows of equal length all batches of a
    call have one shape.
    """
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    rows = [[text] for text in order if lengths[text] > tokens]
    short = order[len(rows) :]
    # the longest remaining text goes to the emptiest row
    shared = [(0, number, []) for number in range(-(-sum(lengths[text] for text in short) // tokens))]
    for text in short:
        filled, number, row = shared[0]
        row.append(text)
        heapreplace(shared, (filled + lengths[text], number, row))
    return rows + [row for _, _, row in shared if row]


def rounded(tokens: int) -> int:
    """The length of a row with ``tokens`` tokens, for few shapes: oneDNN compiles and keeps a kernel for each."""
    step = 4 if tokens <= 2 * ROW else 8
    return tokens + -tokens % step


def make_batch(keys: Sequence[bytes], lengths: Sequence[int], rows: list[list[int]], width: int) -> Batch:
    """The texts of some rows, padded to ``width`` tokens each."""
    texts = [text for row in rows for text in row]
    longest = max(lengths[text] for text in texts)
    if len(texts) == 1 and longest > LONG:
        width = longest
    size = len(rows) * width
    ids, positions, text_index = np.zeros(size, np.int64), np.zeros(size, np.int64), np.full(size, -1)
    places = np.full((len(texts), longest), -1)
    within = np.arange(longest)
    number = 0
    for first, row in zip(range(0, size, width), rows, strict=True):
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
