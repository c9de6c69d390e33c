"""Text to ids: WordPiece written out, then the ``tokenizers`` library that does the same a hundred
times as fast.

The first half is BERT's algorithm for uncased models, to be read. The second half is what the
encoder uses: a class over the library's tokenizer that clears the padding and truncation stored in
published files. (The one of all-MiniLM-L6-v2 pads every text to 128 tokens and cuts at 128; the
model's own limit is 256.)
"""

import unicodedata
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from torch import Tensor

from .checks import InputError, check_texts, one_line, reading

# hexadecimal blocks of characters that are words (Google's tokenization.py; the library has 2B920
# for its 2B820)
BLOCKS = "4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2B73F 2B740-2B81F 2B920-2CEAF F900-FAFF 2F800-2FA1F"
IDEOGRAPHS = [tuple(int(end, 16) for end in block.split("-")) for block in BLOCKS.split()]
LONGEST_WORD = 100  # characters, as in the library; a longer word is [UNK] as a whole


def split_words(text: str) -> list[str]:
    """Text to words and punctuation marks, in lower case and without accents (BERT's basic
    tokenizer, uncased).

    Spaces of every kind separate, control characters vanish, each punctuation mark and each
    ideograph stands alone. ``split_words("Café, it's 5!") = ["cafe", ",", "it", "'", "s", "5",
    "!"]``.
    """
    spaced = "".join(f" {c} " if is_ideograph(c) else c for c in map(cleaned, text))
    # subtle: NFD takes "é" apart into "e" and its accent, a mark of category Mn, which is then left
    # out
    bare = "".join(
        c for c in unicodedata.normalize("NFD", spaced) if unicodedata.category(c) != "Mn"
    )
    lower = "".join(c.lower() for c in bare)  # one by one: a final sigma is a sigma like any other
    return "".join(f" {c} " if is_punctuation(c) else c for c in lower).split()


