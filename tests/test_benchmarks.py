"""What the tables of the benchmarks are computed from, and that a benchmark checks what it measures."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import (
    emulated,
    handover,
    ladder,
    machine,
    peers,
    row_length,
    serve_speed,
    server_load,
    sides,
    step_cost,
    tune,
)
from minisbert.commands.encode import main as encode
from minisbert.core import InputError, bert
from minisbert.core.weights import BertConfig
from minisbert.models import batching
from minisbert.models.sentence_encoder import SentenceEncoder


# the first two as counted by torch.utils.flop_counter.FlopCounterMode in the forward pass of ``Bert``
@pytest.mark.parametrize(
    ("sizes", "lengths", "operations"),
    [((8, 1, 12), [5], 5_280), ((12, 3, 20), [7, 7, 7], 154_224), ((384, 6, 1536), [14], 299_077_632)],
)
def test_operations_of_an_encoder(sizes, lengths, operations):
    width, layers, inner = sizes
    config = BertConfig(
        vocab_size=30, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=inner,
        max_position_embeddings=20,
    )  # fmt: skip
    assert machine.encoder_flop(config, lengths) == operations


@pytest.mark.skipif("ONEDNN_MAX_CPU_ISA" in os.environ, reason="oneDNN lacks what the CPU's flags promise")
def test_the_lines_of_a_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "TOKENS", 16)
    (tmp_path / "cpuinfo").write_text(
        "model name\t: One CPU\ncpu family\t: 6\nmodel\t\t: 7\nflags\t\t: fpu avx2 amx_int8\n\nmodel name\t: Two\n"
    )
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    measured = machine.measure(rounds=1)
    first, second = machine.lines(measured).splitlines()
    assert first == f"One CPU (family 6, model 7), {measured['cores']} cores: avx2 amx_int8"
    assert second.startswith(f"torch {torch.__version__}, 1 threads; GFLOP/s: ")
    assert all(rate > 0 for rate in measured["gflop_per_second"].values())
    rates = {"gflop_per_second": {"MKL float32": 190.0, "oneDNN float32": 220.0, "oneDNN bfloat16": 450.0}}
    assert (machine.best_rate(rates, "float32"), machine.best_rate(rates, "bfloat16")) == (220, 450)
    assert math.isnan(machine.best_rate(rates, "int8"))


def test_an_emulated_cpu_has_nothing_beyond_avx2():
    flags = "flags\t\t: fma avx f16c avx2 avx512f avx512_vnni avx_vnni sse4_2 amx_bf16 amx_tile\n"
    assert emulated.kept_from(flags).split() == "flags : fma avx f16c avx2 sse4_2".split()


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("aten::addmm", "linear layers, forward"),
        ("aten::mm", "linear layers, backward"),
        ("aten::bmm", "attention: products, softmax"),
        ("aten::_softmax_backward_data", "attention: products, softmax"),
        ("aten::native_layer_norm_backward", step_cost.REST),
        ("aten::linalg_vector_norm", "zeros for gradients, AdamW, norm of the gradient"),
        ("aten::gelu_backward", "GELU and its gradient"),
        ("aten::add", step_cost.REST),
    ],
)
def test_operations_of_a_step(operation, kind):
    assert step_cost.kind_of(operation) == kind


def test_a_library_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "openvino" else object())
    assert peers.installed(None) == ["sentence-transformers", "onnxruntime", "ctranslate2"]
    assert "openvino is not compared: openvino not installed; pip install" in capsys.readouterr().err
    assert peers.installed(["ctranslate2"]) == ["ctranslate2"]
    with pytest.raises(InputError, match="openvino is not compared"):
        peers.installed(["onnxruntime", "openvino"])


@pytest.fixture
def quick(monkeypatch):
    """No rates of the machine, which take seconds; commands as they are without a launcher."""
    rates = {"gflop_per_second": {}, "torch": "", "threads": 1, "flags": [], "cores": 1, "family": "", "cpu": "a CPU"}
    monkeypatch.setattr(machine, "measure", lambda: rates)
    monkeypatch.setattr(peers, "PAUSE", 0)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")


@pytest.fixture
def texts(tmp_path):
    lines = [f"{who} {verb} {where}" for who in ("cats", "a dog") for verb in ("sits", "eats") for where in "abcdefg"]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "texts.txt"


EAGER = [step for step in ladder.STEPS if not step.compiled and step.dtype == "float32"]


def lengths_of_texts() -> peers.Encode:
    return lambda texts: np.array([len(text) for text in texts])


def test_each_side_has_a_process_of_its_own():
    side = sides.Side(lengths_of_texts, keep_memory=False)
    seconds, vectors = side.timed([["a"], ["b", "cde"]])
    assert (len(seconds), vectors.tolist()) == (2, [1, 3])
    with pytest.raises(InputError, match=r"the process of a side failed: TypeError\(.*int"):
        side.timed([[5]])
    with pytest.raises(InputError, match="ended before its answer"):
        side.timed([["a"]])
    side.close()
    assert not side.process.is_alive()


def test_the_steps_of_the_ladder_give_the_same_vectors(quick, texts, tiny):
    encoder = SentenceEncoder.load(tiny)
    lines = texts.read_text().splitlines()
    ids, vectors = encoder.tokenizer.encode(lines).ids, encoder.encode(lines, normalize_embeddings=True)
    for step in EAGER:
        assert np.abs(step.vectors(encoder, ids).numpy() - vectors).max() < 2e-6, step.name
    rows = ladder.measure(str(tiny), ids, EAGER, 2)
    assert [row["step"] for row in rows] == [step.name for step in EAGER]
    assert rows[0]["ratio"] == 1
    assert all(len(row["seconds"]) == 2 and row["difference"] < 2e-6 for row in rows)
    assert bert.FUSED

    wrong = replace(EAGER[0], unscaled=lambda encoder, ids: ladder.as_given(encoder, ids[::-1]))
    with pytest.raises(
        InputError, match="nothing is reported, because the vectors of padded, in the order given differ"
    ):
        ladder.measure(str(tiny), ids, [EAGER[1], wrong], 1)


def test_rates_by_row_length(quick, texts, tiny):
    lines, seen = texts.read_text().splitlines(), []
    encoder = SentenceEncoder.load(tiny)

    def side(part):
        seen.append((batching.ROW, len(part)))
        return encoder.encode(part)

    before = batching.ROW
    found = row_length.measure({"one float32": side}, lines, 20, [8, 32], 1)
    assert seen == [(8, 20), (8, 10), (32, 20), (32, 10)] * 2  # a round that is not counted, and one that is
    assert before == batching.ROW
    assert list(found["texts_per_second"]["one float32"]) == [8, 32]
    with pytest.raises(InputError, match="the vectors of one float32, rows of 32 differ"):
        row_length.measure({"one float32": lambda part: np.full((len(part), 2), batching.ROW)}, lines, 20, [8, 32], 1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="this system does not say how much memory")
def test_the_benchmark_of_servers(quick, tiny, capsys):
    lines = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon"]
    codes = serve_speed.servers(str(tiny), Path(), [], ["float32"])
    eager = {"minisbert float32": codes["minisbert float32"]}
    encoder = SentenceEncoder.load(tiny)
    found = serve_speed.measure(eager, encoder, lines[:2], lines, rounds=1, requests=2)
    row = found["sides"]["minisbert float32"]
    assert all(value > 0 for value in row.values())
    assert row["mebibytes"] > 100
    serve_speed.show(found)
    assert f"| {row['one']:.1f} | {row['few']:.1f} | {row['rate']:,.0f} |" in capsys.readouterr().out
    other = {"minisbert float32": eager["minisbert float32"].replace(".encode,", '.encode, prompt="the ",')}
    with pytest.raises(InputError, match="minisbert float32 answers other vectors"):
        serve_speed.measure(other, encoder, lines[:2], lines, rounds=1, requests=1)
    with pytest.raises(InputError, match="a server ended before it listened"):
        serve_speed.measure({"minisbert float32": "1 / 0"}, encoder, lines[:2], lines, rounds=1, requests=1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="this system does not say how much memory")
def test_the_benchmark_of_servers_under_load(quick, tiny, monkeypatch):
    pytest.importorskip("uvicorn", reason="needs the serve extra")
    ours = server_load.commands
    monkeypatch.setattr(server_load, "commands", lambda *given: {"minisbert": ours(*given)["minisbert"]})
    lines = [f"the cat sits on mat {i}" for i in range(20)]
    found = server_load.measure(tiny, lines, None, rounds=1, requests=40)
    assert all(value > 0 for value in found["sides"]["minisbert"].values())
    monkeypatch.setattr(server_load, "commands", lambda *_: {"minisbert": ["false"]})
    with pytest.raises(InputError, match="a server ended before it answered"):
        server_load.measure(tiny, lines, None, rounds=1, requests=40)


def test_recall_by_hand_and_sizes_beyond_the_sentences(capsys):
    assert handover.recall(np.array([[4, 2, -1], [0, 1, 2]]), np.array([[2, 4, 7], [2, 1, 0]])) == pytest.approx(5 / 6)
    assert handover.sizes_that_fit([1000, 10, 200], 70) == [10, 70]
    assert "only 70 sentences: they stand for 200 and 1,000 vectors" in capsys.readouterr().err


@pytest.mark.reference
def test_vectors_handed_over(quick, tmp_path, monkeypatch, capsys):
    """Every index finds the neighbours of vectors that have some; the flat one all, in blocks that do not fit."""
    pytest.importorskip("faiss", reason="needs the reference extra")
    from benchmarks import indexes

    monkeypatch.setattr(indexes, "BLOCK", 70)
    vectors = np.random.default_rng(0).standard_normal((440, 12), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    libraries = handover.installed()
    found = handover.measure(mapped[:20], mapped[20:], 5, 1, libraries)
    sides, size = found["sides"], 420 * 12 * 4
    assert sides["minisbert, exact"]["recall"] == sides["faiss Flat"]["recall"] == 1
    assert sides["minisbert, exact"]["bytes"] == size
    assert size < sides["faiss Flat"]["bytes"] < 1.1 * size
    assert sides["faiss HNSW, ef 256"]["recall"] > 0.9
    assert sides["faiss IVF, nprobe 1"]["recall"] < sides["faiss IVF, nprobe 8"]["recall"]
    assert ("hnswlib, ef 256" in sides) == ("hnswlib" in libraries)
    assert all(row["recall"] > 0.9 for name, row in sides.items() if name.endswith("ef 256"))
    handover.show({420: found}, 5)
    assert "| 420 vectors " in capsys.readouterr().out
    with pytest.raises(InputError, match="a side returned indices"):
        handover.check("a side", np.array([[1, 1]]), 420)


def test_sentences_are_encoded_once(quick, texts, tiny, tmp_path, monkeypatch, capsys):
    """A second start finds them in the folder that is kept."""
    here = SimpleNamespace(run=lambda command, **_: SimpleNamespace(returncode=encode(command[4:]) or 0))
    monkeypatch.setattr(handover, "subprocess", here)
    monkeypatch.setattr(handover, "installed", lambda: [])
    options = ["--file", str(texts), "--model", str(tiny), "--queries", "4", "--k", "3", "--rounds", "1", "--json"]
    runs, written = [], []
    for _ in range(2):
        handover.main([*options, "--keep", str(tmp_path / "kept"), "--vectors", "20", "100"])
        runs.append(json.loads(capsys.readouterr().out))
        written.append((tmp_path / "kept" / f"{tiny.name}.npy").stat().st_mtime_ns)
    distinct = len({*texts.read_text().splitlines()})
    assert written[0] == written[1]
    assert [*runs[0]] == [*runs[1]] == ["20", str(distinct - 4)]
    assert runs[0]["20"]["sides"]["minisbert, exact"]["bytes"] == 20 * 24 * 4


def test_advice_weighs_the_rate_and_the_accuracy():
    found = {
        "minisbert float32": {"texts_per_second": 480.0, "spearman": 82.03},
        "minisbert compiled bfloat16": {"texts_per_second": 900.0, "spearman": 82.04},
        "minisbert compiled int8": {"texts_per_second": 1_170.0, "spearman": 81.5},
    }
    words = "use minisbert compiled bfloat16: the fastest within 0.2 points of the best Spearman"
    assert tune.advice(found) == words + "; minisbert compiled int8 is 1.30 times as fast and costs 0.54"
    found["minisbert compiled int8"]["spearman"] = 81.9
    assert tune.advice(found) == words.replace("bfloat16", "int8")
