"""Text to ids: WordPiece written out, then by Hugging Face's package ``tokenizers``.

The first half is BERT's algorithm for uncased models, to be read. The second half is what the
encoder uses. There ``tokenizers``, which is written in Rust and a hundred times as fast, turns the
words into ids; the special tokens, the limit and the pads are ours.

What the library runs: the second half, except ``Tokenizer``. For the rest it has other code:

- ``cleaned``, ``is_ideograph``, ``is_punctuation``, ``split_words``, ``word_pieces``,
  ``token_ids``: ``tokenizers`` does their work. Equal by ``test_words_of_any_text`` and
  ``test_ids_of_a_text``.
- ``Tokenizer``: ``ModelTokenizer`` in ``checkpoints/model_tokenizer.py``, for models that differ
  from BERT. Equal by ``test_the_books_tokenizer_gives_the_same``.
"""

import unicodedata
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from torch import Tensor

from .checks import InputError, check_texts, reading

# The blocks of Unicode in which each character is a word: first and last code point. They are
# those of Google's tokenization.py with one exception: where that begins a block at 2B820,
# ``tokenizers`` has 2B920, and so have we.
IDEOGRAPHS = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]
LONGEST_WORD = 100  # characters, as in ``tokenizers``; a longer word is [UNK] as a whole


# -------------------------------------------------------------------------------------- WordPiece


def cleaned(character: str) -> str:
    """A space for any space, nothing for a control character, otherwise the character itself.

    The replacement character U+FFFD vanishes, too.
    """
    category = unicodedata.category(character)
    # Z are Unicode's separators: spaces, and the ends of lines and paragraphs.
    if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
        return " "
    # Cc are control characters, Cf formatting ones, Co are for private use.
    if character == "\ufffd" or category in ("Cc", "Cf", "Co"):
        return ""
    return character


def is_ideograph(character: str) -> bool:
    """Whether a character is a word by itself, as in Chinese: ``中``, not ``か`` or ``한``."""
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS)


def is_punctuation(character: str) -> bool:
    """Unicode's punctuation, and every ASCII mark that is not a letter, digit or space: ``$``."""
    if character.isascii():
        return not character.isalnum() and not character.isspace()
    return unicodedata.category(character).startswith("P")


def split_words(text: str) -> list[str]:
    """Text to words and punctuation marks, in lower case and without accents.

    This is BERT's basic tokenizer, uncased. Spaces of every kind separate, control characters
    vanish, each punctuation mark and each ideograph stands alone.
    ``split_words("Café, it's 5!") = ["cafe", ",", "it", "'", "s", "5", "!"]``.
    """
    spaced = ""
    for character in text:
        character = cleaned(character)
        if character == "":
            continue
        if is_ideograph(character):
            spaced += f" {character} "
        else:
            spaced += character

    separated = ""
    # subtle: NFD takes "é" apart into "e" and its accent, a mark of category Mn, which is left out
    for character in unicodedata.normalize("NFD", spaced):
        if unicodedata.category(character) == "Mn":
            continue
        # Each character becomes lower case by itself. In a whole word, Python would turn a Σ at
        # the end into ς; here every Σ becomes σ.
        lower = character.lower()
        if is_punctuation(lower):
            separated += f" {lower} "
        else:
            separated += lower
    return separated.split()


