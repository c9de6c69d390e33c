"""What is kept of the rows of a file that is inspected: hashes, labels and lines, not texts.

A row of two texts takes about 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.data.findings import Findings
from minisbert.data.formats import LABELLED, NLI, NLI_LABELS, PAIRS, TRIPLETS, Format, Row
from minisbert.data.rows import is_number
from minisbert.diagnosis.inspect.text_checks import TokenLengths, is_quoted, judge_text, normalised, text_hash
from minisbert.models.tokenizer import Tokenizer

MOST_COUNTS = 12  # distinct labels that are counted one by one; more become a histogram


class InspectedFile:
    """One file: its format, its findings, and arrays with an element for each row that training would take."""

    def __init__(self, path: Path, tokenizer: Tokenizer | None, scale: float | None = None):
        self.path, self.scale = path, scale
        self.findings = Findings()
        self.lengths = TokenLengths(tokenizer) if tokenizer else None
        self.form: Format | None = None
        self.layout = ""
        self.lines, self.labels = array("Q"), array("d")
        # is the label written 0 or 1, are both texts equal, is the first a number
        self.binary, self.identical, self.numbers = (array("b") for _ in range(3))
        # hashes of the row, of the row with single spaces, of its two texts, and of these normalised
        self.exact, self.spaced, self.pairs, self.normal = (array("Q") for _ in range(4))
        self.texts = array("Q")  # hashes of the texts

    @property
    def name(self) -> str:
        return self.form.name if self.form else "no format that training reads"

    def add(self, row: Row) -> None:
        """Take in a row, or count why training skips it."""
        if row.skipped:
            self.findings.add(row.skipped, row.line)
            return
        for text in row.texts:
            judge_text(row.line, text, self.findings)
            if "tabs" in self.layout and is_quoted(text):
                self.findings.add("quoted-tabs", row.line, text)
            self.texts.append(text_hash(text))
            if self.lengths:
                self.lengths.add(row.line, text)
        self.lines.append(row.line)
        if row.label is not None:
            self.labels.append(row.label)
        pair = row.texts[:2]
        self.binary.append(row.cell in ("0", "1"))
        self.identical.append(len(pair) == 2 and pair[0] == pair[1])
        self.numbers.append(is_number(pair[0]))
        self.exact.append(text_hash(*row.texts, row.cell))
        self.spaced.append(text_hash(*(" ".join(text.split()) for text in row.texts), row.cell))
        # the order of a pair matters in NLI alone: B may follow from A, and A not from B
        order = list if self.form is NLI else sorted
        self.pairs.append(text_hash(*order(pair)))
        self.normal.append(text_hash(*order(map(normalised, pair))))
        if self.form in (PAIRS, TRIPLETS) and self.identical[-1]:
            self.findings.add("same-positive", row.line, pair[0])
        if set(pair) & set(row.texts[2:]):
            self.findings.add("same-negative", row.line, pair[0])

    def label_counts(self, bars: bool = False) -> dict[str, int]:
        """How many rows have each label, by its name; of classes only those that occur.

        As ``bars``, many scores are counted in ten ranges of the scale: ``{"0 to 0.5": 12, ...}``.
        """
        labels = np.array(self.labels)
        values, counts = np.unique(labels, return_counts=True)
        found = dict(zip(values.tolist(), counts.tolist(), strict=True))
        if self.form is NLI:
            return {name: found[i] for i, name in enumerate(NLI_LABELS) if i in found}
        if not bars or self.form is LABELLED or len(found) <= MOST_COUNTS:
            return {f"{value:g}": n for value, n in found.items()}
        numbers, edges = np.histogram(labels, 10, (0.0, self.scale) if self.scale else None)
        ranges = {f"{low:.3g} to {high:.3g}": int(n) for (low, high), n in zip(pairwise(edges), numbers, strict=True)}
        off = len(labels) - sum(ranges.values())
        return ranges | ({"off the scale": off} if off else {})

    def summary(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        content = {"path": str(self.path), "form": self.name, "layout": self.layout, "rows": len(self.lines)}
        content |= {"texts": len(self.texts), "distinct_texts": len(np.unique(np.array(self.texts)))}
        if self.lengths and self.lengths.tokens:
            content |= {"tokens": self.lengths.summary(), "unknown_words": dict(self.lengths.scripts)}
        if self.labels:
            labels = np.array(self.labels)
            named = {"min": float(labels.min()), "max": float(labels.max()), "mean": float(labels.mean())}
            content["labels"] = named | {"counts": self.label_counts(bars=True)}
        content["findings"] = [vars(finding) for finding in self.findings.values()]
        return content | {"usable": self.findings.usable}
