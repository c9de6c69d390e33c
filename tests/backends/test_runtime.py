"""Compiled packages: the eager encoder's vectors, and a clear line for each that does not fit."""

import itertools
import json
import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from minisbert.backends import graphs
from minisbert.backends import package as aot
from minisbert.backends.package import About, CompiledEncoder, CompiledPairModel
from minisbert.checkpoints.layout import read_folder
from minisbert.commands.convert import to_native_code
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.loading import load
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.torch_internals import graph_names
from tests.backends.packages import COMPILER, TEXTS
from tests.conftest import ROOT, compile_model
from tests.parity import MINILM_VECTOR

SHAPES = (TEXTS[:1], TEXTS, [f"{a} {b}" for a in TEXTS for b in TEXTS] * 2, ["moon"] * 3)

pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The tiny model, in a place whose cache folder is empty."""
    return shutil.copytree(ROOT / "weights" / "tiny", tmp_path_factory.mktemp("home") / "tiny")


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch) -> Path:
    monkeypatch.setenv("MINISBERT_HOME", str(folder.parent))
    return folder.parent / "compiled"


# -------------------------------------------------------------------------------- the same vectors


def test_vectors_are_those_of_the_eager_encoder(folder, tiny_package):
    """Of one text and of many, in other batches; scaled or not, cut, with a prompt; streamed and
    compared.
    """
    ours, eager = CompiledEncoder.load(folder, tiny_package), SentenceEncoder.load(folder)
    assert not list(ours.parameters())
    for texts in SHAPES:
        for options in (
            {},
            {"truncate_dim": 7, "normalize_embeddings": True},
            {"prompt": "the sun "},
        ):
            found, expected = ours.encode(texts, **options), eager.encode(texts, **options)
            assert found.dtype == np.float32
            assert abs(found - expected).max() <= MINILM_VECTOR
        assert abs(ours.encode(texts, batch_size=1) - eager.encode(texts)).max() <= MINILM_VECTOR
    assert ours.encode([]).shape == (0, ours.width) == (0, eager.width)
    assert ours.encode(["cat " * 40]).shape == (1, ours.width)
    assert ours.truncated == 1
    vectors = eager.encode(TEXTS)
    np.testing.assert_array_equal(
        ours.similarity(vectors, vectors), eager.similarity(vectors, vectors)
    )
    assert (
        abs(np.concatenate(list(ours.encode_stream(iter(TEXTS)))) - vectors).max() <= MINILM_VECTOR
    )
    for options, message in (
        ({"output_value": "token_embeddings"}, "hidden states"),
        ({"dtype": "bfloat16"}, "compiled for dtype float32, not bfloat16"),
    ):
        with pytest.raises(InputError, match=message):
            ours.encode(TEXTS, **options)


def test_the_encoder_of_a_package_may_be_in_a_subfolder(folder_with_encoder_inside, tiny):
    """Its tokenizer and its sizes are read from there."""
    description = read_folder(folder_with_encoder_inside)
    encoder = CompiledEncoder(description, run=None, about=About())
    assert encoder.most_tokens == SentenceEncoder.load(tiny).most_tokens
    model = CompiledPairModel(description, run=None, about=About())
    assert model.tokenizer.encode(TEXTS).ids == encoder.tokenizer.encode(TEXTS).ids


@pytest.mark.slow
def test_every_family_dense_layer_and_pooling(tmp_path):
    """DistilBERT with two poolings and a dense layer: what the graph holds beyond the tiny BERT."""
    folder = ROOT / "tests" / "reference" / "tiny-distiluse"
    path = tmp_path / "a folder" / "a package.pt2"  # the compiler fails at a path with a space
    path.parent.mkdir()
    compile_model(folder, path)
    ours, eager = CompiledEncoder.load(folder, path), SentenceEncoder.load(folder)
    assert abs(ours.encode(TEXTS) - eager.encode(TEXTS)).max() <= MINILM_VECTOR


@pytest.mark.slow
def test_a_second_graph_for_few_tokens(folder, tmp_path, monkeypatch):
    """Where few rows gain by laid-out weights, a package has two graphs with the same vectors."""
    monkeypatch.setattr(aot, "has_few_graph", lambda dtype: dtype == "float32")
    path = tmp_path / "p.pt2"
    aot.compile_apart(folder, "float32", None, path)
    assert graph_names(path) == {"model", "few"}
    eager = SentenceEncoder.load(folder)
    for second in (True, False):  # False: on another CPU, or with MINISBERT_LAID_OUT=0
        monkeypatch.setattr(aot, "has_few_graph", lambda dtype, second=second: second)
        ours = CompiledEncoder.load(folder, path)
        for texts in SHAPES:
            assert abs(ours.encode(texts) - eager.encode(texts)).max() <= MINILM_VECTOR


def test_the_number_of_ids_chooses_the_graph():
    """A batch of at most 32 tokens takes the graph that is fast for it."""
    run = aot.chosen_by_tokens(lambda *inputs: ["many", *inputs], lambda *inputs: ["few", *inputs])
    for ids, graph in ((torch.zeros(4, 8), "few"), (torch.zeros(3, 11), "many")):
        assert run(ids, "places") == [graph, ids, "places"]


@pytest.mark.parametrize(
    ("dtype", "mkl", "layout", "expected"),
    [
        ("float32", True, "oneDNN", True),
        ("bfloat16", True, "oneDNN", False),
        ("float32", False, "oneDNN", False),  # both graphs would be oneDNN's
        ("float32", True, None, False),
    ],
)
def test_which_packages_have_a_graph_for_few_tokens(dtype, mkl, layout, expected, monkeypatch):
    """Elsewhere a second graph would double the file for nothing."""
    monkeypatch.setattr(aot, "mkl_multiplies", lambda: mkl)
    monkeypatch.setattr(aot, "chosen_layout", lambda: layout)
    assert aot.has_few_graph(dtype) is expected


def test_what_cannot_be_written_is_not_compiled(folder, tmp_path, monkeypatch):
    """Compiling takes a minute or more, and the user should not wait for an error."""
    monkeypatch.setattr(aot, "has_few_graph", lambda dtype: True)
    monkeypatch.setattr(aot, "compile_graph", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(InputError):
        aot.compile_apart(folder, "float32", None, tmp_path)  # a folder


def test_dtype_auto_is_the_package_that_the_command_would_make(folder, monkeypatch):
    """In the cache by its own dtype; at a path whatever that one was compiled for."""
    monkeypatch.setattr(aot, "package_dtype", lambda name: "bfloat16")
    wanted = []

    def record(path, expected):
        wanted.append(expected.get("dtype"))
        return None, About()

    monkeypatch.setattr(aot, "load_package", record)
    monkeypatch.setattr(aot, "cache_path", lambda expected: expected["dtype"])
    description = read_folder(folder)
    aot.open_package(True, description, "auto")
    aot.open_package("p.pt2", description, "auto")
    aot.open_package("p.pt2", description, "int8")
    assert wanted == ["bfloat16", None, "int8"]


def test_a_package_that_is_false_is_refused(folder):
    """The error says what to give instead; an encoder that is not compiled is another class."""
    with pytest.raises(InputError, match="True"):
        aot.open_package(False, read_folder(folder), None)


@pytest.mark.parametrize(("task", "labels"), [("regression", ""), ("classes", "abc")])
def test_a_cross_encoders_graph_makes_the_models_outputs(folder, task, labels):
    """Scores and logits, before anything is compiled."""
    encoder = SentenceEncoder.load(folder)
    model = PairModel(
        encoder, ClassifierHead(encoder.width, outputs=len(labels) or 1), task, list(labels)
    ).eval()
    ids = torch.tensor([[2, 7, 3, 9, 3], [2, 8, 9, 3, 3]])
    batch = (ids, torch.ones_like(ids), torch.tensor([[0, 0, 0, 1, 1]] * 2))
    torch.testing.assert_close(graphs.ScoreGraph(model)(*batch), model(*batch))


@pytest.mark.slow
def test_a_cross_encoder(folder, tmp_path):
    """Saved, compiled and loaded, it gives the model's scores."""
    torch.manual_seed(0)
    encoder = SentenceEncoder.load(folder)
    model = PairModel(encoder, JointHead(encoder.width)).eval()
    model.save(tmp_path / "model")
    compile_model(tmp_path / "model", tmp_path / "p.pt2")
    ours = CompiledPairModel.load(tmp_path / "model", tmp_path / "p.pt2")
    for pairs in (list(zip(TEXTS, TEXTS[::-1], strict=True)), [("a dog", "moon")]):
        assert abs(ours.predict(pairs) - model.predict(pairs)).max() <= 2e-6  # of scores up to 1
    PairModel(encoder, siamese(encoder.width)).save(tmp_path / "siamese")
    with pytest.raises(InputError, match="only cross-encoders"):
        to_native_code([str(tmp_path / "siamese"), "--out", str(tmp_path / "s.pt2")])
    with pytest.raises(InputError, match="holds a PairModel: only a SentenceEncoder"):
        CompiledEncoder.load(tmp_path / "model", tmp_path / "p.pt2")


