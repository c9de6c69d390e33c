"""Whitening: what removing the mean and the covariance of vectors gains on STS-B, without training.

    python -m benchmarks.whitening --pooling cls

Mean and covariance are those of the sentences of STS-B's training split; their scores are not used.
"""

import argparse

import numpy as np

from minisbert import SentenceEncoder
from minisbert.core.metrics import spearman
from minisbert.data.datasets import load_scored_pairs


def whitening(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean (D,) of x (N, D), and W (D, D) such that (x - mean) @ W has the identity as its covariance.

    The covariance is U diag(w) U^T, so W = U / sqrt(w); the columns of W go from the largest variance to the smallest.
    """
    mean = x.mean(axis=0)
    w, u = np.linalg.eigh(np.cov((x - mean).T))  # from the smallest up
    return mean, (u / np.sqrt(w))[:, ::-1]


def spearman_of_cosines(u: np.ndarray, v: np.ndarray, scores: list[float]) -> float:
    return 100 * spearman((u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1), scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--pooling")
    options = parser.parse_args()
    encoder = SentenceEncoder.load(options.model, pooling=options.pooling)
    train = {text for pair in load_scored_pairs("stsb", "train") for text in (pair.sentence1, pair.sentence2)}
    mean, w = whitening(encoder.encode(sorted(train), show_progress_bar=True).astype(np.float64))
    for split in ("dev", "test"):
        pairs = load_scored_pairs("stsb", split)
        u, v = (encoder.encode(list(side)) for side in zip(*((p.sentence1, p.sentence2) for p in pairs), strict=True))
        scores = [pair.score for pair in pairs]
        found = {"as they are": (u, v), "centred": (u - mean, v - mean)}
        found |= {f"whitened, {k}": ((u - mean) @ w[:, :k], (v - mean) @ w[:, :k]) for k in (w.shape[1], 128)}
        for name, sides in found.items():
            print(f"{split:5} {name:14} {spearman_of_cosines(*sides, scores):.2f}")


if __name__ == "__main__":
    main()
