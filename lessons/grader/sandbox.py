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

# For a statement of the file, or for one piece, the search for the mistake included. A right piece
# takes far less than one second.
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
    # The child has a session of its own, so that processes which the learner's code started end
    # with it.
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
            if busy:
                return busy, still_running(seconds)
            return busy, still_running(limit)
        finally:
            stop(child)
    if code < 0:
        return busy, f"it ended the process (signal {signal.Signals(-code).name})"
    return busy, f"it ended the process (exit code {code})"


def still_running(seconds: float) -> str:
    """Why a piece that was stopped after so many seconds has failed."""
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
    """Grade the pieces that ``grade`` names, and write each message as a line of JSON."""
    # Ctrl-C ends it silently: the parent has the message.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What the learner's code prints goes to the terminal.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(**message: Any) -> None:
        print(json.dumps(message), file=channel, flush=True)

    import torch

    # The ladder is imported here, so that its imports do not count as the learner's time, and
    # ``devices`` makes the first result as exact as the next.
    from lessons.grader import ladder  # noqa: F401
    from minisbert.system import devices  # noqa: F401

    torch.set_num_threads(1)  # tensors this small gain nothing from a second one
    limit_memory()
    lesson, seconds, *masters = arguments
    grade_here(int(lesson), masters, tell, float(seconds))


def limit_memory() -> None:
    """Let this process take ``MEMORY`` more than it has: beyond that an allocation fails."""
    # There is no such module on Windows, /proc may be missing, and the limit may be lower already.
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
    # Grading overwrites names of the file's namespace, so what the learner wrote is kept apart.
    definitions = dict(written.namespace)
    for master in masters:
        piece = PIECES[master]
        tell(busy=piece.master)
        result = grade_one(piece, written, definitions, path, seconds)
        tell(result=asdict(result))


def grade_one(
    piece: Piece, written: "Written", definitions: dict[str, Any], path: Path, seconds: float
) -> Result:
    """Grade one piece of a file, unless it is refused or missing."""
    if piece.master in written.objections:
        objection = written.objections[piece.master]
        return Result(piece.master, "refused", [("refused", False, objection)])

    function, problem = find(definitions, piece, path)
    if function is None:
        problem = written.why_missing(piece) or problem
        return Result(piece.master, "failed", [(RUNS, False, problem)])

    # A helper of the file looks names up in the file's namespace. Each piece is graded alone, so
    # it finds there the package's versions of the lesson's others.
    written.namespace.update(package_versions(piece.lesson))
    if len(piece.path) == 1:
        written.namespace[piece.path[0]] = function
    result = grade_piece(piece, function, definitions, path, seconds)
    result.line = inspect.unwrap(function).__code__.co_firstlineno
    return result


def package_versions(lesson: int) -> dict[str, Any]:
    """The package's functions and classes that the pieces of a lesson are, by name."""
    versions = {}
    for piece in pieces_of(lesson):
        if len(piece.path) == 1:
            versions[piece.path[0]] = piece.original
        else:
            versions[piece.path[0]] = piece.owner
    return versions


def grade_piece(
    piece: Piece, function: Callable, definitions: dict[str, Any], path: Path, seconds: float
) -> Result:
    """The ladder; a loop that never ends is stopped, and its line said."""
    from lessons.grader.ladder import climb

    try:
        with lent(definitions, piece), time_limit(seconds):
            return climb(piece, function)
    except StillRunning as error:
        problem = str(error)
        line = line_of(error, path)
        if line:
            problem = f"{path.name}, line {line}: {problem}"
        return Result(piece.master, "failed", [(RUNS, False, problem)])


# ----------------------------------------------------------------------------------- read the file


