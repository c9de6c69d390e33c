"""Stubs: what a learner starts from, generated from the package's one master copy by ``ast``.

A stub has the master's signature, its docstring, and the steps of its body as comments: which names are computed, with
their shapes, but not how. Where the master does more than its lesson tells, the card has the stub instead. With it
comes what the master uses: imports, functions of the package that are not pieces of the same lesson, and for a method
the attributes of its object.
"""

import ast
import io
import re
import textwrap
import tokenize
from functools import cache
from pathlib import Path

from lessons.grader.pieces import LESSONS, PIECES, ROOT, Piece, pieces_of

WIDTH = 116


class Source:
    """A file of the package: its lines, its tree, its comments."""

    def __init__(self, path: Path):
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a learner's file with a byte-order mark
        self.module = path.stem
        self.dotted = f"{path.parent.name}.{path.stem}"  # inside the package: core.bert
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.beside: dict[int, str] = {}  # line number -> the comment after its code
        self.alone: dict[int, str] = {}  # line number -> the comment that is the whole line
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                side = self.beside if token.line[: token.start[1]].strip() else self.alone
                side[token.start[0]] = token.string.lstrip("# ")

    def find(self, path: list[str]) -> ast.FunctionDef | ast.ClassDef:
        """The definition of ``["Layer", "forward"]``."""
        node: ast.AST = self.tree
        for name in path:
            node = next(child for child in node.body if getattr(child, "name", None) == name)
        return node

    def home(self, name: str) -> str | None:
        """The module that defines a name of this file: ``core.encoder`` for ``cosine`` in ``core.losses``."""
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
                return self.dotted
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                if node.level:  # from .bert import attention: another chapter
                    return ".".join(filter(None, (self.dotted.split(".")[0], node.module)))
                return node.module.removeprefix("minisbert.") if node.module.startswith("minisbert.") else None
        return None


source_of = cache(Source)


def names_in(*nodes: ast.AST) -> set[str]:
    return {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def names_used(piece: Piece) -> set[str]:
    """The names in a master's signature and steps; those that the card needs, if it has the stub."""
    if piece.stub:
        return set(piece.needs)
    function = source_of(piece.source).find(piece.path)
    work = [node for node in function.body if not left_out(node)]
    return names_in(function.args, *filter(None, [function.returns]), *work, *(node for _, node in aliases(piece)))


def names_of_arguments(piece: Piece) -> set[str]:
    """The names in a stub's signature."""
    return set() if piece.stub else names_in(source_of(piece.source).find(piece.path).args)


# ------------------------------------------------------------------------------------- one function


def stub(piece: Piece) -> str:
    """The function with a body that raises ``NotImplementedError``, at the left margin."""
    unwritten = f'    raise NotImplementedError("{piece.master}")'
    if piece.stub:
        return f"{piece.stub.strip()}\n{unwritten}"
    source = source_of(piece.source)
    function = source.find(piece.path)
    signature = source.lines[function.lineno - 1 : function.body[0].lineno - 1]
    lines = [line.split("  # type:")[0] for line in textwrap.dedent("\n".join(signature)).splitlines()]
    if doc := ast.get_docstring(function):
        lines += textwrap.indent(f'"""{doc}' + ('\n"""' if "\n" in doc else '"""'), "    ").splitlines()
    for text in remarks(piece):
        lines += textwrap.wrap(text, WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    for text, first in steps(source, function):
        lines += textwrap.wrap(text, WIDTH, initial_indent=f"    #{first}", subsequent_indent="    #      ")
    return "\n".join([*lines, unwritten])


def remarks(piece: Piece) -> list[str]:
    """What the docstring leaves open, and what must not be called."""
    refused = ", ".join(name for name in piece.refused if not name.startswith("_"))
    return [
        *filter(None, [piece.note]),
        *([f"Not to be called: {refused}."] if refused else []),
    ]


def steps(source: Source, function: ast.FunctionDef) -> list[tuple[str, str]]:
    """What the body does, statement by statement: names, shapes and the author's remarks, each with its indent.

    A return about which nothing is said is no step.
    """
    found: list[tuple[str, str]] = []
    number = 0
    for node in function.body:
        if left_out(node):
            continue
        first = node.lineno
        while first - 1 in source.alone:
            first -= 1
        lines = range(first, node.end_lineno + 1)
        shape = "; ".join(source.beside[line] for line in lines if line in source.beside)
        said = [(source.alone[line], "    ") for line in lines if line in source.alone]
        if isinstance(node, ast.Return) and not shape and not said:
            continue
        number += 1
        found += [(f"{number}. {described(node)}" + (f"  # {shape}" if shape else ""), " "), *said]
    return found


def described(node: ast.stmt) -> str:
    """A statement without its formula: ``scores``, ``if mask is not None: scores``, ``return``."""
    if isinstance(node, ast.Assign):
        return ", ".join(ast.unparse(target).strip("()") for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        return ast.unparse(node.target)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return f"{ast.unparse(node.value.func)}(...)"
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target).strip('()')} in ..."
    inner = ", ".join(dict.fromkeys(described(child) for child in getattr(node, "body", []) if not raises(child)))
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}: {inner}"
    return type(node).__name__.lower()


