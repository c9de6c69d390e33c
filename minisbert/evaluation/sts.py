"""Evaluate an encoder on rows of a file: scored pairs, labelled pairs, triplets, or pairs to search.

The command is ``minisbert evaluate --data``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.core.metrics import pearson, spearman
from minisbert.data.datasets import Table, check_labels, check_scores, load_labelled, read_file, scored_table
from minisbert.data.formats import LABELLED, PAIRS, SCORED, Row
from minisbert.data.lines import Rows
from minisbert.data.reader import recognise
from minisbert.evaluation.metrics import average_precision, best_threshold, precision_recall_f1
from minisbert.evaluation.retrieval import retrieval_from_pairs, retrieval_scores
from minisbert.models.sentence_encoder import SentenceEncoder

PROTOCOL = "each sentence encoded alone, zero-shot similarity, one correlation over all pairs"


def similarities(u: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Compare matching rows of u and v (N, D) by four similarities: (N,) each, in float64.

    Distances are negated, so larger always means more similar. A zero vector has cosine 0. For unit vectors cosine,
    dot and Euclidean rank the pairs identically.
    """
    u, v = u.astype(np.float64), v.astype(np.float64)
    dot = (u * v).sum(axis=1)  # (N,)
    return {
        "cosine": dot / np.maximum(np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1), 1e-12),
        "dot": dot,
        "euclidean": -np.linalg.norm(u - v, axis=1),
        "manhattan": -np.abs(u - v).sum(axis=1),
    }


def evaluate(encoder: SentenceEncoder, pairs: list[Row], progress: bool = False) -> dict[str, dict[str, float]]:
    """Correlate the four ``similarities`` with the scores of all pairs.

    Returns ``{"pearson": {"cosine": r, ...}, "spearman": {...}}``, each in -1..1. Raises ``InputError`` if no
    correlation is defined: fewer than two pairs, or constant scores or similarities.
    """
    u, v = encode_pairs(encoder, pairs, progress)
    result: dict[str, dict[str, float]] = {"pearson": {}, "spearman": {}}
    for name, values in similarities(u, v).items():
        correlations = correlate(f"{name} similarity against the scores", values, pairs)
        for metric, value in correlations.items():
            result[metric][name] = value
    return result


def evaluate_triplets(encoder: SentenceEncoder, triplets: Sequence[Row], progress: bool = False) -> dict[str, float]:
    """Return ``{"cosine_accuracy": share}`` of triplets whose anchor is closer to the positive; equality is not enough.

    Compares by the model's own similarity, which the key names.
    """
    texts: list[str] = []
    for row in triplets:
        texts += row.texts
    vectors = encoder.encode(texts, show_progress_bar=progress)  # (3N, D)
    name = encoder.similarity_fn_name
    near = similarities(vectors[0::3], vectors[1::3])[name]  # (N,)
    far = similarities(vectors[0::3], vectors[2::3])[name]  # (N,)
    return {f"{name}_accuracy": float((near > far).mean())}


def evaluate_pairs(encoder: SentenceEncoder, pairs: Sequence[Row], progress: bool = False) -> dict[str, float]:
    """Search for each anchor's positive among all positives; returns ``retrieval_scores``."""
    return retrieval_scores(encoder, retrieval_from_pairs(row.texts for row in pairs), progress)


def evaluate_labelled(
    encoder: SentenceEncoder, pairs: list[Row], progress: bool = False
) -> dict[str, dict[str, float]]:
    """Measure how well each of the four ``similarities`` separates pairs with label 1 from pairs with label 0.

    Returns for each ``{"accuracy", "accuracy_threshold", "f1", "f1_threshold", "precision", "recall", "ap"}``, the last
    one average precision: accuracy and F1 at the threshold that is best for each *on these pairs*, precision and
    recall at that of F1, as sentence-transformers' ``BinaryClassificationEvaluator`` has it. Average precision needs
    no threshold.
    """
    labels = np.array([pair.label for pair in pairs])
    values = similarities(*encode_pairs(encoder, pairs, progress))
    return {name: separation(scores, labels) for name, scores in values.items()}


def separation(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Measure how well scores (N,) separate the labels 1 and 0 (N,): the numbers of ``evaluate_labelled``."""
    accuracy_threshold, accuracy = best_threshold(scores, labels, "accuracy")
    f1_threshold, _ = best_threshold(scores, labels)
    precision, recall, f1 = precision_recall_f1(scores >= f1_threshold, labels)
    return {
        "accuracy": accuracy,
        "accuracy_threshold": accuracy_threshold,
        "f1": f1,
        "f1_threshold": f1_threshold,
        "precision": precision,
        "recall": recall,
        "ap": average_precision(scores, labels),
    }


def load_rows(
    data: str, split: str = "", scale: float | None = None, columns: str | None = None
) -> tuple[str, Table, Callable[..., dict[str, Any]]]:
    """Read ``data``; return what it holds in words, its rows, and the function that evaluates them.

    ``data`` is stsb, quora or a file: of triplets, of pairs without scores, of labels of 0 and 1, or of scored pairs,
    on any scale if ``scale`` is None. Raises ``InputError`` with file and line for rows that cannot be read.
    """
    source: str | Rows = data
    form = {"stsb": SCORED, "quora": LABELLED}.get(data)
    if form is None:
        source = Rows(data)
        form = SCORED if columns else recognise(source)  # columns name a score and two texts
    if form is LABELLED:
        table = load_labelled(source, LABELLED)
        check_labels(table.rows, data)
        return "labelled pairs", table, evaluate_labelled
    if form is PAIRS:
        table = read_file(source, PAIRS)
        width = len(table.rows[0].texts)
        if width == 2:
            return "pairs without scores", table, evaluate_pairs
        if width > 3:
            raise InputError(f"{data}: rows of {width} texts; anchor, positive and negative are needed")
        return "triplets", table, evaluate_triplets
    table = scored_table(source, split, scale, columns)
    check_scores(table.rows, data)
    return "pairs", table, evaluate


def encode_pairs(
    encoder: SentenceEncoder, pairs: Sequence[Row], progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Encode all first and all second sentences in one call: (N, D) each."""
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    return tuple(np.split(encoder.encode(texts, show_progress_bar=progress), 2))


def correlate(what: str, values: np.ndarray, pairs: Sequence[Row]) -> dict[str, float]:
    """Return ``{"pearson": r, "spearman": rho}`` of values (N,) with the scores; ``InputError`` if one is constant."""
    scores = np.array([pair.score for pair in pairs])  # (N,)
    try:
        return {"pearson": pearson(values, scores), "spearman": spearman(values, scores)}
    except ValueError as error:
        raise InputError(f"{what}: {error}") from error
