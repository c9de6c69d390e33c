"""The command ``minisbert NAME`` is ``python -m minisbert.NAME``; alone it lists them, without importing torch."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from minisbert import __version__
from minisbert.__main__ import commands
from tests.conftest import ROOT

SCRIPT = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"  # as the installed one
WAYS = {"module": ["-m", "minisbert"], "script": ["-c", SCRIPT]}


def minisbert(way: str, *arguments: str, path: Path | None = None, **options) -> subprocess.CompletedProcess:
    waiting = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}  # what a user may have set
    environment = {name: value for name, value in os.environ.items() if name not in waiting}
    environment |= {"PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), str(ROOT)])}
    command = [sys.executable, *WAYS[way], *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_alone_it_lists_every_command_with_a_line_and_imports_no_torch(way, arguments, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = minisbert(way, *arguments, path=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    listed = re.findall(r"^  (\w+) +(\S.+)$", done.stdout, re.MULTILINE)
    files = {path.stem for path in (ROOT / "minisbert").glob("*.py")} - {"__init__", "__main__"}
    assert {name for name, _ in listed} == files
    assert all(len(about) > 20 for _, about in listed)


@pytest.mark.parametrize("way", WAYS)
def test_the_version(way):
    done = minisbert(way, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"minisbert {__version__}\n", "")


@pytest.mark.parametrize(
    ("name", "words"),
    [("trian", "no command 'trian': did you mean train?"), ("encoder", "did you mean encode?"), ("x\ny", r"'x\ny'"),
     ("core", "minisbert has no command 'core'"), ("../train", "has no command"), ("__main__", "has no command")],
)  # fmt: skip
def test_an_unknown_name_is_one_line_with_the_nearest_match(name, words):
    done = minisbert("module", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_command_gets_its_arguments_and_its_output_and_exit_code_pass_through(way, tiny, tmp_path):
    given = ["a cat", "it rains", "--model", str(tiny), "--device", "cpu"]
    expected = subprocess.run(
        [sys.executable, "-m", "minisbert.encode", *given], capture_output=True, text=True, cwd=ROOT
    )
    done = minisbert(way, "encode", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    assert done.stdout
    for arguments, code in [(["assets", "path", "no"], 2), (["assets"], 2), (["assets", "--help"], 0)]:
        assert minisbert(way, *arguments).returncode == code


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_during_the_imports_is_one_line_and_threads_do_not_spin(way, tmp_path):
    code = "import os, signal, sys; print(os.environ['GOMP_SPINCOUNT'], flush=True); signal.raise_signal(signal.SIGINT)"
    (tmp_path / "torch.py").write_text(code)
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    done = minisbert(way, "train", path=tmp_path, **listening)
    assert (done.returncode, done.stdout, done.stderr) == (130, "1000\n", "stopped\n")


def test_the_package_installs_the_command_and_says_that_it_has_types():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"minisbert": "minisbert.__main__:main"}
    assert (ROOT / "minisbert" / "py.typed").is_file()
    assert set(commands()) >= {"train", "encode", "evaluate", "search"}
