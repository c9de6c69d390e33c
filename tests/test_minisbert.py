"""The command ``minisbert``: its list, its names, its exit codes, and what it never overwrites."""

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

# The command is run as a module, and as the script that pip installs.
SCRIPT = "import sys; from minisbert.__main__ import main; sys.argv[0] = 'minisbert'; main()"
WAYS = {"module": ["-m", "minisbert"], "script": ["-c", SCRIPT]}


def minisbert(
    way: str, *arguments: str, path: Path | None = None, **options
) -> subprocess.CompletedProcess:
    """Run the command in a process, which imports from ``path`` first."""
    environment = dict(os.environ)
    # what a user may have set
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = str(ROOT)
    if path is not None:
        environment["PYTHONPATH"] = f"{path}{os.pathsep}{ROOT}"
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
    """At once, without torch, and in lines that a terminal shows."""
    out = without_torch(tmp_path, *arguments, way=way)
    listed = set(re.findall(r"^  ([\w-]+) +\S.{20,}$", out, re.MULTILINE))
    assert listed | {"assets", "version"} == set(COMMANDS)
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize("way", WAYS)
def test_help_before_a_name_is_its_help(way, tmp_path):
    """Users of git type ``help encode``."""
    assert "--truncate-dim" in without_torch(tmp_path, "help", "encode", way=way)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_every_help_are_read(name):
    """Their options exist and go together as far as the parser knows."""
    examples = command_pages.examples(command_pages.parser_of(name))
    assert examples
    for line in examples:
        program, *words = shlex.split(re.split(r" [|>#] ", line)[0])
        if program == "minisbert":
            example_name, *arguments = words
            command_pages.parser_of(example_name).parse_args(arguments)


TORCH = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
    if "torch" in sys.modules:
        sys.exit(f"{name} imports torch")
"""


def test_a_parser_is_made_without_torch():
    """Importing torch takes a second, for which ``--help`` should not wait."""
    modules = {command(name).__module__ for name in COMMANDS}
    done = subprocess.run(
        [sys.executable, "-c", TORCH, *modules], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stderr == ""


def test_dir_lists_the_public_names_only():
    """An editor shows them after the dot, and each can be imported."""
    assert sorted(dir(package)) == sorted([*package.__all__, "__version__"])
    for name in dir(package):
        assert getattr(package, name)


def test_the_version_is_a_line(tmp_path):
    """As of any program."""
    assert without_torch(tmp_path, "--version") == f"minisbert {__version__}\n"


def test_the_version_is_a_report(monkeypatch, capsys):
    """What an issue about speed must say."""
    monkeypatch.setattr(sys, "argv", ["minisbert", "version"])
    main()
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"minisbert {__version__}"
    assert second.startswith("torch ")
    assert third.startswith("float32 by ")


@pytest.mark.parametrize("name", ["trian", "core", "../train", "__main__", "x\ny"])
def test_an_unknown_name_is_one_line(name, monkeypatch, capsys):
    """Also one that is a module, and one with a line break."""
    monkeypatch.setattr(sys, "argv", ["minisbert", name])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert re.fullmatch(r"error: .*no command.*\n", capsys.readouterr().err)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_gets_its_arguments(way, tmp_path, capsys):
    """And its output passes through."""
    assets.main(["path", "stsb"])
    done = minisbert(way, "assets", "path", "stsb", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == capsys.readouterr().out


@pytest.mark.parametrize("way", WAYS)
def test_the_exit_code_of_a_command_passes_through(way):
    """A script must notice bad input."""
    assert minisbert(way, "assets", "path", "no").returncode == 2


# A stub of torch that presses the keys.
INTERRUPTING_TORCH = """
import os, signal
print(os.environ["GOMP_SPINCOUNT"], flush=True)
signal.raise_signal(signal.SIGINT)
"""


def listen_to_ctrl_c() -> None:
    """A test in the background of a shell ignores it otherwise, as do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize(
    ("way", "name"), [("script", "train"), ("module", "train"), ("module", "version")]
)
def test_ctrl_c_while_torch_is_imported_is_one_line_and_threads_do_not_spin(way, name, tmp_path):
    """The import takes a second; OpenMP reads the variable then."""
    (tmp_path / "torch.py").write_text(INTERRUPTING_TORCH)
    done = minisbert(way, name, path=tmp_path, preexec_fn=listen_to_ctrl_c)
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


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("line", WRITING)
def test_no_command_writes_to_what_it_reads(inputs, line):
    """Also through a link: a model or a corpus would be lost."""
    if "plot" in line or "heatmap" in line:
        pytest.importorskip("matplotlib", reason="needs the plots extra")
    before = contents(inputs)
    name, *arguments = line.split()
    with pytest.raises(InputError, match=r"overlaps .*, which this command reads"):
        command(name)(arguments)
    assert contents(inputs) == before
