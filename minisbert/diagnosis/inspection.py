"""Inspect a file of training data: what training refuses, what may spoil its result, and what files share.

The file is read as training reads it. Memory holds hashes, labels and lengths, not texts: a row of two texts takes less
than 200 bytes at the peak, however long they are, so a file may be larger than memory.
"""

import hashlib
import re
import shlex
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.core.tokenizer import Tokenizer
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, Row, class_names
from minisbert.data.reader import RowReader, recognise
from minisbert.models.similarity import MAX_SCORE
from minisbert.system.progress import Bar

PROBLEM, WARNING, NOTE = "problem", "warning", "note"  # cannot be trained on, may spoil the result, harmless
FAULTS = {
    "unreadable": (PROBLEM, "the file cannot be read to its end", "fix it as described in the message"),
    "refused": (PROBLEM, "rows that training refuses", "correct or delete them"),
    "skipped": (WARNING, "rows with an empty text or without a gold label", "fill or drop them; training skips them"),
    "unread-columns": (NOTE, "columns that training does not read", "choose others with --columns, if they matter"),
    "off-scale": (PROBLEM, "scores off the scale", "correct them, or pass --scale"),
    "other-scale": (WARNING, "the scores are not on the default scale of 0 to 5", "train with --scale, as below"),
    "constant-label": (PROBLEM, "all rows have the same label", "add rows with others, or train on the pairs with mnr"),
    "duplicates": (WARNING, "rows that repeat an earlier one", "drop them: as in-batch negatives they are wrong"),
    "too-long": (WARNING, "texts longer than the model's limit", "split them, or raise --max-length if possible"),
    "overlap": (WARNING, "rows that are also in another file", "drop them from train, or the score is too high"),
}
MOST_EXAMPLES = 3  # places of a fault that are reported
MOST_LABELS = 12  # distinct labels that are counted one by one; of more, only the range is reported
TOKENIZED_AT_ONCE = 2**18  # characters
FEW_TEXTS = 0.01  # share of the texts; below it, long texts are a note
NO_LETTER = re.compile(r"[\W_]+")  # nor a digit
SCALES = (1, 5, 10, 100)  # usual ends of a scale that begins at 0
ODD = 0.05  # share of the scores that may be off the scale that the others show; of ten or more, one
OBJECTIVE_OF = {  # the format of a file -> the objective that the suggested command names
    SCORED: "cosine",
    LABELLED: "contrastive",
    NLI: "softmax",
    MULTILABEL: "cross-encoder-multilabel",
    PAIRS: "mnr",
    SENTENCES: "simcse",
}


# ------------------------------------------------------------------------------------- what is stored


