"""Objectives: which rows, in which order, reach which loss with which setting; and what cannot be trained on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from minisbert import losses, objectives, train
from minisbert.console import run_command
from minisbert.data import ScoredPair
from minisbert.encoder import SentenceEncoder
from minisbert.objectives import OBJECTIVES, make_task
from minisbert.options import parse
from minisbert.pairs import PairModel
from minisbert.tasks import Task
from minisbert.train import main
from tests import toys

FORM = {objective: "scored" for objective in ("cosine", "cosent", "joint", "siamese", "cross")}
FORM |= {"softmax": "nli", "binary": "duplicates", "contrastive": "duplicates", "simcse": "sentences"}
FORM |= dict.fromkeys(("triplet", "mnr", "simcse-supervised"), "triplets")
HEADS = ("joint", "siamese", "cross", "softmax", "binary")
IN_BATCH = ("mnr", "simcse", "simcse-supervised")
STSB = [ScoredPair("the cat", "a cat", 5), ScoredPair("the cat", "music", 1), ScoredPair("the moon", "the sun", 2)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return toys.write_all(tmp_path_factory.mktemp("toys"))


@pytest.fixture(autouse=True)
def small_stsb(monkeypatch):
    """Softmax reports STS-B's correlation; three pairs stand in for it."""
    monkeypatch.setattr(objectives, "load_scored_pairs", lambda name, split: STSB)


def arguments(files: dict[str, str], objective: str, *flags: str) -> list[str]:
    """The flags of a run on toy data; rows without scores are evaluated on scored pairs."""
    given = ["--objective", objective, "--data", files[FORM[objective]]]
    if FORM[objective] not in ("nli", "duplicates"):
        given += ["--dev", files["dev"], "--test", files["test"]]
    return [*given, *flags]


@pytest.fixture
def run(tiny: Path, files: dict[str, str], tmp_path: Path):
    """``run("mnr", "--epochs", "2")`` trains the tiny model on toy rows of the right form -> the folder of the run."""

    def start(objective: str, *flags: str) -> Path:
        out = ["--model", str(tiny), "--batch-size", "8", "--out", str(tmp_path / "run")]
        main([*out, *arguments(files, objective, *flags)])
        return tmp_path / "run"

    return start


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("mnr", "--symmetric")`` -> the task on the tiny model in float64 and eval mode."""

    def build(objective: str, *flags: str, model: Path = tiny) -> Task:
        options = parse(arguments(files, objective, *flags))
        torch.manual_seed(3)
        task = make_task(options, SentenceEncoder.load(model, options.pooling))
        task.model.double().eval()
        return task

    return build


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def cells(path: str) -> list[list[str]]:
    """The cells of a toy file's lines."""
    lines = Path(path).read_text().splitlines()
    if path.endswith(".jsonl"):
        return [[row["gold_label"], row["sentence1"], row["sentence2"]] for row in map(json.loads, lines)]
    return [line.split("\t") for line in lines]


# ------------------------------------------------------------------------------------- whole runs

MEMORIZE = ("--limit", "8", "--epochs", "40", "--lr", "5e-3")  # eight rows, one batch: a head must get them by heart
LEARN = ("--epochs", "10", "--lr", "5e-3")


@pytest.mark.parametrize(
    ("objective", "flags", "least"),
    [
        ("cosine", MEMORIZE, 0.03),
        ("cosent", MEMORIZE, 2.0),  # log(1 + 16): at 2.8 all cosines are the same
        ("joint", MEMORIZE, 0.03),  # mean squared errors: .16 is that of a constant
        ("siamese", MEMORIZE, 0.03),
        ("cross", MEMORIZE, 0.03),
        ("cross", (*MEMORIZE, "--variant", "published"), 0.05),
        ("softmax", ("--limit", "30", "--epochs", "15", "--lr", "1e-2"), 0.9),  # log 3 = 1.1 knows nothing
        ("binary", ("--concat", "|u-v|,u*v", "--head-hidden", "32", "--epochs", "15", "--lr", "5e-3"), 0.55),
        ("contrastive", LEARN, 0.03),
        ("triplet", LEARN, 0.1),
        ("mnr", LEARN, 2.2),
        ("simcse-supervised", LEARN, 2.2),
        ("simcse", LEARN, 1.4),
        ("simcse", (*LEARN, "--projection"), 1.4),
    ],
)
def test_every_objective_learns_and_its_model_loads_again(run, tiny, objective, flags, least):
    folder = run(objective, *flags, "--log-every", "1")
    curve = [line["loss"] for line in metrics(folder) if "loss" in line]
    last = np.mean(curve[-5:])
    assert last < least < curve[0] or last < least < np.mean(curve[:3])
    assert last < 0.85 * curve[0]

    model = (PairModel if objective in HEADS else SentenceEncoder).load(folder / "model")
    encoder = model.encoder if objective in HEADS else model
    assert encoder.state_dict().keys() == SentenceEncoder.load(tiny).state_dict().keys()
    assert (folder / "model" / "head.json").exists() == (objective in HEADS)

    expected = {"cosine": "spearman", "cosent": "spearman", "softmax": "accuracy"} | dict.fromkeys(HEADS[:3], "pearson")
    expected |= {"binary": "f1", "contrastive": "f1"}
    best = expected.get(objective, "spearman")
    results = json.loads((folder / "results.json").read_text())
    assert results["after"]["dev"][best] == max(line["dev"][best] for line in metrics(folder) if "dev" in line)


