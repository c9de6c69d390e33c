"""The learner's pieces together inside the book."""

from collections import Counter

import pytest

from lessons import graft
from lessons.graft import grafted, learners_functions, loss_trace
from lessons.pieces import PIECES, mine
from minisbert.core import InputError, bert, loop
from minisbert.core.encoder import SentenceEncoder

FEED_FORWARD = """
import torch
def gelu(x):
    return x / 2 * (1 + torch.erf(x / 2**0.5))
class FeedForward:
    def forward(self, x):
        return self.down(gelu(self.up(x)))
"""
TRAINING = """
import torch
def mse_loss(scores, target):
    raise NotImplementedError
def cosine_mse_loss(u, v, target):
    u, v = (x / x.norm(dim=1, keepdim=True) for x in (u, v))
    return mse_loss((u * v).sum(1), target)
def adamw_step(parameter, gradient, mean, square, step, lr, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8):
    mean, square = torch.lerp(gradient, mean, betas[0]), torch.lerp(gradient * gradient, square, betas[1])
    size = mean / (1 - betas[0] ** step) / ((square / (1 - betas[1] ** step)).sqrt() + eps)
    return parameter - lr * (weight_decay * parameter + size), mean, square
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("lessons.pieces.MINE", tmp_path)
    mine(6).write_text(FEED_FORWARD)
    mine(12).write_text(TRAINING)
    return tmp_path


def test_a_training_trace_on_the_learners_code(capsys):
    calls: Counter = Counter()
    masters = ["bert.gelu", "bert.FeedForward.forward", "losses.cosine_mse_loss", "loop.adamw_step"]
    gelu, adamw = bert.gelu, loop.adamw
    with grafted(learners_functions(masters, calls)):
        assert bert.gelu is not gelu
        assert loss_trace()
    assert (bert.gelu, loop.adamw) == (gelu, adamw)
    assert calls["losses.cosine_mse_loss"] == 10
    assert calls["bert.gelu"] == calls["bert.FeedForward.forward"] == 2 * 2 * 10  # layers, sentences, steps
    assert calls["loop.adamw_step"] > 300
    out = capsys.readouterr().out
    assert out.count("  ok    ") == 2
    assert "training, 10 steps: loss 0.267712 to 0.003283" in out


def test_a_wrong_piece_shows(folder, capsys):
    mine(6).write_text(FEED_FORWARD.replace("/ 2 *", "*"))
    with grafted(learners_functions(["bert.gelu"], Counter())):
        assert not loss_trace()
    assert "  FAIL  losses" in capsys.readouterr().out


def test_without_a_piece_that_passes_there_is_nothing_to_graft(monkeypatch):
    monkeypatch.setattr(graft.sandbox, "grade", lambda lesson: [])
    with pytest.raises(InputError, match="no piece passes yet"):
        graft.graft(None)
    with pytest.raises(InputError, match="at least 2"):
        graft.graft(1)


@pytest.mark.weights
def test_the_real_model_on_the_learners_code(minilm, stsb, capsys):
    calls: Counter = Counter()
    with grafted(learners_functions(["bert.gelu", "bert.FeedForward.forward"], calls)):
        encoder = SentenceEncoder.load(minilm)
        assert graft.minilm(encoder)
        assert graft.sts_benchmark(encoder, 20, own_words=True)
    assert calls["bert.gelu"] == calls["bert.FeedForward.forward"] >= 18
    out = capsys.readouterr().out
    assert out.count("  ok    ") == 10
    assert "ids of 40 of 40 sentences equal the library's" in out
    assert {"bert.gelu", "bert.FeedForward.forward"} <= PIECES.keys()
