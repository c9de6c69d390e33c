# %% [markdown]
# # Lesson 25: making it fast: pads and packing
#
# Steps through `minisbert/models/batching.py`, and `pad_batch` and `length_grouped_batches` of
# `minisbert/core/tokenizer.py` and `minisbert/core/data.py`. Reading 45, chapter 10, pieces 30, exercises 90 minutes.
# You will count what a batch computes for nothing, put several texts into one row, and prove that each still has its
# own vector.

# %%
import numpy as np
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# The encoder is right. Now somebody has a million sentences and two CPU cores. Where does the time go, and how much of
# it buys nothing?
#
# ## The formula
#
# A batch is a rectangle: `B` rows of `T` tokens, T the length of the longest row, and the shorter ones are filled with
# pads. By the bill of lesson 11 a layer multiplies for *each* of the B T tokens, pads included,
#
#     4 D D  (queries, keys, values, output)  +  2 D F  (feed-forward)  +  2 T D  (scores and contexts)
#
# numbers. With rows of lengths n_1 .. n_B the share that is computed for nothing is
#
#     waste = 1 - (n_1 + ... + n_B) / (B T)

# %%
import minisbert
from minisbert.checkpoints.layout import find_model
from minisbert.core import bert
from minisbert.core.encoder import SentenceEncoder
from minisbert.data.rows import load_scored_pairs

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)

encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))  # easy to follow
fast_encoder = minisbert.SentenceEncoder.load("all-MiniLM-L6-v2")
pairs = load_scored_pairs("stsb", "test")[::20]
texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
ids = encoder.tokenizer.encode(texts).ids
lengths = [len(row) for row in ids]
N = len(texts)
print(f"{N} sentences of {min(lengths)} to {max(lengths)} tokens, {sum(lengths):,}")

# %%
config = encoder.bert.config
D, F = config.hidden_size, config.intermediate_size
dense = 4 * D * D + 2 * D * F
for T in (14, 64, 512):
    print(f"T = {T:3}: attention is {2 * T * D / dense:.1%} of the {dense:,}")
assert dense > 16 * 2 * 128 * D, "for sentences the time follows the tokens"
padded_to_128 = 1 - sum(lengths) / (128 * N)
print(f"all padded to 128, as tokenizer.json asks for: {padded_to_128:.0%} are pads")
assert padded_to_128 > 0.8, "every sentence is 128 tokens long, whatever it says"

# %% [markdown]
# ## The real function
#
# **Pads.** Three rows of 2, 4 and 3 tokens in one rectangle, and rows of similar length together:

# %%
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import budgeted_batches

rows = [[101, 102], [101, 7592, 2088, 102], [101, 7592, 102]]
batch, mask = pad_batch(rows, pad_id=0)
print(batch, mask.int(), sep="\n")
assert mask.sum() / mask.numel() == 0.75, "a quarter of it is pads"
_, mask = pad_batch([[101, 102], [101, 102]], pad_id=0)
assert mask is None, "rows of one length: nothing to hide, no mask"

# rows of similar length in one batch, longest first, no more tokens than the budget
batches = budgeted_batches([3, 9, 4, 4, 3, 9], batch_tokens=20)
print(batches)
assert batches == [[1, 5], [2, 3, 0, 4]], "18 and 16 tokens, 2 of them pads"

# %% [markdown]
# **Several texts in one row.** Pads become fewer still if short texts are **packed**: they share a row, one after the
# other. Two places of the encoder depend on the rest of the row: the position table, so positions start anew with each
# text, and attention, so a mask says which tokens belong to the same text. `packed_states` of
# `minisbert/architectures/packing.py` walks through the book's embeddings and layers with both.
#
# ![Two texts in one row, and the mask that keeps them apart](drawings/packed_rows.svg)

# %%
import inspect

from minisbert.models.batching import packed_batches, same_text, tokenize

