"""Copies of weights: made when they pay, equal to the weights, and never stale, whatever changes the weights."""

import copy
import ctypes
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters

from minisbert.core import InputError, encoder
from minisbert.fast import engine, kernels
from minisbert.fast.engine import Engine
from minisbert.fast.fused import FusedBert, is_plain
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple"]
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
BOUND = {FLOAT32: MINILM_VECTOR, BFLOAT16: 0.03}  # bfloat16 rounds to .004 of a number near 1, in every product
PRECISION = {FLOAT32: "float32", BFLOAT16: "bfloat16"}

needs_copies = pytest.mark.skipif(not (kernels.ONEDNN and kernels.COPY_ON_WRITE), reason="this torch makes no copies")


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without bfloat16 computes it all the same, slowly."""
    monkeypatch.setattr("minisbert.system.devices.bfloat16_hardware", lambda device: (True, "for the test"))


@pytest.fixture
def model() -> SentenceEncoder:
    return SentenceEncoder.load(ROOT / "weights" / "tiny")


def book(model: SentenceEncoder) -> np.ndarray:
    """The vectors of ``TEXTS`` from the book's modules in float64, from a copy of the present weights."""
    twin = copy.deepcopy(model).double()
    for module in twin.modules():  # ``double`` forgets tensors that stand in for parameters
        vars(module).update({name: x.double() for name, x in vars(module).items() if isinstance(x, torch.Tensor)})
    return encoder.SentenceEncoder.encode(twin, TEXTS)


def warm(model: SentenceEncoder, dtype: torch.dtype = FLOAT32, calls: int = 3) -> np.ndarray:
    """The vectors of ``TEXTS``, encoded so often that a copy is there, if there may be one."""
    return [model.encode(TEXTS, precision=PRECISION[dtype]) for _ in range(calls)][-1]


def copies(model: SentenceEncoder) -> set[torch.dtype]:
    return set(model.engine._copies)


def up(model: SentenceEncoder) -> nn.Linear:
    """The module whose weights most tests change."""
    return model.bert.layers[1].feed_forward.up


# ---------------------------------------------------------------------- every way to change a weight

CHANGES: dict[str, Callable[[SentenceEncoder], object]] = {}


def change(function: Callable[[SentenceEncoder], object]) -> Callable[[SentenceEncoder], object]:
    """Add to ``CHANGES``. Without gradients, as nearly all changes need it."""
    CHANGES[function.__name__] = torch.no_grad()(function)
    return function


def step(model: SentenceEncoder, optimizer: type, **options: object) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.detach().cos()
    chosen = optimizer(model.parameters(), lr=0.3, **options)
    chosen.step()
    chosen.zero_grad()


@change
def sgd(model):
    step(model, torch.optim.SGD, foreach=False)


@change
def adamw_foreach(model):
    step(model, torch.optim.AdamW, foreach=True)


@change
def adamw_fused(model):
    step(model, torch.optim.AdamW, fused=True)


@change
def in_place(model):
    up(model).weight.mul_(-1)


@change
def in_place_in_inference_mode(model):
    with torch.inference_mode():
        up(model).weight.mul_(-1)


@change
def a_bias(model):
    up(model).bias.add_(2)


@change
def a_norm(model):
    model.bert.layers[0].attention_norm.weight.mul_(-2)


@change
def one_number(model):
    model.bert.layers[1].feed_forward_norm.bias[3] = 9


@change
def fill_of_init(model):
    nn.init.normal_(up(model).weight)


@change
def apply(model):
    model.apply(lambda module: isinstance(module, nn.Linear) and module.weight.mul_(-1))


@change
def foreach(model):
    torch._foreach_mul_([up(model).weight, up(model).bias], -1)


@change
def out_of_an_operation(model):
    torch.neg(up(model).weight, out=up(model).weight.data)


@change
def data_in_place(model):
    up(model).weight.data.mul_(-1)


@change
def data_row(model):
    up(model).weight.data[::2] = 1


@change
def data_replaced(model):
    up(model).weight.data = -up(model).weight.data


@change
def set_to_a_tensor(model):
    up(model).weight.set_(-up(model).weight)


@change
def untyped_storage(model):
    up(model).weight.untyped_storage().copy_((-up(model).weight).untyped_storage())


