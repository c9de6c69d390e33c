"""Objectives: what a batch holds, which parameters get which rate, how rows are held out, what an evaluation says."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minisbert.core import InputError, losses
from minisbert.data import datasets
from minisbert.data.datasets import class_rows, duplicate_rows, scored_rows, sentence_rows, triplet_rows
from minisbert.data.formats import Row
from minisbert.data.sources import load_scored_pairs
from minisbert.evaluation.model_scores import binary_scores, cosine_scores, pair_scores, vector_scores
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses
from minisbert.training.command_line import parse
from minisbert.training.objectives.base import Objective, VectorNetwork
from minisbert.training.objectives.registry import make_objective
from minisbert.training.trainable import freeze
from tests import toys


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("siamese")`` -> the objective on toy rows."""

    def build(objective: str, *flags: str) -> Objective:
        options = parse(toys.flags(files, objective, *flags))
        return make_objective(options, SentenceEncoder.load(tiny, options.pooling))

    return build


# -------------------------------------------------------------------------------------- an objective


@pytest.mark.parametrize(
    ("objective", "columns"), [("cosine", 2), ("siamese", 2), ("mnr", 3), ("simcse", 2), ("cross-encoder", 1)]
)
def test_the_tokens_of_a_row_are_those_of_all_its_texts_padded(make, files, objective, columns):
    """The toy words are in the vocabulary: a text has as many tokens as words, and two more; a joined pair three."""
    task = make(objective)
    rows = Path(files[toys.FORM.get(objective, "triplets")]).read_text().splitlines()
    for row, length in zip(rows, task.lengths, strict=True):
        words = [len(cell.split()) for cell in row.split("\t")]
        assert length == (sum(words[1:]) + 3 if objective == "cross-encoder" else columns * (max(words) + 2))


def test_batches_of_rows_in_order_and_of_any_rows(make):
    """Random batches mix lengths, grouped ones do not: the spread of the lengths within a batch, added up."""
    batches = {
        order: make("siamese", "--batches", order).batches(8, torch.Generator().manual_seed(1))
        for order in ("fixed", "random", "grouped")
    }
    assert batches["fixed"] == [list(range(start, start + 8)) for start in range(0, 40, 8)]
    task, spread = make("siamese"), {}
    assert task.batches(8, torch.Generator().manual_seed(1)) == batches["grouped"]
    for order, found in batches.items():
        assert sorted(row for batch in found for row in batch) == list(range(40))
        lengths = [[task.lengths[row] for row in batch] for batch in found]
        spread[order] = sum(max(batch) - min(batch) for batch in lengths)
    assert spread["random"] > 2 * spread["grouped"]
    other = make("siamese", "--batches", "random").batches(8, torch.Generator().manual_seed(2))
    assert other != batches["random"]


@pytest.mark.parametrize(
    ("objective", "flags", "outside"),
    [
        ("cosine", [], 0),
        ("cosine", ["--pooling", "attention"], 25),  # 24 weights and a bias
        ("siamese", [], (3 * 24 + 1) * 256 + 257),
        ("binary", ["--pooling", "attention", "--concat", "u,v"], 25 + 2 * 24 + 1),
        ("simcse", ["--projection"], 24 * 24 + 24),
    ],
)
def test_the_head_rate_is_for_all_that_follows_the_encoder(make, objective, flags, outside):
    task = make(objective, *flags)
    for head_lr, expected in ((3e-3, 3e-3), (0.0, 0.0), (None, 2e-5)):
        inner, *rest = task.parameter_groups(2e-5, head_lr)
        assert inner["lr"] == 2e-5
        assert [id(p) for p in inner["params"]] == [id(p) for p in task.encoder.bert.parameters()]
        assert [group["lr"] for group in rest] == [expected] * (outside > 0)
        assert sum(p.numel() for group in rest for p in group["params"]) == outside


def test_frozen_parameters_are_in_no_group(make):
    task = make("siamese")
    bert = task.encoder.bert
    freeze(bert, 2, embeddings=True)
    inner, head = task.parameter_groups(1e-5, 1e-3)
    assert {id(p) for p in inner["params"]} == {id(p) for p in bert.pooler.parameters()}
    bert.requires_grad_(False)
    assert task.parameter_groups(1e-5, 1e-3) == [head]
    assert head["lr"] == 1e-3


