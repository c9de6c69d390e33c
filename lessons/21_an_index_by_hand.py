# %% [markdown]
# # Lesson 21: an index by hand
#
# Steps through `minisbert/search/dense.py`, and `lessons/search/graph.py` beside it. Reading 55, chapter 10, pieces
# 40, exercises 170 minutes. You will find neighbours without looking at everything, and measure how many vectors you
# need before that pays.

# %%
import os

# NumPy reads it when it is imported; "Sixty lines" says what it is for.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
from course import figure, predict

# %% [markdown]
# ## The question
#
# The exact search of lesson 16 compares a query with every vector. It is a matrix product, it misses nothing, and for a
# million vectors it reads a gigabyte and a half for each query. An **index** promises nearly the same answers from a
# small part of the reading. How can it know where not to look, and what does *nearly* mean?
#
# The vectors are those of lesson 18: first sentences of Python's docstrings, and names as queries.

# %%
from textwrap import shorten

from lessons.search import docstrings
from minisbert.core import bert
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k
from minisbert.system.assets import ensure

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)
entries = docstrings.read_entries()
encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
documents = [entry.document for entry in entries]
vectors = encoder.encode(documents, dtype="auto")  # (N, 384), of length 1
N, K = len(vectors), 10
tested = [i for i, e in enumerate(entries) if docstrings.split_of(e.module) == "test"]
right = np.array(tested[::4])  # (Q,), the document that each query names
names = [entries[i].query for i in right]
queries = encoder.encode(names, dtype="auto")  # (Q, 384)
nearest = top_k(queries, vectors, K)[1]  # (Q, 10), by the exact search
print(f"{N:,} vectors, {len(queries)} queries")
print(f"{names[5]}: {shorten(documents[nearest[5, 0]], 60)}")
assert 3000 < N < 10_000, "a few hundred more or fewer from one Python to the next"

# %% [markdown]
# ## The formula
#
# An index is judged by two numbers, and only by both:
#
#     recall@10  =  share of the ten nearest of the exact search that the index finds
#     cost       =  vectors that it reads for a query, of N
#
# This recall asks about *neighbours*, as lesson 17's does; lesson 18's asks about right documents.
#
# ## Cells
#
# The older idea: put the vectors into cells, one around each of C centres, and read only the cells whose centres are
# nearest to the query. Engines call it **IVF**, an inverted file. Centres come from **k-means**: give each vector to
# its nearest centre, move each centre to the mean of its vectors, again.


# %%
def cells(vectors, count, steps=10):
    """Centres (C, D) of length 1 by k-means, and the rows of vectors in each cell."""
    chance = np.random.default_rng(0)
    centres = vectors[chance.choice(len(vectors), count, replace=False)]
    for _ in range(steps):
        cell = (vectors @ centres.T).argmax(axis=1)  # (N,)
        for i in range(count):
            if (cell == i).any():
                centres[i] = vectors[cell == i].mean(axis=0)
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    cell = (vectors @ centres.T).argmax(axis=1)
    return centres, [np.flatnonzero(cell == i) for i in range(count)]


def search_cells(query, probes):
    """The ten best rows of the ``probes`` cells nearest to a query, and how many vectors were read."""
    closest = np.argsort(-(centres @ query))[:probes]
    rows = np.concatenate([members[i] for i in closest])
    scores = vectors[rows] @ query
    return rows[np.argsort(-scores)[:K]].tolist(), len(centres) + len(rows)


# %%
import time


def recall(found, expected=nearest):
    """The mean share of the ten nearest that was found."""
    both = zip(found, expected.tolist(), strict=True)
    return float(np.mean([len({*a} & {*b}) / K for a, b in both]))


def measure(search, settings):
    """Recall, vectors read and milliseconds of a query, for each setting."""
    rows = []
    for setting in settings:
        started = time.perf_counter()
        answers = [search(query, setting) for query in queries]
        took = 1000 * (time.perf_counter() - started) / len(queries)
        found = [rows for rows, _ in answers]
        read = float(np.mean([read for _, read in answers]))
        rows.append((setting, recall(found), read, took))
        print(f"{setting:6} recall {rows[-1][1]:.3f}, read {read:6,.0f}, {took:.2f} ms")
    return rows


# %%
centres, members = cells(vectors, round(N**0.5))
print(f"{len(centres)} cells of {min(map(len, members))} to {max(map(len, members))}")

