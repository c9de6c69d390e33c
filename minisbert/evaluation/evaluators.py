"""Evaluators of data in memory, under sentence-transformers' names and with the keys of its results.

from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
evaluator = EmbeddingSimilarityEvaluator(["A cat sits.", "It rains."], ["A dog sits.", "Rain falls."], [0.2, 0.9])
evaluator(encoder)  # {"pearson_cosine": 1.0, "spearman_cosine": 1.0}
evaluator.primary_metric  # "spearman_cosine"
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.metrics import pearson, spearman
from minisbert.evaluation.metrics import accuracy, average_precision, mrr_at_k, ndcg_at_k
from minisbert.evaluation.retrieval import CUTOFFS, Retrieval, retrieval_scores
from minisbert.evaluation.sts import separation, similarities
from minisbert.models.encoder import SIMILARITIES
from minisbert.models.guards import check_choice
from minisbert.models.pair_model import PairModel
from minisbert.models.prompts import role_prompt_name
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k


class Evaluator:
    """What all evaluators share: what they are called with, the names of their results, and a file of them.

    ``similarity_fn_names`` are compared side by side, and the best of each metric is called max; by default there is
    one, ``main_similarity`` or else the model's own. ``batch_size`` and ``truncate_dim`` are those of ``encode``.
    Called with a model, an evaluator returns its metrics; each key begins with ``name`` and an underscore if there is a
    name. ``primary_metric`` is then the key of the one to choose a model by. With ``output_path``, a folder, a row of
    them is added to a CSV there, behind ``epoch`` and ``steps``.
    """

    key = "{similarity}_{metric}"
    primary = ""
    file = ""

    def __init__(
        self,
        *,
        name: str = "",
        main_similarity: str | None = None,
        similarity_fn_names: Sequence[str] | None = None,
        batch_size: int | None = None,
        truncate_dim: int | None = None,
        show_progress_bar: bool = False,
        write_csv: bool = True,
    ) -> None:
        self.similarity_fn_names = [*(similarity_fn_names or [])]
        if main_similarity and not self.similarity_fn_names:
            self.similarity_fn_names = [main_similarity]
        for each in self.similarity_fn_names:
            check_choice("similarity_fn_names", each, SIMILARITIES)
        if main_similarity:
            check_choice("main_similarity", main_similarity, self.similarity_fn_names)
        self.name, self.main_similarity, self.write_csv = name, main_similarity, write_csv
        self.show_progress_bar, self.primary_metric = show_progress_bar, ""
        self.options = {}  # of encode
        for option, value in (("batch_size", batch_size), ("truncate_dim", truncate_dim)):
            if value is not None:
                self.options[option] = value

    def __call__(
        self, model: SentenceEncoder, output_path: str | Path | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        names = self.similarity_fn_names or [getattr(model, "similarity_fn_name", "")]  # a PairModel has none
        found = self.compute_metrics(model, names)
        main = self.main_similarity or names[0]
        if len(names) > 1:
            found["max"] = {metric: max(found[name][metric] for name in names) for metric in found[names[0]]}
            main = self.main_similarity or "max"
        prefix = f"{self.name}_" if self.name else ""
        metrics = {}
        for similarity, values in found.items():
            for metric, value in values.items():
                metrics[prefix + self.key.format(similarity=similarity, metric=metric)] = value
        self.primary_metric = prefix + self.key.format(similarity=main, metric=self.primary)
        if output_path is not None and self.write_csv:
            self.add_row(Path(output_path), {"epoch": epoch, "steps": steps} | metrics)
        return metrics

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return for each name of a similarity ``{metric: value}``."""
        raise NotImplementedError

    def add_row(self, folder: Path, row: Mapping[str, float]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{'_'.join(filter(None, [self.file, self.name, 'results']))}.csv"
        is_new = not path.exists()
        with open(path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def encode(self, model: SentenceEncoder, texts: Sequence[str], role: str | None = None) -> Any:
        """Encode texts as a "query" or a "document", or as neither."""
        name = role_prompt_name(model.settings, role) if role else None
        return model.encode(texts, prompt_name=name, show_progress_bar=self.show_progress_bar, **self.options)


def row_scores(model: SentenceEncoder, u: Any, v: Any, name: str) -> np.ndarray:
    """Compare what the model made of texts i and i, (N, D) each or one matrix for each text -> (N,)."""
    if model.vectors_are != "per token":
        return similarities(u, v)[name]
    if name != model.similarity_fn_name:
        raise InputError(f"a {type(model).__name__} is compared by {model.similarity_fn_name}, not by {name}")
    return np.array([model.similarity(u[i : i + 1], v[i : i + 1])[0, 0] for i in range(len(u))])


def same_length(**lists: Sequence) -> list[list]:
    """Return the texts and numbers as lists; ``InputError`` if their lengths differ."""
    lengths = [str(len(values)) for values in lists.values()]
    if len({*lengths}) > 1:
        names, counts = ((", ".join(each[:-1]), each[-1]) for each in ([*lists], lengths))
        raise InputError(f"{' and '.join(names)} must have the same length, not {' and '.join(counts)}")
    return [list(values) for values in lists.values()]


class EmbeddingSimilarityEvaluator(Evaluator):
    """How well a model's similarities of N pairs of texts correlate with scores (N,), on any scale.

    Called with a model it returns ``{"pearson_cosine": r, "spearman_cosine": rho}``, for the similarity of
    ``model.similarity_fn_name``. Raises ``InputError`` for lists of different lengths, ``ValueError`` if all scores or
    all similarities are equal.
    """

    key, primary, file = "{metric}_{similarity}", "spearman", "similarity_evaluation"

    def __init__(
        self, sentences1: Sequence[str], sentences2: Sequence[str], scores: Sequence[float], **options: Any
    ) -> None:
        super().__init__(**options)
        if isinstance(scores, str):
            raise InputError(f"scores must be numbers, not {one_line(scores)}")
        first, second = check_texts(sentences1), check_texts(sentences2)
        self.sentences1, self.sentences2, self.scores = same_length(sentences1=first, sentences2=second, scores=scores)

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        u, v = self.encode(model, self.sentences1), self.encode(model, self.sentences2)
        found = {}
        for name in names:
            values = row_scores(model, u, v, name)  # (N,)
            found[name] = {"pearson": pearson(values, self.scores), "spearman": spearman(values, self.scores)}
        return found


class BinaryClassificationEvaluator(Evaluator):
    """How well a model's similarities separate pairs of texts with label 1 from those with label 0.

    Called with a model it returns ``{"cosine_accuracy": ..., "cosine_accuracy_threshold": ..., "cosine_f1": ...,
    "cosine_f1_threshold", "cosine_precision", "cosine_recall", "cosine_ap", "cosine_mcc"}``: accuracy and F1 at the
    threshold that is best for each on these pairs, precision, recall and Matthews' correlation at that of F1. The
    threshold of a distance is a distance. Raises ``InputError`` for lists of different lengths and other labels.
    """

    primary, file = "ap", "binary_classification_evaluation"

    def __init__(
        self, sentences1: Sequence[str], sentences2: Sequence[str], labels: Sequence[int], **options: Any
    ) -> None:
        super().__init__(**options)
        first, second = check_texts(sentences1), check_texts(sentences2)
        self.sentences1, self.sentences2, self.labels = same_length(sentences1=first, sentences2=second, labels=labels)

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        u, v = self.encode(model, self.sentences1), self.encode(model, self.sentences2)
        labels = np.array(self.labels)
        found = {}
        for name in names:
            scores = row_scores(model, u, v, name)  # (N,)
            found[name] = separation(scores, labels)
            predicted = scores >= found[name]["f1_threshold"]
            found[name]["mcc"] = pearson(predicted, labels) if 0 < predicted.sum() < len(labels) else 0.0
            if name in ("euclidean", "manhattan"):  # compared as minus the distance
                for metric in ("accuracy_threshold", "f1_threshold"):
                    found[name][metric] *= -1
        return found


class TripletEvaluator(Evaluator):
    """How often an anchor is closer to its positive than, by more than ``margin``, to its negative.

    Called with a model it returns ``{"cosine_accuracy": share}``. Anchors are encoded as queries, the others as
    documents. Raises ``InputError`` for lists of different lengths.
    """

    primary, file = "accuracy", "triplet_evaluation"

    def __init__(
        self,
        anchors: Sequence[str],
        positives: Sequence[str],
        negatives: Sequence[str],
        *,
        margin: float | Mapping[str, float] = 0.0,
        main_similarity_function: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"main_similarity": main_similarity_function} | options)
        texts = {"anchors": check_texts(anchors), "positives": check_texts(positives)}
        self.texts = same_length(**texts, negatives=check_texts(negatives))
        self.margin = margin

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        anchors = self.encode(model, self.texts[0], "query")
        positives, negatives = (self.encode(model, texts, "document") for texts in self.texts[1:])
        found = {}
        for name in names:
            margin = self.margin.get(name, 0.0) if isinstance(self.margin, Mapping) else self.margin
            near = row_scores(model, anchors, positives, name)  # (N,)
            far = row_scores(model, anchors, negatives, name)  # (N,)
            found[name] = {"accuracy": float((near > far + margin).mean())}
        return found


class RerankingEvaluator(Evaluator):
    """How well a model sorts each query's own documents, the relevant ones to the top, by its own similarity.

    ``samples`` are dicts with ``query``, and ``positive`` and ``negative``, one text or several; one that lacks either
    is left out. Called with a model it returns ``{"map": ..., "mrr@10": ..., "ndcg@10": ...}``, the cutoff being
    ``at_k``. Of equal scores the irrelevant document counts as the better one. Raises ``InputError`` if no sample is
    left.
    """

    key, file = "{metric}", "RerankingEvaluator"

    def __init__(self, samples: Sequence[Mapping[str, Any]], *, at_k: int = 10, **options: Any) -> None:
        super().__init__(**options)
        self.at_k, self.primary, self.samples = at_k, f"ndcg@{at_k}", []
        for sample in samples:
            sides = [sample["positive"], sample["negative"]]
            positive, negative = ([side] if isinstance(side, str) else list(side) for side in sides)
            if positive and negative:
                # the negatives first: a stable sort leaves equal scores in this order
                relevant = [0] * len(negative) + [1] * len(positive)
                self.samples.append((sample["query"], negative + positive, relevant))
        if not self.samples:
            raise InputError("a sample with a positive and a negative text is needed")

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        queries = self.encode(model, check_texts([sample[0] for sample in self.samples]), "query")  # (Q, D)
        texts: list[str] = []
        for _, documents, _ in self.samples:
            texts += documents
        vectors = self.encode(model, check_texts(texts), "document")
        start, rows = 0, []
        for i, (_, documents, relevant) in enumerate(self.samples):
            end = start + len(documents)
            scores = np.asarray(model.similarity(queries[i : i + 1], vectors[start:end]))[0]  # (n,)
            ranked = np.array(relevant)[np.argsort(-scores, kind="stable")][None]
            start = end
            at_k = [metric(ranked, [relevant], self.at_k) for metric in (mrr_at_k, ndcg_at_k)]
            rows.append([average_precision(scores, relevant), *at_k])
        metrics = ("map", f"mrr@{self.at_k}", self.primary)
        return {names[0]: dict(zip(metrics, np.mean(rows, axis=0).tolist(), strict=True))}


class LabelAccuracyEvaluator(Evaluator):
    """How often a ``PairModel`` of classes gives a pair of texts its label: ``{"accuracy": share}``.

    ``labels`` are names, or numbers in the order of ``model.labels``.
    """

    key, primary, file = "{metric}", "accuracy", "accuracy_evaluation"

    def __init__(
        self, sentences1: Sequence[str], sentences2: Sequence[str], labels: Sequence[int | str], **options: Any
    ) -> None:
        super().__init__(**options)
        first, second = check_texts(sentences1), check_texts(sentences2)
        self.sentences1, self.sentences2, self.labels = same_length(sentences1=first, sentences2=second, labels=labels)

    def compute_metrics(self, model: PairModel, names: Sequence[str]) -> dict[str, dict[str, float]]:  # type: ignore[override]
        logits = model.predict(list(zip(self.sentences1, self.sentences2, strict=True)), **self.options)
        if logits.ndim != 2:
            raise InputError("label accuracy needs a PairModel of classes, this one has one number for a pair")
        numbers = {name: number for number, name in enumerate(model.labels)}
        labels = []
        for label in self.labels:
            check_choice("label", label, [*numbers, *numbers.values()])
            labels.append(numbers.get(label, label))
        return {names[0]: {"accuracy": accuracy(logits.argmax(axis=1), labels)}}


class InformationRetrievalEvaluator(Evaluator):
    """How well a model's exact search, by its own similarity, finds each query's relevant documents.

    ``queries`` and ``corpus`` map ids to texts, ``relevant_docs`` a query's id to the ids of its relevant documents.
    A query without any is left out; a relevant document that the corpus lacks counts as never found. Called with a
    model it returns ``{"cosine_accuracy@1": ..., "cosine_ndcg@10": ..., ...}``, each in 0..1, for every metric of
    ``retrieval_scores`` at its cutoffs and at those given here. Raises ``InputError`` if no query is left, or the
    corpus is empty.
    """

    file = "Information-Retrieval_evaluation"

    def __init__(
        self,
        queries: Mapping[str, str],
        corpus: Mapping[str, str],
        relevant_docs: Mapping[str, Collection[str]],
        *,
        mrr_at_k: Sequence[int] = (10,),
        ndcg_at_k: Sequence[int] = (10,),
        accuracy_at_k: Sequence[int] = (1, 3, 5, 10),
        precision_recall_at_k: Sequence[int] = (1, 3, 5, 10),
        map_at_k: Sequence[int] = (100,),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if len(self.similarity_fn_names) > 1:
            raise InputError("a search has one similarity: give main_similarity")
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
                raise InputError(f"relevant_docs of {query} must be ids in brackets, not {one_line(relevant)}")
            grades.append({rows.setdefault(document, len(rows)): 1 for document in relevant})
        texts = [queries[identity] for identity in judged]
        self.task = Retrieval(check_texts(texts), check_texts([*corpus.values()]), grades, [None] * len(judged))
        self.primary = f"ndcg@{max(ndcg_at_k)}"
        given = (*mrr_at_k, *ndcg_at_k, *accuracy_at_k, *precision_recall_at_k, *map_at_k)
        self.cutoffs = tuple(sorted({*CUTOFFS, *given}))

    def compute_metrics(self, model: SentenceEncoder, names: Sequence[str]) -> dict[str, dict[str, float]]:
        search = None  # the model's own
        if names[0] != model.similarity_fn_name:
            search = partial(top_k, similarity=names[0])
        progress = self.show_progress_bar
        return {names[0]: retrieval_scores(model, self.task, progress, search, self.cutoffs, **self.options)}