@pytest.mark.parametrize("objective", ["cosine", "cross-encoder"])
def test_batches_go_to_the_models_device(make, objective):
    network, seen = make(objective).network, []

    class Model(torch.nn.Module):
        device = torch.device("meta")

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, precision: torch.dtype) -> torch.Tensor:
            seen.extend((ids.device.type, mask.device.type))
            return ids

    if objective == "cosine":
        VectorNetwork(Model(), network.columns)([*range(40)])
    else:
        seen = [part.device.type for part in network.model.to("meta").batch(network.encoded, [0, 1])]
    assert set(seen) == {"meta"}


# ------------------------------------------------------------------------------ which rows are read


@pytest.fixture
def labelled(tmp_path):
    """``labelled("--seed", "7")`` -> the splits of fifty different duplicates, their sizes, and the notes."""
    path = tmp_path / "numbered.tsv"
    path.write_text("".join(f"{i % 2}\tthe cat {i}\ta dog\n" for i in range(50)))

    def read(*flags: str):
        rows, notes = duplicate_rows(parse(["--objective", "binary", "--data", str(path), *flags]).sources)
        return rows, {split: len(part) for split, part in rows.items()}, notes

    return read


def test_a_tenth_is_held_out_for_dev_and_for_test(labelled):
    rows, sizes, notes = labelled()
    assert sizes == {"train": 40, "dev": 5, "test": 5}
    everything = [row.sentence1 for part in rows.values() for row in part]
    assert sorted(everything) == sorted(f"the cat {i}" for i in range(50))  # each once: the splits are disjoint
    assert notes["train"].endswith("numbered.tsv (50 pairs)")
    assert notes["dev"] == notes["test"] == "held out of it (5 pairs)"
    first, again, other = (labelled("--seed", seed)[0] for seed in ("7", "7", "8"))
    assert first == again
    assert first["dev"] != other["dev"]
    assert first["test"] != other["test"]


def test_only_a_split_without_a_file_is_held_out(labelled, files):
    for given, missing in (("dev", "test"), ("test", "dev")):
        rows, sizes, notes = labelled(f"--{given}", files["duplicates"])
        assert sizes == {"train": 45, given: 40, missing: 5}
        assert notes[missing] == "held out of it (5 pairs)"
        assert not {*rows["train"]} & {*rows[missing]}
    rows, sizes, _ = labelled("--dev", files["duplicates"], "--test", files["duplicates"])
    assert [row.sentence1 for row in rows["train"]] == [f"the cat {i}" for i in range(50)]
    assert sizes == {"train": 50, "dev": 40, "test": 40}


def test_the_limit_is_for_training_rows_and_takes_the_first(labelled, files):
    rows, sizes, _ = labelled("--limit", "20")
    assert sizes == {"train": 16, "dev": 2, "test": 2}
    assert {row.sentence1 for part in rows.values() for row in part} == {f"the cat {i}" for i in range(20)}
    _, sizes, _ = labelled("--limit", "20", "--dev", files["duplicates"], "--test", files["duplicates"])
    assert sizes == {"train": 20, "dev": 40, "test": 40}
    rows, notes = scored_rows(parse(toys.flags(files, "cosine", "--limit", "7")))
    assert {split: len(part) for split, part in rows.items()} == {"train": 7, "dev": 20, "test": 20}
    assert notes["train"] == f"{files['scored']} (7 pairs)"
    for read, objective in ((triplet_rows, "mnr"), (sentence_rows, "simcse")):
        assert len(read(parse(toys.flags(files, objective, "--limit", "6")))[0]) == 6


def test_skipped_rows_are_counted(tmp_path):
    path = str(tmp_path / "some.tsv")
    Path(path).write_text("1\ta cat\tthe cat\n0\t\ta dog\n" * 20)
    _, notes = duplicate_rows(parse(["--objective", "binary", "--data", path, "--dev", path, "--test", path]).sources)
    assert notes == dict.fromkeys(("train", "dev", "test"), f"{path} (20 pairs, 20 skipped)")


def test_nli_rows_serve_softmax_and_as_triplets(files):
    """Twenty premises, each with all three labels."""
    rows, _ = class_rows(parse(["--objective", "softmax", "--data", files["nli"]]))
    assert {split: len(part) for split, part in rows.items()} == {"train": 48, "dev": 6, "test": 6}
    triplets, note = triplet_rows(parse(["--objective", "triplet", "--data", files["nli"]]))
    assert len(triplets) == 20
    assert (triplets[0].anchor, triplets[0].positive, triplets[0].negative) == ("a small cat", "the cat", "the music")
    assert note == f"{files['nli']} (20 triplets of 60 NLI rows; 0 had no gold label)"


