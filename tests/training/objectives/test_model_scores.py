"""Scores of a model on rows, of vectors and of heads, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minisbert.core import InputError, losses
from minisbert.data.datasets import Row
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses
from minisbert.training.objectives import vector_scores
from minisbert.training.objectives.pairs import PairObjective

PAIRS = [
    Row(("the cat", "a cat"), 5),
    Row(("the cat", "a dog runs"), 4),
    Row(("the sun and the moon", "a dog runs"), 1.5),
    Row(("music", "the cat"), 4.1),
]
REGRESSION = [Row(("u", "v"), score) for score in (1, 2, 4)]


def rows_with(labels: list[int], first: str = "u") -> list[Row]:
    return [Row((f"{first}{i}", "v"), label) for i, label in enumerate(labels)]


FORMULAS = {"regression": losses.mse_loss, "binary": more_losses.binary_cross_entropy_loss}
FORMULAS |= {"classes": losses.softmax_cross_entropy_loss}


def head_scores(task: str, outputs: list, rows: list[Row]) -> dict[str, float]:
    """What is said of a head whose outputs are given: scores of 0 to 1, or logits."""
    model = SimpleNamespace(outputs=lambda firsts, seconds, progress: torch.tensor(outputs))
    return PairObjective.evaluate(
        SimpleNamespace(task=task, model=model, rows={"dev": rows}, formula=FORMULAS[task]), "dev"
    )


def test_scores_of_vectors_by_hand(tiny):
    """Vectors are float32, 1e-7 apart in other batches; of cosines hundredths apart that is 1e-6 of
    a correlation.
    """
    encoder = SentenceEncoder.load(tiny)
    scores = vector_scores(encoder, PAIRS, loss=losses.mse_loss)
    texts = ["the cat", "a cat", "a dog runs", "the sun and the moon", "music"]
    vectors = dict(zip(texts, encoder.encode(texts).astype(np.float64), strict=True))
    cosines = [vectors[pair.sentence1] @ vectors[pair.sentence2] for pair in PAIRS]
    assert scores["pearson"] == pytest.approx(
        np.corrcoef(cosines, [5, 4, 1.5, 4.1])[0, 1], abs=1e-5
    )
    assert scores["loss"] == pytest.approx(
        np.mean((np.array(cosines) - [1, 0.8, 0.3, 0.82]) ** 2), abs=1e-6
    )
    assert set(vector_scores(encoder, PAIRS)) == {"pearson", "spearman"}


HALF = {"accuracy": 1 / 2, "f1": 2 / 3, "precision": 1 / 2, "recall": 1}
MOST = {"accuracy": 3 / 5, "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3}


@pytest.mark.parametrize(
    ("task", "outputs", "rows", "expected"),
    [
        # the example of metrics.pearson; .6 for 4 / 5
        (
            "regression",
            [0.2, 0.4, 0.6],
            REGRESSION,
            {"pearson": 0.98198, "spearman": 1.0, "loss": 0.2**2 / 3},
        ),
        # probabilities of .75 and .5, which means yes
        ("binary", [np.log(3), 0.0], rows_with([1, 0]), HALF | {"loss": -np.log(0.375) / 2}),
        ("binary", [0.0, -0.1, 2.0, -2.0, 1.0], rows_with([1, 1, 0, 0, 1]), MOST),
        # two labels of equal probability, of which the first is named, and one that is certain
        (
            "classes",
            [[-99.0, 0, 0], [99, 0, 0]],
            rows_with([2, 0]),
            {"accuracy": 1 / 2, "loss": np.log(2) / 2},
        ),
    ],
)
def test_scores_of_heads_by_hand(task, outputs, rows, expected):
    found = head_scores(task, outputs, rows)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=5e-6)
    assert {*found} == {*expected, "loss"}


@pytest.mark.parametrize(
    ("outputs", "why"), [([0.4, 0.4, 0.4], "constant"), ([0.2, np.nan, 0.4], "finite")]
)
def test_a_head_that_has_collapsed_is_an_error_of_one_line(outputs, why):
    with pytest.raises(
        InputError, match=rf"the head's scores .*a lower --head-lr may help.*: .*{why}"
    ):
        head_scores("regression", outputs, REGRESSION)
