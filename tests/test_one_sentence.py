"""The benchmark of one sentence computes the layers that a call computes."""

import torch

from minisbert.fast.fused import FusedBert
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.benchmarks import machine, one_sentence, peers


def test_the_linear_layers_are_those_of_a_call(tiny, monkeypatch):
    fused, calls = FusedBert(SentenceEncoder.load(tiny).bert, torch.float32, copy=True), []
    monkeypatch.setattr(
        "minisbert.fast.fused.linear",
        lambda x, w, b, with_gelu=False: calls.append((id(w), id(b), with_gelu)) or x @ w.to_dense().T,
    )
    fused([torch.tensor([[2, 5, 3]])])
    assert [(id(w), id(b), gelu) for w, b, gelu in one_sentence.matrices(fused)] == calls


def test_every_side_is_timed(tiny, monkeypatch, capsys):
    rates = {"gflop_per_second": {}, "torch": "", "threads": 1, "flags": [], "cores": 1, "family": "", "cpu": "a CPU"}
    monkeypatch.setattr(machine, "measure", lambda: rates)
    monkeypatch.setattr(peers, "PAUSE", 0)
    monkeypatch.setattr(one_sentence, "bfloat16_hardware", lambda device: (False, ""))
    found = one_sentence.measure(SentenceEncoder.load(tiny), tiny, [], "a dog", 1)
    assert found["tokens"] == 4
    assert list(found["milliseconds"]) == ["float32, call", "float32, linear", "float32, reading"]
    assert all(value > 0 for value in found["milliseconds"].values())
    one_sentence.show(found | {"milliseconds": {"float32, call": 3, "float32, linear": 2, "float32, reading": 1}})
    assert capsys.readouterr().out.endswith("| float32 | 3.00 | 2.00 | 1.00 | - |\n")
