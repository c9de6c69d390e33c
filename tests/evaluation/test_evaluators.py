"""Evaluators of data in memory: by hand, and against sentence-transformers' of the same names."""

from types import SimpleNamespace

import numpy as np
import pytest

from minisbert import SentenceEncoder, load
from minisbert.core import InputError
from minisbert.evaluation import evaluators
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator
from minisbert.models.properties import similarity
from tests.conftest import ROOT

FIRST = ["A cat sits.", "It rains.", "Shares fell.", "He reads a book."]
SECOND = ["A cat sits.", "The sun shines today.", "Markets lost.", "A man is reading a long book."]
SCORES = [5.0, 1.5, 3.25, 4.0]
QUERIES = {"q1": "a cat", "q2": "rain", "q3": "nobody judged this"}
CORPUS = {"d1": "A cat sits.", "d2": "It rains.", "d3": "Rain falls on the roof.", "d4": "Shares fell."}
SAMPLES = [
    {"query": "a cat", "positive": ["A cat sits."], "negative": ["It rains.", "Shares fell.", "The sun shines today."]},
    {"query": "rain", "positive": ["It rains.", "Rain falls on the roof."], "negative": ["A man is reading."]},
    {"query": "left out", "positive": [], "negative": ["A cat sits."]},
]
RELEVANT = {"q1": {"d1"}, "q2": {"d2", "d3"}, "q3": set()}


def fake(**vectors: list[float]) -> SimpleNamespace:
    """An encoder that knows the vector of each text, and compares by cosine."""

    def encode(texts, **_):
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    compared = {"similarity_fn_name": "cosine", "vectors_are": "dense", "similarity": similarity, "search_options": {}}
    return SimpleNamespace(**compared, encode_query=encode, encode_document=encode, truncated=0)


def test_two_pairs_are_perfectly_correlated_or_its_opposite(tiny):
    encoder = SentenceEncoder.load(tiny)
    alike = EmbeddingSimilarityEvaluator(["A cat.", "A cat."], ["A cat.", "Rain falls."], [2, 1], name="two")
    assert alike(encoder) == pytest.approx({"two_pearson_cosine": 1.0, "two_spearman_cosine": 1.0})


def test_a_text_that_is_its_own_answer_is_found_first(tiny):
    found = InformationRetrievalEvaluator({"q": "It rains."}, CORPUS, {"q": ["d2"]})(SentenceEncoder.load(tiny))
    assert found["cosine_accuracy@1"] == found["cosine_mrr@10"] == found["cosine_ndcg@10"] == 1
    assert found["cosine_precision@3"] == pytest.approx(1 / 3)


def test_a_relevant_document_that_the_corpus_lacks_is_never_found(tiny):
    evaluator = InformationRetrievalEvaluator({"q": "It rains."}, CORPUS, {"q": ["d2", "lost"]})
    assert evaluator(SentenceEncoder.load(tiny))["cosine_recall@10"] == 0.5


def test_equal_scores_are_no_merit():
    """A model that cannot tell documents apart: the positive is the last of three."""
    model = fake(a=[1, 1], b=[1, 1], c=[1, 1], d=[1, 1])
    samples = [{"query": "a", "positive": "b", "negative": ["c", "d"]}]
    found = evaluators.RerankingEvaluator(samples, at_k=3)(model)
    assert found == pytest.approx({"map": 1 / 3, "mrr@3": 1 / 3, "ndcg@3": 0.5})  # 1 / log2(4)


def test_documents_are_sorted_by_the_similarity_that_is_asked_for():
    """The positive has the larger cosine, the negative the larger dot product."""
    model = fake(a=[1, 0], b=[1, 0.1], c=[5, 5])
    samples = [{"query": "a", "positive": "b", "negative": "c"}]
    assert evaluators.RerankingEvaluator(samples)(model)["map"] == 1
    assert evaluators.RerankingEvaluator(samples, similarity_fn_names=["dot"])(model)["map"] == 0.5
    by_dot = InformationRetrievalEvaluator({"q": "a"}, {1: "b", 2: "c"}, {"q": {1}}, similarity_fn_names=["dot"])
    assert by_dot(model)["dot_mrr@10"] == 0.5


