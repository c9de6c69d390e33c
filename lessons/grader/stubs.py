"""Stubs: what a learner starts from, generated from the package's one master copy by ``ast``.

A stub has the master's arguments and its docstring, where the lesson prints the formula, and what
must not be called; nothing of the body. Where the master does more than its lesson tells, the card
has the stub instead. With it comes what the master uses: imports, functions of the package that are
not pieces of the same lesson, and for a method the attributes of its object.
"""

import ast
import copy
import inspect
import io
import re
import textwrap
import tokenize
from functools import cache
from pathlib import Path
from types import CellType, FunctionType

from lessons.grader.pieces import LESSONS, PIECES, ROOT, Piece, pieces_of
from lessons.grader.result import place

WIDTH = 116
# A function of the book that chooses between a formula and PyTorch's operation for it. A learner
# calls the formula.
CHOOSES = {"attend": "attention"}


class Source:
    """A file of the package: its lines, its tree, its comments."""

    def __init__(self, path: Path):
        # Some editors begin a learner's file with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
        self.dotted = f"{path.parent.name}.{path.stem}"  # inside the package: core.bert
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token for token in tokens if token.type == tokenize.COMMENT]
        # The numbers of lines that are a comment.
        self.alone = {t.start[0] for t in comments if not t.line[: t.start[1]].strip()}

    def find(self, path: list[str]) -> ast.FunctionDef | ast.ClassDef:
        """The definition of ``["Layer", "forward"]``."""
        node: ast.AST = self.tree
        for name in path:
            node = next(child for child in node.body if getattr(child, "name", None) == name)
        return node

    def home(self, name: str) -> str | None:
        """The module that defines a name here: ``core.encoder`` for ``cosine`` of the losses."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                return self.dotted
            if isinstance(node, ast.Assign) and name in names_in(*node.targets):  # a table
                return self.dotted
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                if node.level:  # from .bert import attention: another chapter
                    return ".".join(filter(None, (self.dotted.split(".")[0], node.module)))
                return (
                    node.module.removeprefix("minisbert.")
                    if node.module.startswith("minisbert.")
                    else None
                )
        return None


source_of = cache(Source)


def names_in(*nodes: ast.AST) -> set[str]:
    found = set()
    for node in nodes:
        found |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return found


def names_used(piece: Piece) -> set[str]:
    """The names in a master's defaults and body; those that the card needs, if it has the stub.

    Neither those of its checks nor those of PyTorch's operation in place of a formula (``FUSED``).
    """
    if piece.stub:
        return set(piece.needs)
    function = source_of(piece.source).find(piece.path)
    body: list[ast.stmt] = []
    for node in function.body:
        if isinstance(node, ast.If) and "FUSED" in names_in(node.test):
            body += node.orelse
        elif not (isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise)):
            body.append(node)
    used = names_in(*body, *function.args.defaults)
    if piece.is_init:  # of the class's line
        used |= names_in(*source_of(piece.source).find(piece.path[:1]).bases)
    used |= set(piece.needs)
    return used | ({"torch"} if "Tensor" in names_in(function.args) else set())


# ------------------------------------------------------------------------------------- one function


def stub(piece: Piece) -> str:
    """The function with a body that raises ``NotImplementedError``, at the left margin."""
    unwritten = f'    raise NotImplementedError("{piece.master}")'
    where = re.match('[^"]*"[^"]*"', place(piece))[0]  # without the line itself
    if piece.stub:
        return f"{piece.stub.strip()}\n    # {where}\n{unwritten}"
    function = source_of(piece.source).find(piece.path)
    arguments = copy.deepcopy(function.args)
    for node in ast.walk(arguments):
        if isinstance(node, ast.arg):
            node.annotation = None
    lines = [f"def {function.name}({ast.unparse(arguments)}):"]
    if doc := ast.get_docstring(function):
        lines += textwrap.indent(
            f'"""{doc}' + ('\n"""' if "\n" in doc else '"""'), "    "
        ).splitlines()
    refused = ", ".join(name for name in piece.refused if not name.startswith("_"))
    for text in (where, piece.note, f"Not to be called: {refused}." if refused else ""):
        lines += textwrap.wrap(text, WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    return "\n".join([*lines, unwritten])


def own_class_cells(cls: type) -> list[CellType]:
    """Where the methods of a class keep that class for ``super()``."""
    cells = []
    for value in vars(cls).values():
        function = inspect.unwrap(value) if callable(value) else value
        if isinstance(function, FunctionType) and "__class__" in function.__code__.co_freevars:
            at = function.__code__.co_freevars.index("__class__")
            cells.append(function.__closure__[at])
    return cells


# --------------------------------------------------------------------------------- a lesson's file


def lesson_stubs(lesson: int) -> str:
    """The learner's file: a heading, imports, and the stubs, methods inside their classes."""
    pieces = pieces_of(lesson)
    blocks: dict[str, list[str]] = {}  # a class with its methods, or a function
    for piece in pieces:
        if len(piece.path) == 2:
            block = blocks.setdefault(piece.path[0], [heading_of_class(piece)])
            block.append(textwrap.indent(stub(piece), "    "))
        else:
            blocks[piece.path[0]] = [stub(piece)]
    title = f'"""Lesson {lesson:02}: {LESSONS[lesson]}. '
    title += f"Fill in the bodies; python -m lessons.check run {lesson:02}\n\n"
    title += 'If the package raises ValueError for bad arguments, yours need not.\n"""'
    head = "\n\n".join(filter(None, [title, imports(pieces)]))
    return "\n\n\n".join([head, *("\n\n".join(block) for block in blocks.values())]) + "\n"


def heading_of_class(piece: Piece) -> str:
    """``class NAME:``, its docstring's first line, and comments on what its objects have."""
    source = source_of(piece.source)
    node = source.find(piece.path[:1])
    doc = textwrap.fill(
        (ast.get_docstring(node) or "").splitlines()[0], WIDTH - 8, subsequent_indent="    "
    )
    methods = [other for other in pieces_of(piece.lesson) if other.path[:-1] == piece.path[:1]]
    if any(other.is_init for other in methods):  # the learner's __init__ says what they have
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f'class {node.name}({bases}):\n    """{doc}"""'
    lines = [
        f"class {node.name}:",
        f'    """{doc}"""',
        "",
        "    # what its objects have, in the package:",
    ]
    hidden = set()
    used = set()
    for other in methods:
        hidden |= {other.path[1], *other.refused}
        nodes = ast.walk(source.find(other.path))
        used |= {inner.attr for inner in nodes if hasattr(inner, "attr")}
    held = [line.split("  # under")[0] for line in attributes(source, node, hidden)]
    held = [line for line in held if re.findall(r"\w+", line.removeprefix("self."))[0] in used]
    return "\n".join([*lines, *(f"    #   {line}" for line in held)])


def attributes(source: Source, node: ast.ClassDef, hidden: set[str]) -> list[str]:
    """What objects of a class have, its bases' first.

    Fields, what ``__init__`` sets, and methods that are not hidden.
    """
    found = []
    defined = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
    for base in node.bases:
        # Of nn.Module there is nothing to tell.
        home = source.home(base.id) if isinstance(base, ast.Name) else None
        if home:
            other = source_of(ROOT / "minisbert" / f"{home.replace('.', '/')}.py")
            found += attributes(other, other.find([base.id]), hidden | defined)
    for child in node.body:
        line = source.lines[child.lineno - 1].strip()
        if isinstance(child, ast.AnnAssign):
            found.append(line)
        elif isinstance(child, ast.FunctionDef) and child.name == "__init__":
            sets = (inner.lineno for inner in child.body if isinstance(inner, ast.Assign))
            found += [
                text
                for number in sets
                if (text := source.lines[number - 1].strip()).startswith("self.")
            ]
        elif (
            isinstance(child, ast.FunctionDef)
            and child.name not in hidden
            and not child.name.startswith("_")
        ):
            found.append(
                f"self.{child.name}({', '.join(argument.arg for argument in child.args.args[1:])})"
            )
    return found


def attributes_of(piece: Piece) -> list[str]:
    """What the objects of a method's class have in the package."""
    source = source_of(piece.source)
    return attributes(source, source.find(piece.path[:1]), set())


def imports(pieces: list[Piece]) -> str:
    """What the masters import and use.

    The package's helpers come last, after an empty line.
    """
    plain = set()
    named = set()
    for piece in pieces:
        used = names_used(piece)
        for node in source_of(piece.source).tree.body:
            if isinstance(node, ast.Import):
                plain |= {
                    ast.unparse(alias)
                    for alias in node.names
                    if (alias.asname or alias.name) in used
                }
            elif (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and not node.module.startswith("minisbert")
            ):
                named |= {(node.module, alias.name) for alias in node.names if alias.name in used}
    own = {(f"minisbert.{module}", name) for module, name in helpers(pieces)}
    groups = [[f"import {name}" for name in sorted(plain)] + from_lines(named), from_lines(own)]
    return "\n\n".join("\n".join(group) for group in groups if group)


def from_lines(names: set[tuple[str, str]]) -> list[str]:
    modules = sorted({module for module, _ in names})
    lines = []
    for module in modules:
        of_module = sorted(name for home, name in names if home == module)
        lines.append(f"from {module} import {', '.join(of_module)}")
    return lines


def helpers(pieces: list[Piece]) -> set[tuple[str, str]]:
    """The package's functions that the masters use and that are not pieces, as (module, name)."""
    found = set()
    for piece in pieces:
        for name in names_used(piece) - set(piece.refused):
            home = source_of(piece.source).home(name)
            name = CHOOSES.get(name, name)  # the formula stands in the same chapter
            helper = name.islower() and not name.startswith(("_", "check_"))  # constants are none
            if home and (helper or name in piece.needs):  # classes if the card has them
                found.add((home, name))
    return {
        (home, name)
        for home, name in found
        if PIECES.get(f"{home.split('.')[-1]}.{name}") not in pieces
    }