class InspectedFile:
    """One file: its format, its findings by name, and arrays with an element for each row that training would take."""

    def __init__(self, path: Path, scale: float | None = None):
        self.path, self.scale = path, scale
        self.findings: dict[str, dict[str, Any]] = {}
        self.form: Format | None = None
        self.unit = "line"
        self.width = 0  # texts of a row
        self.lines = array("Q")
        self.scores, self.labels = array("d"), Counter[str]()  # of scored pairs; of all others
        # hashes: of a row with its label, of its first two texts in either order, of these normalised, of each text
        self.rows, self.pairs, self.normal, self.texts = array("Q"), array("Q"), array("Q"), array("Q")
        self.characters, self.tokens, self.limit = array("I"), array("I"), 0  # of each text

    @property
    def name(self) -> str:
        if self.form is None:
            return "no format that training reads"
        if self.form is PAIRS and self.width > 2:
            return "triplets" if self.width == 3 else f"rows of {self.width - 2} negatives"
        return self.form.name

    @property
    def usable(self) -> bool:
        return all(finding["level"] != PROBLEM for finding in self.findings.values())

    def find(self, name: str, place: str, count: int = 1) -> None:
        """Count a fault, and remember the first places where it occurs."""
        level, what, remedy = FAULTS[name]
        new = {"name": name, "level": level, "what": what, "remedy": remedy, "count": 0, "places": []}
        finding = self.findings.setdefault(name, new)
        finding["count"] += count
        # two texts of a row are one place
        if len(finding["places"]) < MOST_EXAMPLES and place not in finding["places"]:
            finding["places"].append(place)

    def add(self, row: Row) -> None:
        """Take in a row that training would take."""
        self.width = self.width or len(row.texts)
        self.lines.append(row.line)
        for text in row.texts:
            self.texts.append(text_hash(text))
            self.characters.append(len(text))
        if self.form is SCORED:
            self.scores.append(row.label)
        elif self.form is MULTILABEL:
            self.labels.update(row.label)
        elif self.form in (LABELLED, NLI):
            self.labels[str(row.label)] += 1
        pair = row.texts[:2]
        self.rows.append(text_hash(*row.texts, str(row.label)))
        self.pairs.append(text_hash(*sorted(pair)))
        self.normal.append(text_hash(*sorted(map(normalised, pair))))

    def summary(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        content: dict[str, Any] = {
            "path": str(self.path),
            "form": self.name,
            "rows": len(self.lines),
            "texts": len(self.texts),
            "distinct_texts": len(np.unique(np.array(self.texts))),
        }
        if self.tokens:
            tokens = np.array(self.tokens)
            median, p95 = np.percentile(tokens, (50, 95), method="higher")
            cut = int((tokens > self.limit).sum())
            content["tokens"] = {"median": float(median), "p95": float(p95), "longest": int(tokens.max())}
            content["tokens"] |= {"limit": self.limit, "cut": cut, "cut_share": cut / len(tokens)}
        if self.scores:
            scores = np.array(self.scores)
            content["labels"] = {"min": scores.min(), "max": scores.max(), "mean": scores.mean()}
            values, counts = np.unique(scores, return_counts=True)
            if len(values) <= MOST_LABELS:
                shown = [f"{value:g}" for value in values]
                content["labels"]["counts"] = dict(zip(shown, counts.tolist(), strict=True))
        elif self.labels:
            content["labels"] = {"counts": dict(sorted(self.labels.items()))}
        content["findings"] = list(self.findings.values())
        content["usable"] = self.usable
        return content


def text_hash(*texts: str) -> int:
    """Hash texts to 64 bits. Among 100 million different rows, two share a hash with a chance of 0.03 %."""
    content = "\x1f".join(texts).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def normalised(text: str) -> str:
    """Remove case, white space and punctuation: ``normalised("It's  5!") = "its5"``."""
    return NO_LETTER.sub("", unicodedata.normalize("NFKC", text).casefold())


# ----------------------------------------------------------------------------------------- one file


def inspect(
    path: Path, tokenizer: Tokenizer | None = None, scale: float | None = None, progress: bool = False
) -> InspectedFile:
    """Read a file as training does, but go on after a row that it refuses, and judge the whole.

    Lengths in tokens are counted if there is a tokenizer; scores are 0 to ``scale``, or on the scale that most of them
    show. Raises ``InputError`` only for a file that cannot be opened.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist, or is not a file")
    found = InspectedFile(path, scale)
    waiting: list[tuple[int, str]] = []  # lines and texts that are not tokenized yet
    size = 0  # their characters
    try:
        for row in training_rows(found, progress):
            found.add(row)
            if tokenizer is None:
                continue
            waiting += [(row.line, text) for text in row.texts]
            size += sum(map(len, row.texts))
            # together, because the tokenizer works in parallel; not all, because a file may be larger than memory
            if size > TOKENIZED_AT_ONCE:
                count_tokens(found, waiting, tokenizer)
                waiting, size = [], 0
    except InputError as error:  # a line that is no text, no JSON or too long, an unknown header, a damaged archive
        found.find("unreadable", str(error))
    if tokenizer is not None:
        count_tokens(found, waiting, tokenizer)
        long = found.findings.get("too-long")
        if long and long["count"] < FEW_TEXTS * len(found.tokens):
            long["level"] = NOTE
    if found.lines:
        judge_labels(found)
        judge_duplicates(found)
    elif found.usable:
        found.find("unreadable", f"{path.name} holds no usable rows")
    return found


def training_rows(found: InspectedFile, progress: bool) -> Iterator[Row]:
    """Yield the rows that training would take, and note what it refuses, skips and does not read."""

    def refuse(line: int, message: str) -> None:
        found.find("refused", f"{found.unit} {line}: {message}")

    found.form = recognise(found.path)
    # Without a scale, which only all scores together show.
    reader = RowReader(found.path, found.form, scale=None, split="train", refuse=refuse)
    found.unit = reader.rows.unit
    for row in Bar(reader, desc=str(found.path), unit=" rows", shown=progress):
        if reader.skips(row):
            found.find("skipped", f"{found.unit} {row.line}")
        else:
            yield row
    if reader.unread:
        found.find("unread-columns", ", ".join(reader.unread))


def count_tokens(found: InspectedFile, waiting: Sequence[tuple[int, str]], tokenizer: Tokenizer) -> None:
    """Append the lengths of texts in tokens, special tokens included."""
    found.limit = tokenizer.limit
    special = len(tokenizer.single_template) - 1
    encoded = tokenizer.backend.encode_batch_fast([text for _, text in waiting], add_special_tokens=False)
    for (line, _), encoding in zip(waiting, encoded, strict=True):
        length = len(encoding.ids) + special
        found.tokens.append(length)
        if length > tokenizer.limit:
            found.find("too-long", f"{found.unit} {line}")


def judge_labels(found: InspectedFile) -> None:
    """Find labels that teach nothing, and scores off their scale."""
    first = f"{found.unit} {found.lines[0]}"
    if found.form in (LABELLED, NLI, MULTILABEL) and len(found.labels) < 2:
        found.find("constant-label", f"{first}: {one_line(', '.join(found.labels))}")
    if found.form is NLI:
        try:
            class_names(found.labels)
        except ValueError as error:  # a class beside those of NLI
            found.find("refused", str(error))
    if found.form is not SCORED:
        return
    scores = np.array(found.scores)
    if found.scale is None:
        found.scale = likely_scale(scores)
    low, high = min(found.scale, 0.0), abs(found.scale)
    if found.scale != MAX_SCORE:
        found.find("other-scale", f"{low:g} to {high:g}")
    for i in np.flatnonzero((scores < low) | (scores > high)):
        found.find("off-scale", f"{found.unit} {found.lines[i]}: '{scores[i]:g}'")
    if high > 1 and scores.max() <= 1:
        found.find("off-scale", f"no score is above 1 on a scale of {low:g} to {high:g}")
    if scores.min() == scores.max():
        found.find("constant-label", f"{first}: '{scores[0]:g}'")


def likely_scale(scores: np.ndarray) -> float:
    """Return the end of the scale that nearly all scores are on; -1 for -1 to 1."""
    few = max(int(ODD * len(scores)), int(len(scores) >= 10))
    negative = int((scores < 0).sum())
    for scale in SCALES:
        off = int((abs(scores) > scale).sum())
        if off + negative <= few:
            return scale
        if off <= few and scale == 1:
            return -1.0
    return MAX_SCORE


def judge_duplicates(found: InspectedFile) -> None:
    """Find rows with the texts and the label of an earlier one: ``[7, 8, 7]`` -> the third, as the first."""
    _, first, place = np.unique(np.array(found.rows), return_index=True, return_inverse=True)
    earliest = first[place]  # (N,) for each row, the first row with its hash
    for i in np.flatnonzero(earliest != np.arange(len(place))):
        found.find("duplicates", f"{found.unit} {found.lines[i]}, as {found.unit} {found.lines[earliest[i]]}")


# -------------------------------------------------------------------------------------- several files


def compare_files(files: Sequence[InspectedFile]) -> list[dict[str, Any]]:
    """Count what each file shares with those before it, and add an ``overlap`` to the later one.

    ``exact`` rows have the same first two texts, in either order; ``normalised`` ones the same but for case, white
    space and punctuation; ``texts`` counts its distinct texts that are anywhere in the other.
    """
    shared = []
    for i, later in enumerate(files):
        for earlier in files[:i]:
            exact = np.isin(np.array(later.pairs), np.array(earlier.pairs))
            close = np.isin(np.array(later.normal), np.array(earlier.normal)) & ~exact
            texts = np.isin(np.unique(np.array(later.texts)), np.array(earlier.texts))
            count = int(exact.sum() + close.sum())
            if count:
                line = later.lines[(exact | close).argmax()]
                rows = f"{count:,} of {len(later.lines):,} rows, the first in {later.unit} {line}"
                less = f"{int(close.sum()):,} of them but for case, white space and punctuation"
                later.find("overlap", f"{rows}, are in {earlier.path}, {less}", count=count)
            row = {"file": str(later.path), "with": str(earlier.path)}
            counts = {"exact": int(exact.sum()), "normalised": int(close.sum()), "texts": int(texts.sum())}
            shared.append(row | counts)
    return shared


def training_command(
    files: Sequence[InspectedFile], model: str | None = None, max_length: int | None = None
) -> str | None:
    """Write the command that trains on the first file, with the second as dev and the third as test."""
    first = files[0]
    if first.form is None or not first.lines:
        return None
    words = ["--objective", OBJECTIVE_OF[first.form], "--data", str(first.path)]
    for flag, file in zip(("--dev", "--test"), files[1:], strict=False):
        words += [flag, str(file.path)]
    if first.form is SCORED and first.scale != MAX_SCORE:
        words += ["--scale", f"{first.scale:g}"]
    if model:
        words += ["--model", model]
    if max_length:
        words += ["--max-length", str(max_length)]
    return shlex.join(["minisbert", "train", *words])
