"""Search: exact, with quantised vectors, by words and by tokens; beside torch, Python and bm25s."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from lessons.search import bm25, fusion, graph
from minisbert.search import by_tokens, dense, quantized
from tests.parity import Comparison, compare
from tests.parity.comparison import fact, normal, padded, same, with_gradients


def top_k() -> Iterator[Comparison]:
    """All cosines by torch, sorted by Python; two vectors of the corpus are multiples of others."""
    queries, corpus = normal(4, 5).detach(), normal(9, 5, seed=1).detach()
    corpus[[8, 5]] = corpus[[1, 3]] * torch.tensor([[2.0], [4.0]]).double()
    cosines = (
        nn.functional.cosine_similarity(queries[:, None], corpus[None], dim=-1).float().tolist()
    )
    expected = [sorted(range(9), key=lambda j, row=row: (-row[j], j))[:6] for row in cosines]
    scores, indices = (torch.tensor(np.array(found)) for found in dense.top_k(queries, corpus, 6))
    best = torch.tensor(
        [[row[j] for j in chosen] for row, chosen in zip(cosines, expected, strict=True)]
    )
    # rounded to float32 on both sides: one unit in the last place is 6e-8
    yield compare("scores of the best 6", scores, best, 1e-7)
    yield same("indices of the best 6", indices, expected)
    # 64 cosines that are 1e-9 apart: float32 cannot tell them apart, float64 can
    angles = torch.pi / 2 - 1e-9 * torch.arange(1.0, 65.0).double()  # (64,)
    turned = torch.linalg.qr(normal(8, 8, seed=2).detach()).Q  # (8, 8)
    close = angles.cos()[:, None] * turned[0] + angles.sin()[:, None] * turned[1]  # (64, 8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    indices = torch.tensor(np.array(dense.top_k(turned[:1], close[order], 64)[1]))
    yield fact("cosines 1e-9 apart are in order", order[indices[0]].equal(torch.arange(63, -1, -1)))


def max_sim() -> Iterator[Comparison]:
    """One token after the other, in Python's own max and sum."""
    query, document = normal(5, 4), normal(2, 4, seed=1)  # two partners: the best may be below 0
    reference = lambda query, document: sum(max((x * y).sum() for y in document) for x in query)  # noqa: E731
    yield from with_gradients("max_sim", by_tokens.max_sim, reference, query, document)


# --------------------------------------------------------------------------------------- quantised