def test_snli_and_multinli_by_name(monkeypatch, files):
    """SNLI's dev and test choose the model; MultiNLI alone, which has no labels of test, gets its own held-out rows."""
    asked = []

    def load(name: str, split: str, limit: int | None) -> tuple[list[Row], int]:
        asked.append((name, split))
        return [Row((f"{name} {i}", split), i % 3) for i in range(10)], 0

    def read(*flags: str):
        asked.clear()
        return class_rows(parse(["--objective", "softmax", *flags]).sources)

    monkeypatch.setattr(datasets, "load_nli", load)
    rows, _ = read("--data", "snli,multinli")
    assert asked == [("snli", "train"), ("multinli", "train"), ("snli", "dev"), ("snli", "test")]
    assert [row.sentence1.split()[0] for row in rows["train"]] == ["snli"] * 10 + ["multinli"] * 10
    assert read("--data", "multinli")[1]["dev"] == "held out of it (1 pairs)"
    assert asked == [("multinli", "train")]
    read("--data", "multinli", "--dev", "multinli", "--test", "multinli")
    assert asked == [("multinli", "train"), ("multinli", "dev"), ("multinli", "test")]
    read("--data", f"snli,{files['nli']}")
    assert asked == [("snli", "train"), (files["nli"], "train"), ("snli", "dev"), ("snli", "test")]


def test_several_nli_files_are_one_after_the_other(tmp_path):
    """Twelve rows and nine, the second file with a comma in its name."""
    first, second, other = tmp_path / "a.jsonl", tmp_path / "b,c.jsonl", tmp_path / "b.jsonl"
    first.write_text("".join(toys.nli(12)))
    second.write_text("".join(toys.nli(60)[51:]) + '{"gold_label": "-", "sentence1": "a", "sentence2": "b"}\n')
    other.write_bytes(second.read_bytes())
    nli = ["--objective", "softmax", "--dev", str(first), "--test", f"{first},{other}"]
    rows, notes = class_rows(parse([*nli, "--data", f"{first},{other}"]).sources)
    alone = [class_rows(parse([*nli, "--data", str(path)]).sources)[0]["train"] for path in (first, second)]
    assert [len(part) for part in alone] == [12, 9]
    assert rows["train"] == rows["test"] == alone[0] + alone[1]
    assert notes["train"] == f"{first},{other} (21 pairs, 1 skipped)"
    for limit, expected in ((5, 5), (12, 12), (14, 14), (99, 21)):
        limited, _ = class_rows(parse([*nli, "--data", f"{first},{other}", "--limit", str(limit)]).sources)
        assert limited["train"] == rows["train"][:expected]
    triplets, note = triplet_rows(parse(["--objective", "mnr", "--data", f"{first},{other}"]).sources)
    assert len(triplets) == 4 + 3
    assert note == f"{first},{other} (7 triplets of 21 NLI rows; 1 had no gold label)"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{nli},missing.jsonl", "missing.jsonl does not exist"),
        ("{nli},stsb", "stsb has no rows of the kind that is needed: objective softmax reads snli or a file of NLI"),
        ("{nli},{scored}", "scored.tsv holds no lines of JSON"),
    ],
)
def test_each_of_several_files_must_serve(files, data, message):
    with pytest.raises(InputError, match=message):
        class_rows(parse(["--objective", "softmax", "--data", data.format(**files)]).sources)


def test_scores_of_another_scale(make, tmp_path, monkeypatch):
    """As targets they are divided by it; as scores of pairs they are 0 to 5, and those of stsb always were."""
    path = tmp_path / "ones.tsv"
    path.write_text("0.8\ta cat\tthe cat\n0.3\ta cat\ta dog\n1\ta cat\ta cat\n")
    flags = ["--data", str(path), "--dev", str(path), "--test", str(path), "--scale", "1"]
    for objective in ("cosine", "cross-encoder"):
        assert make(objective, *flags).targets.tolist() == pytest.approx([0.8, 0.3, 1], abs=1e-7)
    rows, _ = scored_rows(parse(flags).sources)
    for split in ("train", "dev", "test"):
        assert [pair.score for pair in rows[split]] == pytest.approx([4, 1.5, 5], abs=1e-12)
    monkeypatch.setattr(scored_pairs, "ensure", lambda name: tmp_path)
    path.rename(tmp_path / "sts-dev.csv")
    assert [pair.score for pair in load_scored_pairs("stsb", "dev", scale=1)] == [0.8, 0.3, 1]


