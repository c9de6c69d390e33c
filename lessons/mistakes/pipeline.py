"""Mistakes around the model: text to ids, parameter names, batches."""

import unicodedata
from collections.abc import Container, Sequence

import torch

from lessons.mistakes.calls import calls
from lessons.mistakes.planting import mistake
from minisbert.core import data, tokenizer, weights

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_names = weights.tensor_names
_pad_batch = tokenizer.pad_batch
_grouped = data.length_grouped_batches

# -------------------------------------------------------------------------------------- text to ids


def words_with(
    text: str, *, accents: bool = False, capitals: bool = False, marks_alone: bool = True
) -> list[str]:
    """Text to words with each choice as an argument; the defaults are the right ones."""
    text = "".join(tokenizer.cleaned(c) for c in text)
    text = "".join(f" {c} " if tokenizer.is_ideograph(c) else c for c in text)
    if not accents:
        text = "".join(
            c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn"
        )
    text = text if capitals else "".join(c.lower() for c in text)
    return "".join(
        f" {c} " if marks_alone and tokenizer.is_punctuation(c) else c for c in text
    ).split()


words = calls(tokenizer, "split_words", words_with)
words("accents kept", "letters keep their accents, so the words are unknown", accents=True)
words("capitals kept", "the words are not lowercased", capitals=True)
words(
    "split at spaces only", "a punctuation mark stays part of the word before it", marks_alone=False
)


def pieces_with(
    word: str,
    vocabulary: Container[str],
    unknown: str = "[UNK]",
    *,
    inside: str = "##",
    longest: bool = True,
    whole: bool = True,
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


pieces = calls(tokenizer, "word_pieces", pieces_with)
pieces("no ## inside a word", "pieces inside a word are looked up without their ##", inside="")
pieces(
    "shortest piece first", "the shortest piece that fits is taken, not the longest", longest=False
)
pieces("pieces before [UNK]", "the pieces found before the unknown rest are kept", whole=False)


@mistake(
    tokenizer,
    "word_pieces",
    "WordPiece that backtracks",
    "a shorter piece is tried if the rest of the word has none",
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


# -------------------------------------------------------------------------------------------- names


@mistake(
    weights,
    "tensor_names",
    "biases not in the table",
    "only weights have a name, biases have none",
)
def _(layers: int, pooler: bool) -> dict[str, str]:
    names = _names(layers, pooler)
    return {ours: file for ours, file in names.items() if not ours.endswith(".bias")}


@mistake(
    weights,
    "tensor_names",
    "layers counted from 1",
    "the first layer is called 1; in the files it is 0",
)
def _(layers: int, pooler: bool) -> dict[str, str]:
    names = _names(layers + 1, pooler)
    return {ours: file for ours, file in names.items() if not ours.startswith("layers.0.")}


# ------------------------------------------------------------------------------------------ batches


def pad_with(
    rows: Sequence[Sequence[int]],
    pad_id: int,
    *,
    by_id: bool = False,
    front: bool = False,
    pads: bool = False,
):
    """The mask may be made ``by_id`` or mark the ``pads``; pads may come in ``front``."""
    ids, mask = _pad_batch([row[::-1] for row in rows] if front else rows, pad_id)
    if front:
        ids, mask = ids.flip(1), None if mask is None else mask.flip(1)
    if mask is not None and by_id:
        mask = ids != pad_id
    return ids, ~mask if mask is not None and pads else mask


padded = calls(tokenizer, "pad_batch", pad_with)
padded("mask by the pad's id", "a real token with the pad's id is masked too", by_id=True)
padded("pads in front", "pads come before the tokens, which shifts every position", front=True)
padded("mask the wrong way round", "True marks the pads, not the tokens", pads=True)

grouped = calls(data, "length_grouped_batches")
MIXED = "batches mix all lengths and are mostly pads"
grouped("not grouped by length", MIXED, lengths=lambda lengths: [0] * len(lengths))


@mistake(
    data,
    "length_grouped_batches",
    "short batches first",
    "the batches are not shuffled: training sees lengths grow",
)
def _(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    batches = _grouped(lengths, batch_size, generator, window)
    return sorted(batches, key=lambda batch: (lengths[batch[0]], lengths[batch[-1]]))


@mistake(
    data,
    "length_grouped_batches",
    "shuffled inside windows only",
    "the batches of one window stay next to each other",
)
def _(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    order = torch.randperm(len(lengths), generator=generator).tolist()
    found = []
    for start in range(0, len(order), batch_size * window):
        rows = order[start : start + batch_size * window]
        inside = _grouped([lengths[row] for row in rows], batch_size, generator, window)
        found += [[rows[i] for i in batch] for batch in inside]
    return found


@mistake(
    data,
    "length_grouped_batches",
    "last batch dropped",
    "the rows of the last, smaller batch are never seen",
)
def _(
    lengths: Sequence[int], batch_size: int, generator: torch.Generator, window: int = 50
) -> list[list[int]]:
    return [
        batch
        for batch in _grouped(lengths, batch_size, generator, window)
        if len(batch) == batch_size
    ]
