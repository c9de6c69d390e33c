"""Losses of vectors: which rows reach which formula, with which settings; and what is refused."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from minisbert.core import InputError, encoder, losses
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses
from minisbert.training.base_loss import columns_of, draw_batches
from minisbert.training.encoder_losses import CoSENT, Cosine, Ranking, SimCSE, Triplet
from minisbert.training.losses import symmetric_ranking_loss
from minisbert.training.named_heads import HEADS
from minisbert.training.options import HEAD_HELP, LOSS_HELP
from minisbert.training.table import LOSSES, find_loss
from tests import toys

ROWS = [7, 0, 3, 12, 5]  # of no order, of lengths that differ


def vectors(model: SentenceEncoder, texts: list[str]) -> Tensor:
    """Each text alone through the encoder: no pads, no mask. (B, D) float64."""
    return torch.cat([model(torch.tensor([ids])) for ids in model.tokenizer.encode(texts).ids])


def columns(task, rows: list[int] = ROWS) -> list[list]:
    return columns_of([task.rows[row] for row in rows])


RANKING = losses.multiple_negatives_ranking_loss
FORMULAS = {
    "cosine": (Cosine, {}, losses.cosine_mse_loss),
    "cosent": (CoSENT, {}, lambda u, v, y: more_losses.cosent_loss(u, v, y, scale=20)),
    "cosent, warm": (
        CoSENT,
        {"temperature": 0.5},
        lambda u, v, y: more_losses.cosent_loss(u, v, y, scale=2),
    ),
    "triplet": (Triplet, {}, lambda *x: losses.triplet_loss(*x, 1.0)),
    "triplet, narrow": (Triplet, {"margin": 0.25}, lambda *x: losses.triplet_loss(*x, 0.25)),
    "ranking": (Ranking, {}, lambda u, v, n: RANKING(u, v, n, 20)),
    "ranking, both ways": (
        Ranking,
        {"temperature": 0.5, "symmetric": True},
        lambda u, v, n: symmetric_ranking_loss(u, v, n, 2),
    ),
    "simcse": (SimCSE, {}, lambda u: losses.simcse_loss(u, u, temperature=0.05)),
    "simcse, warm": (
        SimCSE,
        {"temperature": 0.5},
        lambda u: losses.simcse_loss(u, u, temperature=0.5),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_loss_of_a_batch_is_its_formula(prepare, name):
    """And with ``matryoshka`` the sum over prefixes, scaled to length 1; 24 is the width."""
    kind, settings, formula = FORMULAS[name]
    task = prepare(kind(**settings))
    given = columns(task)
    fixed = []
    if not isinstance(given[-1][0], str):
        fixed = [torch.tensor(given.pop(), dtype=torch.float64)]
    whole = [vectors(task.model, column) for column in given]
    found = task.loss.batch_loss(task.network, ROWS)
    # scores were float32 for a moment
    torch.testing.assert_close(found, formula(*whole, *fixed), rtol=0, atol=1e-7)

    nested = prepare(kind(matryoshka=(11, 5), **settings))
    expected = 0
    for width in (24, 11, 5):
        cut = [functional.normalize(x[:, :width]) for x in whole]
        expected = expected + formula(*cut, *fixed)
    found = nested.loss.batch_loss(nested.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width", [2, 3, 5])
def test_rows_of_pairs_and_of_several_negatives(prepare, width):
    """Each anchor picks its positive among all positives and all negatives of the batch."""
    rows = []
    for i in range(20):
        rows.append(tuple(f"{toys.NOUNS[i - 3 * column]} {i}" for column in range(width)))
    task = prepare(Ranking(temperature=0.25), rows=rows)
    anchors, *others = (vectors(task.model, column) for column in columns(task))
    cosines = functional.cosine_similarity(anchors[:, None], torch.cat(others)[None], dim=-1)
    expected = functional.cross_entropy(cosines / 0.25, torch.arange(len(ROWS)))
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_the_tokens_of_a_row_are_those_of_all_its_texts_padded(prepare):
    """The toy words are in the vocabulary: a text has as many tokens as words, and two more."""
    task = prepare("ranking")
    for row, length in zip(task.rows, task.network.lengths, strict=True):
        assert length == 3 * (max(len(text.split()) for text in row) + 2)


# -----------------------------------------------------------------------------
# batches


@pytest.mark.parametrize("loss", ["ranking", "simcse"])
def test_no_text_is_in_a_batch_twice(prepare, loss):
    """It would be its own negative. Each text is in up to three rows, and in any column."""
    nouns = toys.NOUNS
    rows = []
    for i in range(36):
        row = (f"the {nouns[i % 12]}", f"a {nouns[i % 9]}", f"the {nouns[(i + 5) % 12]}")
        rows.append(row[:1] if loss == "simcse" else row)
    task = prepare(loss, rows=rows)
    batches = draw_batches(task.loss, rows, task.network.lengths, 1, 8, 3, None, None).batches
    assert sorted(row for batch in batches for row in batch) == list(range(36))
    for batch in batches:
        texts = []
        for row in batch:
            texts += set(rows[row])
        assert len(batch) > 1
        assert len(texts) == len(set(texts))


def test_other_losses_fill_their_batches(prepare):
    task = prepare("triplet")
    plan = draw_batches(task.loss, task.rows, task.network.lengths, 2, 7, 1, None, None)
    assert sorted(map(len, plan.batches)) == [6, 6, 7, 7, 7, 7]


def test_dev_is_scored_at_epoch_ends_or_every_few_steps(prepare):
    """And before the first step: 0."""
    task = prepare("triplet")
    lengths = task.network.lengths
    for max_steps, eval_every, expected in (
        (None, None, {0, 3, 6, 9}),
        (8, None, {0, 3, 6, 8, 9}),
        (None, 4, {0, 4, 8, 9}),
        (5, 4, {0, 4, 5}),
    ):
        plan = draw_batches(task.loss, task.rows, lengths, 3, 7, 1, max_steps, eval_every)
        assert plan.evaluations == expected


# -----------------------------------------------------------------------------
# SimCSE


@pytest.fixture
def views(monkeypatch) -> list[tuple[Tensor, Tensor]]:
    """The vectors that SimCSE's formula gets."""
    seen = []
    formula = losses.simcse_loss

    def spy(u, v, **rest):
        seen.append((u.detach(), v.detach()))
        return formula(u, v, **rest)

    monkeypatch.setattr(losses, "simcse_loss", spy)
    return seen


