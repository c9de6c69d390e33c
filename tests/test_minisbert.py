"""The command ``minisbert NAME`` is ``python -m minisbert NAME``; alone it lists them, without importing torch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from minisbert import __version__
from minisbert.__main__ import files, main
from minisbert.commands import assets
from minisbert.core import InputError
from tests.conftest import ROOT

SCRIPT = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"  # as the installed one
WAYS = {"module": ["-m", "minisbert"], "script": ["-c", SCRIPT]}


def minisbert(way: str, *arguments: str, path: Path | None = None, **options) -> subprocess.CompletedProcess:
    waiting = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}  # what a user may have set
    environment = {name: value for name, value in os.environ.items() if name not in waiting}
    environment |= {"PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), str(ROOT)])}
    command = [sys.executable, *WAYS[way], *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.parametrize(("way", "arguments"), [("module", []), ("script", ["--help"])])
def test_alone_it_lists_every_command_with_a_line_and_imports_no_torch(way, arguments, tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = minisbert(way, *arguments, path=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    listed = re.findall(r"^  ([\w-]+) +(\S.{20,})$", done.stdout, re.MULTILINE)
    assert {name for name, _ in listed} == set(files())


UNKNOWN = {"trian": "no command 'trian': did you mean train?", "encoder": "did you mean encode?", "x\ny": r"'x\ny'"}
UNKNOWN |= {"core": "minisbert has no command 'core'", "../train": "has no command", "__main__": "has no command"}


def test_the_version_and_unknown_names(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minisbert", "--version"])
    main()
    assert capsys.readouterr() == (f"minisbert {__version__}\n", "")
    for name, words in UNKNOWN.items():
        monkeypatch.setattr(sys, "argv", ["minisbert", name])
        with pytest.raises(SystemExit, match="2"):
            main()
        shown = capsys.readouterr()
        assert shown.out == ""
        assert re.fullmatch(rf"error: .*{re.escape(words)}.*\n", shown.err)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_gets_its_arguments_and_its_output_and_exit_code_pass_through(way, tmp_path, capsys):
    assets.main(["path", "stsb"])
    done = minisbert(way, "assets", "path", "stsb", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, capsys.readouterr().out)
    assert minisbert(way, "assets", "path", "no").returncode == 2


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


REPLACING = {
    "encode MODEL": "encode a.cat --model M --out M/model.safetensors",
    "encode MODEL link": "encode a.cat --model M --out link.safetensors",
    "encode FILE": "encode --model M --file texts.npy --out texts.npy",
    "encode FILE link": "encode --model M --file texts.npy --out link.npy",
    "encode HEATMAP": "encode --model M --file texts.npy --heatmap link.png",
    "merge": "encode merge shards --out link-to-shard.npy",
    "trace MODEL": "trace --model M --write M/model.safetensors",
    "trace FILE": "trace --model M --against states.safetensors --write states.safetensors",
    "mine": "mine --model M --pairs pairs.jsonl --out pairs.jsonl",
    "mine corpus": "mine --model M --pairs pairs.jsonl --corpus corpus.jsonl --out corpus.jsonl",
    "compile": "compile M --out link.pt2",
    "plot": "plot run --out link-to-run.png",
    "inspect": "inspect pairs.jsonl --model M --plots .",
}


@pytest.mark.parametrize("name", REPLACING)
def test_no_command_replaces_a_file_that_it_reads(tiny, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    if name in ("inspect", "plot", "encode HEATMAP"):
        pytest.importorskip("matplotlib", reason="needs the plots extra")
    shutil.copytree(tiny, "M")
    Path("run").mkdir()
    for file in ("texts.npy", "states.safetensors", "corpus.jsonl", "run/config.json"):
        Path(file).write_text('{"_id": "1", "text": "a cat"}\n')
    Path("pairs.jsonl").write_text('["a cat", "the cat"]\n')
    for link, target in {
        "link.safetensors": "M/model.safetensors", "link.npy": "texts.npy", "link.png": "texts.npy",
        "link-to-shard.npy": "shards/part-00000.npy", "link.pt2": "M/tokenizer.json",
        "link-to-run.png": "run/config.json", "inspection.png": "pairs.jsonl",
    }.items():  # fmt: skip
        Path(link).symlink_to(target)
    if name == "merge":
        Path("texts.txt").write_text("a cat\na dog\n")
        command("encode --model M --file texts.txt --out shards --shard-rows 1")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"would replace .*, which this command reads|is in the folder of the"):
        command(REPLACING[name])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def command(line: str) -> None:
    name, *arguments = line.split()
    import_module(f"minisbert.commands.{files()[name].stem}").main(arguments)


def test_vectors_beside_a_model_may_be_written_again(tiny, tmp_path, monkeypatch):
    shutil.copytree(tiny, tmp_path / "M")
    monkeypatch.chdir(tmp_path)
    for text in ("a.cat", "dog"):
        command(f"encode {text} --model M --out M/vectors.npy")
    assert np.load("M/vectors.npy").shape == (1, 24)
