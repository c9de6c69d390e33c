"""What the README says about the code is still so."""

import importlib
import inspect
import re
import shlex
import subprocess
import sys

import pytest

from minisbert.core import losses
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "minisbert"


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
    for path in PACKAGE.rglob("*.py"):
        found = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert found <= allowed, f"{path.name} imports {found - allowed}"
        dotted = path.relative_to(ROOT).with_suffix("").parts
        assert importlib.import_module(".".join(dotted).removesuffix(".__init__"))
