"""Files damaged at random: every reader reads them or refuses them in one line.

``MINISBERT_EXAMPLES=3000 pytest tests/test_foreign_bytes.py`` looks longer. What it finds
Hypothesis keeps in ``.hypothesis`` and tries first the next time.
"""

import contextlib
import gzip
import importlib
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from minisbert.__main__ import command
from minisbert.commands.certify import main as certify
from minisbert.commands.encode import main as encode
from minisbert.commands.evaluate import main as evaluate
from minisbert.commands.inspect_ import main as inspect
from minisbert.commands.pairs import main as pairs
from minisbert.commands.search import main as search
from minisbert.commands.trace_ import main as trace
from minisbert.core import InputError
from minisbert.core.heads import siamese
from minisbert.loading import load_encoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from tests import toys
from tests.conftest import ROOT

TINY = str(ROOT / "weights" / "tiny")
TEXTS = ["the cat", "a small dog is in the park", "the music"]
VALUES = [
    None,
    True,
    -1,
    0,
    1.5,
    2**70,
    1e308,
    float("nan"),
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [-1],
    {"a": 1},
]
BYTES = [
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"\n",
    b"\r",
    b"\t",
    b",",
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 400,
    b"[" * 100_000,
]
EXAMPLES = settings(
    max_examples=int(os.environ.get("MINISBERT_EXAMPLES", 25)),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def replaced(value: object, draw: Callable) -> object:
    """The same JSON value with one part of it, at any depth, exchanged, renamed or gone."""
    keys = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(VALUES))
    key = draw(st.sampled_from(keys))
    copy = value.copy()
    if draw(st.integers(0, 5)) == 0:
        del copy[key]
    else:
        copy[key] = replaced(copy[key], draw)
    return copy


@st.composite
def damaged(draw: Callable, content: bytes) -> bytes:
    """The bytes with one or two places changed; JSON, also of safetensors, often as JSON."""
    header = int.from_bytes(content[:8], "little")
    is_safetensors = header < len(content) - 8
    start, end = (8, 8 + header) if is_safetensors else (0, len(content))
    if draw(st.booleans()):
        with contextlib.suppress(ValueError):
            body = json.dumps(replaced(json.loads(content[start:end]), draw)).encode()
            if is_safetensors:
                body = len(body).to_bytes(8, "little") + body
            return body + content[end:]
    for _ in range(draw(st.integers(1, 2))):
        i = draw(st.integers(0, len(content)))
        j = draw(st.sampled_from([i, i + 1, i + 7, len(content)]))
        content = content[:i] + draw(st.sampled_from(BYTES) | st.binary(max_size=4)) + content[j:]
    return content


