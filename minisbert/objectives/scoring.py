"""Scores of a model on dev or test rows, as a dict from metric to number."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from minisbert.core import InputError
from minisbert.core.metrics import pearson, spearman
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.corpora import LabelledPair
from minisbert.objectives.evaluation import correlations, encode_pairs, similarities
from minisbert.objectives.more_metrics import (
    accuracy,
    alignment,
    best_threshold,
    mean_off_diagonal_cosine,
    precision_recall_f1,
    uniformity,
)
from minisbert.objectives.objective import Scores
from minisbert.objectives.scored_pairs import ScoredPair

ALIKE = 4.0  # the lowest score, of 5, of the pairs that alignment is measured on


def vector_scores(encoder: SentenceEncoder, pairs: list[ScoredPair], contrastive: bool = False) -> Scores:
    """The cosine against people's scores; for a contrastive objective also the geometry (Wang & Isola 2020)."""
    u, v = encode_pairs(encoder, pairs, progress=True)  # (N, D) each
    found = {metric: values["cosine"] for metric, values in correlations(u, v, pairs).items()}
    if not contrastive:
        return found
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    everything = np.stack(list(dict(zip(texts, chain(u, v), strict=True)).values()))  # each text once, (M, D)
    found |= {"uniformity": uniformity(everything), "mean_cosine": mean_off_diagonal_cosine(everything)}
    alike = [pair.score >= ALIKE for pair in pairs]
    if any(alike):
        found["alignment"] = alignment(u[alike], v[alike])
    return found


def pair_scores(model: PairModel, rows: Sequence[ScoredPair | LabelledPair]) -> Scores:
    """For a head: correlations, binary scores at a probability of .5, or accuracy."""
    found = model.scores([row.sentence1 for row in rows], [row.sentence2 for row in rows], progress=True)
    if model.task == "regression":
        truth = [row.score for row in rows]
        try:
            return {"pearson": pearson(found, truth), "spearman": spearman(found, truth)}
        except ValueError as error:
            raise InputError(f"the head's scores against people's: {error}; a lower --head-lr may help") from error
    if model.task == "binary":
        return binary_scores(found, labels_of(rows), threshold=0.5)
    return {"accuracy": accuracy(found.argmax(axis=1), labels_of(rows))}


def cosine_scores(encoder: SentenceEncoder, rows: list[LabelledPair], dev: list[LabelledPair]) -> Scores:
    """Duplicate or not by the cosine alone, at the threshold with the best F1 on dev."""
    threshold, _ = best_threshold(cosines(encoder, dev), labels_of(dev))
    return binary_scores(cosines(encoder, rows), labels_of(rows), threshold) | {"threshold": threshold}


def cosines(encoder: SentenceEncoder, rows: list[LabelledPair]) -> np.ndarray:
    """The cosine of each pair, (N,)."""
    u, v = np.split(encoder.encode([row.sentence1 for row in rows] + [row.sentence2 for row in rows]), 2)  # (N, D)
    return similarities(u, v)["cosine"]


def binary_scores(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Scores:
    predicted = (scores >= threshold).astype(int)
    precision, recall, f1 = precision_recall_f1(predicted, labels)
    return {"accuracy": accuracy(predicted, labels), "f1": f1, "precision": precision, "recall": recall}


def labels_of(rows: Sequence[LabelledPair]) -> np.ndarray:
    return np.array([row.label for row in rows])
