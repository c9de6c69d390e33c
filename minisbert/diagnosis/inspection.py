"""Inspecting files of training data: the faults of each, what they share, and the command that trains on them."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.data.faults import NOTE, PROBLEM
from minisbert.data.forms import (
    FORMS,
    LABELLED,
    NLI,
    PAIRS,
    SCORED,
    SENTENCES,
    TRIPLETS,
    WITH_LABELS,
    check_columns,
)
from minisbert.diagnosis.collected import Collected
from minisbert.models.scoring import MAX_SCORE
from minisbert.models.tokenizer import Tokenizer

SCALES = (1, 5, 10, 100)  # usual ends of a scale that begins at 0
ODD = 0.05  # share of the labels that may be off the scale or the kind that the others show; of ten or more, one
RARE = 0.1  # share of the rows; below it a label is rare, and quotation marks around cells are those of speech
EVERY = 10_000  # rows between two calls of ``progress``
# the objective for each form, and the form that it needs as --dev and --test
OBJECTIVES = {
    SCORED: ("cosine", SCORED),
    LABELLED: ("contrastive", LABELLED),
    NLI: ("softmax", NLI),
    PAIRS: ("mnr", SCORED),
    TRIPLETS: ("mnr", SCORED),
    SENTENCES: ("simcse", SCORED),
}


def inspect(
    path: Path,
    tokenizer: Tokenizer | None = None,
    scale: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Collected:
    """Read a file to its end and judge it. Lengths are counted if there is a tokenizer; ``scale`` ends the scores.

    Raises ``InputError`` only for a file that cannot be opened.
    """
    found = Collected(path, tokenizer, scale)
    for number, row in enumerate(found.rows, 1):
        found.add(row)
        if number % EVERY == 0:
            progress(f"{path}: {number:,} rows")
    judge(found)
    return found


# ----------------------------------------------------------------------------------------- one file


def judge(found: Collected) -> None:
    """Add the faults that only all rows together show."""
    if found.lengths:
        found.lengths.judge(found.findings)
    if not found.lines:
        found.findings.add("no-rows", found.path.name)
        return
    quoted = found.findings.get("quoted-tabs")
    if quoted and quoted.count < RARE * len(found.lines):
        quoted.level = NOTE
    if found.form.kind == SCORED and mostly(np.array(found.binary, bool)):
        found.form.kind = LABELLED
    if not found.form.layout.startswith("lines of JSON"):
        check_columns(found.form, found.findings)
    if found.form.kind == SCORED:
        judge_scores(found)
    if found.form.kind in (LABELLED, NLI):
        judge_classes(found)
    if found.form.kind in WITH_LABELS:
        judge_contradictions(found)
    judge_repeats(found)


def mostly(mask: np.ndarray) -> bool:
    """Whether what the mask says holds for all rows but a few."""
    few = max(int(ODD * len(mask)), int(len(mask) >= 10))
    return int((~mask).sum()) <= few


def judge_scores(found: Collected) -> None:
    """The scale, what is off it, and what the reader of scored pairs takes less kindly than the others."""
    if ".gz" in found.path.suffixes:
        found.findings.add("compressed", found.path.name)
    if "empty-text" in found.findings:
        found.findings["empty-text"].level = PROBLEM  # the others skip the row
    labels = np.array(found.labels)
    if found.scale is None:
        found.scale = next((scale for scale in SCALES if mostly((labels >= 0) & (labels <= scale))), MAX_SCORE)
    if found.scale != MAX_SCORE:
        found.findings.add("other-scale", f"0 to {found.scale:g}")
    add_rows(found, "label-off-scale", (labels < 0) | (labels > found.scale))
    if len(labels) > 1 and len(np.unique(labels)) == 1:
        found.findings.add("constant-label", int(found.lines[0]), f"{labels[0]:g}")
    add_rows(found, "identical-low", np.array(found.identical, bool) & (labels < found.scale / 2))


def judge_classes(found: Collected) -> None:
    labels = np.array(found.labels)
    if found.form.kind == LABELLED:
        add_rows(found, "label-unreadable", ~np.array(found.binary, bool))
        add_rows(found, "identical-low", np.array(found.identical, bool) & (labels == 0))
    counts = found.label_counts()
    rare = min(counts, key=counts.__getitem__)
    if len(counts) == 1 and len(labels) > 1:
        found.findings.add("constant-label", int(found.lines[0]), rare)
    elif counts[rare] < RARE * len(labels):
        place = f"label {rare}: {counts[rare]:,} of {len(labels):,} rows"
        found.findings.add("imbalance", place, count=counts[rare])


def judge_contradictions(found: Collected) -> None:
    later, first = repeats(np.array(found.pairs))
    for i, j in zip(later, first, strict=True):
        if found.labels[i] != found.labels[j]:
            found.findings.add("contradictions", f"lines {found.lines[j]} and {found.lines[i]}")


def judge_repeats(found: Collected) -> None:
    later, first = repeats(np.array(found.exact))
    for i, j in zip(later, first, strict=True):
        found.findings.add("duplicates", f"line {found.lines[i]}, as line {found.lines[j]}")
    known = set(later.tolist())
    for i, j in zip(*repeats(np.array(found.spaced)), strict=True):
        if int(i) not in known:
            found.findings.add("whitespace-twins", f"line {found.lines[i]}, as line {found.lines[j]}")


def add_rows(found: Collected, name: str, mask: np.ndarray) -> None:
    """A fault for each row of the mask, with its label."""
    for i in np.flatnonzero(mask):
        found.findings.add(name, int(found.lines[i]), f"{found.labels[i]:g}")


def repeats(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of values that occurred before, in order, and of the first of each: ``[7, 8, 7] -> [2], [0]``."""
    order = np.argsort(hashes, kind="stable")
    new = np.ones(len(hashes), bool)
    new[1:] = hashes[order][1:] != hashes[order][:-1]
    first = order[np.maximum.accumulate(np.where(new, np.arange(len(hashes)), 0))]
    later, first = order[~new], first[~new]
    places = np.argsort(later)
    return later[places], first[places]


