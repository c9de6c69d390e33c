"""Evaluation: four similarities, two correlations, and the command that prints them."""

import json
from pathlib import Path

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


def test_similarities_are_computed_in_float64(tiny):
    """The cosine of the second angle, 1 - 2^-27, would be 1 in float32 and tie with an equal
    pair.
    """
    u, v = (
        np.float32([[0, 0], [1, 0]]),
        np.float32([[1, 0], [1, 2.0**-13]]),
    )  # a zero vector is similar to nothing
    found = row_scores(SentenceEncoder.load(tiny), u, v, "cosine")
    np.testing.assert_allclose(found, [0, 1 - 2.0**-27], atol=1e-14)


def test_the_scores_of_a_file_against_numpy(tiny, tsv, capsys):
    """Pearson from numpy, Spearman from squared rank differences, on vectors encoded one at a
    time.
    """
    encoder = SentenceEncoder.load(tiny)
    scores = np.array([pair.score for pair in PAIRS])
    cosines = [
        float(encoder.encode([pair.sentence1])[0] @ encoder.encode([pair.sentence2])[0])
        for pair in PAIRS
    ]
    main(["--model", str(tiny), "--data", str(tsv), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["pearson_cosine"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-5)
    differences = np.argsort(np.argsort(cosines)) - np.argsort(np.argsort(scores))
    n = len(PAIRS)
    assert found["spearman_cosine"] == pytest.approx(
        1 - 6 * (differences**2).sum() / (n * (n * n - 1)), abs=1e-12
    )
    names = [f"{metric}_{name}" for name in SIMILARITIES for metric in ("pearson", "spearman")]
    assert list(found) == ["data", "split", "pairs", "model", "pooling", "similarity", *names]
    assert list(found.values())[:6] == [str(tsv), None, 5, str(tiny), "mean", "cosine"]


def test_the_table_states_what_was_measured_and_how(tiny, tsv, capsys):
    command = ["--model", str(tiny), "--data", str(tsv), "--pooling", "max"]
    main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    main(command)
    out = capsys.readouterr().out
    assert out.startswith(f"model     {tiny}, max pooling\ndata      {tsv}, 5 pairs\n")
    for name, line in zip(SIMILARITIES, out.splitlines()[-4:], strict=True):
        assert line.split() == [
            name,
            *(f"{100 * found[f'{metric}_{name}']:.2f}" for metric in ("pearson", "spearman")),
        ]


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
    """The numbers are compared with sentence-transformers' in
    ``tests/evaluation/test_evaluators.py``.
    """
    main(["--model", str(tiny), "--data", str(labelled), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == len(LABELLED)
    main(["--model", str(tiny), "--data", str(labelled)])
    out = capsys.readouterr().out
    assert f"{labelled}, {len(LABELLED)} labelled pairs" in out
    shown = ["ap", "f1", "f1_threshold", "precision", "recall", "accuracy", "accuracy_threshold"]
    for name, line in zip(SIMILARITIES, out.splitlines()[-4:], strict=True):
        values = [found[f"{name}_{m}"] * (1 if m.endswith("threshold") else 100) for m in shown]
        assert line.split()[0] == name
        assert [float(cell) for cell in line.split()[1:]] == pytest.approx(values, abs=0.006)


def test_a_split_of_a_file_is_the_rows_of_its_column(tiny, tmp_path, capsys):
    path = tmp_path / "all.csv"
    rows = "train,1,a cat,a dog\nvalidation,2,a cat,a dog\ndev,4,sun,moon\ntest,0,a,b\n"
    path.write_text(f"split,score,sentence1,sentence2\n{rows}")
    command = ["--model", str(tiny), "--data", str(path)]
    main([*command, "--split", "dev"])
    printed = capsys.readouterr()
    assert f"{path}, dev split, 2 pairs" in printed.out
    assert "scored by cosine" in printed.out
    assert "split dev, not the 2 rows of train, test" in printed.err
    (tmp_path / "plain.csv").write_text("score,sentence1,sentence2\n1,a cat,a dog\n2,sun,moon\n")
    for more in ([], ["--split", "dev", "--data", str(tmp_path / "plain.csv")]):
        with pytest.raises(InputError, match="split"):
            main([*command, *more])


def test_long_sentences_are_reported(tiny, tmp_path, capsys):
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
    (tmp_path / "rows.csv").write_text(rows)
    with pytest.raises(InputError, match=message):
        main(["--model", str(tiny), "--data", str(tmp_path / "rows.csv")])


TRIPLETS = [
    ("the cat sits", "the cat sits", "the sun and the moon"),
    ("the sun and the moon", "a dog runs", "the sun and the rain"),
    ("music", "the moon", "music"),
]


def test_triplets_give_an_accuracy(tiny, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    names = ("anchor", "positive", "negative")
    path.write_text(
        "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in TRIPLETS)
    )
    main(["--model", str(tiny), "--data", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(tiny)
    vectors = [[encoder.encode([text])[0] for text in row] for row in TRIPLETS]
    expected = sum(float(a @ p) > float(a @ n) for a, p, n in vectors) / 3
    assert 0 < expected < 1
    assert found.pop("cosine_accuracy") == pytest.approx(expected, abs=1e-12)
    about = {"model": str(tiny), "pooling": "mean", "similarity": "cosine"}
    assert found == {"data": str(path), "split": None, "triplets": 3} | about
    main(["--model", str(tiny), "--data", str(path)])
    out = capsys.readouterr().out
    assert (
        f"{path}, 3 triplets\nscored by cosine\naccuracy  {100 * expected:.2f} % have an anchor"
        in out
    )


@pytest.mark.slow
@pytest.mark.weights
def test_stsb_scores_of_the_real_model(minilm, stsb, capsys):
    """The published zero-shot scores on test, 82.03 and 82.74, with more digits from the
    reference.
    """
    main(["--model", str(minilm), "--split", "test", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["data"], found["split"], found["pairs"]) == ("stsb", "test", 1379)
    assert found["pearson_cosine"] == pytest.approx(0.827406, abs=1e-5)
    for name in ("cosine", "dot", "euclidean"):  # on unit vectors all three give the same order
        assert found[f"spearman_{name}"] == pytest.approx(0.820325, abs=1e-5)
