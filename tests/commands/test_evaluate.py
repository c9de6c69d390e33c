"""Evaluation: four similarities, two correlations, and the command that prints them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minisbert.commands.evaluate import main
from minisbert.core import InputError
from minisbert.data.rows import ScoredPair
from minisbert.evaluation.evaluators import row_scores
from minisbert.models.properties import SIMILARITIES
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.toys import SCORED_HEADER

PAIRS = [
    ScoredPair("the cat sits on the mat", "a cat sits", 4.5),
    ScoredPair("a man plays the guitar", "the sun and the moon", 0.5),
    ScoredPair("a dog runs in the park", "a small dog is running", 4.0),
    ScoredPair("the woman eats bread", "a child eats an apple", 2.5),
    ScoredPair("snow", "rain over the garden", 1.0),
]


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    """The pairs above as a file."""
    path = tmp_path / "pairs.tsv"
    rows = "".join(f"{pair.score}\t{pair.sentence1}\t{pair.sentence2}\n" for pair in PAIRS)
    path.write_text(f"{SCORED_HEADER}{rows}")
    return path


def as_json(capsys, *arguments: object) -> dict[str, Any]:
    """What the command prints with ``--json``."""
    main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def test_similarities_are_computed_in_float64(tiny):
    """The second cosine, 1 - 2^-27, would be 1 in float32 and tie with an equal pair."""
    u = np.float32([[0, 0], [1, 0]])  # a zero vector is similar to nothing
    v = np.float32([[1, 0], [1, 2.0**-13]])
    scores = row_scores(SentenceEncoder.load(tiny), u, v, "cosine")
    np.testing.assert_allclose(scores, [0, 1 - 2.0**-27], atol=1e-14)


def test_the_scores_of_a_file_against_numpy(tiny, tsv, capsys):
    """Pearson from numpy, Spearman from squared rank differences, texts encoded one at a time."""
    encoder = SentenceEncoder.load(tiny)
    scores = np.array([pair.score for pair in PAIRS])
    cosines = []
    for pair in PAIRS:
        first = encoder.encode([pair.sentence1])[0]
        second = encoder.encode([pair.sentence2])[0]
        cosines.append(float(first @ second))
    result = as_json(capsys, "--model", tiny, "--data", tsv)

    pearson = np.corrcoef(cosines, scores)[0, 1]
    assert result["pearson_cosine"] == pytest.approx(pearson, abs=1e-5)
    differences = np.argsort(np.argsort(cosines)) - np.argsort(np.argsort(scores))
    n = len(PAIRS)
    spearman = 1 - 6 * (differences**2).sum() / (n * (n * n - 1))
    assert result["spearman_cosine"] == pytest.approx(spearman, abs=1e-12)


def test_the_json_of_scored_pairs(tiny, tsv, capsys):
    """Programs read these names."""
    result = as_json(capsys, "--model", tiny, "--data", tsv)
    assert result["data"] == str(tsv)
    assert result["split"] is None
    assert result["pairs"] == 5
    assert result["model"] == str(tiny)
    assert result["pooling"] == "mean"
    assert result["similarity"] == "cosine"
    assert list(result) == [
        "data",
        "split",
        "pairs",
        "model",
        "pooling",
        "similarity",
        "pearson_cosine",
        "spearman_cosine",
        "pearson_dot",
        "spearman_dot",
        "pearson_euclidean",
        "spearman_euclidean",
        "pearson_manhattan",
        "spearman_manhattan",
    ]


@pytest.fixture
def trained(tiny, tsv):
    """The model of a run that was trained on the pairs: a folder of ``minisbert train``."""
    run = tsv.parent / "run"
    shutil.copytree(tiny, run / "model")
    (run / "config.json").write_text(json.dumps({"data": str(tsv), "loss": "cosine"}))
    return run / "model"


def test_the_rows_of_the_training_are_warned_of(trained, tsv, capsys):
    """Nothing else in the table shows that the score is too high."""
    main(["--model", str(trained), "--data", str(tsv)])
    assert "trained" in capsys.readouterr().err


def test_other_rows_are_evaluated_without_a_warning(trained, tsv, capsys):
    """A copy may hold other rows: only the very file counts."""
    other = tsv.with_name("other.tsv")
    shutil.copy(tsv, other)
    main(["--model", str(trained), "--data", str(other)])
    assert "trained" not in capsys.readouterr().err


def test_the_table_states_what_was_measured_and_how(tiny, tsv, capsys):
    """A number without its model, data and pooling cannot be compared."""
    command = ["--model", str(tiny), "--data", str(tsv), "--pooling", "max"]
    result = as_json(capsys, *command)
    main(command)
    out = capsys.readouterr().out
    assert out.startswith(f"model     {tiny}, max pooling\ndata      {tsv}, 5 pairs\n")
    for name, line in zip(SIMILARITIES, out.splitlines()[-4:], strict=True):
        pearson = f"{100 * result[f'pearson_{name}']:.2f}"
        spearman = f"{100 * result[f'spearman_{name}']:.2f}"
        assert line.split() == [name, pearson, spearman]


LABELLED = [
    ("the cat sits on the mat", 1, "a cat sits"),
    ("a man plays the guitar", 0, "the sun and the moon"),
    ("a dog runs in the park", 1, "a small dog is running"),
    ("the woman eats bread", 1, "a child eats an apple"),
    ("snow", 0, "rain over the garden"),
    ("a cat sits", 0, "a man plays the guitar"),
    ("the sun and the moon", 0, "a dog runs in the park"),
    ("a small dog is running", 0, "the woman eats bread"),
    ("a child eats an apple", 0, "snow"),
    ("the sun and the moon", 1, "rain over the garden"),
]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """The labelled pairs as a file, its columns in another order."""
    path = tmp_path / "labelled.tsv"
    rows = [f"{first}\t{label}\t{second}\n" for first, label, second in LABELLED]
    path.write_text("sentence1\tlabel\tsentence2\n" + "".join(rows))
    return path


def test_the_table_of_labelled_pairs(tiny, labelled, capsys):
    """sentence-transformers' numbers are compared in ``tests/evaluation/test_evaluators.py``."""
    command = ["--model", str(tiny), "--data", str(labelled)]
    result = as_json(capsys, *command)
    assert result["pairs"] == len(LABELLED)
    main(command)
    out = capsys.readouterr().out
    assert f"{labelled}, {len(LABELLED)} labelled pairs" in out
    for name, line in zip(SIMILARITIES, out.splitlines()[-4:], strict=True):
        first, *cells = line.split()
        assert first == name
        expected = [
            100 * result[f"{name}_ap"],
            100 * result[f"{name}_f1"],
            result[f"{name}_f1_threshold"],
            100 * result[f"{name}_precision"],
            100 * result[f"{name}_recall"],
            100 * result[f"{name}_accuracy"],
            result[f"{name}_accuracy_threshold"],
        ]
        assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.006)


