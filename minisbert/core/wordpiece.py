"""BERT's own way from text to ids, written out: words, then the longest pieces that the vocabulary has.

``tokenizer.py`` leaves this to the ``tokenizers`` library, which does the same a hundred times as fast; here it can be
read. Uncased models only.
"""

import unicodedata
from collections.abc import Container, Mapping

# the blocks in which every character is a word (BERT's ``tokenization.py``); kana and Hangul are not among them
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),  # as in the library; the Unicode block begins at 0x2B820
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
LONGEST_WORD = 100  # characters; beyond that a word is [UNK] as a whole


def split_words(text: str) -> list[str]:
    """Text to words and punctuation marks, in lower case and without accents (BERT's basic tokenizer, uncased).

    Spaces of every kind separate, control characters vanish, each punctuation mark and each ideograph stands alone.
    ``split_words("Café, it's 5!") = ["cafe", ",", "it", "'", "s", "5", "!"]``.
    """
    spaced = "".join(f" {c} " if is_ideograph(c) else c for c in map(cleaned, text))
    # subtle: NFD takes "é" apart into "e" and its accent, a mark of category Mn, which is then left out
    bare = "".join(c for c in unicodedata.normalize("NFD", spaced) if unicodedata.category(c) != "Mn")
    lower = "".join(c.lower() for c in bare)  # one by one: a final sigma is a sigma like any other
    return "".join(f" {c} " if is_punctuation(c) else c for c in lower).split()


def word_pieces(word: str, vocabulary: Container[str], unknown: str = "[UNK]") -> list[str]:
    """One word to pieces of the vocabulary, the longest first, from left to right (WordPiece; BERT, section 3).

    A piece inside the word is written with ``##`` before it. Where some rest has no piece, the whole word is unknown,
    and so is a word of more than 100 characters.
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
            return [unknown]  # subtle: not the pieces found so far and [UNK] behind them
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def token_ids(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """[CLS] text [SEP] as ids, of any length. A text "[SEP]" is punctuation and a word here, not the token."""
    pieces = [piece for word in split_words(text) for piece in word_pieces(word, vocabulary)]
    return [vocabulary[piece] for piece in ("[CLS]", *pieces, "[SEP]")]


def cleaned(character: str) -> str:
    """A space for any space, nothing for a control character or what stands for a broken one, else itself."""
    if character in "\t\n\r" or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
        return " "
    gone = character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Co")
    return "" if gone else character


def is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS if character)


def is_punctuation(character: str) -> bool:
    """Unicode's punctuation, and every ASCII character that is neither letter, digit nor space: ``$``, ``^``."""
    ascii_mark = character.isascii() and not character.isalnum() and not character.isspace()
    return ascii_mark or unicodedata.category(character).startswith("P")
