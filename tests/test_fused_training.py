"""The encoder of training steps is the master's equal: values, gradients, dropout masks; elsewhere it is the master."""

import pytest
import torch

from minisbert.core.bert import Bert
from minisbert.fast import fused_training
from minisbert.fast.fused_training import fused_forward, hidden_states
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.test_fused import FOLDERS, random_bert


def a_batch(bert: Bert) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """ids, mask and token types of three texts with 7, 4 and 1 tokens."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(bert.config.vocab_size, (3, 7), generator=generator)
    mask = torch.arange(7) < torch.tensor([[7], [4], [1]])
    types = bert.config.type_vocab_size
    return ids, mask, torch.randint(types, (3, 7), generator=generator) if types > 1 else None


def states_and_gradients(bert: Bert, forward, *inputs: object) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Hidden states of the real tokens, and the gradients of a loss that every one of their numbers reaches."""
    torch.manual_seed(5)  # of the dropout masks
    bert.zero_grad()
    hidden = forward(*inputs)
    hidden = hidden[inputs[1].bool()] if inputs[1] is not None else hidden.flatten(0, 1)
    (hidden * torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype).view_as(hidden)).sum().backward()
    return hidden.detach(), {name: p.grad.clone() for name, p in bert.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("training", [True, False], ids=["with dropout", "without"])
@pytest.mark.parametrize("masked", [True, False], ids=["pads", "no pads"])
@pytest.mark.parametrize("family", FOLDERS)
def test_values_and_gradients_of_every_family_in_float64(family, masked, training):
    bert = SentenceEncoder.load(FOLDERS[family]).double().bert.train(training)
    ids, mask, types = a_batch(bert)
    inputs = (ids, mask if masked else None, types)
    values, gradients = states_and_gradients(bert, lambda *given: hidden_states(bert, *given), *inputs)
    theirs, expected = states_and_gradients(bert, bert, *inputs)
    torch.testing.assert_close(values, theirs, atol=1e-10, rtol=0)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-9, rtol=0, msg=name)


@pytest.mark.parametrize("long", [64, 4], ids=["short texts", "long texts"])
def test_bfloat16_is_as_near_to_float32_as_autocast_is(long, monkeypatch):
    monkeypatch.setattr(fused_training, "LONG", long)
    bert = random_bert(9).float().train(False)
    for layer in bert.layers:  # sizes as in trained weights, so that rounding is not blown up
        for parameter in layer.parameters():
            parameter.data.mul_(0.2)
    ids, mask, _ = a_batch(bert)

    def by_autocast(*inputs: object) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return bert(*inputs).float()

    exact = states_and_gradients(bert, bert, ids, mask)
    sides = [lambda *inputs: hidden_states(bert, *inputs, precision=torch.bfloat16), by_autocast]
    ours, peers = (states_and_gradients(bert, side, ids, mask) for side in sides)
    assert 0 < (ours[0] - exact[0]).abs().max() < 2 * (peers[0] - exact[0]).abs().max()
    for name, gradient in exact[1].items():
        error = [torch.linalg.vector_norm(found[1][name] - gradient) for found in (ours, peers)]
        assert error[0] <= 2 * error[1] + 1e-3 * torch.linalg.vector_norm(gradient), name
    assert ours[0].dtype == torch.float32


def test_frozen_layers_get_no_gradients():
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    bert.embeddings.requires_grad_(False)
    bert.layers[0].requires_grad_(False)
    ids, mask, types = a_batch(bert)
    _, gradients = states_and_gradients(bert, lambda *given: hidden_states(bert, *given), ids, mask, types)
    assert not [name for name in gradients if name.startswith(("embeddings", "layers.0"))]
    assert "layers.1.attention.query.weight" in gradients


@pytest.mark.parametrize("change", ["a hook", "another module", "a trace"])
def test_where_somebody_looks_in_it_is_the_masters_own_forward(change, monkeypatch):
    monkeypatch.setattr(fused_training, "fused_forward", lambda *_: pytest.fail("the fused forward ran"))
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    ids, mask, types = a_batch(bert)
    seen, trace = [], {} if change == "a trace" else None
    if change == "a hook":
        bert.layers[1].attention.register_forward_hook(lambda *_: seen.append("called"))
    if change == "another module":
        bert.layers[1].feed_forward.up = torch.nn.Sequential(bert.layers[1].feed_forward.up)
    found = hidden_states(bert, ids, mask, types, trace=trace)
    torch.testing.assert_close(found, bert(ids, mask, types), atol=0, rtol=0)
    assert bool(seen) == (change == "a hook")
    assert trace is None or "layers.0" in trace


def test_it_refuses_what_the_master_refuses():
    bert = SentenceEncoder.load(FOLDERS["bert"]).bert
    for ids, mask in ((torch.tensor([[10**6]]), None), (torch.ones(2, 3, dtype=torch.long), torch.zeros(2, 3).bool())):
        with pytest.raises(ValueError, match=r"vocabulary|no real token"):
            fused_forward(bert, ids, mask, None, torch.float32)


def test_in_bfloat16_the_number_of_rows_is_rounded_up(monkeypatch):
    """Three texts of 5 to 8 tokens are all 16 or 24 rows."""
    bert, rows = random_bert(9).float(), []

    def watched(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return torch.nn.functional.linear(x, *parameters)

    monkeypatch.setattr(fused_training, "linear", watched)
    for tokens in range(5, 9):
        ids = torch.ones(3, tokens, dtype=torch.long)
        fused_forward(bert, ids, None, None, torch.bfloat16)
    assert {*rows} == {16, 24}
