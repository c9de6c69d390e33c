"""Mistakes around the model: text to ids, parameter names, batches, search."""

import unicodedata
from collections.abc import Container, Sequence

import numpy as np
import torch
from torch import Tensor

from minisbert.core import data, tokenizer, weights
from minisbert.diagnosis.mistakes import mistake
from minisbert.search import dense

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_names, _pad_batch, _grouped = weights.Family.names, tokenizer.pad_batch, data.length_grouped_batches

# --------------------------------------------------------------------------------------- text to ids


def _words(text: str, accents: bool = False, capitals: bool = False, marks_alone: bool = True) -> list[str]:
    """Text to words with each choice as an argument; the defaults are the right ones."""
    text = "".join(f" {c} " if tokenizer.is_ideograph(c) else c for c in map(tokenizer.cleaned, text))
    if not accents:
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    text = text if capitals else "".join(c.lower() for c in text)
    return "".join(f" {c} " if marks_alone and tokenizer.is_punctuation(c) else c for c in text).split()


@mistake(tokenizer, "split_words", "accents kept", "letters keep their accents, so the words are unknown")
def _(text: str) -> list[str]:
    return _words(text, accents=True)


@mistake(tokenizer, "split_words", "capitals kept", "the words are not lowercased")
def _(text: str) -> list[str]:
    return _words(text, capitals=True)


@mistake(tokenizer, "split_words", "split at spaces only", "a punctuation mark stays part of the word before it")
def _(text: str) -> list[str]:
    return _words(text, marks_alone=False)


@mistake(tokenizer, "word_pieces", "no ## inside a word", "pieces inside a word are looked up without their ##")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, inside="")


@mistake(tokenizer, "word_pieces", "shortest piece first", "the shortest piece that fits is taken, not the longest")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, longest=False)


@mistake(
    tokenizer, "word_pieces", "WordPiece that backtracks", "a shorter piece is tried if the rest of the word has none"
)
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    def rest(start: int) -> list[str] | None:
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary and (after := rest(end)) is not None:
                return [piece, *after]
        return [] if start == len(word) else None

    found = rest(0) if len(word) <= tokenizer.LONGEST_WORD else None
    return [unknown] if found is None else found


@mistake(tokenizer, "word_pieces", "pieces before [UNK]", "the pieces found before the unknown rest are kept")
def _(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    return _pieces(word, vocabulary, unknown, whole=False)


def _pieces(
    word: str, vocabulary: Container[str], unknown: str, inside: str = "##", longest: bool = True, whole: bool = True
) -> list[str]:
    """WordPiece with each choice as an argument; the defaults are the right ones."""
    pieces, start = [], 0
    while start < len(word):
        prefix = inside if start else ""
        ends = range(len(word), start, -1) if longest else range(start + 1, len(word) + 1)
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return [unknown] if whole else [*pieces, unknown]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces if len(word) <= tokenizer.LONGEST_WORD else [unknown]


# --------------------------------------------------------------------------------------------- names


@mistake(weights.Family, "names", "biases not in the table", "only weights have a name, biases have none")
def _(self: weights.Family, layers: int, pooler: bool) -> dict[str, str]:
    return {ours: file for ours, file in _names(self, layers, pooler).items() if not ours.endswith(".bias")}


@mistake(weights.Family, "names", "layers counted from 1", "the first layer is called 1; in the files it is 0")
def _(self: weights.Family, layers: int, pooler: bool) -> dict[str, str]:
    names = _names(self, layers + 1, pooler)
    fixed, first = _names(self, 0, pooler), set(_names(self, 1, pooler))
    return {ours: file for ours, file in names.items() if ours in fixed or ours not in first}


# ------------------------------------------------------------------------------------------- batches


@mistake(tokenizer, "pad_batch", "mask by the pad's id", "a real token with the pad's id is masked too")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch(rows, pad_id)
    return ids, None if mask is None else ids != pad_id


@mistake(tokenizer, "pad_batch", "pads in front", "pads come before the tokens, which shifts every position")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch([row[::-1] for row in rows], pad_id)
    return ids.flip(1), None if mask is None else mask.flip(1)


@mistake(tokenizer, "pad_batch", "mask the wrong way round", "True marks the pads, not the tokens")
def _(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    ids, mask = _pad_batch(rows, pad_id)
    return ids, None if mask is None else ~mask


@mistake(data, "length_grouped_batches", "not grouped by length", "batches mix all lengths and are mostly pads")
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    return _grouped([0] * len(lengths), batch_size, generator, window)


@mistake(
    data, "length_grouped_batches", "short batches first", "the batches are not shuffled: training sees lengths grow"
)
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    batches = _grouped(lengths, batch_size, generator, window)
    return sorted(batches, key=lambda batch: (lengths[batch[0]], lengths[batch[-1]]))


@mistake(
    data,
    "length_grouped_batches",
    "shuffled inside windows only",
    "the batches of one window stay next to each other",
)
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    order = torch.randperm(len(lengths), generator=generator).tolist()
    found = []
    for start in range(0, len(order), batch_size * window):
        rows = order[start : start + batch_size * window]
        inside = _grouped([lengths[row] for row in rows], batch_size, generator, window)
        found += [[rows[i] for i in batch] for batch in inside]
    return found


@mistake(data, "length_grouped_batches", "last batch dropped", "the rows of the last, smaller batch are never seen")
def _(lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50) -> list[list[int]]:
    return [batch for batch in _grouped(lengths, batch_size, generator, window) if len(batch) == batch_size]


# -------------------------------------------------------------------------------------------- search


def _ranked(scores: Tensor, k: int, last_first: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k highest scores of each row, (Q, k), and their columns; of equal scores the first, or the last."""
    scores = scores.float().flip(1) if last_first else scores.float()
    values, columns = scores.sort(dim=1, descending=True, stable=True)
    columns = scores.shape[1] - 1 - columns if last_first else columns
    return values[:, :k].numpy(), columns[:, :k].numpy()


def _unit(x: np.ndarray | Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.as_tensor(x).to(dtype)
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


@mistake(dense, "top_k", "search by dot product", "long vectors of the corpus win, whatever they mean")
def _(queries, corpus, k, progress=False):
    return _ranked(_unit(queries) @ torch.as_tensor(corpus).double().T, k)


@mistake(dense, "top_k", "nothing is scaled", "these are dot products: neither side is scaled to length 1")
def _(queries, corpus, k, progress=False):
    return _ranked(torch.as_tensor(queries).double() @ torch.as_tensor(corpus).double().T, k)


@mistake(dense, "top_k", "ties in any order", "torch.topk promises no order of equal scores: sort with stable=True")
def _(queries, corpus, k, progress=False):
    scores, columns = (_unit(queries) @ _unit(corpus).T).float().topk(k)
    return scores.numpy(), columns.numpy()


@mistake(dense, "top_k", "search in float32", "rounding, not the cosine, decides the order of close vectors")
def _(queries, corpus, k, progress=False):
    return _ranked(_unit(queries, torch.float32) @ _unit(corpus, torch.float32).T, k)


@mistake(dense, "top_k", "of ties the last first", "equal scores come in the reverse order of the corpus")
def _(queries, corpus, k, progress=False):
    return _ranked(_unit(queries) @ _unit(corpus).T, k, last_first=True)


@mistake(dense, "top_k", "worst first", "the k lowest scores are returned")
def _(queries, corpus, k, progress=False):
    scores, indices = _ranked(-(_unit(queries) @ _unit(corpus).T), k)
    return -scores, indices
