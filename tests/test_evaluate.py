"""Evaluation: four similarities, two correlations, and the command that prints them."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from minisbert.core import InputError
from minisbert.data.corpora import LabelledPair
from minisbert.data.scored_pairs import ScoredPair
from minisbert.evaluate import main
from minisbert.evaluation.sts import PROTOCOL, evaluate, evaluate_labelled, holds_triplets, similarities
from minisbert.models.sentence_encoder import SentenceEncoder

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
    rows = [f"{pair.score}\t{pair.sentence1}\t{pair.sentence2}\n" for pair in PAIRS]
    path.write_text("score\tsentence1\tsentence2\n" + "".join(rows), encoding="utf-8")
    return path


def test_similarities_by_hand():
    u, v = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0], [1.0, 0.0]])
    found = similarities(u, v)
    assert list(found) == ["cosine", "dot", "euclidean", "manhattan"]
    np.testing.assert_allclose(found["cosine"], [24 / 25, 0, 0], atol=1e-15)  # a zero vector is similar to nothing
    np.testing.assert_allclose(found["dot"], [24, 0, 0], atol=0)
    np.testing.assert_allclose(found["euclidean"], [-np.sqrt(2), -np.sqrt(5), -1], atol=1e-15)
    np.testing.assert_allclose(found["manhattan"], [-2, -3, -1], atol=0)


def test_similarities_are_computed_in_float64():
    """The cosine of this angle, 1 - 2^-27, would be 1 in float32 and tie with a pair of equal vectors."""
    u = np.array([[1.0, 0.0]], dtype=np.float32)
    v = np.array([[1.0, 2.0**-13]], dtype=np.float32)
    cosine = similarities(u, v)["cosine"]
    assert cosine.dtype == np.float64
    np.testing.assert_allclose(1 - cosine, 2.0**-27, rtol=1e-6)


def test_evaluate_against_numpy(tiny):
    """Pearson from numpy, Spearman from squared rank differences, on vectors encoded one at a time."""
    encoder = SentenceEncoder.load(tiny)
    scores = np.array([pair.score for pair in PAIRS])
    cosines = [float(encoder.encode([pair.sentence1])[0] @ encoder.encode([pair.sentence2])[0]) for pair in PAIRS]
    found = evaluate(encoder, PAIRS)
    assert found["pearson"]["cosine"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-5)
    differences = np.argsort(np.argsort(cosines)) - np.argsort(np.argsort(scores))
    n = len(PAIRS)
    assert found["spearman"]["cosine"] == pytest.approx(1 - 6 * (differences**2).sum() / (n * (n * n - 1)), abs=1e-12)


def test_json_has_these_keys(tiny, tsv, capsys):
    main(["--model", str(tiny), "--data", str(tsv), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["data", "split", "pairs", "model", "pooling", "pearson", "spearman"]
    assert (found["data"], found["split"], found["pairs"]) == (str(tsv), None, 5)
    assert (found["model"], found["pooling"]) == (str(tiny), "mean")
    expected = evaluate(SentenceEncoder.load(tiny), PAIRS)
    assert {metric: found[metric] for metric in ("pearson", "spearman")} == expected  # to the last digit


def test_the_table_states_what_was_measured_and_how(tiny, tsv, capsys):
    main(["--model", str(tiny), "--data", str(tsv), "--pooling", "max"])
    out = capsys.readouterr().out
    assert f"{tiny}, max pooling" in out
    assert f"{tsv}, 5 pairs" in out
    assert PROTOCOL in out
    result = evaluate(SentenceEncoder.load(tiny, pooling="max"), PAIRS)
    table = dict(line.split(maxsplit=1) for line in out.splitlines()[-4:])
    assert table["cosine"].split() == [f"{100 * result[m]['cosine']:.2f}" for m in ("pearson", "spearman")]
    assert list(table) == ["cosine", "dot", "euclidean", "manhattan"]


LABELLED = (
    [LabelledPair(pair.sentence1, pair.sentence2, int(pair.score > 2)) for pair in PAIRS]
    + [LabelledPair(pair.sentence2, other.sentence1, 0) for pair, other in pairwise(PAIRS)]
    + [LabelledPair("the sun and the moon", "rain over the garden", 1)]
)


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """The labelled pairs as a file, its columns in another order than ours."""
    path = tmp_path / "labelled.tsv"
    rows = [f"{pair.sentence1}\t{pair.label}\t{pair.sentence2}\n" for pair in LABELLED]
    path.write_text("sentence1\tlabel\tsentence2\n" + "".join(rows), encoding="utf-8")
    return path


def test_labelled_pairs_as_in_sentence_transformers(tiny, labelled, capsys):
    """Each similarity's accuracy, F1, precision, recall, average precision and thresholds, to float32's last digits."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    columns = ([pair.sentence1 for pair in LABELLED], [pair.sentence2 for pair in LABELLED])
    names = ["cosine", "dot", "euclidean", "manhattan"]
    theirs = BinaryClassificationEvaluator(*columns, [pair.label for pair in LABELLED], similarity_fn_names=names)(
        SentenceTransformer(str(tiny))
    )
    main(["--model", str(tiny), "--data", str(labelled), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == len(LABELLED)
    for name in names:
        ours = {metric.replace("average_precision", "ap"): value for metric, value in found[name].items()}
        sign = -1 if name in ("euclidean", "manhattan") else 1  # theirs are distances, ours are negated
        expected = {m: theirs[f"{name}_{m}"] * (sign if m.endswith("threshold") else 1) for m in ours}
        assert ours == pytest.approx(expected, abs=2e-5), name


def test_the_table_of_labelled_pairs(tiny, labelled, capsys):
    main(["--model", str(tiny), "--data", str(labelled)])
    out = capsys.readouterr().out
    result = evaluate_labelled(SentenceEncoder.load(tiny), LABELLED)
    assert f"{labelled}, {len(LABELLED)} labelled pairs" in out
    table = dict(line.split(maxsplit=1) for line in out.splitlines()[-4:])
    for name, of in result.items():
        shown = ["average_precision", "f1", "f1_threshold", "precision", "recall", "accuracy", "accuracy_threshold"]
        scale = [1 if metric.endswith("threshold") else 100 for metric in shown]
        values = [times * of[metric] for metric, times in zip(shown, scale, strict=True)]
        assert [float(cell) for cell in table[name].split()] == pytest.approx(values, abs=0.006)


def test_labels_without_a_1_are_an_error(tiny, tmp_path):
    path = tmp_path / "zeros.csv"
    path.write_text("label,sentence1,sentence2\n0,a cat,a dog\n0,sun,moon\n")
    with pytest.raises(InputError, match=r"zeros\.csv: no pair has label 1"):
        main(["--model", str(tiny), "--data", str(path)])


def test_long_sentences_are_reported(tiny, tmp_path, capsys):
    path = tmp_path / "long.tsv"
    path.write_text(f"1\t{'cat ' * 20}\ta dog\n2\ta cat\ta dog\n")
    main(["--model", str(tiny), "--data", str(path)])
    assert "1 of 4 texts were longer than 16 tokens and were cut" in capsys.readouterr().err


@pytest.mark.parametrize("rows", ["3\ta cat\ta dog\n", "3\ta cat\ta dog\n3\tsun\tmoon\n"], ids=["single", "constant"])
def test_scores_without_a_correlation_are_an_error(tiny, tmp_path, rows):
    path = tmp_path / "pairs.tsv"
    path.write_text(rows)
    with pytest.raises(InputError, match=r"pairs\.tsv: a correlation needs at least two pairs with different scores"):
        main(["--model", str(tiny), "--data", str(path)])


@pytest.mark.parametrize("scores", [(1.0, 2.0), (3.0, 3.0), (1.0,)])
def test_pairs_without_a_correlation_are_an_error(tiny, scores):
    """Every pair has the same two texts."""
    pairs = [ScoredPair("a cat", "a dog", score) for score in scores]
    with pytest.raises(InputError, match=r"cosine similarity against the scores: .*constant"):
        evaluate(SentenceEncoder.load(tiny), pairs)


TRIPLETS = [
    ("the cat sits", "the cat sits", "the sun and the moon"),
    ("the sun and the moon", "a dog runs", "the sun and the rain"),
    ("music", "the moon", "music"),
]


@pytest.mark.parametrize("name", ["plain.tsv", "header.csv", "rows.jsonl"])
def test_triplets_give_an_accuracy(tiny, tmp_path, capsys, name):
    path = tmp_path / name
    if name == "rows.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in TRIPLETS))
    else:
        comma = "," if name == "header.csv" else "\t"
        header = [("anchor", "positive", "negative")] if name == "header.csv" else []
        path.write_text("".join(comma.join(row) + "\n" for row in [*header, *TRIPLETS]))
    main(["--model", str(tiny), "--data", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    encoder = SentenceEncoder.load(tiny)
    vectors = [[encoder.encode([text])[0] for text in row] for row in TRIPLETS]
    expected = sum(float(a @ p) > float(a @ n) for a, p, n in vectors) / 3
    assert 0 < expected < 1
    assert found.pop("triplet_accuracy") == pytest.approx(expected, abs=1e-12)
    assert found == {"data": str(path), "split": None, "triplets": 3, "model": str(tiny), "pooling": "mean"}
    main(["--model", str(tiny), "--data", str(path)])
    out = capsys.readouterr().out
    assert f"{path}, 3 triplets\naccuracy  {100 * expected:.2f} % have cos(anchor, positive) > " in out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a cat\ta dog\tthe sun", True),
        ('"a, b",c,d', True),
        ("4.5\ta cat\ta dog", False),
        ("Score,sentence1,sentence2", False),
        ("main\tfile\t2012\t1\t4.5\ta\tb", False),
        ("a cat\ta dog", False),
        ("", False),
    ],
)
def test_triplets_are_told_from_scored_pairs_by_the_first_line(tmp_path, line, expected):
    (tmp_path / "rows.txt").write_text(f"\n{line}\n")
    assert holds_triplets(str(tmp_path / "rows.txt")) == expected
    assert not holds_triplets("/dev/stdin")  # a pipe is not read twice
    assert holds_triplets("not_there.jsonl.gz")


def test_scores_under_a_header_of_their_own_are_no_anchors(tiny, tmp_path):
    (tmp_path / "rated.csv").write_text("rating,first,second\n3,a cat,a dog\n1,sun,moon\n")
    with pytest.raises(InputError, match=r"rated\.csv: the first column holds numbers; name scored columns score,"):
        main(["--model", str(tiny), "--data", str(tmp_path / "rated.csv")])


@pytest.mark.weights
def test_stsb_scores_of_the_real_model(minilm, stsb, capsys):
    """The published zero-shot scores on test, 82.03 and 82.74, with more digits from the reference."""
    main(["--model", str(minilm), "--split", "test", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["data"], found["split"], found["pairs"]) == ("stsb", "test", 1379)
    assert found["pearson"]["cosine"] == pytest.approx(0.827406, abs=1e-5)
    for name in ("cosine", "dot", "euclidean"):  # on unit vectors all three give the same order
        assert found["spearman"][name] == pytest.approx(0.820325, abs=1e-5)
