"""One file out of the learner's pieces and the book: text to text, nothing is run here.

The chapters stand in the book's order, the appendix first, because others inherit from its error. A
function that the learner has written takes the place of the book's, after whatever it uses of the
learner's file. Each definition begins with a mark, and a mark says whose the lines below it are;
under it stands why a piece of the learner's is not there.
"""

import ast
import builtins
import difflib
import io
import re
import symtable
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import shorten
from typing import NamedTuple

from lessons.grader.pieces import CHAPTERS, PIECES, ROOT, Piece, mine
from lessons.grader.result import defined
from lessons.grader.stubs import Source, attributes_of, lesson_stubs, source_of

# not minisbert.py: a file beside it that imports minisbert would find this one
FILE = "my_minisbert.py"
BOOK = {name: source_of(ROOT / "minisbert" / "core" / f"{name}.py") for name in CHAPTERS}
IN_THE_BOOK = {
    master: piece for master, piece in PIECES.items() if source_of(piece.source) in BOOK.values()
}
MARK = re.compile(r"(?: *# (?:yours: lesson \d\d, (\S+)|the book's: core/\w+\.py)|# -{88} \w+)$")
IMPORTS = ast.Import | ast.ImportFrom
DEFINITIONS = ast.FunctionDef | ast.ClassDef
HEAD = '''"""Your minisbert: what you have written of the book, and the book's code for the rest.

`python -m lessons.check mine` writes this file; change lessons/mine/lesson_NN.py, not this one.
It needs torch, numpy, tokenizers and safetensors, and nothing of minisbert:

    from my_minisbert import SentenceEncoder
    encoder = SentenceEncoder.load("the folder of all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])
"""
'''


class Unfit(Exception):
    """A piece cannot stand in one file with the others; the message says why."""


class Part(NamedTuple):
    """What comes into the file with a piece."""

    before: list[str]  # the learner's helpers
    text: str  # in place of the book's function
    names: dict[str, str]  # of what it uses, and what they mean


@dataclass
class Assembly:
    """The file by chapters, and the pieces that found no place in it, with the reason."""

    # What each name of the file means, an import's path or the source: none has two meanings.
    names: dict[str, str]
    chapters: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Python's own imports, an empty line, the others, and the chapters."""
        plain = set()
        named = {}
        for name, path in sorted(self.names.items(), key=lambda item: item[1]):
            module, _, original = path.rpartition(".")
            if not path.replace(".", "").isidentifier():
                continue  # defined
            if module:
                named.setdefault(module, []).append(
                    original if original == name else f"{original} as {name}"
                )
            else:
                plain.add(f"import {path}" if path == name else f"import {path} as {name}")
        lines = [
            *sorted(plain),
            *(f"from {module} import {', '.join(names)}" for module, names in named.items()),
        ]
        own = [line for line in lines if re.split(r"[ .]", line)[1] in sys.stdlib_module_names]
        head = "\n".join([HEAD, *own, "", *(line for line in lines if line not in own)])
        return "\n\n\n".join([head, *self.chapters.values()]) + "\n"


def assemble(masters: Iterable[str], failed: dict[str, str] | None = None) -> Assembly:
    """The book with these pieces in it, each as its lesson's file in ``lessons/mine`` has it.

    ``failed`` has the pieces that must stay out, with the reason.
    """
    nodes = []
    for source in BOOK.values():
        nodes += source.tree.body
    names = {}
    for node in nodes:
        for name in changed(node):
            names[name] = ast.unparse(node)
    for node in nodes:
        names |= imported(node)
    found = Assembly(names)
    found.left_out |= failed or {}
    written: dict[str, Part] = {}
    files: dict[int, Learners] = {}
    for piece in map(IN_THE_BOOK.__getitem__, masters):
        try:
            file = files.setdefault(piece.lesson, Learners(piece.lesson))
            written[piece.master] = file.part(piece, found.names)
            found.names |= written[piece.master].names
        except (Unfit, SyntaxError) as reason:  # of Python's: lines that cannot be moved
            found.left_out[piece.master] = str(reason)
    found.chapters = {name: chapter_text(name, written, found.left_out) for name in CHAPTERS}
    return found


# ------------------------------------------------------------------------------ of a learner's file