# --------------------------------------------------------------------------------- what is refused


def test_another_model_torch_cpu_or_precision_is_refused_by_name(
    folder, tiny_package, tmp_path, monkeypatch
):
    """It would crash, or give other vectors than the model."""

    def refused(message: str, path: Path = folder, **options: str) -> None:
        with pytest.raises(InputError, match=message):
            load(path, compiled=tiny_package, **options)

    other = SentenceEncoder.load(folder)
    with torch.no_grad():
        other.bert.embeddings.word.weight[7, 3] += 0.5
    other.save(tmp_path / "other")
    refused("compiled from tiny with other weights: compile the model again", tmp_path / "other")
    refused(
        "with dtype float32, not bfloat16: .* minisbert compile --dtype bfloat16$", dtype="bfloat16"
    )
    refused("dtype must be one of auto, float32, bfloat16, int8, not 'half'", dtype="half")
    refused("with pooling mean, not cls: .* --pooling cls$", pooling="cls")
    refused("runs only on the CPU, not on cuda", device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(aot, "code_hash", lambda: "other")
        refused("from tiny with another version of minisbert: compile the model again")
    with monkeypatch.context() as patch:
        patch.setattr(aot, "instruction_sets", lambda: ["sse4_2"])
        refused(r"for a CPU with .*, which this one lacks")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "1.0")
        refused(rf"with torch {re.escape(torch.version.__version__)}, not 1\.0")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def another_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")


