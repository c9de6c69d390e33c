"""Evaluators of data in memory: by hand, and against sentence-transformers' of the same names."""

import pytest

from minisbert import SentenceEncoder, load
from minisbert.core import InputError
from minisbert.evaluation import evaluators
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
from minisbert.models.properties import SIMILARITIES
from tests.conftest import ROOT

FIRST = ["A cat sits.", "It rains.", "Shares fell.", "He reads a book."]
SECOND = ["A cat sits.", "The sun shines today.", "Markets lost.", "A man is reading a long book."]
SCORES = [5.0, 1.5, 3.25, 4.0]


def test_the_example_of_two_pairs(tiny):
    """Two pairs in the order of their scores are perfectly correlated."""
    encoder = SentenceEncoder.load(tiny)
    alike = EmbeddingSimilarityEvaluator(["A cat.", "A cat."], ["A cat.", "Rain falls."], [2, 1])
    assert alike(encoder) == pytest.approx({"pearson_cosine": 1.0, "spearman_cosine": 1.0})


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([5.0, float("nan"), 1, 2], r"scores\[1\]: the score nan"),
        ([5.0, 1, 2, "high"], r"scores\[3\]: the score 'high'"),
        ([None, 1, 2, 3], r"scores\[0\]: None"),
        ([[1], [2], [3], [4]], r"scores\[0\]: the score \[1\]"),
    ],
)
def test_a_score_that_is_none_is_named_with_its_place(scores, message):
    with pytest.raises(InputError, match=message):
        EmbeddingSimilarityEvaluator(FIRST, SECOND, scores)


def test_equal_scores_have_no_correlation(tiny):
    with pytest.raises(InputError, match="at least two rows with different scores"):
        EmbeddingSimilarityEvaluator(FIRST, SECOND, [3, 3, 3, 3])(SentenceEncoder.load(tiny))
    with pytest.raises(InputError, match="at least two rows with different similarities"):
        EmbeddingSimilarityEvaluator(["a cat"] * 2, ["a dog"] * 2, [1, 2])(
            SentenceEncoder.load(tiny)
        )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 2, 1], r"labels\[2\]: the label 2 is not 0 or 1"),
        ([-1, 1, 0, 1], r"labels\[0\]: the label -1"),
        ([0, 0, 0, 0], "no label is 1"),
    ],
)
def test_labels_are_0_and_1(labels, message):
    with pytest.raises(InputError, match=message):
        evaluators.BinaryClassificationEvaluator(FIRST, SECOND, labels)


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("name", "leave it out"),
        ("similarity_fn_names", "compute_metrics"),
        ("show_progres_bar", "did you mean show_progress_bar"),
    ],
)
def test_an_option_of_sentence_transformers_evaluators_is_explained(option, instead):
    """Most scripts give their evaluators a name; Python's own error would name ``__init__``."""
    with pytest.raises(TypeError, match=f"EmbeddingSimilarityEvaluator .*{instead}"):
        EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES, **{option: "sts-dev"})


def test_nothing_to_evaluate():
    with pytest.raises(InputError, match="anchors, positives, negatives are empty"):
        evaluators.TripletEvaluator([], [], [])


def test_an_evaluator_wants_an_encoder():
    with pytest.raises(InputError, match="called with an encoder, not 'tiny'"):
        EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)("tiny")


@pytest.fixture(params=["tiny-colbert", "tiny-splade"])
def encoder(request):
    """An encoder of a vector per token, and one of sparse vectors."""
    return load(ROOT / "tests" / "reference" / "architectures" / request.param)


def test_encoders_of_other_vectors_tell_triplets_apart(encoder):
    """A text is most similar to itself; the first anchor's negative is the anchor."""
    anchors = ["the cat", "a small dog", "the music"]
    positives = ["a small dog", "a small dog", "the music"]
    negatives = ["the cat", "the music", "the cat"]
    results = evaluators.TripletEvaluator(anchors, positives, negatives)(encoder)
    assert results == {f"{encoder.similarity_fn_name}_accuracy": pytest.approx(2 / 3)}


def test_encoders_of_other_vectors_are_correlated(encoder):
    results = EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)(encoder)
    assert -1 <= results[f"spearman_{encoder.similarity_fn_name}"] <= 1


def test_columns_of_different_lengths():
    """The line says which column is short."""
    with pytest.raises(InputError, match="scores must have the same length, not 2, 2, 1"):
        EmbeddingSimilarityEvaluator(["a", "b"], ["c", "d"], [1.0])
    with pytest.raises(InputError, match="negatives must have the same length, not 1, 1, 0"):
        evaluators.TripletEvaluator(["a"], ["b"], [])


@pytest.mark.parametrize("scores", [None, 5, "x"])
def test_scores_that_are_no_list(scores):
    with pytest.raises(InputError, match="scores must be a list"):
        EmbeddingSimilarityEvaluator(["a"], ["b"], scores)


CASES = [
    (
        "BinaryClassificationEvaluator",
        (FIRST + SECOND, SECOND + FIRST[::-1], [1, 0, 0, 1, 0, 1, 1, 0]),
    ),
    ("TripletEvaluator", (FIRST, SECOND, SECOND[::-1])),
    ("EmbeddingSimilarityEvaluator", (FIRST, SECOND, SCORES)),
]


@pytest.fixture
def reference(tiny):
    """sentence-transformers' evaluators, and its model."""
    library = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    return evaluation, library.SentenceTransformer(str(tiny), device="cpu")


def assert_same_values(results: dict, expected: dict) -> None:
    """Every value of sentence-transformers', but its maxima over several similarities."""
    for key, value in expected.items():
        if "max" not in key:
            assert results[key] == pytest.approx(float(value), abs=1e-5), key


@pytest.mark.reference
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_results_equal_those_of_sentence_transformers(tiny, reference, name, arguments):
    """All keys and values by the model's own similarity, and the primary metric."""
    evaluation, model = reference
    theirs = getattr(evaluation, name)(*arguments)
    ours = getattr(evaluators, name)(*arguments)
    assert_same_values(ours(SentenceEncoder.load(tiny)), theirs(model))
    assert ours.primary_metric == theirs.primary_metric


@pytest.mark.reference
@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_results_by_each_similarity_equal_theirs(tiny, reference, name, arguments):
    evaluation, model = reference
    theirs = getattr(evaluation, name)(*arguments, similarity_fn_names=list(SIMILARITIES))
    ours = getattr(evaluators, name)(*arguments)
    results = ours.flatten(ours.compute_metrics(SentenceEncoder.load(tiny), SIMILARITIES))
    assert_same_values(results, theirs(model))
