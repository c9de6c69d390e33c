"""Rerankers: the losses of cross-encoders by torch's own, what dev says of them, and rows that do
not serve.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.objectives import Objective
from minisbert.training.settings import parse
from minisbert.training.train import load_trainable, main, make_objective
from tests import toys

ROWS = [7, 0, 3, 12, 5]


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("cross-encoder-binary", "duplicates")`` -> the objective on the tiny model, in
    float64.
    """

    def build(objective: str, form: str, *flags: str) -> Objective:
        same = [
            "--dev",
            files[form],
            "--test",
            files[form],
        ]  # nothing is held out: row numbers are those of the file
        options = parse(
            ["--objective", objective, "--model", str(tiny), "--data", files[form], *same, *flags]
        )
        torch.manual_seed(3)
        task = make_objective(options, load_trainable(options, torch.device("cpu")))
        task.model.double().eval()
        return task

    return build


def lines(path: str) -> list[list[str]]:
    return [line.split("\t") for line in Path(path).read_text().splitlines()[1:]]


def logits(task: Objective, pairs: list[tuple[str, str]]) -> torch.Tensor:
    """Each pair alone through the encoder and the head, (N,)."""
    joined = task.encoder.tokenizer.encode_pairs(*zip(*pairs, strict=True))
    rows = zip(joined.ids, joined.token_types, strict=True)
    states = [
        task.encoder.bert(torch.tensor([ids]), None, torch.tensor([types])) for ids, types in rows
    ]
    return torch.cat([task.model.head(one) for one in states]).squeeze(1)


@pytest.mark.parametrize("flags", [[], ["--pooler-head"]])
def test_the_loss_of_labelled_pairs_is_binary_cross_entropy(make, files, flags):
    task = make("cross-encoder-binary", "duplicates", *flags)
    rows = [lines(files["duplicates"])[row] for row in ROWS]
    targets = torch.tensor([float(row[0]) for row in rows]).double()
    found = logits(task, [(row[1], row[2]) for row in rows])
    expected = functional.binary_cross_entropy_with_logits(found, targets)
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("form", "candidates"), [("triplets", 2), ("several", 3)])
def test_the_ranking_loss_picks_the_positive_among_a_rows_own_candidates(
    make, files, form, candidates
):
    task = make("cross-encoder-ranking", form)
    rows = [lines(files[form])[row] for row in ROWS]
    found = logits(task, [(row[0], text) for row in rows for text in row[1:]]).view(5, candidates)
    expected = functional.cross_entropy(found, torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-10)
    longest = [
        max(len(ids) for ids in task.encoded[0].ids[candidates * r : candidates * (r + 1)])
        for r in ROWS
    ]
    assert [task.lengths[row] for row in ROWS] == [candidates * length for length in longest]


def test_ranks_of_the_positive_by_hand(make, monkeypatch):
    """Ranks 1, 3 and, of equal scores, 2."""
    task = make("cross-encoder-ranking", "several")
    scores = np.array([[3.0, 1, 2, 0], [1, 3, 2, 0], [1, 1, 0, 0]])
    task.rows["dev"] = task.rows["dev"][:3]
    monkeypatch.setattr(PairModel, "outputs", lambda *_, **__: torch.as_tensor(scores.reshape(-1)))
    assert task.evaluate("dev") == pytest.approx(
        {"accuracy": 1 / 3, "mrr": (1 + 1 / 3 + 1 / 2) / 3}
    )


@pytest.mark.parametrize(
    ("objective", "best", "task"),
    [
        ("cross-encoder-binary", "f1", "binary"),
        ("cross-encoder-ranking", "mrr", "logit"),
    ],
)
def test_a_reranker_learns_is_chosen_by_its_own_dev_rows_and_loads_again(
    tiny, files, tmp_path, objective, best, task
):
    flags = [
        *toys.flags(files, objective),
        "--model",
        str(tiny),
        "--epochs",
        "20",
        "--lr",
        "5e-3",
        "--log-every",
        "1",
    ]
    main([*flags, "--batch-size", "8", "--pooler-head", "--out", str(tmp_path / "run")])
    losses = toys.losses(tmp_path / "run")
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) / 1.5
    found = toys.results(tmp_path / "run")["after"]["dev"]
    assert found[best] == max(toys.dev_scores(tmp_path / "run", best))
    model = PairModel.load(tmp_path / "run" / "model")
    assert model.task == task
    config = toys.metrics(tmp_path / "run")[0]
    assert "spearman" not in config["dev"]