@pytest.fixture
def with_splits(tmp_path: Path) -> Path:
    """Two rows of train and test, two of dev, under two names."""
    path = tmp_path / "all.csv"
    rows = "train,1,a cat,a dog\nvalidation,2,a cat,a dog\ndev,4,sun,moon\ntest,0,a,b\n"
    path.write_text(f"split,score,sentence1,sentence2\n{rows}")
    return path


def test_a_split_of_a_file_is_the_rows_of_its_column(tiny, with_splits, capsys):
    """What is left out is said."""
    main(["--model", str(tiny), "--data", str(with_splits), "--split", "dev"])
    printed = capsys.readouterr()
    assert f"{with_splits}, dev split, 2 pairs" in printed.out
    assert "scored by cosine" in printed.out
    assert "split dev, not the 2 rows of train, test" in printed.err


def test_a_file_of_several_splits_needs_a_choice(tiny, with_splits):
    """Scores over train and test together mean nothing."""
    with pytest.raises(InputError, match="split"):
        main(["--model", str(tiny), "--data", str(with_splits)])


def test_a_file_without_splits_has_none_to_choose(tiny, tmp_path):
    """``--split`` would select nothing without a word."""
    path = tmp_path / "plain.csv"
    path.write_text("score,sentence1,sentence2\n1,a cat,a dog\n2,sun,moon\n")
    with pytest.raises(InputError, match="split"):
        main(["--model", str(tiny), "--data", str(path), "--split", "dev"])


