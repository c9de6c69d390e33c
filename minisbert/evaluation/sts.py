"""Evaluation: how well a model's similarities correlate with human scores. The command is ``minisbert.evaluate``."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minisbert.core import InputError, reading
from minisbert.core.metrics import pearson, spearman
from minisbert.data.corpora import LabelledPair, Triplet, read_triplets
from minisbert.data.formats import labelled_layout
from minisbert.data.rows import Rows, is_number
from minisbert.data.scored_pairs import ScoredPair
from minisbert.evaluation.more_metrics import (
    average_precision,
    best_threshold,
    precision_recall_f1,
    triplet_accuracy,
)
from minisbert.models.sentence_encoder import SentenceEncoder

PROTOCOL = "each sentence encoded alone, zero-shot similarity, one correlation over all pairs"


def similarities(u: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Four similarities between matching rows of u and v (N, D): (N,) each, in float64.

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


def evaluate(encoder: SentenceEncoder, pairs: list[ScoredPair], progress: bool = False) -> dict[str, dict[str, float]]:
    """``{"pearson": {"cosine": r, ...}, "spearman": {...}}``, each in -1..1, over all pairs.

    Raises ``InputError`` if no correlation is defined: fewer than two pairs, or constant scores or similarities.
    """
    u, v = encode_pairs(encoder, pairs, progress)
    return correlations(u, v, pairs)


def evaluate_triplets(encoder: SentenceEncoder, triplets: list[Triplet], progress: bool = False) -> dict[str, float]:
    """``{"triplet_accuracy": share}`` of triplets with a higher cosine to the positive than to the negative."""
    texts = [text for row in triplets for text in (row.anchor, row.positive, row.negative)]
    vectors = encoder.encode(texts, progress=progress)  # (3N, D)
    with reading("triplets"):
        return {"triplet_accuracy": triplet_accuracy(*(vectors[place::3] for place in range(3)))}


def evaluate_labelled(
    encoder: SentenceEncoder, pairs: list[LabelledPair], progress: bool = False
) -> dict[str, dict[str, float]]:
    """How well each similarity tells pairs with label 1 from those with 0; of the four of ``similarities``, each

    ``{"accuracy", "accuracy_threshold", "f1", "f1_threshold", "precision", "recall", "average_precision"}``: accuracy
    and F1 at the threshold that is best for each *on these pairs*, precision and recall at that of F1, as
    sentence-transformers' ``BinaryClassificationEvaluator`` has it. Average precision needs no threshold.
    """
    labels = np.array([pair.label for pair in pairs])
    result = {}
    for name, values in similarities(*encode_pairs(encoder, pairs, progress)).items():
        with reading(f"{name} similarity against the labels"):
            accuracy_threshold, accuracy = best_threshold(values, labels, "accuracy")
            f1_threshold, _ = best_threshold(values, labels)
            precision, recall, f1 = precision_recall_f1(values >= f1_threshold, labels)
            result[name] = {"accuracy": accuracy, "accuracy_threshold": accuracy_threshold, "f1": f1}
            result[name] |= {"f1_threshold": f1_threshold, "precision": precision, "recall": recall}
            result[name] |= {"average_precision": average_precision(values, labels)}
    return result


def holds_labels(path: str) -> bool:
    """Does the header name labels of 0 and 1 (``label`` or ``is_duplicate``) and two texts?"""
    return labelled_layout([cell.lower() for cell in first_cells(path)]).header


def holds_triplets(path: str) -> bool:
    """Is a file of triplets meant, not of scored pairs? By its name, or by three cells without a score in line 1."""
    cells = first_cells(path)
    named = len(cells) == 3 and cells[0].lower() != "score" and not is_number(cells[0])
    return named or ".jsonl" in Path(path).suffixes


def first_cells(path: str) -> list[str]:
    """The first row of a table; none of JSON, and none of a pipe, which can be read only once."""
    if ".jsonl" in Path(path).suffixes or not Path(path).is_file():
        return []
    return next(Rows(path).cells(), (0, []))[1]


def load_triplets(path: str) -> list[Triplet]:
    """The triplets of a file; ``InputError`` if the anchors are numbers, so scores."""
    rows, _ = read_triplets(path)
    if rows[1:] and all(is_number(row.anchor) for row in rows[1:]):  # the first one may be a header of its own kind
        raise InputError(f"{path}: the first column holds numbers; name scored columns score, sentence1, sentence2")
    return rows


def encode_pairs(
    encoder: SentenceEncoder, pairs: Sequence[ScoredPair | LabelledPair], progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of all first and all second sentences, (N, D) each."""
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    return tuple(np.split(encoder.encode(texts, progress=progress), 2))


def correlations(u: np.ndarray, v: np.ndarray, pairs: Sequence[ScoredPair]) -> dict[str, dict[str, float]]:
    """``evaluate`` for sentences already encoded, (N, D) each."""
    result: dict[str, dict[str, float]] = {"pearson": {}, "spearman": {}}
    for name, values in similarities(u, v).items():
        for metric, value in correlate(f"{name} similarity against the scores", values, pairs).items():
            result[metric][name] = value
    return result


def correlate(what: str, values: np.ndarray, pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """``{"pearson": r, "spearman": rho}`` of values (N,) with the scores; ``InputError`` says what has none."""
    scores = np.array([pair.score for pair in pairs])  # (N,)
    with reading(what):
        return {"pearson": pearson(values, scores), "spearman": spearman(values, scores)}