def eighths(rows: int, columns: int, seed: int) -> np.ndarray:
    """Random multiples of 1/8 between -6 and 6, float32: every step below is exact."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-48, 49, (rows, columns), generator=generator) / 8).numpy()


def int8_codes() -> Iterator[Comparison]:
    """Whole steps counted in Python; some values are outside the ranges, one column's range is
    empty.
    """
    x, steps = eighths(9, 6, seed=1), [1 / 32, 1 / 64, 1 / 32, 1 / 4, 1.0, 0.0]
    low = [-4.0, -1.5, -3.25, -60.0, -2.0, 1.0]
    ranges = np.array(
        [low, [a + 255 * step for a, step in zip(low, steps, strict=True)]], dtype=np.float32
    )
    steps = [*steps[:-1], 1.0]
    levels = [
        [min(max((v - a) // s, 0), 255) for v, a, s in zip(row, low, steps, strict=True)]
        for row in x.tolist()
    ]
    codes = quantized.to_int8(x, ranges)
    yield same("int8 codes", codes, np.array(levels) - 128)
    middle = [
        [a + (q + 0.5) * s for q, a, s in zip(row[:5], low, steps, strict=False)] for row in levels
    ]
    yield same("vectors of int8 codes", quantized.from_int8(codes[:, :5], ranges[:, :5]), middle)


def bits_of_vectors() -> Iterator[Comparison]:
    """Bytes from strings of 0 and 1: of 11 columns, padded at the end, and of 16."""
    for width in (11, 16):
        x = eighths(7, width, seed=2)
        x[0], x[1, ::2] = 0, 0
        rows = [
            "".join("1" if value > 0 else "0" for value in row).ljust(16, "0") for row in x.tolist()
        ]
        yield same(
            f"bits of {width} columns",
            quantized.to_bits(x),
            [[int(r[:8], 2), int(r[8:], 2)] for r in rows],
        )


def hamming_distances() -> Iterator[Comparison]:
    """Ones counted in Python's integers, for rows of 5 and of 16 bytes; then the nearest, ties by
    index.
    """
    for width in (5, 16):
        generator = np.random.default_rng(width)
        a, b = (generator.integers(0, 256, (n, width), dtype=np.uint8) for n in (4, 9))
        numbers = [[int.from_bytes(row.tobytes(), "big") for row in side] for side in (a, b)]
        expected = [[(x ^ y).bit_count() for y in numbers[1]] for x in numbers[0]]
        yield same(f"Hamming distances of {width} bytes", quantized.hamming(a, b), expected)
    x, y = (
        eighths(3, 8, seed=3),
        eighths(40, 8, seed=4),
    )  # 9 possible distances among 40 rows: many ties
    differ = [
        [sum((p > 0) != (q > 0) for p, q in zip(a, b, strict=True)) for b in y.tolist()]
        for a in x.tolist()
    ]
    order = [sorted(range(40), key=lambda j, row=row: (row[j], j))[:12] for row in differ]
    best = [[row[j] for j in chosen] for row, chosen in zip(differ, order, strict=True)]
    distances, indices = quantized.hamming_top_k(x, quantized.to_bits(y), 12)
    yield same("distances of the nearest 12", distances, best)
    yield same("indices of the nearest 12", indices, order)


def rescored() -> Iterator[Comparison]:
    """Cosines by torch, sorted by Python; two candidates are multiples of others, and come
    first.
    """
    queries, corpus = normal(4, 6).detach(), normal(30, 6, seed=1).detach()
    generator = torch.Generator().manual_seed(2)
    candidates = torch.stack(
        [torch.randperm(30, generator=generator)[:12] for _ in range(4)]
    )  # (4, 12)
    vectors = corpus[candidates]  # (4, 12, 6)
    vectors[:, 0], vectors[:, 1] = 2 * queries, 4 * queries
    cosines = nn.functional.cosine_similarity(queries[:, None], vectors, dim=-1).float().tolist()
    named = [
        dict(zip(row.tolist(), scores, strict=True))
        for row, scores in zip(candidates, cosines, strict=True)
    ]
    expected = [sorted(row, key=lambda i, row=row: (-row[i], i))[:5] for row in named]
    arrays = queries.numpy(), candidates.numpy(), vectors.numpy()
    scores, indices = (torch.tensor(np.array(found)) for found in quantized.rescore(*arrays, 5))
    best = torch.tensor(
        [[row[i] for i in chosen] for row, chosen in zip(named, expected, strict=True)]
    )
    yield compare("scores of the best 5", scores, best, 1e-7)  # as in top_k
    yield same("candidates of the best 5", indices, expected)


# ------------------------------------------------------------------------------------- words alone

DOCUMENTS = (
    "remove every member of the archive",
    "read the archive and read it again",
    "open a file",
    "the file the file the end",
    "close",
    "a b a b a b a",
)

QUERIES = ("read the archive", "file", "the the end", "a missing word", "close")

BM25 = {  # k1 and b -> the scores (Q, N) of bm25s 0.3.16, method "lucene", in float64
    (1.2, 0.75): (
        (0.7238515116559259, 1.5383742645724774, 0.0, 0.4747583428492776, 0.0, 0.0),
        (0.0, 0.0, 0.5595757702071512, 0.6092422586870758, 0.0, 0.0),
        (0.5824766223192818, 0.5415212348124573, 0.0, 1.5967625012225675, 0.0, 0.0),
        (0.0, 0.0, 0.5595757702071512, 0.0, 0.0, 0.7407333936555094),
        (0.0, 0.0, 0.0, 0.0, 1.0408412438832086, 0.0),
    ),
    (0.5, 0.3): (
        (1.1259912403536623, 2.307810250894513, 0.0, 0.589076923988622, 0.0, 0.0),
        (0.0, 0.0, 0.715013484153582, 0.8139283930285833, 0.0, 0.0),
        (0.9060747458299938, 0.8886502314871093, 0.0, 2.1849806721257075, 0.0, 0.0),
        (0.0, 0.0, 0.715013484153582, 0.0, 0.0, 0.9031749273518931),
        (0.0, 0.0, 0.0, 0.0, 1.1162645224254704, 0.0),
    ),
}


def bm25_scores() -> Iterator[Comparison]:
    """Five queries and six documents, with the usual k1 and b and with others, against another
    library.
    """
    queries, documents = ([text.split() for text in texts] for texts in (QUERIES, DOCUMENTS))
    for (k1, b), expected in BM25.items():
        found = bm25.bm25_scores(queries, documents, k1, b)
        yield same(f"bm25, k1 {k1}, b {b}", found, expected)


SCORES = (
    (0.3, 0.9, 0.3, -1.0, 0.9, 0.0),
    (5.0, 1.0, 2.0, 4.0, 3.0, 6.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)

RANKS = (
    (3, 1, 4, 6, 2, 5),
    (2, 6, 5, 3, 4, 1),
    (1, 2, 3, 4, 5, 6),
)  # scipy 1.17, rankdata(-scores, "ordinal", axis=1)


def reciprocal_ranks() -> Iterator[Comparison]:
    """Three queries and six documents with ties, for two k, against another library's ranks."""
    for k in (60, 1):
        expected = 1 / (k + np.array(RANKS, dtype=np.float64))
        yield same(
            f"reciprocal ranks, k {k}", fusion.reciprocal_ranks(np.array(SCORES), k), expected
        )