# -------------------------------------------------------------------------------------- several files


def compare(files: Sequence[Collected]) -> list[dict[str, Any]]:
    """What each file shares with those before it; adds the faults to the later one.

    ``exact`` rows have the same first two texts, in either order; ``normalised`` ones the same but for case, white
    space and punctuation; ``texts`` counts its distinct texts that are anywhere in the other.
    """
    for later in files[1:]:
        if later.lines:
            judge_form(files[0], later)
    return [share(earlier, later) for i, later in enumerate(files) for earlier in files[:i]]


def share(earlier: Collected, later: Collected) -> dict[str, Any]:
    """What two files have in common; adds the faults to the later one."""
    exact = np.isin(np.array(later.pairs), np.array(earlier.pairs))
    close = np.isin(np.array(later.normal), np.array(earlier.normal)) & ~exact
    for name, mask in (("overlap", exact), ("overlap-normalised", close)):
        if count := int(mask.sum()):
            line = later.lines[np.flatnonzero(mask)[0]]
            place = f"{count:,} of {len(later.lines):,} rows, the first in line {line}, are in {earlier.path}"
            later.findings.add(name, place, count=count)
    texts = np.isin(np.unique(np.array(later.texts)), np.array(earlier.texts))
    found = {"exact": int(exact.sum()), "normalised": int(close.sum()), "texts": int(texts.sum())}
    return {"file": str(later.path), "with": str(earlier.path), **found}


def judge_form(first: Collected, later: Collected) -> None:
    """Whether a run on the first file can read the later one as --dev or --test."""
    objective, needed = OBJECTIVES.get(first.form.kind, (None, None))
    if objective and later.form.kind != needed:
        later.findings.add("other-form", f"{later.form.kind}; as --dev {objective} reads {needed}")
    elif first.form.kind == later.form.kind == SCORED and first.scale != later.scale:
        later.findings.add("scale-differs", f"0 to {later.scale:g}, not {first.scale:g}")


def command(files: Sequence[Collected], model: str | None = None, max_length: int | None = None) -> str | None:
    """The command that trains on the first file, with the second as dev and the third as test; None for no form."""
    first = files[0]
    if first.form.kind not in FORMS or not first.lines:
        return None
    objective, needed = OBJECTIVES[first.form.kind]
    words = ["python", "-m", "minisbert.train", "--objective", objective, "--data", str(first.path)]
    usable = [found for found in files[1:3] if found.form.kind == needed and found.lines]
    for flag, found in zip(("--dev", "--test"), files[1:3], strict=False):
        words += [flag, str(found.path)] if found in usable else []
    scales = [found.scale for found in (first, *usable) if found.form.kind == SCORED]
    if scales and scales[0] != MAX_SCORE:
        words += ["--scale", f"{scales[0]:g}"]
    words += ["--model", model] if model else []
    words += ["--max-length", str(max_length)] if max_length else []
    return shlex.join(words)
