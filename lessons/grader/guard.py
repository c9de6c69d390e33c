"""What a learner's file may not do: import the answer, or call a function that is the answer.

Two nets. ``look`` reads the file before it runs and names the line. ``guarded``, ``guarded_builtins`` and ``refusing``
catch at run time what hides from reading: an alias, a ``getattr``, an ``__import__``, a call of the package's own
function. They stop what a student would try, not a determined attack on the grader: a teacher reads the file as well.
"""

import ast
import builtins
import inspect
import math
import re
import statistics
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lessons.grader.pieces import Piece
from lessons.grader.result import defined
from lessons.grader.stubs import helpers

ALLOWED = set(
    "__future__ bisect collections copy dataclasses fractions functools heapq itertools math numbers numpy operator "
    "random re statistics string torch typing unicodedata".split()
)
# the only submodules of these that may be reached; each of the others leads to all modules there are
SUBMODULES = set(
    "collections.abc numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random numpy.typing torch.autograd "
    "torch.autograd.functional torch.cuda torch.distributions torch.fft torch.functional torch.linalg torch.nn "
    "torch.nn.functional torch.nn.init torch.nn.utils torch.optim torch.random torch.special".split()
)
# ways out of the file: to other modules (torch and numpy hold many), to frames, to files
FORBIDDEN_NAMES = set("__import__ exec eval compile open globals vars locals setattr delattr breakpoint input".split())
DATA = (torch.Tensor, np.ndarray, nn.Module, str, list, dict, set, int, float)
READABLE = [module for name, module in sys.modules.items() if name.split(".")[0] in ALLOWED]
# modules of the standard library that can be reached from an allowed one
REACHED = {name for module in READABLE for name, value in vars(module).items() if issubclass(type(value), ModuleType)}
FORBIDDEN_ATTRIBUTES = (
    # a tensor has ``chunk`` and ``select`` too
    (REACHED & set(sys.stdlib_module_names) - ALLOWED - {"abc", "array", "trace"}).difference(*map(dir, DATA))
    | set("load hub fromfile memmap loadtxt genfromtxt tb_frame f_back f_globals f_locals gi_frame cr_frame".split())
    | set("compiler ctypeslib export f2py fx jit library multiprocessing ops overrides package serialization".split())
    # what writes files, evaluates text, as of names and annotations, or reads and sets attributes by name
    | set("save savez savez_compressed savetxt tofile from_file fromregex dump get_type_hints ForwardRef".split())
    | set("PyTorchFileReader PyTorchFileWriter ScriptModule ScriptModuleSerializer LiteScriptModule".split())
    | set("CompilationUnit import_ir_module import_ir_module_from_buffer parse_ir DataSource".split())
    | set("ctypes dataclass make_dataclass singledispatch singledispatchmethod Formatter get_field".split())
    | set("attrgetter methodcaller update_wrapper wraps FunctionType CodeType MethodType LambdaType".split())
)
HARMLESS = {"__init__", "__name__", "__len__", "__doc__", "__future__", "_replace", "_asdict", "_fields"}
HARMLESS |= {"__getitem__", "__contains__", "__call__", "__file__"}


class Refused(BaseException):
    """Not an ``Exception``, so that an ``except`` in the learner's file does not catch it."""


# ------------------------------------------------------------------------------------- by reading


def look(text: str, pieces: list[Piece]) -> dict[str, str]:
    """What must be refused: a piece's master name -> why, with the line. Code outside all pieces concerns them all.

    Raises ``SyntaxError`` for text that is not Python.
    """
    tree = ast.parse(text)
    own = bound(tree) | {piece.path[0] for piece in pieces}  # the package's pieces are there without a definition
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names_of = Names(*imported(tree), own, {*classes}, {node for cls in classes.values() for node in parts_of(cls)})
    spans = {piece.master: span for piece in pieces if (span := span_of(tree, piece.path))}
    allowed = helpers(pieces)
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        inside = [piece for piece in pieces if piece.master in spans and line in spans[piece.master]]
        concerned = inside or pieces
        for piece in concerned:
            names = set(piece.refused) if inside else {name for other in pieces for name in other.refused}
            if reason := objection(node, names, allowed, names_of):
                found.setdefault(piece.master, f"line {line}: {reason}")
    return found