@dataclass
class Written:
    """What a learner's file defines, and why it does not define the rest."""

    namespace: dict[str, Any] = field(default_factory=dict)
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
    except Exception as error:  # The bytes may be no text.
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
    """Fill ``written.namespace`` statement by statement, without those that fail or do not end.

    A piece that is missing says so in its result. Whatever else is left out is said here.
    """
    import torch

    from lessons.grader.guard import refusing

    written.namespace.update({"__name__": path.stem, "__file__": str(path)})
    tree = ast.parse(text)
    # Imports from __future__ hold for the whole file, so every statement is compiled with them.
    futures = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures.append(node)
    of_pieces = {piece.path[0] for piece in pieces}
    refused: set[str] = set()
    for piece in pieces:
        refused.update(piece.refused)
    dtype = torch.get_default_dtype()
    try:
        with torch.set_grad_enabled(True), refusing(refused):
            for node in tree.body:
                renew()
                problem = run_statement(node, futures, path, written.namespace, seconds)
                name = getattr(node, "name", "")  # of a function or a class
                if problem and name in of_pieces:
                    written.broken[name] = problem
                elif problem:
                    print(f"{problem}; graded without this statement")
    finally:
        torch.set_default_dtype(dtype)


def run_statement(
    node: ast.stmt, futures: list, path: Path, namespace: dict[str, Any], seconds: float
) -> str:
    """Run one statement of the file; why it has failed, with the line, or nothing."""
    try:
        module = ast.Module(body=[*futures, node], type_ignores=[])
        code = compile(module, str(path), "exec", dont_inherit=True)
        with time_limit(seconds):
            exec(code, namespace)
    except SyntaxError as error:  # a ``break`` outside of a loop, say, which ``ast`` lets through
        return f"{path.name}, line {error.lineno or node.lineno}: not Python: {error.msg}"
    except StillRunning as error:
        return f"{path.name}, line {line_of(error, path) or node.lineno}: {error}"
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        line = line_of(error, path) or node.lineno
        text = type(error).__name__
        if str(error):
            text += f": {error}"
        return f"{path.name}, line {line}: {text}"
    return ""


BLOCK = re.compile(r"(\s*)(?:def|class|async def)\b\s*(\w*)")
DECORATOR = re.compile(r"\s*@\w")


def without_broken_blocks(text: str, name: str) -> tuple[str, dict[str, str]]:
    """A file without what is not Python, and for each function left out why, with the line.

    A half-written function must not take the others of its file with it. Neither must a statement
    outside of all functions and classes: that one is said here. In a class, a wrong statement
    counts as part of the method above it. ``SyntaxError`` if it is above the first method.
    """
    lines = text.split("\n")
    broken: dict[str, str] = {}
    while True:
        try:
            ast.parse("\n".join(lines))
            return "\n".join(lines), broken
        except SyntaxError as error:
            number = min(line_of_syntax_error(error), len(lines))
            problem = f"{name}, line {number}: not Python: {error.msg}"
            start = start_of_block(lines, number - 1)
            block = BLOCK.match(lines[start])

            # The numbers of the lines stay in both cases.
            if block and not lines[start].lstrip().startswith("class"):
                broken.setdefault(block[2], problem)
                end = end_of_block(lines, start)
                start = first_decorator(lines, start)
                lines[start:end] = [f"{block[1]}pass"] + [""] * (end - start - 1)
            elif block is None and lines[start].strip():
                print(f"{problem}; graded without this statement")
                end = end_of_statement(lines, start)
                lines[start:end] = [""] * (end - start)
            else:
                raise


def line_of_syntax_error(error: SyntaxError) -> int:
    """The number of the line where a mistake is, not of the line where Python notices it.

    "expected an indented block after function definition on line 3" is noticed on line 4, and that
    a ``try`` has no ``except`` on the line below the block.
    """
    message = error.msg or ""
    number = error.lineno or 1
    named = re.search(r"on line (\d+)", message)
    if named:
        return int(named[1])
    if message.startswith("expected 'except'"):
        return number - 1
    return number


def start_of_block(lines: list[str], wrong: int) -> int:
    """Where the function, class or statement begins that holds a wrong line, counted from 0."""
    if DECORATOR.match(lines[wrong]):
        for at in range(wrong, len(lines)):
            if BLOCK.match(lines[at]):
                return at
    for at in range(wrong, -1, -1):
        if BLOCK.match(lines[at]):
            return at
        # This statement at the margin is what is wrong, and not the function above it, if all that
        # is above it is Python, and with it no longer.
        indented = lines[at][:1].isspace()
        if not indented and is_python(lines[:at]) and not is_python(lines[: at + 1]):
            return at
    return wrong


