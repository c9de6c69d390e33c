"""How good a model is, and whether a gain is one."""

import numpy as np
import pytest

from minisbert.core import InputError
from minisbert.core.metrics import spearman
from minisbert.evaluation.retrieval import Retrieval
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.scores import (
    Evaluation,
    Gain,
    correlation,
    evaluate_encoder,
    mean_of,
    paired_gain,
)
from tests import toys


@pytest.fixture(scope="module")
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny, device="cpu")


def test_scored_pairs_are_correlated_and_prefixes_too(encoder):
    rows = toys.scored_rows(20, seed=1)
    found = evaluate_encoder(encoder, rows, widths=(24, 8))
    cosines = []
    cut = []
    for first, second, _ in rows:
        u, v = encoder.encode([first, second]).astype(np.float64)
        cosines.append(u @ v)
        cut.append(u[:8] @ v[:8] / np.linalg.norm(u[:8]) / np.linalg.norm(v[:8]))
    wanted = [score for _, _, score in rows]
    # vectors are float32, and of other batches here
    assert found.scores["pearson"] == pytest.approx(np.corrcoef(cosines, wanted)[0, 1], abs=1e-5)
    assert found.scores["spearman@8"] == pytest.approx(spearman(cut, wanted), abs=0.02)
    assert set(found.scores) == {"pearson", "spearman", "spearman@8"}
    assert found.metric == "spearman"


def test_pairs_without_scores_are_a_search_among_all_positives(encoder):
    """Each anchor's cosines with all positives, ranked by hand."""
    rows = [(f"the {noun}", f"a {noun} is in the park") for noun in toys.NOUNS]
    found = evaluate_encoder(encoder, rows)
    anchors = encoder.encode([row[0] for row in rows]).astype(np.float64)
    positives = encoder.encode([row[1] for row in rows]).astype(np.float64)
    cosines = anchors @ positives.T
    ranks = (cosines >= cosines.diagonal()[:, None] - 1e-9).sum(axis=1)
    gains = np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0)
    assert found.metric == "ndcg@10"
    assert found.score == pytest.approx(gains.mean(), abs=0.06)  # a tie may fall either way
    assert set(found.scores) == {"accuracy@1", "recall@10", "mrr@10", "ndcg@10", "map@100"}
    assert found.resampled(np.arange(20)) == pytest.approx(found.score)


def test_a_search_with_judged_documents(encoder):
    task = Retrieval(["the cat"], ["a cat", "rain"], [{0: 1}], [None])
    assert evaluate_encoder(encoder, task).scores["accuracy@1"] in (0, 1)


@pytest.mark.parametrize("rows", [[], [{"sentence1": "a", "sentence2": "b", "score": 1.0}]])
def test_rows_that_are_not_tuples_are_refused(encoder, rows):
    """Somebody who compares two models passes rows here that no trainer has read."""
    with pytest.raises(InputError, match="tuples"):
        evaluate_encoder(encoder, rows)


# -----------------------------------------------------------------------------
# gains


def test_a_gain_in_every_row_is_shown():
    """Each row gains .1, so every draw does, however far apart the rows are."""
    before = np.linspace(0, 0.8, 30)
    after = before + 0.1
    gain = paired_gain(
        mean_of({"x": before.mean()}, "x", before), mean_of({"x": after.mean()}, "x", after)
    )
    assert (gain.low, gain.gain, gain.high) == pytest.approx((0.1, 0.1, 0.1))
    assert gain.is_shown
    assert gain.sentence() == "test x +10.00, 95 % interval +10.00 to +10.00 (30 rows)"


def test_the_interval_is_that_of_the_mean():
    """Of 400 differences with the deviation 1: about two errors of .05 to each side."""
    differences = np.random.default_rng(5).normal(size=400)
    differences = (differences - differences.mean()) / differences.std()
    zeros = np.zeros(400)
    gain = paired_gain(mean_of({"x": 0.0}, "x", zeros), mean_of({"x": 0.0}, "x", differences))
    assert gain.low == pytest.approx(-1.96 * 0.05, abs=0.02)
    assert gain.high == pytest.approx(1.96 * 0.05, abs=0.02)


def test_a_gain_within_chance_says_how_many_rows_would_show_it():
    """Half the width is twice the gain, so four times the rows."""
    text = Gain("f1", gain=0.01, low=-0.01, high=0.03, rows=100).sentence()
    assert "cannot be told from chance" in text
    assert "about 400 test rows" in text


def test_no_change_and_a_loss_are_not_called_a_gain():
    """An interval from 0 to 0 would look like certainty, where the model is the untrained one."""
    same = Gain("f1", gain=0.0, low=0.0, high=0.0, rows=100).sentence()
    assert "alike" in same
    assert "interval" not in same
    worse = Gain("f1", gain=-0.01, low=-0.03, high=0.01, rows=100).sentence()
    assert "this drop cannot be told from chance" in worse


def test_scores_of_other_rows_are_not_compared():
    """Fewer rows of the second model would be drawn as if they were those of the first."""
    four = mean_of({"x": 0.5}, "x", np.full(4, 0.5))
    five = mean_of({"x": 0.5}, "x", np.full(5, 0.5))
    by_another_metric = mean_of({"y": 0.5}, "y", np.full(4, 0.5))
    with pytest.raises(InputError, match="gain"):
        paired_gain(four, five)
    with pytest.raises(InputError, match="gain"):
        paired_gain(four, by_another_metric)


def test_draws_without_a_score_are_left_out():
    """Of three rows with two scores some draws have one score, which correlates with nothing."""
    values = np.array([0.1, 0.2, 0.9])
    wanted = [0.0, 0.0, 1.0]
    before = correlation("x", values, wanted)
    gain = paired_gain(before, correlation("x", values[::-1].copy(), wanted))
    assert np.isfinite([gain.low, gain.high]).all()


def test_the_deciding_score_is_named():
    found = Evaluation({"a": 0.5, "b": 0.25}, "b", 3, lambda rows: 0.0)
    assert found.score == 0.25
