"""Search: exact, with quantised vectors, by words and by tokens; beside torch, Python and bm25s."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lessons.search import bm25, fusion, graph
from minisbert.search import by_tokens, dense, quantized
from tests.parity import Comparison, compare
from tests.parity.comparison import double, fact, normal, padded, same, with_gradients

ROUNDED = 1e-7  # both sides are rounded to float32, where one unit in the last place is 6e-8

# -------------------------------------------------------------------------------------------- exact


def best_first(scores: Sequence[float], count: int) -> list[int]:
    """The places of the largest scores, by Python; of equal ones the first comes first."""
    return sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:count]


def at_places(rows: Sequence[Sequence[float]], places: Sequence[Sequence[int]]) -> list[list]:
    """Of each row the values at its places."""
    found = []
    for row, chosen in zip(rows, places, strict=True):
        found.append([row[place] for place in chosen])
    return found


def top_k() -> Iterator[Comparison]:
    """All cosines by torch, sorted by Python; two vectors of the corpus are multiples of others."""
    queries = normal(4, 5).detach()
    corpus = normal(9, 5, seed=1).detach()
    corpus[8] = 2 * corpus[1]
    corpus[5] = 4 * corpus[3]
    cosines = nn.functional.cosine_similarity(queries[:, None], corpus[None], dim=-1)
    rows = cosines.float().tolist()
    expected = [best_first(row, 6) for row in rows]
    scores, indices = dense.top_k(queries, corpus, 6)
    best = torch.tensor(at_places(rows, expected))
    yield compare("scores of the best 6", torch.tensor(np.array(scores)), best, ROUNDED)
    yield same("indices of the best 6", np.array(indices), expected)

    # 64 cosines that are 1e-9 apart: float32 cannot tell them apart, float64 can
    angles = torch.pi / 2 - 1e-9 * torch.arange(1.0, 65.0).double()  # (64,)
    turned = torch.linalg.qr(normal(8, 8, seed=2).detach()).Q  # (8, 8)
    close = angles.cos()[:, None] * turned[0] + angles.sin()[:, None] * turned[1]  # (64, 8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    _, indices = dense.top_k(turned[:1], close[order], 64)
    found = order[torch.tensor(np.array(indices))[0]]
    yield fact("cosines 1e-9 apart are in order", found.equal(torch.arange(63, -1, -1)))


def max_sim() -> Iterator[Comparison]:
    """One token after the other, in Python's own max and sum."""

    def reference(query: Tensor, document: Tensor) -> Tensor:
        return sum(max((x * y).sum() for y in document) for x in query)

    # two partners: the best may be below 0
    yield from with_gradients(
        "max_sim", by_tokens.max_sim, reference, normal(5, 4), normal(2, 4, seed=1)
    )


# ---------------------------------------------------------------------------------------- quantised


def eighths(rows: int, columns: int, seed: int) -> np.ndarray:
    """Random multiples of 1/8 between -6 and 6, float32: every step below is exact."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-48, 49, (rows, columns), generator=generator) / 8).numpy()


def int8_codes() -> Iterator[Comparison]:
    """Whole steps counted in Python; some values are outside the ranges, one range is empty."""
    x = eighths(9, 6, seed=1)
    low = [-4.0, -1.5, -3.25, -60.0, -2.0, 1.0]
    steps = [1 / 32, 1 / 64, 1 / 32, 1 / 4, 1.0, 0.0]
    high = [a + 255 * step for a, step in zip(low, steps, strict=True)]
    ranges = np.array([low, high], dtype=np.float32)

    steps[-1] = 1.0  # of the empty range, whose values are its lowest or highest level
    levels = []
    for row in x.tolist():
        counted = [(value - a) // step for value, a, step in zip(row, low, steps, strict=True)]
        levels.append([min(max(level, 0), 255) for level in counted])
    codes = quantized.to_int8(x, ranges)
    yield same("int8 codes", codes, np.array(levels) - 128)

    # a code stands for the middle of its step; without the empty range
    middles = np.array(low[:5]) + (np.array(levels)[:, :5] + 0.5) * np.array(steps[:5])
    yield same("vectors of int8 codes", quantized.from_int8(codes[:, :5], ranges[:, :5]), middles)


def bits_of_vectors() -> Iterator[Comparison]:
    """Bytes from strings of 0 and 1: of 11 columns, padded at the end, and of 16."""
    for width in (11, 16):
        x = eighths(7, width, seed=2)
        x[0] = 0
        x[1, ::2] = 0
        expected = []
        for row in x.tolist():
            bits = "".join("1" if value > 0 else "0" for value in row).ljust(16, "0")
            expected.append([int(bits[:8], 2), int(bits[8:], 2)])
        yield same(f"bits of {width} columns", quantized.to_bits(x), expected)


def hamming_distances() -> Iterator[Comparison]:
    """Ones counted in Python's integers; then the nearest, of equal ones the first."""
    for width in (5, 16):
        generator = np.random.default_rng(width)
        a = generator.integers(0, 256, (4, width), dtype=np.uint8)
        b = generator.integers(0, 256, (9, width), dtype=np.uint8)
        expected = [[ones(x, y) for y in b] for x in a]
        yield same(f"Hamming distances of {width} bytes", quantized.hamming(a, b), expected)

    # 9 possible distances among 40 rows: many ties
    x = eighths(3, 8, seed=3)
    y = eighths(40, 8, seed=4)
    differ = []
    for row in x:
        differ.append([int(((row > 0) != (other > 0)).sum()) for other in y])
    order = [best_first([-distance for distance in row], 12) for row in differ]
    distances, indices = quantized.hamming_top_k(x, quantized.to_bits(y), 12)
    yield same("distances of the nearest 12", distances, at_places(differ, order))
    yield same("indices of the nearest 12", indices, order)


