"""The encoder in fused operations is the master's equal, and steps aside where it is not."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from minisbert.core import InputError
from minisbert.core.bert import Bert, BertConfig
from minisbert.fast import fused, kernels
from minisbert.fast.fused import FusedBert, evaluating, is_plain
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, REFERENCE

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "the horse runs fast over snow"]
FOLDERS = {"bert": ROOT / "weights" / "tiny", "distilbert": REFERENCE / "tiny-distiluse"}
FOLDERS["roberta"] = REFERENCE / "tiny-roberta"


def groups_of(config: BertConfig, *shapes: tuple[int, int]) -> list[torch.Tensor]:
    """Random ids of each shape (texts, tokens)."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(config.vocab_size, shape, generator=generator) for shape in shapes]


def compared(bert: Bert, fast: FusedBert, groups: list[torch.Tensor]) -> float:
    """The largest difference from the master, which takes the groups one by one."""
    with torch.inference_mode():
        return max((a - bert(ids)).abs().max().item() for a, ids in zip(fast(groups), groups, strict=True))


def random_bert(tokens: int, **settings: object) -> Bert:
    """Every parameter random, in float64."""
    torch.manual_seed(0)
    bert = Bert(BertConfig(17, 24, 3, 4, 40, tokens, **settings)).double().eval()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return bert


# ----------------------------------------------------------------------- equal to the master


@pytest.mark.parametrize("family", FOLDERS)
def test_hidden_states_of_every_family_in_float64(family):
    bert = SentenceEncoder.load(FOLDERS[family]).double().bert
    groups = groups_of(bert.config, (3, 7), (1, 5), (4, 2), (1, 1))
    ours: dict[str, list[torch.Tensor]] = {}
    with torch.inference_mode():
        found = FusedBert(bert, torch.float64)(groups, ours)
        for i, ids in enumerate(groups):
            theirs: dict[str, torch.Tensor] = {}
            torch.testing.assert_close(found[i], bert(ids, trace=theirs), atol=1e-10, rtol=0)
            assert list(ours) == [f"layers.{layer}" for layer in range(bert.config.num_hidden_layers)]
            for name, states in ours.items():
                torch.testing.assert_close(states[i], theirs[name], atol=1e-10, rtol=0)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("tokens", [1, 2, fused.LONG, fused.LONG + 1, fused.LONG + 40])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_short_and_long_texts_go_their_ways_to_the_same_numbers(tokens, dtype, bound):
    bert = random_bert(tokens, layer_norm_eps=1e-3).to(dtype)
    assert compared(bert, FusedBert(bert, dtype), groups_of(bert.config, (3, tokens), (2, 1))) <= bound


@pytest.mark.parametrize("texts", [1, 8, 9, 63, 64, 65, 130])
def test_rows_that_fill_up_a_batch_leave_no_trace(texts):
    """The number of tokens is rounded up: by nothing, by a few, by many."""
    bert = random_bert(1)
    assert compared(bert, FusedBert(bert, torch.float64), groups_of(bert.config, (texts, 1))) <= 1e-10


@pytest.mark.usefixtures("onednn")
def test_what_training_changes_is_seen_at_once():
    """Nothing of the weights is kept: not after a step of an optimizer, not after a change behind autograd's back."""
    bert = random_bert(9).float()
    (ids,) = groups_of(bert.config, (3, 9))
    fast = FusedBert(bert, torch.float32)
    before = fast([ids])[0].detach().clone()
    bert.layers[1].feed_forward.up.weight.data.add_(0.1)  # no version counter notices .data
    assert compared(bert, fast, [ids]) <= 2e-5
    assert (fast([ids])[0] - before).abs().max() > 1e-3


@pytest.mark.usefixtures("onednn")
def test_bfloat16_is_near_and_leaves_the_weights_alone():
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    weights = [parameter.clone() for parameter in bert.parameters()]
    (ids,) = groups_of(bert.config, (4, 7))
    with torch.inference_mode():
        found, expected = FusedBert(bert, torch.bfloat16)([ids])[0], bert(ids)
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().mean() < 0.02  # bfloat16 rounds to about 0.004 of a number near 1
    assert all(torch.equal(a, b) for a, b in zip(bert.parameters(), weights, strict=True))