@change
def swap_tensors(model):
    torch.utils.swap_tensors(up(model).weight, nn.Parameter(-up(model).weight))


@change
def numpy_array(model):
    up(model).weight.detach().numpy()[:] *= -1


@change
def numpy_dlpack(model):
    torch.from_dlpack(up(model).weight.detach()).mul_(-1)


@change
def address(model):
    new = -up(model).weight
    ctypes.memmove(up(model).weight.data_ptr(), new.data_ptr(), new.nbytes)


@change
def state_dict(model):
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()})


@change
def state_dict_in_place(model):
    model.state_dict()["bert.layers.1.feed_forward.up.weight"].mul_(-1)


@change
def state_dict_assigned(model):
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()}, assign=True)


@change
def vector(model):
    vector_to_parameters(-parameters_to_vector(model.bert.parameters()), model.bert.parameters())


@change
def another_thread(model):
    thread = threading.Thread(target=lambda: up(model).weight.data.mul_(-1))
    thread.start()
    thread.join()


@change
def shared_memory(model):
    model.share_memory()
    up(model).weight.data.mul_(-1)


@change
def there_and_back(model):
    model.double()
    up(model).weight.data.mul_(-1)
    model.float()


@change
def new_parameter(model):
    up(model).weight = nn.Parameter(-up(model).weight)


@change
def new_module(model):
    model.bert.layers[1].feed_forward.up = nn.Linear(up(model).in_features, up(model).out_features)


@change
def new_model(model):
    model.bert = copy.deepcopy(model.bert)
    up(model).weight.mul_(-1)


@change
def fewer_layers(model):
    del model.bert.layers[1]


@change
def another_order(model):
    model.bert.layers = nn.ModuleList(reversed(model.bert.layers))


@change
def another_order_of_names(model):
    attention = model.bert.layers[1].attention
    found = list(attention.named_children())
    for name, _ in found:
        delattr(attention, name)
    for new, (_, module) in zip(("output", "value", "key", "query"), found, strict=True):
        setattr(attention, new, module)


@change
def tied_layers(model):
    model.bert.layers[0] = model.bert.layers[1]


@change
def tied_weights(model):
    model.bert.layers[0].attention.query.weight = model.bert.layers[0].attention.key.weight
    model.bert.layers[0].attention.key.weight.mul_(9)


@change
def no_norm(model):
    model.bert.layers[1].attention_norm = nn.Identity()


@change
def tensor_for_a_parameter(model):
    weight = up(model).weight
    del up(model).weight
    up(model).weight = -weight


@change
def buffer_for_a_parameter(model):
    weight = up(model).weight
    del up(model).weight
    up(model).register_buffer("weight", -weight)


@change
def tensor_before_a_parameter(model):
    vars(up(model))["weight"] = -up(model).weight


@change
def pruned(model):
    prune.l1_unstructured(up(model), "weight", 0.7)


class Negated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -x


@change
def parametrized(model):
    parametrize.register_parametrization(up(model), "weight", Negated())


@change
def hook(model):
    up(model).register_forward_hook(negated_result)


@change
def hook_before(model):
    up(model).register_forward_pre_hook(negated_input)


def negated_result(module, given, result):
    return -result


def negated_input(module, given):
    return (-given[0],)


@change
def own_forward(model):
    up(model).forward = partial(negated_linear, up(model))


def negated_linear(module, x):
    return -nn.Linear.forward(module, x)


@change
def own_method(model):
    attention = model.bert.layers[1].attention
    attention.split = partial(heads_reversed, attention)


def heads_reversed(module, x):
    return type(module).split(module, x).flip(1)


@change
def another_class(model):
    up(model).__class__ = type("Other", (nn.Linear,), {"forward": lambda self, x: -nn.Linear.forward(self, x)})


@change
def epsilon(model):
    model.bert.layers[1].attention_norm.eps = 3.0


@change
def heads(model):
    model.bert.layers[1].attention.heads = 1


@change
def word_table(model):
    model.bert.embeddings.word.weight.data.mul_(-1)


@change
def position_table(model):
    model.bert.embeddings.position = nn.Embedding(*model.bert.embeddings.position.weight.shape)


@change
def norm_of_embeddings(model):
    model.bert.embeddings.norm.weight.data.mul_(-1)


UNCOPIED = {"shared_memory", "vector"}  # the weights then share memory, and are read in place for good


