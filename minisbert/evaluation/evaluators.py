"""Evaluators, under sentence-transformers' names and with the keys of its results.

    firsts = ["A cat sits.", "It rains."]
    seconds = ["A dog sits.", "Rain falls."]
    evaluator = EmbeddingSimilarityEvaluator(firsts, seconds, [0.2, 0.9])
    evaluator(encoder)  # {"pearson_cosine": 1.0, "spearman_cosine": 1.0}
    evaluator.primary_metric  # "spearman_cosine"

``load_rows`` reads the rows of a file for them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.metrics import pearson, spearman
from minisbert.data.columns import Columns
from minisbert.data.rows import Table, read_rows
from minisbert.data.values import parse_binary, parse_score
from minisbert.evaluation import metrics
from minisbert.evaluation.retrieval import encode_both
from minisbert.models.properties import similarity_pairwise
from minisbert.models.text_encoder import TextEncoder
from minisbert.replacements import EVALUATOR, check_keywords

__all__ = [
    "BinaryClassificationEvaluator",
    "EmbeddingSimilarityEvaluator",
    "Evaluator",
    "TripletEvaluator",
]

PARSERS: dict[str, Callable] = {"scores": parse_score, "labels": parse_binary}
# What the rows of a file may be. A file is read as the first of these whose columns it has.
EVALUATED = (Columns(2, "score"), Columns(3), Columns(2))


def load_rows(
    data: str, split: str = "", columns: str | None = None, quotes: bool = True
) -> tuple[str, Table]:
    """Read ``data``, which is stsb, quora or a file: the kind of its rows, and the rows.

    The kinds are "triplets", "pairs without scores", "labelled pairs" (of 0 and 1, in a column that
    is not called a score), and "pairs" with scores on any scale. Raises ``InputError`` with file
    and line for rows that cannot be read.
    """
    table = read_rows(data, EVALUATED, columns, split=split, quotes=quotes)
    # The splits of stsb are files, not a column.
    if split and not table.split and data != "stsb":
        raise InputError(f"{data} has no column called split, so --split {split} selects nothing")
    if not split and "split" in table.unread:
        raise InputError(
            f"{data} has a column split: choose its rows by --split train, dev or test"
        )
    if table.columns.label is None:
        kinds = {2: "pairs without scores", 3: "triplets"}
        return kinds[table.columns.texts], table

    scores = {row[-1] for row in table.rows}
    if scores <= {0.0, 1.0} and "score" not in table.names[-1].lower():
        if 1.0 not in scores:
            raise InputError(f"{data}: no pair has label 1, so F1 is not defined; give more rows")
        table.rows = [(first, second, int(label)) for first, second, label in table.rows]
        return "labelled pairs", table
    if len(scores) < 2:
        raise InputError(f"{data}: a correlation needs at least two pairs with different scores")
    return "pairs", table


def encode_pairs(
    model: Any, first: Sequence[str], second: Sequence[str], **options: Any
) -> tuple[Any, Any]:
    """Encode all first and all second texts in one call: (N, D) each, or a matrix for each text."""
    vectors = model.encode([*first, *second], **options)
    return vectors[: len(first)], vectors[len(first) :]


def row_scores(model: Any, u: Any, v: Any, name: str) -> np.ndarray:
    """Compare the vectors u of N first texts with the vectors v of N second texts, row by row.

    Returns (N,) in float64; for a distance its negative. ``name`` is that of the similarity.
    """
    if model.vectors_are == "per token":
        scores = []
        for i in range(len(u)):
            scores.append(model.similarity(u[i : i + 1], v[i : i + 1])[0, 0])
        return np.array(scores, dtype=np.float64)
    u = np.asarray(u, np.float64)
    v = np.asarray(v, np.float64)
    return np.asarray(similarity_pairwise(u, v, name))


def correlate(what: str, values: np.ndarray, scores: ArrayLike) -> dict[str, float]:
    """Return ``{"pearson": r, "spearman": rho}`` of values and scores, (N,) each.

    ``InputError`` if one of them is constant.
    """
    for name, numbers in (("scores", np.asarray(scores)), ("similarities", values)):
        if len(numbers) and (numbers == numbers[0]).all():
            raise InputError(
                f"{what}: a correlation needs at least two rows with different {name}, and all are "
                f"{numbers[0]:g}"
            )
    try:
        return {"pearson": pearson(values, scores), "spearman": spearman(values, scores)}
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error


class Evaluator:
    """The base of all evaluators, which gives results their names.

    Called with a model, an evaluator returns its metrics by ``model.similarity_fn_name``.
    ``primary_metric`` is then the key of the one to choose a model by. A subclass says which that
    is, and computes the metrics.
    """

    key = "{similarity}_{metric}"  # the name of a result
    primary = ""  # the metric to choose a model by

    def __init__(self, *, show_progress_bar: bool = False, **others: Any) -> None:
        check_keywords(type(self).__name__, others, ["show_progress_bar"], EVALUATOR)
        self.primary_metric = ""
        self.options = {"show_progress_bar": show_progress_bar}  # for encode

    def __call__(self, model: Any) -> dict[str, float]:
        if not hasattr(model, "similarity_fn_name"):
            raise InputError(f"an evaluator is called with an encoder, not {one_line(model)}")
        similarity = model.similarity_fn_name
        self.primary_metric = self.key.format(similarity=similarity, metric=self.primary)
        return self.flatten(self.compute_metrics(model, [similarity]))

    def flatten(self, computed: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Join the names of similarities and metrics as in sentence-transformers: ``cosine_ap``."""
        results = {}
        for similarity, values in computed.items():
            for metric, value in values.items():
                results[self.key.format(similarity=similarity, metric=metric)] = value
        return results

    def compute_metrics(
        self, model: TextEncoder, names: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """Return ``{similarity: {metric: value}}`` for the similarities with these names."""
        raise NotImplementedError


def checked_columns(texts: Mapping[str, Sequence[str]], **numbers: Sequence) -> list[list]:
    """Return columns of texts, then those of numbers, as lists.

    ``InputError`` for what is no text or no list, and for columns of different lengths, which it
    calls by their names.
    """
    for name, values in numbers.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"{name} must be a list, not {one_line(values)}")
    lists: list[list] = []
    for column in texts.values():
        lists.append(check_texts(column))
    for name, values in numbers.items():
        lists.append(numbers_of(name, values))
    lengths = [len(values) for values in lists]
    if len(set(lengths)) > 1:
        names = ", ".join([*texts, *numbers])
        counts = ", ".join(str(length) for length in lengths)
        raise InputError(f"{names} must have the same length, not {counts}")
    if not lengths[0]:
        raise InputError(f"{', '.join([*texts, *numbers])} are empty: there is nothing to evaluate")
    return lists


