"""The encoder's properties and its bad input; its numbers are in ``test_parity.py``."""

import dataclasses

import pytest
import torch

from minisbert.core import bert
from minisbert.core.bert import Attention, Bert, BertConfig

# vocabulary 37, width 15, layers 2, heads 3, feed-forward 22, positions 12
CONFIG = BertConfig(37, 15, 2, 3, 22, 12)


@pytest.fixture
def model() -> Bert:
    """Random in every parameter, float64, in eval mode."""
    torch.manual_seed(0)
    bert = Bert(CONFIG).double().eval()
    for parameter in bert.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return bert


def batch(lengths=(9, 2, 5, 7)):
    torch.manual_seed(1)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(1, CONFIG.vocab_size, mask.shape) * mask, mask


def test_without_a_mask_every_token_is_real(model):
    """And a mask of integers is the same as a boolean one."""
    ids, mask = batch()
    assert torch.equal(model(ids, torch.ones_like(mask)), model(ids))
    assert torch.equal(model(ids, mask.long()), model(ids, mask))


def test_without_token_types_all_are_of_the_first_sentence(model):
    """Type 0 is added, not nothing."""
    ids, mask = batch()
    states = model(ids, mask)
    assert torch.equal(model(ids, mask, torch.zeros_like(ids)), states)
    assert not torch.allclose(model(ids, mask, torch.ones_like(ids)), states)


def test_positions_are_made_where_the_ids_are(model):
    """The default device may be another one, as when the model is on a GPU."""
    ids, mask = batch()
    states = model(ids, mask)
    with torch.device("meta"):
        elsewhere = model(ids, mask)
    assert torch.equal(elsewhere, states)


def test_hidden_states_are_those_of_the_embeddings_and_of_every_layer(model):
    """L + 1 of them, and the last is what the model returns."""
    ids, mask = batch()
    every = model.hidden_states(ids, mask)
    assert [tuple(state.shape) for state in every] == [(4, 9, 15)] * 3
    assert torch.equal(every[-1], model(ids, mask))


def test_attention_alone_drops_nothing_unless_told_to():
    """The cross-attention of lesson 15 is made without a rate."""
    x, mask = torch.randn(2, 5, 6), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    layer = Attention(6, 2).train()
    assert torch.equal(layer(x, mask)[0], layer.eval()(x, mask)[0])
    dropping = Attention(6, 2, dropout=0.5).train()
    assert not torch.equal(dropping(x, mask)[0], dropping.eval()(x, mask)[0])


def test_nothing_but_dropout_depends_on_the_mode(model):
    """A model without dropout computes the same in training."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    still = Bert(config).double()
    still.load_state_dict(model.state_dict())
    ids, mask = batch()
    assert torch.equal(still.train()(ids, mask), model(ids, mask))


@pytest.mark.exact(
    "counts calls, and the mode calls the function in place of dropout a second time"
)
def test_dropout_stands_where_bert_has_it(model):
    """Embeddings, attention probabilities, and both blocks of each layer, at their rates."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5)
    model = Bert(config)
    calls = []
    real = torch.nn.functional.dropout

    def counting(x, rate, *arguments, **options):
        calls.append((*x.shape, rate))
        return real(x, rate, *arguments, **options)

    ids, mask = batch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", counting)
        model.train()(ids, mask)
    wide, heads = (4, 9, 15, 0.25), (4, 3, 9, 9, 0.5)
    assert calls == [wide] + [heads, wide, wide] * 2


def test_a_fresh_model_starts_small():
    """With weights of BERT's standard deviation and biases of 0."""
    torch.manual_seed(0)
    fresh = Bert(dataclasses.replace(CONFIG, hidden_size=60, intermediate_size=80))
    assert fresh.layers[0].feed_forward.up.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not fresh.layers[0].feed_forward.up.bias.any()


def test_the_config_says_how_large_new_weights_are():
    """Of embeddings, layers and pooler alike."""
    torch.manual_seed(0)
    wider = Bert(dataclasses.replace(CONFIG, hidden_size=60, vocab_size=90, initializer_range=0.3))
    for weight in (
        wider.embeddings.word.weight,
        wider.layers[1].attention.key.weight,
        wider.pooler.weight,
    ):
        assert weight.std().item() == pytest.approx(0.3, rel=0.1)


def test_a_mask_of_floats_is_refused(model):
    """An additive mask would be read the wrong way round."""
    with pytest.raises(ValueError, match="not floats"):
        model(torch.ones(1, 3, dtype=torch.long), torch.tensor([[0.0, 0.0, -10_000.0]]))


def test_a_model_without_a_pooler_says_so():
    """Most sentence models have none."""
    without = Bert(CONFIG, pooler=False)
    assert without.pooler is None
    with pytest.raises(ValueError, match="no pooler"):
        without.pool(torch.zeros(1, 2, 15))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["with dropout", "without"])
def test_fused_operations_are_the_formulas(model, monkeypatch, masked, training):
    """Values, gradients, and the same dropout masks from the same random numbers."""
    ids, mask = batch()
    sides = []
    for fused in (True, False):
        monkeypatch.setattr(bert, "FUSED", fused)
        torch.manual_seed(3)
        states = model.train(training)(ids, mask if masked else None)
        states = states[mask] if masked else states.flatten(0, 1)
        pull = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).view_as(states)
        gradients = torch.autograd.grad((states * pull).sum(), [*model.layers.parameters()])
        sides.append((states, gradients))
    (states, gradients), (expected, expected_gradients) = sides
    assert (states - expected).abs().max() < 1e-10
    for found, reference in zip(gradients, expected_gradients, strict=True):
        assert (found - reference).abs().max() < 1e-9
