"""What is kept of a file that is inspected: what may be wrong with it, and hashes, labels and lengths, not texts.

A row of two texts takes less than 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

import hashlib
import re
import unicodedata
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import one_line
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, Format, Row
from minisbert.models.tokenizer import Tokenizer

PROBLEM, WARNING, NOTE = "problem", "warning", "note"  # cannot be trained on, may spoil the result, harmless
MOST_EXAMPLES = 3  # of a fault

FAULTS = {
    # ---- one file
    "unreadable": (PROBLEM, "the file cannot be read to its end", "mend it as the message says"),
    "refused": (PROBLEM, "rows that training refuses", "correct or delete them"),
    "skipped": (WARNING, "rows with an empty text or without a gold label", "fill or drop them; training skips them"),
    "unread-columns": (NOTE, "columns that training does not read", "choose others with --columns, if they matter"),
    "off-scale": (PROBLEM, "scores off the scale", "correct them, or pass --scale"),
    "other-scale": (WARNING, "the scores are not on the default scale of 0 to 5", "train with --scale, as below"),
    "constant-label": (PROBLEM, "all rows have the same label", "add rows with others, or train on the pairs with mnr"),
    "duplicates": (WARNING, "rows that repeat an earlier one", "drop them: as in-batch negatives they are wrong"),
    "too-long": (WARNING, "texts longer than the model's limit", "split them, or raise --max-length if possible"),
    "too-few": (PROBLEM, "too few rows to hold some out as dev and test", "add rows, or give files for dev and test"),
    # ---- several files
    "other-form": (PROBLEM, "a format that does not fit the first file", "write it in the format named here"),
    "scale-differs": (PROBLEM, "scores on a different scale from the first file's", "convert them to the same scale"),
    "overlap": (WARNING, "rows that are also in another file", "drop them from train, or the score is too high"),
}
NO_LETTER = re.compile(r"[\W_]+")  # nor a digit
BATCH = 2**18  # characters that are tokenized at once
FEW_TEXTS = 0.01  # share of the texts; below it, long texts are a note
MOST_COUNTS = 12  # distinct labels that are counted one by one; more become a histogram


@dataclass
class Finding:
    """The number of times that a fault occurs, and the first places."""

    name: str
    level: str
    what: str
    remedy: str
    count: int = 0
    places: list[str] = field(default_factory=list)


class Findings(dict[str, Finding]):
    """The faults of one file by name."""

    def add(self, name: str, line: int | str = "", text: object = None, *, level: str = "", count: int = 1) -> None:
        """Count a fault; ``line`` is a line number or a place in words, ``text`` is quoted, ``level`` overrides."""
        given, what, remedy = FAULTS[name]
        finding = self.setdefault(name, Finding(name, level or given, what, remedy))
        finding.count += count
        if not line or len(finding.places) == MOST_EXAMPLES:
            return
        place = f"line {line}" if isinstance(line, int) else line
        if text is not None:
            place += f": {one_line(text, 60)}"
        finding.places.append(place)

    @property
    def usable(self) -> bool:
        return all(finding.level != PROBLEM for finding in self.values())


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


class InspectedFile:
    """One file: its format, its findings, and arrays with an element for each row that training would take."""

    def __init__(self, path: Path, tokenizer: Tokenizer | None, scale: float | None = None):
        self.path, self.scale = path, scale
        self.findings = Findings()
        self.lengths = TokenLengths(tokenizer) if tokenizer else None
        self.form: Format | None = None
        self.width = 0  # texts of a row
        self.lines, self.labels = array("Q"), array("d")
        # names with their numbers, which are the labels of NLI rows; a multi-label row's label is how many it has
        self.classes: dict[str, int] = {}
        self.exact, self.pairs, self.normal = array("Q"), array("Q"), array("Q")  # hashes of rows
        self.texts = array("Q")  # hashes of the texts

    @property
    def name(self) -> str:
        if self.form is None:
            return "no format that training reads"
        if self.form is PAIRS and self.width > 2:
            return "triplets" if self.width == 3 else f"rows of {self.width - 2} negatives"
        return self.form.name

    def add(self, row: Row) -> None:
        """Take in a row that training would take."""
        self.width = self.width or len(row.texts)
        for text in row.texts:
            self.texts.append(text_hash(text))
            if self.lengths:
                self.lengths.add(row.line, text)
        self.lines.append(row.line)
        if self.form is NLI:
            self.labels.append(self.classes.setdefault(row.label, len(self.classes)))
        elif self.form is MULTILABEL:
            self.labels.append(len(row.label))
            self.classes.update(dict.fromkeys(row.label, 0))
        elif row.label is not None:
            self.labels.append(row.label)
        pair = row.texts[:2]
        self.exact.append(text_hash(*row.texts, str(row.label)))
        self.pairs.append(text_hash(*sorted(pair)))
        self.normal.append(text_hash(*sorted(map(normalised, pair))))

    def label_counts(self) -> dict[str, int]:
        """How many rows have each label, by its name; many scores are counted in ten ranges: ``{"0 to 0.5": 12}``."""
        labels = np.array(self.labels)
        values, counts = np.unique(labels, return_counts=True)
        if self.form is NLI:
            names = list(self.classes)
            found = {names[int(value)]: int(count) for value, count in zip(values, counts, strict=True)}
            return dict(sorted(found.items()))
        if self.form is LABELLED or len(values) <= MOST_COUNTS:
            return {f"{value:g}": int(count) for value, count in zip(values, counts, strict=True)}
        numbers, edges = np.histogram(labels, 10, self.score_range())
        ranges = {}
        for (low, high), count in zip(pairwise(edges), numbers, strict=True):
            ranges[f"{low:.3g} to {high:.3g}"] = int(count)
        off = len(labels) - sum(ranges.values())
        if off:
            ranges["off the scale"] = off
        return ranges

    def score_range(self) -> tuple[float, float] | None:
        if self.scale is None or self.form is not SCORED:
            return None
        return min(self.scale, 0.0), abs(self.scale)

    def summary(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        content: dict[str, Any] = {
            "path": str(self.path),
            "form": self.name,
            "rows": len(self.lines),
            "texts": len(self.texts),
            "distinct_texts": len(np.unique(np.array(self.texts))),
        }
        if self.lengths and self.lengths.tokens:
            content["tokens"] = self.lengths.summary()
        if self.labels:
            labels = np.array(self.labels)
            content["labels"] = {"counts": self.label_counts()}
            if self.form is not NLI:
                content["labels"] |= {"min": labels.min(), "max": labels.max(), "mean": labels.mean()}
        content["findings"] = [vars(finding) for finding in self.findings.values()]
        content["usable"] = self.findings.usable
        return content
