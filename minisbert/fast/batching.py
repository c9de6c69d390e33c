"""Many texts to batches of token ids: in bounded memory, texts of similar length together.

    texts ── chunks ──> lists of texts ── tokenize ──> ids as bytes ── packed_batches ──> groups of one length

``budgeted_batches`` makes batches of similar length for code that pads.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from minisbert.core.tokenizer import Tokenizer

CHUNK = 2**18  # characters to tokenize at once
ID_BYTES = array("i").itemsize  # bytes per token id


def chunks(texts: Iterable[str], characters: int = CHUNK) -> Iterator[list[str]]:
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


def packed_batches(keys: Iterable[bytes], batch_tokens: int) -> Iterator[list[list[bytes]]]:
    """Texts from ``tokenize`` in batches of at most ``batch_tokens`` tokens, longest first, none padded.

    A batch is a list of groups of texts of one length. A text larger than the budget is a batch of its own.
    """
    batch: list[list[bytes]] = []
    tokens = 0
    for key in sorted(keys, key=len, reverse=True):
        tokens += len(key) // ID_BYTES
        if batch and tokens > batch_tokens:
            yield batch
            batch, tokens = [], len(key) // ID_BYTES
        if not batch or len(key) < len(batch[-1][0]):
            batch.append([])
        batch[-1].append(key)
    if batch:
        yield batch


def to_ids(group: Sequence[bytes], device: torch.device) -> Tensor:
    """Texts of one length from ``tokenize`` -> ids (B, T)."""
    return torch.frombuffer(bytearray(b"".join(group)), dtype=torch.int32).view(len(group), -1).long().to(device)