def test_long_sentences_are_reported(tiny, tmp_path, capsys):
    """A score of cut texts is not the model's."""
    path = tmp_path / "long.tsv"
    path.write_text(f"{SCORED_HEADER}1\t{'cat ' * 20}\ta dog\n2\ta cat\ta dog\n")
    main(["--model", str(tiny), "--data", str(path)])
    assert "1 of 4 texts were longer than 16 tokens and were cut" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (f"{SCORED_HEADER}3\ta cat\ta dog\n3\tsun\tmoon\n", "scores"),
        ("label,sentence1,sentence2\n0,a cat,a dog\n0,sun,moon\n", "label"),
        ("rating,first,second\n3,a cat,a dog\n1,sun,moon\n", "rating"),
        ("anchor,positive,negative,negative_2\na cat,a dog,b,c\n", "negative_2 beside"),
        (f"{SCORED_HEADER}1\ta cat\ta dog\n2\ta cat\ta dog\n", "cosine"),
    ],
)
def test_rows_without_a_score_are_an_error(tiny, tmp_path, rows, message):
    """The message names what is equal everywhere, or the column that is not understood."""
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), "--data", str(tmp_path / "rows.csv")])


TRIPLETS = [
    ("the cat sits", "the cat sits", "the sun and the moon"),
    ("the sun and the moon", "a dog runs", "the sun and the rain"),
    ("music", "the moon", "music"),
]


@pytest.fixture
def triplets(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = []
    for anchor, positive, negative in TRIPLETS:
        row = {"anchor": anchor, "positive": positive, "negative": negative}
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


def test_triplets_give_an_accuracy(tiny, triplets, capsys):
    """The share of anchors that are closer to the positive, by dot products of single texts."""
    encoder = SentenceEncoder.load(tiny)
    closer = 0
    for row in TRIPLETS:
        anchor, positive, negative = (encoder.encode([text])[0] for text in row)
        if anchor @ positive > anchor @ negative:
            closer += 1
    assert 0 < closer < 3
    result = as_json(capsys, "--model", tiny, "--data", triplets)
    assert result.pop("cosine_accuracy") == pytest.approx(closer / 3, abs=1e-12)
    assert result == {
        "data": str(triplets),
        "split": None,
        "triplets": 3,
        "model": str(tiny),
        "pooling": "mean",
        "similarity": "cosine",
    }


def test_the_accuracy_of_triplets_is_a_line(tiny, triplets, capsys):
    """One number needs no table."""
    accuracy = as_json(capsys, "--model", tiny, "--data", triplets)["cosine_accuracy"]
    main(["--model", str(tiny), "--data", str(triplets)])
    out = capsys.readouterr().out
    shown = f"accuracy  {100 * accuracy:.2f} % have an anchor"
    assert f"{triplets}, 3 triplets\nscored by cosine\n{shown}" in out


@pytest.mark.slow
@pytest.mark.weights
def test_stsb_scores_of_the_real_model(minilm, stsb, capsys):
    """The published zero-shot scores, 82.03 and 82.74, with more digits from the reference."""
    result = as_json(capsys, "--model", minilm, "--split", "test")
    assert result["data"] == "stsb"
    assert result["split"] == "test"
    assert result["pairs"] == 1379
    assert result["pearson_cosine"] == pytest.approx(0.827406, abs=1e-5)
    # On unit vectors all three give the same order.
    for name in ("cosine", "dot", "euclidean"):
        assert result[f"spearman_{name}"] == pytest.approx(0.820325, abs=1e-5)
