"""Count the known mistakes by kind, and show an example of each kind.

    python -m lessons.mistakes

docs/parity.md shows the table.
"""

import argparse
from collections import defaultdict

from lessons.mistakes import MISTAKES
from lessons.mistakes.planting import Mistake

# What goes wrong, by the module that a mistake is planted in.
KINDS = {
    "tokenizer": "text to ids",
    "vocabulary": "text to ids",
    "weights": "reading weights",
    "bert": "the encoder",
    "modern": "the encoder",
    "qwen3": "the encoder",
    "pooling": "pooling and similarity",
    "encoder": "pooling and similarity",
    "prompts": "pooling and similarity",
    "heads": "heads",
    "pair_model": "heads",
    "losses": "losses",
    "masked": "losses",
    "geometry": "losses",
    "data": "batches, schedule and optimizer",
    "loop": "batches, schedule and optimizer",
    "backward": "gradients",
    "gradient_cache": "gradients",
    "metrics": "metrics",
    "paired": "metrics",
    "leaderboard": "metrics",
    "dense": "search",
    "bm25": "search",
    "fusion": "search",
    "graph": "search",
    "by_tokens": "search",
    "limits": "search",
    "passages": "search",
    "quantized": "quantization",
    "sheet": "estimates of cost",
}


def by_kind() -> dict[str, list[Mistake]]:
    """Group the mistakes by their kinds, in the order of ``KINDS``."""
    groups = defaultdict(list)
    for mistake in MISTAKES.values():
        module = mistake.target.partition(".")[0]
        groups[KINDS.get(module, "others")].append(mistake)
    kinds = dict.fromkeys([*KINDS.values(), "others"])
    return {kind: groups[kind] for kind in kinds if groups[kind]}


def table() -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| kind | mistakes | for example |", "|---|---|---|"]
    for kind, mistakes in by_kind().items():
        example = mistakes[0]
        lines.append(f"| {kind} | {len(mistakes)} | *{example.name}*: {example.meaning} |")
    lines.append(f"| all | {len(MISTAKES)} | |")
    return lines


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m lessons.mistakes", description=__doc__).parse_args()
    print("\n".join(table()))
