"""Do the tests notice a changed operator or constant?

    python -m tests.mutation --module losses --count 40
    python -m tests.mutation --module models/batching --count 20 --seed 1

One expression is changed at a time, and the module's tests are run. Each mutant differs from the
module in one place: another comparison or arithmetic operator, another constant, one operand in
place of both, a negated condition, a check or a statement left out, a keyword argument or a method
call removed, two arguments swapped. It runs the module's own test file first, then the files that
import the module, up to the first failure. Tests marked weights, reference, lesson or slow are left
out. All of this happens in a copy of the working tree. Those that survive are listed: each is a
line that no test needs, or a change that no caller could see.
"""

import argparse
import ast
import contextlib
import copy
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# before a dot; what follows is then no method call that could be removed
LIBRARIES = [
    "torch",
    "nn",
    "np",
    "math",
    "self",
    "torch.nn.init",
    "torch.linalg",
    "nn.init",
    "nn.functional",
    "nn.utils",
]
# keyword arguments that are left alone: texts, and zip's check of what is so anyway
FOR_PEOPLE = ("help", "metavar", "description", "epilog", "strict")
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp)


@dataclass(frozen=True)
class Mutant:
    start: int  # bytes start to end of the source are replaced by text
    end: int
    text: str
    line: int
    change: str  # the line before -> after


# ----------------------------------------------------------------------------------------- mutating


Variant = tuple[ast.AST, ast.AST | str]  # a part of the code, and what it is replaced by


def changed(node: ast.AST, **fields: object) -> ast.AST:
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def without(items: list, i: int) -> list:
    return items[:i] + items[i + 1 :]


def variants(node: ast.AST) -> Iterator[Variant]:
    """Each part of a node that can be replaced, and what by."""
    if isinstance(node, ast.BoolOp):
        yield from variants_of_condition(node)
    elif isinstance(node, ast.Constant):
        yield from variants_of_constant(node)
    elif isinstance(node, ast.Call):
        yield from variants_of_call(node)
    else:
        yield from variants_of_operation(node)
    yield from negated_conditions(node)


