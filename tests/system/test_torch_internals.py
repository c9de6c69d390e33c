"""The linear layer that is oneDNN's where oneDNN is the faster library."""

from itertools import permutations

import pytest
import torch
from torch import nn

from minisbert import PairModel, SentenceEncoder
from minisbert.core.heads import siamese
from minisbert.system import torch_internals
from minisbert.system.devices import best_seconds
from minisbert.system.torch_internals import FEW_ROWS, OneDNNLinear, fastest_linear, onednn_gain

pytestmark = pytest.mark.skipif(not torch_internals.ONEDNN, reason="this torch has no oneDNN")
TEXTS = [" ".join(words) for words in permutations("abcde")]


@pytest.fixture
def used(monkeypatch):
    """The shapes that oneDNN's layer is called with, on a CPU where it is the faster one."""
    shapes = []
    call = torch.ops.mkldnn._linear_pointwise

    def counted(x, *arguments):
        shapes.append(tuple(x.shape))
        return call(x, *arguments)

    monkeypatch.setattr(torch_internals, "CHOICES", {})
    monkeypatch.setattr(torch_internals, "onednn_gain", lambda *sizes: 2.0)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return shapes


@pytest.mark.exact("counts calls, and the mode takes the place of the function that is counted")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(FEW_ROWS, 24), (3, 100, 24), (2, 5, 60, 24)])
@torch.no_grad()
def test_onednns_layer_gives_the_numbers_of_torchs_own(shape, bias, used):
    torch.manual_seed(0)
    layer = nn.Linear(24, 7, bias)
    for x in (torch.randn(shape), torch.randn(*shape[:-2], 24, shape[-2]).transpose(-2, -1)):  # contiguous and not
        with fastest_linear():
            found = layer(x)
        exact = layer.double()(x.double())
        layer.float()
        torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=0)
    assert used == [shape, shape]


def test_other_dtypes_few_rows_and_gradients_keep_torchs_own(used):
    layer, x = nn.Linear(24, 7), torch.randn(FEW_ROWS, 24)
    with fastest_linear():
        layer(x).sum().backward()
        with torch.no_grad():
            assert layer(x[1:]).equal(nn.functional.linear(x[1:], layer.weight, layer.bias))
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(x).dtype == torch.bfloat16
            layer.double()(x.double())
    assert used == []


def test_encoders_and_pair_models_use_it_without_gradients(tiny, used):
    encoder = SentenceEncoder.load(tiny)
    vectors = encoder.encode(TEXTS)
    assert used
    torch.testing.assert_close(torch.from_numpy(vectors), exact_vectors(encoder), atol=2e-6, rtol=0)
    used.clear()
    model = PairModel(encoder, siamese(encoder.width)).eval()
    model.outputs(TEXTS, TEXTS[::-1])
    assert used


def exact_vectors(encoder):
    vectors = encoder.double().encode(TEXTS)
    encoder.float()
    return torch.from_numpy(vectors).float()


def test_the_choice_is_measured_for_each_size_once_and_a_small_gain_changes_nothing(monkeypatch):
    threads = torch.get_num_threads()
    assert onednn_gain(24, 96, (2, 3), packed=True) > 0
    assert torch.get_num_threads() == threads
    gains, asked = {24: 1.1, 32: 1.2, 40: 0.0}, []
    monkeypatch.setattr(torch_internals, "CHOICES", {})
    monkeypatch.setattr(torch_internals, "onednn_gain", lambda width, *_: asked.append(width) or gains[width])
    for width, kind in ((24, False), (32, True), (40, False), (32, True)):
        assert isinstance(fastest_linear(width, 96), OneDNNLinear) == kind
    assert asked == [24, 32, 40]


def test_each_number_of_rows_counts_alike_and_the_faster_gelu(monkeypatch):
    """16 rows: 3 s to 1.5 s; 2,048 rows: 30 s to 60 s, so that the gain is sqrt(2 / 2) = 1; the sum would say .54."""
    own, onednn = {16: 1.0, 2048: 10.0}, {16: [0.5, 0.7], 2048: [25.0, 20.0]}
    monkeypatch.setattr(torch_internals, "layer_seconds", lambda rows, *_: [own[rows], *onednn[rows]])
    assert onednn_gain.__wrapped__(24, 96, (16, 2048)) == pytest.approx(1.0)


def test_the_best_time_of_each_call_counts():
    """Two calls of 2, 1, 4 and 3, 5, 6 seconds on a clock that only they turn."""
    now, seconds = [0.0], {"a": [2, 1, 4], "b": [3, 5, 6]}

    def call(name: str) -> None:
        now[0] += seconds[name].pop(0)

    assert best_seconds([lambda: call("a"), lambda: call("b")], 3, clock=lambda: now[0]) == [1.0, 3.0]
