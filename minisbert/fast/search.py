"""Exact search by cosine: the k best of a corpus for each query, and the closest pairs of a collection.

python -m minisbert.search corpus.txt --query "A man plays a guitar." --top 5
python -m minisbert.search corpus.txt --queries questions.txt --index corpus.safetensors --json

Scores are computed block by block, so no matrix of all scores ever stands in memory. They are computed in float64 and
rounded to float32: equal vectors then get equal scores, 1 with each other, in whatever block they meet. In float32
alone the last digit depends on the block, and with it the order of ties.
"""

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.losses import normalize
from minisbert.objectives.corpora import read_sentences
from minisbert.run.index import add_corpus_options, encode_aloud, load_and_encode, read_corpus
from minisbert.system.console import LiveLine, duration, run_command, say

BLOCK = 1024  # rows and columns of scores at a time: 8 MiB
Vectors = np.ndarray | Tensor


def k_best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest of each row, highest first, of equal ones the lower column first: (R, C) -> two (R, k).

    Values and their columns. ``[[1, 3, 2, 3]], k = 3`` gives ``[[3, 3, 2]]`` and ``[[1, 3, 2]]``.
    """
    lowest = scores.topk(k).values[:, -1:]  # (R, 1)
    above, level = scores > lowest, scores == lowest  # (R, C)
    # subtle: of the columns level with the lowest, topk takes any; we take the first ones that there is room for
    room = k - above.sum(dim=1, keepdim=True)  # (R, 1)
    chosen = above | (level & (level.cumsum(dim=1) <= room))  # (R, C), k of each row
    columns = chosen.nonzero()[:, 1].view(-1, k)  # (R, k), ascending
    values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, order)


def top_k(queries: Vectors, corpus: Vectors, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k rows of the corpus (N, D) of highest cosine with each query (Q, D): scores and indices, (Q, k) each.

    Highest score first, of equal ones the lower index first; a zero vector has cosine 0 with everything. Needs
    memory for Q x k results and one block. Raises ``InputError`` for k beyond the corpus, no vectors, widths that
    differ, and NaN or infinity, with its row.
    """
    queries, corpus = checked(queries, "queries"), checked(corpus, "corpus")
    if queries.shape[1] != corpus.shape[1]:
        raise InputError(f"queries of width {queries.shape[1]} and a corpus of {corpus.shape[1]} cannot be compared")
    if not 1 <= k <= len(corpus):
        raise InputError(f"k is {k}: it must be 1 to {len(corpus):,}, the size of the corpus")
    scores = torch.full((len(queries), k), -torch.inf)
    indices = torch.zeros(len(queries), k, dtype=torch.int64)
    blocks = [(i, j) for j in range(0, len(corpus), BLOCK) for i in range(0, len(queries), BLOCK)]
    for i, j in with_progress(blocks, progress):
        block = cosines(queries, i, corpus, j)  # (R, C)
        values, columns = k_best(block, min(k, block.shape[1]))
        # what was found before stands first: its indices are lower, so the order of ties stays right
        values = torch.cat([scores[i : i + BLOCK], values], dim=1)
        found = torch.cat([indices[i : i + BLOCK], j + columns], dim=1)
        scores[i : i + BLOCK], order = k_best(values, k)
        indices[i : i + BLOCK] = found.gather(1, order)
    return scores.numpy(), indices.numpy()