@pytest.fixture(params=["float32", "bfloat16", "without copies"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.dtype, bool]:
    """What ``encode`` computes in, and whether it copies the weights."""
    if request.param == "without copies":
        monkeypatch.setattr(kernels, "ONEDNN", False)
        monkeypatch.setattr(kernels, "COPY_ON_WRITE", False)
    return BFLOAT16 if request.param == "bfloat16" else FLOAT32, kernels.ONEDNN and kernels.COPY_ON_WRITE


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_shows_in_the_next_call(name, way, model):
    dtype, copied = way
    before = warm(model, dtype)
    assert copies(model) == ({dtype} if copied else set())
    CHANGES[name](model)
    expected = book(model)
    assert np.abs(before - expected).max() > 1.5 * BOUND[dtype], "the change must be large enough to be seen"
    if dtype == BFLOAT16 and not is_plain(model.bert):
        with pytest.raises(InputError, match="encoder's own modules"):
            model.encode(TEXTS, precision="bfloat16")
        return
    for _ in range(4):
        found = model.encode(TEXTS, precision=PRECISION[dtype])
        np.testing.assert_allclose(found, expected, atol=BOUND[dtype], rtol=0)
        model.engine._calls += 100  # by the weights themselves at first, then by a new copy
    assert copies(model) == ({dtype} if copied and is_plain(model.bert) and name not in UNCOPIED else set())


# ------------------------------------------------------------ weights that others may write unnoticed


SHARINGS: dict[str, Callable[[nn.Linear], tuple[object, Callable[[], object]]]] = {}


def sharing(function: Callable) -> Callable:
    """Add to ``SHARINGS``: what shares a module's weights, before they are copied, and how to change them by it."""
    SHARINGS[function.__name__] = torch.no_grad()(function)
    return function


def negate(array: np.ndarray | torch.Tensor) -> None:
    array[:] = -array


@sharing
def numpy_view(module):
    view = module.weight.detach().numpy()
    return view, lambda: negate(view)


@sharing
def numpy_owner(module):
    array = module.weight.detach().numpy().copy()
    module.weight.data = torch.from_numpy(array)
    return array, lambda: negate(array)


@sharing
def bytes_owner(module):
    memory = bytearray(module.weight.detach().numpy().tobytes())
    module.weight.data = torch.frombuffer(memory, dtype=FLOAT32).view_as(module.weight)
    return memory, lambda: negate(np.frombuffer(memory, dtype=np.float32))


@sharing
def tensor_view(module):
    view = module.weight.detach()[:, 1:]
    return view, lambda: negate(view)


@sharing
def tensor_of_dlpack(module):
    other = torch.from_dlpack(module.weight.detach())
    return other, lambda: negate(other)


@sharing
def parameter_of_another_model(module):
    other = nn.Linear(module.in_features, module.out_features)
    other.weight = nn.Parameter(module.weight.detach())
    return other, lambda: negate(other.weight.data)


@sharing
def shared_with_processes(module):
    module.weight.share_memory_()
    return None, lambda: negate(module.weight.data)


@sharing
def storage_object(module):
    storage, new = module.weight.untyped_storage(), (-module.weight).untyped_storage()
    return storage, lambda: storage.copy_(new)


@pytest.mark.parametrize("name", SHARINGS)
def test_weights_that_others_share_are_read_in_place(name, way, model):
    dtype, copied = way
    _held, write = SHARINGS[name](up(model))
    before = warm(model, dtype)
    assert copies(model) == set()
    if copied:
        with pytest.raises(InputError, match=r"memory of their own.*deepcopy"):
            model.prepare(PRECISION[dtype])
    with torch.no_grad():
        write()
    expected = book(model)
    assert np.abs(before - expected).max() > 3 * BOUND[dtype]
    for _ in range(3):
        np.testing.assert_allclose(model.encode(TEXTS, precision=PRECISION[dtype]), expected, atol=BOUND[dtype], rtol=0)
    other = copy.deepcopy(model)
    other.prepare(PRECISION[dtype])
    assert copies(other) == ({dtype} if copied else set())


def test_two_encoders_of_one_model(model):
    """A change that the one has noticed, and watches for the next one of, is new to the other."""
    other = SentenceEncoder(model.tokenizer, model.bert, model.pooling, model.normalize)
    for one in (model, other):
        warm(one)
    with torch.no_grad():
        up(model).weight.data.mul_(-1)  # not counted as a version
    for _ in range(30):
        other.encode(TEXTS)
    for one in (model, other, model):
        np.testing.assert_allclose(one.encode(TEXTS), book(model), atol=MINILM_VECTOR, rtol=0)


def test_a_hook_for_all_modules(way, model):
    dtype, _ = way
    warm(model, dtype)
    seen = set()
    handle = nn.modules.module.register_module_forward_hook(lambda module, given, result: seen.add(module))
    try:
        if dtype == FLOAT32:
            model.encode(TEXTS)
            assert set(model.bert.layers[1].attention.children()) < seen
        else:
            with pytest.raises(InputError, match="use float32"):
                model.encode(TEXTS, precision="bfloat16")
    finally:
        handle.remove()
    np.testing.assert_allclose(warm(model, dtype), book(model), atol=BOUND[dtype], rtol=0)


# ------------------------------------------------------------------------------ when copies are made


def test_copies_and_weights_give_the_same_vectors(way, model):
    dtype, copied = way
    first = model.encode(TEXTS, precision=PRECISION[dtype])
    assert copies(model) == set()
    second = model.encode(TEXTS, precision=PRECISION[dtype])
    assert copies(model) == ({dtype} if copied else set())
    for found in (first, second):
        np.testing.assert_allclose(found, book(model), atol=BOUND[dtype], rtol=0)


@needs_copies
def test_prepare_copies_at_once_and_once(model):
    for dtype in (FLOAT32, BFLOAT16, FLOAT32):
        model.prepare(PRECISION[dtype])
    assert copies(model) == {FLOAT32, BFLOAT16}
    kept = dict(model.engine._copies)
    for dtype in (BFLOAT16, FLOAT32):
        np.testing.assert_allclose(warm(model, dtype), book(model), atol=BOUND[dtype], rtol=0)
    assert all(model.engine._copies[dtype] is kept[dtype] for dtype in kept)


def test_prepare_without_anything_to_gain(model, monkeypatch):
    double = copy.deepcopy(model).double()
    double.prepare()
    assert copies(double) == set()
    for switch in ("ONEDNN", "COPY_ON_WRITE"):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, switch, False)
            model.prepare()
            assert copies(model) == set()


