"""Sentence vectors before transformers, scored on STS-B: one-hot words, LSA, word contexts,
word2vec.

    python docs/examples/before_transformers.py wiki_sentences.txt.gz

A sentence is the sum of its words' vectors, ``bag @ table``: bag (N, V) counts the words, table (V,
D) has a row each. docs/before-transformers.md explains each step and has the scores.
"""

import gzip
import re
import sys
from collections import Counter

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from minisbert.core.metrics import spearman
from minisbert.data.rows import load_scored_pairs

WINDOW, NEGATIVES, WIDTH, LEAST = (
    5,
    5,
    100,
    3,
)  # words to each side, wrong words a pair, columns, occurrences of a word


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def bag(texts: list[list[int]], size: int) -> Tensor:
    """How often each word occurs in each text: (N, V), sparse."""
    rows = [row for row, ids in enumerate(texts) for _ in ids]
    columns = [word for ids in texts for word in ids]
    counts = torch.sparse_coo_tensor(
        torch.tensor([rows, columns]),
        torch.ones(len(rows)),
        (len(texts), size),
        check_invariants=True,
    )
    return counts.coalesce()


def idf(counts: Tensor) -> Tensor:
    """The log of N texts over those that have the word, (V,): 0 for a word that all have."""
    return torch.log(
        len(counts) / torch.bincount(counts.indices()[1], minlength=counts.shape[1]).clamp(min=1)
    )


def reduce(matrix: Tensor, width: int) -> Tensor:
    """The ``width`` directions that approximate the columns of (V, C) best: U of the singular value
    decomposition.

    (V, width), orthonormal: ``column @ U`` are the coordinates of a column, or of a new one, and U
    of those is near it.
    """
    return torch.svd_lowrank(matrix, q=width, niter=4)[0]


def pairs_of(texts: list[list[int]], window: int) -> Tensor:
    """Every word with every word at most ``window`` places away in its text: (P, 2), center and
    context.
    """
    flat = torch.tensor([word for ids in texts for word in ids])
    text = torch.tensor([row for row, ids in enumerate(texts) for _ in ids])
    found = []
    for gap in range(1, window + 1):
        left, right = flat[:-gap][text[:-gap] == text[gap:]], flat[gap:][text[:-gap] == text[gap:]]
        found += [torch.stack([left, right], 1), torch.stack([right, left], 1)]
    return torch.cat(found)


def contexts(pairs: Tensor, size: int) -> Tensor:
    """How much more often two words are near each other than by chance: max(log P(a, b) / P(a)
    P(b), 0), (V, V).
    """
    counts = torch.sparse_coo_tensor(
        pairs.T, torch.ones(len(pairs)), (size, size), check_invariants=True
    ).coalesce()
    total = torch.bincount(pairs[:, 0], minlength=size).clamp(min=1)
    (a, b), n = counts.indices(), counts.values()
    values = torch.log(n * len(pairs) / (total[a] * total[b])).clamp(min=0)
    return torch.sparse_coo_tensor(counts.indices(), values, (size, size), check_invariants=True)


def skip_gram_loss(center: Tensor, context: Tensor, wrong: Tensor) -> Tensor:
    """-log s(c . o) - the sum over wrong words w of log s(-c . w), s the sigmoid; the mean over
    pairs.

    center and context (B, D), wrong (B, K, D). Of vectors of zeros it is (1 + K) log 2.
    """
    right = logsigmoid((center * context).sum(1))  # (B,)
    return -(right + logsigmoid(-(wrong @ center[:, :, None]).squeeze(2)).sum(1)).mean()


def word2vec(
    pairs: Tensor, size: int, width: int, epochs: int = 2, batch: int = 16384, rate: float = 5e-3
) -> Tensor:
    """Skip-gram with negative sampling, (V, width): from a word's vector guess the words around
    it.
    """
    generator = torch.Generator().manual_seed(42)
    table = ((torch.rand(size, width, generator=generator) - 0.5) / width).requires_grad_()
    out = torch.zeros(size, width, requires_grad=True)
    frequency = torch.bincount(pairs[:, 0], minlength=size).float() ** 0.75
    optimizer = torch.optim.Adam([table, out], lr=rate)
    for _ in range(epochs):
        for center, context in (
            rows.T for rows in pairs[torch.randperm(len(pairs), generator=generator)].split(batch)
        ):
            wrong = torch.multinomial(
                frequency, len(center) * NEGATIVES, replacement=True, generator=generator
            )
            wrong = out[wrong].view(len(center), NEGATIVES, width)
            optimizer.zero_grad()
            skip_gram_loss(table[center], out[context], wrong).backward()
            optimizer.step()
    return table.detach()


def score(
    table: Tensor | None, weight: Tensor | float, vocabulary: dict[str, int], split: str
) -> float:
    """Spearman x 100 of the cosine of the summed vectors; without a table, of the counts
    themselves.
    """
    rows = load_scored_pairs("stsb", split)
    vectors = []
    for side in ([row.sentence1 for row in rows], [row.sentence2 for row in rows]):
        counts = bag(
            [[vocabulary[word] for word in words(text) if word in vocabulary] for text in side],
            len(vocabulary),
        )
        weighted = counts * weight
        vectors.append(normalize(weighted.to_dense() if table is None else weighted @ table))
    u, v = vectors  # (N, D) each
    return 100 * spearman((u * v).sum(1), [row.score for row in rows])


def main(paths: list[str]) -> None:
    lines = [
        line for path in paths for line in (gzip.open if path.endswith(".gz") else open)(path, "rt")
    ]
    lines += [
        text
        for pair in load_scored_pairs("stsb", "train")
        for text in (pair.sentence1, pair.sentence2)
    ]
    texts = [words(line) for line in dict.fromkeys(lines)]
    known = [
        word
        for word, n in Counter(word for text in texts for word in text).most_common()
        if n >= LEAST
    ]
    vocabulary = {word: i for i, word in enumerate(known)}
    corpus = [[vocabulary[word] for word in text if word in vocabulary] for text in texts]
    counts = bag(corpus, len(vocabulary))
    weight = idf(counts)
    pairs = pairs_of(corpus, WINDOW)
    print(
        f"{len(texts):,} sentences, {len(vocabulary):,} words, {len(pairs):,} pairs of words",
        file=sys.stderr,
    )
    print(f"{'Spearman x 100':20}    dev   test")
    makers = {
        "one-hot": lambda: None,
        "LSA": lambda: reduce((counts * weight).T.coalesce(), WIDTH),
        "word contexts": lambda: reduce(contexts(pairs, len(vocabulary)), WIDTH),
        "word2vec": lambda: word2vec(pairs, len(vocabulary), WIDTH),
    }
    for name, make in makers.items():
        table = make()
        for label, by in ((name, 1.0), (f"{name}, idf", weight)):
            dev, test = (score(table, by, vocabulary, split) for split in ("dev", "test"))
            print(f"{label:20} {dev:6.2f} {test:6.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
