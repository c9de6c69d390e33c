"""The ladder: every master passes, every stub and every mistake fails and is named, other ways to
write it pass.
"""

import inspect
from types import FunctionType

import numpy as np
import pytest
import torch

from lessons.grader import ladder
from lessons.grader.ladder import climb
from lessons.grader.pieces import PIECES
from lessons.grader.result import RUNGS
from lessons.grader.slips import known_mistakes
from minisbert.core import encoder

OF_PIECES = {
    name: mistake.target for name, mistake in known_mistakes().items() if mistake.target in PIECES
}


def written_again(function):
    """The same function with a code object of its own: the master itself is refused."""
    wrapped = function
    function = inspect.unwrap(function)
    code, space = function.__code__.replace(), function.__globals__
    again = FunctionType(
        code, space, function.__name__, function.__defaults__, function.__closure__
    )
    again.__kwdefaults__ = function.__kwdefaults__
    if wrapped is not function:  # by ``torch.no_grad``, the only decorator of a piece
        return torch.no_grad()(again)
    return again


@pytest.mark.exact("answers are compared at the rounding of their numbers")
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_every_master_passes(piece):
    result = climb(piece, written_again(piece.original))
    assert result.status == "passed", result
    assert all(holds for _, holds, _ in result.rungs), "the bonus too"
    needed = {RUNGS[rung] for rung in ("runs", "inputs", "example", "golden", "traps")}
    assert {title for title, _, _ in result.rungs} >= needed


@pytest.mark.parametrize("name", OF_PIECES)
def test_every_mistake_fails_and_is_named(name):
    piece = PIECES[OF_PIECES[name]]
    found = ladder.look_at_mistake(name, piece)
    assert not all(finding.ok for finding in found)
    assert name in ladder.fingerprints(piece, found)[0]


def test_nothing_passes_by_returning_nothing_or_by_being_the_master():
    """``test_sandbox.py`` runs every stub."""
    assert len(OF_PIECES) > 100
    for piece in PIECES.values():
        assert climb(piece, lambda *_, **__: None).status == "failed", piece.master
        assert climb(piece, piece.original).status == "refused", piece.master


def in_place(x):
    half = x.detach().clone() * 0.5
    x.data *= 1.0000001
    return x / 1.0000001 * 0 + half * (1 + torch.erf(half * 2 / 2**0.5))


def overflows(logits, labels):
    return (logits.exp().sum(1).log() - logits.gather(1, labels[:, None])[:, 0]).mean()


def raises(x):
    return x @ x @ x


def below_zero(step, warmup, total):
    return step / warmup if step < warmup else (total - step) / (total - warmup)


def not_imported(x):
    return statistics.fmean(x)  # noqa: F821


def graphs_off(network, parts, states, gradient):
    for part in parts:
        network(part).backward(gradient[: len(part)])


def divides_by_zero(step, warmup, total):
    return step / warmup if step < warmup else max(0, total - step) / (total - warmup)


@pytest.mark.parametrize(
    ("master", "function", "rung", "says"),
    [
        ("bert.gelu", lambda x: x.nope, "runs", "AttributeError"),
        ("bert.gelu", not_imported, "runs", "is import statistics missing"),
        ("gradient_cache.replay", graphs_off, "runs", "are graphs off here"),
        ("bert.gelu", lambda x: x.sum(), "runs", "returns the shape (), not (4,)"),
        ("bert.gelu", lambda x: x.double() * 0, "runs", "returns torch.float64, not torch.float32"),
        ("bert.gelu", lambda x: x.tolist(), "runs", "returns a list, not a tensor (4,)"),
        (
            "heads.CrossAttention.forward",
            lambda self, a, b, mask=None: self.output(self.query(b)),
            "runs",
            "returns the shape (1, 3, 2), not (1, 1, 2), the shape of b",
        ),
        ("bert.attention", lambda q, k, v, m=None, d=0.0: q, "runs", "not 2 results"),
        ("metrics.pearson", lambda x, y: torch.tensor(1.0), "runs", "not a number"),
        (
            "metrics.ranks",
            lambda x: np.argsort(np.argsort(x)) + 1,
            "runs",
            "returns int64, not float64",
        ),
        ("bert.gelu", in_place, "inputs", "is not what it was"),
        (
            "bert.gelu",
            lambda x: torch.where(
                x > 0, x * 0.5 * (1 + torch.erf(x / 2**0.5)), torch.zeros_like(x)
            ),
            "example",
            "at index 1 (counted from 0): yours 0, reference -0.15866; 3 of 4 numbers right (75 %)",
        ),
        (
            "losses.mse_loss",
            lambda u, v: (u - v).detach().pow(2).mean(),
            "gradient",
            "no gradient comes back",
        ),
        ("losses.softmax_cross_entropy_loss", overflows, "traps", "logits of 1e4: not a number"),
        (
            "loop.linear_schedule",
            below_zero,
            "golden",
            "step 11 of 10, warm-up 4: share of the rate",
        ),
    ],
)
def test_the_rung_that_fails(master, function, rung, says):
    result = climb(PIECES[master], function)
    title, holds, seen = result.rungs[-1]
    assert (result.status, title, holds) == ("failed", RUNGS[rung], False)
    assert says in seen
    assert all(holds for _, holds, _ in result.rungs[:-1])