def left_out(node: ast.stmt) -> bool:
    """A statement that is no step of the formula: the docstring, a call of a check, a branch that only checks."""
    return isinstance(node, ast.Expr) or raises(node)


def raises(node: ast.stmt) -> bool:
    """An ``if`` or a loop that does nothing but raise or call a function ``check_...``."""
    return isinstance(node, ast.If | ast.For) and all(
        isinstance(child, ast.Raise)
        or (isinstance(child, ast.Expr) and ast.unparse(child).startswith("check_"))
        or raises(child)
        for child in [*node.body, *node.orelse]
    )


# --------------------------------------------------------------------------------- a lesson's file


def lesson_stubs(lesson: int) -> str:
    """The learner's file: a heading, imports, and the stubs in order, methods inside their classes."""
    pieces = pieces_of(lesson)
    blocks: dict[str, list[str]] = {}  # a class with its methods, or a function
    for piece in pieces:
        if len(piece.path) == 2:
            block = blocks.setdefault(piece.path[0], [heading_of_class(piece)])
            block.append(textwrap.indent(stub(piece), "    "))
        else:
            blocks[piece.path[0]] = [stub(piece)]
    title = f'"""Lesson {lesson:02}: {LESSONS[lesson]}. Fill in the bodies; python -m lessons.check run {lesson:02}\n\n'
    title += 'If the package raises ValueError for bad arguments, yours need not.\n"""'
    named = "\n".join(dict.fromkeys(ast.unparse(node) for piece in pieces for _, node in aliases(piece)))
    head = "\n\n".join(filter(None, [title, imports(pieces), named]))
    return "\n\n\n".join([head, *("\n\n".join(block) for block in blocks.values())]) + "\n"


def heading_of_class(piece: Piece) -> str:
    """``class NAME:``, its docstring's first line, and as comments what its objects have in the package."""
    source = source_of(piece.source)
    node = source.find(piece.path[:1])
    doc = textwrap.fill((ast.get_docstring(node) or "").splitlines()[0], WIDTH - 8, subsequent_indent="    ")
    lines = [f"class {node.name}:", f'    """{doc}"""', "", "    # what its objects have, in the package:"]
    methods = [other for other in pieces_of(piece.lesson) if other.path[:-1] == piece.path[:1]]
    hidden = {name for other in methods for name in (other.path[1], *other.refused)}
    used = {inner.attr for other in methods for inner in ast.walk(source.find(other.path)) if hasattr(inner, "attr")}
    held = [line.split("  # under")[0] for line in attributes(source, node, hidden)]
    held = [line for line in held if re.findall(r"\w+", line.removeprefix("self."))[0] in used]
    return "\n".join([*lines, *(f"    #   {line}" for line in held)])