def span_of(tree: ast.Module, path: list[str]) -> range | None:
    """The lines of a function, ``["Layer", "forward"]``; None if the file does not define it."""
    node = defined(tree, path)
    return range(node.lineno, node.end_lineno + 1) if node else None


def imported(tree: ast.Module) -> tuple[dict[str, ModuleType], set[str]]:
    """The names in a file that are modules of others, also by assignment: ``F = torch.nn.functional``.

    And all names of things of others, which the file may use and not change.
    """
    found: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                found[alias.asname or name] = sys.modules.get(name)
        elif isinstance(node, ast.ImportFrom):
            module = sys.modules.get(node.module)
            found |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
    foreign = {*found}
    found = {name: value for name, value in found.items() if isinstance(value, ModuleType)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (value := reached(node.value, found)) is not None:
            targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
            foreign |= targets
            found |= dict.fromkeys(targets, value) if isinstance(value, ModuleType) else {}
    return found, foreign


def reached(node: ast.expr, known: dict[str, ModuleType]) -> Any:
    """What a dotted name of a module is: ``torch.nn.functional``; None for anything else."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    owner = reached(node.value, known) if isinstance(node, ast.Attribute) else None
    return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None


def bound(tree: ast.Module) -> set[str]:
    """The names that a file itself defines, anywhere."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return (
        stored | arguments | {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    )


def parts_of(cls: ast.ClassDef) -> Iterator[ast.Attribute]:
    """The attributes of a method's first parameter, whatever their names: ``self.token``."""
    for method in (node for node in cls.body if isinstance(node, ast.FunctionDef) and node.args.args):
        for node in ast.walk(method):
            base = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(base, ast.Name) and base.id == method.args.args[0].arg:
                yield node


@dataclass(frozen=True)
class Names:
    """What the names in a learner's file are."""

    modules: dict[str, ModuleType]  # of others, by the name that the file gives them
    foreign: set[str]  # these, and everything else that is imported
    own: set[str]  # everything that the file defines
    classes: set[str]
    parts: set[ast.AST]  # attributes of ``self``


def objection(node: ast.AST, refused: set[str], allowed: set[tuple[str, str]], names_of: Names) -> str | None:
    """Why this node is not allowed in a learner's file."""
    if isinstance(node, ast.Import):
        return next(filter(None, (import_objection(a.name, (), refused, allowed) for a in node.names)), None)
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return import_objection("." * node.level + (node.module or ""), names, refused, allowed)
    if isinstance(node, ast.Attribute):
        return attribute_objection(node, refused, names_of)
    if isinstance(node, ast.MatchClass):  # case object(sys=x) reads the attribute sys
        if node.patterns:  # the class's __match_args__, which may be any names, say what these read
            return "a class pattern without names of attributes may read any: write case Point(x=0), not case Point(0)"
        return next(filter(None, (name_objection(name, refused) for name in node.kwd_attrs)), None)
    if isinstance(node, ast.Name) and "*" in names_of.foreign and node.id in FORBIDDEN_ATTRIBUTES:
        return name_objection(node.id, refused)  # it may have come with a star
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in names_of.own:
        if node.id in FORBIDDEN_NAMES:
            return f"{node.id} leads out of this file"
        return name_objection(node.id, refused) if node.id in refused or node.id.startswith("__") else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return next(filter(None, (name_objection(str(text), refused) for text in texts)), None)
    return None


def attribute_objection(node: ast.Attribute, refused: set[str], names_of: Names) -> str | None:
    root = node.value
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    local = isinstance(root, ast.Name) and root.id in names_of.own - names_of.foreign
    if not isinstance(node.ctx, ast.Load) and not local:
        return f"{ast.unparse(node)} is set: change nothing outside this file"
    base = node.value.id if isinstance(node.value, ast.Name) else ""
    special = node.attr.startswith("__")
    if not special and (node in names_of.parts or (base in names_of.classes and node.attr.startswith("_"))):
        return None
    return name_objection(node.attr, refused) or module_objection(reached(node, names_of.modules))


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
        fair = ", ".join(sorted(ALLOWED - {"__future__"}))
        return f"{module or 'a neighbouring file'} may not be imported here; {fair} may"
    parts = [*module.split(".")[1:], *names]
    if reason := next(filter(None, (name_objection(part, refused) for part in parts)), None):
        return reason
    if module not in ALLOWED | SUBMODULES:
        return f"{module} may not be imported here: it is more than a lesson needs"
    values = [getattr(sys.modules.get(module), name, None) for name in names]
    return next(filter(None, map(module_objection, values)), None)


def module_objection(value: Any) -> str | None:
    if isinstance(value, ModuleType) and value.__name__ not in ALLOWED | SUBMODULES:
        return f"the module {value.__name__} is more than a lesson needs, and leads out of this file"
    return None


def name_objection(name: str, refused: Collection[str]) -> str | None:
    if name in refused:
        return f"{name} is ready-made and does the work of this piece: write it yourself"
    if name in FORBIDDEN_ATTRIBUTES or (name.startswith("_") and name not in HARMLESS):
        return f"{name} leads out of this file"
    return None


# ---------------------------------------------------------------------------------- while it runs

OWNER = "the owner"  # no name in a file can have a space, so none can hide this one


class _Owners(ast.NodeTransformer):
    """``a.b`` becomes ``owner(a, "b").b``, with a function that sees what ``a`` is: also in ``[numpy][0].lib``."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        owner = ast.Call(ast.Name(OWNER, ast.Load()), [node.value, ast.Constant(node.attr)], [])
        node.value = ast.copy_location(owner, node.value)
        return ast.fix_missing_locations(node)

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.MatchValue:
        return node  # it may be no call


def guarded(text: str, file: str) -> CodeType:
    """A learner's file, compiled to run with ``guarded_builtins``."""
    return compile(_Owners().visit(ast.parse(text)), file, "exec", dont_inherit=True)


def guarded_builtins(pieces: list[Piece]) -> dict[str, Any]:
    """Python's builtins without the ways out."""
    refused = {name for piece in pieces for name in piece.refused}
    allowed = helpers(pieces)

    def guarded_import(name: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        # subtle: numpy's and torch's C code also imports through the builtins of the frame that called it
        internal = name.split(".")[0] in ("numpy", "torch") and "._" in name and name in sys.modules
        reason = None if internal else import_objection("." * level + name, names or (), refused, allowed)
        if reason:
            raise Refused(reason)
        return __import__(name, scope, local, names, level)

    def owner(value: Any, name: str) -> Any:
        # behind a ``self`` all names pass ``look``: it may be the file's own object, with parts of any name
        if name in ("format", "format_map") and (reason := format_objection(value)):
            raise Refused(reason)
        foreign = isinstance(value, ModuleType | torch.Tensor | np.ndarray)
        if foreign and (reason := name_objection(name, ())):
            raise Refused(reason)
        if isinstance(value, ModuleType) and (reason := module_objection(getattr(value, name, None))):
            raise Refused(reason)
        return value

    def guarded_getattr(value: Any, name: str, *default: Any) -> Any:
        if reason := name_objection(name, refused):
            raise Refused(reason)
        return getattr(owner(value, name), name, *default)

    closed = {name: refusal(f"{name} leads out of this file") for name in FORBIDDEN_NAMES}
    return vars(builtins) | closed | {"__import__": guarded_import, "getattr": guarded_getattr, OWNER: owner}


def format_objection(value: Any) -> str | None:
    """Why a format string is not allowed: ``"{0.__traceback__}"`` reads attributes, in a field's width too."""
    if isinstance(value, str):
        reads = re.search(r"\{[^{}]*[.\[]", re.sub(r":[^{}]*", ":", str.replace(value, "{{", "")))
        return "a format string that reads attributes leads out of this file: write an f-string" if reads else None
    is_text = isinstance(value, super) or (isinstance(value, type) and issubclass(value, str))
    return "format of a string only: write an f-string" if is_text else None


def refusal(reason: str) -> Callable:
    def refuse(*_: Any, **__: Any) -> None:
        raise Refused(reason)

    return refuse


class _Watch(TorchFunctionMode):
    """Sees every call of a torch function, by whatever name it was reached, and of the master."""

    def __init__(self, names: set[str], master: Callable | None):
        super().__init__()
        self.names = names
        self.code = getattr(inspect.unwrap(master), "__code__", None) if master else None
        self.seen = ""  # kept in case the learner's code swallows the exception

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is self.code:
            self.seen = "the package's own function is called: write it yourself"
            raise Refused(self.seen)

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        if name in self.names:
            self.seen = name_objection(name, self.names)
            raise Refused(self.seen)
        return func(*args, **(kwargs or {}))


LIBRARIES = (builtins, math, statistics, np, np.linalg, torch, torch.Tensor, torch.linalg, nn.functional)


def classes() -> set[type]:
    """Torch's and the book's: a loop sets their methods under a name of its own, ``for M in [Linear]: M.forward =``."""
    modules = [
        module for name, module in sys.modules.items() if name == "torch.nn" or name.startswith("minisbert.core.")
    ]
    found = {value for module in modules for value in vars(module).values() if type(value) is type}
    mine = {cls for cls in found if cls.__module__.startswith(("torch.nn", "minisbert.core."))}
    return {cls for cls in mine if not issubclass(cls, torch.optim.Optimizer)}  # torch wraps their steps late


def unwrapped(value: Any) -> Any:
    return inspect.unwrap(value) if callable(value) else value


@contextmanager
def untouched() -> Iterator[None]:
    """Raises ``Refused`` at the end if something was set in the libraries that the grader computes with."""
    before = [(owner, dict(vars(owner))) for owner in (*LIBRARIES, *classes())]
    modes = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(modes[0])
        torch.set_default_dtype(modes[1])
        changed = []
        for owner, held in before:
            now = vars(owner)
            wrong = [name for name, value in held.items() if now.get(name) is not value]
            # torch wraps some of its functions late
            wrong = [name for name in wrong if unwrapped(now.get(name)) is not unwrapped(held[name])]
            for name in wrong:
                setattr(owner, name, held[name])
            # a module imports its parts late; the names of slots are a note of the library's copy
            added = vars(owner).keys() - held - {"__slotnames__"} if isinstance(owner, type) else ()
            for name in added:
                delattr(owner, name)
            changed += [f"{owner.__name__}.{name}" for name in (*wrong, *added)]
    if changed:
        raise Refused(f"{changed[0]} is set: change nothing outside this file")


@contextmanager
def refusing(names: Iterable[str], master: Callable | None = None) -> Iterator[None]:
    """While this lasts torch's, numpy's and statistics' functions of these names, and the master, raise ``Refused``."""
    names = set(names)
    held = {(home, name): getattr(home, name) for home in (np, statistics) for name in names if hasattr(home, name)}
    watch = _Watch(names, master)
    before = sys.getprofile()
    try:
        for home, name in held:
            setattr(home, name, refusal(name_objection(name, names)))
        with watch:
            if master:
                sys.setprofile(watch.profile)
            yield
    finally:
        sys.setprofile(before)
        for (home, name), function in held.items():
            setattr(home, name, function)
    if watch.seen:
        raise Refused(watch.seen)