def test_what_each_objective_reports(run):
    correlations = {"pearson", "spearman"}
    decisions = {"accuracy", "f1", "precision", "recall"}
    space = {"alignment", "uniformity", "mean_cosine"}
    reported = {"cosine": correlations, "joint": correlations, "binary": decisions, "softmax": {"accuracy", "stsb_spearman"}}
    reported |= {"contrastive": decisions | {"threshold"}, "mnr": correlations | space, "simcse": correlations | space}
    for objective, expected in reported.items():
        results = json.loads((run(objective, "--max-steps", "1", "--overwrite") / "results.json").read_text())
        assert set(results["after"]["dev"]) == set(results["before"]["test"]) == expected, objective


def test_softmax_reports_the_encoders_own_correlation(run, tiny):
    """By hand: the three cosines of STS-B's stand-in, ranked."""
    results = json.loads((run("softmax", "--max-steps", "1", "--lr", "0") / "results.json").read_text())
    encoder = SentenceEncoder.load(tiny)
    cosines = [float(np.dot(*encoder.encode([pair.sentence1, pair.sentence2]))) for pair in STSB]
    ranks, wanted = np.argsort(np.argsort(cosines)), np.array([2, 0, 1])  # of scores 5, 1, 2
    expected = 1 - 6 * ((ranks - wanted) ** 2).sum() / (3 * (9 - 1))
    assert results["before"]["dev"]["stsb_spearman"] == pytest.approx(expected, abs=1e-9)


# ------------------------------------------------------------------------------- the loss of a batch

ROWS = [7, 0, 3, 12, 5]  # of no order, of lengths that differ


def vectors(encoder: SentenceEncoder, texts: list[str], scaled: bool = True) -> Tensor:
    """Each text alone through the encoder: no pads, no mask. (B, D) float64."""
    forward = encoder if scaled else encoder.unscaled
    return torch.cat([forward(torch.tensor([ids])) for ids in encoder.tokenizer.encode(texts).ids])


BETWEEN_VECTORS = [
    ("cosine", [], lambda u, v, y: losses.cosine_mse_loss(u, v, y / 5)),
    ("cosent", [], lambda u, v, y: losses.cosent_loss(u, v, y, scale=20)),
    ("cosent", ["--temperature", "0.5"], lambda u, v, y: losses.cosent_loss(u, v, y, scale=2)),
    ("contrastive", [], lambda u, v, y: losses.contrastive_loss(u, v, y, margin=0.5)),
    ("contrastive", ["--margin", "1.5"], lambda u, v, y: losses.contrastive_loss(u, v, y, margin=1.5)),
    ("triplet", [], lambda a, p, n, _: losses.triplet_loss(a, p, n, margin=1)),
    ("triplet", ["--margin", "0.25"], lambda a, p, n, _: losses.triplet_loss(a, p, n, margin=0.25)),
    ("mnr", [], lambda a, p, n, _: losses.multiple_negatives_ranking_loss(a, p, n, scale=20)),
    (
        "mnr",
        ["--temperature", "0.5", "--symmetric"],
        lambda a, p, n, _: losses.multiple_negatives_ranking_loss(a, p, n, scale=2, symmetric=True),
    ),
    ("simcse-supervised", [], lambda a, p, n, _: losses.simcse_loss(a, p, n, temperature=0.05)),
    (
        "simcse-supervised",
        ["--temperature", "0.5", "--hard-negative-weight", "1.25"],
        lambda a, p, n, _: losses.simcse_loss(a, p, n, temperature=0.5, hard_negative_weight=1.25),
    ),
    ("simcse", [], lambda u, _: losses.simcse_loss(u, u, temperature=0.05)),
    ("simcse", ["--temperature", "0.5"], lambda u, _: losses.simcse_loss(u, u, temperature=0.5)),
]


