"""int8 packages: the formula by hand, the compiler's code, and how far vectors are off."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from minisbert.backends import graphs as int8
from minisbert.backends import package
from minisbert.backends.graphs import (
    QuantizedLinear,
    attend_by_length,
    attention_by_length,
    fused_attention,
    quantize_layers,
    quantize_weight,
    quantized_linear,
)
from minisbert.backends.package import CompiledEncoder
from minisbert.commands.convert import to_native_code
from minisbert.core import InputError
from minisbert.core.metrics import spearman
from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system import torch_internals
from minisbert.system.devices import bfloat16_hardware, cpu_flags
from tests.backends.packages import TEXTS, generated_code
from tests.conftest import ROOT

SIGNED = int8.SIGNED
UNSIGNED = int8.UNSIGNED
needs_vnni = pytest.mark.skipif(SIGNED not in cpu_flags(), reason=f"the CPU has no {SIGNED}")
needs_avx2 = pytest.mark.skipif(UNSIGNED not in cpu_flags(), reason=f"the CPU has no {UNSIGNED}")
# exactness of one product, for a process that has nothing beyond AVX2: largest and random numbers
PRODUCTS = """
import numpy as np, torch
from minisbert.backends.graphs import NARROW
from minisbert.system.torch_internals import unsigned_products

numbers = np.random.default_rng(0)
for rows, inputs, outputs in ((1, 1536, 384), (3, 40, 24), (70, 384, 1536)):
    for sign in (-1, 0, 1):
        a = np.full((rows, inputs), 255, np.uint8)
        b = np.full((outputs, inputs), sign * NARROW, np.int8)
        if not sign:
            a = numbers.integers(0, 256, a.shape, np.uint8)
            b = numbers.integers(-NARROW, NARROW + 1, b.shape, np.int8)
        scale = 2.0 ** numbers.integers(-3, 4, outputs)  # no rounding
        expected = (a.astype(np.int64) @ b.astype(np.int64).T) * scale
        scales = torch.from_numpy(scale).float()
        y = unsigned_products(torch.from_numpy(a), torch.from_numpy(b), scales)
        # a sum over 2^24 is rounded to float32
        assert np.array_equal(y.numpy(), expected.astype(np.float32)), (rows, inputs, outputs, sign)
"""


def tensor(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.exact("products of integers, which no CPU rounds")
@pytest.mark.parametrize("unsigned", [True, False])
@pytest.mark.parametrize("private", [True, False])
def test_the_product_of_the_docstring(private, unsigned, monkeypatch):
    """By each of torch's operations and without them, as on other CPUs."""
    if not private:
        monkeypatch.delattr(torch_internals.torch, "_int_mm")
        monkeypatch.setattr(torch_internals, "QLINEAR", False)
    codes = torch.tensor([[1, 2, 3], [0, 0, -50]], dtype=torch.int8)
    scale, bias = torch.tensor([0.5, 0.02]), torch.tensor([0.0, 10.0])
    y = quantized_linear(tensor([-1.0, 0.0, 1.55]), codes, scale, bias, unsigned)
    torch.testing.assert_close(y, tensor([1.825, 10 - 1.55]), atol=1e-6, rtol=0)


@needs_avx2
def test_unsigned_products_are_exact_without_vnni():
    """Without it pairs of products are added in 16 bits, which saturate: by 6,144,576 with codes up
    to 127.
    """
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True, env=environment, timeout=300)


@pytest.mark.parametrize("unsigned", [True, False])
def test_a_token_of_equal_numbers_is_exact(unsigned):
    """Its range is empty, and a step of 0 would divide by it."""
    codes = torch.tensor([[1, -3]], dtype=torch.int8)
    x = tensor([0.0, 0.0], [7.0, 7.0], [-1e6, -1e6])
    assert quantized_linear(x, codes, torch.ones(1), unsigned=unsigned).tolist() == [
        [0],
        [-14],
        [2e6],
    ]


def test_weights_are_within_half_a_step_unless_they_are_clipped():
    """Rounding is off by half a step at most."""
    codes, scale = quantize_weight(tensor([1.27, -0.01], [0.0, 0.0], [-2.54, 2.54]))
    assert codes.tolist() == [[127, -1], [0, 0], [-127, 127]]
    torch.testing.assert_close(scale, torch.tensor([0.01, int8.SMALLEST, 0.02]))
    # A few activations are large, as in BERT.
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) ** 3
    codes, scale = quantize_weight(weight)
    error = (scale[:, None] * codes - weight).abs()
    clipped = weight.abs() > 127.5 * scale[:, None]
    assert (error <= 0.5001 * scale[:, None])[~clipped].all()
    assert (scale >= 0.69 * weight.abs().amax(1) / 127).all()


@pytest.mark.skipif(
    "ONEDNN_MAX_CPU_ISA" in os.environ, reason="oneDNN lacks what the CPU's flags promise"
)
@pytest.mark.parametrize(
    ("flags", "most"), [({SIGNED, UNSIGNED}, 127), ({UNSIGNED}, 64), (set(), 127)]
)
def test_a_layer_is_off_by_at_most_the_rounding_of_both_sides(flags, most, monkeypatch):
    """|error| <= half a step of x times the sum of |w|, plus |x| times the error of the weights."""
    monkeypatch.setattr(int8, "cpu_flags", lambda: flags)
    torch.manual_seed(0)
    linear = nn.Linear(48, 20)
    x = torch.randn(3, 7, 48) + 2
    quantized = QuantizedLinear(linear)
    assert quantized.codes.abs().max() == most
    assert [name for name, _ in quantized.named_buffers()] == ["codes", "scale"]
    weights = quantized.scale[:, None] * quantized.codes  # (C, D)
    step = (x.amax(-1) - x.amin(-1))[..., None] / 255
    bound = step / 2 * weights.abs().sum(1) + x.abs() @ (weights - linear.weight).abs().T
    error = (quantized(x) - linear(x)).abs()
    assert error.shape == (3, 7, 20)
    assert (error <= bound + 1e-5).all()