def is_python(lines: list[str]) -> bool:
    """Can Python parse these lines?"""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def first_decorator(lines: list[str], start: int) -> int:
    """The line of a function's first decorator, or the function's own."""
    first = start
    while first > 0 and DECORATOR.match(lines[first - 1]):
        if depth_of(lines[first - 1]) != depth_of(lines[start]):
            break
        first -= 1
    return first


def end_of_block(lines: list[str], start: int) -> int:
    """The line after a function: something else begins there, as deep as the function or less."""
    for at in range(start + 1, len(lines)):
        line = lines[at]
        begins = BLOCK.match(line) or DECORATOR.match(line) or line.startswith(("import ", "from "))
        if begins and depth_of(line) <= depth_of(lines[start]):
            return at
    return len(lines)


def end_of_statement(lines: list[str], start: int) -> int:
    """The line after a statement: the next one at the margin that is no closing bracket."""
    for at in range(start + 1, len(lines)):
        line = lines[at]
        if line and not line.startswith((" ", "\t", ")", "]", "}")):
            return at
    return len(lines)


def depth_of(line: str) -> int:
    """How many spaces or tabs a line begins with."""
    return len(line) - len(line.lstrip())


def line_of(error: BaseException, path: Path) -> int:
    """The line of a file at which an exception left it; 0 if it never was there."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path) and frame.lineno]
    if lines:
        return lines[-1]
    return 0


@contextlib.contextmanager
def lent(definitions: dict[str, Any], piece: Piece) -> Iterator[None]:
    """While this lasts the package's class has the further methods of the learner's class."""
    theirs = definitions.get(piece.path[0])
    if len(piece.path) == 1 or not isinstance(theirs, type):
        yield
        return
    cells = own_class_cells(theirs)
    methods = further_methods(theirs, piece)
    try:
        # ``super()`` asks for the class in whose body it stands, and gets the package's, too.
        for cell in cells:
            cell.cell_contents = piece.owner
        for name, method in methods.items():
            setattr(piece.owner, name, method)
        yield
    finally:
        for name in methods:
            if name in vars(piece.owner):
                delattr(piece.owner, name)
        for cell in cells:
            cell.cell_contents = theirs


def further_methods(theirs: type, piece: Piece) -> dict[str, Any]:
    """What the learner's class defines and the package's class and its objects do not have."""
    attributes = set()
    for line in attributes_of(piece):
        if line.startswith("self."):
            attributes.add(line.removeprefix("self.").split()[0])

    methods = {}
    for name, value in vars(theirs).items():
        known = name in attributes or hasattr(piece.owner, name)
        if not known and not name.startswith("__"):
            methods[name] = value
    return methods


def find(definitions: dict[str, Any], piece: Piece, path: Path) -> tuple[Callable | None, str]:
    """The learner's function, or None and why: it must be written in this very file.

    It may have a decorator that keeps the function as ``__wrapped__``: ``functools.cache``,
    ``torch.no_grad()``.
    """
    candidate: Any = definitions.get(piece.path[0])
    if len(piece.path) == 2 and isinstance(candidate, type):
        candidate = vars(candidate).get(piece.path[1])
    name = ".".join(piece.path)
    if candidate is None:
        return None, f"{path.name} defines no {name}"
    if isinstance(candidate, staticmethod | classmethod):
        return (
            None,
            f"{name} is a {type(candidate).__name__}: write it as a plain method, with self as its "
            f"first parameter",
        )
    inner = candidate
    if callable(candidate) and not isinstance(candidate, type):
        inner = inspect.unwrap(candidate)
    if not isinstance(inner, FunctionType) or inner.__code__.co_filename != str(path):
        return None, f"{name} is not a function that is written in {path.name}"
    return candidate, ""


if __name__ == "__main__":
    main(sys.argv[1:])