@pytest.mark.parametrize(
    ("master", "function", "says"),
    [
        (
            "tokenizer.split_words",
            lambda text: type("Words", (list,), {})(),
            "returns a Words, not a list",
        ),
        ("bert.gelu", torch.nn.functional.gelu, "gelu is ready-made"),
        ("bert.gelu", raises, f"line {raises.__code__.co_firstlineno + 1}:"),
    ],
)
def test_a_list_of_another_kind_a_ready_made_function_and_the_line_of_an_exception(
    master, function, says
):
    assert says in climb(PIECES[master], function).rungs[-1][2]


def without_scale(self, x, mask):
    """The whole of multi-head attention in one function."""
    query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
    scores = query @ key.transpose(-2, -1)
    shares = (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1)
    return self.output(self.merge(shares @ value)), shares


def wrong_twice(anchors, positives, hard_negatives=None, scale=20.0):
    """Divided by the scale, and without hard negatives: no known mistake is both."""
    logits = encoder.cosine_matrix(anchors, positives) / scale
    return (logits.logsumexp(1) - logits.diagonal()).mean()


def squared(anchor, positive, negative, margin=1.0):
    """The square of the Euclidean distance."""
    gap = (anchor - positive).pow(2).sum(1) - (anchor - negative).pow(2).sum(1)
    return (gap + margin).clamp_min(0).mean()


def dot_products(u, v, temperature=0.05):
    """NT-Xent, which is written outside the package, with a mistake of a function inside it."""
    z = torch.cat([u, v])
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return (
        logits.logsumexp(1) - logits.gather(1, torch.arange(len(z)).roll(len(u))[:, None])[:, 0]
    ).mean()


@pytest.mark.parametrize(
    ("master", "function", "status", "mistakes", "unexplained"),
    [
        ("bert.Attention.forward", without_scale, "failed", ["no 1/sqrt(K)"], None),
        (
            "losses.multiple_negatives_ranking_loss",
            wrong_twice,
            "failed",
            ["scale divided"],
            "ranking_hard",
        ),
        ("losses.triplet_loss", squared, "failed", ["squared distance"], ""),
        ("losses.softmax_cross_entropy_loss", overflows, "failed", ["exp overflows"], ""),
        ("losses.nt_xent_loss", dot_products, "failed", ["dot products for cosines"], None),
        ("bert.gelu", lambda x: 0.9 * x * torch.sigmoid(x), "failed", [], None),
    ],
)
def test_what_is_named_and_what_is_left_unexplained(
    master, function, status, mistakes, unexplained
):
    result = climb(PIECES[master], function)
    assert (result.status, result.mistakes) == (status, mistakes)
    assert unexplained in (None, result.unexplained)


def test_a_bonus_that_fails_is_shown_and_costs_nothing():
    result = climb(PIECES["loop.linear_schedule"], divides_by_zero)
    assert result.status == "passed"
    assert result.rungs[-1][:2] == (RUNGS["bonus"], False)
    assert "nothing but warm-up, the end: ZeroDivisionError" in result.rungs[-1][2]
    assert all(holds for _, holds, _ in result.rungs[:-1])


def test_no_warning_of_numpy_reaches_the_learner(recwarn):
    assert (
        climb(PIECES["metrics.pearson"], lambda x, y: float(np.divide(0.0, 0.0))).status == "failed"
    )
    assert not recwarn.list


def test_no_check_at_all_is_a_failure(monkeypatch):
    piece = PIECES["bert.gelu"]
    for table, rung in ((ladder.CASES, "example"), (ladder.CHECKS, "golden")):
        with monkeypatch.context() as patch:
            patch.setitem(table, "gelu" if rung == "golden" else piece.master, lambda: iter(()))
            result = climb(piece, written_again(piece.original))
        assert result.status == "failed"
        assert result.rungs[-1] == (RUNGS[rung], False, "no check was run")


def test_the_package_is_as_it_was():
    climb(PIECES["bert.Layer.forward"], lambda self, x, mask: 1 / 0)
    assert all(piece.original is getattr(piece.owner, piece.path[-1]) for piece in PIECES.values())