@pytest.mark.parametrize("rate", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_either_dropout_makes_two_views_of_a_sentence(prepare, tiny, tmp_path, views, rate):
    folder = toys.without_dropout(tiny, tmp_path / "one", **{rate: 0.2})
    task = prepare("simcse", model=SentenceEncoder.load(folder, device="cpu"))
    task.network.train()
    task.loss.batch_loss(task.network, ROWS)
    u, v = views[0]
    assert u.shape == (5, 24)
    assert (u != v).any(dim=1).all()
    assert (encoder.cosine(u, v) > 0.7).all()  # but they are views of one sentence


def test_without_dropout_there_is_one_view_which_must_be_asked_for(prepare, tiny, tmp_path):
    folder = toys.without_dropout(tiny, tmp_path / "none")
    with pytest.raises(InputError, match="no dropout"):
        prepare("simcse", model=SentenceEncoder.load(folder, device="cpu"))
    prepare(SimCSE(same_views=True), model=SentenceEncoder.load(folder, device="cpu"))


@pytest.mark.parametrize("kind", [SimCSE, Ranking])
def test_the_projection_is_between_encoder_and_formula_and_never_in_the_model(prepare, kind):
    """tanh(W x + b) of each vector, by hand."""
    task = prepare(kind(projection=True, temperature=0.5))
    linear, _ = task.network.projection
    projected = []
    for column in columns(task):
        x = vectors(task.model, column)
        projected.append(torch.tanh(x @ linear.weight.T + linear.bias))
    if kind is SimCSE:
        expected = losses.simcse_loss(projected[0], projected[0], temperature=0.5)
    else:
        expected = RANKING(*projected, scale=2)
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert not any("projection" in name for name in task.model.state_dict())


# -----------------------------------------------------------------------------
# the table, and what is refused


def test_every_loss_and_head_of_the_options_has_a_class():
    """``options`` names them again, because importing the classes would import torch."""
    assert list(LOSSES) == list(LOSS_HELP)
    assert list(HEADS) == list(HEAD_HELP)


def test_a_loss_says_when_to_use_it():
    for kind in LOSSES.values():
        assert "Use it" in kind.__doc__


def test_another_setting_is_another_identity():
    found = {Ranking().identity(), Ranking(temperature=0.1).identity(), Triplet().identity()}
    assert len(found) == 3
    assert Ranking().identity() == find_loss("ranking").identity()


@pytest.mark.parametrize(
    ("loss", "rows", "message"),
    [
        ("triplet", [("a", "b")], "anchor, positive and negative"),
        ("ranking", [("a", "b", 0.5)], "without a score"),
        ("ranking", [("a",)], "anchor and a positive"),
        ("cosine", [("a", "b")], "have no score"),
        ("cosent", [("a", "b")], "have no score"),
    ],
)
def test_rows_that_do_not_serve(prepare, loss, rows, message):
    with pytest.raises(InputError, match=message):
        prepare(loss, rows=rows)


def test_more_columns_than_the_vectors_have(prepare):
    with pytest.raises(InputError, match="24 columns"):
        prepare(Cosine(matryoshka=(25, 8)))
