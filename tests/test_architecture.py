"""The shape of the package: the book and its budget, the rooms and their directions, one training loop."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import torch

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.train import main
from tests import budgets, toys
from tests.conftest import ROOT

PACKAGE = ROOT / "minisbert"
CHAPTERS = ["tokenizer", "weights", "bert", "pooling", "encoder", "metrics", "heads", "losses", "data", "loop"]
# a room may import those before it; loading.py and util.py are floors of their own
ROOMS = [
    *("core", "system", "architectures", "checkpoints", "search", "models", "backends", "loading"),
    *("data", "evaluation", "training", "corpus", "util", "diagnosis", "serving", "integrations"),
]
FILES = sorted(PACKAGE.rglob("*.py"))
OPTIONAL = {"matplotlib", "ray", "pyspark", "datasets", "starlette", "uvicorn", "onnx", "onnxruntime", "tensorboard"}
OPTIONAL |= {"argcomplete", "huggingface_hub"}  # always installed, but its import takes 0.2 s of every command
NAME_TABLES = ("weights.py", "relatives.py")  # names of weights, as text


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The absolute name of every module that a file of the package imports, anywhere in it."""
    home = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*home[: -node.level], *filter(None, [node.module])]) if node.level else node.module
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str:
    """``minisbert.core.bert`` -> ``core``; a command is its own name, another library is itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "minisbert" and len(parts) > 1 else parts[0]


# ----------------------------------------------------------------------------------------- the book


def test_the_book_has_ten_chapters_and_an_appendix():
    assert sorted(path.stem for path in (PACKAGE / "core").glob("*.py")) == sorted([*CHAPTERS, "checks", "__init__"])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_imports_four_libraries_and_earlier_chapters(chapter):
    source = (PACKAGE / "core" / f"{chapter}.py").read_text(encoding="utf-8")
    earlier = CHAPTERS[: CHAPTERS.index(chapter)]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1
            assert node.module in [*earlier, "checks"], f"{chapter} imports {node.module}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            libraries = {"torch", "numpy", "tokenizers", "safetensors", *sys.stdlib_module_names}
            assert {name.split(".")[0] for name in names} <= libraries


def test_the_book_knows_no_operation():
    forbidden = {"argparse", "subprocess", "os", "signal", "threading", "urllib", "multiprocessing", "logging"}
    for path in (PACKAGE / "core").glob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & forbidden
        assert "print(" not in re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


ALONE = """
import json, sys
from pathlib import Path
import torch
from book.data import TextColumns, length_grouped_batches
from book.encoder import SentenceEncoder
from book.losses import cosine_mse_loss
from book.loop import adamw, fit, linear_schedule

assert not [name for name in sys.modules if name.startswith("minisbert")]
torch.set_num_threads(1)
folder, data = sys.argv[1:]
rows = [line.split("\\t") for line in Path(data).read_text(encoding="utf-8").splitlines()[1:]]
encoder = SentenceEncoder.load(folder)
vectors = encoder.encode([row[1] for row in rows[:40]])

torch.manual_seed(42)
pairs = TextColumns(encoder.tokenizer, [[row[1] for row in rows], [row[2] for row in rows]])
targets = torch.tensor([float(row[0]) / 5 for row in rows])
batches = length_grouped_batches(pairs.lengths, 4, torch.Generator().manual_seed(42))
parameters = [p for name, p in encoder.named_parameters() if not name.startswith("bert.pooler")]
for parameter in encoder.parameters():
    parameter.data = parameter.data.clone()  # not the file's memory, as in the package


def loss(encoder, rows):
    u, v = encoder(*pairs.batch(rows)).chunk(2)
    return cosine_mse_loss(u, v, targets[rows])


