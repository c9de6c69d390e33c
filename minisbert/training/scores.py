"""How good a model is on some rows, and whether training made it better than chance would.

An ``Evaluation`` holds the scores and can compute the one that decides on any selection of its rows
again. That is what the paired bootstrap of lesson 09 needs: draw rows with repetition, score the
model before and the model after training on the same draw, and look at the difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minisbert.core import metrics
from minisbert.evaluation.evaluators import correlate, encode_pairs, row_scores
from minisbert.evaluation.metrics import METRICS
from minisbert.evaluation.retrieval import (
    REPORTED,
    Retrieval,
    encode_both,
    padded,
    ranked_grades,
    retrieval_from_pairs,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.kinds import KINDS

Scores = dict[str, float]
DRAWS = 1000  # of a bootstrap: the ends of a 95 % interval move by a few hundredths of its width


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on some rows."""

    scores: Scores
    metric: str  # the score that decides which model is the best
    rows: int  # how many rows, or queries, were scored
    resampled: Callable[[np.ndarray], float]  # that score on rows of these numbers alone

    @property
    def score(self) -> float:
        return self.scores[self.metric]


@dataclass(frozen=True)
class Gain:
    """What training gained on the test rows, with the 95 % interval of a paired bootstrap."""

    metric: str
    gain: float
    low: float
    high: float
    rows: int

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    def sentence(self) -> str:
        """Say what the gain is worth: ``test spearman +2.79, 95 % interval +2.05 to +3.58``."""
        numbers = (
            f"{100 * self.gain:+.2f}, 95 % interval {100 * self.low:+.2f} to {100 * self.high:+.2f}"
        )
        text = f"test {self.metric} {numbers} ({self.rows:,} rows)"
        if self.is_shown:
            return text
        text += ": this gain cannot be told from chance"
        if self.gain:
            # the interval narrows with the root of the number of rows
            needed = self.rows * ((self.high - self.low) / 2 / self.gain) ** 2
            text += f"; about {float(f'{needed:.1g}'):,.0f} test rows would show one of this size"
        return text


def paired_gain(before: Evaluation, after: Evaluation, draws: int = DRAWS) -> Gain:
    """Draw the test rows with repetition, the same for both models: the middle 95 % of the gains.

    What makes a row easy or hard is in both scores and leaves the difference, so the interval is
    narrower than that of either score (lesson 09).
    """
    generator = np.random.default_rng(0)
    gains = []
    for _ in range(draws):
        rows = generator.integers(before.rows, size=before.rows)
        gains.append(after.resampled(rows) - before.resampled(rows))
    # of very few rows some draws have no score, such as the correlation of equal numbers
    low, high = np.nanpercentile(gains, [2.5, 97.5])
    return Gain(after.metric, after.score - before.score, float(low), float(high), before.rows)


def evaluate_encoder(
    encoder: SentenceEncoder, rows: Sequence[tuple] | Retrieval, widths: Sequence[int] = ()
) -> Evaluation:
    """Correlate cosines with scores; without scores, search each anchor's positive.

    ``rows`` are (text, text, score), (anchor, positive, ...) or a search with its relevant
    documents. ``widths`` adds ``spearman@64``, that of the first 64 columns.
    """
    if isinstance(rows, Retrieval):
        return evaluate_search(encoder, rows)
    if isinstance(rows[0][-1], str):
        return evaluate_search(encoder, retrieval_from_pairs(rows))
    first, second, wanted = (list(column) for column in zip(*rows, strict=True))
    u, v = encode_pairs(encoder, first, second, show_progress_bar=True)  # (N, D) each
    cosines = row_scores(encoder, u, v, "cosine")
    extra = {}
    for width in widths:
        if width < u.shape[1]:
            shorter = row_scores(encoder, u[:, :width], v[:, :width], "cosine")
            extra[f"spearman@{width}"] = metrics.spearman(shorter, wanted)
    evaluation = correlation("cosine similarity against the scores", cosines, wanted)
    evaluation.scores.update(extra)
    return evaluation


def correlation(
    what: str, values: np.ndarray, wanted: Sequence[float], metric: str = "spearman"
) -> Evaluation:
    """Correlate values with the scores of people; ``InputError`` names ``what`` is constant."""
    scores = correlate(what, values, wanted)
    wanted_values = np.asarray(wanted)
    formula = {"pearson": metrics.pearson, "spearman": metrics.spearman}[metric]

    def resampled(rows: np.ndarray) -> float:
        try:
            return formula(values[rows], wanted_values[rows])
        except ValueError:  # all drawn rows have one score
            return float("nan")

    return Evaluation(scores, metric, len(values), resampled)


def mean_of(scores: Scores, metric: str, each: np.ndarray) -> Evaluation:
    """An evaluation whose deciding score is the mean of what ``each`` row scores, (N,)."""
    return Evaluation(scores, metric, len(each), lambda rows: float(each[rows].mean()))


def evaluate_search(encoder: SentenceEncoder, task: Retrieval) -> Evaluation:
    """Rank the documents for each query by the model's similarity; nDCG@10 decides."""
    options: dict[str, Any] = dict(KINDS[encoder.vectors_are].encode_options)
    options["show_progress_bar"] = True
    queries, corpus = encode_both(encoder, task.queries, task.corpus, **options)  # (Q, D), (N, D)
    ranked = ranked_grades(task, queries, corpus, True, encoder.top_k)
    judged = padded([list(grades.values()) for grades in task.grades])
    scores = {}
    for name in REPORTED:
        metric, _, cutoff = name.partition("@")
        scores[name] = METRICS[metric](ranked, judged, int(cutoff))
    each = []
    for query in range(len(ranked)):
        one = slice(query, query + 1)
        each.append(METRICS["ndcg"](ranked[one], judged[one], 10))
    return mean_of(scores, "ndcg@10", np.array(each))
