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
from minisbert.system import devices
from tests.backends.packages import TEXTS, generated_code
from tests.conftest import ROOT

COMPILE = """
import sys
from pathlib import Path
from minisbert.backends import graphs
graphs.mkl_multiplies = lambda: sys.argv[3] == "BLAS"
graphs.compile_model(Path(sys.argv[1]), "float32", None, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("bias", [True, False])
def test_a_transposed_layer_gives_the_numbers_of_the_layer(bias):
    """It is another layout of the same weights."""
    torch.manual_seed(0)
    linear = nn.Linear(7, 5, bias).double()
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(TransposedLinear(linear)(x), linear(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "flags", "kind"),
    [
        ("float32", {"avx2"}, TransposedLinear),
        ("float32", {"AuthenticAMD", "avx512f"}, nn.Linear),
        ("bfloat16", {"avx2"}, BFloat16Linear),
    ],
)
def test_the_faster_library_multiplies_in_float32(dtype, flags, kind, tiny, monkeypatch):
    """MKL and oneDNN differ by a factor of two, by the CPU's vendor."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    monkeypatch.setattr(graphs, "bfloat16_hardware", lambda device: (True, ""))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    bert = SentenceEncoder.load(tiny, device="cpu").bert
    prepare_layers(bert, dtype)
    for layer in bert.layers:
        assert isinstance(layer.feed_forward.up, kind)


def test_a_graph_for_few_tokens_leaves_its_layers_to_onednn(tiny, monkeypatch):
    """Otherwise both graphs of a package would be the same."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: {"avx2"})
    bert = SentenceEncoder.load(tiny, device="cpu").bert
    assert prepare_layers(bert, "float32", for_few_tokens=True).prepack
    assert not any(isinstance(module, TransposedLinear) for module in bert.modules())


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
@pytest.mark.parametrize(
    ("library", "product"), [("BLAS", "cpu_mm_out("), ("oneDNN", "cpu__linear_pointwise(")]
)
def test_a_package_has_its_product(library, product, tiny, tmp_path):
    """The compiler may choose another library than was asked for."""
    path = tmp_path / "p.pt2"
    subprocess.run(
        [sys.executable, "-c", COMPILE, str(tiny), str(path), library], check=True, cwd=ROOT
    )
    code = generated_code(path)
    assert ('"gelu"' in code) == (library == "oneDNN")  # within oneDNN's product
    assert {
        name for name in ("cpu_mm_out(", "cpu_addmm_out(", "cpu__linear_pointwise(") if name in code
    } == {product}
    ours, eager = CompiledEncoder.load(tiny, path), SentenceEncoder.load(tiny, device="cpu")
    assert abs(ours.encode(TEXTS) - eager.encode(TEXTS)).max() < 2e-6
