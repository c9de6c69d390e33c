"""Files damaged at random: a reader reads them, or refuses them in one line that names the file.

``MINISBERT_EXAMPLES=3000 pytest tests/test_foreign_bytes.py`` looks longer. What it finds
Hypothesis keeps in ``.hypothesis`` and tries first the next time.
"""

import contextlib
import gzip
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
    """The same JSON value with one part of it, at any depth, exchanged or gone."""
    keys: list = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    if not keys or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(VALUES))

    key = draw(st.sampled_from(keys))
    changed = value.copy()
    if draw(st.integers(0, 5)) == 0:
        del changed[key]
    else:
        changed[key] = replaced(changed[key], draw)
    return changed


def damaged_json(content: bytes, draw: Callable) -> bytes:
    """JSON, or the header of a safetensors file, with one value replaced.

    ``ValueError`` if the bytes are neither.
    """
    length = int.from_bytes(content[:8], "little")  # of the header
    is_safetensors = length < len(content) - 8
    start = 8 if is_safetensors else 0
    end = 8 + length if is_safetensors else len(content)
    body = json.dumps(replaced(json.loads(content[start:end]), draw)).encode()
    if is_safetensors:
        body = len(body).to_bytes(8, "little") + body
    return body + content[end:]


@st.composite
def damaged(draw: Callable, content: bytes) -> bytes:
    """The bytes with one or two places changed; half of the time JSON stays JSON."""
    if draw(st.booleans()):
        with contextlib.suppress(ValueError):
            return damaged_json(content, draw)
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.sampled_from([start, start + 1, start + 7, len(content)]))
        inserted = draw(st.sampled_from(BYTES) | st.binary(max_size=4))
        content = content[:start] + inserted + content[end:]
    return content


