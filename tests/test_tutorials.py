"""The tutorials: every shell block runs as it is printed, one after the other, in an empty folder.

The tiny model takes the place of the real one where only the exit codes and the files count.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

BLOCK = re.compile(r"^```(bash|)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A command called minisbert that takes another model for the default one.
COMMAND = """#!{python}
import runpy, sys
needs_a_model = {{"encode", "search", "evaluate", "inspect", "train", "certify"}}
name, *rest = ["{model}" if word == "all-MiniLM-L6-v2" else word for word in sys.argv[1:]]
if name in needs_a_model and "--model" not in rest:
    rest += ["--model", "{model}"]
sys.argv = ["minisbert", name, *rest]
runpy.run_module("minisbert", run_name="__main__", alter_sys=True)
"""

needs_bash = pytest.mark.skipif(
    shutil.which("bash") is None, reason="the tutorials are shell transcripts"
)
no_server = find_spec("uvicorn") is None or shutil.which("curl") is None
needs_server = pytest.mark.skipif(no_server, reason="needs the serve extra and curl")


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the shell blocks of a page, each with the output below it or an empty string."""
    found = BLOCK.findall((ROOT / "docs" / f"tutorial-{page}.md").read_text(encoding="utf-8"))
    following = [*found[1:], ("bash", "")]
    shell = []
    for (kind, text), (next_kind, below) in zip(found, following, strict=True):
        if kind == "bash":
            shell.append((text, below if next_kind == "" else ""))
    return shell


class Shell:
    """Run blocks in one folder, with ``minisbert`` and ``python`` as the reader has them."""

    def __init__(self, folder: Path, model: Path):
        programs = folder / "programs"
        programs.mkdir()
        (programs / "minisbert").write_text(
            COMMAND.format(python=sys.executable, model=model), encoding="utf-8"
        )
        (programs / "python").write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8"
        )
        for program in programs.iterdir():
            program.chmod(0o755)
        self.folder = folder / "empty"
        self.folder.mkdir()
        with socket.socket() as probe:  # a port that is free
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.environment = dict(os.environ)
        self.environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment["PYTHONPATH"] = str(ROOT)
        self.environment["no_proxy"] = "127.0.0.1"

    def run(self, block: str) -> str:
        """Return what a block prints to stdout; a command that fails ends the test."""
        script = "set -eo pipefail\n" + block.replace("8000", self.port)
        # A file takes the errors: a server would keep a pipe open.
        with open(self.folder.parent / "errors", "w+", encoding="utf-8") as errors:
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=600,  # a compiler on a busy machine
            )
            errors.seek(0)
            assert done.returncode == 0, block + errors.read()
        return done.stdout


@needs_bash
@pytest.mark.weights
@pytest.mark.slow
def test_search_your_own_files_prints_what_the_page_shows(minilm, tmp_path):
    shell = Shell(tmp_path, minilm)
    for block, shown in blocks("search"):
        printed = shell.run(block)
        if shown:
            # The fourth digit of a cosine depends on the CPU, and the first line of a report on
            # where the model is.
            assert digits_left_out(printed) == digits_left_out(shown)
    found = json.loads((shell.folder / "hits.json").read_text(encoding="utf-8"))
    assert found["results"][0]["hits"][0]["index"] == 2


def digits_left_out(text: str) -> str:
    text = re.sub(r"^model .*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"0\.\d{4}", lambda found: f"{float(found[0]):.2f}", text)


@needs_bash
@needs_server
@pytest.mark.slow
def test_fine_tune_on_a_csv(tiny, tmp_path):
    """Inspect, train, evaluate, search and serve; what inspect says depends on no weights."""
    shell = Shell(tmp_path, tiny)
    printed = [shell.run(block) for block, _ in blocks("finetune")]
    inspected = next(text for text in printed if text.startswith("train.csv: 24 rows, 1 skipped"))
    assert "             line 26\n" in inspected
    assert inspected.count("0 rows are also in train.csv") == 2
    scores = next(text for text in printed if "accuracy@1" in text)
    names = [line.split()[0] for line in scores.splitlines() if "->" in line]
    assert names == ["accuracy@1", "recall@10", "mrr@10", "ndcg@10", "map@100"]
    assert len(json.loads((shell.folder / "answer.json").read_text(encoding="utf-8"))["data"]) == 1


@needs_bash
@needs_server
@pytest.mark.slow
def test_vectors_in_production(tiny, tmp_path):
    """Compile, serve and certify; the planted fault is named as for the real model."""
    shell = Shell(tmp_path, tiny)
    printed = [shell.run(block) for block, _ in blocks("production")]
    assert printed[2] == "ok\n"
    assert "Equal, to" in printed[3]
    assert "Not equal: [CLS], the first token, was taken; the model has mean pooling." in printed[4]
    assert printed[4].endswith("not deployed\n")
    assert len(json.loads((shell.folder / "answer.json").read_text(encoding="utf-8"))["data"]) == 1