def attributes(source: Source, node: ast.ClassDef, hidden: set[str]) -> list[str]:
    """What objects of a class have, its bases' first: fields, what ``__init__`` sets, methods that are not hidden."""
    found = []
    defined = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
    for base in node.bases:
        home = source.home(base.id) if isinstance(base, ast.Name) else None  # nn.Module: nothing to tell
        if home:
            other = source_of(ROOT / "minisbert" / f"{home.replace('.', '/')}.py")
            found += attributes(other, other.find([base.id]), hidden | defined)
    for child in node.body:
        line = source.lines[child.lineno - 1].strip()
        if isinstance(child, ast.AnnAssign):
            found.append(line)
        elif isinstance(child, ast.FunctionDef) and child.name == "__init__":
            sets = (inner.lineno for inner in child.body if isinstance(inner, ast.Assign))
            found += [text for number in sets if (text := source.lines[number - 1].strip()).startswith("self.")]
        elif isinstance(child, ast.FunctionDef) and child.name not in hidden and not child.name.startswith("_"):
            found.append(f"self.{child.name}({', '.join(argument.arg for argument in child.args.args[1:])})")
    return found


def attributes_of(piece: Piece) -> list[str]:
    """What the objects of a method's class have in the package."""
    source = source_of(piece.source)
    return attributes(source, source.find(piece.path[:1]), set())


def aliases(piece: Piece) -> list[tuple[Source, ast.Assign]]:
    """The package's own names in a signature: ``Vectors = np.ndarray | Tensor``, each with the file that defines it."""
    source = source_of(piece.source)
    wanted = names_of_arguments(piece)
    homes = sorted(filter(None, {source.home(name) for name in wanted} - {source.dotted}))
    files = [piece.source, *(ROOT / "minisbert" / f"{home.replace('.', '/')}.py" for home in homes)]
    sources = [source_of(file) for file in files if file.is_file()]
    nodes = [(source, node) for source in sources for node in source.tree.body if isinstance(node, ast.Assign)]
    return [(source, node) for source, node in nodes if names_in(node.targets[0]) & wanted]


def imports(pieces: list[Piece]) -> str:
    """What the masters import and use, the package's helpers last, an empty line between the two."""
    plain, named = set(), set()
    for piece in pieces:
        used = names_used(piece)
        for node in source_of(piece.source).tree.body:
            if isinstance(node, ast.Import):
                plain |= {ast.unparse(alias) for alias in node.names if (alias.asname or alias.name) in used}
            elif isinstance(node, ast.ImportFrom) and not node.level and not node.module.startswith("minisbert"):
                named |= {(node.module, alias.name) for alias in node.names if alias.name in used}
    if ("torch", "Tensor") in named:
        plain.add("torch")
    own = {(f"minisbert.{module}", name) for module, name in helpers(pieces)}
    groups = [[f"import {name}" for name in sorted(plain)] + from_lines(named), from_lines(own)]
    return "\n\n".join("\n".join(group) for group in groups if group)


def from_lines(names: set[tuple[str, str]]) -> list[str]:
    modules = sorted({module for module, _ in names})
    return [f"from {m} import {', '.join(sorted(name for module, name in names if module == m))}" for m in modules]


def helpers(pieces: list[Piece]) -> set[tuple[str, str]]:
    """What the stubs need of the package, as (module, name): what the signatures and their own names have of it, and
    the functions that the masters' steps call and that are not among these pieces."""
    found = set()
    for piece in pieces:
        source = source_of(piece.source)
        own = aliases(piece)
        named = names_in(*(node.targets[0] for _, node in own))
        needed = [(source, name) for name in names_of_arguments(piece) - named]
        needed += [(file, name) for file, node in own for name in names_in(node.value)]
        found |= {(home, name) for file, name in needed if (home := file.home(name))}
        for name in names_used(piece) - set(piece.refused):
            home = source.home(name)
            helper = name.islower() and not name.startswith("_")  # constants are none, classes if the card has them
            if home and (helper or name in piece.needs):
                found.add((home, name))
    return {(home, name) for home, name in found if PIECES.get(f"{home.split('.')[-1]}.{name}") not in pieces}