schedule = lambda step: linear_schedule(step, 1, 10)
steps = fit(encoder.train(), loss, batches, adamw(parameters, lr=2e-5), schedule, clip=1.0)
print(json.dumps({"vectors": vectors.tolist(), "losses": [step.loss for step in steps]}))
"""


def test_the_book_alone_encodes_and_trains_as_the_package_does(tiny, tmp_path, monkeypatch):
    """A copy of core/ under another name: the same vectors, and ten steps with the same losses."""
    shutil.copytree(PACKAGE / "core", tmp_path / "book")
    rows = toys.scored(40, seed=0)
    data = tmp_path / "pairs.tsv"
    data.write_text(toys.SCORED_HEADER + "".join(rows), encoding="utf-8")
    command = [sys.executable, "-c", ALONE, str(tiny), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone = json.loads(done.stdout)

    texts = [row.split("\t")[1] for row in rows]
    vectors = SentenceEncoder.load(tiny).encode(texts, convert_to_tensor=True)
    assert (vectors - torch.tensor(alone["vectors"])).abs().max() <= 2e-6

    monkeypatch.setattr(
        "minisbert.training.objectives.encoders.CosineRegression.evaluate", lambda *_: {"spearman": 0.0}
    )
    torch.set_num_threads(1)
    files = ["--data", str(data), "--dev", str(data), "--test", str(data), "--model", str(tiny)]
    exact = ["--dtype", "float32", "--micro-tokens", "100000", "--batch-size", "4", "--log-every", "1"]
    main([*files, *exact, "--device", "cpu", "--out", str(tmp_path / "run")])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses == pytest.approx(alone["losses"], rel=2e-5)
    assert len(losses) == 10


# ---------------------------------------------------------------------------------------- the rooms


def test_imports_go_one_way():
    for path in FILES:
        home = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found = {room_of(module) for module in imports(path) if module.startswith("minisbert.")} - {"__version__"}
        allowed = set(ROOMS)
        if home in ROOMS:
            allowed = set(ROOMS[: ROOMS.index(home) + 1])
        elif home == "commands":  # what several commands share is there too
            allowed.add("commands")
        assert found <= allowed, f"{path.relative_to(ROOT)} imports {found - allowed}"


def test_the_order_on_the_page_is_the_one_above():
    page = (ROOT / "docs" / "architecture.md").read_text()
    block = page.partition("## Import order")[2].split("```")[1]
    assert re.findall(r"\w+", block) == [*ROOMS, "commands", "lessons", "tests"]


def file_of(module: str) -> str | None:
    """The file of the package that a name is imported from, relative to the package."""
    path = ROOT.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_relative_to(PACKAGE) and file.is_file():
            return str(file.relative_to(PACKAGE))
    return None


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Files of which each imports the next and the last one is the first again; empty if there is no such circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_no_files_import_each_other_in_a_circle():
    graph = {}
    for path in FILES:
        name = str(path.relative_to(PACKAGE))
        graph[name] = {file_of(module) for module in imports(path)} - {None, name}
    assert circle(graph) == []
    graph["core/bert.py"].add("core/loop.py")  # the check finds a circle that it is given
    graph["core/loop.py"].add("core/bert.py")
    assert circle(graph) in (
        ["core/bert.py", "core/loop.py", "core/bert.py"],
        ["core/loop.py", "core/bert.py", "core/loop.py"],
    )


RUNTIME = {"torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "tqdm", "filelock"}
NEED_SERVE = ("minisbert.serving.application", "minisbert.serving.connections")


def needs_an_extra(module: str) -> bool:
    """Files that import an optional package at their top: only the function that needs the extra imports them."""
    return module in NEED_SERVE or module.startswith("minisbert.integrations.")


def test_imports_inside_functions_are_of_optional_packages():
    """Except in commands, which parse their options before they import torch."""
    for path in FILES:
        if path.parent.name == "commands" or path == PACKAGE / "train.py":
            continue
        functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in (inner for function in functions for inner in ast.walk(function)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules = ["." * node.level + (node.module or "")]
            for module in modules:
                known = {*OPTIONAL, *sys.stdlib_module_names}
                is_fine = needs_an_extra(module) or module.split(".")[0] in known
                assert is_fine, f"{path}, line {node.lineno}: {module}"


def test_no_file_imports_more_than_the_runtime_packages_at_its_top():
    for path in FILES:
        if not needs_an_extra(".".join(path.relative_to(ROOT).with_suffix("").parts)):
            top = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
            assert top <= {"minisbert", *RUNTIME, *sys.stdlib_module_names}, path


def test_files_beside_a_command_shadow_no_other_module():
    """The folder of a file that is started by its path is the first place where Python looks for any import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in project["dependencies"]}
    for folder in (PACKAGE, PACKAGE / "commands"):
        names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not names & {*sys.stdlib_module_names, *OPTIONAL, *needed}


