"""Score sentence pairs with a trained head.

    minisbert score --model runs/sts-siamese-all-MiniLM-L6-v2/model
    minisbert score --model runs/sts-cross-encoder-all-MiniLM-L6-v2/model "A cat sits." "A kitten is sitting."
    minisbert score --model runs/sbert-nli-all-MiniLM-L6-v2/model --file pairs.tsv > scored.tsv

Scores are 0 to 5 from a regression head, probabilities from a classifier. Without texts, six example pairs are scored,
one for each point of the STS scale, and shown as a table.
"""

import numpy as np

from minisbert.commands.model_options import add_compiled_option, if_compiled
from minisbert.commands.options import add_threads_option, command_parser
from minisbert.compiled.runtime import CompiledPairModel
from minisbert.core import InputError, reading
from minisbert.data.rows import Rows
from minisbert.models.pair_model import PairModel
from minisbert.models.pair_scorer import MAX_SCORE, PairScorer
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device, use_threads

# The pairs of the STS-B notebook, the scores that it expects, and those of its joint and siamese models. The available
# output ends after the fourth score of the siamese model.
EXAMPLES = (
    ("I love eating apples", "The capital of France is Paris", 0, 0.50, 0.68),
    ("I have a black cat", "My pet is a dog", 1, 0.74, 0.97),
    ("He plays soccer on weekends", "She enjoys playing tennis on Sundays", 2, 0.46, 1.19),
    ("The sun is shining in the sky", "It is a bright and sunny day", 3, 4.03, 4.11),
    ("The smartphone has a large screen", "This phone features a big display", 4, 3.91, None),
    ("The dog is barking loudly", "The dog is barking loudly", 5, 5.05, None),
)


def read_pairs(path: str) -> list[tuple[str, ...]]:
    """Two tab-separated sentences per line; ``InputError`` for an empty file or any other line (naming it)."""
    pairs = []
    with reading(path) as at:
        for at.line, cells in Rows(path).cells("\t"):
            if len(cells) != 2 or not all(cells):
                raise ValueError("expected two sentences with a tab between them")
            pairs.append(tuple(cells))
    if not pairs:
        raise InputError(f"{path} contains no sentence pairs")
    return pairs


def format_score(model: PairScorer, score: np.ndarray) -> str:
    """A regression's score, clipped to 0..5, the probability of a duplicate, or the probability of each class."""
    if model.task == "classes":
        return "  ".join(f"{label} {value:.3f}" for label, value in zip(model.labels, score, strict=True))
    return f"{np.clip(score, 0, MAX_SCORE):.2f}" if model.task == "regression" else f"{score:.3f}"


def with_step(score: float | None) -> str:
    """``4.03 -> 4``: a score and the nearest integer from 0 to 5, halves rounded up; empty for None."""
    return "" if score is None else f"{score:.2f} -> {int(np.clip(score, 0, MAX_SCORE) + 0.5)}"


def print_examples(model: PairScorer, scores: np.ndarray) -> None:
    """The six examples as a table; scores from 0 to 5 also rounded, with the notebook's beside them."""
    regression = model.task == "regression"
    rows = [("people", "model", "joint", "siamese", "pair")]
    for (first, second, people, *notebook), score in zip(EXAMPLES, scores, strict=True):
        shown = with_step(np.clip(score, 0, MAX_SCORE)) if regression else format_score(model, score)
        rows.append((people, shown, *map(with_step, notebook), f"{first} / {second}"))
    width = max(5, len(rows[1][1]))
    if regression:
        print(f"{'':8}{'':{width}}  the notebook's:")
    for people, shown, joint, siamese, pair in rows:
        print(f"{people:>6}  {shown:<{width}}  " + (f"{joint:<9}  {siamese:<9}  " if regression else "") + pair)


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("score", __doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="two texts; without any, six examples from 0 to 5")
    about = "a model trained with a head: its folder, or a CrossEncoder's name on the Hub"
    parser.add_argument("--model", required=True, help=about)
    about = "tab-separated pairs, one per line; each is printed after its score, which is not clipped to 0..5"
    parser.add_argument("--file", metavar="F", help=about)
    parser.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    add_compiled_option(parser)
    add_threads_option(parser)
    options = parser.parse_args(arguments)
    if len(options.texts) not in ((0,) if options.file else (0, 2)):
        raise InputError(f"give two texts, each in quotes, or --file, not {len(options.texts)} texts")

    given = [tuple(options.texts)] if options.texts else [example[:2] for example in EXAMPLES]
    pairs = read_pairs(options.file) if options.file else given
    use_threads(options.threads)

    def compiled(package: str | bool) -> CompiledPairModel:
        return CompiledPairModel.load(options.model, package, options.max_length)

    model = if_compiled(options, compiled)
    model = model or PairModel.load(options.model, choose_device(options.device), options.max_length)
    firsts, seconds = zip(*pairs, strict=True)
    scores = model.scores(firsts, seconds, progress=True)
    if model.truncated:
        say(model.tokenizer.cut_message(model.truncated, len(pairs) * (1 if model.joint else 2)))
    if options.file:
        for (first, second), score in zip(pairs, scores, strict=True):
            print("\t".join([*(f"{value:.6f}" for value in np.atleast_1d(score)), first, second]))
    elif options.texts:
        print(format_score(model, scores[0]))
    else:
        print_examples(model, scores)


if __name__ == "__main__":
    run_command(main)
