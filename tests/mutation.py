"""Do the tests notice a changed operator or constant? Mutates one expression at a time and runs the
module's tests.

    python -m tests.mutation --module losses --count 40
    python -m tests.mutation --module models/batching --count 20 --seed 1

Each mutant differs from the module in one place: another comparison or arithmetic operator, another
constant, one operand in place of both, a negated condition, a check or a statement left out, a
keyword argument or a method call removed, two arguments swapped. It runs the module's own test file
first, then the files that import the module, up to the first failure. Tests marked weights,
reference, lesson or slow are left out. All of this happens in a copy of the working tree. Those
that survive are listed: each is a line that no test needs, or a change that no caller could see.
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
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
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
FOR_PEOPLE = (
    "help",
    "metavar",
    "description",
    "epilog",
    "strict",
)  # texts, and zip's check of what is so anyway
OPERATIONS = (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp, ast.IfExp)


@dataclass(frozen=True)
class Mutant:
    start: int  # bytes start to end of the source are replaced by text
    end: int
    text: str
    line: int
    change: str  # the line before -> after


# ------------------------------------------------------------------------------------------
# mutating


def changed(node: ast.AST, **fields: object) -> ast.AST:
    node = copy.copy(node)
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def without(items: list, i: int) -> list:
    return items[:i] + items[i + 1 :]


def variants(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    """Each part of a node that can be replaced, and what by."""
    match node:
        case ast.Compare(ops=[operator]):
            yield node, changed(node, ops=[COMPARISONS[type(operator)]()])
        case ast.BinOp(left=left, op=operator, right=right):
            yield from ((node, left), (node, right))
            if type(operator) in OPERATORS:
                yield node, changed(node, op=OPERATORS[type(operator)]())
        case ast.BoolOp(op=operator, values=values):
            yield node, changed(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            for i in range(len(values)):
                rest = without(values, i)
                yield node, changed(node, values=rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(operand=operand):
            yield node, operand
        case ast.IfExp(body=body, orelse=other):
            yield from ((node, body), (node, other))
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield from ((node, ast.Constant(value + 1)), (node, ast.Constant(value - 1)))
        case ast.Constant(value=float() as value):
            yield node, ast.Constant(2 * value or 1.0)
        case ast.Constant(value=str() as value) if " " not in value:  # a text for people may be any
            yield node, ast.Constant(value + "_")
        case ast.Call(func=function, args=arguments, keywords=keywords):
            for i in (i for i, keyword in enumerate(keywords) if keyword.arg not in FOR_PEOPLE):
                yield node, changed(node, keywords=without(keywords, i))
            if len(arguments) > 1 and not ast.unparse(function).endswith("transpose"):
                yield node, changed(node, args=[arguments[1], arguments[0], *arguments[2:]])
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) not in LIBRARIES:
                yield node, function.value  # x.f() becomes x
        case ast.Slice(lower=lower, upper=upper):
            if lower and upper:
                yield from ((node, changed(node, lower=None)), (node, changed(node, upper=None)))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"
    if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
        yield node.test, ast.Constant(False)  # the check is left out
    conditions = node.ifs if isinstance(node, ast.comprehension) else [getattr(node, "test", None)]
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
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in nodes(ast.parse(source)):
        for old, new in variants(node):
            start, end = (
                starts[old.lineno - 1] + old.col_offset,
                starts[old.end_lineno - 1] + old.end_col_offset,
            )
            text = new if isinstance(new, str) else ast.unparse(new)
            text = f"({text})" if isinstance(new, OPERATIONS) else text
            if text == ast.unparse(old):  # f(x, x) with its arguments swapped
                continue
            first, last = starts[old.lineno - 1], starts[old.end_lineno]
            before = source[first:last].decode()
            after = source[first:start].decode() + text + source[end:last].decode()
            before, after = (
                " ".join(re.sub(r"  # .*", "", side).split()) for side in (before, after)
            )
            found.append(Mutant(start, end, text, old.lineno, f"{before} -> {after}"))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


# ----------------------------------------------------------------------------------------- its
# tests


def find(name: str) -> Path:
    """The file of a module, relative to the root; the book's if another room has one of this name
    too.
    """
    found = [
        path for path in (ROOT / "minisbert").rglob("*.py") if f"{path}".endswith(f"/{name}.py")
    ]
    if not found:
        raise SystemExit(
            f"minisbert has no module {name}; try --module losses or --module models/batching"
        )
    return min(found, key=lambda path: (path.parent.name != "core", path)).relative_to(ROOT)


def importing(path: Path, folder: str) -> list[Path]:
    """The files below a folder that import a module, relative to the root."""
    home, name = ".".join(path.parent.parts), path.stem
    pattern = re.compile(
        rf"{re.escape(f'{home}.{name}')}\b|from {re.escape(home)} import .*\b{name}\b"
    )
    found = (
        file for file in sorted((ROOT / folder).rglob("*.py")) if pattern.search(file.read_text())
    )
    return [file.relative_to(ROOT) for file in found]


def files_for(path: Path) -> list[str]:
    """The module's own test file; then those that import it, or a module that does, and those of
    its room.
    """
    room, name = "/".join(path.parent.parts[1:]), path.stem
    found = [
        test
        for test in (f"tests/{room}/test_{name}.py", f"tests/test_{name}.py")
        if (ROOT / test).is_file()
    ][:1]
    users = [
        str(user)
        for module in (path, *importing(path, "minisbert"))
        for user in importing(module, "tests")
    ]
    # the cases of the parity checks and of the grader are unit tests of what they import
    if importing(path, "lessons/grader"):
        found.append("tests/lessons/test_ladder.py::test_every_master_passes")
    if any(user.startswith("tests/parity/") for user in users):
        found.append("tests/test_parity.py")
    found += [user for user in users if "/test_" in user and not user.startswith("tests/lessons")]
    found += [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests" / room).glob("test_*.py"))
        if room
    ]
    return list(dict.fromkeys(found))


def passes(folder: Path, tests: list[str], limit: float) -> bool:
    """Whether all tests of a copy pass in time; a mutant that does not end has been noticed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        *["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m"],
    ]
    command += [
        "not weights and not lesson and not reference and not slow",
        f"--basetemp={folder / 'temporary'}",
    ]
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


# --------------------------------------------------------------------------------------- the
# command


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