def numbers_of(name: str, values: Sequence) -> list:
    """Return scores as numbers, or labels as 0 and 1; ``InputError`` names what is neither."""
    parse = PARSERS[name]
    numbers: list = []
    # An array or a tensor has numbers of its own, which ``tolist`` turns into Python's.
    if hasattr(values, "tolist"):
        values = values.tolist()
    for i, value in enumerate(values):
        try:
            number = parse(value)
        except ValueError as error:
            raise InputError(f"{name}[{i}]: {error}") from error
        if number is None:
            raise InputError(f"{name}[{i}]: {one_line(value)}: leave the row out")
        numbers.append(number)
    return numbers


class EmbeddingSimilarityEvaluator(Evaluator):
    """How well a model's similarities of N pairs of texts correlate with scores (N,), on any scale.

    Called with a model it returns ``{"pearson_cosine": r, "spearman_cosine": rho}``, for the
    similarity of ``model.similarity_fn_name``. Raises ``InputError`` for lists of different
    lengths, and if all scores or all similarities are equal.
    """

    key = "{metric}_{similarity}"
    primary = "spearman"

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        scores: Sequence[float],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        texts = {"sentences1": sentences1, "sentences2": sentences2}
        self.sentences1, self.sentences2, self.scores = checked_columns(texts, scores=scores)

    def compute_metrics(
        self, model: TextEncoder, names: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        u, v = encode_pairs(model, self.sentences1, self.sentences2, **self.options)
        results = {}
        for name in names:
            values = row_scores(model, u, v, name)  # (N,)
            results[name] = correlate(f"{name} similarity against the scores", values, self.scores)
        return results


class BinaryClassificationEvaluator(Evaluator):
    """How well a model's similarities separate pairs of texts with label 1 from those with label 0.

    Called with a model it returns ``{"cosine_accuracy": ..., "cosine_accuracy_threshold": ...,
    "cosine_f1": ..., "cosine_f1_threshold", "cosine_precision", "cosine_recall", "cosine_ap",
    "cosine_mcc"}``: accuracy and F1 at the threshold that is best for each on these pairs,
    precision, recall and Matthews' correlation at that of F1. The threshold of a distance is a
    distance. Raises ``InputError`` for lists of different lengths and other labels.
    """

    primary = "ap"

    def __init__(
        self,
        sentences1: Sequence[str],
        sentences2: Sequence[str],
        labels: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        texts = {"sentences1": sentences1, "sentences2": sentences2}
        self.sentences1, self.sentences2, self.labels = checked_columns(texts, labels=labels)
        if 1 not in self.labels:
            raise InputError("no label is 1, so F1 is not defined: give pairs with label 1")

    def compute_metrics(
        self, model: TextEncoder, names: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        u, v = encode_pairs(model, self.sentences1, self.sentences2, **self.options)
        labels = np.array(self.labels)
        results = {}
        for name in names:
            scores = row_scores(model, u, v, name)  # (N,)
            accuracy_threshold, accuracy = metrics.best_threshold(scores, labels, "accuracy")
            f1_threshold, _ = metrics.best_threshold(scores, labels)
            predicted = scores >= f1_threshold
            precision, recall, f1 = metrics.precision_recall_f1(predicted, labels)
            # Matthews' correlation is Pearson's of predictions and labels. It is 0 by convention if
            # all predictions are equal.
            mcc = 0.0
            if 0 < predicted.sum() < len(labels):
                mcc = pearson(predicted, labels)
            # Distances are compared as their negatives; the threshold is a distance again.
            sign = -1 if name in ("euclidean", "manhattan") else 1
            results[name] = {
                "accuracy": accuracy,
                "accuracy_threshold": sign * accuracy_threshold,
                "f1": f1,
                "f1_threshold": sign * f1_threshold,
                "precision": precision,
                "recall": recall,
                "ap": metrics.average_precision(scores, labels),
                "mcc": mcc,
            }
        return results


class TripletEvaluator(Evaluator):
    """How often an anchor is closer to its positive than to its negative.

    Called with a model it returns ``{"cosine_accuracy": share}``. Anchors are encoded as queries,
    the others as documents. Raises ``InputError`` for lists of different lengths.
    """

    primary = "accuracy"

    def __init__(
        self,
        anchors: Sequence[str],
        positives: Sequence[str],
        negatives: Sequence[str],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        texts = {"anchors": anchors, "positives": positives, "negatives": negatives}
        self.texts = checked_columns(texts)

    def compute_metrics(
        self, model: TextEncoder, names: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        count = len(self.texts[0])
        anchors, documents = encode_both(
            model, self.texts[0], self.texts[1] + self.texts[2], **self.options
        )
        positives = documents[:count]
        negatives = documents[count:]
        results = {}
        for name in names:
            near = row_scores(model, anchors, positives, name)  # (N,)
            far = row_scores(model, anchors, negatives, name)  # (N,)
            results[name] = {"accuracy": float((near > far).mean())}
        return results
