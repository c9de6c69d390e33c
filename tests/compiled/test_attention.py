"""Attention of compiled graphs: the book's formula in bfloat16, and a choice by the length of the rows."""

import pytest
import torch
from torch import Tensor

from minisbert.commands import compile as command
from minisbert.compiled import attention
from minisbert.compiled.attention import RowAttention, attend_by_length, fused, written_out
from minisbert.compiled.runtime import CompiledEncoder
from minisbert.core import bert
from minisbert.models import batching
from minisbert.models.batching import same_text
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.devices import bfloat16_hardware
from tests.compiled.test_int8 import generated_code
from tests.compiled.test_runtime import COMPILER, TEXTS

TWO_TEXTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 2, -1, -1]])  # of a row, and one with pads
MASKS = {"texts that share rows": same_text(TWO_TEXTS), "pads": (TWO_TEXTS >= 0)[:, None, None, :]}


def inputs(mask: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value (2, 3, 7, 8), the mask and its bias."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 7, 8)
    return query, key, value, mask, torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, float("-inf"))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("way", "bound"), [(written_out, 2**-6), (fused, 1e-6)])
def test_both_ways_are_the_formula(way, bound, name):
    """bfloat16 has 8 bits: products of numbers around 1 are off by some 2^-8 each."""
    query, key, value, mask, bias = inputs(MASKS[name])
    expected, _ = bert.attention(query.double(), key.double(), value.double(), mask)
    found = way(query, key, value, mask, bias)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    assert (found - expected).abs().max() < bound


def test_what_the_mask_hides_changes_no_bit():
    query, key, value, mask, bias = inputs(MASKS["pads"])
    before = written_out(query, key, value, mask, bias)
    key[1, :, 5:], value[1, :, 5:] = 100.0, -100.0
    assert torch.equal(written_out(query, key, value, mask, bias), before)


def test_the_layers_of_the_books_encoder_and_no_others(tiny):
    encoder = SentenceEncoder.load(tiny)
    attend_by_length(encoder.bert)
    assert all(isinstance(layer.attention, RowAttention) for layer in encoder.bert.layers)
    other = torch.nn.Module()
    other.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    attend_by_length(other)
    assert isinstance(other.layers[0], torch.nn.Linear)


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
@pytest.mark.skipif(not bfloat16_hardware(torch.device("cpu"))[0], reason="the CPU has no bfloat16 instructions")
def test_a_package_has_both_ways(tiny, tmp_path, monkeypatch):
    """A long text has a row to itself. The vectors of a text do not depend on what comes with it."""
    for module in (attention, batching):
        monkeypatch.setattr(module, "SHORT", 40)
    monkeypatch.setattr(batching, "ROW", 24)
    command.main([str(tiny), "--dtype", "bfloat16", "--out", str(tmp_path / "p.pt2")])
    code = generated_code(tmp_path / "p.pt2")
    assert "cpu_bmm_out(" in code
    assert "scaled_dot_product" in code
    ours, eager = CompiledEncoder.load(tiny, tmp_path / "p.pt2"), SentenceEncoder.load(tiny)
    texts = [*TEXTS * 4, " ".join(TEXTS), " ".join(TEXTS * 2), " ".join(TEXTS[:4] * 2)]
    vectors, expected = ours.encode(texts), eager.encode(texts)
    assert abs(vectors - expected).max() < 0.02
    alone = [ours.encode(text) for text in texts]
    assert abs(vectors - alone).max() < 2**-8  # bfloat16 rounds a sum of another order to its neighbour
