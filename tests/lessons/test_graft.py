"""The learner's pieces together inside the book."""

from collections import Counter
from subprocess import CompletedProcess

import pytest
import torch

from lessons.grader import graft
from lessons.grader.graft import grafted, learners_functions, loss_trace
from lessons.grader.pieces import PIECES, mine
from lessons.grader.result import Result
from minisbert.core import InputError, bert, loop
from minisbert.core.encoder import SentenceEncoder
from tests.formula_checks import CONFIG

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
def written(folder):
    mine(6).write_text(FEED_FORWARD)
    mine(11).write_text(TRAINING)


def test_a_training_trace_on_the_learners_code_right_and_wrong(capsys):
    calls: Counter = Counter()
    masters = ["bert.gelu", "bert.FeedForward.forward", "losses.cosine_mse_loss", "loop.adamw_step"]
    gelu, adamw = bert.gelu, loop.adamw
    with grafted(*learners_functions(masters, calls)):
        assert bert.gelu is not gelu
        assert loss_trace()
    assert (bert.gelu, loop.adamw) == (gelu, adamw)
    assert calls["losses.cosine_mse_loss"] == 10
    assert calls["bert.gelu"] == calls["bert.FeedForward.forward"] == 2 * 2 * 10  # layers, sentences, steps
    assert calls["loop.adamw_step"] > 300
    out = capsys.readouterr().out
    assert out.count("  ok    ") == 2
    assert "training, 10 steps: loss 0.267712 to 0.003283" in out
    mine(6).write_text(FEED_FORWARD.replace("/ 2 *", "*"))
    with grafted(*learners_functions(["bert.gelu"], Counter())):
        assert not loss_trace()
    assert "  FAIL  losses" in capsys.readouterr().out


def test_pieces_that_fail_are_named_and_left_out_and_one_must_pass(monkeypatch, capsys):
    monkeypatch.setattr(graft.sandbox, "grade", lambda lesson: [])
    for runs, says in ((None, "no piece passes yet"), (1, "at least 2")):
        with pytest.raises(InputError, match=says):
            graft.graft(runs)
    results = {6: [Result("bert.gelu", "failed"), Result("bert.FeedForward.forward", "passed")]}
    results[11] = [Result("losses.mse_loss", "unwritten"), Result("loop.adamw_step", "refused")]
    monkeypatch.setattr(graft.sandbox, "grade", results.__getitem__)
    monkeypatch.setattr(graft.subprocess, "run", lambda command, **_: CompletedProcess(command, 0))
    assert graft.graft(None)
    said = capsys.readouterr().err
    assert "left out, the package's are used instead: bert.gelu (failed), loop.adamw_step (refused)" in said


def test_a_helper_method_comes_along():
    own = "return self.narrowed(self.up(x))\n    def narrowed(self, x):\n        return self.down(gelu(x))"
    mine(6).write_text(FEED_FORWARD.replace("return self.down(gelu(self.up(x)))", own))
    with grafted(*learners_functions(["bert.FeedForward.forward"], Counter())):
        assert bert.FeedForward(CONFIG)(torch.zeros(1, 1, CONFIG.hidden_size)).shape == (1, 1, CONFIG.hidden_size)
    assert not hasattr(bert.FeedForward, "narrowed")


@pytest.mark.weights
def test_the_real_model_on_the_learners_code(minilm, stsb, capsys):
    calls: Counter = Counter()
    with grafted(*learners_functions(["bert.gelu", "bert.FeedForward.forward"], calls)):
        encoder = SentenceEncoder.load(minilm)
        assert graft.minilm(encoder)
        assert graft.sts_benchmark(encoder, 20, own_words=True)
    assert calls["bert.gelu"] == calls["bert.FeedForward.forward"] >= 18
    out = capsys.readouterr().out
    assert out.count("  ok    ") == 10
    assert "ids of 40 of 40 sentences equal the library's" in out
    assert {"bert.gelu", "bert.FeedForward.forward"} <= PIECES.keys()
