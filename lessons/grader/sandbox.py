"""The learner's code runs in a separate process, so a crash or an endless loop does no harm.

``grade`` starts ``python -m lessons.grader.sandbox LESSON PIECE...`` and reads one line of JSON per
piece. A piece that takes too long, or ends the process, has failed; the next ones get a new
process.
"""

import ast
import contextlib
import inspect
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Any

from lessons.grader.pieces import PIECES, ROOT, Piece, mine, pieces_of
from lessons.grader.result import RUNS, Result
from lessons.grader.stubs import attributes_of, own_class_cells

SECONDS = 20.0  # for one piece, the search for the mistake included; it takes far less than one
START_SECONDS = 120.0  # until torch is imported, even on a slow disk
MEMORY = 4 << 30  # bytes that the learner's code may take on top of torch's
FILE = "the file"  # reported as busy while the file is loaded

# ----------------------------------------------------------------------------------- from outside


def grade(lesson: int, seconds: float = SECONDS) -> list[Result]:
    """The results of a lesson's pieces, in order. The learner's file must exist."""
    results: dict[str, Result] = {}
    left = [piece.master for piece in pieces_of(lesson)]
    while left:
        busy, reason = _run_child(lesson, left, results, seconds)
        stopped = left if busy == FILE else [busy] if busy else []
        for master in stopped:
            results[master] = Result(master, "failed", [(RUNS, False, reason)])
        before = left
        left = [master for master in left if master not in results]
        if left == before:  # another turn would end like this one
            raise RuntimeError(f"the grader's process ended before it graded {left[0]}: {reason}")
    return [results[piece.master] for piece in pieces_of(lesson)]


def _run_child(
    lesson: int, masters: list[str], results: dict[str, Result], seconds: float
) -> tuple[str, str]:
    """Fill ``results`` from one process; return what it was busy with, and how it ended."""
    command = [sys.executable, "-m", "lessons.grader.sandbox", str(lesson), *masters]
    # a session of its own, so that processes which the learner's code started end with it
    with subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as child:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=lambda: [*map(lines.put, child.stdout), lines.put("")], daemon=True
        ).start()
        busy = ""
        limit = START_SECONDS
        try:
            while line := lines.get(timeout=limit):
                message = json.loads(line)
                busy = message.get("busy", "")
                limit = seconds
                if "result" in message:
                    result = Result(**message["result"])
                    results[result.master] = result
            code = child.wait(timeout=limit)
        except (queue.Empty, subprocess.TimeoutExpired):
            return busy, f"still running after {limit:g} seconds: a loop that never ends?"
        finally:
            stop(child)
    name = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return busy, f"it ended the process ({name})"


def stop(child: subprocess.Popen) -> None:
    """End a process and those that it started."""
    if sys.platform == "win32":
        subprocess.run(
            ["taskkill", "/F", "/T", "/PID", str(child.pid)], capture_output=True, check=False
        )
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------ from inside


def main(arguments: Sequence[str]) -> None:
    # Ctrl-C ends it silently: the parent has the message.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What the learner's code prints goes to the terminal.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**message: Any) -> None:
        print(json.dumps(message), file=channel, flush=True)

    import torch

    from lessons.grader import ladder  # noqa: F401 (here, so that its imports do not count as the learner's time)
    from minisbert.system import devices  # noqa: F401 (makes the first result as exact as the next)

    torch.set_num_threads(1)  # tensors this small gain nothing from a second one
    limit_memory()
    grade_here(int(arguments[0]), arguments[1:], tell)


def limit_memory() -> None:
    """Let this process take ``MEMORY`` more than it has: beyond that an allocation fails."""
    # where there is no such module (Windows) or no /proc, or where the limit is lower already
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def grade_here(lesson: int, masters: Sequence[str], tell: Callable[..., None]) -> None:
    """Load the learner's file and grade each piece; ``tell`` gets each start and result."""
    from lessons.grader.guard import Refused, look
    from lessons.grader.ladder import climb

    path = mine(lesson)
    pieces = pieces_of(lesson)
    tell(busy=FILE)
    objections: dict[str, str] = {}
    space: dict[str, Any] = {}
    broken: dict[str, str] = {}
    reason = ""
    try:
        # Some editors begin a file with a byte-order mark.
        text, broken = without_broken_blocks(path.read_text(encoding="utf-8-sig"), path.name)
        objections = look(text, pieces)
        if len(objections) < len(pieces):
            space = load_without_failing_imports(path, text, pieces)
    except SyntaxError as error:
        reason = f"{path.name}, line {error.lineno}: not Python: {error.msg}"
    except Refused as refused:
        objections = dict.fromkeys(masters, str(refused))
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        reason = f"{path.name} cannot be loaded: {told_at(error, path)}"
    written = dict(space)
    # Each piece is graded alone, with the package's versions of the lesson's others.
    masters_of = {
        piece.path[0]: piece.original if len(piece.path) == 1 else piece.owner for piece in pieces
    }
    for piece in (PIECES[master] for master in masters):
        tell(busy=piece.master)
        function, problem = find(written, piece, path) if not reason else (None, reason)
        if piece.master in objections:
            result = Result(piece.master, "refused", [("refused", False, objections[piece.master])])
        elif function is None:
            problem = broken.get(piece.path[-1], problem) if not reason else problem
            result = Result(piece.master, "failed", [(RUNS, False, problem)])
        else:
            space.update(masters_of | ({piece.path[0]: function} if len(piece.path) == 1 else {}))
            with lent(written, piece):
                result = climb(piece, function)
            result.line = inspect.unwrap(function).__code__.co_firstlineno
        tell(result=asdict(result))