def word_pieces(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    """One word to pieces of the vocabulary: greedily the longest first, from left to right.

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
        # The longest piece that begins here is found from the longest candidate on: first the whole
        # rest of the word, then one character less, and so on.
        end = len(word)
        while end > start and prefix + word[start:end] not in vocabulary:
            end -= 1
        if end == start:
            return [unknown]  # subtle: not the pieces found so far followed by [UNK]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def token_ids(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """[CLS] text [SEP] as ids, of any length.

    A text that itself contains "[SEP]" has three words there, ``[``, ``sep`` and ``]``. The second
    half makes the special token of it, and of "[MASK]" and its like.
    """
    pieces = ["[CLS]"]
    for word in split_words(text):
        pieces += word_pieces(word, vocabulary)
    pieces.append("[SEP]")
    return [vocabulary[piece] for piece in pieces]


# ------------------------------------------------------------------------------------- tokenizers


def backend_ids(backend: Backend, texts: Sequence[str]) -> list[list[int]]:
    """Each whole text as ids, without special tokens."""
    # subtle: the backend's own truncation also returns what it cut off, in parts, and for a pair
    # every part of one text with every part of the other: two texts of 100,000 tokens would take
    # all memory. So it is off, and the callers cut.
    if len(texts) == 1 and len(texts[0]) <= 1000:
        # A call for one text does not wait for the backend's threads to wake up. It keeps Python's
        # lock, so a long text would stop all other threads: .2 s for 100,000 characters.
        return [backend.encode(texts[0], add_special_tokens=False).ids]
    # The fast one leaves out each token's place in the text, which nobody reads here.
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


class Slot(NamedTuple):
    """One place of a template: a special token, or a whole sentence."""

    sentence: int | None  # 0 for the first sentence, 1 for the second, None for a special token
    token: int  # the id of the special token; not read for a sentence
    token_type: int  # of the special token, or of all tokens of the sentence


def template(backend: Backend, pair: bool) -> list[Slot]:
    """Where a tokenizer puts its special tokens around one text, or around a pair."""
    # The post-processor is the part of a tokenizer that adds the special tokens. To see what it
    # adds, it is put into a new tokenizer that knows one word.
    # subtle: the backend itself may make no token of "a", or several
    probe = Backend(WordLevel({"a": 0}, unk_token="a"))
    probe.post_processor = backend.post_processor
    second = "a" if pair else None
    framed = probe.encode("a", second)

    # ``sequence_ids`` are 0 and 1 for the two sentences, and None for what was added.
    slots = []
    for sentence, token, token_type in zip(
        framed.sequence_ids, framed.ids, framed.type_ids, strict=True
    ):
        slots.append(Slot(sentence, token, token_type))
    return slots


def special_tokens(slots: Sequence[Slot]) -> int:
    """How many special tokens a template has: 2 for [CLS] text [SEP], 3 for a pair."""
    return sum(slot.sentence is None for slot in slots)


def assemble(
    slots: Sequence[Slot], sentences: Sequence[Sequence[int]]
) -> tuple[list[int], list[int]]:
    """The ids and token types of one input: sentences in their places of a template.

    With BERT's pair template the sentences ``[5, 6]`` and ``[7]`` give the ids
    ``[101, 5, 6, 102, 7, 102]`` and the token types ``[0, 0, 0, 0, 1, 1]``.
    """
    ids: list[int] = []
    types: list[int] = []
    for slot in slots:
        if slot.sentence is None:
            ids.append(slot.token)
            types.append(slot.token_type)
        else:
            sentence = sentences[slot.sentence]
            ids += sentence
            types += [slot.token_type] * len(sentence)
    return ids, types


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each sentence to keep if there is room for so many in all.

    The longer one is cut until both are equal, then both are cut. ``longest_first(10, 3, 8) =
    (5, 3)``, ``longest_first(10, 9, 8) = (4, 4)``. For an odd ``room`` the longer one keeps one
    more; if they are equally long, the second does (as in ``tokenizers``).
    """
    if first + second <= room:
        return first, second

    # The shorter one keeps half of the room or, if it needs less, all of its tokens.
    shorter = min(first, second, room // 2)
    if first > second:
        return room - shorter, shorter
    return shorter, room - shorter


def check_limit(limit: int, slots: Sequence[Slot]) -> None:
    """Raise ``InputError`` for a limit that leaves no room for a token of each sentence."""
    # A template has a slot for each special token and for each sentence. Filled with one token a
    # sentence it is the shortest text, or the shortest pair.
    if limit < len(slots):
        is_pair = any(slot.sentence == 1 for slot in slots)
        name = "pair" if is_pair else "text"
        raise InputError(f"a token limit of {limit} is too small: a {name} needs {len(slots)}")


def check_pairs(firsts: Sequence[str], seconds: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return both as lists; ``InputError`` as ``check_texts``, or if they differ in length."""
    firsts = check_texts(firsts)
    seconds = check_texts(seconds)
    if len(firsts) != len(seconds):
        raise InputError(
            f"{len(firsts)} first and {len(seconds)} second sentences do not make pairs"
        )
    return firsts, seconds


@dataclass
class Encoded:
    """Texts or pairs of texts as ids: each list has one entry for each text or pair.

    Nothing is padded, so the ids of two texts may differ in length.
    """

    ids: list[Sequence[int]]  # the tokens, [CLS] and [SEP] included
    token_types: list[list[int]]  # for each token 0 for the first sentence, 1 for the second
    truncated: list[bool]  # whether it was longer than the limit and was cut

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """Texts or pairs of texts to ids, with special tokens and cut to a limit.

        tokenizer = Tokenizer.load("weights/all-MiniLM-L6-v2", limit=256)
        tokenizer.encode(["A cat sits."]).ids  # [[101, 1037, 4937, 7719, 1012, 102]]

    ``limit`` is the largest number of tokens of a text, special tokens included.
    """

    def __init__(self, backend: Backend, limit: int, pad_id: int = 0):
        # Published files hold a padding and a truncation of their own. That of all-MiniLM-L6-v2
        # pads every text to 128 tokens and cuts at 128, while the model's own limit is 256.
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.pad_id = pad_id
        self.single_template = template(backend, pair=False)  # [CLS] text [SEP]
        self.pair_template = template(backend, pair=True)  # [CLS] first [SEP] second [SEP]
        check_limit(limit, self.single_template)
        self.limit = limit

    @classmethod
    def load(cls, folder: str | Path, limit: int, pad_id: int = 0) -> "Tokenizer":
        """The ``tokenizer.json`` of a folder. Raises ``InputError`` if it is missing or damaged."""
        path = Path(folder) / "tokenizer.json"
        with reading(path):
            content = path.read_bytes()
        try:
            backend = Backend.from_buffer(content)
        except Exception as error:  # ``tokenizers`` raises nothing more specific
            raise InputError(f"{path}: {error}") from error
        return cls(backend, limit, pad_id)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """[CLS] text [SEP] for each text, cut to ``limit`` tokens.

        Raises ``InputError`` for anything but a list of strings, and for a string that is not valid
        Unicode (a lone surrogate), with its index.
        """
        texts = check_texts(texts)
        keep = self.limit - special_tokens(self.single_template)
        encoded = Encoded(ids=[], token_types=[], truncated=[])
        for sentence in backend_ids(self.backend, texts):
            ids, types = assemble(self.single_template, [sentence[:keep]])
            encoded.ids.append(ids)
            encoded.token_types.append(types)
            encoded.truncated.append(len(sentence) > keep)
        return encoded

    def encode_pairs(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """[CLS] first [SEP] second [SEP] for each pair, with token types 0 and 1.

        If a pair does not fit, the longer text is cut first. Raises ``InputError`` as ``encode``
        does, if the two lists differ in length, and for a limit below the five tokens of the
        shortest pair.
        """
        firsts, seconds = check_pairs(firsts, seconds)
        check_limit(self.limit, self.pair_template)
        first_ids = backend_ids(self.backend, firsts)
        second_ids = backend_ids(self.backend, seconds)
        keep = self.limit - special_tokens(self.pair_template)
        encoded = Encoded(ids=[], token_types=[], truncated=[])
        for first, second in zip(first_ids, second_ids, strict=True):
            keep_first, keep_second = longest_first(len(first), len(second), keep)
            sentences = [first[:keep_first], second[:keep_second]]
            ids, types = assemble(self.pair_template, sentences)
            encoded.ids.append(ids)
            encoded.token_types.append(types)
            encoded.truncated.append(len(first) + len(second) > keep)
        return encoded

    def tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The word pieces that ids stand for; None for an id that does not exist."""
        return [self.backend.id_to_token(i) for i in ids]


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Rows of ids, padded to the longest: ids (B, T) int64, mask (B, T) True for real tokens.

    The mask is None if no row needed a pad: attention then has nothing to hide.
    """
    longest = max(len(row) for row in rows)
    padded = []
    for row in rows:
        padded.append(list(row) + [pad_id] * (longest - len(row)))
    ids = torch.tensor(padded)  # (B, T)

    lengths = torch.tensor([len(row) for row in rows])  # (B,)
    if (lengths == longest).all():
        return ids, None
    mask = torch.arange(longest) < lengths[:, None]  # (T,) < (B, 1) -> (B, T)
    return ids, mask
