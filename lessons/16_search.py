# %% [markdown]
# # Lesson 16: search, and the sixty-five hours
#
# Steps through `minisbert/search/dense.py`. Reading 40, chapter 5, pieces 30, exercises 140 minutes. You will count
# what it costs to find the closest pair of 10,000 sentences in two ways, write exact search with ties by hand, and
# see what careless search returns.

# %%
import numpy as np
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# A cross-encoder (lesson 15) reads both sentences at once, "[CLS] a [SEP] b [SEP]", and is the better judge: every word
# of a can look at every word of b. So why does this package compute vectors at all? Reimers and Gurevych open their
# paper with the answer: finding the most similar pair of 10,000 sentences takes BERT about 65 hours. With sentence
# vectors, 5 seconds. Where do the 65 hours come from?
#
# ## The formula
#
# N sentences, vectors of width D:
#
#     cross-encoder     N (N - 1) / 2 forwards through the encoder, of two sentences each
#     vectors           N forwards, of one sentence each,   and N (N - 1) / 2 dot products of D numbers
#
# Both look at every pair. But a forward is some hundred million multiplications, and a dot product is 384.

# %%
from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
pairs = load_scored_pairs("stsb", "test")
texts = list(
    dict.fromkeys(text for pair in pairs for text in (pair.sentence1, pair.sentence2))
)[:1000]
N = len(texts)

# %%
config = encoder.bert.config
D, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
token = L * (4 * D * D + 2 * D * F)  # multiplications of its dense layers (lesson 11)
mean = np.mean([len(ids) for ids in encoder.tokenizer.encode(texts).ids])
count = 10_000
n_pairs = count * (count - 1) // 2
joint = n_pairs * (2 * mean - 1) * token  # a pair has one [CLS], not two
encoding, products = count * mean * token, n_pairs * D
ratio = joint / (encoding + products)
print(f"{count:,} sentences of {mean:.1f} tokens are {n_pairs:,} pairs")
print(f"multiplications: joint {joint:.1e}, vectors {encoding:.1e} + {products:.1e}")
print(f"the cross-encoder computes {ratio:,.0f} times as much")
assert n_pairs == 49_995_000, "the paper's number of inferences, section 1"
assert 5_000 < ratio < 10_500, "about N: each sentence is read again for every partner"

# %% [markdown]
# ## The real function
#
# Three vectors in the plane and a query. The texts that a search looks through are its **corpus**. `top_k` gives the k
# best of them, highest first; `closest_pairs` the best pairs.

# %%
from minisbert.search import dense as search

corpus = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [3.0, 4.0]])
scores, indices = search.top_k(torch.tensor([[0.6, 0.8]]), corpus, 4)
print(scores, indices)
assert indices.tolist() == [[1, 3, 0, 2]], "rows 1 and 3 are level: lower index first"
assert largest_difference(scores, [[1, 1, 0.6, -0.6]]) < 1e-6, "whatever the lengths"
scores, found = search.closest_pairs(corpus, 2)
print(scores, found.tolist())
assert found.tolist() == [[1, 3], [0, 1]], "each pair once; [0, 3] is level with [0, 1]"

# %% [markdown]
# By hand, for the whole corpus: every cosine, sorted by score, and equal scores by index. This is **exact search**,
# without an index structure and without approximation: up to a few hundred thousand sentences, one matrix product is
# fast enough. Products are summed in float64 and then rounded. Summed in float32, the last digit of a score depends on
# how many rows are multiplied at a time, and two equal sentences may change places.

# %%
import time


def all_cosines(a, b):
    """Of rows of length 1, (A, D) and (B, D): (A, B)."""
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)


started = time.perf_counter()
vectors = encoder.encode(texts)  # (N, D), of length 1
encode_seconds = time.perf_counter() - started
queries = encoder.encode(
    ["A man plays a guitar.", "The stock market fell.", "Someone is cooking."]
)
scores, indices = search.top_k(queries, vectors, 5)
cosines = all_cosines(queries, vectors)  # (3, N)
for row in range(3):
    by_hand = sorted(range(N), key=lambda i: (-cosines[row, i], i))[:5]
    assert indices[row].tolist() == by_hand, "the same five in the same order"
for score, i in zip(scores[0], indices[0], strict=True):
    print(f"{score:.3f}  {texts[i]}")

# %% [markdown]
# `top_k` does the same in blocks: it compares some queries with some rows of the corpus and keeps the k best so far.
# These are the lines that decide about ties. The k best of before stand to the left of the new scores, in the order of
# their rows, and a stable sort leaves equal ones as they stand:

# %%
import inspect

print(inspect.getsource(search.add_scores))

# %% [markdown]
# And the closest pairs: all cosines at once, the upper triangle, sorted. `closest_pairs` does it block by block, so
# that the matrix of a million sentences (four terabytes) never exists.

# %%
started = time.perf_counter()
scores, closest = search.closest_pairs(vectors, 20)
search_seconds = time.perf_counter() - started
everything = all_cosines(vectors, vectors)
i, j = np.triu_indices(N, 1)
best = np.lexsort((j, i, -everything[i, j]))[:20]
by_hand = np.stack([i[best], j[best]], axis=1)
assert closest.tolist() == by_hand.tolist(), "the same twenty, ties included"
for score, (a, b) in list(zip(scores, closest, strict=True))[:3]:
    print(f"{score:.4f}  {texts[a]}\n        {texts[b]}")
assert scores[0] > 0.97, "STS-B is full of near copies"

# %% [markdown]
# Now the time, on a sample. The cross-encoder here has a random head: it would judge nonsense, but it takes as long
# as a trained one.

# %%
import random

from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel

model = PairModel(encoder, JointHead(D)).eval()
chance = random.Random(0)
sample = [chance.sample(texts, 2) for _ in range(128)]
model.predict(sample[:16])  # warm up
started = time.perf_counter()
model.predict(sample)
joint_rate = len(sample) / (time.perf_counter() - started)
encode_rate, search_rate = N / encode_seconds, N * (N - 1) / 2 / search_seconds
print(f"a second: {joint_rate:,.0f} pairs, {encode_rate:,.0f} sentences", end=", ")
print(f"{search_rate:,.0f} dot products")


def hours(n):
    """Cross-encoder and vectors at this machine's rates, extrapolated to n sentences."""
    many = n * (n - 1) / 2
    return many / joint_rate / 3600, (n / encode_rate + many / search_rate) / 3600


print(f"{'sentences':>12}{'pairs':>20}{'cross-encoder':>16}{'vectors':>12}")
for n in (1_000, 10_000, 1_000_000):
    joint_hours, vector_hours = hours(n)
    seconds = vector_hours * 3600
    print(f"{n:12,}{n * (n - 1) // 2:20,}{joint_hours:14,.1f} h{seconds:10,.1f} s")

# %% [markdown]
# The paper had a V100 and "BERT", of a size that it does not name. Its table 7 gives SBERT-base 2,042 sentences a
# second on that card, in batches of similar length, so the 5 seconds are those of the base model: 10,000 take 4.9. 65
# hours are 214 pairs a second. `python -m benchmarks.closest_pair` measures all of it on 10,000 sentences.
#
# **Exercise 1.** Find by vectors, judge by the cross-encoder: for a query take the 100 best by cosine and read only
# those with a trained head (`minisbert train --recipe sts-cross-encoder`). How many forwards for a corpus of a million?
# What can still go wrong?
#
# **Exercise 2.** `minisbert pairs` on a file of your own. At which score do paraphrases end and mere topics begin?
#
# ## The figure
#
# Left: both ways by the number of sentences, at the rates just measured; the rings are the paper's. Right: the cosines
# of all pairs of our 1,000 sentences, on a logarithmic scale. Close pairs are rare, so one must look at many to find
# them.
#
# ![Hours by number of sentences; histogram of all cosines](figures/16_search.png)

# %%
values = everything[i, j]  # (N (N - 1) / 2,)


def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3), layout="constrained")
    sizes = np.logspace(2, 6, 30)
    looks = (("cross-encoder", "#c0392b", 65 * 3600), ("vectors", "#1f4e79", 5))
    for curve, (name, shade, paper) in enumerate(looks):
        seconds = [3600 * hours(n)[curve] for n in sizes]
        left.plot(sizes, seconds, color=shade, label=name)
        left.plot(10_000, paper, "o", color=shade, fillstyle="none")
    for height, name in ((60, "minute"), (3600, "hour"), (86400, "day")):
        left.axhline(height, color="#d9d9d9", linewidth=0.8, zorder=0)
        left.text(1e6, height, name, fontsize=7, color="#888888", ha="right")
    left.set(xscale="log", yscale="log", xlabel="sentences", ylabel="seconds")
    left.set_title("The closest of all pairs")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    right.hist(values, bins=60, log=True, color="#3b7ab8")
    right.axvline(scores[-1], color="#c0392b", linestyle="--")
    right.text(scores[-1] - 0.02, 3e4, "the 20 closest", color="#c0392b", ha="right")
    right.set(xlabel="cosine", ylabel="pairs", title=f"All {len(values):,} pairs")
    return drawn