@pytest.mark.parametrize("texts", [1, 2, 9])
@pytest.mark.parametrize("tokens", [5, fused.LONG, fused.LONG + 1, fused.LONG + 2 * fused.TILE])
def test_attention_of_bfloat16(texts, tokens):
    """Of sentences it is float32; of long texts it is as near as bfloat16 can be, and their pads take no part."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, texts, 3, tokens, 8).bfloat16()
    found = fused.attention(query, key, value)
    assert found.dtype == (torch.float32 if tokens <= fused.LONG else torch.bfloat16)
    scores = query.double() @ key.double().mT / 8**0.5
    expected = scores.softmax(-1) @ value.double()
    error = (found.double() - expected).abs()
    # bfloat16 rounds by up to 1/256: scores of about 4 and the values' weights and sums, at values of up to about 4
    assert error.max() <= (1e-5 if found.dtype == torch.float32 else 0.03)
    assert error.mean() <= 0.01 * expected.abs().mean()  # pads that took part would make it a fifth


def test_attention_of_bfloat16_meets_few_shapes(monkeypatch):
    """oneDNN keeps a program for every length of a product in bfloat16."""
    met = set()
    attend, by_columns = fused.scaled_dot_product_attention, fused.by_columns

    def noted(query, *others, function=attend, **options):
        if query.dtype == torch.bfloat16:
            met.add(query.shape[-2:])
        return function(query, *others, **options)

    monkeypatch.setattr(fused, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(fused, "by_columns", partial(noted, function=by_columns))
    for texts in (1, 3):
        for tokens in range(1, fused.LONG + 2 * fused.TILE + 1):
            fused.attention(*torch.randn(3, texts, 1, tokens, 4).bfloat16())
    assert met == {(fused.LONG + fused.TILE, 4), (fused.LONG + 2 * fused.TILE, 4)}


@pytest.mark.parametrize("bad", [[[-1, 2]], [[2, 10_000]], [list(range(2, 40))]])
def test_ids_are_checked_as_the_master_checks_them(bad):
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    with pytest.raises(ValueError, match=r"vocabulary|position table"):
        FusedBert(bert, torch.float32)([torch.tensor([[2, 3]]), torch.tensor(bad)])


@pytest.mark.usefixtures("onednn")
def test_a_linear_layer_with_and_without_onednn():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((3, 5, 8), (7, 8), (7,)))
    expected = x.double() @ weight.double().T + bias.double()
    for with_gelu in (False, True):
        found = kernels.linear(x, weight, bias, with_gelu).double()
        torch.testing.assert_close(found, expected, atol=3e-6, rtol=0)
        expected = expected * 0.5 * torch.erfc(-expected / 2**0.5)


@pytest.mark.weights
def test_real_hidden_states(minilm):
    bert = SentenceEncoder.load(minilm).bert
    groups = groups_of(bert.config, (3, 128), (2, 40), (7, 12))
    assert compared(bert, FusedBert(bert, torch.float32), groups) <= MINILM_HIDDEN


# -------------------------------------------------------------------------- modules that it cannot read


def test_it_serves_every_family():
    for folder in FOLDERS.values():
        assert is_plain(SentenceEncoder.load(folder).bert)


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_an_exchanged_module_is_computed():
    model = SentenceEncoder.load(FOLDERS["bert"])
    before = model.encode(TEXTS)
    old = model.bert.layers[0].feed_forward.up
    new = Doubled(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.bert.layers[0].feed_forward.up = new
    assert not is_plain(model.bert)
    assert abs(model.encode(TEXTS) - before).max() > 1e-4


def test_hooks_are_called():
    model = SentenceEncoder.load(FOLDERS["bert"])
    seen = []
    handle = model.bert.layers[1].register_forward_hook(lambda _module, _given, result: seen.append(result))
    model.encode(TEXTS)
    assert seen
    handle.remove()
    assert is_plain(model.bert)


def test_bfloat16_of_a_changed_encoder_is_refused(monkeypatch):
    monkeypatch.setattr("minisbert.models.sentence_encoder.choose_precision", lambda *_: (torch.bfloat16, ""))
    model = SentenceEncoder.load(FOLDERS["bert"])
    model.bert.layers[0].attention_dropout = torch.nn.AlphaDropout()
    with pytest.raises(InputError, match="bfloat16 needs the encoder's own modules"):
        model.encode(TEXTS, precision="bfloat16")


# ------------------------------------------------------------------------------------ modes and threads


@pytest.mark.usefixtures("onednn")
def test_the_mode_of_an_encoder_in_training_is_not_touched(monkeypatch):
    """Another thread may train it: without dropout, the fused encoder computes the same in any mode."""
    model = SentenceEncoder.load(FOLDERS["bert"])
    expected = model.encode(TEXTS)
    model.train()
    modes, call = set(), FusedBert.__call__
    monkeypatch.setattr(
        FusedBert,
        "__call__",
        lambda fast, *given: modes.update(m.training for m in fast.model.modules()) or call(fast, *given),
    )
    assert (model.encode(TEXTS) == expected).all()
    assert modes == {True}
    assert all(module.training for module in model.modules())


def test_threads_that_evaluate_one_model_in_training():
    """With a hook, so that the book's modules compute, which have dropout in train mode; all threads at once."""
    model = SentenceEncoder.load(FOLDERS["bert"])
    together = threading.Barrier(4)

    def wait(*_: object) -> None:
        together.wait(30)

    handle = model.bert.layers[0].register_forward_hook(wait)
    with ThreadPoolExecutor(4) as pool:
        expected, *_ = pool.map(model.encode, [TEXTS[:1]] * 4)
        model.train()
        model.bert.embeddings.eval()  # a caller's own choice
        modes = [module.training for module in model.modules()]
        for found in pool.map(model.encode, [TEXTS[:1]] * 12):
            assert (found == expected).all()
    handle.remove()
    assert [module.training for module in model.modules()] == modes


def test_a_module_gets_its_mode_back_from_the_last_of_its_callers():
    module, inside, leave = torch.nn.Dropout(), threading.Event(), threading.Event()

    def hold() -> None:
        with evaluating(module):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(30)
    with evaluating(module):
        assert not module.training
    assert not module.training  # the thread is still inside
    leave.set()
    thread.join()
    assert module.training
