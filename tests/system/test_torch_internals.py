"""Private parts of torch: oneDNN's linear layer, and packages of two graphs."""

import zipfile
from contextlib import nullcontext
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from minisbert import PairModel, SentenceEncoder
from minisbert.core import InputError
from minisbert.core.heads import siamese
from minisbert.system import devices, torch_internals
from minisbert.system.torch_internals import fastest_linear

pytestmark = pytest.mark.skipif(not torch_internals.ONEDNN, reason="this torch has no oneDNN")
TEXTS = [" ".join(words) for words in permutations("abcde")]


@pytest.fixture
def used(monkeypatch):
    """The shapes that oneDNN's layer is called with, on a CPU of AMD with AVX-512."""
    shapes = []
    call = torch.ops.mkldnn._linear_pointwise

    def counted(x, *arguments):
        shapes.append(tuple(x.shape))
        return call(x, *arguments)

    monkeypatch.setattr(devices, "cpu_flags", lambda: {"AuthenticAMD", "avx512f"})
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return shapes


@pytest.mark.exact("counts calls, and the mode takes the place of the function that is counted")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (300, 24), (2, 5, 60, 24)])
@pytest.mark.parametrize("contiguous", [True, False])
@torch.no_grad()
def test_onednns_layer_gives_the_numbers_of_torchs_own(shape, bias, contiguous, used):
    torch.manual_seed(0)
    layer = nn.Linear(24, 7, bias)
    if contiguous:
        x = torch.randn(shape)
    else:
        x = torch.randn(*shape[:-2], 24, shape[-2]).transpose(-2, -1)
    with fastest_linear():
        result = layer(x)
    exact = layer.double()(x.double())
    torch.testing.assert_close(result.double(), exact, atol=1e-6, rtol=0)
    assert used == [shape]


def test_other_dtypes_and_gradients_keep_torchs_own(used):
    """oneDNN's layer is for float32, and has no gradient."""
    layer = nn.Linear(24, 7)
    x = torch.randn(300, 24)
    with fastest_linear():
        layer(x).sum().backward()
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            layer.double()(x.double())
    assert used == []


@pytest.mark.parametrize(
    "flags", ["AuthenticAMD avx2", "GenuineIntel avx2 avx512f avx512_bf16 amx_bf16"]
)
def test_other_cpus_keep_torchs_own(flags, monkeypatch):
    """There MKL is as fast, or faster."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: set(flags.split()))
    assert isinstance(fastest_linear(), nullcontext)


def test_encoders_and_pair_models_use_it_without_gradients(tiny, used):
    encoder = SentenceEncoder.load(tiny)
    vectors = encoder.encode(TEXTS)
    assert used
    np.testing.assert_allclose(vectors, encoder.double().encode(TEXTS), atol=2e-6, rtol=0)
    encoder.float()
    used.clear()
    model = PairModel(encoder, siamese(encoder.width)).eval()
    model.outputs(TEXTS, TEXTS[::-1])
    assert used


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_a_graph_is_added_to_a_package_under_a_name_of_its_own(tmp_path, monkeypatch):
    """Members beyond the size that zip files once had, too: 2 GiB, here 100 bytes."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    folder = "package/data/aotinductor"
    ours = archive(tmp_path / "p.pt2", {f"{folder}/model/a.so": b"many"})
    other = archive(
        tmp_path / "o.pt2", {f"{folder}/model/b.so": b"x" * 200, "package/version": b"1"}
    )
    torch_internals.add_graph(ours, other, "few")
    assert torch_internals.graph_names(ours) == {"model", "few"}
    with zipfile.ZipFile(ours) as file:
        assert file.namelist() == [f"{folder}/model/a.so", f"{folder}/few/b.so"]
        assert file.read(f"{folder}/few/b.so") == b"x" * 200


def test_a_package_without_a_graph_cannot_be_added(tmp_path):
    """Another version of torch may put it elsewhere: a package without it must not look whole."""
    ours = archive(tmp_path / "p.pt2", {"package/data/aotinductor/model/a.so": b""})
    other = archive(tmp_path / "o.pt2", {"package/version": b"1"})
    with pytest.raises(InputError, match="graph"):
        torch_internals.add_graph(ours, other, "few")
