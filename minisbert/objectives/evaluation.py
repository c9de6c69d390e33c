"""How well do a model's similarities agree with people's scores?

python -m minisbert.evaluate --split test
python -m minisbert.evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
"""

import argparse
import json

import numpy as np

from minisbert.core import InputError
from minisbert.core.data import SPLITS, ScoredPair, load_scored_pairs
from minisbert.core.metrics import pearson, spearman
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device, keep_freed_memory

PROTOCOL = "each sentence encoded alone, zero-shot similarity, correlation with the scores over all pairs at once"


def similarities(u: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Four ways to compare matching rows, each larger for more alike: u and v (N, D) -> (N,) each.

    Distances are negated. For unit vectors cosine, dot and Euclidean rank pairs alike.
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
    """Raise ``InputError`` where no correlation with the scores is defined, before anything is encoded."""
    if len({pair.score for pair in pairs}) < 2:
        raise InputError(f"{source}: a correlation needs at least two pairs with different scores")


def evaluate(encoder: SentenceEncoder, pairs: list[ScoredPair], progress: bool = False) -> dict[str, dict[str, float]]:
    """``{"pearson": {"cosine": r, ...}, "spearman": {...}}``, each -1..1, over all pairs.

    Raises ``InputError`` where no correlation is defined: fewer than two pairs, or scores all the same.
    """
    u, v = encode_pairs(encoder, pairs, progress)
    return correlations(u, v, pairs)


def encode_pairs(encoder: SentenceEncoder, pairs: list[ScoredPair], progress: bool) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of all first sentences and of all second ones, (N, D) each."""
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    return tuple(np.split(encoder.encode(texts, progress=progress), 2))


def correlations(u: np.ndarray, v: np.ndarray, pairs: list[ScoredPair]) -> dict[str, dict[str, float]]:
    """``evaluate`` for sentences that are encoded, (N, D) each."""
    scores = np.array([pair.score for pair in pairs])  # (N,)
    result: dict[str, dict[str, float]] = {"pearson": {}, "spearman": {}}
    for name, values in similarities(u, v).items():
        try:
            result["pearson"][name] = pearson(values, scores)
            result["spearman"][name] = spearman(values, scores)
        except ValueError as error:
            raise InputError(f"{name} similarity against the scores: {error}") from error
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.evaluate",
        description="Pearson and Spearman correlation of a model's similarities with people's scores.",
        epilog="Example: python -m minisbert.evaluate --split test --json",
    )
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--data", default="stsb", help="stsb, or a file: score, sentence1, sentence2 (default: stsb)")
    parser.add_argument("--split", choices=SPLITS, help="of stsb (default: dev)")
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, full precision")
    options = parser.parse_args(arguments)
    if options.data == "stsb":
        options.split = options.split or "dev"
    elif options.split:
        raise InputError("--split belongs to --data stsb; a file is evaluated whole")

    pairs = load_scored_pairs(options.data, options.split or "")
    check_scores(pairs, options.data)
    keep_freed_memory()
    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device))
    result = evaluate(encoder, pairs, progress=True)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, 2 * len(pairs)))
    if options.json:
        about = {"data": options.data, "split": options.split, "pairs": len(pairs), "model": options.model}
        print(json.dumps(about | {"pooling": encoder.pooling.mode} | result))
        return
    print(f"model     {options.model}, {encoder.pooling.mode} pooling")
    print(f"data      {options.data}{f', {options.split} split' if options.split else ''}, {len(pairs):,} pairs")
    print(f"protocol  {PROTOCOL}\n")
    print(f"{'x 100':<10}{'Pearson':>10}{'Spearman':>10}")
    for name in result["pearson"]:
        print(f"{name:<10}{100 * result['pearson'][name]:>10.2f}{100 * result['spearman'][name]:>10.2f}")


if __name__ == "__main__":
    run_command(main)
