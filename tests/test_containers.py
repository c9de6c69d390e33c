"""A bare string is not a list of texts: each function that wants many refuses it in one line."""

import pytest

from minisbert.core import InputError
from minisbert.core.heads import siamese
from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
from minisbert.evaluation.retrieval import retrieval_from_pairs
from minisbert.integrations.engines import EncodeBatch
from minisbert.models.index import indexed_vectors
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.mining import candidates_of
from minisbert.training.masked import train_vocabulary
from minisbert.util import paraphrase_mining, semantic_search


def vectorizer():
    pytest.importorskip("sklearn")
    from minisbert.integrations.sklearn import MinisbertVectorizer

    return MinisbertVectorizer("weights/tiny")


CALLS = {
    "predict": lambda encoder, pairs: pairs.predict("ab"),  # not the pair a, b
    "predict of strings": lambda encoder, pairs: pairs.predict(["ab", "cd", "ef"]),
    "rank": lambda encoder, pairs: pairs.rank("a", "abc"),
    "encode_stream": lambda encoder, pairs: list(encoder.encode_stream("abc")),
    "mining": lambda encoder, pairs: paraphrase_mining(encoder, "abc"),
    "search": lambda encoder, pairs: semantic_search("abc", "abc"),
    "similarity": lambda encoder, pairs: EmbeddingSimilarityEvaluator("abc", "abc", [1, 2, 3]),
    "scores": lambda encoder, pairs: EmbeddingSimilarityEvaluator(["a", "b"], ["c", "d"], "12"),
    "pairs to search": lambda encoder, pairs: retrieval_from_pairs(["ab", "cd"]),
    "pairs to mine": lambda encoder, pairs: candidates_of(["ab", "cd"]),
    "corpus to mine": lambda encoder, pairs: candidates_of([("a", "b")], "abc"),
    "index": lambda encoder, pairs: indexed_vectors(encoder, "abc", "index.safetensors"),
    "vocabulary": lambda encoder, pairs: train_vocabulary("a cat sleeps " * 99, 100),
    "a batch": lambda encoder, pairs: EncodeBatch("weights/tiny")({"text": "abc"}),
    "sklearn": lambda encoder, pairs: vectorizer().transform("abc"),
    "sklearn's fit": lambda encoder, pairs: vectorizer().fit_transform("abc"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bare_string_is_refused_in_one_line(name, tiny):
    encoder = SentenceEncoder.load(tiny)
    with pytest.raises(InputError, match=r"string|not '|is a text|batched") as refused:
        CALLS[name](encoder, PairModel(encoder, siamese(encoder.width)))
    assert "\n" not in str(refused.value)
