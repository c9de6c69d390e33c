"""Some check notices each known mistake; ``test_ladder.py`` has those in a lesson's piece."""

import inspect
from collections.abc import Iterator

import pytest

from lessons.grader.pieces import PIECES
from lessons.mistakes import MISTAKES, planted
from tests.parity import Comparison
from tests.parity.checks import CHECKS

pytestmark = pytest.mark.usefixtures("written_out")

OUTSIDE_PIECES = [name for name, mistake in MISTAKES.items() if mistake.target not in PIECES]


def likely_first(target: str) -> list[str]:
    """The names of all checks: those of the piece or that name it first, the slow one last."""
    likely = set()
    for piece in PIECES.values():
        if target in (piece.master, *piece.parts):
            likely.update(piece.checks)

    _, *path = target.split(".")  # bert.Layer.forward -> Layer, forward
    for name, check in CHECKS.items():
        if {path[0], path[-1]} & set(inspect.unwrap(check).__code__.co_names):
            likely.add(name)
    return sorted(CHECKS, key=lambda name: (name not in likely, name == "training_trace"))


def failures(target: str) -> Iterator[Comparison]:
    """The wrong numbers, check after check.

    A check that crashes is left for the next one: a mistake must be recognised by its numbers, as
    in the grader.
    """
    for name in likely_first(target):
        try:
            for result in CHECKS[name]():
                if not result.largest <= result.tolerance:
                    yield result
        except (RuntimeError, ValueError, AssertionError, KeyError):
            continue


@pytest.mark.parametrize("name", OUTSIDE_PIECES)
def test_planted_mistake_is_caught(name):
    """A mistake that no check notices could be in the package."""
    chosen = MISTAKES[name]
    original = getattr(chosen.owner, chosen.attribute)
    with planted(chosen):
        caught = next(failures(chosen.target), None)
    assert getattr(chosen.owner, chosen.attribute) is original, "the mistake stayed in the package"
    assert caught, f"{name} ({chosen.target}: {chosen.meaning}) survives the parity suite"