@pytest.mark.parametrize("damage", [cut, flip, another_archive])
def test_a_damaged_package_is_refused(folder, tiny_package, tmp_path, damage):
    """Its checksums are read before any of its code runs."""
    damage(copied := Path(shutil.copy(tiny_package, tmp_path / "p.pt2")))
    with pytest.raises(
        InputError, match=r"p\.pt2: (.* damaged|File is not a zip|.*CRC|not a package)"
    ):
        CompiledEncoder.load(folder, copied)


def test_a_package_that_is_no_file_or_can_be_written_by_others(folder, tiny_package, tmp_path):
    """Whoever can write it can run code as you."""
    copied = Path(shutil.copy(tiny_package, tmp_path / "p.pt2"))
    copied.chmod(0o666)
    (tmp_path / "open").mkdir()
    exchanged = Path(shutil.copy(tiny_package, tmp_path / "open" / "q.pt2"))
    exchanged.chmod(0o644)
    exchanged.parent.chmod(0o777)
    os.mkfifo(tmp_path / "pipe.pt2")
    for package, message in (
        (copied, r"other users can change .*p\.pt2: chown"),
        (exchanged, "other users can change .*open: chown"),
        (tmp_path / "q.pt2", "does not exist"),
        (tmp_path / "pipe.pt2", r"pipe\.pt2 is a folder, a pipe or a device"),
        ("/dev/zero", "/dev/zero is a folder, a pipe or a device"),
        ("auto", "no package in the cache folder fits"),
    ):
        with pytest.raises(InputError, match=message):
            CompiledEncoder.load(folder, package)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not a package of minisbert compile"),
        ('{"kind": "SentenceEncoder"}', "from another model with other weights"),
        ('{"cpu": 5, "labels": []}', "cpu must be a list"),
        ("{", "not valid JSON"),
        ("3", "not a package of minisbert compile"),
    ],
)
def test_edited_metadata_is_refused(folder, tmp_path, content, message):
    """What a package says about itself is no program, and is read as strictly as a file."""
    with zipfile.ZipFile(tmp_path / "p.pt2", "w") as archive:
        archive.writestr("p/data/model/x.wrapper_metadata.json", json.dumps({"minisbert": content}))
    with pytest.raises(InputError, match=message):
        CompiledEncoder.load(folder, tmp_path / "p.pt2")