# %%
guess = predict(
    "21.1",
    "The nearest eight of 74 cells are read, a ninth of all vectors. Of the ten nearest neighbours they hold ...",
    ["about a tenth", "about half", "about eight of ten"],
)

# %%
by_cells = measure(search_cells, (1, 2, 4, 8, 16, 32))
assert 0.7 < by_cells[3][1] < 0.9, "eight of ten from a ninth of the reading"
assert by_cells[0][1] < 0.65, "the query's own cell has only half of its neighbours"
guess.answer("about eight of ten")

# %% [markdown]
# Why so many cells? The cell nearest to a query holds only half of its ten neighbours: in 384 dimensions they lie in
# many directions, and the others are across some border.
#
# ## The real function
#
# The newer idea: link each vector to some near ones. To search, start anywhere, look at the neighbours of where you
# are, go on from the best node that you have seen, and stop when it gets no better. These links are a graph (not
# autograd's of lesson 28). Here its nodes have the vectors 1, 2, 3, 4, in a line:

# %%
from lessons.search.graph import walk

line = np.array([[1.0], [2.0], [3.0], [4.0]])
links = [[1], [0, 2], [1, 3], [2]]
found, read = walk(line, links, np.array([1.0]), start=0, width=2)
print(found, read)
assert found == [3, 2], "uphill to the largest product, and the second"
assert read == 4, "every step reads the neighbours that are new"

# %% [markdown]
# A **heap** is a list kept in such an order that its smallest entry is always the first, and comes off in a few
# steps; Python has it as `heapq`. `walk` keeps two heaps: nodes **ahead**, from which the best is visited next, and
# the best `width` nodes **found**. It ends when the best ahead is worse than all that were found. With width 1 it
# climbs the nearest hill and stays there. With more it looks into the valleys beside its way. The start is read, too.
# Equal nodes come in the order of their numbers.

# %%
hills = np.array([[5.0], [3.0], [1.0], [4.0], [9.0]])
links = [[1], [0, 2], [1, 3], [2, 4], [3]]
for width in (1, 2, 3, 4):
    found, read = walk(hills, links, np.array([1.0]), start=0, width=width)
    print(f"width {width}: found {found}, read {read}")
assert walk(hills, links, np.array([1.0]), 0, 1) == ([0], 2), "the nearest hill"
assert walk(hills, links, np.array([1.0]), 0, 3)[0][0] == 4, "over the valley"

# %% [markdown]
# **Exercise 1.** (medium) Delete: how would you take a node out, so that the nodes behind it are still found? Most
# engines do not: they mark it. Mark half of the nodes, and measure.

# %% [markdown]
# ## Sixty lines
#
# The rest of `lessons/search/graph.py` is **HNSW**, a hierarchy of small worlds. All nodes are on level 0, and on each
# level above there are about a twelfth of those below, chosen at random. A node has at most twelve links on a level, on
# level 0 twice as many. A search walks on the top level, where links are long, and goes down where it has arrived. To
# insert a node, search for it, and link it with some of what was found. Most vector databases have this index. Read all
# three: where does `search` use a width of 1, and where does `insert` cut a node's links back?

# %%
import inspect

from lessons.search.graph import Graph

print(inspect.getsource(Graph.insert))
print(inspect.getsource(Graph.choose))
print(inspect.getsource(Graph.search))

# %% [markdown]
# (`search` walks with width 1 on every level above 0, since one node is enough to go down from; `insert` does the same
# on the levels above the new node's own. `insert` cuts the links of a neighbour back when the link to the new node
# makes them more than its most.)
#
# The graph is built by hundreds of thousands of small products. For those a second thread costs more than it gains
# (1,200 vectors: 5 seconds with one thread, 29 with two), which is why this page began with a variable.

# %%
started = time.perf_counter()
index = Graph(vectors)
print(f"built in {time.perf_counter() - started:.1f} s")
print("nodes by level:", [len(level) for level in index.levels])
degrees = [len(links) for links in index.levels[0].values()]
assert max(degrees) <= 24, "twice twelve"

# %%
guess = predict(
    "21.2",
    "The graph, width 20: of 5,500 vectors it reads about 290. It finds of the ten nearest ...",
    ["six of ten", "eight of ten", "more than nine of ten"],
)

# %%
by_graph = measure(lambda query, width: index.search(query, K, width), (10, 20, 40, 80))
assert by_graph[1][1] > 0.9, "from a twentieth of the reading"
_, recalls, reads, _ = zip(*by_cells, strict=True)
at_equal = np.interp(by_graph[1][2], reads, recalls)
print(f"cells that read as many: recall {at_equal:.3f}")
assert by_graph[1][1] > at_equal + 0.1, "links know more than centres"
guess.answer("more than nine of ten")

