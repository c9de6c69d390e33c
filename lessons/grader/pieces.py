"""The table of pieces: each is one function of the package that a learner writes anew.

The text of a piece is in ``cards.toml``, its hand examples and traps are in one of the
``cases_*.py``, its golden values in the parity suite (``tests/parity``).
"""

import importlib
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minisbert.core import InputError

ROOT = Path(__file__).resolve().parents[2]
# the book's, in the order of reading, after the appendix
CHAPTERS = [
    "checks",
    "tokenizer",
    "weights",
    "bert",
    "pooling",
    "encoder",
    "metrics",
    "heads",
    "losses",
    "data",
    "loop",
]
# where a piece's module is looked for, in this order
PLACES = (
    "minisbert/core",
    "minisbert/search",
    "minisbert/evaluation",
    "minisbert/training",
    "minisbert/architectures",
)
PLACES += ("lessons/search", "lessons/by_hand")
# the learner's files, which git ignores; a teacher points it at a student's folder
MINE = Path(os.environ.get("MINISBERT_MINE") or ROOT / "lessons" / "mine").resolve()


@dataclass(frozen=True)
class Piece:
    """One function of the package; ``master`` is its name: ``bert.attention``,
    ``bert.Layer.forward``.
    """

    lesson: int
    master: str
    level: int  # 1 to 3
    minutes: int
    what_for: str
    checks: tuple[str, ...]  # parity checks that it must pass
    hints: tuple[str, ...]
    fits: tuple[
        str, ...
    ] = ()  # of each hint: a pattern of what failed, for which it is the first to show; or empty
    parts: tuple[str, ...] = ()  # other functions whose known mistakes may be in it as well
    refused: tuple[str, ...] = ()  # ready-made functions that would do its work
    needs: tuple[
        str, ...
    ] = ()  # classes of the package that it is written with; all names of a ``stub``
    note: str = ""  # what its docstring leaves open, for the stub
    # the head of the function and its docstring, where the master does more than the lesson tells
    stub: str = ""
    printed: str = ""  # how the lesson prints it: part of one line of its file
    # For some mistakes and failed checks another line: a pattern of what went wrong, and the line.
    reads: tuple[tuple[str, str], ...] = ()

    @property
    def module(self) -> str:
        return self.master.split(".")[0]

    @property
    def path(self) -> list[str]:
        """Its name inside the module: ``["attention"]`` or ``["Layer", "forward"]``."""
        return self.master.split(".")[1:]

    def line_for(self, trouble: str) -> str:
        """Part of the lesson's line that ``trouble``, a mistake's name or a failed check, is about.

        Empty if no pattern of the card is found in it.
        """
        for pattern, line in self.reads:
            if re.search(pattern, trouble):
                return line
        return ""

    @property
    def is_init(self) -> bool:
        """Is it the __init__ of a module, which gives a new object its parts?"""
        return self.path[-1] == "__init__"

    @property
    def source(self) -> Path:
        """The file with the master copy: the first of that name that defines it."""
        files = [ROOT / place / f"{self.module}.py" for place in PLACES]
        defines = re.compile(rf"^(?:def|class) {self.path[0]}\b", re.MULTILINE)
        return next(
            file
            for file in files
            if file.is_file() and defines.search(file.read_text(encoding="utf-8"))
        )

    @property
    def home(self) -> str:
        """The name of its module: ``minisbert.core.bert``."""
        return ".".join(self.source.relative_to(ROOT).with_suffix("").parts)

    @cached_property
    def original_module(self) -> Any:
        """The module that defines it."""
        return importlib.import_module(self.home)

    @cached_property
    def owner(self) -> Any:
        """The module or class that defines it."""
        if len(self.path) == 2:
            return getattr(self.original_module, self.path[0])
        return self.original_module

    @cached_property
    def original(self) -> Callable:
        """The master function, before anything replaces it."""
        return getattr(self.owner, self.path[-1])


def stars(level: int) -> str:
    """A level of 1 to 3."""
    return "★" * level + "☆" * (3 - level)


def _read() -> tuple[dict[int, str], dict[str, Piece]]:
    cards = tomllib.loads((Path(__file__).parent / "cards.toml").read_text(encoding="utf-8"))
    for card in cards["pieces"]:
        card["fits"], card["hints"] = zip(
            *(hint.rpartition(" ?: ")[::2] for hint in card["hints"]), strict=True
        )
        card["reads"] = tuple(line.rpartition(" ?: ")[::2] for line in card.get("reads", ()))
    tuples = ("checks", "hints", "needs", "parts", "refused")
    pieces = {}
    for card in cards["pieces"]:
        card |= {key: tuple(card[key]) for key in tuples if key in card}
        pieces[card["master"]] = Piece(**card)
    lessons = {int(number): title for number, title in cards["lessons"].items()}
    return lessons, pieces


def _exercises() -> dict[str, dict[str, Any]]:
    found = tomllib.loads((Path(__file__).parent / "answers.toml").read_text(encoding="utf-8"))
    return {exercise["at"]: exercise for exercise in found["exercises"]}


EXERCISES = _exercises()  # hint and answer, by lesson and number: "05.2"
LESSONS, PIECES = _read()  # title by number; piece by master's name, in the order of the course


def pieces_of(lesson: int) -> list[Piece]:
    """The pieces of a lesson, in order. ``InputError`` if it does not exist or has none."""
    if lesson not in LESSONS:
        raise InputError(
            f"there is no lesson {lesson}: they run from {min(LESSONS)} to {max(LESSONS)}"
        )
    found = [piece for piece in PIECES.values() if piece.lesson == lesson]
    if not found:
        raise InputError(f"lesson {lesson:02}, {LESSONS[lesson]}, has no pieces to rebuild")
    return found


def mine(lesson: int) -> Path:
    """The learner's file for a lesson."""
    return MINE / f"lesson_{lesson:02}.py"


def lesson_file(lesson: int) -> Path | None:
    """The lesson's own file."""
    return next(iter(sorted((ROOT / "lessons").glob(f"{lesson:02}_*.py"))), None)
