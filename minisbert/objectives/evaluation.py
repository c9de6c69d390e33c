"""Evaluation: how well a model's similarities correlate with human scores. The command is ``minisbert.evaluate``."""

import numpy as np

from minisbert.core import InputError
from minisbert.core.metrics import pearson, spearman
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.scored_pairs import ScoredPair

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


def check_scores(pairs: list[ScoredPair], source: str) -> None:
    """Raise ``InputError`` if no correlation with the scores is defined; call it before encoding."""
    if len({pair.score for pair in pairs}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


def evaluate(encoder: SentenceEncoder, pairs: list[ScoredPair], progress: bool = False) -> dict[str, dict[str, float]]:
    """``{"pearson": {"cosine": r, ...}, "spearman": {...}}``, each in -1..1, over all pairs.

    Raises ``InputError`` if no correlation is defined: fewer than two pairs, or constant scores or similarities.
    """
    u, v = encode_pairs(encoder, pairs, progress)
    return correlations(u, v, pairs)


def encode_pairs(encoder: SentenceEncoder, pairs: list[ScoredPair], progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of all first and all second sentences, (N, D) each."""
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    return tuple(np.split(encoder.encode(texts, progress=progress), 2))


def correlations(u: np.ndarray, v: np.ndarray, pairs: list[ScoredPair]) -> dict[str, dict[str, float]]:
    """``evaluate`` for sentences already encoded, (N, D) each."""
    scores = np.array([pair.score for pair in pairs])  # (N,)
    result: dict[str, dict[str, float]] = {"pearson": {}, "spearman": {}}
    for name, values in similarities(u, v).items():
        try:
            result["pearson"][name] = pearson(values, scores)
            result["spearman"][name] = spearman(values, scores)
        except ValueError as error:
            raise InputError(f"{name} similarity against the scores: {error}") from error
    return result
