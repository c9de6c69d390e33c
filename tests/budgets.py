"""The most lines that each room and the tests may have: growth is a decision. pytest prints what they have."""

from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "minisbert"
BUDGETS = {
    "core": 1505,
    "system": 1009,
    "fast": 848,
    "models": 2850,
    "models/modern": 1892,  # the appendix; no file of it above 200
    "data": 1284,
    "evaluation": 1079,
    "training": 2561,
    "corpus": 1201,
    "diagnosis": 2035,
    "commands": 1477,
}
RAISES = 254  # of InputError and ValueError, in the whole package
TEST_LINES = 29300


def files_of(room: str) -> list[Path]:
    if room == "commands":
        return sorted(PACKAGE.glob("*.py"))
    inner = [PACKAGE / other for other in BUDGETS if other.startswith(f"{room}/")]  # folders with a budget of their own
    return sorted(path for path in (PACKAGE / room).rglob("*.py") if path.parent not in inner)


def count(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def lines_of(room: str) -> int:
    return count(files_of(room))


def report() -> list[str]:
    rows = [f"{room} {lines_of(room):,} of {most:,}" for room, most in BUDGETS.items()]
    total = sum(map(lines_of, BUDGETS))
    tests = count(TESTS.rglob("*.py"))
    return [f"lines of minisbert: {total:,} ({', '.join(rows)}), of tests: {tests:,} of {TEST_LINES:,}"]
