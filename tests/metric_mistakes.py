"""Known mistakes in metrics that no lesson has as a piece: of retrieval, and of yes or no. They prove the checks."""

from typing import Any

import numpy as np

from minisbert.diagnosis.mistakes import mistake
from minisbert.evaluation import metrics

# the right versions, kept from before anything is planted: a stand-in may call what it replaces
_recall, _mrr, _dcg = metrics.recall_at_k, metrics.mrr_at_k, metrics.dcg
_accuracy_at_k = metrics.accuracy_at_k
_accuracy, _precision_recall_f1 = metrics.accuracy, metrics.precision_recall_f1
_best_threshold = metrics.best_threshold


def _grades(*sides: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.maximum(np.asarray(side, dtype=np.float64), 0.0) for side in sides)


@mistake(metrics, "accuracy_at_k", "accuracy of every document", "all relevant documents must be found")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    return float(((ranked[:, :k] > 0).sum(1) == (judged > 0).sum(1)).mean())


@mistake(metrics, "precision_at_k", "precision of what was retrieved", "a short ranking is not divided by k")
def _(ranked: Any, judged: Any, k: int) -> float:
    (ranked,) = _grades(ranked)
    return float((ranked[:, :k] > 0).mean())


@mistake(metrics, "recall_at_k", "recall divided by k", "what was found is divided by k, not by all relevant")
def _(ranked: Any, judged: Any, k: int) -> float:
    (ranked,) = _grades(ranked)
    return float(((ranked[:, :k] > 0).sum(1) / k).mean())


@mistake(metrics, "recall_at_k", "recall over all queries", "the queries are summed before the division")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    return float((ranked[:, :k] > 0).sum() / (judged > 0).sum())


@mistake(metrics, "recall_at_k", "grade 0 counts", "a judged document counts as relevant, whatever its grade")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    return float(((ranked[:, :k] > 0).sum(1) / judged.shape[1]).mean())


@mistake(metrics, "mrr_at_k", "MRR of the found", "queries without a relevant document among k are left out")
def _(ranked: Any, judged: Any, k: int) -> float:
    return _mrr(ranked, judged, k) / _accuracy_at_k(ranked, judged, k)


@mistake(metrics, "mrr_at_k", "ranks from 0", "the first relevant document's rank is one too small")
def _(ranked: Any, judged: Any, k: int) -> float:
    relevant = _grades(ranked)[0][:, :k] > 0
    return float(np.where(relevant.any(1), 1 / np.maximum(relevant.argmax(1), 1), 0.0).mean())


@mistake(metrics, "mrr_at_k", "argmax of nothing", "a query without a relevant document counts as rank 1")
def _(ranked: Any, judged: Any, k: int) -> float:
    return float((1 / (1 + (_grades(ranked)[0][:, :k] > 0).argmax(1))).mean())


@mistake(metrics, "mrr_at_k", "MRR without its k", "a relevant document after the first k counts too")
def _(ranked: Any, judged: Any, k: int) -> float:
    return _mrr(ranked, judged, np.asarray(ranked).shape[1])


@mistake(metrics, "dcg", "log2(rank)", "the discount is log2(rank), at least 1, not log2(rank + 1)")
def _(grades: Any) -> np.ndarray:
    (grades,) = _grades(grades)
    return (grades / np.maximum(np.log2(np.arange(grades.shape[1]) + 1), 1.0)).sum(1)


@mistake(metrics, "dcg", "natural logarithm", "the discount is 1 + ln(rank)")
def _(grades: Any) -> np.ndarray:
    (grades,) = _grades(grades)
    return (grades / (1 + np.log(np.arange(grades.shape[1]) + 1))).sum(1)


@mistake(metrics, "dcg", "gain 2^grade - 1", "high grades count exponentially")
def _(grades: Any) -> np.ndarray:
    return _dcg(2.0 ** _grades(grades)[0] - 1)


@mistake(metrics, "dcg", "grades as 0 and 1", "a document is relevant or not, however much")
def _(grades: Any) -> np.ndarray:
    return _dcg(_grades(grades)[0] > 0)


