"""The structure of the package: imports go one way, and the book works on its own."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "minisbert"
FILES = {
    path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
}
CHAPTERS = [
    "checks",
    "tokenizer",
    "weights",
    "bert",
    "pooling",
    "encoder",
    "metrics",
    "heads",
    "losses",
    "data",
    "loop",
]
# A room may import those before it; replacements, loading and util are floors of their own.
ROOMS = [
    "replacements",
    "core",
    "system",
    "architectures",
    "checkpoints",
    "search",
    "models",
    "backends",
    "loading",
    "data",
    "evaluation",
    "training",
    "train",
    "util",
    "diagnosis",
    "serving",
    "integrations",
]
RUNTIME = {"torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "tqdm", "filelock"}
RUNTIME |= sys.stdlib_module_names


def imported(path: Path) -> Iterator[str]:
    """The absolute name of every module that a file imports, those inside of functions included."""
    home = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(FILES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module
            if node.level:
                package = ".".join(home[: -node.level])
                base = f"{package}.{node.module}" if node.module else package
            yield base
            for alias in node.names:
                yield f"{base}.{alias.name}"


def test_imports_go_one_way():
    for path in FILES:
        home = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        ours = [module for module in imported(path) if module.startswith("minisbert.")]
        rooms = {module.split(".")[1] for module in ours} - {"__version__"}
        allowed = {*ROOMS[: ROOMS.index(home) + 1]} if home in ROOMS else {*ROOMS, home}
        assert rooms <= allowed, f"{path.relative_to(ROOT)} imports {rooms - allowed}"


def test_no_files_import_each_other_in_a_circle():
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    graph = {name: {*imported(path)} & files.keys() - {name} for name, path in files.items()}
    TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_the_package_imports_no_lesson_and_no_test():
    """They are not in the wheel, and the wrong code that they plant must not be."""
    for path in FILES:
        tops = {module.split(".")[0] for module in imported(path)}
        assert not tops & {"lessons", "tests"}, path


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_imports_four_libraries_and_earlier_chapters(chapter):
    """A student who copies a chapter needs nothing that comes later."""
    allowed = {f"minisbert.core.{name}" for name in CHAPTERS[: CHAPTERS.index(chapter)]}
    allowed.add("minisbert.core")
    libraries = RUNTIME - {"argparse", "tqdm"}
    for module in imported(PACKAGE / "core" / f"{chapter}.py"):
        home = module.rpartition(".")[0] if module.count(".") == 3 else module
        assert home in allowed or module.split(".")[0] in libraries, module


def test_optional_packages_are_imported_inside_functions():
    """Without an extra the package can be imported, and a call names the extra that it needs."""
    for path in FILES:
        if path.parent.name in ("serving", "integrations"):
            continue  # these need an extra as a whole
        libraries = set()
        for node in FILES[path].body:
            if isinstance(node, ast.Import):
                libraries |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                libraries.add(node.module.split(".")[0])
        assert libraries <= {"minisbert", *RUNTIME}, path


def test_the_bare_loop_starts_by_its_path():
    """Python then imports from the file's folder first, so nothing there may hide a library."""
    done = subprocess.run(
        [sys.executable, PACKAGE / "train.py", "--help"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")