def ending(run: Callable[[], object]) -> tuple[int, str]:
    """The exit code of a command, and its error if that is shown in one line."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run()
    except SystemExit as end:
        return end.code, ""
    except (InputError, OSError) as error:
        return 2, str(error)
    return 0, ""


def check(path: Path, run: Callable[[], object], data: st.DataObject) -> None:
    """Damage the file, run the reader, put the file back."""
    content = path.read_bytes()
    path.write_bytes(data.draw(damaged(content)))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            code, said = ending(run)
    finally:
        path.write_bytes(content)
    assert code in (0, 1) or said  # inspect and certify tell by 1 what they have found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    toys.write_all(folder)
    shutil.copytree(TINY, folder / "model")
    PairModel(SentenceEncoder.load(TINY), siamese(24)).save(folder / "pair-model")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "quoted.csv").write_text(
        'score,sentence1,sentence2\n3,"the cat, the dog","a ""small"" dog"\n0,a,b\n'
    )
    (folder / "triplets.jsonl").write_text(
        '{"anchor": "a", "positive": "b", "negative": "c"}\n' * 2
    )
    (folder / "texts.txt.gz").write_bytes(gzip.compress(b"the cat\na dog\n"))
    vectors = SentenceEncoder.load(TINY).encode(TEXTS)
    np.save(folder / "v.npy", vectors)
    save_file({"embeddings": vectors}, folder / "v.safetensors")
    lines = [json.dumps({"embedding": row}) + "\n" for row in vectors.tolist()]
    (folder / "v.jsonl").write_text("".join(lines))
    codes = str(folder / "codes.safetensors")
    encode(["--model", TINY, *TEXTS, "--out", codes, "--quantize", "int8"])
    for name in ("corpus", "queries"):
        rows = [json.dumps({"_id": f"{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n0\t1\t1\n1\t2\t1\n2\t0\t2\n")
    trace(["--model", TINY, "--write", str(folder / "states.safetensors")])
    return folder


@pytest.mark.parametrize(
    "name", [path.relative_to(TINY) for path in sorted(Path(TINY).rglob("*")) if path.is_file()]
)
@EXAMPLES
@given(data=st.data())
def test_a_damaged_model(name, folder, data):
    model = folder / "model"
    check(model / name, lambda: SentenceEncoder.load(model).encode(TEXTS), data)


@pytest.mark.parametrize("name", ["head.json", "head.safetensors"])
@EXAMPLES
@given(data=st.data())
def test_a_damaged_pair_model(name, folder, data):
    model = folder / "pair-model"
    check(model / name, lambda: PairModel.load(model).predict(("a", "b")), data)


@pytest.mark.parametrize(
    "source", sorted((ROOT / "tests" / "reference").rglob("tiny-*/")), ids=lambda path: path.name
)
@EXAMPLES
@given(data=st.data())
def test_a_damaged_folder_of_another_kind(source, tmp_path_factory, data):
    """RoBERTa, DistilBERT with Dense, and the appendix: sparse, many vectors, decoders."""
    copied = tmp_path_factory.getbasetemp() / "other" / source.name
    shutil.copytree(source, copied, dirs_exist_ok=True)
    files = [file for file in sorted(copied.rglob("*")) if file.is_file()]
    name = data.draw(st.sampled_from(files))
    check(name, lambda: load_encoder(copied).encode(TEXTS), data)


SEARCHED = (evaluate, "--corpus corpus.jsonl --queries queries.jsonl --qrels qrels.tsv")
COMMANDS = {
    "v.npy": (certify, "--texts texts.txt v.npy"),
    "v.safetensors": (certify, "--texts texts.txt v.safetensors"),
    "v.jsonl": (certify, "--texts texts.txt v.jsonl"),
    "texts.txt": (encode, "--file texts.txt"),
    "texts.txt.gz": (encode, "--file texts.txt.gz"),
    "scored.tsv": (evaluate, "--data scored.tsv"),
    "quoted.csv": (evaluate, "--data quoted.csv"),
    "triplets.tsv": (evaluate, "--data triplets.tsv"),
    "triplets.jsonl": (inspect, "triplets.jsonl"),
    "duplicates.tsv": (inspect, "duplicates.tsv"),
    "nli.jsonl": (inspect, "nli.jsonl"),
    "sentences.txt": (pairs, "sentences.txt"),
    "corpus.jsonl": SEARCHED,
    "qrels.tsv": SEARCHED,
    "states.safetensors": (trace, "--against states.safetensors"),
    "codes.safetensors": (search, "texts.txt --index codes.safetensors --query cat"),
}


@pytest.mark.parametrize("name", COMMANDS)
@EXAMPLES
@given(data=st.data())
def test_a_damaged_file_of_a_command(name, folder, monkeypatch, data):
    monkeypatch.chdir(folder)
    main, line = COMMANDS[name]
    check(folder / name, lambda: main(["--model", TINY, *line.split()]), data)


# ------------------------------------------------ something else where a file or a folder is needed

WRONG = {
    "empty file": Path.touch,
    "binary file": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "empty folder": Path.mkdir,
    "folder": lambda path: shutil.copytree(path.parent / "model", path),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/null"),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "circle of links": lambda path: path.symlink_to(path),
    "missing": lambda path: None,
}
# In these lines x, with any ending, is what is wrong.
LINES = [
    "encode --file x.txt",
    "encode --file x.txt.gz",
    "encode a --out x.npy",
    "encode a b --compiled x.pt2",
    "certify --texts texts.txt x.npy",
    "certify --texts texts.txt x.safetensors",
    "certify --texts texts.txt x.jsonl",
    "certify --texts texts.txt x.csv",
    "certify --texts x.txt v.npy",
    "evaluate --data x.tsv",
    "evaluate --data x.json",
    "evaluate --corpus x.jsonl --queries queries.jsonl --qrels qrels.tsv",
    "evaluate --corpus corpus.jsonl --queries x.jsonl --qrels qrels.tsv",
    "evaluate --corpus corpus.jsonl --queries queries.jsonl --qrels x.tsv",
    "inspect x.tsv",
    "inspect x.jsonl",
    "pairs x.txt",
    "search x.txt --query cat",
    "search texts.txt --queries x.txt",
    "search texts.txt --query cat --index x.safetensors",
    "search texts.txt --query cat --index x",
    "mine --pairs x.jsonl --out mined.jsonl",
    "mine --pairs triplets.jsonl --out x.jsonl",
    "mine --pairs triplets.jsonl --corpus x.txt --out mined.jsonl",
    "score --model pair-model --file x.tsv",
    "trace --against x.safetensors",
    "trace --write x.safetensors",
    "distill-static --out x",
    "train --data x.tsv --dev dev.tsv --test test.tsv",
    "train --resume x",
    "train --data scored.tsv --dev x.tsv --test test.tsv",
    "train --data scored.tsv --dev dev.tsv --test test.tsv --max-steps 1 --out x",
    "encode a --model x",
    "score --model x",
    "inspect triplets.jsonl --model x",
    "evaluate --data dev.tsv --model x",
    "train --data scored.tsv --dev dev.tsv --test dev.tsv --model x",
    "export-onnx x --out exported.onnx",
    "plot x --out curves.png",
]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@contextlib.contextmanager
def unblocked(pipe: Path) -> Iterator[subprocess.Popen]:
    """After ten seconds a read of the pipe ends, by a process: a library may hold Python's lock."""
    with subprocess.Popen(["sh", "-c", 'exec 2> /dev/null; sleep 10; : > "$0"', pipe]) as writer:
        try:
            yield writer
        finally:
            writer.kill()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("line", LINES)
def test_what_is_no_file_or_another_one_is_refused_in_one_line(line, folder, monkeypatch, capfd):
    name, *arguments = line.split()
    if importlib.util.find_spec("matplotlib") is None and name == "plot":
        pytest.skip("needs the plots extra")
    main = command(name)
    wrong = next(word for word in arguments if re.fullmatch(r"x(\.\w+)*", word))
    if name not in ("export-onnx", "plot") and not {"--model", "--resume"} & {*arguments}:
        arguments += ["--model", TINY]
    monkeypatch.chdir(folder)
    for kind, make in WRONG.items():
        before = {*folder.iterdir()}
        make(folder / wrong)
        try:
            context = contextlib.nullcontext()
            if kind == "pipe":
                context = unblocked(folder / wrong)
            with context as writer:
                code, said = ending(lambda: main(arguments))
                assert not writer or writer.poll() is None, "waits for a pipe"
        finally:
            for path in {*folder.iterdir()} - before:
                remove(path)
        assert code in (0, 1, 2), f"{kind}: {code}"
        assert "\n" not in said, kind
    assert "panicked" not in capfd.readouterr().err
