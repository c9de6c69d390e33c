"""What is kept of a file that is inspected: what may be wrong with it, and hashes, labels and lengths, not texts.

A row of two texts takes less than 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

import hashlib
import re
import shlex
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.data.datasets import hold_out
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row, class_names
from minisbert.data.reader import RowReader, recognise
from minisbert.models.similarity import MAX_SCORE
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.progress import Bar

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


SCALES = (1, 5, 10, 100)  # usual ends of a scale that begins at 0
ODD = 0.05  # share of the scores that may be off the scale that the others show; of ten or more, one
SEED = 42  # of --seed, by which training holds rows out
# the objective for each format, and the formats that it reads as --dev and --test
RECOMMENDED = {
    SCORED: ("cosine", (SCORED,)),
    LABELLED: ("contrastive", (LABELLED,)),
    NLI: ("softmax", (NLI,)),
    MULTILABEL: ("cross-encoder-multilabel", (MULTILABEL,)),
    PAIRS: ("mnr", (SCORED, PAIRS)),
    SENTENCES: ("simcse", (SCORED, PAIRS)),
}
RERANKERS = {SCORED: "cross-encoder", LABELLED: "cross-encoder-binary", PAIRS: "cross-encoder-ranking"}


def inspect(
    path: Path, tokenizer: Tokenizer | None = None, scale: float | None = None, progress: bool = False
) -> InspectedFile:
    """Read a file as training does, but go on after a row that it refuses, and judge it.

    Lengths are counted if there is a tokenizer; ``scale`` ends the scores. Raises ``InputError`` only for a file that
    cannot be opened.
    """
    found = InspectedFile(path, tokenizer, scale)
    if not path.is_file():
        raise InputError(f"{path} does not exist, or is not a file")
    refuse = lambda line, message: found.findings.add("refused", f"line {line}: {message}")  # noqa: E731
    try:
        found.form = recognise(path)
        reader = RowReader(path, found.form, scale=None, split="train", refuse=refuse)
        for row in Bar(reader, desc=str(path), unit=" rows", shown=progress):
            if reader.skips(row):
                found.findings.add("skipped", row.line)
            else:
                found.add(row)
        if reader.unread:
            found.findings.add("unread-columns", ", ".join(reader.unread))
    except InputError as error:  # a line that is no text, no JSON or too long, an unknown header, a damaged archive
        found.findings.add("unreadable", str(error))
    judge(found)
    return found


# ----------------------------------------------------------------------------------------- one file


def judge(found: InspectedFile) -> None:
    """Add the findings that only all rows together show."""
    if found.lengths:
        found.lengths.judge(found.findings)
    if not found.lines:
        if found.findings.usable:
            found.findings.add("unreadable", f"{found.path.name} holds no usable rows")
        return
    if found.form is SCORED:
        judge_scores(found)
    if found.form in (LABELLED, NLI):
        judge_classes(found)
    if found.form is MULTILABEL and len(found.classes) < 2:
        found.findings.add("constant-label", int(found.lines[0]), ", ".join(found.classes))
    for i, j in repeats(found.exact):
        found.findings.add("duplicates", f"line {found.lines[i]}, as line {found.lines[j]}")


def judge_scores(found: InspectedFile) -> None:
    """The scale, and what is off it."""
    scores = np.array(found.labels)
    if found.scale is None:
        found.scale = likely_scale(scores)
    low, high = found.score_range()
    if found.scale != MAX_SCORE:
        found.findings.add("other-scale", f"{low:g} to {high:g}")
    for i in np.flatnonzero((scores < low) | (scores > high)):
        found.findings.add("off-scale", int(found.lines[i]), f"{scores[i]:g}")
    if high > 1 and scores.max() <= 1:
        found.findings.add("off-scale", f"no score is above 1 on a scale of {low:g} to {high:g}")
    if scores.min() == scores.max():
        found.findings.add("constant-label", int(found.lines[0]), f"{scores[0]:g}")


def likely_scale(scores: np.ndarray) -> float:
    """The end of the scale that nearly all scores are on; -1 for -1 to 1."""
    few = max(int(ODD * len(scores)), int(len(scores) >= 10))
    negative = int((scores < 0).sum())
    for scale in SCALES:
        off = int((abs(scores) > scale).sum())
        if off + negative <= few:
            return scale
        if off <= few and scale == 1:
            return -1.0
    return MAX_SCORE


def judge_classes(found: InspectedFile) -> None:
    counts = found.label_counts()
    try:
        class_names(found.classes)
    except ValueError as error:
        found.findings.add("refused", str(error))
    if len(counts) == 1:
        found.findings.add("constant-label", int(found.lines[0]), min(counts))


def repeats(hashes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """The places of values that occurred before, in order, each with the first: ``[7, 8, 7, 7] -> (2, 0), (3, 0)``."""
    _, first, place = np.unique(np.array(hashes), return_index=True, return_inverse=True)
    first = first[place]
    later = np.flatnonzero(first != np.arange(len(place)))
    return zip(later, first[later], strict=True)


# -------------------------------------------------------------------------------------- several files


def compare_files(files: Sequence[InspectedFile]) -> list[dict[str, Any]]:
    """What each file shares with those before it; adds the findings to the later one.

    ``exact`` rows have the same first two texts, in either order; ``normalised`` ones the same but for case, white
    space and punctuation; ``texts`` counts its distinct texts that are anywhere in the other.
    """
    judge_held_out(files)
    for later in files[1:]:
        if later.lines:
            judge_format(files[0], later)
    return [shared_rows(earlier, later) for i, later in enumerate(files) for earlier in files[:i]]


def shared_rows(earlier: InspectedFile, later: InspectedFile) -> dict[str, Any]:
    """What two files have in common; adds a finding to the later one."""
    exact = np.isin(np.array(later.pairs), np.array(earlier.pairs))
    close = np.isin(np.array(later.normal), np.array(earlier.normal)) & ~exact
    either = exact | close
    count = int(either.sum())
    if count:
        more = f", {int(close.sum()):,} of them but for case, white space and punctuation" if close.any() else ""
        line = later.lines[either.argmax()]
        place = f"{count:,} of {len(later.lines):,} rows, the first in line {line}, are in {earlier.path}{more}"
        later.findings.add("overlap", place, count=count)
    texts = np.isin(np.unique(np.array(later.texts)), np.array(earlier.texts))
    return {
        "file": str(later.path),
        "with": str(earlier.path),
        "exact": int(exact.sum()),
        "normalised": int(close.sum()),
        "texts": int(texts.sum()),
    }


def judge_format(first: InspectedFile, later: InspectedFile) -> None:
    """Whether a run on the first file can read the later one as --dev or --test."""
    if first.form is None:
        return
    objective, needed = RECOMMENDED[first.form]
    if later.form not in needed:
        names = " or ".join(form.name for form in needed)
        later.findings.add("other-form", f"{later.name}; as --dev {objective} reads {names}")
    elif first.form is later.form is SCORED and first.scale != later.scale:
        later.findings.add("scale-differs", f"ends at {later.scale:g}, not {first.scale:g}")


def judge_held_out(files: Sequence[InspectedFile]) -> None:
    """Whether a run can hold rows of the first file out if dev and test have no files."""
    first, missing = files[0], ("dev", "test")[len(files) - 1 :]
    if first.form not in (LABELLED, NLI, MULTILABEL) or not first.lines:
        return
    try:
        _, held_out = hold_out(range(len(first.lines)), missing, SEED, key=first.pairs.__getitem__)
    except ValueError:
        first.findings.add("too-few", f"{len(first.lines):,} rows")
        return
    for rows in held_out.values():
        if first.form is not NLI and not any(first.labels[row] for row in rows):
            first.findings.add("too-few", "a share that is held out would have no label 1")
            return


def training_command(
    files: Sequence[InspectedFile], model: str | None = None, max_length: int | None = None, reranker: bool = False
) -> str | None:
    """The command that trains on the first file, with the second as dev and the third as test; None for no format.

    For a ``reranker`` it is a cross-encoder's, None if it learns nothing from such rows.
    """
    first = files[0]
    if first.form is None or not first.lines:
        return None
    objective, needed = RECOMMENDED[first.form]
    if reranker:
        objective, needed = RERANKERS.get(first.form), (first.form,)
        if objective is None or first.name == "pairs":
            return None
    words = ["--objective", objective, "--data", str(first.path)]
    scale = first.scale if first.form is SCORED else None
    for flag, found in zip(("--dev", "--test"), files[1:], strict=False):
        if fits(found, needed):
            words += [flag, str(found.path)]
            if scale is None and found.form is SCORED:
                scale = found.scale
    if scale and scale != MAX_SCORE:
        words += ["--scale", f"{scale:g}"]
    if model:
        words += ["--model", model]
    if max_length:
        words += ["--max-length", str(max_length)]
    return shlex.join(["python", "-m", "minisbert.train", *words])


def fits(found: InspectedFile, needed: Sequence[Format]) -> bool:
    return found.form in needed and len(found.lines) > 0