def test_an_identity_covers_every_module_and_all_code_of_the_graph(tiny, tmp_path, monkeypatch):
    """An encoder in a folder without a digit."""
    model = shutil.copytree(tiny, tmp_path / "model")
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["path"] = "encoder"
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "encoder").mkdir()
    for path in [
        path for path in model.iterdir() if path.is_file() and path.name != "modules.json"
    ]:
        path.rename(model / "encoder" / path.name)
    before = aot.package_identity(read_folder(model), "float32")
    flip(model / "encoder" / "model.safetensors")
    after = aot.package_identity(read_folder(model), "float32")
    assert [key for key in before if before[key] != after[key]] == ["weights"]

    monkeypatch.setattr(
        aot, "CODE_FOLDER", shutil.copytree(aot.CODE_FOLDER, tmp_path / "minisbert")
    )
    hashes = [aot.code_hash.__wrapped__()]
    for name in ("architectures/modern.py", "core/bert.py"):
        with open(aot.CODE_FOLDER / name, "a") as file:
            file.write("# changed\n")
        hashes.append(aot.code_hash.__wrapped__())
    assert len({*hashes}) == 3


def test_without_a_compiler_or_with_an_old_torch(folder, tmp_path, monkeypatch):
    """The line says what to install."""
    monkeypatch.setattr(aot.shutil, "which", lambda _: None)
    with pytest.raises(InputError, match=r"C\+\+ compiler.*apt install g\+\+"):
        to_native_code([str(folder), "--out", str(tmp_path / "p.pt2")])
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.8.0"))
    with pytest.raises(InputError, match=r"^compiling needs torch 2\.9 or newer, this is 2\.8\.0$"):
        to_native_code([str(folder), "--out", str(tmp_path / "p.pt2")])
    assert not list(tmp_path.iterdir())


