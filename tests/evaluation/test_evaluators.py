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


def test_two_pairs_are_perfectly_correlated_or_its_opposite(tiny):
    encoder = SentenceEncoder.load(tiny)
    alike = EmbeddingSimilarityEvaluator(["A cat.", "A cat."], ["A cat.", "Rain falls."], [2, 1])
    assert alike(encoder) == pytest.approx({"pearson_cosine": 1.0, "spearman_cosine": 1.0})


@pytest.mark.parametrize("model", ["tiny-colbert", "tiny-splade"])
def test_encoders_of_many_vectors_and_of_sparse_ones_are_evaluated_too(model):
    """A text's similarity to itself is the largest of the list's: the first anchor is its own
    negative.
    """
    encoder = load(ROOT / "tests" / "reference" / "architectures" / model)
    cat, dog, music = "the cat", "a small dog", "the music"
    found = evaluators.TripletEvaluator([cat, dog, music], [dog, dog, music], [cat, music, cat])(
        encoder
    )
    name = encoder.similarity_fn_name
    assert found == {f"{name}_accuracy": pytest.approx(2 / 3)}
    assert (
        -1 <= EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)(encoder)[f"spearman_{name}"] <= 1
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("EmbeddingSimilarityEvaluator", (["a", "b"], ["c", "d"], [1.0]), "scores"),
        ("TripletEvaluator", (["a"], ["b"], []), "negatives"),
        *(
            ("EmbeddingSimilarityEvaluator", (["a"], ["b"], scores), "scores")
            for scores in (None, 5, "x")
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(name, arguments, message):
    with pytest.raises(InputError, match=message):
        getattr(evaluators, name)(*arguments)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (
            "BinaryClassificationEvaluator",
            (FIRST + SECOND, SECOND + FIRST[::-1], [1, 0, 0, 1, 0, 1, 1, 0]),
        ),
        ("TripletEvaluator", (FIRST, SECOND, SECOND[::-1])),
        ("EmbeddingSimilarityEvaluator", (FIRST, SECOND, SCORES)),
    ],
)
def test_results_equal_those_of_sentence_transformers(tiny, name, arguments):
    """All keys and values, by the model's own similarity and by each, and the primary metric."""
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    model, encoder = (
        reference.SentenceTransformer(str(tiny), device="cpu"),
        SentenceEncoder.load(tiny),
    )
    theirs, ours = getattr(evaluation, name)(*arguments), getattr(evaluators, name)(*arguments)
    pairs = [(theirs(model), ours(encoder))]
    assert ours.primary_metric == theirs.primary_metric
    by_each = getattr(evaluation, name)(*arguments, similarity_fn_names=[*SIMILARITIES])
    pairs.append((by_each(model), ours.flat(ours.compute_metrics(encoder, SIMILARITIES))))
    for expected, found in pairs:
        wanted = {key: float(value) for key, value in expected.items() if "max" not in key}
        assert {key: found[key] for key in wanted} == pytest.approx(wanted, abs=1e-5)
