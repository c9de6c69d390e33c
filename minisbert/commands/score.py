"""Score sentence pairs with a trained head.

Scores are 0 to 5 from a regression head, probabilities from a classifier.

Examples:
  minisbert score --model runs/sts-cross-encoder-all-MiniLM-L6-v2/model "A cat." "A kitten."
  minisbert score --model runs/sbert-nli-all-MiniLM-L6-v2/model --file pairs.tsv > scored.tsv
"""

import csv
import sys
from typing import Any

import numpy as np

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import read_rows
from minisbert.system.console import command_parser, escaped, say

MAX_SCORE = 5.0  # of the STS Benchmark

parser = command_parser("score", __doc__)
parser.add_argument("texts", nargs="*", metavar="TEXT", help="two texts")
parser.add_argument(
    "--model",
    required=True,
    help="a folder with a trained head, or a CrossEncoder's name on the Hub",
)
parser.add_argument(
    "--file",
    metavar="F",
    help="a table or JSON with two texts a row; each is printed after its score, which is not "
    "clipped to 0 to 5",
)
shared.add_table_options(parser, "the two texts")
shared.add_length_options(parser)
shared.add_device_options(parser)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    needed = 0 if options.file else 2
    if len(options.texts) != needed:
        raise InputError(
            f"give two texts, each in quotes, or --file, not {len(options.texts)} texts"
        )
    if options.file:
        pairs = pairs_of(options.file, options.columns, options.quotes)
    else:
        pairs = [(options.texts[0], options.texts[1])]

    from minisbert.loading import load
    from minisbert.models.pair_model import TASKS_WITH_LABELS, PairScorer

    model = shared.open_model(options, load)
    if not isinstance(model, PairScorer):
        raise InputError(
            f"{options.model} has no head that was trained on pairs (head.json): minisbert encode "
            '"A." "B." prints the cosine of two texts, encoder.similarity_pairwise computes many'
        )
    scores: np.ndarray = model.predict(pairs, show_progress_bar=True, apply_softmax=True)
    is_regression = model.task == "regression"
    if is_regression:
        scores = MAX_SCORE * scores  # on the scale of the STS Benchmark, from 0 to 5
    shared.say_cut_pairs(model, len(pairs))

    # A file is for programs: it gets the raw scores, since clipped ones would tie. One pair is for
    # people.
    if options.file:
        table = scores.reshape(len(pairs), -1)  # (N,) or (N, C) -> (N, C)
        write_table(pairs, table, options.quotes)
        return

    score = scores[0]
    if model.task in TASKS_WITH_LABELS:
        classes = zip(model.labels, score, strict=True)
        print(escaped("  ".join(f"{label} {value:.3f}" for label, value in classes)))
    elif is_regression:
        print(f"{np.clip(score, 0, MAX_SCORE):.2f}")
    else:
        print(f"{score:.3f}")  # the probability of a duplicate


def pairs_of(path: str, columns: str | None = None, quotes: bool = True) -> list[tuple[str, str]]:
    """Read the two texts of each row; a label beside them makes no difference."""
    table = read_rows(path, Columns(2, ignores_label=True), columns, quotes=quotes)
    if table.skipped:  # a row that is left out would shift the scores of the others
        raise InputError(f"{path}, {table.unit} {table.skipped[0]}: two texts are needed")
    say(table.note())
    return table.rows


def write_table(pairs: list[tuple[str, str]], scores: np.ndarray, quotes: bool) -> None:
    """Print a row for each pair: its scores (N, C), then its texts, separated by tabs."""
    options: dict[str, Any] = {}
    if not quotes:
        options = {"quoting": csv.QUOTE_NONE, "quotechar": None}
    table = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n", **options)
    for (first, second), values in zip(pairs, scores, strict=True):
        numbers = [f"{value:.6f}" for value in values]
        table.writerow([*numbers, first, second])
