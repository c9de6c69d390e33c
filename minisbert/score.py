"""Score sentence pairs with a trained head.

    python -m minisbert.score --model runs/sts-siamese-all-MiniLM-L6-v2/model
    python -m minisbert.score --model runs/sts-joint-all-MiniLM-L6-v2/model "A cat sits." "A kitten is sitting."
    python -m minisbert.score --model runs/sbert-nli-all-MiniLM-L6-v2/model --file pairs.tsv > scored.tsv

Without texts, it scores six example pairs, one for each point of the STS scale, as a table.
"""

import argparse
from pathlib import Path

import numpy as np

from minisbert.core import InputError
from minisbert.models.pair_model import PairModel
from minisbert.objectives.scored_pairs import MAX_SCORE, tab_rows
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device
from minisbert.system.files import read_text

EXAMPLES = (
    ("I love eating apples", "The capital of France is Paris", 0),
    ("I have a black cat", "My pet is a dog", 1),
    ("He plays soccer on weekends", "She enjoys playing tennis on Sundays", 2),
    ("The sun is shining in the sky", "It is a bright and sunny day", 3),
    ("The smartphone has a large screen", "This phone features a big display", 4),
    ("The dog is barking loudly", "The dog is barking loudly", 5),
)


def read_pairs(path: str) -> list[tuple[str, str]]:
    """Two tab-separated sentences per line; ``InputError`` for an empty file or any other line (naming it)."""
    pairs = []
    for number, cells in tab_rows(read_text(path).split("\n")):
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise InputError(f"{path}, line {number}: expected two sentences with a tab between them")
        pairs.append((cells[0].strip(), cells[1].strip()))
    if not pairs:
        raise InputError(f"{path} contains no sentence pairs")
    return pairs


def format_score(model: PairModel, score: np.ndarray) -> str:
    """A score from 0 to 5, the probability of a duplicate, or the probability of each class.

    A regression may leave its scale a little; here it is clipped.
    """
    if model.task == "classes":
        return "  ".join(f"{label} {value:.3f}" for label, value in zip(model.labels, score, strict=True))
    return f"{np.clip(score, 0, MAX_SCORE):.2f}" if model.task == "regression" else f"{score:.3f}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.score",
        description="Score sentence pairs: 0 to 5 from a regression head, probabilities from a classifier.",
        epilog='Example: python -m minisbert.score --model runs/sts-siamese-all-MiniLM-L6-v2/model "A cat." "A dog."',
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="two texts; without any, six examples from 0 to 5")
    parser.add_argument("--model", required=True, help="folder of a model trained with a head")
    parser.add_argument(
        "--file",
        metavar="F",
        help="tab-separated pairs, one per line; each is printed after its score, which is not clipped to 0..5",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    options = parser.parse_args(arguments)
    if options.texts and options.file:
        raise InputError("give either two texts or --file, not both")
    if len(options.texts) not in (0, 2):
        raise InputError(f"a pair is two texts, not {len(options.texts)}: put each in quotes")
    if not Path(options.model).is_dir():
        raise InputError(f"{options.model} is not a folder; train one: python -m minisbert.train --recipe sts-siamese")

    if options.texts:
        pairs = [tuple(options.texts)]
    elif options.file:
        pairs = read_pairs(options.file)
    else:
        pairs = [(first, second) for first, second, _ in EXAMPLES]
    model = PairModel.load(options.model, choose_device(options.device))
    scores = model.scores([first for first, _ in pairs], [second for _, second in pairs], progress=True)
    if model.truncated:
        say(model.encoder.tokenizer.cut_message(model.truncated, len(pairs) * (1 if model.joint else 2)))
    if options.file:
        for (first, second), score in zip(pairs, scores, strict=True):
            print("\t".join([*(f"{value:.6f}" for value in np.atleast_1d(score)), first, second]))
    elif options.texts:
        print(format_score(model, scores[0]))
    else:
        print(f"{'people':>6}  {'model':<{max(5, len(format_score(model, scores[0])))}}  pair")
        for (first, second, people), score in zip(EXAMPLES, scores, strict=True):
            print(f"{people:>6}  {format_score(model, score):<5}  {first} / {second}")


if __name__ == "__main__":
    run_command(main)