def variants_of_operation(node: ast.AST) -> Iterator[Variant]:
    """Another operator, or one operand alone; a statement that is left out."""
    match node:
        case ast.Compare(ops=[operator]):
            yield node, changed(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(left=left, op=operator, right=right):
            yield node, left
            yield node, right
            if type(operator) in OPERATORS:
                yield node, changed(node, op=OPERATORS[type(operator)]())
        case ast.UnaryOp(operand=operand):
            yield node, operand
        case ast.IfExp(body=body, orelse=other):
            yield node, body
            yield node, other
        case ast.Slice(lower=lower, upper=upper):
            if lower and upper:
                yield node, changed(node, lower=None)
                yield node, changed(node, upper=None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


def variants_of_condition(node: ast.BoolOp) -> Iterator[Variant]:
    """``or`` for ``and``, and one part less."""
    yield node, changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for i in range(len(node.values)):
        rest = without(node.values, i)
        yield node, changed(node, values=rest) if len(rest) > 1 else rest[0]


def variants_of_constant(node: ast.Constant) -> Iterator[Variant]:
    match node.value:
        case bool() as value:
            yield node, ast.Constant(not value)
        case int() as value:
            yield node, ast.Constant(value + 1)
            yield node, ast.Constant(value - 1)
        case float() as value:
            yield node, ast.Constant(2 * value or 1.0)
        case str() as value if " " not in value:  # a text for people may be any
            yield node, ast.Constant(value + "_")


def variants_of_call(node: ast.Call) -> Iterator[Variant]:
    """A keyword less, the first two arguments swapped, and ``x`` for ``x.f()``."""
    for i, keyword in enumerate(node.keywords):
        if keyword.arg not in FOR_PEOPLE:
            yield node, changed(node, keywords=without(node.keywords, i))
    name = ast.unparse(node.func)
    if len(node.args) > 1 and not name.endswith("transpose"):
        first, second, *rest = node.args
        yield node, changed(node, args=[second, first, *rest])
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in LIBRARIES:
        yield node, node.func.value


def negated_conditions(node: ast.AST) -> Iterator[Variant]:
    """``not x`` for the condition ``x``; and a check that only raises is left out."""
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
        yield node.test, ast.Constant(False)
    conditions = [getattr(node, "test", None)]
    if isinstance(node, ast.comprehension):
        conditions = node.ifs
    for condition in conditions:
        if isinstance(condition, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
            yield condition, ast.UnaryOp(ast.Not(), condition)


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node whose value matters: no annotations, docstrings, messages, helps, or f-strings."""
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.keyword) and child.arg in FOR_PEOPLE:
                continue
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not text and name not in ("annotation", "returns"):
                yield from nodes(child)


def mutants(source: bytes) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    starts = [0]  # of each line
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    found = []
    for node in nodes(ast.parse(source)):
        for old, new in variants(node):
            text = new if isinstance(new, str) else ast.unparse(new)
            if isinstance(new, OPERATIONS):
                text = f"({text})"
            if text == ast.unparse(old):  # f(x, x) with its arguments swapped
                continue
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            first = starts[old.lineno - 1]  # of the lines that hold it
            last = starts[old.end_lineno]
            before = source[first:last].decode()
            after = source[first:start].decode() + text + source[end:last].decode()
            change = f"{in_one_line(before)} -> {in_one_line(after)}"
            found.append(Mutant(start, end, text, old.lineno, change))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


def in_one_line(code: str) -> str:
    """Code without its comments and indentation."""
    return " ".join(re.sub(r"  # .*", "", code).split())


# ---------------------------------------------------------------------------------------- its tests


def find(name: str) -> Path:
    """The file of a module, relative to the root.

    If several rooms have one of this name it is the book's.
    """
    found = []
    for path in (ROOT / "minisbert").rglob("*.py"):
        if f"{path}".endswith(f"/{name}.py"):
            found.append(path)
    if not found:
        raise SystemExit(
            f"minisbert has no module {name}; try --module losses or --module models/batching"
        )
    chosen = min(found, key=lambda path: (path.parent.name != "core", path))
    return chosen.relative_to(ROOT)


def importing(path: Path, folder: str) -> list[Path]:
    """The files below a folder that import a module, relative to the root."""
    home = re.escape(".".join(path.parent.parts))
    name = re.escape(path.stem)
    pattern = re.compile(rf"{home}\.{name}\b|from {home} import .*\b{name}\b")
    found = []
    for file in sorted((ROOT / folder).rglob("*.py")):
        if pattern.search(file.read_text()):
            found.append(file.relative_to(ROOT))
    return found


def files_for(path: Path) -> list[str]:
    """The tests of a module, in the order in which they are run.

    Its own test file; then those that import it, or a module that does, and those of its room.
    """
    room = "/".join(path.parent.parts[1:])
    found = []
    for test in (f"tests/{room}/test_{path.stem}.py", f"tests/test_{path.stem}.py"):
        if (ROOT / test).is_file():
            found.append(test)
            break

    users = []
    for module in (path, *importing(path, "minisbert")):
        users += map(str, importing(module, "tests"))
    # the cases of the parity checks and of the grader are unit tests of what they import
    if importing(path, "lessons/grader"):
        found.append("tests/lessons/test_ladder.py::test_every_master_passes")
    if any(user.startswith("tests/parity/") for user in users):
        found.append("tests/test_parity.py")
    for user in users:
        if "/test_" in user and not user.startswith("tests/lessons"):
            found.append(user)
    if room:
        for file in sorted((ROOT / "tests" / room).glob("test_*.py")):
            found.append(str(file.relative_to(ROOT)))
    return list(dict.fromkeys(found))


def passes(folder: Path, tests: list[str], limit: float) -> bool:
    """Whether all tests of a copy pass in time; a mutant that does not end has been noticed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--hypothesis-seed=0", f"--basetemp={folder / 'temporary'}"]
    command += ["-m", "not weights and not lesson and not reference and not slow"]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what a test has started


# -------------------------------------------------------------------------------------- the command


def copy_tree(folder: Path) -> None:
    """The files that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--module", required=True, help="losses, or with its folder: core/losses")
    parser.add_argument(
        "--count", type=int, default=40, help="mutants to try, drawn at random (default 40)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones are drawn (default 0)")
    options = parser.parse_args()
    path = find(options.module)
    source = (ROOT / path).read_bytes()
    every = mutants(source)
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        folder = Path(name)
        copy_tree(folder)
        tests = files_for(path)
        began = time.perf_counter()
        if not passes(folder, tests, 600):
            raise SystemExit(
                f"the tests fail without a mutation:\n{(folder / 'log.txt').read_text()[-2000:]}"
            )
        seconds = time.perf_counter() - began
        print(f"{path}: {seconds:.1f} s for {' '.join(tests)}", flush=True)
        for i, mutant in enumerate(sorted(chosen, key=lambda mutant: mutant.start), 1):
            (folder / path).write_bytes(
                source[: mutant.start] + mutant.text.encode() + source[mutant.end :]
            )
            survives = passes(folder, tests, 20 + 5 * seconds)
            survived += survives
            verdict = f"SURVIVED  {mutant.change}" if survives else "killed"
            print(f"{i}/{len(chosen)}  {path}:{mutant.line}  {verdict}", flush=True)
    print(f"{path}: {len(chosen)} of {len(every)} mutants, {survived} survived")


if __name__ == "__main__":
    main()
