"""What the speed tables are computed from: operations of an encoder, rates of a machine, which libraries are there."""

import math

import pytest
import torch

from minisbert.core import InputError
from minisbert.core.weights import BertConfig
from tests.benchmarks import machine, peers


def config(width: int, layers: int, inner: int) -> BertConfig:
    return BertConfig(
        vocab_size=30,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=inner,
        max_position_embeddings=20,
    )


# the first two as counted by torch.utils.flop_counter.FlopCounterMode in the forward pass of ``Bert``
@pytest.mark.parametrize(
    ("sizes", "lengths", "operations"),
    [((8, 1, 12), [5], 5_280), ((12, 3, 20), [7, 7, 7], 154_224), ((384, 6, 1536), [14], 299_077_632)],
)
def test_operations_of_an_encoder(sizes, lengths, operations):
    assert machine.encoder_flop(config(*sizes), lengths) == operations


def test_the_best_rate_is_that_of_the_same_precision():
    rates = {"MKL float32": 190.0, "oneDNN float32": 220.0, "oneDNN bfloat16": 450.0}
    assert machine.best_rate({"gflop_per_second": rates}, "float32") == 220
    assert machine.best_rate({"gflop_per_second": rates}, "bfloat16") == 450
    assert math.isnan(machine.best_rate({"gflop_per_second": rates}, "int8"))


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


def test_a_library_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "openvino" else object())
    assert peers.installed(None) == ["sentence-transformers", "onnxruntime", "ctranslate2"]
    assert "openvino is not compared: openvino not installed; pip install" in capsys.readouterr().err
    assert peers.installed(["ctranslate2"]) == ["ctranslate2"]
    with pytest.raises(InputError, match="openvino is not compared"):
        peers.installed(["onnxruntime", "openvino"])