@needs_copies
def test_many_tokens_in_float32_need_no_copy(model, monkeypatch):
    monkeypatch.setattr(engine, "FEW", 12)
    warm(model)
    assert copies(model) == set()  # 19 tokens
    warm(model, BFLOAT16)
    assert copies(model) == {BFLOAT16}
    other = copy.deepcopy(model)
    for _ in range(2):
        other.encode(TEXTS[:1])
    assert copies(other) == {FLOAT32}


@pytest.mark.parametrize("dtype", PRECISION)
def test_what_is_trained_is_not_copied(dtype, model):
    model.train()
    warm(model, dtype)
    assert copies(model) == set()
    model.eval()
    up(model).weight.grad = torch.zeros_like(up(model).weight)
    warm(model, dtype)
    assert copies(model) == set()


@needs_copies
def test_weights_that_change_often_are_copied_less_often(model):
    made = []
    for _ in range(40):
        with torch.no_grad():
            up(model).bias.add_(0.1)
        model.encode(TEXTS)
        model.encode(TEXTS)
        made.append(bool(copies(model)))
    assert [i for i, copied in enumerate(made) if copied] == [0, 6]  # after 1 call, 10, 100
    model.engine._calls = 1000
    warm(model)
    assert copies(model)
    model.engine._calls = 10_000  # a long rest: one change is no reason to wait
    up(model).bias.data.add_(0.1)
    warm(model)
    assert copies(model)


@needs_copies
def test_reading_is_no_change(model):
    """Saving, copying, gradients and the book's forward in any mode."""
    warm(model)
    kept = model.engine._copies[FLOAT32]
    expected = book(model)
    ids = torch.tensor([model.tokenizer.encode(TEXTS[:1]).ids[0]])
    for requires in (False, True):
        model.requires_grad_(requires)
        for mode in (True, False):
            model.train(mode)
            model(ids, precision=BFLOAT16), model(ids)
    model(ids).sum().backward()
    [parameter.norm() for parameter in model.parameters()]
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=MINILM_VECTOR, rtol=0)
    assert model.engine._copies[FLOAT32] is kept