@pytest.mark.parametrize(
    ("objective", "form", "message"),
    [
        (
            "cross-encoder-ranking",
            "translations",
            "rows with a negative are needed; minisbert mine finds them",
        ),
        ("cross-encoder-binary", "scored", "the label '4' is not 0 or 1"),
        ("cross-encoder-ranking", "scored", "anchor"),
    ],
)
def test_rows_that_do_not_serve(make, objective, form, message):
    with pytest.raises(InputError, match=message):
        make(objective, form)


def test_pairs_without_scores_as_dev_are_a_search_among_all_positives(tiny, files, tmp_path):
    """Each anchor's cosines with all positives, ranked by hand; without test rows there is no score
    of test.
    """
    flags = [
        "--objective",
        "mnr",
        "--model",
        str(tiny),
        "--data",
        files["triplets"],
        "--dev",
        files["translations"],
    ]
    main([*flags, "--epochs", "3", "--lr", "1e-3", "--out", str(tmp_path / "run")])
    rows = lines(files["translations"])
    model = SentenceEncoder.load(tiny)
    anchors, positives = (
        model.encode([row[i] for row in rows], normalize_embeddings=True).astype(np.float64)
        for i in (0, 1)
    )
    cosines = anchors @ positives.T
    ranks = (cosines >= cosines.diagonal()[:, None] - 1e-9).sum(axis=1)
    found = toys.results(tmp_path / "run")
    first = toys.metrics(tmp_path / "run")[0]["dev"]
    assert set(first) == {"accuracy@1", "recall@10", "mrr@10", "ndcg@10", "map@100"}
    assert first["recall@10"] == pytest.approx(
        (ranks <= 10).mean(), abs=0.051
    )  # a tie may fall either way
    assert found["after"]["dev"]["ndcg@10"] == max(toys.dev_scores(tmp_path / "run", "ndcg@10"))
    assert found["after"]["test"] == {}


# --------------------------------------------------------------------------------- training goes on


CONTINUED = {
    "a CrossEncoder": (
        ClassifierHead(24, 0.1),
        "logit",
        "cross-encoder-binary",
        "duplicates",
        True,
    ),
    "a CrossEncoder by ranking": (
        ClassifierHead(24, 0.1),
        "logit",
        "cross-encoder-ranking",
        "triplets",
        True,
    ),
    "a joint head": (JointHead(24), "regression", "cross-encoder", "scored", True),
    "a siamese head": (siamese(24, dropout=0.1), "regression", "siamese", "scored", True),
    "another task": (JointHead(24), "regression", "cross-encoder-binary", "duplicates", False),
    "another kind": (siamese(24), "regression", "cross-encoder", "scored", False),
}


@pytest.mark.parametrize("name", CONTINUED)
def test_a_saved_head_of_the_same_kind_and_task_is_trained_further(
    name, make, tiny, tmp_path, files, capsys
):
    head, task, objective, form, goes_on = CONTINUED[name]
    torch.manual_seed(8)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    PairModel(SentenceEncoder.load(tiny, pooling="cls"), head, task).save(tmp_path / "model")
    saved = PairModel.load(tmp_path / "model")
    found = make(objective, form, "--model", str(tmp_path / "model")).model.head
    assert ("a new one is trained" in capsys.readouterr().err) != goes_on
    same = [
        torch.equal(a.double(), b)
        for a, b in zip(saved.head.parameters(), found.parameters(), strict=True)
    ]
    assert any(same) == all(same) == goes_on
    assert {module.p for module in found.modules() if isinstance(module, torch.nn.Dropout)} == {0}
