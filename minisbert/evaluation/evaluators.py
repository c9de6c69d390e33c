"""Evaluators of data in memory, under sentence-transformers' names and with the keys of its results.

from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
evaluator = EmbeddingSimilarityEvaluator(["A cat sits.", "It rains."], ["A dog sits.", "Rain falls."], [0.2, 0.9])
evaluator(encoder)  # {"pearson_cosine": 1.0, "spearman_cosine": 1.0}
"""

from collections.abc import Collection, Mapping, Sequence

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.metrics import pearson, spearman
from minisbert.evaluation.retrieval import Retrieval, retrieval_scores
from minisbert.evaluation.sts import similarities
from minisbert.models.sentence_encoder import SentenceEncoder


class EmbeddingSimilarityEvaluator:
    """How well a model's similarities of N pairs of texts correlate with scores (N,), on any scale.

    Called with a model it returns ``{"pearson_cosine": r, "spearman_cosine": rho}``, for the similarity of
    ``model.similarity_fn_name``; the keys begin with ``name`` and an underscore if there is one. Raises ``InputError``
    for lists of different lengths, ``ValueError`` if all scores or all similarities are equal.
    """

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        scores: Sequence[float],
        *,
        name: str = "",
        show_progress_bar: bool = False,
    ) -> None:
        self.sentences1 = check_texts(sentences1)
        self.sentences2 = check_texts(sentences2)
        if isinstance(scores, str):
            raise InputError(f"scores must be numbers, not {one_line(scores)}")
        self.scores = list(scores)
        self.prefix = f"{name}_" if name else ""
        self.show_progress_bar = show_progress_bar
        if not len(self.sentences1) == len(self.sentences2) == len(self.scores):
            lengths = f"{len(self.sentences1)}, {len(self.sentences2)} and {len(self.scores)}"
            raise InputError(f"sentences1, sentences2 and scores must have the same length, not {lengths}")

    def __call__(self, model: SentenceEncoder) -> dict[str, float]:
        vectors = model.encode(self.sentences1 + self.sentences2, show_progress_bar=self.show_progress_bar)  # (2N, D)
        count = len(self.scores)
        name = model.similarity_fn_name
        values = similarities(vectors[:count], vectors[count:])[name]  # (N,)
        return {
            f"{self.prefix}pearson_{name}": pearson(values, self.scores),
            f"{self.prefix}spearman_{name}": spearman(values, self.scores),
        }


class InformationRetrievalEvaluator:
    """How well a model's exact search, by its own similarity, finds each query's relevant documents.

    ``queries`` and ``corpus`` map ids to texts, ``relevant_docs`` a query's id to the ids of its relevant documents.
    A query without any is left out; a relevant document that the corpus lacks counts as never found. Called with a
    model it returns ``{"cosine_accuracy@1": ..., "cosine_ndcg@10": ..., ...}``, each in 0..1, for every metric and
    cutoff of ``retrieval_scores``; keys begin with ``model.similarity_fn_name``, after ``name`` if there is one. Raises
    ``InputError`` if no query is left, or the corpus is empty.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevant_docs: Mapping[str, Collection[str]],
        *,
        name: str = "",
        show_progress_bar: bool = False,
    ) -> None:
        for given in (queries, corpus, relevant_docs):
            if not isinstance(given, Mapping):
                raise InputError(f"queries, corpus and relevant_docs must be dicts by id, not {one_line(given)}")
        judged = [identity for identity in queries if relevant_docs.get(identity)]
        if not judged or not corpus:
            raise InputError("a query with a relevant document is needed, and a document")
        rows = {identity: row for row, identity in enumerate(corpus)}
        grades = []
        for query in judged:
            relevant = relevant_docs[query]
            if isinstance(relevant, str):
                raise InputError(
                    f"relevant_docs of {one_line(query)} must be ids in brackets, not {one_line(relevant)}"
                )
            grades.append({rows.setdefault(document, len(rows)): 1 for document in relevant})
        texts = [queries[identity] for identity in judged]
        self.task = Retrieval(check_texts(texts), check_texts([*corpus.values()]), grades, [None] * len(judged))
        self.prefix = f"{name}_" if name else ""
        self.show_progress_bar = show_progress_bar

    def __call__(self, model: SentenceEncoder) -> dict[str, float]:
        found = retrieval_scores(model, self.task, progress=self.show_progress_bar)
        prefix = f"{self.prefix}{model.similarity_fn_name}_"
        return {f"{prefix}{metric}": score for metric, score in found.items()}
