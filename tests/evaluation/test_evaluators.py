"""Evaluators of data in memory: by hand, and against sentence-transformers' of the same names."""

import pytest

from minisbert import SentenceEncoder, load
from minisbert.core import InputError
from minisbert.evaluation import evaluators
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
from tests.conftest import ROOT

FIRST = ["A cat sits.", "It rains.", "Shares fell.", "He reads a book."]
SECOND = ["A cat sits.", "The sun shines today.", "Markets lost.", "A man is reading a long book."]
SCORES = [5.0, 1.5, 3.25, 4.0]


def test_two_pairs_are_perfectly_correlated_or_its_opposite(tiny):
    encoder = SentenceEncoder.load(tiny)
    alike = EmbeddingSimilarityEvaluator(["A cat.", "A cat."], ["A cat.", "Rain falls."], [2, 1], name="two")
    assert alike(encoder) == pytest.approx({"two_pearson_cosine": 1.0, "two_spearman_cosine": 1.0})


@pytest.mark.parametrize("model", ["tiny-colbert", "tiny-splade"])
def test_encoders_of_many_vectors_and_of_sparse_ones_are_evaluated_too(model):
    """A text's similarity to itself is the largest of the list's."""
    encoder = load(ROOT / "tests" / "reference" / "architectures" / model)
    texts = ["the cat", "a small dog", "the music"]
    found = evaluators.TripletEvaluator(texts, texts, texts[::-1], margin=1e-4)(encoder)  # above the last bits
    name = encoder.similarity_fn_name
    assert found == {f"{name}_accuracy": pytest.approx(2 / 3)}  # the middle one is its own negative
    assert -1 <= EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)(encoder)[f"spearman_{name}"] <= 1


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("EmbeddingSimilarityEvaluator", (["a", "b"], ["c", "d"], [1.0]), {}, "scores"),
        ("TripletEvaluator", (["a"], ["b"], []), {}, "negatives"),
        ("EmbeddingSimilarityEvaluator", (["a"], ["b"], [1]), {"main_similarity": "jaccard"}, "jaccard"),
        *(("EmbeddingSimilarityEvaluator", (["a"], ["b"], scores), {}, "scores") for scores in (None, 5, "x")),
        ("EmbeddingSimilarityEvaluator", (["a"], ["b"], [1]), {"similarity_fn_names": 5}, "similarity_fn_names"),
        *(
            ("TripletEvaluator", (["a"], ["b"], ["c"]), {"margin": margin}, "margin")
            for margin in ("x", [1], {"dot": None})
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(name, arguments, options, message):
    with pytest.raises(InputError, match=message):
        getattr(evaluators, name)(*arguments, **options)


@pytest.mark.reference
@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("BinaryClassificationEvaluator", (FIRST + SECOND, SECOND + FIRST[::-1], [1, 0, 0, 1, 0, 1, 1, 0]), {}),
        ("TripletEvaluator", (FIRST, SECOND, SECOND[::-1]), {"margin": 0.01}),
        ("TripletEvaluator", (FIRST, SECOND, SECOND[::-1]), {"main_similarity_function": "manhattan"}),
        ("EmbeddingSimilarityEvaluator", (FIRST, SECOND, SCORES), {"main_similarity": "dot", "truncate_dim": 8}),
    ],
)
@pytest.mark.parametrize("names", [None, ["cosine", "euclidean", "dot", "manhattan"]])
def test_results_equal_those_of_sentence_transformers(tiny, name, arguments, options, names):
    """All keys and values, the primary metric, and the largest of several similarities."""
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    if names and "main" not in str(options):
        options = options | {"similarity_fn_names": names}
    theirs = getattr(evaluation, name)(*arguments, name="x", **options)
    expected = theirs(reference.SentenceTransformer(str(tiny), device="cpu"))
    ours = getattr(evaluators, name)(*arguments, name="x", **options)
    found = ours(SentenceEncoder.load(tiny))
    assert {key: found[key] for key in expected} == pytest.approx({k: float(v) for k, v in expected.items()}, abs=1e-5)
    assert ours.primary_metric == theirs.primary_metric
