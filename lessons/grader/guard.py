"""What a learner's file may not do: import the answer, or call a function that is the answer.

``look`` reads the file before it runs and names the line; ``refusing`` catches at run time what
reading does not see: an alias, a ``getattr``, a module that calls the function itself. Both are for
learners who reach for what they know. They are no lock: the package is public, and a pasted
function passes.
"""

import ast
import inspect
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from torch.overrides import TorchFunctionMode

from lessons.grader.pieces import Piece
from lessons.grader.result import defined
from lessons.grader.stubs import helpers

ALLOWED = {
    "__future__",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "fractions",
    "functools",
    "heapq",
    "itertools",
    "math",
    "numbers",
    "numpy",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "torch",
    "typing",
    "unicodedata",
}
# What leads to other modules, and to files.
CLOSED = {"__import__", "exec", "eval", "compile", "open", "input", "breakpoint"}


class Refused(BaseException):
    """Not an ``Exception``, so that an ``except`` in the learner's file does not catch it."""


# ------------------------------------------------------------------------------------- by reading


def look(text: str, pieces: list[Piece]) -> dict[str, str]:
    """What must be refused: a piece's master name -> why, with the line.

    Code outside all pieces concerns them all.

    Raises ``SyntaxError`` for text that is not Python.
    """
    tree = ast.parse(text)
    # The package's pieces are there without a definition in the file.
    own = bound(tree) | {piece.path[0] for piece in pieces}
    spans = {piece.master: node for piece in pieces if (node := defined(tree, piece.path))}
    allowed = helpers(pieces)
    refused_by_any = set().union(*(piece.refused for piece in pieces))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        inside = []
        for piece in pieces:
            span = spans.get(piece.master)
            if span and span.lineno <= line <= span.end_lineno:
                inside.append(piece)
        # Code outside all pieces concerns them all, and must not use what any of them refuses.
        for piece in inside or pieces:
            refused = set(piece.refused) if inside else refused_by_any
            if reason := objection(node, refused, allowed, own):
                found.setdefault(piece.master, f"line {line}: {reason}")
    return found


def bound(tree: ast.Module) -> set[str]:
    """The names that a file itself defines, anywhere."""
    nodes = [*ast.walk(tree)]
    found = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    found |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return found | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def objection(
    node: ast.AST, refused: set[str], allowed: set[tuple[str, str]], own: set[str]
) -> str | None:
    """Why this node is not allowed in a learner's file, which defines the names ``own``."""
    if isinstance(node, ast.Import):
        reasons = [import_objection(alias.name, [], refused, allowed) for alias in node.names]
        return next(filter(None, reasons), None)
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return import_objection("." * node.level + (node.module or ""), names, refused, allowed)
    if isinstance(node, ast.Attribute):
        # A module may be called self.gelu.
        part = isinstance(node.value, ast.Name) and node.value.id == "self"
        return ready_made(node.attr) if node.attr in refused and not part else None
    if isinstance(node, ast.Name) and node.id not in own:
        if node.id in CLOSED:
            return f"{node.id} leads out of this file"
        return ready_made(node.id) if node.id in refused else None
    return None


def import_objection(
    module: str, names: list[str], refused: set[str], allowed: set[tuple[str, str]]
) -> str | None:
    root = module.split(".")[0]
    if root == "minisbert":
        wrong = [name for name in names if (module.removeprefix("minisbert."), name) not in allowed]
        if names and not wrong:
            return None
        fair = ", ".join(sorted(f"minisbert.{home}.{name}" for home, name in allowed)) or "nothing"
        name = ".".join([module, *wrong[:1]])
        answer = f"{name} of the package would be the answer, or leads to it"
        return f"{answer}; this lesson may import {fair}"
    if root not in ALLOWED:
        fair = ", ".join(sorted(ALLOWED - {"__future__"}))
        return f"{module or 'a neighbouring file'} may not be imported here; {fair} may"
    return next(
        (ready_made(part) for part in [*module.split("."), *names] if part in refused), None
    )


def ready_made(name: str) -> str:
    return f"{name} is ready-made and does the work of this piece: write it yourself"


# ---------------------------------------------------------------------------------- while it runs


class _Watch(TorchFunctionMode):
    """Sees every call of a torch function, by whatever name it was reached, and of the master."""

    def __init__(self, names: set[str], master: Callable | None):
        super().__init__()
        self.names = names
        self.code = getattr(inspect.unwrap(master), "__code__", None) if master else None
        self.seen = ""  # kept in case the learner's code swallows the exception

    def refuse(self, reason: str) -> None:
        self.seen = reason
        raise Refused(reason)

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is self.code:
            self.refuse("the package's own function is called: write it yourself")

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        if name in self.names:
            self.refuse(ready_made(name))
        return func(*args, **(kwargs or {}))


@contextmanager
def refusing(names: Iterable[str], master: Callable | None = None) -> Iterator[None]:
    """While this lasts, functions of these names, and the master, raise ``Refused``."""
    watch = _Watch(set(names), master)
    held = {}
    for home in (np, statistics):
        for name in watch.names & vars(home).keys():
            held[home, name] = vars(home)[name]
    hook = sys.getprofile()
    try:
        for home, name in held:
            setattr(home, name, lambda *_, name=name, **__: watch.refuse(ready_made(name)))
        with watch:
            if master:
                sys.setprofile(watch.profile)
            yield
    finally:
        sys.setprofile(hook)
        for (home, name), function in held.items():
            setattr(home, name, function)
    if watch.seen:
        raise Refused(watch.seen)
