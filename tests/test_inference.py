"""The encoder in fused operations is the master's equal, and steps aside where it is not; batches of one length."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisbert import bert as master
from minisbert import inference
from minisbert.bert import Bert, BertConfig
from minisbert.console import InputError
from minisbert.encoder import SentenceEncoder
from minisbert.inference import FastBert, budgeted_batches, chunks, same_as_master
from minisbert.mistakes import MISTAKES
from minisbert.planting import planted
from tests.conftest import ROOT
from tests.parity import MINILM_HIDDEN, REFERENCE

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "the horse runs fast over snow"]
FOLDERS = {"bert": ROOT / "weights" / "tiny", "distilbert": REFERENCE / "tiny-distiluse"}
FOLDERS["roberta"] = REFERENCE / "tiny-roberta"


def ragged(config: BertConfig, tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids (4, T) and a mask: one row full, one of two tokens."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (4, tokens), generator=generator)
    return ids, torch.arange(tokens) < torch.tensor([[tokens - 1], [tokens], [2], [3]])


def random_bert(tokens: int, **settings: object) -> Bert:
    """Every parameter random, in float64."""
    torch.manual_seed(0)
    bert = Bert(BertConfig(17, 24, 3, 4, 40, tokens, **settings)).double().eval()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return bert


# ----------------------------------------------------------------------- equal to the master


@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize("with_mask", [False, True])
def test_hidden_states_of_every_family_in_float64(family, with_mask):
    bert = SentenceEncoder.load(FOLDERS[family]).double().bert
    ids, mask = ragged(bert.config, 7)
    theirs: dict[str, torch.Tensor] = {}
    ours: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        expected = bert(ids, mask if with_mask else None, trace=theirs)
        found = FastBert(bert, torch.float64)(ids, mask if with_mask else None, ours)
    real = mask if with_mask else torch.ones_like(mask)
    torch.testing.assert_close(found[real], expected[real], atol=1e-10, rtol=0)
    layers = [f"layers.{i}" for i in range(bert.config.num_hidden_layers)]
    assert list(ours) == layers
    for name in layers:
        torch.testing.assert_close(ours[name][real], theirs[name][real], atol=1e-10, rtol=0)


@pytest.mark.parametrize("tokens", [1, 2, inference.LONG, inference.LONG + 1, inference.LONG + 40])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
def test_short_and_long_texts_go_their_ways_to_the_same_numbers(tokens, dtype, bound):
    bert = random_bert(tokens, layer_norm_eps=1e-3).to(dtype)
    ids, mask = ragged(bert.config, tokens)
    mask[:, 0] = True
    with torch.inference_mode():
        difference = FastBert(bert, dtype)(ids, mask)[mask] - bert(ids, mask)[mask]
    assert difference.abs().max() <= bound


def test_what_training_changes_is_seen_at_once():
    """Nothing of the weights is kept: not after a step of an optimizer, not after a change behind autograd's back."""
    bert = random_bert(9).float()
    ids, _ = ragged(bert.config, 9)
    fast = FastBert(bert, torch.float32)
    before = fast(ids).detach().clone()
    bert.layers[1].feed_forward.up.weight.data.add_(0.1)  # no version counter notices .data
    with torch.inference_mode():
        after = fast(ids)
        torch.testing.assert_close(after, bert(ids), atol=2e-5, rtol=0)
    assert (after - before).abs().max() > 1e-3


def test_bfloat16_is_near_and_leaves_the_weights_alone():
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    weights = [parameter.clone() for parameter in bert.parameters()]
    ids, mask = ragged(bert.config, 7)
    with torch.inference_mode():
        found, expected = FastBert(bert, torch.bfloat16)(ids, mask)[mask], bert(ids, mask)[mask]
    assert found.dtype == torch.float32
    assert 0 < (found - expected).abs().mean() < 0.02  # bfloat16 rounds to about 0.004 of a number near 1
    assert all(torch.equal(a, b) for a, b in zip(bert.parameters(), weights, strict=True))