def ending(run: Callable[[], object]) -> tuple[int, str]:
    """The exit code of a command, and the error that would be shown in one line.

    Any other exception is raised.
    """
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
            code, message = ending(run)
    finally:
        path.write_bytes(content)
    assert code in (0, 1) or message  # inspect and certify tell by 1 what they have found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind that a command reads."""
    folder = tmp_path_factory.mktemp("files")
    toys.write_all(folder)
    encoder = SentenceEncoder.load(TINY)
    shutil.copytree(TINY, folder / "model")
    PairModel(encoder, siamese(24)).save(folder / "pair-model")

    # texts and tables
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    (folder / "texts.txt.gz").write_bytes(gzip.compress(b"the cat\na dog\n"))
    (folder / "quoted.csv").write_text(
        'score,sentence1,sentence2\n3,"the cat, the dog","a ""small"" dog"\n0,a,b\n'
    )
    triplet = '{"anchor": "a", "positive": "b", "negative": "c"}\n'
    (folder / "triplets.jsonl").write_text(2 * triplet)
    rows = [json.dumps({"_id": f"{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)]
    (folder / "corpus.jsonl").write_text("".join(rows))
    (folder / "queries.jsonl").write_text("".join(rows))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n0\t1\t1\n1\t2\t1\n2\t0\t2\n")

    # vectors and tensors
    vectors = encoder.encode(TEXTS)
    np.save(folder / "v.npy", vectors)
    save_file({"embeddings": vectors}, folder / "v.safetensors")
    lines = [json.dumps({"embedding": row}) + "\n" for row in vectors.tolist()]
    (folder / "v.jsonl").write_text("".join(lines))
    codes = str(folder / "codes.safetensors")
    encode(["--model", TINY, *TEXTS, "--out", codes, "--quantize", "int8"])
    trace(["--model", TINY, "--write", str(folder / "states.safetensors")])
    return folder


def files_of(folder: Path) -> list[Path]:
    """All files below a folder, by their paths in it."""
    return [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", files_of(Path(TINY)))
@EXAMPLES
@given(data=st.data())
def test_a_damaged_model(name, folder, data):
    """Models come from anybody on the Hub."""
    model = folder / "model"
    check(model / name, lambda: SentenceEncoder.load(model).encode(TEXTS), data)


@pytest.mark.parametrize("name", ["head.json", "head.safetensors"])
@EXAMPLES
@given(data=st.data())
def test_a_damaged_pair_model(name, folder, data):
    """The two files that an encoder has not."""
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
    name = data.draw(st.sampled_from(files_of(copied)))
    check(copied / name, lambda: load_encoder(copied).encode(TEXTS), data)


SEARCHED = "--corpus corpus.jsonl --queries queries.jsonl --qrels qrels.tsv"
# The file that is damaged, and the command that reads it.
DAMAGED = [
    ("v.npy", certify, "--texts texts.txt v.npy"),
    ("v.safetensors", certify, "--texts texts.txt v.safetensors"),
    ("v.jsonl", certify, "--texts texts.txt v.jsonl"),
    ("texts.txt", encode, "--file texts.txt"),
    ("texts.txt.gz", encode, "--file texts.txt.gz"),
    ("scored.tsv", evaluate, "--data scored.tsv"),
    ("quoted.csv", evaluate, "--data quoted.csv"),
    ("triplets.tsv", evaluate, "--data triplets.tsv"),
    ("corpus.jsonl", evaluate, SEARCHED),
    ("qrels.tsv", evaluate, SEARCHED),
    ("triplets.jsonl", inspect, "triplets.jsonl"),
    ("duplicates.tsv", inspect, "duplicates.tsv"),
    ("nli.jsonl", inspect, "nli.jsonl"),
    ("sentences.txt", pairs, "sentences.txt"),
    ("states.safetensors", trace, "--against states.safetensors"),
    ("codes.safetensors", search, "texts.txt --index codes.safetensors --query cat"),
]


@pytest.mark.parametrize(("name", "main", "line"), DAMAGED, ids=[name for name, _, _ in DAMAGED])
@EXAMPLES
@given(data=st.data())
def test_a_damaged_file_of_a_command(name, main, line, folder, monkeypatch, data):
    """Spreadsheets, other programs and broken downloads write them."""
    monkeypatch.chdir(folder)
    check(folder / name, lambda: main(["--model", TINY, *line.split()]), data)


# -------------------------------------------------------------------------------------------
# something else where a file or a folder is needed


def make_binary_file(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def make_model_folder(path: Path) -> None:
    shutil.copytree(path.parent / "model", path)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)  # Windows has none


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def make_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def make_circle(path: Path) -> None:
    path.symlink_to(path)


def make_nothing(path: Path) -> None:
    pass


WRONG = {
    "empty file": Path.touch,
    "binary file": make_binary_file,
    "empty folder": Path.mkdir,
    "folder": make_model_folder,
    "pipe": make_pipe,
    "device": make_link_to_device,
    "broken link": make_broken_link,
    "circle of links": make_circle,
    "missing": make_nothing,
}
# x, with any ending, is what is wrong.
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
def ended_later(pipe: Path) -> Iterator[None]:
    """Give who reads the pipe its end after ten seconds, and fail if somebody has waited for it.

    A process writes the end, since a library may wait with Python's lock held.
    """
    with subprocess.Popen(["sh", "-c", 'exec 2> /dev/null; sleep 10; : > "$0"', pipe]) as writer:
        try:
            yield
            assert writer.poll() is None, "waits for a pipe"
        finally:
            writer.kill()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("line", LINES)
def test_what_is_no_file_or_another_one_is_refused_in_one_line(line, folder, monkeypatch, capfd):
    """No traceback, no panic of a library in Rust, and no command that waits for ever."""
    name, *arguments = line.split()
    if name == "plot":
        pytest.importorskip("matplotlib", reason="needs the plots extra")
    main = command(name)
    wrong = next(word for word in arguments if re.fullmatch(r"x(\.\w+)*", word))
    names_model = "--model" in arguments or "--resume" in arguments
    if name not in ("export-onnx", "plot") and not names_model:
        arguments += ["--model", TINY]
    monkeypatch.chdir(folder)
    for kind, make in WRONG.items():
        before = set(folder.iterdir())
        make(folder / wrong)
        try:
            watching = contextlib.nullcontext()
            if kind == "pipe":
                watching = ended_later(folder / wrong)
            with watching:
                code, message = ending(lambda: main(arguments))
        finally:
            for path in set(folder.iterdir()) - before:
                remove(path)
        assert code in (0, 1, 2), f"{kind}: {code}"
        assert "\n" not in message, kind
    assert "panicked" not in capfd.readouterr().err
