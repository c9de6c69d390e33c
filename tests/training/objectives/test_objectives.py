"""Objectives: which rows, in which order, reach which loss with which setting; and what cannot be
trained on.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from minisbert.core import InputError, encoder, loop, losses
from minisbert.core.metrics import spearman
from minisbert.data.datasets import Row
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command
from minisbert.training import losses as more_losses
from minisbert.training.objectives import Objective
from minisbert.training.settings import parse
from minisbert.training.train import main, make_objective
from tests import toys

FORM = toys.FORM | dict.fromkeys(("triplet", "mnr", "simcse-supervised"), "triplets")
HEADS = ("cross-encoder", "siamese", "cross-attention", "softmax", "binary")
IN_BATCH = ("mnr", "simcse", "simcse-supervised")
STSB = [Row(("the cat", "a cat"), 5), Row(("the cat", "music"), 1), Row(("the moon", "the sun"), 2)]


@pytest.fixture(autouse=True)
def small_stsb(monkeypatch):
    """Softmax reports STS-B's correlation; here of three pairs."""
    monkeypatch.setattr(
        "minisbert.training.objectives.pairs.load_scored_pairs", lambda name, split: STSB
    )


@pytest.fixture
def run(tiny: Path, files: dict[str, str], tmp_path: Path):
    """``run("mnr", "--epochs", "2")`` trains the tiny model on toy rows of the right form -> the
    folder of the run.
    """

    def start(objective: str, *flags: str) -> Path:
        out = [
            "--model",
            str(tiny),
            "--batch-size",
            "8",
            "--overwrite",
            "--out",
            str(tmp_path / "run"),
        ]
        main([*out, *toys.flags(files, objective, *flags)])
        return tmp_path / "run"

    return start


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("mnr", "--symmetric")`` -> the objective on the tiny model in float64 and eval
    mode.
    """

    def build(objective: str, *flags: str, model: Path = tiny) -> Objective:
        given = toys.flags(files, objective)
        if "--dev" not in given:  # nothing is held out, so that row numbers are those of the file
            given += ["--dev", files[FORM[objective]], "--test", files[FORM[objective]]]
        options = parse([*given, *flags])
        torch.manual_seed(3)
        task = make_objective(options, SentenceEncoder.load(model, pooling=options.pooling))
        task.model.double().eval()
        return task

    return build


def cells(files: dict[str, str], objective: str, rows: list[int]) -> list[list[str]]:
    """The columns of some rows of the objective's toy file, the label first."""
    lines = Path(files[FORM[objective]]).read_text().splitlines()
    if FORM[objective] == "nli":
        table = [
            [row["gold_label"], row["sentence1"], row["sentence2"]]
            for row in map(json.loads, lines)
        ]
    else:
        table = [
            line.split("\t") for line in (lines if FORM[objective] == "sentences" else lines[1:])
        ]
    return [list(column) for column in zip(*(table[row] for row in rows), strict=True)]


# ------------------------------------------------------------------------------------- whole runs

MEMORIZE = (
    "--limit",
    "8",
    "--epochs",
    "60",
    "--lr",
    "3e-3",
)  # eight rows, one batch: a head must get them by heart
LEARN = ("--epochs", "10", "--lr", "5e-3")
SLOWER = ("--epochs", "15", "--lr")


DECISIONS = {"accuracy", "f1", "precision", "recall", "loss"}
SCORES = {"pearson", "spearman", "loss"}