@pytest.mark.parametrize(("objective", "flags", "formula"), BETWEEN_VECTORS)
def test_the_loss_of_a_batch_of_vectors(make, files, objective, flags, formula):
    task = make(objective, *flags)
    rows = [cells(files[FORM[objective]])[row] for row in batch_rows(task)]
    labels = torch.zeros(len(rows))
    if FORM[objective] in ("scored", "duplicates"):
        labels = torch.tensor([float(row[0]) for row in rows])
        rows = [row[1:] for row in rows]
    columns = [vectors(task.model, list(texts)) for texts in zip(*rows, strict=True)]
    expected = formula(*columns, labels)
    torch.testing.assert_close(task.loss(batch_rows(task)), expected, rtol=0, atol=1e-7)  # targets are float32


def batch_rows(task: Task) -> list[int]:
    return ROWS


HEADED = [
    ("joint", [], lambda z, y: losses.mse_loss(z, y / 5)),
    ("joint", ["--loss", "weighted-mse"], lambda z, y: losses.weighted_mse_loss(z, y / 5)),
    ("siamese", [], lambda z, y: losses.mse_loss(z, y / 5)),
    ("siamese", ["--loss", "weighted-mse", "--pooling", "cls"], lambda z, y: losses.weighted_mse_loss(z, y / 5)),
    ("cross", [], lambda z, y: losses.mse_loss(z, y / 5)),
    ("cross", ["--variant", "published", "--loss", "weighted-mse"], lambda z, y: losses.weighted_mse_loss(z, y / 5)),
    ("binary", [], losses.binary_cross_entropy_loss),
    (
        "binary",
        ["--pos-weight", "3", "--concat", "u,u*v", "--head-hidden", "10"],
        lambda z, y: losses.binary_cross_entropy_loss(z, y, pos_weight=3),
    ),
    ("softmax", [], losses.softmax_cross_entropy_loss),
    ("softmax", ["--concat", "|u-v|,u*v", "--head-hidden", "10"], losses.softmax_cross_entropy_loss),
]


@pytest.mark.parametrize(("objective", "flags", "formula"), HEADED)
def test_the_loss_of_a_batch_with_a_head(make, files, objective, flags, formula):
    flags = flags if FORM[objective] == "scored" else [*flags, "--dev", files[FORM[objective]], "--test", files[FORM[objective]]]
    options = parse(arguments(files, objective, *flags)) if FORM[objective] == "scored" else None
    task = make(objective, *flags) if options else labelled_task(make, files, objective, flags)
    model, encoder = task.model, task.model.encoder
    label, first, second = zip(*(cells(files[FORM[objective]])[row] for row in ROWS), strict=True)
    if objective == "joint":
        joined = encoder.tokenizer.encode_pairs(first, second)
        pairs = zip(joined.ids, joined.token_types, strict=True)
        outputs = [model.head(encoder.bert(torch.tensor([ids]), None, torch.tensor([types]))) for ids, types in pairs]
    elif objective == "cross":
        sides = (encoder.tokenizer.encode(list(texts)).ids for texts in (first, second))
        outputs = [model.head(*(encoder.bert(torch.tensor([ids])) for ids in pair)) for pair in zip(*sides, strict=True)]
    else:
        outputs = [model.head(*(vectors(encoder, list(texts), scaled=False) for texts in (first, second)))]
    outputs = torch.cat(outputs)  # (B, outputs)
    if objective == "softmax":
        labels = torch.tensor([["contradiction", "entailment", "neutral"].index(name) for name in label])
        expected = formula(outputs, labels)
    else:
        expected = formula(outputs[:, 0], torch.tensor([float(number) for number in label]))
    torch.testing.assert_close(task.loss(ROWS), expected, rtol=0, atol=1e-7)  # targets are float32
