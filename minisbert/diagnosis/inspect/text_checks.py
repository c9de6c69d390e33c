"""What is kept of texts: hashes in place of them, and their lengths in tokens."""

import hashlib
import re
import unicodedata
from array import array

import numpy as np

from minisbert.diagnosis.inspect.findings import NOTE, Findings
from minisbert.models.tokenizer import Tokenizer

NO_LETTER = re.compile(r"[\W_]+")  # nor a digit
BATCH = 2**18  # characters that are tokenized at once
FEW_TEXTS = 0.01  # share of the texts; below it, long texts are a note


def text_hash(*texts: str) -> int:
    """64 bits that stand for texts. Among 100 million rows, two that differ share one with a chance of 0.03 %."""
    content = "\x1f".join(texts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def normalised(text: str) -> str:
    """A text without case, white space and punctuation: ``normalised("It's  5!") = "its5"``."""
    return NO_LETTER.sub("", unicodedata.normalize("NFKC", text).casefold())


class TokenLengths:
    """The lengths of texts in tokens, special tokens included."""

    def __init__(self, tokenizer: Tokenizer):
        self.backend, self.limit = tokenizer.backend, tokenizer.limit
        self.special = len(tokenizer.single_template) - 1
        self.tokens, self.characters = array("I"), array("I")  # of each text
        self.first_long = 0  # the line of the first text that is cut
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
        for (line, _), encoding in zip(self.waiting, encoded, strict=True):
            self.tokens.append(len(encoding.ids) + self.special)
            if self.tokens[-1] > self.limit:
                self.first_long = self.first_long or line
        self.waiting, self.size = [], 0

    def judge(self, findings: Findings) -> None:
        """Add what the counts say; call it after the last text."""
        self.flush()
        if self.cut:
            level = NOTE if self.cut < FEW_TEXTS * len(self.tokens) else ""
            findings.add("too-long", self.first_long, level=level, count=self.cut)

    @property
    def cut(self) -> int:
        """How many texts are longer than the limit."""
        return int((np.array(self.tokens) > self.limit).sum())

    def summary(self) -> dict[str, float]:
        median, most = np.percentile(np.array(self.tokens), (50, 95), method="higher")
        return {
            "median": float(median),
            "p95": float(most),
            "longest": max(self.tokens),
            "limit": self.limit,
            "cut": self.cut,
            "cut_share": self.cut / len(self.tokens),
        }
