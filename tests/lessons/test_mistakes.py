"""A check notices each known mistake that is planted in no lesson's piece; ``test_ladder.py`` has
those of pieces.
"""

import contextlib
import inspect
from collections.abc import Iterator

import pytest

from lessons.grader.pieces import PIECES
from lessons.mistakes import MISTAKES, planted
from tests.parity import Comparison
from tests.parity.checks import CHECKS

pytestmark = pytest.mark.usefixtures("written_out")


def failures(target: str) -> Iterator[Comparison]:
    """The wrong numbers, check after check: first those of the piece or that name it, last the slow
    one.

    A check that crashes is left for the next one: a mistake must be recognised by its numbers, as
    in the grader.
    """
    own = {
        name
        for piece in PIECES.values()
        if target in (piece.master, *piece.parts)
        for name in piece.checks
    }
    named = {target.split(".")[1], target.split(".")[-1]}
    own |= {
        name
        for name, check in CHECKS.items()
        if named & set(inspect.unwrap(check).__code__.co_names)
    }
    for name in sorted(CHECKS, key=lambda name: (name not in own, name == "training_trace")):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
            yield from (
                result for result in CHECKS[name]() if not result.largest <= result.tolerance
            )


@pytest.mark.parametrize(
    "name", [name for name, mistake in MISTAKES.items() if mistake.target not in PIECES]
)
def test_planted_mistake_is_caught(name):
    chosen = MISTAKES[name]
    original = getattr(chosen.owner, chosen.attribute)
    with planted(chosen):
        caught = next(failures(chosen.target), None)
    assert getattr(chosen.owner, chosen.attribute) is original, "the mistake stayed in the package"
    assert caught, f"{name} ({chosen.target}: {chosen.meaning}) survives the parity suite"
