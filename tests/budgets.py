"""The most lines that each room and the tests may have: growth is a decision. pytest prints what they have."""

from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "minisbert"
BUDGETS = {
    "core": 1505,
    "system": 1060,
    "search": 800,
    "architectures": 1200,
    "folder": 1050,
    "models": 2600,
    "compiled": 360,
    "data": 1300,
    "evaluation": 1100,
    "training": 2610,
    "corpus": 1215,
    "diagnosis": 2070,
    "commands": 1750,
}
RAISES = 254  # of InputError and ValueError, in the whole package
TEST_LINES = 29320


def files_of(room: str) -> list[Path]:
    if room == "commands":
        return sorted([*PACKAGE.glob("*.py"), *(PACKAGE / room).glob("*.py")])
    return sorted((PACKAGE / room).rglob("*.py"))


def count(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def lines_of(room: str) -> int:
    return count(files_of(room))


def report() -> list[str]:
    rows = [f"{room} {lines_of(room):,} of {most:,}" for room, most in BUDGETS.items()]
    total = sum(map(lines_of, BUDGETS))
    tests = count(TESTS.rglob("*.py"))
    return [f"lines of minisbert: {total:,} ({', '.join(rows)}), of tests: {tests:,} of {TEST_LINES:,}"]