@needs_copies
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_an_encoder_has_weights_of_its_own(duplicate, model):
    before = warm(model)
    other = duplicate(model)
    assert type(other.engine) is Engine
    assert copies(other) == set()
    assert len(pickle.dumps(other.engine)) < 100
    with torch.no_grad():
        up(other).weight.mul_(-1)
    np.testing.assert_allclose(warm(other), book(other), atol=MINILM_VECTOR, rtol=0)
    np.testing.assert_allclose(warm(model), before, atol=MINILM_VECTOR, rtol=0)
    assert copies(other) == {FLOAT32}


@needs_copies
def test_a_stream_copies_once(model, monkeypatch):
    made, made_before = [], FusedBert.__init__
    monkeypatch.setattr(FusedBert, "__init__", lambda self, *given, **named: (
        made_before(self, *given, **named), made.append(self.copied))[0])  # fmt: skip
    texts = [f"{word} " * 20 for word in ("cat", "dog", "moon", "horse")] * 20
    monkeypatch.setattr("minisbert.models.sentence_encoder.chunks", lambda found: batched(found, 8))
    assert len(list(model.encode_stream(texts, precision="bfloat16"))) == 10
    assert made == [False, True, True]  # the weights themselves; for the first call alone; for all others


def batched(texts, size: int) -> Iterator[list[str]]:
    texts = list(texts)
    return (texts[start : start + size] for start in range(0, len(texts), size))


def test_weights_made_in_inference_mode(model):
    with torch.inference_mode():
        other = SentenceEncoder.load(ROOT / "weights" / "tiny")
        warm(other)
        model.prepare()
        warm(model)
        up(model).weight.mul_(-1)
        up(other).weight.mul_(-1)
    assert copies(other) == set()
    for one in (model, other):
        np.testing.assert_allclose(one.encode(TEXTS), book(model), atol=MINILM_VECTOR, rtol=0)


# ---------------------------------------------------------------------------- what cannot be prepared


@pytest.mark.parametrize(
    "name", ["hook", "hook_before", "own_forward", "parametrized", "pruned", "no_norm", "buffer_for_a_parameter"]
)
def test_prepare_is_refused_for_other_modules(name, model):
    CHANGES[name](model)
    with pytest.raises(InputError, match="prepare needs the encoder's own modules; this one has others or hooks"):
        model.prepare()


# ------------------------------------------------------------------------------------------- threads


def test_threads_share_a_copy(way, model):
    dtype, copied = way
    expected = book(model)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: warm(model, dtype, 5), range(8)):
            np.testing.assert_allclose(found, expected, atol=BOUND[dtype], rtol=0)
    assert copies(model) <= {dtype}
    warm(model, dtype)
    assert copies(model) == ({dtype} if copied else set())


@needs_copies
def test_prepare_while_another_thread_encodes(model, monkeypatch):
    inside, leave = threading.Event(), threading.Event()
    forward = FusedBert.__call__

    def slow(self: FusedBert, *given: object) -> list[torch.Tensor]:
        inside.set()
        leave.wait(30)
        return forward(self, *given)

    monkeypatch.setattr(FusedBert, "__call__", slow)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(model.encode, TEXTS)
        assert inside.wait(30)
        with pytest.raises(InputError, match="no other thread"):
            model.prepare()
        SentenceEncoder.load(ROOT / "weights" / "tiny").prepare()  # another model is free
        leave.set()
        running.result()
    model.prepare()
    assert copies(model) == {FLOAT32}


def test_new_weights_while_threads_encode(model):
    """A service that loads other weights now and then: each call has the old vectors, the new, or some of both."""
    states = [{name: sign * x for name, x in model.state_dict().items()} for sign in (1, -1)]
    stop = threading.Event()

    def serve() -> int:
        calls = 0
        while not stop.is_set():
            assert np.isfinite(model.encode(TEXTS)).all()
            calls += 1
        return calls

    with ThreadPoolExecutor(3) as pool:
        serving = [pool.submit(serve) for _ in range(3)]
        for i in range(8):
            model.load_state_dict(states[i % 2])
            np.testing.assert_allclose(model.encode(TEXTS), book(model), atol=MINILM_VECTOR, rtol=0)
        stop.set()
        assert all(served.result() for served in serving)
