"""Heads and their losses: by torch's own formulas, what dev says of them, and which go on."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from minisbert.core import InputError, losses
from minisbert.core.heads import JointHead, siamese
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.train import train
from minisbert.training import losses as more_losses
from minisbert.training.head_losses import MSE, Binary, CandidateRanking, Softmax
from minisbert.training.named_heads import HEADS, add_head
from minisbert.training.state import Progress
from tests import toys

ROWS = [7, 0, 3, 12, 5]


def outputs_alone(model: PairModel, rows: list[tuple]) -> torch.Tensor:
    """Each pair alone through encoder and head, without pads: (N, outputs)."""
    encoder = model.encoder
    found = []
    for first, second in rows:
        if model.joint:
            joined = encoder.tokenizer.encode_pairs([first], [second])
            states = encoder.bert(torch.tensor(joined.ids), None, torch.tensor(joined.token_types))
            found.append(model.head(states))
            continue
        ids = [torch.tensor([row]) for row in encoder.tokenizer.encode([first, second]).ids]
        if type(model.head).__name__ == "CrossHead":
            found.append(model.head(*(encoder.bert(row) for row in ids)))
        else:
            found.append(model.head(*(encoder.unscaled(row) for row in ids)))
    return torch.cat(found)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss", ["mse", "binary"])
def test_the_loss_of_one_output(prepare, head, loss):
    task = prepare(loss, head)
    rows = [task.rows[row] for row in ROWS]
    outputs = outputs_alone(task.model, [row[:2] for row in rows])[:, 0]
    targets = torch.tensor([row[2] for row in rows], dtype=torch.float32).double()
    formula = losses.mse_loss if loss == "mse" else more_losses.binary_cross_entropy_loss
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, formula(outputs, targets), rtol=0, atol=1e-10)


@pytest.mark.parametrize("head", ["", "concat", "cross-encoder"])
def test_the_loss_of_classes(prepare, head):
    """Without a head the layer over (u, v, |u - v|) belongs to the training alone."""
    task = prepare(Softmax(), head)
    rows = [task.rows[row] for row in ROWS]
    model = task.loss.classifier.double()
    outputs = outputs_alone(model, [row[:2] for row in rows])
    labels = torch.tensor([sorted(toys.NLI_LABELS).index(row[2]) for row in rows])
    expected = functional.cross_entropy(outputs, labels)
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("several", [False, True])
def test_the_positive_is_picked_among_a_rows_own_candidates(prepare, several):
    rows = toys.rows("triplets")
    if several:
        rows = [(*row, f"the {noun} runs") for row, noun in zip(rows, toys.NOUNS, strict=True)]
    task = prepare("ranking", "cross-encoder", rows=rows)
    pairs = []
    for row in ROWS:
        query, *candidates = rows[row]
        pairs += [(query, text) for text in candidates]
    scores = outputs_alone(task.model, pairs).view(len(ROWS), -1)
    expected = functional.cross_entropy(scores, torch.zeros(len(ROWS), dtype=torch.long))
    found = task.loss.batch_loss(task.network, ROWS)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# -----------------------------------------------------------------------------
# what dev says


class Scripted:
    """A model with a head whose outputs are given."""

    labels = ("a", "b", "c")

    def __init__(self, outputs: list):
        self.given = torch.tensor(outputs)

    def outputs(self, firsts: list[str], seconds: list[str], progress: bool) -> torch.Tensor:
        return self.given.view(len(firsts), -1).squeeze(1)


def test_correlations_of_a_heads_scores():
    """The example of metrics.pearson."""
    found = MSE().evaluate(Scripted([0.2, 0.4, 0.6]), [("u", "v", x) for x in (0.2, 0.4, 0.8)])
    assert found.scores == pytest.approx({"pearson": 0.98198, "spearman": 1.0}, abs=5e-6)
    assert found.metric == "pearson"


@pytest.mark.parametrize(
    ("outputs", "labels", "expected"),
    [
        # probabilities of .75 and .5, which means yes
        ([1.1, 0.0], [1, 0], {"accuracy": 1 / 2, "f1": 2 / 3, "precision": 1 / 2, "recall": 1}),
        (
            [0.0, -0.1, 2.0, -2.0, 1.0],
            [1, 1, 0, 0, 1],
            {"accuracy": 3 / 5, "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3},
        ),
    ],
)
def test_decisions_of_a_head(outputs, labels, expected):
    found = Binary().evaluate(Scripted(outputs), [("u", "v", label) for label in labels])
    assert found.scores == pytest.approx(expected)
    assert found.metric == "f1"


def test_ranks_of_the_positive():
    """Ranks 1, 3 and, of equal scores, 2."""
    outputs = [3.0, 1, 2, 0, 1, 3, 2, 0, 1, 1, 0, 0]
    found = CandidateRanking().evaluate(Scripted(outputs), [("q", "a", "b", "c", "d")] * 3)
    assert found.scores == pytest.approx({"accuracy": 1 / 3, "mrr": (1 + 1 / 3 + 1 / 2) / 3})


def test_classes_of_dev_must_be_those_of_training(prepare):
    task = prepare(Softmax(), "concat")
    with pytest.raises(InputError, match="class perhaps"):
        task.loss.evaluate(task.model, [("a", "b", "perhaps")])


def test_softmax_judges_an_encoder_by_scored_pairs(prepare):
    """SBERT reports STS, not the accuracy of a layer that is thrown away."""
    task = prepare(Softmax())
    task.network.float()
    found = task.loss.evaluate(task.model, toys.scored_rows(20, seed=1))
    assert found.metric == "spearman"
    assert task.loss.evaluate(task.model, task.rows).metric == "accuracy"


@pytest.mark.parametrize("outputs", [[0.4, 0.4, 0.4], [0.2, float("nan"), 0.4]])
def test_a_head_that_has_collapsed_is_an_error_of_one_line(outputs):
    rows = [("u", "v", score) for score in (0.2, 0.4, 0.8)]
    with pytest.raises(InputError, match="a lower --head-lr may help"):
        MSE().evaluate(Scripted(outputs), rows)


# -----------------------------------------------------------------------------
# training


@pytest.mark.parametrize(
    ("loss", "head", "form", "metric"),
    [
        ("mse", "cross-encoder", "scored", "pearson"),
        ("mse", "siamese", "scored", "pearson"),
        ("mse", "cross-attention", "scored", "pearson"),
        ("binary", "concat", "duplicates", "f1"),
        ("binary", "classifier", "duplicates", "f1"),
        ("softmax", "concat", "nli", "accuracy"),
        ("ranking", "cross-encoder", "triplets", "mrr"),
    ],
)
def test_every_head_learns_and_its_model_loads_again(tiny, tmp_path, loss, head, form, metric):
    rows = toys.rows(form)
    task = {"mse": "regression", "binary": "binary", "softmax": "classes", "ranking": "logit"}[loss]
    labels = sorted(toys.NLI_LABELS) if task == "classes" else ()
    torch.manual_seed(3)
    model = add_head(SentenceEncoder.load(tiny, device="cpu"), head, task, labels)
    progress = Progress()
    seen = []
    train(
        model, rows, rows, loss, epochs=15, batch_size=8, lr=5e-3, progress=progress,
        callback=lambda step, _: seen.append(step.loss),
    )  # fmt: skip
    assert progress.metric == metric
    assert np.mean(seen[-5:]) < np.mean(seen[:5])
    assert progress.best > progress.history[0][metric]
    model.save(tmp_path / "model")
    pairs = [row[:2] for row in rows]
    found = PairModel.load(tmp_path / "model", device="cpu").predict(pairs)
    np.testing.assert_allclose(found, model.predict(pairs), atol=1e-5)


# -----------------------------------------------------------------------------
# heads that are trained further

CONTINUED = {
    "a CrossEncoder": (ClassifierHead(24, 0.1), "logit", "classifier", "binary", True),
    "a joint head": (JointHead(24), "regression", "cross-encoder", "regression", True),
    "a siamese head": (siamese(24, dropout=0.1), "regression", "siamese", "regression", True),
    "another task": (JointHead(24), "regression", "cross-encoder", "binary", False),
    "another kind": (siamese(24), "regression", "cross-encoder", "regression", False),
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_saved_head_of_the_same_kind_and_task_is_trained_further(name, tiny, tmp_path, capsys):
    head, task, kind, new_task, goes_on = CONTINUED[name]
    torch.manual_seed(8)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    PairModel(SentenceEncoder.load(tiny, pooling="cls"), head, task).save(tmp_path / "model")
    saved = PairModel.load(tmp_path / "model", device="cpu")
    encoder = SentenceEncoder.load(tiny, pooling="cls", device="cpu")
    found = add_head(encoder, kind, new_task, saved=saved).head
    assert ("a new one is trained" in capsys.readouterr().err) != goes_on
    weights = list(found.parameters())
    same = []
    for one, other in zip(saved.head.parameters(), weights, strict=True):
        same.append(torch.equal(one, other))
    assert all(same) == goes_on
    for module in found.modules():
        if isinstance(module, torch.nn.Dropout):
            assert module.p == 0


def test_rows_that_do_not_serve(prepare):
    with pytest.raises(InputError, match="scores of 0 or more"):
        prepare("mse", "siamese", rows=[("a", "b", -0.5), ("a", "c", 0.5)])
    with pytest.raises(InputError, match="negative"):
        prepare("ranking", "cross-encoder", rows=[("a", "b")])
    with pytest.raises(InputError, match="F1"):
        Binary().evaluate(Scripted([0.1]), [("u", "v", 0)])
