"""Scores of a model on dev or test rows, as a dict from metric to number."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from minisbert.data.formats import Row
from minisbert.evaluation.classification_metrics import (
    accuracy,
    alignment,
    best_threshold,
    mean_off_diagonal_cosine,
    precision_recall_f1,
    uniformity,
)
from minisbert.evaluation.sts import correlate, encode_pairs, similarities
from minisbert.folder.settings import MAX_SCORE
from minisbert.models.multi_vector_encoder import MultiVectorEncoder
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder

Scores = dict[str, float]
Loss = Callable[..., Tensor]  # the objective's formula; only of losses that are means over rows

ALIKE = 4.0  # alignment is measured on the pairs with a higher score than this, of 5 (SimCSE, section 3, footnote 3)


def vector_scores(
    encoder: SentenceEncoder,
    pairs: list[Row],
    contrastive: bool = False,
    loss: Loss | None = None,
    prefixes: Sequence[int] = (),
) -> Scores:
    """The cosine against people's scores; for a contrastive objective also the geometry (Wang & Isola 2020).

    ``spearman@64`` is that of the first 64 columns, for each width in ``prefixes`` below the encoder's. ``loss`` is
    that of the cosines and the scores on the scale of 0 to 1, both (N,).
    """
    u, v = encode_pairs(encoder, pairs, progress=True)  # (N, D) each
    what, cosines = "cosine similarity against the scores", similarities(u, v)["cosine"]
    found = correlate(what, cosines, pairs)
    for width in prefixes:
        if width < u.shape[1]:
            values = similarities(u[:, :width], v[:, :width])["cosine"]
            found[f"spearman@{width}"] = correlate(what, values, pairs)["spearman"]
    if loss:
        found["loss"] = float(loss(torch.from_numpy(cosines), score_targets(pairs)))
    if not contrastive:
        return found
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    everything = np.stack(list(dict(zip(texts, chain(u, v), strict=True)).values()))  # each text once, (M, D)
    found |= {"uniformity": uniformity(everything), "mean_cosine": mean_off_diagonal_cosine(everything)}
    alike = [pair.score > ALIKE for pair in pairs]
    if any(alike):
        found["alignment"] = alignment(u[alike], v[alike])
    return found


def late_scores(encoder: MultiVectorEncoder, pairs: Sequence[Row]) -> Scores:
    """The mean best match of the first sentence's tokens in the second, against people's scores.

    The first is encoded as a query. Their sum, ``max_sim``, grows with the number of tokens: it ranks texts for one
    query, but does not compare pairs.
    """
    queries = encoder.encode([pair.sentence1 for pair in pairs], show_progress_bar=True, query=True)
    documents = encoder.encode([pair.sentence2 for pair in pairs], show_progress_bar=True, query=False)
    values = [(queries[i] @ documents[i].T).max(axis=1).mean() for i in range(len(pairs))]
    return correlate("mean best match against the scores", np.array(values, dtype=np.float64), pairs)


def pair_scores(model: PairModel, rows: Sequence[Row], loss: Loss | None = None) -> Scores:
    """For a head: correlations, binary scores at a probability of .5, or accuracy; and the ``loss`` of its outputs."""
    found = model.scores([row.sentence1 for row in rows], [row.sentence2 for row in rows], show_progress_bar=True)
    if model.task == "regression":
        scores = correlate("the head's scores against people's (a lower --head-lr may help)", found, rows)
    elif model.task in ("binary", "labels"):  # with several labels, each is a decision
        scores = binary_scores(found.ravel(), labels_of(rows).ravel(), threshold=0.5)
    else:
        scores = {"accuracy": accuracy(found.argmax(axis=1), labels_of(rows))}
    if loss:
        targets = score_targets(rows) if model.task == "regression" else torch.from_numpy(labels_of(rows))
        scores["loss"] = float(loss(outputs_of(model.task, torch.from_numpy(found)), targets))
    return scores


def outputs_of(task: str, scores: Tensor) -> Tensor:
    """A head's outputs, as its loss reads them, from its scores: the inverse of ``PairModel.readable``."""
    if task == "regression":
        return scores / MAX_SCORE
    if task == "classes":
        return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
    return scores.double().logit(eps=1e-7)  # subtle: as float32 the sigmoid of 17 is 1, whose logit is infinite


def cosine_scores(encoder: SentenceEncoder, rows: list[Row], dev: list[Row], loss: Loss | None = None) -> Scores:
    """Duplicate or not by the cosine alone, at the threshold with the best F1 on dev; and the ``loss`` on ``rows``."""
    (u, v), labels = encode_pairs(encoder, rows), labels_of(rows)
    cosines = dev_cosines = similarities(u, v)["cosine"]
    if dev is not rows:
        dev_cosines = similarities(*encode_pairs(encoder, dev))["cosine"]
    threshold, _ = best_threshold(dev_cosines, labels_of(dev))
    found = binary_scores(cosines, labels, threshold) | {"threshold": threshold}
    if loss:
        found["loss"] = float(loss(*map(torch.from_numpy, (u, v, labels))))
    return found


def binary_scores(scores: np.ndarray, labels: np.ndarray, threshold: float) -> Scores:
    predicted = (scores >= threshold).astype(int)
    precision, recall, f1 = precision_recall_f1(predicted, labels)
    return {"accuracy": accuracy(predicted, labels), "f1": f1, "precision": precision, "recall": recall}


def score_targets(pairs: Sequence[Row]) -> Tensor:
    """The scores on the scale of 0 to 1, (N,), as training has them."""
    return torch.tensor([pair.score / MAX_SCORE for pair in pairs])


def labels_of(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row.label for row in rows])
