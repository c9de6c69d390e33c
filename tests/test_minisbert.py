"""``minisbert NAME`` is ``python -m minisbert NAME``; alone it lists them, without torch."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import minisbert as package
from docs.tools import command_pages
from minisbert import __version__
from minisbert.__main__ import COMMANDS, command, main
from minisbert.commands import assets
from minisbert.core import InputError
from tests.conftest import ROOT

# What the installed program does.
SCRIPT = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"
WAYS = {"module": ["-m", "minisbert"], "script": ["-c", SCRIPT]}


def minisbert(
    way: str, *arguments: str, path: Path | None = None, **options
) -> subprocess.CompletedProcess:
    waiting = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}  # what a user may have set
    environment = {name: value for name, value in os.environ.items() if name not in waiting}
    environment["PYTHONPATH"] = f"{path}{os.pathsep}{ROOT}" if path else str(ROOT)
    command = [sys.executable, *WAYS[way], *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, **options
    )


def without_torch(folder: Path, *arguments: str, way: str = "module") -> str:
    """What the command prints if importing torch ends the process."""
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = minisbert(way, *arguments, path=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("way", "arguments"), [("module", []), ("script", ["--help"])])
def test_alone_it_lists_every_command_with_a_line(way, arguments, tmp_path):
    shown = without_torch(tmp_path, *arguments, way=way)
    listed = re.findall(r"^  ([\w-]+) +(\S.{20,})$", shown, re.MULTILINE)
    assert {name for name, _ in listed} | {"assets", "version"} == set(COMMANDS)
    assert max(map(len, shown.splitlines())) <= 100
    assert "--truncate-dim" in without_torch(tmp_path, "help", "encode", way=way)


def test_the_examples_of_every_help_are_read(monkeypatch):
    """Each help ends with commands whose options exist and go together."""
    for name in COMMANDS:
        examples = command_pages.examples(command_pages.parser_of(name))
        assert examples, name
        for line in examples:
            words = shlex.split(re.split(r" [|>#] ", line)[0])
            if words[0] == "minisbert":
                command_pages.parser_of(words[1]).parse_args(words[2:])


TORCH = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
"""


def test_a_parser_is_made_without_torch():
    modules = {command(name).__module__ for name in COMMANDS}
    done = subprocess.run(
        [sys.executable, "-c", TORCH, *modules], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_dir_lists_the_public_names_only():
    assert sorted(dir(package)) == sorted([*package.__all__, "__version__"])
    assert all(getattr(package, name) for name in dir(package))


def test_the_version_is_a_line_and_a_report(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["minisbert", "version"])
    main()
    shown = capsys.readouterr().out
    assert re.fullmatch(rf"minisbert {re.escape(__version__)}\ntorch .*\nfloat32 by .*\n", shown)
    assert without_torch(tmp_path, "--version") == f"minisbert {__version__}\n"


@pytest.mark.parametrize("name", ["trian", "core", "../train", "__main__", "x\ny"])
def test_an_unknown_name_is_one_line(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["minisbert", name])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.fullmatch(r"error: .*no command.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_gets_its_arguments_and_its_output_and_exit_code_pass_through(
    way, tmp_path, capsys
):
    assets.main(["path", "stsb"])
    done = minisbert(way, "assets", "path", "stsb", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, capsys.readouterr().out)
    assert minisbert(way, "assets", "path", "no").returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize(
    ("way", "name"), [("script", "train"), ("module", "train"), ("module", "version")]
)
def test_ctrl_c_while_torch_is_imported_is_one_line_and_threads_do_not_spin(way, name, tmp_path):
    """The stub of torch presses the keys."""
    code = "import os, signal\nprint(os.environ['GOMP_SPINCOUNT'], flush=True)\n"
    code += "signal.raise_signal(signal.SIGINT)"
    (tmp_path / "torch.py").write_text(code)
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    done = minisbert(way, name, path=tmp_path, **listening)
    assert (done.returncode, done.stdout, done.stderr) == (130, "3000\n", "stopped\n")


# The folder W holds the model W/M and links to it (W/model) and to its weights
# (W/weights.safetensors, ...).
WRITING = [
    "encode a.cat --model M --out M/model.safetensors",
    "encode a.cat --model model --out M/new.npy",
    "encode a.cat --model M --out weights.safetensors",
    "encode --model M --file texts.npy --out texts.npy",
    "encode --model M --file texts.npy --heatmap texts.png",
    "trace --model M --against states.safetensors --write states.safetensors",
    "mine --model M --pairs pairs.jsonl --out pairs.jsonl",
    "mine --model M --pairs pairs.jsonl --out new.jsonl --index M/new.safetensors",
    "search texts.npy --model M --query cat --index M/new.safetensors",
    "pairs texts.npy --model M --index weights.safetensors",
    "compile M --out compiled.pt2",
    "export-onnx M --out M",
    "plot run --out config.png",
    "inspect pairs.jsonl --model M --plots .",
    "distill-static --model M --out M/table",
    "distill-static --model M --out ../W",
]
LINKS = {
    "model": "M",
    "weights.safetensors": "M/model.safetensors",
    "texts.png": "texts.npy",
    "config.png": "run/config.json",
    "compiled.pt2": "M/tokenizer.json",
    "inspection.png": "pairs.jsonl",
}


@pytest.fixture
def inputs(tiny, tmp_path, monkeypatch) -> Path:
    """The current folder, W, with a model and files to read."""
    folder = tmp_path / "W"
    shutil.copytree(tiny, folder / "M")
    monkeypatch.chdir(folder)
    Path("run").mkdir()
    for file in ("texts.npy", "states.safetensors", "corpus.jsonl", "run/config.json"):
        Path(file).write_text('{"_id": "1", "text": "a cat"}\n{"_id": "2", "text": "a dog"}\n')
    Path("pairs.jsonl").write_text('{"anchor": "a cat", "positive": "the cat"}\n')
    for link, target in LINKS.items():
        Path(link).symlink_to(target)
    return folder


@pytest.mark.parametrize("line", WRITING)
def test_no_command_writes_to_what_it_reads(inputs, line):
    if "plot" in line or "heatmap" in line:
        pytest.importorskip("matplotlib", reason="needs the plots extra")
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    name, *arguments = line.split()
    with pytest.raises(InputError, match=r"overlaps .*, which this command reads"):
        command(name)(arguments)
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before
