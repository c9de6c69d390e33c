"""The learner's code runs in a separate process, so a crash or an endless loop does no harm.

``grade`` starts ``python -m lessons.grader.sandbox LESSON SECONDS PIECE...`` and reads one line of
JSON per piece. A piece that takes too long has failed, and so has a piece that ends the process;
then the next ones get a new process. The file is run statement by statement: one that fails, or
does not end, costs what it would have defined, and nothing else.
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from lessons.grader.pieces import PIECES, ROOT, Piece, mine, pieces_of
from lessons.grader.result import RUNS, Result
from lessons.grader.stubs import attributes_of, own_class_cells

# For a statement of the file, or for one piece, the search for the mistake included. It takes far
# less than one.
SECONDS = 20.0
# How much later the process is ended, if the limit did not stop the learner's code inside of it.
GRACE = 3.0
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
        if busy == FILE:
            stopped = left
        elif busy:
            stopped = [busy]
        else:
            stopped = []
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
    command = [sys.executable, "-m", "lessons.grader.sandbox"]
    command += [str(lesson), str(seconds), *masters]
    # a session of its own, so that processes which the learner's code started end with it
    with subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as child:
        lines: queue.Queue[str] = queue.Queue()

        def read_lines() -> None:
            for line in child.stdout:
                lines.put(line)
            lines.put("")  # the end

        threading.Thread(target=read_lines, daemon=True).start()
        busy = ""
        limit = START_SECONDS
        try:
            while line := lines.get(timeout=limit):
                message = json.loads(line)
                busy = message.get("busy", "")
                limit = seconds + GRACE
                if "result" in message:
                    result = Result(**message["result"])
                    results[result.master] = result
            code = child.wait(timeout=limit)
        except (queue.Empty, subprocess.TimeoutExpired):
            return busy, still_running(seconds if busy else limit)
        finally:
            stop(child)
    name = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return busy, f"it ended the process ({name})"


def still_running(seconds: float) -> str:
    return f"still running after {seconds:g} seconds (a loop that never ends?)"


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
    lesson, seconds, *masters = arguments
    grade_here(int(lesson), masters, tell, float(seconds))


def limit_memory() -> None:
    """Let this process take ``MEMORY`` more than it has: beyond that an allocation fails."""
    # where there is no such module (Windows) or no /proc, or where the limit is lower already
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


class StillRunning(BaseException):
    """Not an ``Exception``, so that an ``except`` in the learner's file does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``StillRunning`` where the code is after so many seconds.

    Where there is no alarm (Windows), ``grade`` ends the process a little later.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not in_main_thread:
        yield
        return

    def stop_here(*_: Any) -> None:
        raise StillRunning(still_running(seconds))

    before = signal.signal(signal.SIGALRM, stop_here)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --------------------------------------------------------------------------------- grade the pieces


def grade_here(
    lesson: int, masters: Sequence[str], tell: Callable[..., None], seconds: float = SECONDS
) -> None:
    """Load the learner's file and grade each piece; ``tell`` gets each start and result."""
    path = mine(lesson)
    pieces = pieces_of(lesson)
    written = read_file(path, pieces, lambda: tell(busy=FILE), seconds)
    # A helper of the file looks names up here while a piece is graded.
    space = written.space
    learners = dict(space)
    # Each piece is graded alone, with the package's versions of the lesson's others.
    masters_of = {}
    for piece in pieces:
        masters_of[piece.path[0]] = piece.original if len(piece.path) == 1 else piece.owner

    for master in masters:
        piece = PIECES[master]
        tell(busy=piece.master)
        if piece.master in written.objections:
            objection = written.objections[piece.master]
            result = Result(piece.master, "refused", [("refused", False, objection)])
            tell(result=asdict(result))
            continue
        function, problem = find(learners, piece, path)
        if function is None:
            problem = written.why_missing(piece) or problem
            result = Result(piece.master, "failed", [(RUNS, False, problem)])
            tell(result=asdict(result))
            continue
        space.update(masters_of)
        if len(piece.path) == 1:
            space[piece.path[0]] = function
        result = grade_piece(piece, function, learners, path, seconds)
        result.line = inspect.unwrap(function).__code__.co_firstlineno
        tell(result=asdict(result))


def grade_piece(
    piece: Piece, function: Callable, learners: dict[str, Any], path: Path, seconds: float
) -> Result:
    """The ladder; a loop that never ends is stopped, and its line said."""
    from lessons.grader.ladder import climb

    try:
        with lent(learners, piece), time_limit(seconds):
            return climb(piece, function)
    except StillRunning as error:
        line = line_of(error, path)
        where = f"{path.name}, line {line}: " if line else ""
        return Result(piece.master, "failed", [(RUNS, False, f"{where}{error}")])


# ----------------------------------------------------------------------------------- read the file


