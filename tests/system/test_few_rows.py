"""Linear layers of few rows, which take weights that are laid out once."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn

from minisbert import SentenceEncoder
from minisbert.system import devices, few_rows
from minisbert.system.few_rows import FewRowsLinear, chosen_layout, lay_out_for_few_rows
from minisbert.system.torch_internals import LAYOUTS

INTEL = {"GenuineIntel", "avx2"}
AMD = {"AuthenticAMD", "avx2"}


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request, monkeypatch):
    """The layouts that this torch has, each in turn, as that of this CPU."""
    chosen = LAYOUTS[request.param]
    monkeypatch.setattr(few_rows, "chosen_layout", lambda: chosen)
    return chosen


@pytest.fixture
def copies(monkeypatch):
    """The registry of copies, empty."""
    registry = few_rows.WeakIdKeyDictionary()
    monkeypatch.setattr(few_rows, "_copies", registry)
    monkeypatch.setattr(few_rows, "_agreement", {})
    return registry


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return FewRowsLinear(48, 40)


def exact(layer, x):
    """The layer's result in float64."""
    weight = layer.weight.detach().double()
    return x.double() @ weight.T + layer.bias.detach().double()


@pytest.mark.parametrize("rows", [1, 2, 3, 14, 64, 256])
@torch.no_grad()
def test_few_rows_give_the_numbers_of_the_plain_product(rows, layer, layout, copies):
    """For any number of rows, not only the one that a weight was laid out for."""
    x = torch.randn(rows, 48)
    result = layer(x)
    torch.testing.assert_close(result.double(), exact(layer, x), atol=1e-5, rtol=0)
    assert layer.weight in copies


@torch.no_grad()
def test_the_shape_of_a_batch_is_kept(layer, layout, copies):
    x = torch.randn(2, 1, 5, 48)
    result = layer(x)
    torch.testing.assert_close(result.double(), exact(layer, x), atol=1e-5, rtol=0)


@torch.no_grad()
def test_many_rows_take_the_weight_itself(layer, layout, copies):
    """They gain nothing by a copy, which takes memory."""
    layer(torch.randn(few_rows.MOST_ROWS + 1, 48))
    assert not copies


def test_gradients_and_other_dtypes_take_the_weight_itself(layer, layout, copies):
    """The copies are float32 and have no gradient."""
    x = torch.randn(3, 48)
    layer(x).sum().backward()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)
        layer.double()(x.double())
    assert not copies


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: layer.load_state_dict(nn.Linear(48, 40).state_dict()),
        lambda layer: setattr(layer.weight, "data", torch.ones(40, 48)),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(40, 48))),
    ],
    ids=["in place", "through data", "load_state_dict", "new data", "new parameter"],
)
@torch.no_grad()
def test_a_changed_weight_is_laid_out_again(change, layer, layout, copies):
    """An old copy would give the vectors of a model that is gone."""
    x = torch.randn(3, 48)
    layer(x)
    change(layer)
    result = layer(x)
    torch.testing.assert_close(result.double(), exact(layer, x), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_copy_is_freed_with_its_weight(layout, copies):
    layer = FewRowsLinear(48, 40)
    layer(torch.randn(3, 48))
    assert len(copies) == 1
    del layer
    gc.collect()
    assert len(copies) == 0


@torch.no_grad()
def test_a_layout_that_computes_something_else_is_not_used(layer, copies, monkeypatch):
    """MKL documents a packed weight for one number of rows only: others are checked."""

    def wrong(rows, copy, weight, bias):
        return nn.functional.linear(rows, weight, bias) + 1

    layout = few_rows.Layout("wrong", torch.clone, wrong)
    monkeypatch.setattr(few_rows, "chosen_layout", lambda: layout)
    x = torch.randn(3, 48)
    result = layer(x)
    torch.testing.assert_close(result.double(), exact(layer, x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("value", [0.0, torch.nan])
@torch.no_grad()
def test_a_first_call_that_says_nothing_decides_nothing(value, layer, layout, copies):
    """One text with NaN would switch the layout off for all models of these sizes."""
    nn.init.zeros_(layer.bias)
    layer(torch.full((3, 48), value))
    assert not few_rows._agreement
    layer(torch.randn(3, 48))
    assert list(few_rows._agreement.values()) == [True]


@torch.no_grad()
def test_a_module_is_pickled_without_its_copies(layer, layout, copies):
    before = len(pickle.dumps(layer))
    layer(torch.randn(3, 48))
    assert len(pickle.dumps(layer)) == before
    twin = copy.deepcopy(layer)
    assert twin.weight not in copies


@pytest.mark.parametrize(
    ("flags", "library"),
    [
        (INTEL, "MKL"),
        (AMD, "oneDNN"),
        (AMD | {"avx512f", "avx512_bf16"}, None),
        (INTEL | {"amx_bf16", "avx512_bf16"}, None),
        ({"asimd"}, None),
        (set(), None),
    ],
)
def test_the_cpu_decides(flags, library, monkeypatch):
    """By a fixed table, so that one CPU gives the same bits in every start."""
    monkeypatch.setattr(devices, "cpu_flags", lambda: flags)
    assert chosen_layout.__wrapped__() is LAYOUTS.get(library)


def test_one_variable_switches_it_off(monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: AMD)
    monkeypatch.setenv("MINISBERT_LAID_OUT", "0")
    assert chosen_layout.__wrapped__() is None


def test_an_encoder_gives_the_same_vectors_from_several_threads(tiny, layout, copies, monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(few_rows, "chosen_layout", lambda: None)
        expected = SentenceEncoder.load(tiny).encode("a red cat")
    encoder = SentenceEncoder.load(tiny)

    vectors = []

    def encode():
        vectors.append(encoder.encode("a red cat"))

    threads = [threading.Thread(target=encode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(vectors) == 4
    for vector in vectors:
        np.testing.assert_allclose(vector, expected, atol=1e-6, rtol=0)
    assert copies


@torch.no_grad()
def test_an_exported_graph_holds_no_copy(layer, layout, copies):
    """A graph is for any number of rows, and for machines without the layout's operator."""
    exported = torch.export.export(layer, (torch.randn(3, 48),))
    assert not copies
    assert "aten.linear" in str(exported.graph)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@torch.no_grad()
def test_a_traced_module_holds_no_copy(layer, layout, copies):
    traced = torch.jit.trace(layer, torch.randn(3, 48))
    assert "aten::linear" in str(traced.inlined_graph)


def test_the_layers_of_a_model_stay_the_same_objects(layout):
    """A hook that the caller has set is still called."""
    model = nn.Sequential(nn.Linear(48, 40))
    called = []
    model[0].register_forward_hook(lambda *_: called.append(True))
    lay_out_for_few_rows(model)
    model(torch.randn(3, 48))
    assert isinstance(model[0], FewRowsLinear)
    assert called
