"""Evaluators of data in memory: by hand, and against sentence-transformers' of the same names."""

import pytest

from minisbert import SentenceEncoder
from minisbert.core import InputError
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator

FIRST = ["A cat sits.", "It rains.", "Shares fell.", "He reads a book."]
SECOND = ["A cat sits.", "The sun shines today.", "Markets lost.", "A man is reading a long book."]
SCORES = [5.0, 1.5, 3.25, 4.0]
QUERIES = {"q1": "a cat", "q2": "rain", "q3": "nobody judged this"}
CORPUS = {"d1": "A cat sits.", "d2": "It rains.", "d3": "Rain falls on the roof.", "d4": "Shares fell."}
RELEVANT = {"q1": {"d1"}, "q2": {"d2", "d3"}, "q3": set()}


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


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0]])
def test_lists_of_different_lengths_are_refused(scores):
    with pytest.raises(InputError, match=f"same length, not 2, 2 and {len(scores)}"):
        EmbeddingSimilarityEvaluator(["a", "b"], ["c", "d"], scores)


@pytest.mark.parametrize(("corpus", "relevant"), [({}, RELEVANT), (CORPUS, {"q1": set()}), (CORPUS, {})])
def test_nothing_to_find_is_refused(corpus, relevant):
    with pytest.raises(InputError, match="a query with a relevant document is needed"):
        InformationRetrievalEvaluator(QUERIES, corpus, relevant)


@pytest.mark.reference
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_correlations_equal_those_of_sentence_transformers(tiny, similarity):
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    theirs = evaluation.EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES, write_csv=False)
    expected = theirs(reference.SentenceTransformer(str(tiny), device="cpu", similarity_fn_name=similarity))
    encoder = SentenceEncoder.load(tiny, similarity_fn_name=similarity)
    found = EmbeddingSimilarityEvaluator(FIRST, SECOND, SCORES)(encoder)
    assert found == pytest.approx({key: float(value) for key, value in expected.items()}, abs=1e-5)


@pytest.mark.reference
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_retrieval_equals_that_of_sentence_transformers(tiny, similarity):
    reference = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    theirs = evaluation.InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT, write_csv=False)
    expected = theirs(reference.SentenceTransformer(str(tiny), device="cpu", similarity_fn_name=similarity))
    encoder = SentenceEncoder.load(tiny, similarity_fn_name=similarity)
    found = InformationRetrievalEvaluator(QUERIES, CORPUS, RELEVANT)(encoder)
    assert f"{similarity}_ndcg@10" in expected
    assert found.keys() >= expected.keys()
    assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-12)
