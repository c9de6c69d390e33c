"""Whose product a package multiplies by."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from minisbert import SentenceEncoder
from minisbert.backends import graphs
from minisbert.backends.graphs import BFloat16Linear, TransposedLinear, prepare_layers
from minisbert.backends.package import CompiledEncoder
from tests.backends.test_int8 import TEXTS, generated_code
from tests.conftest import ROOT

WITH_GAIN = """
import sys
from pathlib import Path
from minisbert.backends import graphs
graphs.onednn_gain = lambda *sizes, **options: float(sys.argv[1])
graphs.layer_seconds = lambda *sizes, **options: [1.0, 1.0, float(sys.argv[4])]
graphs.gains_over_eager = lambda package: [1.5, 0.9]
graphs.compile_model(Path(sys.argv[2]), "float32", None, Path(sys.argv[3]))
"""

MULTIPLIERS = [("float32", 1.1, TransposedLinear), ("float32", 1.2, nn.Linear), ("bfloat16", 1.1, BFloat16Linear)]


@pytest.mark.parametrize("bias", [True, False])
def test_a_transposed_layer_gives_the_numbers_of_the_layer(bias):
    torch.manual_seed(0)
    linear = nn.Linear(7, 5, bias).double()
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(TransposedLinear(linear)(x), linear(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "gain", "kind"), MULTIPLIERS)
def test_a_clearly_faster_library_multiplies_in_float32(dtype, gain, kind, tiny, monkeypatch):
    monkeypatch.setattr(graphs, "onednn_gain", lambda *sizes, **options: gain)
    monkeypatch.setattr(graphs, "bfloat16_hardware", lambda device: (True, ""))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    bert = SentenceEncoder.load(tiny, device="cpu").bert
    prepare_layers(bert, dtype)
    assert {type(layer.feed_forward.up) for layer in bert.layers} == {kind}


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
@pytest.mark.parametrize(
    ("gain", "gelu", "product", "fused"),
    [
        ("1.1", "1.0", "cpu_mm_out(", False),
        ("1.2", "1.1", "cpu__linear_pointwise(", True),
        ("1.2", "1.2", "cpu__linear_pointwise(", False),
    ],
)
def test_a_package_has_its_product(gain, gelu, product, fused, tiny, tmp_path):
    """GELU within oneDNN's product takes ``gelu`` times as long as behind it."""
    path = tmp_path / "p.pt2"
    subprocess.run([sys.executable, "-c", WITH_GAIN, gain, str(tiny), str(path), gelu], check=True, cwd=ROOT)
    code = generated_code(path)
    assert ('"gelu"' in code) == fused
    assert {name for name in ("cpu_mm_out(", "cpu_addmm_out(", "cpu__linear_pointwise(") if name in code} == {product}
    ours, eager = CompiledEncoder.load(tiny, path), SentenceEncoder.load(tiny, device="cpu")
    assert abs(ours.encode(TEXTS) - eager.encode(TEXTS)).max() < 2e-6
    assert ours.gains == [1.5, 0.9]