# ----------------------------------------------------------------------------------------- a graph


def walks() -> Iterator[Comparison]:
    """Every node linked to every other, and a ring that leads to all: the best by torch. Two hills:
    by hand.
    """
    vectors, query = normal(20, 6).detach(), normal(6, seed=1).detach()
    best = (vectors @ query).sort(descending=True).indices.tolist()
    arrays = vectors.numpy(), query.numpy()
    everywhere = [[other for other in range(20) if other != node] for node in range(20)]
    ring = [[(node + 1) % 20, (node - 1) % 20] for node in range(20)]
    for name, links, width in (("all links", everywhere, 5), ("a ring, width 20", ring, 20)):
        nodes, read = graph.walk(arrays[0], links, arrays[1], 3, width)
        yield same(f"{name}: nodes", padded(nodes, 20).tolist(), padded(best[:width], 20).tolist())
        yield same(f"{name}: read", [read], [20])
    hills, one = np.array([[5.0], [3.0], [1.0], [4.0], [9.0]]), np.array([1.0])
    line = [[1], [0, 2], [1, 3], [2, 4], [3]]
    for width, best, count in ((1, [0], 2), (2, [0, 1], 3), (3, [4, 0, 3], 5)):  # by hand
        nodes, read = graph.walk(hills, line, one, 0, width)
        yield same(
            f"hills, width {width}: nodes", padded(nodes, 5).tolist(), padded(best, 5).tolist()
        )
        yield same(f"hills, width {width}: read", [read], [count])
    fork, links = np.array([[5.0], [6.0], [5.5], [9.0], [1.0]]), [[1, 2], [3], [4], [], []]
    nodes, read = graph.walk(
        fork, links, one, 0, 2
    )  # by hand: 9 is found by way of 6, so nobody visits 5.5
    yield same("a fork: nodes", padded(nodes, 5).tolist(), padded([3, 1], 5).tolist())
    yield same("a fork: read", [read], [4])