def test_activations_may_lie_in_memory_in_any_order():
    """The operation reads memory, not the tensor's strides."""
    layer, x = QuantizedLinear(torch.nn.Linear(6, 4)), torch.randn(6, 5)
    assert torch.equal(layer(x.T), layer(x.T.contiguous()))


def test_every_linear_layer_of_the_encoder_and_nothing_else(tiny):
    """Embeddings and pooling keep their precision."""
    encoder = SentenceEncoder.load(tiny)
    quantize_layers(encoder.bert)
    layers = list(encoder.bert.layers.modules())
    assert sum(isinstance(module, QuantizedLinear) for module in layers) == 6 * len(
        encoder.bert.layers
    )
    assert not any(isinstance(module, nn.Linear) for module in layers)
    assert encoder.bert.embeddings.word.weight.dtype == torch.float32


def test_it_is_refused_without_the_instructions_and_uncompiled(tiny, tmp_path, monkeypatch):
    """It would be slower than float32 there."""
    with pytest.raises(InputError, match="dtype int8 is for compiled models"):
        SentenceEncoder.load(tiny).encode(TEXTS, dtype="int8")
    monkeypatch.setattr(package, "cpu_flags", lambda: {"sse4_2"})
    with pytest.raises(InputError, match="int8 needs a CPU with avx512_vnni or avx2"):
        to_native_code([str(tiny), "--dtype", "int8", "--out", str(tmp_path / "p.pt2")])
    assert not list(tmp_path.iterdir())


@needs_vnni
@pytest.mark.slow
def test_a_package_multiplies_by_the_fast_product(tiny, tmp_path):
    """torch's compiler has a pattern that turns it into one that is 2,000 times slower on a Zen
    4.
    """
    to_native_code([str(tiny), "--dtype", "int8", "--out", str(tmp_path / "p.pt2")])
    code = generated_code(tmp_path / "p.pt2")
    by_length = bfloat16_hardware(torch.device("cpu"))[0]
    # In each layer one for query, key and value.
    assert len(re.findall(r"_int_mm_out\(", code)) == 2 * 4
    assert "qlinear" not in code
    # GELU once a number, not in two loops.
    assert len(set(re.findall(r"auto (tmp\d+) = tmp\d+\.erf\(\)", code))) == 1
    ours, eager = CompiledEncoder.load(tiny, tmp_path / "p.pt2"), SentenceEncoder.load(tiny)
    assert ours.compiled_dtype == "int8"
    vectors, expected = ours.encode(TEXTS), eager.encode(TEXTS)
    assert ((vectors * expected).sum(1) > 0.99).all()
    attend_by_length(eager.bert, attention_by_length if by_length else fused_attention)
    quantize_layers(eager.bert)
    # A number between two codes may be rounded to either.
    assert abs(vectors - eager.encode(TEXTS)).max() < 2e-3
    with pytest.raises(InputError, match="compiled from tiny with dtype int8, not bfloat16"):
        CompiledEncoder.load(tiny, tmp_path / "p.pt2", dtype="bfloat16")


@needs_avx2
@pytest.mark.slow
def test_a_package_without_vnni(tiny, tmp_path, monkeypatch):
    """oneDNN's layer takes the weights as they were laid out when the package was compiled."""
    monkeypatch.setattr(int8, "cpu_flags", lambda: {UNSIGNED})
    monkeypatch.setattr(int8, "bfloat16_hardware", lambda device: (False, ""))
    # In this process, where the CPU has only these instructions.
    int8.compile_model(tiny, "int8", None, tmp_path / "p.pt2")
    code = generated_code(tmp_path / "p.pt2")
    # In each layer one for query, key and value.
    assert len(re.findall(r"cpu__qlinear_pointwise_tensor\(", code)) == 2 * 4
    assert "_int_mm_out(" not in code
    ours, eager = CompiledEncoder.load(tiny, tmp_path / "p.pt2"), SentenceEncoder.load(tiny)
    vectors, expected = ours.encode(TEXTS), eager.encode(TEXTS)
    assert ((vectors * expected).sum(1) > 0.99).all()
    attend_by_length(eager.bert, fused_attention)
    quantize_layers(eager.bert)
    # A number between two codes may be rounded to either.
    assert abs(vectors - eager.encode(TEXTS)).max() < 2e-3


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize(
    "flag", [pytest.param(SIGNED, marks=needs_vnni), pytest.param(UNSIGNED, marks=needs_avx2)]
)
def test_accuracy_on_sts_benchmark(flag, minilm, stsb, monkeypatch):
    """float32 has 82.03, ONNX Runtime's int8 81.71 (docs/results.md)."""
    monkeypatch.setattr(int8, "cpu_flags", lambda: {flag})
    pairs = load_scored_pairs("stsb", "test")
    encoder = SentenceEncoder.load(minilm)
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.sentence1, pair.sentence2)))
    expected = encoder.encode(texts)
    quantize_layers(encoder.bert)
    vectors = encoder.encode(texts)
    assert (vectors * expected).sum(1).mean() >= 0.995
    row = {text: i for i, text in enumerate(texts)}
    first, second = (
        vectors[[row[getattr(pair, side)] for pair in pairs]] for side in ("sentence1", "sentence2")
    )
    assert 100 * spearman((first * second).sum(1), np.array([pair.score for pair in pairs])) >= 81.9