@pytest.mark.parametrize("file", ["commands/plot.py", "train.py"])
def test_a_command_starts_by_its_path(file):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, PACKAGE / file, "--help"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("name", budgets.limits())
def test_nothing_is_beyond_its_budget(name):
    """Growth is a decision: to add lines, raise the number and say why."""
    found, limit = budgets.limits()[name]
    assert found >= limit if name in budgets.AT_LEAST else found <= limit


def test_checks_are_at_the_borders():
    """Explicit checks are for wrong numbers; a file's damage is caught by ``core.reading``."""
    source = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert len(re.findall(r"raise (?:InputError|ValueError)\b", source)) <= budgets.RAISES


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("loading", "util")])
def test_a_room_says_who_lives_there(room):
    doc = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))
    assert "mport" in doc
    assert len(doc) > 100


def test_private_parts_of_torch_are_used_in_one_file():
    """Except the two functions that torch's documentation uses to compile a module ahead of time."""
    documented = {"torch._inductor"}
    for path in FILES:
        found = re.findall(
            r"torch(?:\.\w+)*\._[a-z]\w+|\"_(?:forward|backward)_\w*hooks\"|\._\w*hooks\b", path.read_text()
        )
        found = {*found} - (documented if path == PACKAGE / "backends" / "package.py" else set())
        assert not found or path == PACKAGE / "system" / "torch_internals.py", f"{path.relative_to(ROOT)} uses {found}"


def test_there_is_one_forward_pass():
    """No other code multiplies by BERT's weights, or takes a softmax for attention."""
    for path in FILES:
        if path.name in ("bert.py", "heads.py") and path.parent.name in ("core", "mistakes"):
            continue
        elsewhere = ("mistakes", "architectures")  # wrong on purpose; other encoders
        # backends/graphs.py is compared with the book's, and replaces it in graphs
        if path.parent.name in elsewhere or path.name in ("masked_language_model.py", "graphs.py"):
            continue
        source = path.read_text(encoding="utf-8")
        found = re.findall(
            r"scaled_dot_product_attention|feed_forward\.(?:up|down)|attention\.(?:query|key|value)\b", source
        )
        found += (
            re.findall(r"_linear_pointwise|layer_norm\(|gelu\(", source) if path.name != "torch_internals.py" else []
        )
        assert not found or path.name in NAME_TABLES, f"{path.relative_to(ROOT)} has {found}"


# ------------------------------------------------------------------------------------- one name each

SHARED_NAMES = {
    *("__all__", "__getattr__", "_"),  # what a module exports, what it says of other names, and what it does not read
    # the entry points of commands, whose module says which
    *("main", "parser"),
    # the book's classes, which the package's classes of the same name extend
    *("SentenceEncoder", "Pooling", "Tokenizer"),
}
# paths that a command writes, or that stand for several files
WRITTEN = re.compile(r"(?:state|model|last|runs|data|lessons/mine)/|(?:.*/)?NAME\b")
A_PATH = re.compile(r"(?<![\w./:-])((?:[\w-]+/)*[\w-]+\.py|(?:[a-z_]+/)+)(?![\w/.])")
ELSEWHERE = {"extract_distilbert.py", "tokenization.py"}  # of Hugging Face's and Google's repositories