@pytest.mark.parametrize(
    ("scores", "scale", "message"),
    [
        ("0.8 1.2", "1", "line 2: the score 1.2 is not on the scale of 0 to 1; give its --scale"),
        ("-0.1 1", "5", "line 1: the score -0.1 is not on the scale of 0 to 5"),
        ("0.8 0.3", "5", r"no score is above 1, but the scale is 0 to 5: give --scale 1 \(labels 0 and 1 alone are"),
    ],
)
def test_scores_off_the_scale(tmp_path, scores, scale, message):
    path = tmp_path / "off.tsv"
    path.write_text("".join(f"{score}\ta cat\tthe cat\n" for score in scores.split()))
    with pytest.raises(InputError, match=message):
        scored_rows(parse(["--data", str(path), "--dev", str(path), "--test", str(path), "--scale", scale]).sources)


def test_nli_rows_without_a_triplet_are_an_error(tmp_path):
    path = tmp_path / "neutral.jsonl"
    path.write_text('{"gold_label": "neutral", "sentence1": "a cat", "sentence2": "a dog"}\n')
    with pytest.raises(InputError, match="none of 1 rows has a premise with both entailment and contradiction"):
        triplet_rows(parse(["--objective", "mnr", "--data", str(path)]).sources)


# -------------------------------------------------------------------------------------- evaluations

PAIRS = [
    Row(("the cat", "a cat"), 5),
    Row(("the cat", "a dog runs"), 4),
    Row(("the sun and the moon", "a dog runs"), 1.5),
    Row(("music", "the cat"), 4.1),
]
REGRESSION = [Row(("u", "v"), score) for score in (1, 2, 4)]


def rows_with(labels: list[int], first: str = "u") -> list[Row]:
    return [Row((f"{first}{i}", "v"), label) for i, label in enumerate(labels)]


def fake(task: str, outputs: list) -> SimpleNamespace:
    """A model whose scores are known."""
    return SimpleNamespace(task=task, scores=lambda firsts, seconds, progress: np.array(outputs, dtype=np.float32))


class Compass:
    """An encoder that knows the angle of each text, in degrees; vectors have lengths other than 1."""

    def __init__(self, **angles: float):
        self.angles = angles | {"v": 0}

    def encode(self, texts: list[str], progress: bool = False) -> np.ndarray:
        angles = np.radians([self.angles[text] for text in texts])
        return 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_scores_of_vectors_by_hand(tiny):
    """The five different texts once each; alignment of the pairs scored higher than 4: the first and the last.

    Vectors are float32, 1e-7 apart in other batches; cosines that differ by hundredths make that 1e-6 of a correlation.
    """
    encoder = SentenceEncoder.load(tiny)
    scores = vector_scores(encoder, PAIRS, contrastive=True, loss=losses.mse_loss)
    texts = ["the cat", "a cat", "a dog runs", "the sun and the moon", "music"]
    vectors = dict(zip(texts, encoder.encode(texts).astype(np.float64), strict=True))
    cosines = [vectors[pair.sentence1] @ vectors[pair.sentence2] for pair in PAIRS]
    assert scores["pearson"] == pytest.approx(np.corrcoef(cosines, [5, 4, 1.5, 4.1])[0, 1], abs=1e-5)
    assert scores["loss"] == pytest.approx(np.mean((np.array(cosines) - [1, 0.8, 0.3, 0.82]) ** 2), abs=1e-6)
    between = [(vectors[a], vectors[b]) for i, a in enumerate(texts) for b in texts[i + 1 :]]
    assert scores["mean_cosine"] == pytest.approx(np.mean([u @ v for u, v in between]), abs=1e-6)
    spread = np.log(np.mean([np.exp(-2 * ((u - v) ** 2).sum()) for u, v in between]))
    assert scores["uniformity"] == pytest.approx(spread, abs=1e-6)
    near = np.mean([((vectors["the cat"] - vectors[other]) ** 2).sum() for other in ("a cat", "music")])
    assert scores["alignment"] == pytest.approx(near, abs=1e-6)
    assert set(vector_scores(encoder, PAIRS)) == {"pearson", "spearman"}
    no_alike = vector_scores(encoder, PAIRS[1:3], contrastive=True)
    assert set(no_alike) == {"pearson", "spearman", "uniformity", "mean_cosine"}