BLOCK = re.compile(r"( *)(?:def|class|async def)\b\s*(\w*)")


def without_broken_blocks(text: str, name: str) -> tuple[str, dict[str, str]]:
    """A file without its functions that are not Python, and for each of them why, with the line.

    A half-written function must not take the others of its file with it. ``SyntaxError`` if what is
    wrong stands outside all functions.
    """
    lines = text.split("\n")
    broken: dict[str, str] = {}
    while True:
        try:
            ast.parse("\n".join(lines))
            return "\n".join(lines), broken
        except SyntaxError as error:
            # "expected an indented block after function definition on line 3" is found on line 4
            named = re.search(r"on line (\d+)", error.msg or "")
            number = int(named[1]) if named else error.lineno or 1
            start = min(number, len(lines)) - 1
            while start >= 0 and not BLOCK.match(lines[start]):
                start -= 1
            block = BLOCK.match(lines[start]) if start >= 0 else None
            if block is None or lines[start].lstrip().startswith("class"):
                raise
            depth = len(block[1])
            end = start + 1
            while end < len(lines) and not ends_block(lines[end], depth):
                end += 1
            broken.setdefault(block[2], f"{name}, line {number}: not Python: {error.msg}")
            blank = [f"{block[1]}pass"] + [""] * (end - start - 1)  # the numbers of the lines stay
            lines[start:end] = blank


def ends_block(line: str, depth: int) -> bool:
    """Does this line begin something that is no part of a function that stands this deep?"""
    started = BLOCK.match(line) or line.startswith(("@", "import ", "from "))
    return bool(started) and len(line) - len(line.lstrip()) <= depth


def line_of(error: BaseException, path: Path) -> int:
    """The line of a file at which an exception left it; 0 if it never was there."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path) and frame.lineno]
    return lines[-1] if lines else 0


def told_at(error: BaseException, path: Path) -> str:
    """An exception that ended the loading of a file, with the file's line."""
    line = line_of(error, path)
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}: {error}"


def load_without_failing_imports(path: Path, text: str, pieces: list[Piece]) -> dict[str, Any]:
    """What the learner's file defines; an import that fails is said, and costs who needs it."""
    lines = text.split("\n")
    while True:
        try:
            return load(path, "\n".join(lines), pieces)
        except ImportError as error:
            at = line_of(error, path) - 1
            if at < 0 or not lines[at].startswith(("import ", "from ")):
                raise
            print(f"{path.name}, {told_at(error, path)}; graded without this line")
            lines[at] = ""


def load(path: Path, text: str, pieces: list[Piece]) -> dict[str, Any]:
    """What the learner's file defines."""
    import torch

    from lessons.grader.guard import refusing

    space: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    dtype = torch.get_default_dtype()
    try:
        with (
            torch.set_grad_enabled(True),
            refusing(name for piece in pieces for name in piece.refused),
        ):
            exec(compile(text, str(path), "exec", dont_inherit=True), space)
    finally:
        torch.set_default_dtype(dtype)
    return space


@contextlib.contextmanager
def lent(space: dict[str, Any], piece: Piece) -> Iterator[None]:
    """While this lasts the package's class has the further methods of the learner's class."""
    theirs = space.get(piece.path[0])
    if len(piece.path) == 1 or not isinstance(theirs, type):
        yield
        return
    # ``super()`` asks for the class in whose body it stands, and gets the package's, too.
    cells = own_class_cells(theirs)
    for cell in cells:
        cell.cell_contents = piece.owner
    taken = {
        line.removeprefix("self.").split()[0]
        for line in attributes_of(piece)
        if line.startswith("self.")
    }
    names = [
        name
        for name in vars(theirs)
        if not name.startswith("__") and not hasattr(piece.owner, name)
    ]
    names = [name for name in names if name not in taken]
    try:
        for name in names:
            setattr(piece.owner, name, vars(theirs)[name])
        yield
    finally:
        for name in names:
            delattr(piece.owner, name)
        for cell in cells:
            cell.cell_contents = theirs


def find(space: dict[str, Any], piece: Piece, path: Path) -> tuple[Callable | None, str]:
    """The learner's function, or None and why: it must be written in this very file.

    It may have a decorator that keeps the function as ``__wrapped__``: ``functools.cache``,
    ``torch.no_grad()``.
    """
    found: Any = space.get(piece.path[0])
    if len(piece.path) == 2 and isinstance(found, type):
        found = vars(found).get(piece.path[1])
    name = ".".join(piece.path)
    if found is None:
        return None, f"{path.name} defines no {name}"
    if isinstance(found, staticmethod | classmethod):
        return (
            None,
            f"{name} is a {type(found).__name__}: write it as a plain method, with self as its "
            f"first parameter",
        )
    inner = inspect.unwrap(found) if callable(found) and not isinstance(found, type) else found
    if not isinstance(inner, FunctionType) or inner.__code__.co_filename != str(path):
        return None, f"{name} is not a function that is written in {path.name}"
    return found, ""


if __name__ == "__main__":
    main(sys.argv[1:])