class Learners(Source):
    """A lesson's file in ``lessons/mine``."""

    def __init__(self, lesson: int):
        super().__init__(mine(lesson))
        self.name = mine(lesson).name
        self.imports: dict[str, str] = {}
        for node in ast.walk(self.tree):
            self.imports |= imported(node)
        self.stubs = {
            line.strip()
            for line in lesson_stubs(lesson).splitlines()
            if line.lstrip().startswith("#")
        }
        self.lent: list[
            ast.stmt
        ] = []  # methods beside the book's that an earlier piece has brought along

    def part(self, piece: Piece, names: dict[str, str]) -> Part:
        """What comes with a piece into a file with these names; ``Unfit`` if it cannot be moved."""
        function = defined(self.tree, piece.path)
        inside = len(piece.path) == 2
        if function is None:
            raise Unfit(f"{self.name} has no line that begins with def {piece.path[-1]}")
        nodes = [*(self.methods_beside(piece) if inside else []), function]
        wanted = set().union(*(self.globals_of(node, inside) for node in nodes))
        # the lesson's other pieces are those of the file, whoever wrote them
        seen = {other.path[0] for other in IN_THE_BOOK.values() if other.lesson == piece.lesson}
        meanings: dict[str, str] = {}
        helpers: list[ast.stmt] = []
        while wanted := wanted - seen:
            seen.add(name := min(wanted))
            definitions = (
                []
                if name in self.imports
                else [node for node in self.tree.body if name in changed(node)]
            )
            meaning = self.imports.get(name) or "\n".join(map(ast.unparse, definitions))
            if name in names and re.fullmatch(rf"minisbert\..*\.{name}", meaning):
                continue  # the book's
            if not meaning and hasattr(builtins, name):
                continue
            if not meaning or meaning.startswith("minisbert."):
                raise Unfit(
                    f"{self.name} uses {name}, which is neither in the book nor defined there"
                )
            if names.get(name, meaning) != meaning or hasattr(builtins, name):
                raise Unfit(
                    f"{name} in {self.name} is also something else in the whole file: give it "
                    f"another name"
                )
            meanings[name] = meaning
            for node in definitions if name not in names else []:
                helpers += [node] if node not in helpers else []
                wanted |= self.globals_of(node) | changed(node)
        self.lent += nodes
        mark = f"# yours: lesson {piece.lesson:02}, {piece.master}"
        before = [
            f"{mark}\n{self.text_of(node)}"
            for node in sorted(helpers, key=lambda node: node.lineno)
        ]
        own = [f"{'    ' * inside}{mark}\n{self.text_of(node, inside)}" for node in nodes]
        return Part(before, "\n\n".join(own), meanings)

    def methods_beside(self, piece: Piece) -> list[ast.stmt]:
        """What the learner's class has and uses besides the parts of the book's class."""
        cls = defined(self.tree, piece.path[:1])
        theirs = set().union(*map(changed, source_of(piece.source).find(piece.path[:1]).body))
        theirs |= {re.split(r"\W", line.removeprefix("self."))[0] for line in attributes_of(piece)}
        used = {node.attr for node in ast.walk(cls) if isinstance(node, ast.Attribute)}
        return [
            node for node in cls.body if node not in self.lent and used & (changed(node) - theirs)
        ]

    def globals_of(self, node: ast.stmt, inside: bool = False) -> set[str]:
        """The names that a statement takes from its file."""
        text = f"class Any:\n{self.text_of(node, inside)}" if inside else self.text_of(node)
        found = set()
        tables = [symtable.symtable(text, self.name, "exec")]
        for table in tables:
            tables += table.get_children()
            found |= {
                name.get_name()
                for name in table.get_symbols()
                if name.is_referenced() and name.is_global()
            }
        return found

    def text_of(self, node: ast.stmt, inside: bool = False) -> str:
        """A statement with the comment above it, dedented, without the stub's comments."""
        lines = self.lines[first_line(self, node) - 1 : node.end_lineno]
        column = node.col_offset
        if inside and column != 4:
            for i, line in enumerate(lines):
                rest = line[column:] if line[:column].isspace() else line.lstrip()
                lines[i] = f"    {rest}"
        return "\n".join(line for line in lines if line.strip() not in self.stubs)


