"""The table of EXAM.md: what six failing ports of all-MiniLM-L6-v2 return.

python -m lessons.exam              the table
python -m lessons.exam --rubric     what a full answer to each question says
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from lessons.mistakes import MISTAKES, planted
from minisbert.core import pooling
from minisbert.core.encoder import SentenceEncoder, normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.system.assets import ensure

TEXTS = (
    "Rain.",
    "It is raining.",
    "Paris is in France.",
    "A man is playing a guitar on the street.",
    "In Berlin, Anna and Karl play chess on Sundays.",
    "The committee will not meet again before the report of its three experts has been printed and "
    "sent to members.",
)


def vectors(encoder: SentenceEncoder, mode: str = "mean") -> torch.Tensor:
    """The texts in one batch: (B, D), of length 1."""
    ids, mask = pad_batch(encoder.tokenizer.encode(TEXTS).ids, encoder.tokenizer.pad_id)
    return normalize(pooling.POOLINGS[mode](encoder.bert(ids, mask), mask))


def port(mistake: str) -> Callable[[SentenceEncoder], torch.Tensor]:
    """A port that makes a mistake of the catalogue."""

    def computed(encoder: SentenceEncoder) -> torch.Tensor:
        with planted(MISTAKES[mistake]):
            return vectors(encoder)

    return computed


PORTS = {
    "A": port("mean over pads"),
    "B": lambda encoder: vectors(encoder, "cls"),
    "C": port("tanh GELU"),
    "D": port("positions forgotten"),
    "E": lambda encoder: vectors(encoder).roll(1, dims=0),
    "F": port("no attention mask"),
}


@torch.no_grad()
def table() -> str:
    """Each port's cosine with the right vector, a row for each text; the largest difference."""
    encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2")).eval()
    right = vectors(encoder)
    found = [compute(encoder) for compute in PORTS.values()]
    lines = ["| text | tokens | " + " | ".join(PORTS) + " |", "|---|" + "---|" * (1 + len(PORTS))]
    for i, (text, ids) in enumerate(zip(TEXTS, encoder.tokenizer.encode(TEXTS).ids, strict=True)):
        cosines = " | ".join(f"{port[i] @ right[i]:.4f}" for port in found)
        lines.append(f"| {text} | {len(ids)} | {cosines} |")
    largest = " | ".join(f"{(port - right).abs().max():.0e}" for port in found)
    return "\n".join([*lines, f"| largest difference of a number | | {largest} |"])


if __name__ == "__main__":
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m lessons.exam", description=__doc__, formatter_class=layout
    )
    parser.add_argument(
        "--rubric", action="store_true", help="print the answers instead of the table"
    )
    rubric = Path(__file__).parent / "grader" / "rubric.md"
    print(rubric.read_text(encoding="utf-8").rstrip() if parser.parse_args().rubric else table())
