"""Inspect files of training data: what training takes, refuses and skips, and what repeats."""

import copy
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError
from minisbert.data import datasets
from minisbert.data.formats import (
    LABELLED,
    MAX_SCORE,
    NLI,
    PAIRS,
    SCORED,
    SENTENCES,
    Format,
    Row,
    RowReader,
    recognise,
)
from minisbert.data.lines import Rows
from minisbert.models.batching import chunks

FEW = 500  # rows, of which one epoch is too few steps to learn: docs/training.md
# the objective of the command that is suggested, and how it reads rows
OBJECTIVES: dict[Format, tuple[str, Callable[..., Any]]] = {
    SCORED: ("cosine", datasets.scored_rows),
    LABELLED: ("binary", datasets.duplicate_rows),
    NLI: ("softmax", datasets.class_rows),
    PAIRS: ("mnr", datasets.triplet_rows),
    SENTENCES: ("simcse", datasets.text_rows),
}


@dataclass
class InspectedFile:
    """A file, and the rows that training takes. Places are strings such as "line 7"."""

    path: Path
    scale: float  # scores are 0 to this
    form: Format | None = None
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # for which training stops, with their places
    # places of rows with an empty text or without a gold label
    skipped: list[str] = field(default_factory=list)
    # places of rows with the texts and the label of an earlier one
    repeated: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # columns, and rows of other splits
    limit: int = 0  # of the model, in tokens
    tokens: list[int] = field(default_factory=list)  # of each text, before it is cut

    @property
    def texts(self) -> list[str]:
        return [text for row in self.rows for text in row.texts]

    @property
    def scores(self) -> list[float]:
        """The scores of scored pairs, as the file has them."""
        if self.form is not SCORED:
            return []
        return [row.score * abs(self.scale) / MAX_SCORE for row in self.rows]

    def summary(self) -> dict[str, Any]:
        """Return counts and findings as plain values, for JSON."""
        form = self.form.name if self.form else "no format that training reads"
        content: dict[str, Any] = {"path": str(self.path), "form": form, "rows": len(self.rows)}
        content |= {"texts": len(self.texts), "distinct_texts": len(set(self.texts))}
        if self.tokens:
            median, p95 = np.percentile(self.tokens, (50, 95), method="higher").tolist()
            cut = sum(length > self.limit for length in self.tokens)
            content["tokens"] = {"median": median, "p95": p95, "longest": max(self.tokens)}
            content["tokens"] |= {"limit": self.limit, "cut": cut}
        content["labels"] = {}
        if self.scores:
            content["scores"] = {
                "min": min(self.scores),
                "max": max(self.scores),
                "mean": float(np.mean(self.scores)),
            }
        elif self.form in (LABELLED, NLI):
            content["labels"] = counted(row.label for row in self.rows)
        content |= {"unread": self.unread, "problems": self.problems}
        return content | {"skipped": self.skipped, "repeated": self.repeated}


def counted(labels: Iterable[str | int]) -> dict[str, int]:
    return {str(label): count for label, count in sorted(Counter(labels).items())}


def inspect(
    path: Path,
    tokenizer: ModelTokenizer | None = None,
    scale: float = MAX_SCORE,
    role: str = "train",
    quotes: bool = True,
) -> InspectedFile:
    """Read a file as training does that takes it as ``role``, train, dev or test; go on after a row
    that it refuses.

    Lengths in tokens are counted if there is a tokenizer. Raises ``InputError`` only for a file
    that is missing.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist, or is not a file")
    found = InspectedFile(path, scale)
    first: dict[object, int] = {}  # texts and label -> the line
    try:
        rows = Rows(path, role, quotes, scale=scale)
        found.form = recognise(rows)
        reader = RowReader(rows, found.form)
        unit = reader.rows.unit
        reader.refuse = lambda line, message: found.problems.append(f"{unit} {line}: {message}")
        for row in reader:
            if reader.skips(row):
                found.skipped.append(f"{unit} {row.line}")
                continue
            found.rows.append(row)
            earlier = first.setdefault((row.texts, row.label), row.line)
            if earlier != row.line:
                found.repeated.append(f"{unit} {row.line}, as {unit} {earlier}")
        found.unread = [*reader.unread]
        if not found.problems:
            # what training says of all rows together: one class, classes beside NLI's, scores on
            # another scale
            data, dev = (Rows(path, role, quotes, scale=scale) for _ in range(2))
            OBJECTIVES[found.form][1](
                datasets.Sources(data=data, dev=dev, test="none", scale=scale)
            )
    except InputError as error:
        found.problems.append(str(error))
    if tokenizer is not None:
        uncut = copy.copy(tokenizer)
        found.limit, uncut.limit = tokenizer.limit, 2**31
        for chunk in chunks(found.texts):  # all ids of a large file would not fit in memory
            found.tokens += map(len, uncut.encode(chunk).ids)
    return found


def overlap(train: InspectedFile, other: InspectedFile) -> dict[str, Any]:
    """Count the rows of ``other`` whose first two texts share a row of ``train``, in either
    order.
    """
    rows = datasets.shared_rows(train.rows, other.rows)
    return {"file": str(other.path), "with": str(train.path), "rows": rows}


def training_command(
    files: Sequence[InspectedFile], model: str | None, max_length: int | None
) -> str | None:
    """Write the command that trains on the first file, with dev and test; None if one of them has
    problems.
    """
    first = files[0]
    if first.form is None or any(file.problems for file in files):
        return None
    words = ["--objective", OBJECTIVES[first.form][0], "--data", str(first.path)]
    for flag, file in zip(("--dev", "--test"), files[1:], strict=False):
        words += [flag, str(file.path)]
    if len(first.rows) < FEW:
        words += ["--epochs", "8"]
    if first.form is SCORED and first.scale != MAX_SCORE:
        words += ["--scale", f"{first.scale:g}"]
    if model:
        words += ["--model", model]
    if max_length:
        words += ["--max-length", str(max_length)]
    return shlex.join(["minisbert", "train", *words])