def test_the_compiling_process_gets_a_private_folder(folder, tmp_path, monkeypatch):
    """Another user's module in the current folder, or headers in the compiler's usual one, would
    run.
    """

    def run(arguments: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        assert "-P" in arguments
        assert env["TMPDIR"] == env["TORCHINDUCTOR_CACHE_DIR"]
        assert stat.S_IMODE(os.stat(env["TMPDIR"]).st_mode) == 0o700
        return subprocess.CompletedProcess(
            arguments, 1, stderr="c++: warning\nx: error: compiling failed: error: 5\n"
        )

    monkeypatch.setattr(aot.subprocess, "run", run)
    with pytest.raises(InputError, match=r"^compiling failed: error: 5$"):
        to_native_code([str(folder), "--out", str(tmp_path / "p.pt2")])


@pytest.mark.slow
def test_a_compiler_that_fails_leaves_nothing(folder, tmp_path, monkeypatch):
    """Half a package would be found at the next start."""
    broken = tmp_path / "bin" / "g++"
    broken.parent.mkdir()
    cases = "*--version*) echo 'g++ 12';; *) echo 'fatal error: no space' >&2; exit 1;;"
    broken.write_text(f'#!/bin/sh\ncase "$*" in {cases} esac\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    code = [
        sys.executable,
        "-m",
        "minisbert",
        "compile",
        str(folder),
        "--out",
        str(tmp_path / "p.pt2"),
    ]
    done = subprocess.run(code, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert re.search(r"error: compiling p\.pt2 failed: .+", done.stderr)
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


# -------------------------------------------------------------------------------- the cache folder


def load_from_cache(folder: Path) -> np.ndarray:
    torch.set_num_threads(1)
    return CompiledEncoder.load(folder).encode(TEXTS)


@pytest.mark.slow
def test_two_processes_compile_once_and_the_next_start_finds_it(folder, cache, capfd):
    """The second waits for the first one's package."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        vectors = [*pool.map(load_from_cache, [folder] * 2)]
    assert capfd.readouterr().err.count("compiling tiny in float32") == 1
    assert abs(vectors[0] - SentenceEncoder.load(folder).encode(TEXTS)).max() <= MINILM_VECTOR
    np.testing.assert_array_equal(*vectors)
    (kept,) = cache.glob("*.pt2")
    assert CompiledEncoder.load(folder, "auto").encode(TEXTS).shape == vectors[0].shape
    cut(kept)
    with pytest.raises(InputError, match="no package in the cache folder fits"):
        CompiledEncoder.load(folder, "auto")
    kept.unlink()


def test_a_cache_folder_that_cannot_be_written(folder, tmp_path, monkeypatch):
    """The line says which setting names another."""
    (tmp_path / "compiled").write_text("a file where the folder should be")
    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    with pytest.raises(
        InputError, match=r"compiled \(set MINISBERT_HOME, or compile .*\): File exists"
    ):
        CompiledEncoder.load(folder)


# ------------------------------------------------------------------------------------ the commands


def test_compiled_in_the_commands(folder, tiny_package, tmp_path, capsys):
    """The numbers are those without a package."""
    from minisbert.commands import certify, encode, evaluate, mine, pairs, search

    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n")
    rows = [*itertools.pairwise(TEXTS)]
    (tmp_path / "pairs.tsv").write_text(
        "anchor\tpositive\n" + "".join(f"{a}\t{b}\n" for a, b in rows)
    )
    scored = "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(rows))
    (tmp_path / "scored.tsv").write_text("score\tsentence1\tsentence2\n" + scored)
    vectors = tmp_path / "v.npy"
    calls = {
        encode: ["--file", str(corpus), "--out", str(vectors)],
        search: [str(corpus), "--query", "a cat", "--index", str(tmp_path / "i.safetensors")],
        pairs: [str(corpus), "--top", "3"],
        evaluate: ["--data", str(tmp_path / "scored.tsv")],
        mine: ["--pairs", str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "t.jsonl")],
        certify: [str(vectors), "--texts", str(corpus)],
    }
    for module, arguments in calls.items():
        said = []
        for more in ([], ["--compiled", str(tiny_package)]):
            capsys.readouterr()
            module.main([*arguments, "--model", str(folder), *more])
            said.append(
                re.sub(
                    r"largest difference .*|smallest cosine .*|Equal, to .*",
                    "",
                    capsys.readouterr().out,
                )
            )
        assert said[0] == said[1], module.__name__
    assert abs(np.load(vectors) - SentenceEncoder.load(folder).encode(TEXTS)).max() <= MINILM_VECTOR


def test_auto_runs_uncompiled_and_says_why(folder, capsys, monkeypatch, tmp_path):
    """A program that asks for what there is goes on."""
    from minisbert.commands.encode import main

    monkeypatch.setenv("MINISBERT_HOME", str(tmp_path))
    main(["a dog", "moon", "--model", str(folder), "--compiled", "auto"])
    found = capsys.readouterr()
    assert "not compiled: no package in the cache folder fits" in found.err
    assert "a dog" in found.out
    for package, message in (["F.pt2"], "only on the CPU"), ([], "device cuda|device 'cuda'"):
        with pytest.raises(InputError, match=message):
            main(
                [
                    "a dog",
                    "moon",
                    "--model",
                    str(folder),
                    "--device",
                    "cuda",
                    "--compiled",
                    *package,
                ]
            )


def test_the_sizes_of_the_example_batch_differ(tmp_path, folder, monkeypatch):
    """Sizes of 0 and 1 and equal ones would be compiled as constants."""
    seen = []
    monkeypatch.setattr(
        graphs, "compile_package", lambda module, examples, *_, **__: seen.extend(examples)
    )
    graphs.compile_model(folder, "float32", None, tmp_path / "p.pt2")
    rows, width = seen[0].shape
    texts, longest = seen[3].shape
    assert len({0, 1, rows, width, texts, longest}) == 6
