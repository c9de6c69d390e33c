"""What the README says about the code is still so."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys

import pytest

from minisbert import losses
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "minisbert"


def test_the_table_of_files_is_complete_and_in_import_order():
    rows = [line for line in README.splitlines() if re.match(r"\| `\w+\.py`", line)]
    order = [name for row in rows for name in re.findall(r"`(\w+)\.py`", row.split("|")[1])]
    assert sorted(order) == sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    for i, name in enumerate(order):
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        imported = set(re.findall(r"^from minisbert\.(\w+) import", source, re.MULTILINE))
        names = re.findall(r"^from minisbert import (.+)$", source, re.MULTILINE)
        imported |= {part.strip() for line in names for part in line.split(",")} - {"__version__"}
        assert imported <= set(order[:i]), f"{name}.py imports {imported - set(order[:i])}, which stands below it"


COMMANDS = re.findall(r"python -m ((?:minisbert|tests)\.[\w.]+)([^\n`#|]*)", README)


@pytest.mark.parametrize("module", sorted({module for module, _ in COMMANDS}))
def test_every_command_has_a_help_with_its_options(module):
    if module.endswith("make_reference"):
        pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert module in done.stdout
    for name, rest in COMMANDS:
        if name == module:
            options = [word for word in shlex.split(rest) if word.startswith("--")]
            assert [option for option in options if option not in done.stdout] == []


def test_the_number_of_losses():
    count = sum(name.endswith("_loss") for name, _ in inspect.getmembers(losses, inspect.isfunction))
    words = {11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen"}
    assert f"{words[count]} losses" in README


def test_the_example_in_python_runs(tiny, tmp_path, monkeypatch):
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    monkeypatch.chdir(tmp_path)
    exec(example.replace("all-MiniLM-L6-v2", str(tiny)), {})
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_files_it_points_to_exist():
    links = re.findall(r"\]\(([\w./-]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_import_of_every_file_needs_nothing_beyond_the_four_runtime_packages():
    allowed = {"minisbert", "torch", "numpy", "tokenizers", "safetensors", *sys.stdlib_module_names}
    for path in PACKAGE.glob("*.py"):
        found = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert found <= allowed, f"{path.name} imports {found - allowed}"
        assert importlib.import_module(f"minisbert.{path.stem}" if path.stem != "__init__" else "minisbert")
