"""The proof that the parity suite would notice: every known mistake is planted, and none may survive."""

import contextlib
from collections.abc import Iterator

import pytest

from minisbert.mistakes import MISTAKES, planted
from tests import formula_checks, head_checks, loss_checks, metric_checks, pipeline_checks  # noqa: F401  (their checks)
from tests.checks import CHECKS
from tests.parity import Comparison


def failures() -> Iterator[Comparison]:
    """The numbers that are wrong, one check after the other, the quick ones first.

    A check that crashes goes on to the next: a mistake is to be told by its numbers, as the grader will.
    """
    for check in sorted(CHECKS.values(), key=lambda check: check.__name__ == "training_trace"):  # last, being slow
        with contextlib.suppress(RuntimeError, ValueError, AssertionError, KeyError):
            yield from (result for result in check() if not result.largest <= result.tolerance)


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistake_is_caught(name):
    chosen = MISTAKES[name]
    original = getattr(chosen.owner, chosen.attribute)
    with planted(chosen):
        caught = next(failures(), None)
    assert getattr(chosen.owner, chosen.attribute) is original, "the mistake stayed in the package"
    assert caught, f"{name} ({chosen.target}: {chosen.meaning}) survives the parity suite"


def test_the_table_is_as_large_as_promised_and_explains_itself():
    assert len(MISTAKES) >= 30
    assert len({chosen.meaning for chosen in MISTAKES.values()}) == len(MISTAKES)
    assert all(chosen.name == name and chosen.target for name, chosen in MISTAKES.items())