# %% [markdown]
# **Exercise 2.** (easy) Build with `links=6` and `links=24`. What changes in recall, in reading, in seconds?
#
# **Exercise 3.** (easy) Where does the walk start? Replace `self.start` by a random node on level 0 alone. What do
# the upper levels save here, and what at a million?

# %% [markdown]
# ## And now the time
#
# Everything above counted vectors. Here are milliseconds, one query at a time:

# %%
started = time.perf_counter()
for query in queries:
    np.argpartition(-(vectors @ query), K)
exact_ms = 1000 * (time.perf_counter() - started) / len(queries)
_, _, read, walk_ms = by_graph[1]  # of width 20
print(f"exact, by NumPy: {exact_ms:.2f} ms; the walk of width 20: {walk_ms:.2f} ms")
each_exact, each_walk = exact_ms / N, walk_ms / read
print(f"a vector: {1e6 * each_exact:.0f} ns in a product", end=", ")
print(f"{1e6 * each_walk:.0f} ns in a walk: one long read against many short ones")

# %% [markdown]
# A walk reads a twentieth of the vectors and pays many times as much for each: at this size it may well lose, as your
# two lines say. (In batches exact search is still cheaper.) An index pays when N is large enough. How does its reading
# grow? By two numbers, and only by both: so we ask how much a walk must read for a recall of .95.

# %%
guess = predict(
    "21.3",
    "Sixteen times as many vectors: for a recall of .95 a walk reads ... times as many",
    ["1.2", "2.5", "16"],
)