def word_pieces(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    """One word to pieces of the vocabulary, greedily the longest first, from left to right
    (WordPiece).

    A piece inside the word is written with ``##`` before it. If any remainder cannot be matched,
    the whole word is unknown, and so is a word of more than 100 characters.
    ``word_pieces("playing", {"play", "p", "##ing", "##i"}) = ["play", "##ing"]``.
    """
    if len(word) > LONGEST_WORD:
        return [unknown]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)  # the longest piece first
        end = next((end for end in ends if prefix + word[start:end] in vocabulary), None)
        if end is None:
            return [unknown]  # subtle: not the pieces found so far followed by [UNK]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def token_ids(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """[CLS] text [SEP] as ids, of any length. The text "[SEP]" is punctuation and a word here, not
    the token.
    """
    pieces = [piece for word in split_words(text) for piece in word_pieces(word, vocabulary)]
    return [vocabulary[piece] for piece in ("[CLS]", *pieces, "[SEP]")]


def cleaned(character: str) -> str:
    """A space for any space, nothing for a control or replacement character, otherwise the
    character itself.
    """
    if character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
        return " "
    gone = character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co")
    return "" if gone else character


def is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS if character)


def is_punctuation(character: str) -> bool:
    """Unicode's punctuation, and every ASCII character that is neither letter, digit nor space:
    ``$``, ``^``.
    """
    ascii_mark = character.isascii() and not character.isalnum() and not character.isspace()
    return ascii_mark or unicodedata.category(character).startswith("P")


@dataclass
class Encoded:
    """``ids[i]`` are the tokens of text i, [CLS] and [SEP] included, without padding; lengths
    differ.
    """

    ids: list[Sequence[int]]
    token_types: list[list[int]]  # 0 for the first sentence, 1 for the second of a pair
    truncated: list[bool]  # which texts were longer than the limit and were cut

    def __len__(self) -> int:
        return len(self.ids)


Template = list[
    tuple[int | None, int, int]
]  # (which sentence or None for a special token, id, token type)


class Tokenizer:
    """``Tokenizer.load(folder, limit)``, then ``encode(texts)`` or ``encode_pairs(firsts,
    seconds)``.
    """

    def __init__(self, backend: Backend, limit: int, pad_id: int = 0):
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.pad_id = backend, pad_id
        self.single_template = template(backend, "a")  # [CLS] 0 [SEP]
        self.pair_template = template(backend, "a", "a")  # [CLS] 0 [SEP] 1 [SEP]
        if limit < len(self.pair_template):
            raise InputError(
                f"a token limit of {limit} is too small: a pair needs {len(self.pair_template)}"
            )
        self.limit = limit  # the largest number of tokens of a text, special tokens included
        self.cut_start = False  # True: a long text loses its start, not its end
        self.forbidden: int | None = (
            None  # an id that no text may contain: RoBERTa's pad has no position
        )
        self.source: Any = None  # the files that it was read from, for whoever saves it

    @classmethod
    def load(cls, folder: str | Path, limit: int, pad_id: int = 0) -> "Tokenizer":
        """The ``tokenizer.json`` of a folder. Raises ``InputError`` if it is missing or damaged."""
        path = Path(folder) / "tokenizer.json"
        with reading(path):
            return cls(Backend.from_buffer(path.read_bytes()), limit, pad_id)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """[CLS] text [SEP] for each text, cut to ``limit`` tokens. Raises ``InputError`` as
        ``check_texts`` does.
        """
        pieces = self.pieces(check_texts(texts))
        rows = [self.frame(ids) for ids in pieces]
        keep = self.limit - len(self.single_template) + 1  # what the special tokens leave
        return Encoded(rows, [[0] * len(ids) for ids in rows], [len(ids) > keep for ids in pieces])

    def frame(self, ids: Sequence[int]) -> Sequence[int]:
        """Put the special tokens around the ids of one text, cut to ``limit``."""
        keep = self.limit - len(self.single_template) + 1
        kept = ids if len(ids) <= keep else self.cut(ids, keep)
        return [
            x
            for sentence, token, _ in self.single_template
            for x in ([token] if sentence is None else kept)
        ]

    def cut(self, ids: Sequence[int], keep: int) -> Sequence[int]:
        """The first ``keep`` ids, or the last ones if texts lose their start."""
        return ids[max(0, len(ids) - keep) :] if self.cut_start else ids[:keep]

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """[CLS] first [SEP] second [SEP], token types 0 and 1; if they do not fit, the longer one
        is cut first.
        """
        firsts, seconds = check_texts(firsts), check_texts(seconds)
        if len(firsts) != len(seconds):
            raise InputError(
                f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs"
            )
        keep = self.limit - len(self.pair_template) + 2
        encoded = Encoded([], [], [])
        for first, second in zip(self.pieces(firsts), self.pieces(seconds), strict=True):
            keep_first, keep_second = longest_first(len(first), len(second), keep)
            ids, types = assemble(
                self.pair_template, [self.cut(first, keep_first), self.cut(second, keep_second)]
            )
            encoded.ids.append(ids)
            encoded.token_types.append(types)
            encoded.truncated.append(len(first) + len(second) > keep)
        return encoded

    def pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Each whole text as ids, without special tokens."""
        # subtle: the library's own truncation keeps everything it cuts, for pairs as a product of
        # both sides: two texts of 100,000 tokens would take all memory. It is off; ``cut`` cuts.
        with reading(f"the tokenizer cannot encode {texts[:1]!r:.90} or a text after it"):
            if len(texts) == 1:  # without the library's threads, which would have to wake up
                found = [self.backend.encode(texts[0], add_special_tokens=False).ids]
            else:
                found = [
                    each.ids
                    for each in self.backend.encode_batch_fast(
                        list(texts), add_special_tokens=False
                    )
                ]
        if self.forbidden is not None:
            for text, ids in zip(texts, found, strict=True):
                if self.forbidden in ids:
                    token = self.backend.id_to_token(self.forbidden)
                    raise InputError(
                        f"the text {one_line(text)} contains {token}, which has no position: "
                        f"remove it"
                    )
        return found

    def tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The word pieces that ids stand for."""
        return [self.backend.id_to_token(i) for i in ids]


def template(backend: Backend, first: str, second: str | None = None) -> Template:
    """Where a tokenizer puts its special tokens around one text or a pair."""
    probe = Backend(
        WordLevel({"a": 0}, unk_token="a")
    )  # subtle: in the tokenizer's own vocabulary "a" may be no token
    probe.post_processor = backend.post_processor
    found = probe.encode(first, second)
    return list(zip(found.sequence_ids, found.ids, found.type_ids, strict=True))


def assemble(slots: Template, sequences: list[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The ids and token types of one input: special tokens from the template, sentences in their
    places.
    """
    ids: list[int] = []
    types: list[int] = []
    for sequence, token, kind in slots:
        piece: Sequence[int] = [token] if sequence is None else sequences[sequence]
        ids += piece
        types += [kind] * len(piece)
    return ids, types


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each sentence to keep: the longer one is cut until both are equal, then
    both are cut.

    ``longest_first(10, 3, 8) = (5, 3)``, ``longest_first(10, 9, 8) = (4, 4)``. For an odd ``room``
    the longer one keeps one more; of two equal ones, the second does (as in the ``tokenizers``
    library).
    """
    if first + second <= room:
        return first, second
    short = min(first, second, room // 2)
    return (room - short, short) if first > second else (short, room - short)


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Ids of several lengths to one tensor: ids (B, T) int64, mask (B, T), True for real tokens,
    None without pads.
    """
    longest = max(len(row) for row in rows)
    ids = torch.tensor([list(row) + [pad_id] * (longest - len(row)) for row in rows])  # (B, T)
    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    if (lengths == longest).all():
        return ids, None
    return ids, torch.arange(longest) < lengths[:, None]  # (B, T)
