"""What can be said about single texts: hashes in place of them, remains of other formats, lengths in tokens."""

import hashlib
import re
import unicodedata
from array import array
from collections import Counter
from itertools import islice

import numpy as np

from minisbert.core.tokenizer import is_ideograph
from minisbert.data.findings import NOTE, Findings
from minisbert.models.tokenizer import Tokenizer

HTML = re.compile(r"</?(p|br|div|span|a|b|i|u|em|strong|li|ul|ol|td|tr|table|h[1-6])(\s[^<>]*)?/?>|&(\w{2,6}|#\d+);")
MOJIBAKE = re.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac|\ufffd")  # é, ’ and what could not be decoded
LETTER, NO_LETTER = re.compile(r"[^\W_]"), re.compile(r"[\W_]+")  # or a digit
BATCH = 2**18  # characters that are tokenized at once
FEW_TEXTS = 0.01  # share of the texts; below it, long texts and unknown words are a note


def text_hash(*texts: str) -> int:
    """64 bits that stand for texts. Among 100 million rows, two that differ share one with a chance of 0.03 %."""
    content = "\x1f".join(texts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def normalised(text: str) -> str:
    """A text without case, white space and punctuation: ``normalised("It's  5!") = "its5"``."""
    return NO_LETTER.sub("", unicodedata.normalize("NFKC", text).casefold())


def near_empty(text: str) -> bool:
    """Whether a text has fewer than two letters or digits; an ideograph is a word of its own."""
    found = [match[0] for match in islice(LETTER.finditer(text), 2)]
    return len(found) < 2 and not any(map(is_ideograph, found))


def judge_text(line: int, text: str, findings: Findings) -> None:
    """Count the faults that a text shows by itself."""
    if near_empty(text):
        findings.add("short-text", line, text)
    for name, pattern in (("html", HTML), ("mojibake", MOJIBAKE)):
        if found := pattern.search(text):
            findings.add(name, line, text[max(0, found.start() - 20) :])


def is_quoted(text: str) -> bool:
    """Whether quotation marks enclose a text as those of a table enclose a cell."""
    inner = text[1:-1]
    return len(text) > 2 and text[0] == text[-1] == '"' and ('""' in inner or '"' not in inner)


def script(word: str) -> str:
    """The script of a word's first letter by its Unicode name: ``Cyrillic``, ``CJK``; ``symbols`` without letters."""
    letter = next((c for c in word if c.isalpha()), "")
    name = unicodedata.name(letter, "unknown").split()[0] if letter else "symbols"
    return name if name in ("CJK", "symbols") else name.capitalize()


class TokenLengths:
    """The lengths of texts in tokens, special tokens included, and the words that the vocabulary lacks."""

    def __init__(self, tokenizer: Tokenizer):
        self.backend, self.limit = tokenizer.backend, tokenizer.limit
        self.special = len(tokenizer.single_template) - 1
        names = (getattr(self.backend.model, "unk_token", None), "[UNK]", "<unk>")  # SentencePiece's model has no name
        found = (self.backend.token_to_id(name) for name in names if name is not None)
        self.unknown = next((i for i in found if i is not None), None)  # None: bytes, or no words that are unknown
        self.tokens, self.characters = array("I"), array("I")  # of each text
        self.scripts: Counter[str] = Counter()  # unknown words by script
        self.words: dict[str, tuple[int, str]] = {}  # line and text of the first of each script
        self.letters = 0  # texts with an unknown word of letters
        self.first_long = 0  # its line
        self.waiting: list[tuple[int, str]] = []
        self.size = 0  # characters that wait

    def add(self, line: int, text: str) -> None:
        self.waiting.append((line, text))
        self.characters.append(len(text))
        self.size += len(text) + 1
        if self.size > BATCH:
            self.flush()

    def flush(self) -> None:
        """Tokenize the texts that wait."""
        texts = [text for _, text in self.waiting]
        encoded = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        for (line, text), encoding in zip(self.waiting, encoded, strict=True):
            self.tokens.append(len(encoding.ids) + self.special)
            if self.tokens[-1] > self.limit:
                self.first_long = self.first_long or line
            if self.unknown is not None and self.unknown in encoding.ids:
                self.count_unknown(line, text)
        self.waiting, self.size = [], 0

    def count_unknown(self, line: int, text: str) -> None:
        encoding = self.backend.encode(text, add_special_tokens=False)  # the fast one has no offsets
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        words = [text[start:end] for i, (start, end) in spans if i == self.unknown]
        found = Counter(map(script, words))
        self.scripts += found
        self.letters += found.keys() != {"symbols"}
        for word in words:
            self.words.setdefault(script(word), (line, word))

    def judge(self, findings: Findings) -> None:
        """Add what the counts say; call it after the last text."""
        self.flush()
        few = FEW_TEXTS * max(len(self.tokens), 1)
        if cut := self.cut:
            findings.add("too-long", self.first_long, level=NOTE if cut < few else "", count=cut)
        for name, count in self.scripts.most_common():
            if name != "symbols":
                line, word = self.words[name]
                level = NOTE if self.letters < few else ""
                findings.add("unknown-script", f"line {line} ({name})", word, level=level, count=count)

    @property
    def cut(self) -> int:
        """How many texts are longer than the limit."""
        return int((np.array(self.tokens) > self.limit).sum())

    def summary(self) -> dict[str, float]:
        median, most = np.percentile(np.array(self.tokens), (50, 95), method="higher")
        named = {"median": float(median), "p95": float(most), "longest": max(self.tokens)}
        return {**named, "limit": self.limit, "cut": self.cut, "cut_share": self.cut / len(self.tokens)}
