"""What is kept of the rows of a file that is inspected: hashes, labels and lines, not texts.

A row of two texts takes about 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

import math
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.data.corpora import NLI_LABELS
from minisbert.data.faults import Findings
from minisbert.data.forms import LABELLED, NLI, PAIRS, TRIPLETS, WITH_LABELS
from minisbert.data.lenient import Row, read_lenient
from minisbert.diagnosis.texts import Lengths, check_text, hash_of, normalised
from minisbert.models.tokenizer import Tokenizer

MOST_COUNTS = 12  # distinct labels that are counted one by one; more become a histogram


class Collected:
    """One file: its form, its faults, and arrays with an element for each row that training would take."""

    def __init__(self, path: Path, tokenizer: Tokenizer | None, scale: float | None = None):
        self.path, self.scale = path, scale
        self.findings = Findings()
        self.lengths = Lengths(tokenizer) if tokenizer else None
        self.form, self.rows = read_lenient(path, self.findings)
        self.lines, self.labels = array("Q"), array("d")
        self.binary, self.identical = array("b"), array("b")  # is the label written 0 or 1, are both texts equal
        # hashes of the row, of the row with single spaces, of its two texts, and of these normalised
        self.exact, self.spaced, self.pairs, self.normal = (array("Q") for _ in range(4))
        self.texts = array("Q")  # hashes of the texts

    def add(self, row: Row) -> None:
        """Take in a row, or count why training skips or refuses it."""
        texts = [text.strip() for text in row.texts]
        if not all(texts):
            self.findings.add("empty-text", row.line)
            return
        label = self.number(row)
        if label is None:
            return
        for text in texts:
            check_text(row.line, text, self.findings)
            self.texts.append(hash_of(text))
            if self.lengths:
                self.lengths.add(row.line, text)
        self.lines.append(row.line)
        self.labels.append(label)
        self.binary.append(row.label in ("0", "1"))
        self.identical.append(len(texts) > 1 and texts[0] == texts[1])
        self.exact.append(hash_of(*texts, row.label or ""))
        self.spaced.append(hash_of(*(" ".join(text.split()) for text in texts), row.label or ""))
        # the order of a pair matters in NLI alone: B may follow from A, and A not from B
        order = list if self.form.kind == NLI else sorted
        self.pairs.append(hash_of(*order(texts[:2])))
        self.normal.append(hash_of(*order(map(normalised, texts[:2]))))
        if self.form.kind in (PAIRS, TRIPLETS):
            self.check_tuple(row.line, texts)

    def number(self, row: Row) -> float | None:
        """The label as a number, 0 if the form has none; None for a row without a usable one."""
        if self.form.label is None:
            return 0.0
        if self.form.kind == NLI and row.label == "-":
            self.findings.add("no-gold-label", row.line)
            return None
        try:
            label = float(NLI_LABELS.index(row.label) if self.form.kind == NLI else row.label)
        except ValueError:
            label = math.nan
        if math.isfinite(label):
            return label
        self.findings.add("label-unreadable", row.line, row.label)
        return None

    def check_tuple(self, line: int, texts: list[str]) -> None:
        if texts[0] == texts[1]:
            self.findings.add("same-positive", line, texts[0])
        if set(texts[:2]) & set(texts[2:]):
            self.findings.add("same-negative", line, texts[0])

    def label_counts(self) -> dict[str, int]:
        """How many rows have each label, by its name; those of classes alone if the labels are classes."""
        values, counts = np.unique(np.array(self.labels), return_counts=True)
        found = dict(zip(values.tolist(), counts.tolist(), strict=True))
        if self.form.kind == NLI:
            return {name: found[i] for i, name in enumerate(NLI_LABELS) if i in found}
        return {f"{value:g}": n for value, n in found.items() if self.form.kind != LABELLED or value in (0, 1)}

    def label_bars(self) -> dict[str, int]:
        """The counts, or if the labels are many those of ten ranges of the scale: ``{"0 to 0.5": 12, ...}``."""
        if self.form.kind in (LABELLED, NLI) or len(np.unique(np.array(self.labels))) <= MOST_COUNTS:
            return self.label_counts()
        ends = (0.0, self.scale) if self.scale else None
        numbers, edges = np.histogram(np.array(self.labels), 10, ends)
        bars = {f"{low:.3g} to {high:.3g}": int(n) for (low, high), n in zip(pairwise(edges), numbers, strict=True)}
        off = len(self.labels) - sum(bars.values())
        return bars | ({"off the scale": off} if off else {})

    def summary(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        content = {"path": str(self.path), "form": self.form.kind, "layout": self.form.layout, "rows": len(self.lines)}
        content |= {"texts": len(self.texts), "distinct_texts": len(np.unique(np.array(self.texts)))}
        if self.lengths and self.lengths.counts:
            content |= {"tokens": self.lengths.summary(), "unknown_words": dict(self.lengths.scripts)}
        if self.form.kind in WITH_LABELS and self.lines:
            labels = np.array(self.labels)
            named = {"min": float(labels.min()), "max": float(labels.max()), "mean": float(labels.mean())}
            content["labels"] = named | {"counts": self.label_bars()}
        content["findings"] = [vars(finding) for finding in self.findings.values()]
        return content | {"usable": self.findings.usable}