def ones(x: np.ndarray, y: np.ndarray) -> int:
    """The bits in which two rows of bytes differ."""
    different = int.from_bytes(x.tobytes(), "big") ^ int.from_bytes(y.tobytes(), "big")
    return different.bit_count()


def rescored() -> Iterator[Comparison]:
    """Cosines by torch, sorted by Python; two candidates are multiples of the query."""
    queries = normal(4, 6).detach()
    corpus = normal(30, 6, seed=1).detach()
    generator = torch.Generator().manual_seed(2)
    chosen = [torch.randperm(30, generator=generator)[:12] for _ in range(4)]
    candidates = torch.stack(chosen)  # (4, 12)
    vectors = corpus[candidates]  # (4, 12, 6)
    vectors[:, 0] = 2 * queries
    vectors[:, 1] = 4 * queries
    cosines = nn.functional.cosine_similarity(queries[:, None], vectors, dim=-1)

    expected = []
    best = []
    for row, scores in zip(candidates.tolist(), cosines.float().tolist(), strict=True):
        score_of = dict(zip(row, scores, strict=True))
        first = sorted(row, key=lambda candidate, of=score_of: (-of[candidate], candidate))[:5]
        expected.append(first)
        best.append([score_of[candidate] for candidate in first])
    found = quantized.rescore(queries.numpy(), candidates.numpy(), vectors.numpy(), 5)
    scores, indices = (torch.tensor(np.array(part)) for part in found)
    yield compare("scores of the best 5", scores, torch.tensor(best), ROUNDED)
    yield same("candidates of the best 5", indices, expected)


# -------------------------------------------------------------------------------------- words alone

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
    """Five queries and six documents, with the usual k1 and b and with others."""
    queries = [text.split() for text in QUERIES]
    documents = [text.split() for text in DOCUMENTS]
    for (k1, b), expected in BM25.items():
        found = bm25.bm25_scores(queries, documents, k1, b)
        yield same(f"bm25, k1 {k1}, b {b}", found, expected)


SCORES = (
    (0.3, 0.9, 0.3, -1.0, 0.9, 0.0),
    (5.0, 1.0, 2.0, 4.0, 3.0, 6.0),
    (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
)

RANKS = (  # scipy 1.17, rankdata(-scores, "ordinal", axis=1)
    (3, 1, 4, 6, 2, 5),
    (2, 6, 5, 3, 4, 1),
    (1, 2, 3, 4, 5, 6),
)


def reciprocal_ranks() -> Iterator[Comparison]:
    """Three queries and six documents with ties, for two k, against another library's ranks."""
    for k in (60, 1):
        found = fusion.reciprocal_ranks(np.array(SCORES), k)
        yield same(f"reciprocal ranks, k {k}", found, 1 / (k + double(RANKS)))


# ------------------------------------------------------------------------------------------ a graph


def walks() -> Iterator[Comparison]:
    """Where every node can be reached, the best by torch; on hills and at a fork, by hand."""
    vectors = normal(20, 6).detach()
    query = normal(6, seed=1).detach()
    best = (vectors @ query).sort(descending=True).indices.tolist()
    everywhere = []
    ring = []
    for node in range(20):
        everywhere.append([other for other in range(20) if other != node])
        ring.append([(node + 1) % 20, (node - 1) % 20])
    for name, links, width in (("all links", everywhere, 5), ("a ring, width 20", ring, 20)):
        nodes, read = graph.walk(vectors.numpy(), links, query.numpy(), 3, width)
        yield from same_walk(name, nodes, best[:width], read, 20, length=20)

    one = np.array([1.0])
    hills = np.array([[5.0], [3.0], [1.0], [4.0], [9.0]])
    line = [[1], [0, 2], [1, 3], [2, 4], [3]]
    for width, best, count in ((1, [0], 2), (2, [0, 1], 3), (3, [4, 0, 3], 5)):
        nodes, read = graph.walk(hills, line, one, 0, width)
        yield from same_walk(f"hills, width {width}", nodes, best, read, count)

    # 9 is found by way of 6, so nobody visits 5.5
    fork = np.array([[5.0], [6.0], [5.5], [9.0], [1.0]])
    links = [[1, 2], [3], [4], [], []]
    nodes, read = graph.walk(fork, links, one, 0, 2)
    yield from same_walk("a fork", nodes, [3, 1], read, 4)


def same_walk(
    name: str, nodes: Sequence[int], best: Sequence[int], read: int, count: int, length: int = 5
) -> Iterator[Comparison]:
    """The nodes that a walk returns, and how many vectors it has read."""
    yield same(f"{name}: nodes", padded(nodes, length), padded(best, length))
    yield same(f"{name}: read", [read], [count])
