"""The result of grading a piece, and what is remembered between two commands
(``lessons/mine/progress.json``).
"""

import ast
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lessons.grader.pieces import MINE, PIECES, Piece, lesson_file, mine
from minisbert import __version__
from minisbert.core import read_json
from minisbert.system.files import atomic_file, write_json

RUNGS = {
    "runs": "runs, right shape and dtype",
    "inputs": "inputs not changed",
    "example": "hand examples",
    "golden": "reference values, float64",
    "gradient": "reference gradients, float64",
    "traps": "special cases",
    "bonus": "bonus, beyond the lesson",
}
RUNS = RUNGS["runs"]


@dataclass
class Result:
    """``rungs`` are those that were tried, in order; only the last one may have failed.

    A piece passes without its bonus: only there may a piece that passed have a failed rung.
    """

    master: str
    status: str  # passed, failed, refused, unwritten
    # Title, whether it passed, what was seen.
    rungs: list[tuple[str, bool, str]] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)  # known mistakes that give these numbers
    meanings: list[str] = field(default_factory=list)  # of these mistakes, as clauses
    unexplained: str = ""  # the first wrong number that they do not give
    line: int = 0  # of the function in the learner's file

    @property
    def passed(self) -> bool:
        return self.status == "passed"


def not_started(piece: Piece) -> Result:
    return Result(
        piece.master, "unwritten", [(RUNS, False, f"lesson {piece.lesson:02} is not started")]
    )


def as_json(lessons: list[tuple[int, list[Result]]]) -> dict:
    """What a teacher collects: each piece's status, how far it came, a digest of its code."""
    rows = []
    for lesson, results in lessons:
        digests = function_digests(lesson)
        for result in results:
            failed = [(title, seen) for title, holds, seen in result.rungs if not holds]
            rung, seen = failed[0] if failed else (None, None)
            rows.append(
                {
                    "lesson": lesson,
                    "piece": result.master,
                    "difficulty": PIECES[result.master].level,
                }
                | {
                    "status": result.status,
                    "rungs_passed": [title for title, holds, _ in result.rungs if holds],
                }
                | {"rung": rung, "seen": seen, "mistakes": result.mistakes}
                | {"function_sha256": digests.get(result.master)}
            )
    passed = sum(row["status"] == "passed" for row in rows)
    return {"minisbert": __version__, "passed": passed, "of": len(PIECES), "pieces": rows}


def function_digests(lesson: int) -> dict[str, str]:
    """The sha256 of each piece's syntax tree: spaces, comments and docstring do not count."""
    return digests_of(mine(lesson), [piece for piece in PIECES.values() if piece.lesson == lesson])


def master_digests() -> dict[str, str]:
    """The same of the package's functions."""
    found: dict[str, str] = {}
    for piece in PIECES.values():
        found |= digests_of(piece.source, [piece])
    return found


def digests_of(path: Path, pieces: list[Piece]) -> dict[str, str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    found = {}
    for piece in pieces:
        node = defined(tree, piece.path)
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
            node = ast.FunctionDef(node.name, node.args, body, node.decorator_list)
            found[piece.master] = hashlib.sha256(ast.dump(node).encode()).hexdigest()
    return found


def defined(tree: ast.Module, path: list[str]) -> Any:
    """The last definition of ``["Layer", "forward"]`` in a file; None if there is none."""
    node: Any = tree
    for name in path:
        found = [
            child for child in getattr(node, "body", []) if getattr(child, "name", None) == name
        ]
        node = found[-1] if found else None
    return node


def place(piece: Piece, mistake: str = "", seen: str = "") -> str:
    """Where the lesson prints what a learner should read again.

    That is the line for a known mistake, or for what was ``seen`` to fail, or else the piece's
    formula: file, line, heading and the line itself, and where the lesson makes the mistake.
    """
    path = lesson_file(piece.lesson)
    if path is None:
        return f"lesson {piece.lesson:02}"
    lines = path.read_text(encoding="utf-8").splitlines()
    printed = line_to_read(piece, mistake, seen)
    at = next(i for i, line in enumerate(lines) if printed in line)
    heading = next(line for line in reversed(lines[: at + 1]) if line.startswith(("# ## ", "# # ")))
    title = heading.lstrip("# ")
    printed = " ".join(lines[at].strip("# ").split())
    text = f'lessons/{path.name}, line {at + 1}, "{title}": {printed}'
    makes_it = [
        number for number, line in enumerate(lines, start=1) if mistake and f'"{mistake}"' in line
    ]
    # Not every effect is a change: without dropout, say, nothing changes in eval mode.
    return f"{text} (line {makes_it[0]} says what this mistake does)" if makes_it else text


def line_to_read(piece: Piece, mistake: str, seen: str) -> str:
    """Part of the line of the lesson that a learner should read again."""
    if not mistake:
        return piece.line_for(seen) or piece.printed
    # A piece may have a mistake of its parts, whose formulas are on the same page.
    parts = [PIECES[part] for part in piece.parts if part in PIECES]
    for each in [piece, *parts]:
        if each.lesson == piece.lesson and (line := each.line_for(mistake)):
            return line
    return piece.printed


# ---------------------------------------------------------------------------------------- memory


class Progress:
    """Which pieces passed, and how many hints were shown; grading never reads it."""

    def __init__(self, folder: Path = MINE):
        self.path = folder / "progress.json"
        kept = read_json(self.path) if self.path.is_file() else {}
        self.results: dict[str, Any] = kept.get("results", {})
        self.hints: dict[str, int] = kept.get("hints", {})

    def save(self) -> None:
        with atomic_file(self.path) as partial:
            write_json(partial, {"results": self.results, "hints": self.hints})

    def remember(self, results: list[Result]) -> None:
        for result in results:
            digest = file_digest(PIECES[result.master].lesson)
            seen = result.rungs[-1][2] if result.rungs else ""
            self.results[result.master] = {"status": result.status, "file": digest, "seen": seen}
        self.save()

    def state(self, piece: Piece) -> str:
        """``passed``, ``failed`` and so on for the file as it is now, or why that is unknown."""
        digest = file_digest(piece.lesson)
        if not digest:
            return "not started"
        known = self.results.get(piece.master)
        if known is None:
            return "not run"
        return known["status"] if known["file"] == digest else f"changed, was {known['status']}"


def file_digest(lesson: int) -> str:
    """sha256 of the learner's file; empty if there is none."""
    path = mine(lesson)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    except OSError:  # a file that cannot be read is reported when it is loaded
        return ""
