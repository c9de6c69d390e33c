"""What is kept of the rows of a file that is inspected: hashes, labels and lines, not texts.

A row of two texts takes less than 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, Format, Row
from minisbert.diagnosis.inspect.findings import Findings
from minisbert.diagnosis.inspect.text_checks import TokenLengths, normalised, text_hash
from minisbert.models.tokenizer import Tokenizer

MOST_COUNTS = 12  # distinct labels that are counted one by one; more become a histogram


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