print(inspect.getsource(same_text))
two_texts = ["A cat.", "Snow."]
(shared,) = packed_batches(tokenize(fast_encoder.tokenizer, two_texts), batch_tokens=64)
together = same_text(shared.text_index)  # (1, 1, T, T)
print(shared.ids, shared.positions, shared.text_index, together[0, 0].int(), sep="\n")
expected = [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]]
assert shared.positions.tolist() == expected, "5 tokens, 4 tokens, 3 pads to make 12"
assert together.sum() == 5 * 5 + 4 * 4 + 3 * 3, "three blocks, the last of the pads"

# %% [markdown]
# Each token can see only the tokens of its own text. The layers are the same; `unpack` gives each text its own tokens
# back. (`evaluating` is eval mode without graphs for as long as its block lasts.)

# %%
from minisbert.architectures.packing import embed, packed_states, states_by_view
from minisbert.core import pooling
from minisbert.core.encoder import normalize
from minisbert.models.batching import unpack
from minisbert.models.transformer_encoder import evaluating

print(inspect.getsource(states_by_view))
print(inspect.getsource(embed))
print(inspect.getsource(unpack))
with evaluating(encoder):
    hidden = packed_states(encoder.bert, shared.ids, together, shared.positions)
    found = normalize(pooling.mean_pool(*unpack(hidden, shared.places)))  # (2, D)
alone = [encoder.encode([two_texts[number]])[0] for number in shared.texts]
alone = torch.from_numpy(np.stack(alone))  # (2, D)
apart = largest_difference(found, alone)
print(f"largest difference from the texts alone: {apart:.1e}")
assert apart < 1e-6, "the same vectors, up to rounding"

# %% [markdown]
# How long should a row be? Attention multiplies each token with all T of its row, and throws away what the mask
# forbids. But a short row has room for one text only, and then lengths differ, and the rows of a batch need pads. Here
# is how texts are shared out to rows, and by the formula, what is computed for nothing in batches of 512 tokens:

# %%
from minisbert.models import batching

print(inspect.getsource(batching.share_rows))
useful = sum(n * (dense + 2 * n * D) for n in lengths)
tokens = tokenize(fast_encoder.tokenizer, texts)