@pytest.mark.parametrize(
    ("objective", "flags", "least", "best", "reported"),
    [
        ("cosine", MEMORIZE, 0.06, "spearman", SCORES),
        (
            "cosent",
            MEMORIZE,
            2.0,
            "spearman",
            SCORES - {"loss"},
        ),  # log(1 + 16): at 2.8 all cosines are the same
        (
            "cross-encoder",
            MEMORIZE,
            0.03,
            "pearson",
            SCORES,
        ),  # mean squared errors: .16 is that of a constant
        ("siamese", MEMORIZE, 0.03, "pearson", SCORES),
        ("cross-attention", MEMORIZE, 0.03, "pearson", SCORES),
        # log 3 = 1.1 knows nothing
        (
            "softmax",
            ("--limit", "48", *SLOWER, "1e-2"),
            0.9,
            "accuracy",
            {"accuracy", "stsb_spearman", "loss"},
        ),
        ("binary", (*SLOWER, "1e-2"), 0.55, "f1", DECISIONS),
        ("triplet", LEARN, 0.1, "spearman", SCORES - {"loss"}),
        ("mnr", LEARN, 2.2, "spearman", SCORES - {"loss"}),
        ("simcse-supervised", LEARN, 2.2, "spearman", SCORES - {"loss"}),
        ("simcse", LEARN, 1.4, "spearman", SCORES - {"loss"}),
    ],
)
def test_every_objective_learns_and_its_model_loads_again(
    run, tiny, objective, flags, least, best, reported
):
    folder = run(objective, *flags, "--log-every", "1")
    curve = toys.losses(folder)
    assert np.mean(curve[-5:]) < least < np.mean(curve[:3])

    model = (PairModel if objective in HEADS else SentenceEncoder).load(folder / "model")
    encoder = model.encoder if objective in HEADS else model
    assert encoder.state_dict().keys() == SentenceEncoder.load(tiny).state_dict().keys()
    assert (folder / "model" / "head.json").exists() == (objective in HEADS)

    results = toys.results(folder)
    assert results["after"]["dev"][best] == max(toys.dev_scores(folder, best))
    assert set(results["after"]["dev"]) == set(results["before"]["test"]) == reported


def test_the_limit_of_a_run_is_that_of_its_model(run):
    """In the run's settings and the saved model; a caller may set another one."""
    folder = run("siamese", "--max-length", "6", "--max-steps", "1")
    assert json.loads((folder / "config.json").read_text())["max_length"] == 6
    assert (
        json.loads((folder / "model" / "sentence_bert_config.json").read_text())["max_seq_length"]
        == 6
    )
    model = PairModel.load(folder / "model")
    assert len(model.encoder.tokenizer.encode(["the cat " * 9]).ids[0]) == 6
    assert PairModel.load(folder / "model", max_length=5).encoder.tokenizer.limit == 5
    assert SentenceEncoder.load(folder / "model", max_seq_length=9).tokenizer.limit == 9


def test_softmax_reports_the_encoders_own_correlation(make):
    """By hand: the three cosines of STS-B's stand-in, ranked."""
    task = make("softmax")
    cosines = [
        float(np.dot(*task.encoder.encode([pair.sentence1, pair.sentence2]))) for pair in STSB
    ]
    ranks, wanted = np.argsort(np.argsort(cosines)), np.array([2, 0, 1])  # of scores 5, 1, 2
    expected = 1 - 6 * ((ranks - wanted) ** 2).sum() / (3 * (9 - 1))
    assert task.evaluate("dev")["stsb_spearman"] == pytest.approx(expected, abs=1e-9)


# ------------------------------------------------------------------------------- the loss of a
# batch

ROWS = [7, 0, 3, 12, 5]  # of no order, of lengths that differ


def vectors(encoder: SentenceEncoder, texts: list[str], scaled: bool = True) -> Tensor:
    """Each text alone through the encoder: no pads, no mask. (B, D) float64."""
    forward = encoder if scaled else encoder.unscaled
    return torch.cat([forward(torch.tensor([ids])) for ids in encoder.tokenizer.encode(texts).ids])


