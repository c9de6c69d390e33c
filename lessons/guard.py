"""What a learner's file may not do: import the answer, or call a function that is the answer.

Two nets. ``look`` reads the file before it runs and names the line. ``guarded_builtins`` and ``refusing`` catch at run
time what hides from reading: an alias, a ``getattr``, an ``__import__``. They stop what a student would try, not a
determined attack on the grader: a teacher reads the file as well.
"""

import ast
import builtins
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.overrides import TorchFunctionMode

from lessons.pieces import Piece
from lessons.stubs import helpers

ALLOWED = set(
    "bisect collections copy dataclasses functools heapq itertools math numbers numpy random re statistics string "
    "torch typing unicodedata".split()
)
# ways out of the file: to other modules (torch and numpy hold many), to frames, to files
FORBIDDEN_NAMES = set("__import__ exec eval compile open globals vars locals setattr delattr breakpoint input".split())
FORBIDDEN_ATTRIBUTES = (
    set(sys.stdlib_module_names) - ALLOWED - {"abc", "array", "select", "trace"}  # also names of torch and numpy
    | set("load hub fromfile memmap loadtxt genfromtxt tb_frame f_back f_globals f_locals gi_frame cr_frame".split())
)
HARMLESS = {"__init__", "__name__", "__len__", "__doc__"}


class Refused(BaseException):
    """Not an ``Exception``, so that an ``except`` in the learner's file does not catch it."""


# ------------------------------------------------------------------------------------- by reading


def look(text: str, pieces: list[Piece]) -> dict[str, str]:
    """What must be refused: a piece's master name -> why, with the line. Code outside all pieces concerns them all.

    Raises ``SyntaxError`` for text that is not Python.
    """
    tree = ast.parse(text)
    spans = {piece.master: span for piece in pieces if (span := span_of(tree, piece.path))}
    allowed = helpers(pieces)
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        inside = [piece for piece in pieces if piece.master in spans and line in spans[piece.master]]
        concerned = inside or pieces
        for piece in concerned:
            names = set(piece.refused) if inside else {name for other in pieces for name in other.refused}
            if reason := objection(node, names, allowed):
                found.setdefault(piece.master, f"line {line}: {reason}")
    return found


def span_of(tree: ast.Module, path: list[str]) -> range | None:
    """The lines of a function, ``["Layer", "forward"]``; None if the file does not define it."""
    node: Any = tree
    for name in path:
        node = next((child for child in node.body if getattr(child, "name", None) == name), None)
        if node is None:
            return None
    return range(node.lineno, node.end_lineno + 1)


def objection(node: ast.AST, refused: set[str], allowed: set[tuple[str, str]]) -> str | None:
    """Why this node is not allowed in a learner's file."""
    if isinstance(node, ast.Import):
        return next(filter(None, (import_objection(a.name, (), refused, allowed) for a in node.names)), None)
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return import_objection("." * node.level + (node.module or ""), names, refused, allowed)
    if isinstance(node, ast.Attribute):
        own = isinstance(node.value, ast.Name) and node.value.id == "self"  # the object's parts, whatever their names
        if not own and not isinstance(node.ctx, ast.Load):
            return f"{ast.unparse(node)} is set: change nothing outside this file"
        return None if own and not node.attr.startswith("__") else name_objection(node.attr, refused)
    if isinstance(node, ast.Name) and node.id in FORBIDDEN_NAMES:
        return f"{node.id} leads out of this file"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return next(filter(None, (name_objection(str(text), refused) for text in texts)), None)
    return None


def import_objection(module: str, names: Iterable[str], refused: set[str], allowed: set[tuple[str, str]]) -> str | None:
    root = module.split(".")[0]
    if root == "minisbert":
        wrong = [name for name in names if (module.removeprefix("minisbert."), name) not in allowed]
        if wrong or not names:
            fair = ", ".join(sorted(f"minisbert.{home}.{name}" for home, name in allowed)) or "nothing"
            name = f"{module}.{wrong[0]}" if wrong else module
            return f"{name} of the package would be the answer, or leads to it; this lesson may import {fair}"
        return None
    if root not in ALLOWED:
        return f"{module or 'a neighbouring file'} may not be imported here; {', '.join(sorted(ALLOWED))} may"
    parts = [*module.split(".")[1:], *names]
    return next(filter(None, (name_objection(part, refused) for part in parts)), None)


def name_objection(name: str, refused: set[str]) -> str | None:
    if name in refused:
        return f"{name} is ready-made and does the work of this piece: write it yourself"
    if name in FORBIDDEN_ATTRIBUTES or (name.startswith("__") and name not in HARMLESS):
        return f"{name} leads out of this file"
    return None


# ---------------------------------------------------------------------------------- while it runs


def guarded_builtins(pieces: list[Piece]) -> dict[str, Any]:
    """Python's builtins without the ways out."""
    refused = {name for piece in pieces for name in piece.refused}
    allowed = helpers(pieces)

    def guarded_import(name: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        if reason := import_objection("." * level + name, names or (), refused, allowed):
            raise Refused(reason)
        return __import__(name, scope, local, names, level)

    def guarded_getattr(owner: Any, name: str, *default: Any) -> Any:
        if reason := name_objection(name, refused):
            raise Refused(reason)
        return getattr(owner, name, *default)

    closed = {name: refusal(f"{name} leads out of this file") for name in FORBIDDEN_NAMES}
    return vars(builtins) | closed | {"__import__": guarded_import, "getattr": guarded_getattr}


def refusal(reason: str) -> Callable:
    def refuse(*_: Any, **__: Any) -> None:
        raise Refused(reason)

    return refuse


class _Watch(TorchFunctionMode):
    """Sees every call of a torch function, by whatever name it was reached."""

    def __init__(self, names: set[str]):
        super().__init__()
        self.names = names
        self.seen = ""  # kept in case the learner's code swallows the exception

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        if name in self.names:
            self.seen = name_objection(name, self.names)
            raise Refused(self.seen)
        return func(*args, **(kwargs or {}))


@contextmanager
def refusing(names: Iterable[str]) -> Iterator[None]:
    """While this lasts torch's and numpy's functions of these names raise ``Refused``."""
    names = set(names)
    held = {name: getattr(np, name) for name in names if hasattr(np, name)}
    watch = _Watch(names)
    try:
        for name in held:
            setattr(np, name, refusal(name_objection(name, names)))
        with watch:
            yield
    finally:
        for name, function in held.items():
            setattr(np, name, function)
    if watch.seen:
        raise Refused(watch.seen)