def wasted(size):
    """The share that rows of about ``size`` tokens compute for nothing, the longest rows first."""
    rows = batching.share_rows(lengths, size)
    widths = sorted([row.tokens for row in rows], reverse=True)
    computed = 0
    while widths:
        widest = widths[0]  # the other rows of the batch are padded to it
        count = max(1, 512 // widest)
        batch = widths[:count]
        computed += len(batch) * widest * (dense + 2 * widest * D)
        widths = widths[count:]
    return computed / useful - 1


cost = {size: wasted(size) for size in (16, 32, batching.ROW, 128, 512)}
for size, share in cost.items():
    print(f"rows of {size:3} tokens: {share:5.1%}")
assert cost[batching.ROW] == min(cost.values()) < 0.1, "rows of 60 are cheapest here"
assert cost[512] > 0.1, "long ones are not"

# %% [markdown]
# ## The ladder
#
# Each step changes one thing and takes its name; `computed` counts what it has computed.

# %%
computed = {}


def padded(name, batches):
    """The vectors (N, D) of all texts from batches of row numbers, as the book computes them."""
    vectors, computed[name] = torch.empty(N, D), 0
    with evaluating(encoder):
        for rows in batches:
            given = [ids[row] for row in rows]
            batch, mask = pad_batch(given, encoder.tokenizer.pad_id)  # (B, T)
            pooled = pooling.mean_pool(encoder.bert(batch, mask), mask)
            vectors[rows] = normalize(pooled)
            computed[name] += batch.numel()
    return vectors


def packed(name, batch_tokens=2048):
    """The same with several texts in one row.

    ``embed`` is the forward and the pooling from above; ``computing`` is ``evaluating``, in float32.
    """
    vectors, computed[name] = torch.empty(N, D), 0
    with fast_encoder.computing("float32"):
        for batch in packed_batches(tokens, batch_tokens):
            vectors[batch.texts] = fast_encoder.embed(batch)
            computed[name] += batch.ids.numel()
    return vectors


def cut(order, size=32):
    return [order[start : start + size] for start in range(0, N, size)]


# %%
import time

by_length = sorted(range(N), key=lambda row: -lengths[row])
ladder = {
    "padded, as given": lambda name: padded(name, cut(list(range(N)))),
    "sorted by length": lambda name: padded(name, cut(by_length)),
    "packed": packed,
}
vectors, seconds = {}, {name: [] for name in ladder}
for turn in range(4):  # in alternation: a slow moment of the machine hits all alike
    for name, step in ladder.items():
        started = time.perf_counter()
        vectors[name] = step(name)
        if turn:  # the first is to warm up
            seconds[name].append(time.perf_counter() - started)

# %%
import statistics

rate = {name: N / statistics.median(found) for name, found in seconds.items()}
first = "padded, as given"
print(f"{'':20}{'tokens':>8}{'wasted':>9}{'sentences/s':>13}{'factor':>8}")
for name in ladder:
    waste, factor = 1 - sum(lengths) / computed[name], rate[name] / rate[first]
    print(f"{name:20}{computed[name]:8,}{waste:9.1%}{rate[name]:13.0f}{factor:8.1f}")

# %% [markdown]
# The times are those of your machine, and vary from run to run; how many tokens were computed does not. Lesson 26
# climbs further: fewer passes over the same numbers, fewer bits, and a compiler.

# %%
assert computed["sorted by length"] < 0.8 * computed[first], (
    "similar lengths: fewer pads"
)
assert sum(lengths) <= computed["packed"] < 1.1 * sum(lengths), "hardly any"
for name in ("sorted by length", "packed"):
    assert largest_difference(vectors[name], vectors[first]) < 2e-6, "the same vectors"

# %% [markdown]
# **Exercise 1.** Encode texts of 200 tokens (join ten sentences). Which steps still gain, and what has become of
# attention's share?

# %% [markdown]
# ## The figure
#
# ![Sentences a second and tokens computed, step by step](figures/25_speed.png)


# %%
def draw(plt):
    size = {"figsize": (9, 2.8), "layout": "constrained"}
    drawn, (left, right) = plt.subplots(1, 2, sharey=True, **size)
    names = list(ladder)
    left.barh(names, [rate[name] for name in names], color="#3b7ab8")
    left.set(title="Sentences a second, on this machine")
    left.invert_yaxis()
    right.barh(names, [sum(lengths)] * len(names), color="#1f4e79", label="real tokens")
    pads = [computed[name] - sum(lengths) for name in names]
    right.barh(names, pads, left=sum(lengths), color="#d9d9d9", label="pads")
    right.set(title="Tokens computed")
    right.legend(frameon=False, loc="lower right")
    return drawn


figure("25_speed", draw)

# %% [markdown]
# **Exercise 2.** At which T does attention cost as much as the dense layers? Work it out from the formula, then look
# at the time.

# %% [markdown]
# ## Predict, then run
#
# **1.** A batch of one text has no pads at all. Is one text at a time the fastest, then?

# %%
guess = predict("25.1", "Is one text at a time the fastest?", ["yes", "as a rule not"])

# %%
for budget in (1, 256, 2048):
    started = time.perf_counter()
    found = packed(f"budget {budget}", batch_tokens=budget)
    took = time.perf_counter() - started
    print(f"at most {budget:5,} tokens in a batch: {N / took:6.0f} sentences/s")
guess.answer("as a rule not")

# %% [markdown]
# As a rule it is not: each call has a fixed cost, and a matrix of a dozen rows does not keep the cores busy. Far too
# large a batch is slow as well, when its intermediate results no longer fit the cache.
#
# **2.** Training may not sort the whole file: batches must change from epoch to epoch. `length_grouped_batches` sorts
# within windows of a shuffled file. What share of the tokens are pads, with windows of 1, 5 and 50 batches of 32?

# %%
guess = predict(
    "25.2",
    "Windows of one batch: what share of the tokens are pads?",
    ["5 %", "20 %", "over 40 %"],
)

# %%
from minisbert.core.data import length_grouped_batches

train = load_scored_pairs("stsb", "train")[:2000]
of_pairs = [max(map(len, encoder.tokenizer.encode(pair.texts).ids)) for pair in train]


def pads(batches):
    """The share of pads in an epoch of these batches."""
    computed = sum(len(rows) * max(of_pairs[row] for row in rows) for rows in batches)
    return 1 - sum(of_pairs[row] for rows in batches for row in rows) / computed


shares = {}
for window in (1, 5, 50):
    chance = torch.Generator().manual_seed(0)
    shares[window] = pads(length_grouped_batches(of_pairs, 32, chance, window))
    print(f"window {window:2}: {shares[window]:.1%} pads")
assert shares[1] > 0.4, "a window of one batch sorts nothing"
assert shares[50] < 0.1, "that is what train.py does"
guess.answer("over 40 %")

# %% [markdown]
# **Exercise 3.** A cache of vectors by text, kept on disk: what must its key hold? (`minisbert/models/index.py` has an
# answer.)

# %% [markdown]
# ## Break it
#
# **Shared rows have mistakes of their own.** Forget the mask, and the texts of a row see each other. Forget that
# positions start anew, and a text begins where its neighbour has ended. Which of the two does more harm?

# %%
from lessons.mistakes import planted
from minisbert.architectures import packing
from minisbert.core import metrics
from lessons.mistakes.planting import Mistake


def spearman(vectors):
    u, v = vectors.chunk(2)
    return 100 * metrics.spearman((u * v).sum(1).numpy(), [p.score for p in pairs])


ones = lambda text_index: torch.ones_like(same_text(text_index))  # noqa: E731
along = lambda embeddings, ids, positions: embeddings(ids, None)  # noqa: E731
own = [
    Mistake("mask forgotten", "", batching, "same_text", ones),
    Mistake("positions run on", "", packing, "embed", along),
]
right = vectors["packed"]
own_cosine = {}
for mistake in own:
    with planted(mistake):
        found, alone = packed(mistake.name), packed("alone", batch_tokens=1)
    cosine, off = (found * right).sum(1).mean(), largest_difference(alone, right)
    print(f"{mistake.name:16} cosine with the right vector {cosine:.2f}", end=", ")
    print(f"Spearman {spearman(right):.1f} to {spearman(found):.1f}; alone {off:.1e}")
    assert largest_difference(found, right) > 0.05, "no rounding"
    assert off < 2e-6, "with one text a row there is nothing to mix up"
    own_cosine[mistake.name] = cosine
assert own_cosine["mask forgotten"] < own_cosine["positions run on"] < 0.95

# %% [markdown]
# The forgotten mask does more harm: a text reads its neighbours, where wrong positions only shift it. A demo with one
# sentence shows neither mistake. So test that a text's vector does not depend on what else is in the call: that test
# needs no reference.
#
# **Sorted, and not put back.** The vectors come out row by row. Forget to undo that, and you have the right vectors in
# the wrong places, and no shape, no norm and no mean will tell.

# %%
as_computed = [row for batch in packed_batches(tokens, 2048) for row in batch.texts]
misplaced = spearman(right[as_computed])
print(f"put back {spearman(right):.2f}, not put back {misplaced:.2f}")
assert abs(misplaced) < 40, "nothing is left of it"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand beside what they practise. `python -m lessons.check answer 25 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 4.** Graded: batches of similar length: `python -m lessons.check start 25`, `run 25`, `hint 25`. (Rows to a
# rectangle are a piece of lesson 02.)
#
# ## Sources
#
# - Vaswani et al. 2017, *Attention is all you need*, table 1: what a layer costs.
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 7: batches of similar length, and what they gain.
#
# ## What you have now
#
# You know where the time goes, and how not to compute pads. Next: [the same formulas, faster: fused operations, the
# compiler, fewer bits](26_fewer_passes.py).
