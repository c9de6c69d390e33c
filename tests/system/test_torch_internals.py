"""Linear layers and attention that are oneDNN's where oneDNN is the faster library."""

from contextlib import nullcontext
from itertools import permutations

import pytest
import torch
from torch import nn

from minisbert import PairModel, SentenceEncoder
from minisbert.core import bert
from minisbert.core.heads import siamese
from minisbert.models.batching import same_text
from minisbert.system import devices, torch_internals
from minisbert.system.torch_internals import attention_by_products, fastest_layers, few_scores

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
@torch.no_grad()
def test_onednns_layer_gives_the_numbers_of_torchs_own(shape, bias, used):
    torch.manual_seed(0)
    layer = nn.Linear(24, 7, bias)
    for x in (torch.randn(shape), torch.randn(*shape[:-2], 24, shape[-2]).transpose(-2, -1)):  # contiguous and not
        with fastest_layers():
            found = layer(x)
        exact = layer.double()(x.double())
        layer.float()
        torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=0)
    assert used == [shape, shape]


def test_other_dtypes_and_gradients_keep_torchs_own(used):
    layer, x = nn.Linear(24, 7), torch.randn(300, 24)
    with fastest_layers():
        layer(x).sum().backward()
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            layer.double()(x.double())
    assert used == []


@pytest.mark.parametrize("flags", ["AuthenticAMD avx2", "GenuineIntel avx2 avx512f avx512_bf16 amx_bf16"])
def test_other_cpus_keep_torchs_own(flags, monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: set(flags.split()))
    assert isinstance(fastest_layers(), nullcontext)


def test_encoders_and_pair_models_use_it_without_gradients(tiny, used):
    encoder = SentenceEncoder.load(tiny)
    vectors = encoder.encode(TEXTS)
    assert used
    torch.testing.assert_close(torch.from_numpy(vectors), exact_vectors(encoder), atol=2e-6, rtol=0)
    used.clear()
    model = PairModel(encoder, siamese(encoder.width)).eval()
    model.outputs(TEXTS, TEXTS[::-1])
    assert used


AMD = {"AuthenticAMD", "avx512f", "avx512_bf16"}
TWO_TEXTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [2, 2, 2, 2, 2, -1, -1]])  # of a row, and one with pads


@pytest.mark.exact("the same products twice")
@pytest.mark.parametrize("mask", [None, same_text(TWO_TEXTS), (TWO_TEXTS >= 0)[:, None, None, :]])
@torch.no_grad()
def test_attention_by_products_is_the_formula(mask, monkeypatch):
    """bfloat16 has 8 bits: products of numbers around 1 are off by some 2^-8 each."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 7, 8).bfloat16()
    expected, _ = bert.attention(query.double(), key.double(), value.double(), mask)
    monkeypatch.setattr(devices, "cpu_flags", lambda: AMD)
    with fastest_layers():
        found, _ = bert.attention(query, key, value, mask)
    assert found.equal(attention_by_products(query, key, value, mask))  # not torch's operation
    assert (found - expected).abs().max() < 2**-6


@pytest.mark.parametrize(
    ("flags", "shape", "dtype", "fits"),
    [
        (AMD, (1, 12, 1024, 32), torch.bfloat16, True),
        (AMD, (1, 12, 8192, 32), torch.bfloat16, False),  # 1.6 GB of scores
        (AMD, (1, 12, 1024, 32), torch.float32, False),
        ({"AuthenticAMD", "avx512f"}, (1, 12, 1024, 32), torch.bfloat16, False),
        ({"GenuineIntel", "avx512_bf16", "amx_bf16"}, (1, 12, 1024, 32), torch.bfloat16, False),
        ({"AuthenticAMD", "avx2"}, (1, 12, 1024, 32), torch.bfloat16, False),
    ],
)
def test_vendor_flags_and_memory_decide_how_attention_is_computed(flags, shape, dtype, fits, monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    x = torch.zeros((), dtype=dtype).expand(shape)  # without memory
    assert not few_scores(x, x, x)  # with gradients
    with torch.no_grad():
        assert few_scores(x, x, x) == fits
        assert not few_scores(x, x, x, torch.zeros(1, 1, 1, shape[2], dtype=dtype))  # a bias of MPNet


def test_an_encoder_in_bfloat16_attends_by_products_on_amd(tiny, monkeypatch):
    encoder = SentenceEncoder.load(tiny)
    expected = encoder.encode(TEXTS)
    monkeypatch.setattr(devices, "cpu_flags", lambda: AMD)
    calls, products = [], torch_internals.attention_by_products
    monkeypatch.setattr(torch_internals, "attention_by_products", lambda *x: calls.append(1) or products(*x))
    assert abs(encoder.encode(TEXTS, dtype="bfloat16") - expected).max() < 0.02
    assert calls


def exact_vectors(encoder):
    vectors = encoder.double().encode(TEXTS)
    encoder.float()
    return torch.from_numpy(vectors).float()