# %%
order = np.random.default_rng(0).permutation(N)
growth = []
for n in (N // 16, N // 8, N // 4, N // 2, N):
    part = vectors[order[:n]]
    smaller, expected = Graph(part), top_k(queries, part, K)[1]
    recalls, reads = [], []
    for width in (10, 15, 20, 30, 45):  # the wider, the more it reads and finds
        answers = [smaller.search(query, K, width) for query in queries]
        recalls.append(recall([rows for rows, _ in answers], expected))
        reads.append(np.mean([read for _, read in answers]))
    growth.append((n, float(np.interp(0.95, recalls, reads))))
    print(f"{n:6,} vectors: read {growth[-1][1]:4.0f} for a recall of .95")
factor = growth[-1][1] / growth[0][1]
more = np.diff([read for _, read in growth])  # for each doubling
print(f"{factor:.2f} times as many; each doubling reads {more.round()} more")
assert 2 < factor < 3.5, "far less than 16, and not nothing"
assert more.max() < 2 * more.min(), "about the same number more each time"
guess.answer("2.5")

# %% [markdown]
# About the same number more for each doubling is a *logarithm*, and that is why an index pays. (At a fixed *width* the
# reading grows less, and recall falls instead.) Carry both lines on:

# %%
for n in (10_000, 100_000, 1_000_000, 10_000_000):
    exact_ms = n * each_exact
    walk_ms = (growth[-1][1] + more.mean() * np.log2(n / N)) * each_walk
    print(f"{n:12,}: exact {exact_ms:9.2f} ms, walk {walk_ms:6.2f} ms")
assert exact_ms > 3 * walk_ms, "at ten million it pays"

# %% [markdown]
# Those are extrapolations in Python; faiss and hnswlib have the same graph in C++ (`docs/search.md` builds one).
# **Exact search is the right answer** below some ten thousand vectors always; up to a few hundred thousand if queries
# come in batches, if the corpus changes all the time, or if somebody has to be able to rely on the result.
#
# **Exercise 4.** (hard) Store int8 codes (lesson 17) in the graph and sort the last forty again with the full
# vectors. Bytes, recall, milliseconds?

# %% [markdown]
# ## The figure
#
# ![Recall by vectors read, and vectors read by the size of the corpus](figures/21_an_index_by_hand.png)


# %%
def draw(plt):
    drawn, (left, below) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for rows, name, shade in (
        (by_graph, "graph", "#1f4e79"),
        (by_cells, "cells", "#c0392b"),
    ):
        _, recalls, reads, _ = zip(*rows, strict=True)
        left.plot(reads, recalls, "o-", color=shade, label=name)
    left.axvline(N, color="#888888", linestyle="--")
    left.text(N * 0.9, 0.55, "all", color="#888888", ha="right")
    left.set(xscale="log", xlabel="vectors read", ylabel="recall@10")
    left.set(title="What reading buys")
    sizes, reads = zip(*growth, strict=True)
    below.plot(sizes, reads, "o-", color="#1f4e79", label="graph, recall .95")
    below.plot(sizes, sizes, color="#888888", linestyle="--", label="exact")
    below.set(xscale="log", yscale="log", xlabel="vectors", ylabel="vectors read")
    below.set(title="How it grows")
    ticks = [200, 500, 1000, 2000, 5000]
    for axis in (left.xaxis, below.xaxis, below.yaxis):
        axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
    for axes in (left, below):
        axes.minorticks_off()
        axes.legend(frameon=False)
    return drawn


figure("21_an_index_by_hand", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** A seventh of the neighbours is missing at width 10. Do the *answers* suffer?

# %%
guess = predict(
    "21.4",
    "Recall of neighbours is about .85 at width 10. nDCG@10 of the right documents, .42, falls by ...",
    ["less than one point", "two to six points", "about fifteen points"],
)

# %%
from lessons.search.measure import interval, ndcg_of_each

exact = ndcg_of_each(nearest, right)
print(f"exact: nDCG@10 {exact.mean():.3f}")
lost = {}
for width in (10, 40, 80):
    found = np.array([index.search(query, K, width)[0] for query in queries])
    difference = ndcg_of_each(found, right) - exact
    lost[width] = difference.mean(), *interval(difference)
    print("width {}: {:+.3f} ({:+.3f} to {:+.3f})".format(width, *lost[width]))
assert lost[10][2] < 0, "a loss, and not by chance"
assert -0.07 < lost[10][0] < -0.01, "some three points"
assert lost[80][0] > lost[10][0], "a wider walk buys it back"
guess.answer("two to six points")

# %% [markdown]
# The right document is missed like any other neighbour. So the speed of an index at width 10 and the quality of an
# exact search are those of two different engines.
#
# ## Break it
#
# **Islands.** `choose` leaves out a neighbour that is closer to another neighbour than to the node itself: a link in
# *that* direction exists already. Without the rule every node links to its very nearest. That sounds even better. Take
# a corpus with many near copies:

# %%
chance = np.random.default_rng(1)
some = vectors[chance.choice(N, 150, replace=False)]
copies = np.repeat(some, 30, axis=0)
copies = copies + chance.normal(0, 0.01, copies.shape).astype(np.float32)
copies /= np.linalg.norm(copies, axis=1, keepdims=True)
copies = chance.permutation(copies)
expected = top_k(some, copies, K)[1]
values = {}
for diverse in (True, False):
    one = Graph(copies, diverse=diverse)
    values[diverse] = recall([one.search(query, K, 40)[0] for query in some], expected)
print(f"recall {values[True]:.3f}, without the rule {values[False]:.3f}")
assert values[True] > 0.98, "30 copies of 150 texts, and every one is reached"
assert values[False] < 0.9, "all links stay among the copies: islands without bridges"

# %% [markdown]
# **A filter afterwards.** Ask for the ten nearest *of one module*, by a search for the ten nearest that drops what is
# of another one:

# %%
modules = np.array([entry.module for entry in entries])
kept = [
    (modules[index.search(query, K, 40)[0]] == module).sum()
    for query, module in zip(queries, modules[right], strict=True)
]
print(f"asked for 10, got {np.mean(kept):.1f} on average, none {kept.count(0)} times")
assert np.mean(kept) < 8, "the index found ten, the user gets fewer"

# %% [markdown]
# The exact search has no such trouble: it takes the best of the rows that are allowed. Ask of every vector database
# what its filter does, before or after.
#
# **Exercise 5.** (medium) Insert the near copies in order, all thirty of a text one after the other. Recall falls.
# Why?

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 21 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: walk: `python -m lessons.check start 21`, `run 21`, `hint 21`.
#
# ## Sources
#
# - Malkov and Yashunin 2016, *Efficient and robust approximate nearest neighbor search using hierarchical navigable
#   small world graphs* (arXiv 1603.09320): algorithms 1 (insert), 2 (the walk), 4 (choosing neighbours) and 5 (search),
#   their numbers as others quote them.
# - Johnson, Douze and Jegou 2017, *Billion-scale similarity search with GPUs*: cells, at a size where they are needed.
#
# ## What you have now
#
# You have built the index that large searches use, and measured what it misses. Next: [an engine of your
# own functions](22_your_own_engine.py).