def closest_pairs(vectors: Vectors, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The k pairs i < j of highest cosine among vectors (N, D), each pair once: scores (k,) and pairs (k, 2).

    Highest score first, of equal ones the lower i, then the lower j. Needs memory for k pairs and one block.
    Raises ``InputError`` for k beyond the N (N - 1) / 2 pairs, fewer than two vectors, and NaN or infinity.
    """
    vectors = checked(vectors, "vectors")
    count = len(vectors)
    if count < 2:
        raise InputError("one vector makes no pair: at least two are needed")
    if not 1 <= k <= count * (count - 1) // 2:
        raise InputError(f"k is {k}: it must be 1 to {count * (count - 1) // 2:,}, the number of pairs")
    scores, keys = torch.empty(0), torch.empty(0, dtype=torch.int64)  # a pair's key is i * count + j
    lowest = -torch.inf  # of the k best so far; as long as there are fewer, everything is better
    blocks = [(i, j) for i in range(0, count, BLOCK) for j in range(i, count, BLOCK)]
    for i, j in with_progress(blocks, progress):
        block = cosines(vectors, i, vectors, j)  # (R, C)
        candidates = block >= lowest
        if i == j:
            candidates = candidates.triu(diagonal=1)  # neither a vector with itself nor a pair again
        rows, columns = candidates.nonzero(as_tuple=True)
        if len(rows) == 0:
            continue
        keys, order = torch.cat([keys, (i + rows) * count + j + columns]).sort()
        scores = torch.cat([scores, block[rows, columns]])[order]
        best, order = k_best(scores[None], min(k, len(scores)))
        scores, keys = best[0], keys[order[0]]
        if len(scores) == k:
            lowest = scores[-1].item()
    return scores.numpy(), torch.stack([keys // count, keys % count], dim=1).numpy()


def checked(vectors: Vectors, name: str) -> Tensor:
    """Finite numbers (N, D), N and D at least 1, as a tensor on the CPU; else ``InputError``."""
    try:
        if not isinstance(vectors, Tensor):
            vectors = torch.from_numpy(np.require(vectors, requirements="CW"))  # what torch can take as it is
        matrix = vectors.detach().cpu()
    except (TypeError, ValueError) as error:
        raise InputError(f"the {name} are not an array of numbers: {error}") from error
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise InputError(f"the {name} have shape {tuple(matrix.shape)}: (N, D) is needed, at least (1, 1)")
    for start in range(0, len(matrix), BLOCK):
        finite = matrix[start : start + BLOCK].isfinite().all(dim=1)  # (R,)
        if not finite.all():
            row = start + int(finite.int().argmin())
            raise InputError(f"the {name}, row {row}: NaN or infinity has no cosine with anything")
    return matrix


def cosines(a: Tensor, i: int, b: Tensor, j: int) -> Tensor:
    """The block of rows of a (N, D) from row i with the block of b (M, D) from row j -> cosines (R, C), float32."""
    a, b = (normalize(rows.double()) for rows in (a[i : i + BLOCK], b[j : j + BLOCK]))
    return (a @ b.T).float()


def with_progress(blocks: list[tuple[int, int]], progress: bool) -> Iterator[tuple[int, int]]:
    """The blocks, one after the other; with ``progress`` a live line says how far it is and how long it will take."""
    with LiveLine() as line:
        started = time.monotonic()
        for done, block in enumerate(blocks, start=1):
            yield block
            if progress:
                left = (time.monotonic() - started) / done * (len(blocks) - done)
                line.show(f"compared {done / len(blocks):.0%}, {duration(left)} left")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.search",
        description="The sentences of a corpus that mean most nearly what a query means, by cosine.",
        epilog='Example: python -m minisbert.search corpus.txt --query "A man plays a guitar." --top 5',
    )
    parser.add_argument(
        "corpus", metavar="CORPUS", help="one sentence a line, .txt or .txt.gz; empty lines are skipped"
    )
    parser.add_argument("--query", action="append", metavar="TEXT", help="may be given several times")
    parser.add_argument("--queries", metavar="FILE", help="one query a line")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="results for each query (default: %(default)s)")
    add_corpus_options(parser)
    options = parser.parse_args(arguments)
    if bool(options.query) == bool(options.queries):
        raise InputError("give either --query TEXT, once or several times, or --queries FILE")
    queries = options.query or read_sentences(options.queries)[0]
    if not all(query.strip() for query in queries):
        raise InputError("an empty query matches nothing in particular: give it a text")
    if options.top < 1:
        raise InputError(f"--top {options.top}: at least 1 is needed")

    corpus = read_corpus(options.corpus)
    if options.top > len(corpus):
        say(f"--top {options.top}: the corpus has only {len(corpus)} sentences, all are shown")
    encoder, vectors = load_and_encode(corpus, options)
    scores, indices = top_k(encode_aloud(encoder, queries), vectors, min(options.top, len(corpus)), progress=True)
    if options.json:
        hits = [
            [{"score": score, "index": index, "text": corpus[index]} for score, index in zip(*row, strict=True)]
            for row in zip(scores.tolist(), indices.tolist(), strict=True)
        ]
        results = [{"query": query, "hits": found} for query, found in zip(queries, hits, strict=True)]
        print(json.dumps({"model": options.model, "corpus": len(corpus), "results": results}, ensure_ascii=False))
        return
    for number, query in enumerate(queries):
        print(f"\n{query}" if number else query)
        for score, index in zip(scores[number], indices[number], strict=True):
            print(f"{score:8.4f}  {corpus[index]}")


if __name__ == "__main__":
    run_command(main)