RANKING = losses.multiple_negatives_ranking_loss
BETWEEN_VECTORS = [
    ("cosine", "", losses.cosine_mse_loss),
    ("cosent", "", partial(more_losses.cosent_loss, scale=20)),
    ("cosent", "--temperature 0.5", partial(more_losses.cosent_loss, scale=2)),
    ("triplet", "", partial(losses.triplet_loss, margin=1)),
    ("triplet", "--margin 0.25", partial(losses.triplet_loss, margin=0.25)),
    ("mnr", "", partial(RANKING, scale=20)),
    ("mnr", "--temperature 0.5 --symmetric", partial(RANKING, scale=2, symmetric=True)),
    ("simcse-supervised", "", partial(losses.simcse_loss, temperature=0.05)),
    ("simcse-supervised", "--temperature 0.5", partial(losses.simcse_loss, temperature=0.5)),
    ("simcse", "", lambda u: losses.simcse_loss(u, u, temperature=0.05)),
    ("simcse", "--temperature 0.5", lambda u: losses.simcse_loss(u, u, temperature=0.5)),
]


@pytest.mark.parametrize(("objective", "flags", "formula"), BETWEEN_VECTORS)
def test_the_loss_of_a_batch_of_vectors(make, files, objective, flags, formula):
    """And the sum over prefixes, with the gradient of the word embeddings; 24 is the width of the
    vectors.
    """
    task = make(objective, *flags.split(), "--matryoshka", "11,5")
    assert task.prefixes == [24, 11, 5]
    columns, fixed = cells(files, objective, ROWS), []
    if FORM[objective] in ("scored", "duplicates"):
        fixed = [targets(objective, columns.pop(0))]
    whole = [vectors(task.model, column) for column in columns]
    found = task.loss(task.network, ROWS)
    task.prefixes = ()
    torch.testing.assert_close(
        task.loss(task.network, ROWS), formula(*whole, *fixed), rtol=0, atol=1e-10
    )
    expected = sum(
        formula(*(functional.normalize(x[:, :dim]) for x in whole), *fixed) for dim in (24, 11, 5)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    weight = task.model.bert.embeddings.word.weight
    gradients = [torch.autograd.grad(loss, weight)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def targets(objective: str, labels: list[str]) -> Tensor:
    """Scores of 0 to 5 are learned as 0 to 1, 0 and 1 as they are, names of NLI's classes by their
    place.
    """
    if FORM[objective] == "nli":
        return torch.tensor(
            [["contradiction", "entailment", "neutral"].index(label) for label in labels]
        )
    return torch.tensor(
        [float(label) / (5 if FORM[objective] == "scored" else 1) for label in labels]
    )


@pytest.mark.parametrize("objective", ["mnr", "simcse-supervised"])
@pytest.mark.parametrize("width", [2, 3, 5])
def test_pairs_and_rows_with_several_negatives(make, files, tmp_path, objective, width):
    """Each anchor picks its positive among all positives and all negatives of the batch."""
    words = [[toys.NOUNS[i - 3 * column] for column in range(width)] for i in range(20)]
    path = tmp_path / "rows.tsv"
    header = "\t".join(["anchor", "positive", *(f"negative_{i}" for i in range(1, width - 1))])
    lines = ["\t".join(f"{word} {i}" for word in row) for i, row in enumerate(words)]
    path.write_text("\n".join([header, *lines]))
    task = make(objective, "--data", str(path), "--temperature", "0.25")
    columns = [[f"{words[row][column]} {row}" for row in ROWS] for column in range(width)]
    anchors, *others = (vectors(task.model, column) for column in columns)
    logits = (
        functional.cosine_similarity(anchors[:, None], torch.cat(others)[None], dim=-1) / 0.25
    )  # (B, (n - 1) B)
    expected = functional.cross_entropy(logits, torch.arange(len(ROWS)))
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-10)
    assert (
        task.notes["train"]
        == f"{path} (20 { ({2: 'pairs', 3: 'triplets', 5: 'rows of 3 negatives'}[width]) })"
    )


def test_the_nested_loss_is_what_trains_and_prefixes_are_scored(run, tiny, files):
    one = toys.losses(run("cosine", "--max-steps", "1"))[0]
    folder = run("cosine", "--max-steps", "1", "--matryoshka", "8")
    assert toys.losses(folder)[0] > 1.2 * one  # the same loss, and that of eight columns
    rows = [line.split("\t") for line in Path(files["dev"]).read_text().splitlines()[1:]]
    u, v = (
        SentenceEncoder.load(tiny).encode([row[i] for row in rows], truncate_dim=8) for i in (1, 2)
    )
    cosines = functional.cosine_similarity(
        torch.from_numpy(u).double(), torch.from_numpy(v).double()
    )
    expected = spearman(cosines.numpy(), np.array([float(row[0]) for row in rows]))
    assert toys.results(folder)["before"]["dev"]["spearman@8"] == pytest.approx(expected, abs=1e-12)


HEADED = [
    ("cross-encoder", "", losses.mse_loss),
    ("siamese", "", losses.mse_loss),
    ("siamese", "--pooling cls", losses.mse_loss),
    ("cross-attention", "", losses.mse_loss),
    ("binary", "", more_losses.binary_cross_entropy_loss),
    ("softmax", "", losses.softmax_cross_entropy_loss),
]


@pytest.mark.parametrize(("objective", "flags", "formula"), HEADED)
def test_the_loss_of_a_batch_with_a_head(make, files, objective, flags, formula):
    task = make(objective, *flags.split())
    model, encoder = task.model, task.model.encoder
    label, first, second = cells(files, objective, ROWS)
    if objective == "cross-encoder":
        joined = encoder.tokenizer.encode_pairs(first, second)
        pairs = zip(joined.ids, joined.token_types, strict=True)
        outputs = [
            model.head(encoder.bert(torch.tensor([ids]), None, torch.tensor([types])))
            for ids, types in pairs
        ]
    elif objective == "cross-attention":
        pairs = zip(
            encoder.tokenizer.encode(first).ids, encoder.tokenizer.encode(second).ids, strict=True
        )
        outputs = [
            model.head(*(encoder.bert(torch.tensor([ids])) for ids in pair)) for pair in pairs
        ]
    else:
        outputs = [
            model.head(*(vectors(encoder, texts, scaled=False) for texts in (first, second)))
        ]
    outputs = torch.cat(outputs)  # (B, outputs)
    outputs = outputs if objective == "softmax" else outputs[:, 0]  # (B, 3) or (B,)
    expected = formula(outputs, targets(objective, label))
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------- in-batch negatives


@pytest.mark.parametrize("objective", IN_BATCH)
def test_no_text_is_in_a_batch_twice(make, tmp_path, objective):
    """Each text in up to three rows, and in any column."""
    nouns = toys.NOUNS
    rows = [
        [f"the {nouns[i % 12]}", f"a {nouns[i % 9]}", f"the {nouns[(i + 5) % 12]}"]
        for i in range(36)
    ]
    path = tmp_path / "repeats.txt"
    lines = ["anchor\tpositive\tnegative", *("\t".join(row) for row in rows)]
    if objective == "simcse":
        lines = [row[0] for row in rows]
    path.write_text("\n".join(lines) + "\n")
    task = make(objective, "--data", str(path))
    for epoch in range(3):
        batches = task.batches(8, torch.Generator().manual_seed(epoch))
        assert sorted(row for batch in batches for row in batch) == list(range(36))
        for batch in batches:
            texts = [
                text
                for row in batch
                for text in ({rows[row][0]} if objective == "simcse" else {*rows[row]})
            ]
            assert len(batch) > 1
            assert len(texts) == len({*texts})


@pytest.mark.parametrize("objective", ["cosine", "cross-encoder", "softmax", "triplet"])
def test_other_objectives_fill_their_batches(make, objective):
    task = make(objective)
    count = len(task.lengths)
    batches = task.batches(7, torch.Generator().manual_seed(1))
    assert sorted(map(len, batches)) == sorted([7] * (count // 7) + [count % 7] * (count % 7 > 0))


# -------------------------------------------------------------------------------------- the loss on
# dev


@pytest.mark.parametrize(
    "objective", ["cosine", "cross-encoder", "siamese", "cross-attention", "softmax", "binary"]
)
def test_the_loss_on_dev_is_the_objectives_own(make, files, objective):
    """The training rows as dev rows, in float32: the loss of the batch of all of them."""
    task = make(objective, "--dev", files[FORM[objective]])
    task.model.float()
    with torch.no_grad():
        expected = task.loss(task.network, list(range(len(task.lengths))))
    assert task.evaluate("dev")["loss"] == pytest.approx(float(expected), abs=2e-6)


# ---------------------------------------------------------------------------------- unsupervised
# SimCSE


@pytest.fixture
def views(monkeypatch) -> list[tuple[Tensor, Tensor]]:
    """The vectors that SimCSE's loss gets."""
    seen, formula = [], losses.simcse_loss
    spy = lambda u, v, **rest: seen.append((u.detach(), v.detach())) or formula(u, v, **rest)  # noqa: E731
    monkeypatch.setattr(losses, "simcse_loss", spy)
    return seen


def test_the_two_views_of_a_sentence_differ_by_dropout(make, views):
    task = make("simcse")
    task.model.train()
    task.loss(task.network, ROWS)
    u, v = views[0]
    assert u.shape == (5, 24)
    assert (u != v).any(dim=1).all()
    assert (encoder.cosine(u, v) > 0.8).all()  # but they are views of one sentence
    assert (encoder.cosine(u, v) < 0.9999).all()


@pytest.mark.parametrize("rate", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_either_dropout_makes_two_views(make, tiny, tmp_path, views, rate):
    task = make("simcse", model=toys.without_dropout(tiny, tmp_path / "one", **{rate: 0.2}))
    task.model.train()
    task.loss(task.network, ROWS)
    assert (views[0][0] != views[0][1]).any(dim=1).all()


def test_the_dropout_of_a_run_is_the_chosen_one(run, tiny, tmp_path, views):
    """And the saved model says so; no dropout makes two views one, unless that is asked for."""
    model = str(toys.without_dropout(tiny, tmp_path / "none"))
    folder = run("simcse", "--max-steps", "1", "--model", model, "--dropout", "0.3")
    config = json.loads((folder / "model" / "config.json").read_text())
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (0.3, 0.3)
    assert (views[0][0] != views[0][1]).any(dim=1).all()
    with pytest.raises(
        InputError, match=r"this model has no dropout, .*, or --dropout 0 to train anyway"
    ):
        run("simcse", "--max-steps", "1", "--model", model)
    for flags in ([], ["--model", model]):
        run("simcse", "--max-steps", "1", *flags, "--dropout", "0")
        torch.testing.assert_close(*views[-1], rtol=0, atol=1e-6)  # float32, two places of a batch


@pytest.mark.parametrize("objective", ["simcse", "mnr"])
def test_the_projection_is_between_encoder_and_loss(make, files, objective):
    """tanh(W x + b) of each vector, by hand."""
    task = make(objective, "--projection", "--temperature", "0.5")
    linear, _ = task.network.projection.double()
    texts = cells(files, objective, ROWS)
    columns = [
        torch.tanh(vectors(task.model, column) @ linear.weight.T + linear.bias) for column in texts
    ]
    if objective == "simcse":
        expected = losses.simcse_loss(columns[0], columns[0], temperature=0.5)
    else:
        expected = losses.multiple_negatives_ranking_loss(*columns, scale=2)
    torch.testing.assert_close(task.loss(task.network, ROWS), expected, rtol=0, atol=1e-10)


def test_the_projection_is_trained_and_never_saved(run, tiny, monkeypatch):
    groups = []

    def spy(parameters, *rest):
        groups.extend([(p, p.detach().clone()) for p in group["params"]] for group in parameters)
        return adamw(parameters, *rest)

    adamw = loop.adamw
    monkeypatch.setattr("minisbert.training.train.adamw", spy)
    folder = run("simcse", "--projection", "--epochs", "2", "--lr", "1e-3")
    encoder, projection = groups
    assert [tuple(parameter.shape) for parameter, _ in projection] == [(24, 24), (24,)]
    assert not any(torch.equal(parameter, before) for parameter, before in projection)
    whole = SentenceEncoder.load(tiny)
    unread = sum(
        parameter.numel() for parameter in whole.bert.pooler.parameters()
    )  # mean pooling has no use for it
    assert sum(p.numel() for p, _ in encoder) == sum(p.numel() for p in whole.parameters()) - unread
    modules = json.loads((folder / "model" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    assert [*(folder / "model").rglob("*.safetensors")] == [folder / "model" / "model.safetensors"]
    assert SentenceEncoder.load(folder / "model").state_dict().keys() == whole.state_dict().keys()


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("objective", "flags", "message"),
    [
        ("cosine", "--data {nli}", "classes"),
        ("cosine", "--data {duplicates}", "scale"),
        ("siamese", "--data {triplets}", "sentence1"),
        ("cross-encoder", "--data {sentences}", "sentence1"),
        ("binary", "--data {scored}", "label '4'"),
        ("softmax", "--data {sentences}", "gold_label"),
        ("triplet", "--data {scored}", "anchor"),
        ("mnr", "--data {sentences}", "anchor"),
        ("simcse", "--data {triplets}", "text"),
        ("simcse", "--data {nli}", "the keys"),
        (
            "cosine",
            "--data snli",
            "snli has no rows of the kind that is needed: give stsb or a file of scored pairs",
        ),
        ("binary", "--data missing.tsv", "missing.tsv does not exist"),
        *((name, "--batch-size 1", f"objective {name}") for name in (*IN_BATCH, "cosent")),
        ("mnr", "--matryoshka 25,8", "--matryoshka 25"),
        ("mnr", "--matryoshka 8 --projection", "--matryoshka and --projection"),
        ("binary", "--limit 2", "too few to hold some out"),
        ("binary", "--limit 10", "no pair has label 1, so F1 is not defined"),
        ("simcse", "--limit 1", "any two rows share a text, so no batch has a negative"),
        ("cosine", "--max-length 9999", "9999"),
        ("cross-encoder", "--max-length 2", "limit of 2"),
        ("cosine", "--model no-model", "no-model"),
        ("cosine", "--device tpu", "tpu"),
        ("cosine", "--pooling sum", "pooling"),
        ("cosine", "--data {off}", "--scale"),
        ("cosine", "--dev {constant}", "constant.tsv"),
        ("cosine", "--test {constant}", "constant.tsv"),
    ],
)
def test_bad_rows_and_settings_exit_2_with_one_line(
    run, files, tmp_path, capsys, objective, flags, message
):
    bad = {"constant": tmp_path / "constant.tsv", "off": tmp_path / "off.tsv"}
    for score, path in zip((3, 80), bad.values(), strict=True):
        path.write_text(f"{toys.SCORED_HEADER}3\ta cat\ta dog\n{score}\tsun\tmoon\n")
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: run(objective, *flags.format(**files, **bad).split()))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "run").exists()


def test_sentences_have_no_default():
    with pytest.raises(InputError, match="--data FILE is needed: plain texts"):
        make_objective(parse(["--objective", "simcse"]), None)


def test_the_pooling_of_a_cross_encoders_encoder_is_the_chosen_one(run, tmp_path):
    model = str(run("cross-encoder", "--pooler-head", "--max-steps", "1") / "model")
    for flags, pooling in (([], "cls"), (["--pooling", "mean"], "mean")):
        run(
            "siamese",
            "--model",
            model,
            "--max-steps",
            "1",
            *flags,
            "--out",
            str(tmp_path / pooling),
        )
        assert PairModel.load(tmp_path / pooling / "model").encoder.pooling_mode == pooling