figure("16_search", draw)
print(f"half of all cosines are below {np.median(values):.2f}", end=", ")
print(f"{np.mean(values > 0.8):.3%} above 0.8")
assert np.median(values) < 0.2, "two random sentences have little in common"
assert np.mean(values > 0.8) < 0.005, "needles"

# %% [markdown]
# ## Predict, then run
#
# **1.** Ten times as many sentences. What happens to the cross-encoder's time, to encoding, to the search? How many
# sentences must there be before the search takes longer than the encoding?

# %%
guess = predict(
    "16.1",
    "Ten times as many sentences: the search among all pairs takes ...",
    ["ten times as long", "a hundred times as long"],
)

# %%
turn = 2 * search_rate / encode_rate
print(f"at this machine's rates: about {turn:,.0f} sentences")
assert 2 * token * mean / D > 500_000, "by multiplications alone beyond half a million"
guess.answer("a hundred times as long")

# %% [markdown]
# **2.** If b is the nearest sentence to a, is a the nearest to b?

# %%
guess = predict(
    "16.2", "The nearest one's nearest is you ...", ["always", "often", "almost never"]
)

# %%
nearest = search.top_k(vectors, vectors, 2)[1]  # the first is the sentence itself
nearest = np.where(nearest[:, 0] == np.arange(N), nearest[:, 1], nearest[:, 0])
mutual = np.mean(nearest[nearest] == np.arange(N))
print(f"for {mutual:.0%} of the sentences it is")
assert 0.3 < mutual < 0.95, "a sentence between many others is nearest to several"
guess.answer("often")

# %% [markdown]
# **Exercise 3.** Cut the vectors to the first 64 columns (`truncate_dim`). How many of the 20 closest pairs are still
# found?

# %% [markdown]
# ## Break it
#
# **Ties left to chance.** `torch.topk` promises nothing about equal scores. A corpus that holds the same sentence
# many times:

# %%
copies = np.repeat(vectors[:10], 300, axis=0)  # each sentence 300 times: (3000, D)
scores = torch.from_numpy(all_cosines(vectors[:10], copies))
right = search.top_k(vectors[:10], copies, 5)[1]
wrong = scores.topk(5).indices.numpy()
print("right", right[0], "topk alone", wrong[0], "and", wrong[1])
first_copies = 300 * np.arange(10)[:, None] + np.arange(5)
assert (right == first_copies).all(), "the first five copies, always"
assert (wrong != right).any(), "other copies, and others again on another machine"
assert (wrong // 300 == right // 300).all(), "right, but a test would flicker"

# %% [markdown]
# **Dot products of vectors that are not of length 1.** MiniLM scales its vectors, so there it makes no difference. Many
# models do not.

# %%
encoder.normalize = False
unscaled = encoder.encode(texts)  # (N, D)
encoder.normalize = True
norms = np.linalg.norm(unscaled, axis=1)
right = search.top_k(unscaled, unscaled, 1)[1][:, 0]
wrong = (unscaled @ unscaled.T).argmax(axis=1)
by_cosine, by_product = (np.mean(found == np.arange(N)) for found in (right, wrong))
print(f"lengths {norms.min():.1f} to {norms.max():.1f}", end="; ")
print(f"by dot product {by_product:.0%} of the sentences are nearest to themselves")
assert norms.max() / norms.min() > 1.5, "lengths differ"
assert by_cosine > 0.99, "by cosine nothing is nearer than the sentence itself"
assert by_product < by_cosine, "by dot product a longer neighbour can be"

# %% [markdown]
# **Exercise 4.** An approximate index looks at a part of the corpus only. How would you measure what it misses, with
# `top_k`?

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 4 stand beside what they practise. `python -m lessons.check answer 16 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 5.** Graded: the k nearest of a corpus, ties in order: `python -m lessons.check start 16`, `run 16`,
# `hint 16`.
#
# ## Sources
#
# - Reimers and Gurevych 2019, *Sentence-BERT*, abstract, sections 1 and 8: 65 hours and 5 seconds. Section 7, table 7:
#   sentences per second.
# - Humeau et al. 2020, *Poly-encoders*: joint and separate encoding, quality against time.
# - Nogueira and Cho 2019, *Passage re-ranking with BERT*: find first, then judge.
# - Johnson, Douze and Jegou 2017, *Billion-scale similarity search with GPUs*: when exact is no longer quick enough.
#
# ## What you have now
#
# You can search all vectors exactly, and say what that costs. Next: [making it small: fewer
# bytes](17_fewer_bytes.py).
