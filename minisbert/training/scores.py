"""How good a model is on some rows, and whether one is better than another by more than chance.

An ``Evaluation`` holds the scores of a model on rows. It can compute the deciding one again, for
any selection of these rows. That is what the paired bootstrap of lesson 09 needs: draw rows with
replacement, score the model before and the model after training on the same draw, and look at the
difference.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minisbert.core import InputError, metrics, one_line
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
# Draws of a bootstrap. With so many the ends of a 95 % interval move by a few hundredths of its
# width.
DRAWS = 1000


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on some rows."""

    scores: Scores
    metric: str  # the score that decides which model is the best
    rows: int  # how many rows, or queries, were scored
    resampled: Callable[[np.ndarray], float]  # computes that score again on rows of these numbers

    @property
    def score(self) -> float:
        return self.scores[self.metric]


@dataclass(frozen=True)
class Gain:
    """How much better one model is than another on the same rows, with a 95 % interval."""

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
        if self.low == self.gain == self.high == 0:
            # The best model on dev was the untrained one, or both score every row alike.
            return f"test {self.metric} +0.00 ({self.rows:,} rows): both models score alike"
        interval = f"{100 * self.low:+.2f} to {100 * self.high:+.2f}"
        text = f"test {self.metric} {100 * self.gain:+.2f}, 95 % interval {interval}"
        text += f" ({self.rows:,} rows)"
        if self.is_shown:
            return text
        word = "gain"
        if self.gain < 0:
            word = "drop"  # a loss is what training makes smaller
        text += f": this {word} cannot be told from chance"
        if self.gain != 0:
            # The interval narrows with the root of the number of rows. The number is a guess, so it
            # is rounded to one digit.
            half_width = (self.high - self.low) / 2
            needed = self.rows * (half_width / self.gain) ** 2
            rounded = float(f"{needed:.1g}")
            text += f"; about {rounded:,.0f} test rows would show one of this size"
        return text


def paired_gain(before: Evaluation, after: Evaluation, draws: int = DRAWS) -> Gain:
    """Return the gain, with the middle 95 % of the gains on rows drawn with replacement.

    Both models are scored on the same draws. What makes a row easy or hard is in both scores and
    leaves the difference, so the interval is narrower than that of either score (lesson 09).
    Raises ``InputError`` if the two were not scored on the same number of rows by one metric; that
    they are the same rows is not checked.
    """
    if (before.rows, before.metric) != (after.rows, after.metric):
        raise InputError(
            f"a gain needs two scores of the same rows by one metric, not {before.metric} of "
            f"{before.rows:,} rows and {after.metric} of {after.rows:,}: score both models on one "
            f"list of rows"
        )
    generator = np.random.default_rng(0)
    gains = []
    for _ in range(draws):
        rows = generator.integers(before.rows, size=before.rows)
        gains.append(after.resampled(rows) - before.resampled(rows))
    # Of very few rows some draws have no score, such as the correlation of equal numbers.
    low, high = np.nanpercentile(gains, [2.5, 97.5])
    return Gain(after.metric, after.score - before.score, float(low), float(high), before.rows)


def evaluate_encoder(
    encoder: SentenceEncoder, rows: Sequence[tuple] | Retrieval, widths: Sequence[int] = ()
) -> Evaluation:
    """Correlate cosines with scores; without scores, search each anchor's positive.

    ``rows`` are (text, text, score), (anchor, positive, ...) or a search with its relevant
    documents. ``widths`` adds ``spearman@64``, that of the first 64 columns. Raises ``InputError``
    for rows that are not a list of tuples.
    """
    if isinstance(rows, Retrieval):
        return evaluate_search(encoder, rows)
    check_tuples(rows)
    if isinstance(rows[0][-1], str):
        return evaluate_search(encoder, retrieval_from_pairs(rows))

    firsts, seconds, human_scores = [list(column) for column in zip(*rows, strict=True)]
    u, v = encode_pairs(encoder, firsts, seconds, show_progress_bar=True)  # (N, D) each
    cosines = row_scores(encoder, u, v, "cosine")
    of_prefixes = {}
    for width in widths:
        if width < u.shape[1]:
            prefix_cosines = row_scores(encoder, u[:, :width], v[:, :width], "cosine")
            of_prefixes[f"spearman@{width}"] = metrics.spearman(prefix_cosines, human_scores)
    evaluation = correlation("cosine similarity against the scores", cosines, human_scores)
    evaluation.scores.update(of_prefixes)
    return evaluation


def check_tuples(rows: Any) -> None:
    """Raise ``InputError`` unless rows are a list of tuples, and not an empty one."""
    if isinstance(rows, list | tuple) and rows and isinstance(rows[0], tuple | list):
        return
    raise InputError(
        f"the rows to score must be a list of tuples such as (text, text, 0.8), not "
        f"{one_line(rows)}; read_rows in minisbert.data.rows makes one of a file"
    )


def correlation(
    name: str, values: np.ndarray, human_scores: Sequence[float], metric: str = "spearman"
) -> Evaluation:
    """Correlate values with the scores of people.

    Raises ``InputError`` if either are all equal, which says that it is the correlation ``name``.
    """
    scores = correlate(name, values, human_scores)
    targets = np.asarray(human_scores)
    formulas = {"pearson": metrics.pearson, "spearman": metrics.spearman}
    formula = formulas[metric]

    def resampled(rows: np.ndarray) -> float:
        try:
            return formula(values[rows], targets[rows])
        except ValueError:
            # All drawn rows have one score.
            return float("nan")

    return Evaluation(scores, metric, len(values), resampled)


def mean_of(scores: Scores, metric: str, row_scores: np.ndarray) -> Evaluation:
    """An evaluation whose deciding score is the mean of ``row_scores`` (N,)."""

    def resampled(rows: np.ndarray) -> float:
        return float(row_scores[rows].mean())

    return Evaluation(scores, metric, len(row_scores), resampled)


def evaluate_search(encoder: SentenceEncoder, task: Retrieval) -> Evaluation:
    """Rank the documents for each query by the model's similarity; nDCG@10 decides."""
    # Sparse vectors and those per token are encoded with options that their search needs.
    options: dict[str, Any] = dict(KINDS[encoder.vectors_are].encode_options)
    options["show_progress_bar"] = True
    queries, corpus = encode_both(encoder, task.queries, task.corpus, **options)  # (Q, D), (N, D)
    ranked = ranked_grades(task, queries, corpus, progress=True, search=encoder.top_k)
    judged = padded([list(grades.values()) for grades in task.grades])

    scores = {}
    for name in REPORTED:
        metric, _, cutoff = name.partition("@")
        scores[name] = METRICS[metric](ranked, judged, int(cutoff))

    # nDCG@10 of every query alone, for the interval of its mean.
    query_scores = []
    for query in range(len(ranked)):
        row = slice(query, query + 1)
        query_scores.append(METRICS["ndcg"](ranked[row], judged[row], 10))
    return mean_of(scores, "ndcg@10", np.array(query_scores))
