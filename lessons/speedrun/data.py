"""What a submission may learn from: names of functions, each with the sentence on it."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.search import docstrings
from lessons.search.docstrings import Entry
from lessons.speedrun.judge import Encode
from minisbert.core.loop import Step


def pass_on(steps: Iterable[Step], total: int, encode: Encode) -> Iterable[Step]:
    return steps


@dataclass(frozen=True)
class Data:
    """All that a submission may learn from."""

    names: list[str]  # of functions and classes, in words; none of those that dev and test ask for
    sentences: list[str]  # what each of these names is said to do; none of dev's and test's either
    # A submission puts this around its training steps, with their number and what encodes by now:
    # the run draws its clock there.
    watch: Callable[[Iterable[Step], int, Encode], Iterable[Step]] = pass_on


def read_data() -> Data:
    """Names and sentences of Python's training modules, NumPy and PyTorch."""
    entries = docstrings.read_entries()
    asked = [entry for entry in entries if docstrings.split_of(entry.module) != "train"]
    known = [entry for entry in entries if docstrings.split_of(entry.module) == "train"]
    for package in (np, sys.modules["torch"]):
        known += docstrings.read_entries(Path(package.__file__).parent)
    known = without_leaks(known, asked)
    return Data([entry.query for entry in known], [entry.document for entry in known])


def without_leaks(known: list[Entry], asked: list[Entry]) -> list[Entry]:
    """The entries of ``known`` whose name and whose sentence no entry of ``asked`` has.

    PyTorch brings copies of Python's ``importlib`` and ``pickle``, which are modules of the test.
    Sentences are compared by their words, so that a full stop makes no other sentence.
    """
    names = {entry.query for entry in asked}
    sentences = {tuple(docstrings.terms(entry.document)) for entry in asked}
    kept = []
    for entry in known:
        if entry.query in names:
            continue
        if tuple(docstrings.terms(entry.document)) in sentences:
            continue
        kept.append(entry)
    return kept
