"""Attention of compiled graphs: the book's formula in bfloat16, and a choice by the length of the
rows.
"""

import pytest
import torch
from torch import Tensor

from minisbert.backends import graphs as attention
from minisbert.backends import package
from minisbert.backends.graphs import (
    RowAttention,
    attend_by_length,
    attention_by_length,
    bfloat16_attention,
    float32_attention,
    fused_attention,
    prepare_layers,
)
from minisbert.backends.package import About, CompiledEncoder
from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError, bert
from minisbert.models import batching
from minisbert.models.batching import LONG_TOKENS, same_text
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import devices
from tests.backends.packages import COMPILER, TEXTS, generated_code

# Two texts share the first row, the second has one with pads.
TWO_TEXTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 2, -1, -1]])
MASKS = {"texts that share rows": same_text(TWO_TEXTS), "pads": (TWO_TEXTS >= 0)[:, None, None, :]}


def inputs(mask: Tensor) -> tuple[Tensor, ...]:
    """Query, key and value (2, 7, 3, 3, 8), and the mask's bias."""
    torch.manual_seed(0)
    bias = torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, float("-inf"))
    return torch.randn(2, 7, 3, 3, 8), bias


@pytest.mark.exact("one bound is float32's rounding")
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("way", "bound"),
    [(bfloat16_attention, 2**-6), (float32_attention, 1e-6), (fused_attention, 1e-6)],
)
def test_each_way_is_the_formula(way, bound, name):
    """bfloat16 has 8 bits: products of numbers around 1 are off by some 2^-8 each."""
    qkv, bias = inputs(MASKS[name])
    expected, _ = bert.attention(*qkv.double().permute(2, 0, 3, 1, 4), MASKS[name])
    found = way(qkv, bias)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < bound


@pytest.mark.parametrize("way", [bfloat16_attention, float32_attention, fused_attention])
def test_what_the_mask_hides_changes_no_bit(way):
    """Texts that share a row must not see each other, and nobody sees a pad."""
    qkv, bias = inputs(MASKS["pads"])
    before = way(qkv, bias)
    qkv[1, 5:, 1], qkv[1, 5:, 2] = 100.0, -100.0  # keys and values of pads
    assert torch.equal(way(qkv, bias), before)


def test_the_layers_of_the_books_encoder_and_no_others(tiny):
    """Newer architectures have other inputs, and keep their own attention."""
    encoder = SentenceEncoder.load(tiny)
    assert attend_by_length(encoder.bert)
    assert all(isinstance(layer.attention, RowAttention) for layer in encoder.bert.layers)
    other = torch.nn.Module()
    other.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    assert not attend_by_length(other)
    assert isinstance(other.layers[0], torch.nn.Linear)


AMD, AMX = (
    {"AuthenticAMD", "avx2", "avx512f", "avx512_bf16"},
    {"GenuineIntel", "avx2", "avx512_bf16", "amx_bf16"},
)


@pytest.mark.parametrize(
    ("flags", "rows", "tokens", "kernel"),
    [
        (AMD, 1, 36, float32_attention),
        (AMD, 1, 40, bfloat16_attention),
        (AMD, 34, 60, bfloat16_attention),
        (AMD, 4, 512, bfloat16_attention),
        (AMD, 1, 8192, fused_attention),  # 1.6 GB of scores
        (AMX, 1, 12, float32_attention),
        (AMX, 10, 200, bfloat16_attention),
        (AMX, 1, 208, fused_attention),
    ],
)
def test_vendor_flags_and_sizes_choose_the_kernel(flags, rows, tokens, kernel, monkeypatch):
    """Each kernel is the slower one somewhere, and one takes gigabytes for a long row."""

    def cond(fits: Tensor, first, second, inputs):
        way = first if fits else second
        if way in (float32_attention, bfloat16_attention, fused_attention):
            return way
        # The branch is a choice, too.
        return way(*inputs)

    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    monkeypatch.setattr(torch, "cond", cond)
    qkv = torch.zeros(()).expand(rows, tokens, 3, 12, 32)  # without memory
    assert attention_by_length(qkv, qkv) is kernel


@pytest.mark.parametrize(
    ("flags", "dtype", "fewer"),
    [
        (AMD, "bfloat16", True),
        (AMD, "int8", True),
        (AMD, "float32", False),
        (AMX, "bfloat16", False),
        ({"AuthenticAMD", "avx2"}, "int8", False),
    ],
)
def test_long_rows_share_smaller_batches_where_their_scores_are_held(
    flags, dtype, fewer, tiny, monkeypatch
):
    """Only where a package holds scores do they have to fit into the caches."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    encoder = CompiledEncoder(read_folder(tiny), lambda *_: [], About(dtype=dtype))
    assert (encoder.long_tokens == LONG_TOKENS) == fewer


@pytest.mark.parametrize("width", [-1, 0, 7])
def test_a_package_that_lies_about_its_columns_is_refused(width, tiny):
    """What a package says about itself is not signed."""
    encoder = CompiledEncoder(read_folder(tiny), lambda *_: [torch.zeros(2, 8)], About(width=width))
    with pytest.raises(InputError, match="columns"):
        encoder.encode(["a", "b c"])


@pytest.mark.parametrize(
    ("flags", "kernel"), [(AMD, attention_by_length), ({"AuthenticAMD", "avx2"}, fused_attention)]
)
def test_with_avx2_alone_an_int8_package_attends_by_torchs_operation(
    flags, kernel, tiny, monkeypatch
):
    """Emulated bfloat16 would be many times slower."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    encoder = SentenceEncoder.load(tiny)
    prepare_layers(encoder.bert, "int8")
    assert {layer.attention.kernel for layer in encoder.bert.layers} == {kernel}


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler")
def test_a_package_has_all_ways(tiny, tmp_path, monkeypatch):
    """A long text has a row to itself. The vectors of a text do not depend on what comes with
    it.
    """
    monkeypatch.setattr(devices, "cpu_flags", lambda: AMD)
    # Whatever this CPU has, which emulates the rest.
    monkeypatch.setattr(package, "instruction_sets", lambda: ["avx2"])
    for module in (attention, batching):
        monkeypatch.setattr(module, "SHORT", 40)
    monkeypatch.setattr(attention, "FEW_SCORES", 12**2)  # a row of 12 tokens with a head
    monkeypatch.setattr(attention, "MOST_SCORES", 2 * 40**2)  # 2 rows of 40
    monkeypatch.setattr(batching, "ROW", 24)
    # In this process, where the bounds hold.
    attention.compile_model(tiny, "bfloat16", None, tmp_path / "p.pt2")
    code = generated_code(tmp_path / "p.pt2")
    assert "cpu_bmm_out(" in code
    assert "scaled_dot_product" in code
    ours, eager = CompiledEncoder.load(tiny, tmp_path / "p.pt2"), SentenceEncoder.load(tiny)
    texts = [*TEXTS * 4, " ".join(TEXTS), " ".join(TEXTS * 2), " ".join(TEXTS[:4] * 2)]
    vectors, expected = ours.encode(texts), eager.encode(texts)
    assert abs(vectors - expected).max() < 0.02
    alone = [ours.encode(text) for text in texts]
    # bfloat16 rounds a sum of another order to its neighbour.
    assert abs(vectors - alone).max() < 2**-8