def defined(path: Path) -> Iterator[str]:
    """The names of the functions, classes and constants of a module."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for target in targets for name in getattr(target, "elts", [target]))
            yield from (name.id for name in names if isinstance(name, ast.Name))


def in_several(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    places: dict[str, set[str]] = defaultdict(set)
    for name, path in names:
        places[name].add(str(path.relative_to(PACKAGE)))
    return {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_no_name_is_defined_in_two_modules():
    assert in_several((name, path) for path in FILES for name in {*defined(path)} - SHARED_NAMES) == {}


def test_no_file_name_is_in_two_rooms():
    """A chapter and its room's file may share one, as may a command and what it runs, and `train.py` is a command."""
    rooms = [path for path in FILES if path.parent not in (PACKAGE, PACKAGE / "core", PACKAGE / "commands")]
    assert in_several((path.name, path) for path in rooms if path.name != "__init__.py") == {}


def test_every_file_and_room_that_a_docstring_or_comment_names_exists():
    missing = []
    for path in FILES:
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        said = [ast.get_docstring(node) or "" for node in ast.walk(tree(path)) if isinstance(node, kinds)]
        said += re.findall(r"^ *#(.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for name in A_PATH.findall("\n".join(said)):
            places = (path.parent, ROOT, PACKAGE, PACKAGE / "core", PACKAGE / "commands")
            is_there = any((folder / name).exists() for folder in places)
            if not (is_there or WRITTEN.match(name) or name in ELSEWHERE):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


# --------------------------------------------------------------------------------------- small pieces


def depth(node: ast.AST, level: int = 0) -> int:
    """How many blocks lie inside one another."""
    blocks = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match)
    deepest = level
    for child in ast.iter_child_nodes(node):
        elif_branch = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, depth(child, level + (isinstance(child, blocks) and not elif_branch)))
    return deepest


def test_files_and_functions_are_small():
    for path in FILES:
        file = str(path.relative_to(PACKAGE))
        assert budgets.lines([path]) <= budgets.LONG_FILES.get(file, budgets.FILE_LINES), file
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                name, levels = f"{file} {node.name}", 1 + depth(node)
                most = budgets.LONG_FUNCTIONS.get(name, budgets.FUNCTION_LINES)
                assert node.end_lineno - node.lineno + 1 <= most, name
                assert levels <= 4, f"{name} has {levels} levels of indentation"


# ----------------------------------------------------------------------------------------- one loop


def test_the_loop_fits_on_one_screen():
    tree = ast.parse((PACKAGE / "core" / "loop.py").read_text(encoding="utf-8"))
    fit = next(node for node in tree.body if getattr(node, "name", "") == "fit")
    assert fit.end_lineno - fit.lineno + 1 <= 45
    assert 1 + depth(fit) <= 3


def calls(node: ast.AST, name: str) -> list[int]:
    """The lines that call a method of this name."""
    found = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)]
    return [inner.lineno for inner in found if inner.func.attr == name]


def test_the_loop_is_the_only_one():
    """Nowhere else in the repository does a ``step()`` of an optimizer follow a ``backward()``, but for a peer's."""
    found = []
    others = (path for folder in ("lessons", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
    for path in [*FILES, *others]:
        if path.is_relative_to(ROOT / "tests" / "reference"):  # the reference's own loops: the expected values
            continue
        text = path.read_text(encoding="utf-8")
        if "backward" not in text:  # most files: parsing takes ten times as long as reading
            continue
        tree = ast.parse(text)
        scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        scopes.append(
            ast.Module([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)], [])
        )
        for scope in scopes:
            backward, step = calls(scope, "backward"), calls(scope, "step")
            if backward and step and max(step) > min(backward):
                found.append(f"{path.relative_to(ROOT)} {getattr(scope, 'name', '')}".strip())
    assert found == ["minisbert/core/loop.py fit", "benchmarks/step_cost.py peer_steps"]
