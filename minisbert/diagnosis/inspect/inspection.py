"""Inspecting files of training data: what is wrong with each, what they share, and the command that trains on them."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.data.datasets import all_numbers, hold_out
from minisbert.data.findings import NOTE
from minisbert.data.formats import LABELLED, NLI, PAIRS, SCORED, SENTENCES, TRIPLETS, read_rows
from minisbert.data.recognition import recognise
from minisbert.data.rows import Rows
from minisbert.diagnosis.inspect.inspected_file import InspectedFile
from minisbert.models.pair_scorer import MAX_SCORE
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.console import Bar

SCALES = (1, 5, 10, 100)  # usual ends of a scale that begins at 0
ODD = 0.05  # share of the labels that may be off the scale or the kind that the others show; of ten or more, one
RARE = 0.1  # share of the rows below which a label is rare
SEED = 42  # of --seed, by which training holds rows out
# the objective for each format, and the format that it needs as --dev and --test
RECOMMENDED = {
    SCORED: ("cosine", SCORED),
    LABELLED: ("contrastive", LABELLED),
    NLI: ("softmax", NLI),
    PAIRS: ("mnr", SCORED),
    TRIPLETS: ("mnr", SCORED),
    SENTENCES: ("simcse", SCORED),
}


def inspect(
    path: Path, tokenizer: Tokenizer | None = None, scale: float | None = None, progress: bool = False
) -> InspectedFile:
    """Read a file to its end and judge it. Lengths are counted if there is a tokenizer; ``scale`` ends the scores.

    Raises ``InputError`` only for a file that cannot be opened.
    """
    found = InspectedFile(path, tokenizer, scale)
    found.form, found.layout = recognise(path, found.findings)
    collect(found, progress)
    # a score and a label of 0 or 1 look alike: of three columns without a header, the labels of all rows tell
    if found.form is SCORED and found.layout.startswith("3 ") and "header" not in found.layout and most(found.binary):
        layout, found = found.layout, InspectedFile(path, tokenizer, scale)
        found.form, found.layout = LABELLED, layout
        collect(found, progress)
    judge(found)
    return found


def collect(found: InspectedFile, progress: bool) -> None:
    """Read the rows as training does, but to the end of the file."""
    if found.form:
        rows = Rows(found.path, "train", on_fault=found.findings.add)
        for row in Bar(read_rows(rows, found.form, scale=None), desc=str(found.path), unit=" rows", shown=progress):
            found.add(row)


# ----------------------------------------------------------------------------------------- one file


def judge(found: InspectedFile) -> None:
    """Add the findings that only all rows together show."""
    if found.lengths:
        found.lengths.judge(found.findings)
    if not found.lines:
        if found.findings.usable:
            found.findings.add("no-rows", found.path.name)
        return
    quoted = found.findings.get("quoted-tabs")
    if quoted and quoted.count < RARE * len(found.lines):  # those of speech
        quoted.level = NOTE
    if found.form is SCORED:
        judge_scores(found)
    if found.form in (LABELLED, NLI):
        judge_classes(found)
    if found.form in (PAIRS, TRIPLETS) and all_numbers(found.numbers):
        found.findings.add("number-texts", int(found.lines[0]))
    judge_repeats(found)


def most(mask: Sequence[bool] | np.ndarray) -> bool:
    """Whether what the mask says holds for all rows but a few."""
    mask = np.array(mask, bool)
    few = max(int(ODD * len(mask)), int(len(mask) >= 10))
    return int((~mask).sum()) <= few


def judge_scores(found: InspectedFile) -> None:
    """The scale, and what is off it."""
    labels = np.array(found.labels)
    if found.scale is None:
        found.scale = next((scale for scale in SCALES if most((labels >= 0) & (labels <= scale))), MAX_SCORE)
    if found.scale != MAX_SCORE:
        found.findings.add("other-scale", f"0 to {found.scale:g}")
    add_rows(found, "label-off-scale", (labels < 0) | (labels > found.scale))
    if found.scale > 1 and labels.max() <= 1:
        found.findings.add("label-off-scale", f"no label is above 1 on a scale of 0 to {found.scale:g}")
    if labels.min() == labels.max():
        found.findings.add("constant-label", int(found.lines[0]), f"{labels[0]:g}")
    add_rows(found, "identical-low", np.array(found.identical, bool) & (labels < found.scale / 2))


def judge_classes(found: InspectedFile) -> None:
    labels, counts = np.array(found.labels), found.label_counts()
    if found.form is LABELLED:
        add_rows(found, "identical-low", np.array(found.identical, bool) & (labels == 0))
    rare = min(counts, key=counts.__getitem__)
    if len(counts) == 1:
        found.findings.add("constant-label", int(found.lines[0]), rare)
    elif counts[rare] < RARE * len(labels):
        place = f"label {rare}: {counts[rare]:,} of {len(labels):,} rows"
        found.findings.add("imbalance", place, count=counts[rare])


def judge_repeats(found: InspectedFile) -> None:
    """The same texts with other labels, the same rows, and the same but for white space."""
    lines, add = found.lines, found.findings.add
    for i, j in repeats(found.pairs) if found.labels else []:
        if found.labels[i] != found.labels[j]:
            add("contradictions", f"lines {lines[j]} and {lines[i]}")
    known = set()
    for i, j in repeats(found.exact):
        known.add(i)
        add("duplicates", f"line {lines[i]}, as line {lines[j]}")
    for i, j in repeats(found.spaced):
        if i not in known:
            add("whitespace-twins", f"line {lines[i]}, as line {lines[j]}")


def add_rows(found: InspectedFile, name: str, mask: np.ndarray) -> None:
    """A finding for each row of the mask, with its label."""
    for i in np.flatnonzero(mask):
        found.findings.add(name, int(found.lines[i]), f"{found.labels[i]:g}")


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
    """What two files have in common; adds the findings to the later one."""
    exact = np.isin(np.array(later.pairs), np.array(earlier.pairs))
    close = np.isin(np.array(later.normal), np.array(earlier.normal)) & ~exact
    for name, mask in (("overlap", exact), ("overlap-normalised", close)):
        if count := int(mask.sum()):
            line = later.lines[mask.argmax()]
            place = f"{count:,} of {len(later.lines):,} rows, the first in line {line}, are in {earlier.path}"
            later.findings.add(name, place, count=count)
    texts = np.isin(np.unique(np.array(later.texts)), np.array(earlier.texts))
    found = {"exact": int(exact.sum()), "normalised": int(close.sum()), "texts": int(texts.sum())}
    return {"file": str(later.path), "with": str(earlier.path), **found}


def judge_format(first: InspectedFile, later: InspectedFile) -> None:
    """Whether a run on the first file can read the later one as --dev or --test."""
    objective, needed = RECOMMENDED.get(first.form, (None, None))
    if needed and later.form is not needed:
        later.findings.add("other-form", f"{later.name}; as --dev {objective} reads {needed.name}")
    elif first.form is later.form is SCORED and first.scale != later.scale:
        later.findings.add("scale-differs", f"0 to {later.scale:g}, not {first.scale:g}")


def judge_held_out(files: Sequence[InspectedFile]) -> None:
    """Whether a run can hold rows of the first file out if dev and test have no files."""
    first, missing = files[0], ("dev", "test")[len(files) - 1 :]
    if first.form not in (LABELLED, NLI) or not first.lines:
        return
    try:
        _, held_out = hold_out(first.labels, missing, SEED)
    except ValueError:
        first.findings.add("too-few", f"{len(first.lines):,} rows")
        return
    if first.form is LABELLED and not all(any(labels) for labels in held_out.values()):
        first.findings.add("too-few", "a share that is held out would have no label 1")


def training_command(
    files: Sequence[InspectedFile], model: str | None = None, max_length: int | None = None
) -> str | None:
    """The command that trains on the first file, with the second as dev and the third as test; None for no format."""
    first = files[0]
    if first.form is None or not first.lines:
        return None
    objective, needed = RECOMMENDED[first.form]
    words = ["--objective", objective, "--data", str(first.path)]
    scale = first.scale if first.form is SCORED else None
    for flag, found in zip(("--dev", "--test"), files[1:], strict=False):
        if found.form is needed and found.lines:
            words += [flag, str(found.path)]
            scale = scale or (found.scale if found.form is SCORED else None)
    if scale and scale != MAX_SCORE:
        words += ["--scale", f"{scale:g}"]
    words += ["--model", model] if model else []
    words += ["--max-length", str(max_length)] if max_length else []
    return shlex.join(["python", "-m", "minisbert.train", *words])