@pytest.mark.parametrize("bad", [[[-1, 2]], [[2, 10_000]], [list(range(2, 40))]])
def test_ids_are_checked_as_the_master_checks_them(bad):
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    with pytest.raises(ValueError, match=r"vocabulary|position table"):
        FastBert(bert, torch.float32)(torch.tensor(bad))


@pytest.mark.parametrize("onednn", [True, False])
def test_without_onednn_the_numbers_are_the_same(monkeypatch, onednn):
    monkeypatch.setattr(inference, "ONEDNN", onednn and inference.ONEDNN)
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((3, 5, 8), (7, 8), (7,)))
    expected = x.double() @ weight.double().T + bias.double()
    for with_gelu in (False, True):
        found = inference.linear(x, weight, bias, with_gelu).double()
        torch.testing.assert_close(found, expected, atol=3e-6, rtol=0)
        expected = expected * 0.5 * torch.erfc(-expected / 2**0.5)


@pytest.mark.weights
def test_real_hidden_states(minilm):
    bert = SentenceEncoder.load(minilm).bert
    ids, mask = ragged(bert.config, 128)
    with torch.inference_mode():
        difference = FastBert(bert, torch.float32)(ids, mask)[mask] - bert(ids, mask)[mask]
    assert difference.abs().max() <= MINILM_HIDDEN


# --------------------------------------------------------------------- it steps aside where it must


def test_it_stands_in_for_the_encoder_as_it_is():
    for folder in FOLDERS.values():
        assert same_as_master(SentenceEncoder.load(folder).bert)


FORWARD = [
    name
    for name, chosen in MISTAKES.items()
    if (chosen.owner is master or getattr(chosen.owner, "__module__", "") == master.__name__)
    and name != "dropout alive in eval"  # no two of its results are alike
]


@pytest.mark.parametrize("name", FORWARD)
def test_a_mistake_in_the_encoder_is_seen_in_the_vectors(name):
    """Planted in the running package, it changes ``encode`` exactly as it changes ``forward``."""
    model = SentenceEncoder.load(FOLDERS["bert"])
    with planted(MISTAKES[name]):
        vectors = model.encode(TEXTS, batch_tokens=10_000)
        for text, vector in zip(TEXTS, vectors, strict=True):
            alone = model.encode([text])[0]
            with torch.inference_mode():
                expected = model(torch.tensor(model.tokenizer.encode([text]).ids))[0].numpy()
            np.testing.assert_allclose(alone, expected, atol=1e-6, rtol=0)
            assert np.isfinite(vector).all()
    assert same_as_master(model.bert), "and it is back when the mistake is gone"


def test_a_formula_written_anew_is_seen(monkeypatch):
    model = SentenceEncoder.load(FOLDERS["bert"])
    before = model.encode(TEXTS)
    monkeypatch.setattr(master, "gelu", torch.relu)
    assert abs(model.encode(TEXTS) - before).max() > 1e-4
    monkeypatch.setattr(master, "gelu", lambda x: x * torch.special.ndtr(x))  # the same in other words
    assert same_as_master(model.bert)
    np.testing.assert_allclose(model.encode(TEXTS), before, atol=1e-6, rtol=0)


def test_a_piece_that_knows_only_the_real_sizes_is_used_as_it_is(monkeypatch):
    """What cannot be compared on the tiny encoder is not stood in for."""
    model = SentenceEncoder.load(FOLDERS["bert"])
    width, original = model.bert.config.intermediate_size, master.gelu
    monkeypatch.setattr(master, "gelu", lambda x: 2 * original(x.view(-1, width)).view(x.shape))
    assert not same_as_master(model.bert)
    assert np.isfinite(model.encode(TEXTS)).all()


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_an_exchanged_module_is_seen():
    model = SentenceEncoder.load(FOLDERS["bert"])
    before = model.encode(TEXTS)
    old = model.bert.layers[0].feed_forward.up
    new = Doubled(old.in_features, old.out_features)
    new.load_state_dict(old.state_dict())
    model.bert.layers[0].feed_forward.up = new
    assert abs(model.encode(TEXTS) - before).max() > 1e-4