@pytest.mark.parametrize("model", ["tiny-colbert", "tiny-splade"])
def test_encoders_of_many_vectors_and_of_sparse_ones_are_evaluated_too(model):
    """A text's similarity to itself is the largest of the list's."""
    encoder = load(ROOT / "tests" / "reference" / "architectures" / model)
    texts = ["the cat", "a small dog", "the music"]
    found = evaluators.TripletEvaluator(texts, texts, texts[::-1], margin=1e-4)(encoder)  # above the last bits
    name = encoder.similarity_fn_name
    assert found == {f"{name}_accuracy": pytest.approx(2 / 3)}  # the middle one is its own negative
    assert -1 <= EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)(encoder)[f"spearman_{name}"] <= 1


TWO = {"similarity_fn_names": ["dot", "cosine"]}


@pytest.mark.parametrize(
    ("name", "arguments", "options", "message"),
    [
        ("EmbeddingSimilarityEvaluator", (["a", "b"], ["c", "d"], [1.0]), {}, "scores"),
        ("TripletEvaluator", (["a"], ["b"], []), {}, "negatives"),
        ("EmbeddingSimilarityEvaluator", (["a"], ["b"], [1]), {"main_similarity": "jaccard"}, "jaccard"),
        ("RerankingEvaluator", (SAMPLES[2:],), {}, "positive"),
        ("RerankingEvaluator", (SAMPLES,), TWO, "similarity_fn_names"),
        ("InformationRetrievalEvaluator", (QUERIES, CORPUS, RELEVANT), TWO, "similarity_fn_names"),
        ("InformationRetrievalEvaluator", (QUERIES, {}, RELEVANT), {}, "document"),
        ("InformationRetrievalEvaluator", (QUERIES, CORPUS, {"q1": set()}), {}, "relevant"),
        *(
            ("InformationRetrievalEvaluator", (QUERIES, CORPUS, RELEVANT), {"map_at_k": cutoffs}, "cutoff")
            for cutoffs in (10, [0], ["x"])
        ),
        *(("EmbeddingSimilarityEvaluator", (["a"], ["b"], scores), {}, "scores") for scores in (None, 5, "x")),
        ("EmbeddingSimilarityEvaluator", (["a"], ["b"], [1]), {"similarity_fn_names": 5}, "similarity_fn_names"),
        *(
            ("TripletEvaluator", (["a"], ["b"], ["c"]), {"margin": margin}, "margin")
            for margin in ("x", [1], {"dot": None})
        ),
        *(("RerankingEvaluator", (samples,), {}, "sample") for samples in (None, "x", [{"query": "a"}])),
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
        ("RerankingEvaluator", (SAMPLES,), {"at_k": 2}),
        ("InformationRetrievalEvaluator", (QUERIES, CORPUS, RELEVANT), {"ndcg_at_k": [2, 4], "truncate_dim": 12}),
        ("EmbeddingSimilarityEvaluator", (FIRST, SECOND, SCORES), {"main_similarity": "dot", "truncate_dim": 8}),
    ],
)
@pytest.mark.parametrize("names", [None, ["cosine", "euclidean", "dot", "manhattan"]])
def test_results_equal_those_of_sentence_transformers(tiny, name, arguments, options, names):
    """All keys and values, the primary metric, and the largest of several similarities."""
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    if names and name not in ("RerankingEvaluator", "InformationRetrievalEvaluator") and "main" not in str(options):
        options = options | {"similarity_fn_names": names}
    theirs = getattr(evaluation, name)(*arguments, name="x", **options)
    expected = theirs(reference.SentenceTransformer(str(tiny), device="cpu"))
    ours = getattr(evaluators, name)(*arguments, name="x", **options)
    found = ours(SentenceEncoder.load(tiny))
    assert {key: found[key] for key in expected} == pytest.approx({k: float(v) for k, v in expected.items()}, abs=1e-5)
    assert ours.primary_metric == theirs.primary_metric