def changed(node: ast.stmt) -> set[str]:
    """The names that a statement defines or changes, ``TABLE`` in ``TABLE[0] = 1`` too."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, IMPORTS) or (
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    ):
        return set()
    targets = [
        inner for inner in ast.walk(node) if isinstance(getattr(inner, "ctx", None), ast.Store)
    ]
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
    ):
        targets.append(node.value.func)
    roots = [re.split(r"\W", ast.unparse(target))[0] for target in targets]
    return {root for root in roots if root}


def imported(node: ast.AST) -> dict[str, str]:
    """The names that an import binds and what they stand for: ``{"F": "torch.nn.functional"}``."""
    if isinstance(node, ast.Import):
        found = {}
        for alias in node.names:
            if alias.asname:
                found[alias.asname] = alias.name
            else:
                package = alias.name.split(".")[0]
                found[package] = package
        return found
    if isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {}


def first_line(source: Source, node: ast.stmt) -> int:
    """Where a statement begins, with its decorators and the comment directly above."""
    line = min(each.lineno for each in [node, *getattr(node, "decorator_list", [])])
    while line - 1 in source.alone:
        line -= 1
    return line


# -------------------------------------------------------------------------------------- the file


def chapter_text(name: str, written: dict[str, Part], left_out: dict[str, str]) -> str:
    """A chapter without its imports, and with the learner's parts in place of its own."""
    source = BOOK[name]
    lines = list(source.lines)

    def mark(master: str) -> list[str]:
        reason = left_out.get(master)
        return [
            f"# the book's: core/{name}.py",
            *([f"# instead of yours: {shorten(reason, 96)}"] if reason else []),
        ]

    nodes = source.tree.body
    for at in reversed(range(len(nodes))):  # from below: the numbers of the lines above stay
        node = nodes[at]
        here = first_line(source, node) - 1
        if not isinstance(node, DEFINITIONS):
            # Without a mark of its own a table would count as part of the function above it.
            if at and isinstance(nodes[at - 1], DEFINITIONS):
                lines[here:here] = mark("")
            continue
        methods = {
            f"{name}.{node.name}.{m.name}": m for m in node.body if isinstance(m, ast.FunctionDef)
        }
        parts = [written[master] for master in methods if master in written]
        for master, method in (
            reversed(methods.items()) if parts or methods.keys() & left_out else ()
        ):  # a mark at each
            span = slice(first_line(source, method) - 1, method.end_lineno)
            books = [f"    {line}" for line in mark(master)] + lines[span]
            lines[span] = written[master].text.split("\n") if master in written else books
        if part := written.get(f"{name}.{node.name}"):
            parts = [part]
            lines[here : node.end_lineno] = part.text.split("\n")
        else:
            lines[here:here] = mark(f"{name}.{node.name}")
        before = []
        for part in parts:
            for text in part.before:
                before += [*text.split("\n"), "", ""]
        lines[here:here] = before
    # a learner's formula would not run beside PyTorch's operation for it
    if written.keys() & {"bert.layer_norm", "bert.attention", "bert.gelu"}:
        lines = ["FUSED = False" if line == "FUSED = True" else line for line in lines]
    start = max(node.end_lineno for node in source.tree.body if isinstance(node, IMPORTS))
    about = [f"# {line}".rstrip() for line in ast.get_docstring(source.tree).splitlines()]
    return "\n".join([f"# {'-' * 88} {name}", *about, *lines[start:]])


def owners(text: str) -> list[str]:
    """The piece of each line of code, by the last mark above it; empty: the book's.

    A line without code, that is an empty one, a comment or a docstring, has the owner "-".
    """
    code: set[int] = set()
    layout = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout and not token.line.lstrip().startswith('"""'):
            code |= {*range(token.start[0], token.end[0] + 1)}
    found = []
    owner = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if mark := MARK.match(line):
            owner = mark[1] or ""
        found.append(owner if number in code else "-")
    return found


def difference(assembly: Assembly, name: str) -> str:
    """A chapter of the book, and what it is in the learner's file; empty if they are the same."""
    sides = [chapter_text(name, {}, {}).splitlines(), assembly.chapters[name].splitlines()]
    return "\n".join(difflib.unified_diff(*sides, f"minisbert/core/{name}.py", FILE, lineterm=""))