def test_hooks_are_called():
    model = SentenceEncoder.load(FOLDERS["bert"])
    seen = []
    handle = model.bert.layers[1].register_forward_hook(lambda _module, _given, result: seen.append(result))
    model.encode(TEXTS)
    assert seen
    handle.remove()
    assert same_as_master(model.bert)


def test_bfloat16_of_a_changed_encoder_is_refused(monkeypatch):
    monkeypatch.setattr("minisbert.encoder.choose_precision", lambda *_: (torch.bfloat16, ""))
    model = SentenceEncoder.load(FOLDERS["bert"])
    monkeypatch.setattr(master, "gelu", torch.relu)
    with pytest.raises(InputError, match="bfloat16 needs the encoder as"):
        model.encode(TEXTS, precision="bfloat16")


def test_the_question_costs_the_caller_no_random_numbers():
    inference._same_numbers.cache_clear()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert same_as_master(SentenceEncoder.load(FOLDERS["bert"]).bert)
    assert torch.equal(torch.rand(4), expected)


# ------------------------------------------------------------------------------------------ batches

LENGTHS = st.lists(st.integers(2, 50), max_size=40)


@given(LENGTHS, st.integers(1, 300))
def test_every_row_stands_in_one_batch(lengths, batch_tokens):
    batches = budgeted_batches(lengths, batch_tokens)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert all(batches)


@given(LENGTHS, st.integers(1, 300))
def test_batches_keep_their_budget(lengths, batch_tokens):
    """With every row padded to the longest; only a single row that is larger by itself may exceed it."""
    for rows in budgeted_batches(lengths, batch_tokens):
        padded = len(rows) * max(lengths[row] for row in rows)
        assert padded <= batch_tokens or len(rows) == 1


@given(LENGTHS, st.integers(1, 300))
def test_batches_come_longest_first_and_end_for_a_reason(lengths, batch_tokens):
    """The largest comes first, so that memory runs out at once or never. A batch ends where it is full, or where
    another length begins and it is an eighth full at least."""
    batches = budgeted_batches(lengths, batch_tokens)
    in_order = [lengths[row] for rows in batches for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    for rows, following in itertools.pairwise(batches):
        longest = lengths[rows[0]]
        full = (len(rows) + 1) * longest > batch_tokens
        another = lengths[following[0]] < longest and len(rows) * longest * 8 >= batch_tokens
        assert full or another


def test_batches_by_hand():
    assert budgeted_batches([3, 9, 4, 4, 2], 8) == [[1], [2, 3], [0], [4]]
    assert budgeted_batches([5, 3, 5, 4], 80) == [[0, 2], [3, 1]]  # 10 of 80 tokens are enough for a batch
    assert budgeted_batches([5, 3, 5, 4], 81) == [[0, 2, 3], [1]]  # 10 of 81 are not, 15 are
    assert budgeted_batches([], 8) == []


@given(st.lists(st.text(max_size=20)), st.integers(1, 50))
def test_chunks_hold_all_texts_in_order_and_not_many_characters(texts, characters):
    found = list(chunks(iter(texts), characters))
    assert [text for chunk in found for text in chunk] == texts
    for chunk in found:
        assert sum(len(text) + 1 for text in chunk[:-1]) < characters
    for chunk in found[:-1]:
        assert sum(len(text) + 1 for text in chunk) >= characters


def test_chunks_are_made_one_at_a_time():
    """Of a stream without end, the first chunk needs no more than its own texts."""

    def endless():
        for i in range(1000):
            assert i < 3, "read on beyond the chunk"
            yield "ten letter"

    assert next(chunks(endless(), 33)) == ["ten letter"] * 3


def test_tokens_are_kept_small_and_whole():
    tokenizer = SentenceEncoder.load(Path(FOLDERS["bert"])).tokenizer
    keys, truncated = inference.tokenize(tokenizer, [*TEXTS, "cat " * 15])
    assert truncated == 1
    assert [list(memoryview(key).cast("i")) for key in keys] == tokenizer.encode([*TEXTS, "cat " * 15]).ids
