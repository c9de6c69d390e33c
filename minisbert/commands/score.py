"""Score sentence pairs with a trained head.

    minisbert score --model runs/sts-siamese-all-MiniLM-L6-v2/model
    minisbert score --model runs/sts-cross-encoder-all-MiniLM-L6-v2/model "A cat sits." "A kitten is sitting."
    minisbert score --model runs/sbert-nli-all-MiniLM-L6-v2/model --file pairs.tsv > scored.tsv

Scores are 0 to 5 from a regression head, probabilities from a classifier. Without texts, six example pairs are scored,
one for each point of the STS scale, and shown as a table.
"""

from typing import TYPE_CHECKING

import numpy as np

from minisbert.commands.options import add_device_options, add_length_options, opened, say_cut_pairs
from minisbert.core import InputError, reading
from minisbert.data.lines import Rows
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command

if TYPE_CHECKING:
    from minisbert.models.pair_model import PairScorer

SIX_PAIRS = (  # the pairs of the STS-B notebook, and the scores that it expects
    ("I love eating apples", "The capital of France is Paris", 0),
    ("I have a black cat", "My pet is a dog", 1),
    ("He plays soccer on weekends", "She enjoys playing tennis on Sundays", 2),
    ("The sun is shining in the sky", "It is a bright and sunny day", 3),
    ("The smartphone has a large screen", "This phone features a big display", 4),
    ("The dog is barking loudly", "The dog is barking loudly", 5),
)

parser = command_parser("score", __doc__)
parser.add_argument("texts", nargs="*", metavar="TEXT", help="two texts; without any, six examples from 0 to 5")
parser.add_argument("--model", required=True, help="a folder with a trained head, or a CrossEncoder's name on the Hub")
pairs_help = "tab-separated pairs, one per line; each is printed after its score, which is not clipped to 0..5"
parser.add_argument("--file", metavar="F", help=pairs_help)
add_length_options(parser)
add_device_options(parser)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    expected = (0,) if options.file else (0, 2)
    if len(options.texts) not in expected:
        raise InputError(f"give two texts, each in quotes, or --file, not {len(options.texts)} texts")
    if options.file:
        pairs = read_pairs(options.file)
    elif options.texts:
        pairs = [tuple(options.texts)]
    else:
        pairs = [(first, second) for first, second, _ in SIX_PAIRS]
    from minisbert.loading import load
    from minisbert.models.pair_model import PairScorer
    from minisbert.models.similarity import MAX_SCORE

    model = opened(options, load)
    if not isinstance(model, PairScorer):
        raise InputError(f"{options.model} holds an encoder, but no head that was trained on pairs (head.json)")
    scores = model.predict(pairs, show_progress_bar=True, apply_softmax=True)
    if model.task == "regression":
        scores = MAX_SCORE * scores  # on the scale of the STS Benchmark, from 0 to 5
    say_cut_pairs(model, len(pairs))
    # a file is for programs: the raw score, since clipped ones would tie; a pair or the examples are for people
    if options.file:
        for (first, second), score in zip(pairs, scores.reshape(len(pairs), -1), strict=True):
            columns = [f"{value:.6f}" for value in score]
            print("\t".join([*columns, first, second]))
    elif options.texts:
        print(format_score(model, scores[0]))
    else:
        print_six_pairs(model, scores)


def read_pairs(path: str) -> list[tuple[str, ...]]:
    """Read two tab-separated sentences per line; ``InputError`` for an empty file or any other line (naming it)."""
    pairs = []
    with reading(path) as at:
        for at.line, cells in Rows(path).cells("\t"):
            if len(cells) != 2 or not all(cells):
                raise ValueError("expected two sentences with a tab between them")
            pairs.append(tuple(cells))
    if not pairs:
        raise InputError(f"{path} contains no sentence pairs")
    return pairs


def format_score(model: "PairScorer", score: np.ndarray) -> str:
    """Format a regression's score, clipped to 0..5, the probability of a duplicate, or that of each label."""
    from minisbert.models.pair_model import SEVERAL

    if model.task in SEVERAL:
        return "  ".join(f"{label} {value:.3f}" for label, value in zip(model.labels, score, strict=True))
    if model.task == "regression":
        return f"{np.clip(score, 0, 5):.2f}"
    return f"{score:.3f}"


def print_six_pairs(model: "PairScorer", scores: np.ndarray) -> None:
    """Print the six examples as a table; scores from 0 to 5 also rounded, halves up, as in the notebook."""
    shown = [format_score(model, score) for score in scores]
    if model.task == "regression":
        for i, score in enumerate(np.clip(scores, 0, 5)):
            shown[i] += f" -> {int(float(score) + 0.5)}"
    width = max(5, len(shown[0]))
    print(f"people  {'model':<{width}}  pair")
    for (first, second, people), text in zip(SIX_PAIRS, shown, strict=True):
        print(f"{people:<6}  {text:<{width}}  {first} / {second}")


if __name__ == "__main__":
    run_command(main)