@mistake(metrics, "ndcg_at_k", "ideal of the retrieved", "relevant documents that were missed do not count")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked = _grades(ranked)[0][:, :k]
    best = _dcg(-np.sort(-ranked, axis=1))
    return float(np.divide(_dcg(ranked), best, out=np.zeros(len(ranked)), where=best > 0).mean())


@mistake(metrics, "ndcg_at_k", "ideal beyond k", "the best ranking is not cut at k")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    return float((_dcg(ranked[:, :k]) / _dcg(-np.sort(-judged, axis=1))).mean())


@mistake(metrics, "ndcg_at_k", "ideal in the order of the file", "the best ranking is not sorted by grade")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    best = _dcg(judged[:, :k])
    return float(np.divide(_dcg(ranked[:, :k]), best, out=np.zeros(len(best)), where=best > 0).mean())


@mistake(metrics, "map_at_k", "AP of the retrieved", "divided by the relevant documents that were found")
def _(ranked: Any, judged: Any, k: int) -> float:
    relevant = _grades(ranked)[0][:, :k] > 0
    sums = (relevant * relevant.cumsum(1) / (1 + np.arange(relevant.shape[1]))).sum(1)
    return float((sums / np.maximum(relevant.sum(1), 1)).mean())


@mistake(metrics, "map_at_k", "AP over all ranks", "the precision at every rank counts, relevant or not")
def _(ranked: Any, judged: Any, k: int) -> float:
    ranked, judged = _grades(ranked, judged)
    relevant = ranked[:, :k] > 0
    return float(((relevant.cumsum(1) / (1 + np.arange(relevant.shape[1]))).sum(1) / (judged > 0).sum(1)).mean())


@mistake(metrics, "accuracy", "accuracy without the zeros", "rows of label 0 are left out: that is a recall")
def _(predicted: Any, labels: Any) -> float:
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    return float((predicted == labels)[labels != 0].mean())


@mistake(metrics, "precision_recall_f1", "accuracy for F1", "F1 counts the true negatives as well")
def _(predicted: Any, labels: Any) -> tuple[float, float, float]:
    precision, recall, _ = _precision_recall_f1(predicted, labels)
    return precision, recall, float((np.asarray(predicted) == np.asarray(labels)).mean())


@mistake(metrics, "precision_recall_f1", "precision and recall swapped", "false positives count as false negatives")
def _(predicted: Any, labels: Any) -> tuple[float, float, float]:
    precision, recall, f1 = _precision_recall_f1(predicted, labels)
    return recall, precision, f1


@mistake(metrics, "precision_recall_f1", "F1 as a plain mean", "precision and recall are averaged arithmetically")
def _(predicted: Any, labels: Any) -> tuple[float, float, float]:
    precision, recall, _ = _precision_recall_f1(predicted, labels)
    return precision, recall, (precision + recall) / 2


@mistake(metrics, "best_threshold", "threshold inside a tie", "rows with equal scores are split, by their order")
def _(scores: Any, labels: Any, metric: str = "f1") -> tuple[float, float]:
    scores = np.asarray(scores, dtype=np.float64)
    return _best_threshold(scores - 1e-9 * np.arange(len(scores)), labels, metric)


@mistake(metrics, "best_threshold", "threshold made for >", "the threshold is the highest score still predicted 0")
def _(scores: Any, labels: Any, metric: str = "f1") -> tuple[float, float]:
    threshold, value = _best_threshold(scores, labels, metric)
    return max((float(score) for score in scores if score < threshold), default=threshold), value


@mistake(metrics, "best_threshold", "threshold from a grid", "only ten steps between lowest and highest are tried")
def _(scores: Any, labels: Any, metric: str = "f1") -> tuple[float, float]:
    scores, tried = np.asarray(scores), {}
    for threshold in np.linspace(scores.min(), scores.max(), 11):
        called = scores >= threshold
        tried[threshold] = _precision_recall_f1(called, labels)[2] if metric == "f1" else _accuracy(called, labels)
    best = max(tried, key=tried.get)
    return float(best), tried[best]
