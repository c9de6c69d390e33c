"""Inspecting files of training data: what is wrong with each, what they share, and the command that trains on them."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.data.formats import LABELLED, MULTILABEL, NLI, PAIRS, SCORED, SENTENCES, Format, class_names
from minisbert.data.reader import RowReader
from minisbert.data.recognition import recognise
from minisbert.data.splits import hold_out
from minisbert.diagnosis.inspect.inspected_file import InspectedFile
from minisbert.folder.settings import MAX_SCORE
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.progress import Bar

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
