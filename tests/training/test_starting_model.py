"""``--dropout``: the model that a run starts from gets another rate everywhere."""

import pytest
import torch
from torch import nn

from minisbert.checkpoints.weights import load_transformer
from minisbert.core.bert import Bert, BertConfig
from minisbert.training.starting_model import set_dropout
from tests.parity import REFERENCE


@pytest.mark.parametrize(("source", "sums"), [("tiny-roberta", 2), ("tiny-distiluse", 1)])
def test_dropout_at_another_rate(source, sums):
    """Each dropout of hidden states lets that share of zeros out; attention has the rate as well.

    ``sums``: in a layer one dropout module stands before both sums. BERT calls it for both,
    DistilBERT not between attention and the sum.
    """
    torch.manual_seed(0)
    bert = load_transformer(REFERENCE / source)
    layers = len(bert.layers)
    set_dropout(bert, 0.25)
    bert.train()
    zeros = []
    dropouts = [module for module in bert.modules() if isinstance(module, nn.Dropout)]
    assert len(dropouts) == 1 + layers  # of the embeddings, and one in each layer for both sums
    for module in dropouts:
        module.register_forward_hook(
            lambda _, inputs, output: zeros.append((output == 0).double().mean())
        )
    bert(torch.randint(50, (40, 20)))
    assert len(zeros) == 1 + sums * layers
    assert all(abs(share - 0.25) < 0.02 for share in zeros)
    assert [layer.attention.dropout for layer in bert.layers] == [0.25] * layers
    assert bert.config.hidden_dropout_prob == 0.25
    assert bert.config.attention_probs_dropout_prob == 0.25


def test_without_dropout_training_is_evaluation():
    torch.manual_seed(0)
    bert = Bert(BertConfig(50, 32, 2, 4, 48, 64)).double()
    ids = torch.randint(50, (3, 5))
    assert not torch.equal(bert.train()(ids), bert.eval()(ids))
    set_dropout(bert, 0.0)
    assert torch.equal(bert.train()(ids), bert.eval()(ids))
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="hidden_dropout_prob must be at least 0 and below 1"):
            set_dropout(bert, rate)