@dataclass
class Written:
    """What a learner's file defines, and why it does not define the rest."""

    space: dict[str, Any] = field(default_factory=dict)
    objections: dict[str, str] = field(default_factory=dict)  # master -> why it is refused
    broken: dict[str, str] = field(default_factory=dict)  # function or class -> why it is missing
    reason: str = ""  # why nothing of the file could be read

    def why_missing(self, piece: Piece) -> str:
        """Why the file does not define a piece; empty if nothing is known."""
        if self.reason:
            return self.reason
        name = piece.path[-1]
        return self.broken.get(name) or self.broken.get(piece.path[0], "")


def read_file(
    path: Path,
    pieces: list[Piece],
    renew: Callable[[], None] = lambda: None,
    seconds: float = SECONDS,
) -> Written:
    """Run the learner's file.

    ``renew`` is called before each statement, because each has ``seconds`` of its own.
    """
    from lessons.grader.guard import Refused, look

    renew()
    written = Written()
    try:
        # Some editors begin a file with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
        text, written.broken = without_broken_blocks(text, path.name)
        written.objections = look(text, pieces)
    except SyntaxError as error:
        written.reason = f"{path.name}, line {error.lineno}: not Python: {error.msg}"
        return written
    except Exception as error:  # bytes that are no text, say
        written.reason = f"{path.name} cannot be loaded: {type(error).__name__}: {error}"
        return written
    if len(written.objections) == len(pieces):
        return written
    try:
        run_statements(path, text, pieces, written, renew, seconds)
    except Refused as refused:
        for piece in pieces:
            written.objections[piece.master] = str(refused)
    return written


def run_statements(
    path: Path,
    text: str,
    pieces: list[Piece],
    written: Written,
    renew: Callable[[], None],
    seconds: float,
) -> None:
    """Fill ``written.space`` statement by statement, without those that fail or do not end.

    A piece that is missing says so in its result. Whatever else is left out is said here.
    """
    import torch

    from lessons.grader.guard import refusing

    written.space.update({"__name__": path.stem, "__file__": str(path)})
    tree = ast.parse(text)
    # They hold for the whole file, so every statement is compiled with them.
    futures = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    of_pieces = {piece.path[0] for piece in pieces}
    refused = {name for piece in pieces for name in piece.refused}
    dtype = torch.get_default_dtype()
    try:
        with torch.set_grad_enabled(True), refusing(refused):
            for node in tree.body:
                renew()
                problem = run_statement(node, futures, path, written.space, seconds)
                name = getattr(node, "name", "")  # of a function or a class
                if problem and name in of_pieces:
                    written.broken[name] = problem
                elif problem:
                    print(f"{problem}; graded without this statement")
    finally:
        torch.set_default_dtype(dtype)


def run_statement(
    node: ast.stmt, futures: list, path: Path, space: dict[str, Any], seconds: float
) -> str:
    """Run one statement of the file; why it has failed, with the line, or nothing."""
    try:
        module = ast.Module(body=[*futures, node], type_ignores=[])
        code = compile(module, str(path), "exec", dont_inherit=True)
        with time_limit(seconds):
            exec(code, space)
    except SyntaxError as error:  # a ``break`` outside of a loop, say, which ``ast`` lets through
        return f"{path.name}, line {error.lineno or node.lineno}: not Python: {error.msg}"
    except StillRunning as error:
        return f"{path.name}, line {line_of(error, path) or node.lineno}: {error}"
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        line = line_of(error, path) or node.lineno
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"{path.name}, line {line}: {text}"
    return ""


BLOCK = re.compile(r"( *)(?:def|class|async def)\b\s*(\w*)")


def without_broken_blocks(text: str, name: str) -> tuple[str, dict[str, str]]:
    """A file without its functions that are not Python, and for each of them why, with the line.

    A half-written function must not take the others of its file with it, and a line above all
    functions must not, either: that one is said here. ``SyntaxError`` if a class's first line is
    wrong.
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
            problem = f"{name}, line {number}: not Python: {error.msg}"
            start = min(number, len(lines)) - 1
            while start >= 0 and not BLOCK.match(lines[start]):
                start -= 1

            if start < 0 and lines[number - 1].strip():
                print(f"{problem}; graded without this line")
                lines[number - 1] = ""
                continue
            if start < 0 or lines[start].lstrip().startswith("class"):
                raise

            block = BLOCK.match(lines[start])
            depth = len(block[1])
            end = start + 1
            while end < len(lines) and not ends_block(lines[end], depth):
                end += 1
            broken.setdefault(block[2], problem)
            # The numbers of the lines stay.
            lines[start:end] = [f"{block[1]}pass"] + [""] * (end - start - 1)


def ends_block(line: str, depth: int) -> bool:
    """Does this line begin something that is no part of a function that stands this deep?"""
    started = BLOCK.match(line) or line.startswith(("@", "import ", "from "))
    return bool(started) and len(line) - len(line.lstrip()) <= depth


def line_of(error: BaseException, path: Path) -> int:
    """The line of a file at which an exception left it; 0 if it never was there."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path) and frame.lineno]
    return lines[-1] if lines else 0


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