@pytest.mark.parametrize(
    ("task", "outputs", "rows", "loss", "expected"),
    [
        ("regression", [1, 2, 3], REGRESSION, losses.mse_loss, 0.2**2 / 3),  # .6 for .8
        ("binary", [0.75, 0.5], rows_with([1, 0]), more_losses.binary_cross_entropy_loss, -np.log(0.375) / 2),
        # as float32, the probability 1 may be of any logit from 17 on; it counts as one of 16
        ("binary", [1.0, 1.0], rows_with([1, 0]), more_losses.binary_cross_entropy_loss, -np.log(1e-7) / 2),
        ("classes", [[0, 0.5, 0.5], [1, 0, 0]], rows_with([2, 0]), losses.softmax_cross_entropy_loss, np.log(2) / 2),
    ],
)
def test_the_loss_of_a_head_by_hand(task, outputs, rows, loss, expected):
    """From the scores that people read, turned back."""
    tolerance = 1e-4 if outputs == [1.0, 1.0] else 1e-7
    assert pair_scores(fake(task, outputs), rows, loss)["loss"] == pytest.approx(expected, abs=tolerance)


def test_scores_of_heads_by_hand():
    found = pair_scores(fake("binary", [0.5, 0.49, 0.9, 0.1, 0.7]), rows_with([1, 1, 0, 0, 1]))
    assert found == pytest.approx({"accuracy": 3 / 5, "f1": 2 / 3, "precision": 2 / 3, "recall": 2 / 3})
    found = pair_scores(fake("classes", [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]), rows_with([1, 2, 2]))
    assert found == pytest.approx({"accuracy": 2 / 3})
    found = pair_scores(fake("regression", [1, 2, 3]), REGRESSION)
    assert found == pytest.approx({"pearson": 0.98198, "spearman": 1.0}, abs=1e-5)  # the example of metrics.pearson


@pytest.mark.parametrize(("outputs", "why"), [([2, 2, 2], "constant"), ([1, np.nan, 2], "finite")])
def test_a_head_that_has_collapsed_is_an_error_of_one_line(outputs, why):
    with pytest.raises(InputError, match=rf"the head's scores .*a lower --head-lr may help.*: .*{why}"):
        pair_scores(fake("regression", outputs), REGRESSION)


def test_the_threshold_of_a_cosine_is_chosen_on_dev():
    """On dev any cut between 30 and 60 degrees is right; on the rows it calls 20 and 40 alike, and 50 degrees not.

    The middle of the two cosines, (.86603 + .5) / 2 = .68301, is 46.9 degrees.
    """
    encoder = Compass(d0=10, d1=30, d2=60, d3=80, t0=20, t1=40, t2=50)
    found = cosine_scores(encoder, rows_with([1, 0, 1], "t"), rows_with([1, 1, 0, 0], "d"))
    assert found.pop("threshold") == pytest.approx((np.cos(np.pi / 6) + 0.5) / 2, abs=1e-12)
    assert found == pytest.approx({"accuracy": 1 / 3, "f1": 1 / 2, "precision": 1 / 2, "recall": 1 / 2})


def test_the_loss_of_cosines_on_other_rows_than_the_threshold():
    """Angles 20 and 90 degrees with labels 1 and 0: (1 - cos 20)^2 / 2, and 0 beyond the margin; over two rows."""
    encoder = Compass(d0=10, d1=60, t0=20, t1=90)
    loss = partial(losses.contrastive_loss, margin=0.5)
    found = cosine_scores(encoder, rows_with([1, 0], "t"), rows_with([1, 0], "d"), loss)
    assert found["loss"] == pytest.approx((1 - np.cos(np.radians(20))) ** 2 / 2 / 2, abs=1e-12)


def test_a_score_at_the_threshold_means_yes():
    found = binary_scores(np.array([0.3, 0.2]), np.array([1, 0]), threshold=0.3)
    assert found == {"accuracy": 1, "f1": 1, "precision": 1, "recall": 1}
