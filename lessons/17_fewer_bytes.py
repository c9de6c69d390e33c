# %% [markdown]
# # Lesson 17: making it small: fewer bytes
#
# Steps through `minisbert/search/quantized.py` and `minisbert/training/losses.py`. Reading 50, chapter 10, pieces
# 135, exercises 210 minutes. You will drop columns and bits of finished vectors, and draw one curve of what each
# saving costs.

# %%
import inspect

import numpy as np
import torch
from course import figure, largest_difference, predict

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search import quantized
from minisbert.training import losses as distillation

# %% [markdown]
# ## The question
#
# A vector of MiniLM has 384 numbers of 4 bytes. Ten million sentences are 15 GB. Which of all that is needed? There are
# two places to save: the columns, 384 of them, and the bits, 32 for each number. Both make the vectors smaller and a
# search quicker.
#
# ## The formula
#
# **Columns.** Keep the first m. That is fair only to a model whose first columns know the most, and a loss can ask for
# that: the sum of the same loss over several prefixes, each scaled to length 1 (**Matryoshka**, like the dolls).
#
#     loss  =  sum over m of  w_m * loss(u[:m] / |u[:m]|,  v[:m] / |v[:m]|)
#
# **Bits.** **int8**: the range of each column, lowest to highest, in 255 equal steps (of 1, if the column is constant).
# One bit: is the number above 0?
#
#     code  =  floor((x - low) / step) - 128,   step = (high - low) / 255       a quarter of the bytes
#     bit   =  x > 0                                                            a thirty-second
#
# To read a code back, take the middle of its step: `x = low + (code + 128.5) * step`.
#
# **Rescoring** takes C candidates that the codes have found for a query q and sorts them by the cosine of q, in float32
# as it is, with the candidates' better vectors v; equal ones by their row:
#
#     score[c]  =  q . v[c] / (|q| |v[c]|)       keep the k highest
#
# Two rows of bits are compared by counting those that differ: Hamming's distance. If x and y were turned at random, a
# bit would differ with probability angle(x, y) / pi, so the count estimates the angle.
#
# ![Signs to bits, bits to bytes, and Hamming's distance](drawings/packed_bits.svg)
#
# ## The real function
#
# Everything on numbers that one can check by eye. First the codes.

# %%
corpus_rows = np.array([[0.0, -1.0], [255.0, 254.0], [10.2, 3.0]], dtype=np.float32)
ranges = quantized.calibrate(corpus_rows)
codes = quantized.to_int8(corpus_rows, ranges)
print(ranges, codes, sep="\n")
assert ranges.tolist() == [[0, -1], [255, 254]], "of each column: steps of 1 in both"
expected = [[-128, -128], [127, 127], [-118, -124]]
assert codes.tolist() == expected, "10.2 is in the tenth step above the lowest"
restored = quantized.from_int8(codes, ranges)
print(restored)
assert largest_difference(restored, corpus_rows) <= 0.5, "the middle of the step"
print(
    inspect.getsource(quantized.calibrate),
    inspect.getsource(quantized.from_int8),
    sep="\n",
)

bits = quantized.to_bits(
    np.array([[1, -1, -1, -1, -1, -1, 0, 2.0], [-1, 1, 1, 1, 1, 1, 1, 1.0]])
)
print(bits, quantized.hamming(bits[:1], bits))
assert bits.tolist() == [[0b10000001], [0b01111111]], "8 columns; 0 is not above 0"
assert quantized.hamming(bits[:1], bits).tolist() == [[0, 7]], "all but the last differ"

# %% [markdown]
# Then the loss of prefixes.

# %%
from minisbert.core import losses


def square(u, v):
    """The squared cosine."""
    return losses.cosine_mse_loss(u, v, torch.tensor([0.0]))


u, v = torch.tensor([[3.0, 4.0]]), torch.tensor([[8.0, 6.0]])
whole = square(u, v)  # the cosine is 0.96
prefix = square(u[:, :1], v[:, :1])  # of [3] and [8]: 1
both = distillation.matryoshka_loss(square, u, v, dims=(1, 2))
print(f"{whole.item():.4f} + {prefix.item():.4f} = {both.item():.4f}")
assert abs(both - whole - prefix) < 1e-6, "the loss of the prefix and that of the whole"

# %% [markdown]
# And the real vectors, with two measures of what a saving costs: Spearman on half of the STS-B test pairs,
# and recall, the share of the ten nearest neighbours that are still found.

# %%
from lessons.neighbours import (
    corpus,
    first,
    queries,
    recall_of,
    second,
    spearman,
    ten_nearest,
)

print(inspect.getsource(ten_nearest), inspect.getsource(recall_of), sep="\n")
encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
D, N = encoder.width, len(corpus)
Q, C = encoder.encode(queries), encoder.encode(corpus)  # (300, D), (N, D)
recall = recall_of(ten_nearest(Q, C))


def quality(q, c):
    """Spearman x 100 and recall of queries q and a corpus c of any width."""
    return spearman(c), recall(ten_nearest(q, c))


# name: bytes of a vector, Spearman, recall
curve = {"float32": (4 * D, *quality(Q, C))}
print(f"{N:,} sentences, {len(queries)} queries: Spearman {curve['float32'][1]:.2f}")
assert curve["float32"][2] == 1, "of itself"

# %% [markdown]
# ## Fewer columns
#
# The model stays; the first m columns of its vectors are kept. MiniLM was not trained for that. There are two ways to
# help it, both a matrix (D, D) on the finished vectors: one is trained with the Matryoshka loss, so that each prefix
# keeps the cosines of the whole; the other needs no training, the **principal axes** of the vectors (PCA without
# centring): directions at right angles, the first of which holds as much of their lengths as one direction can, the
# second as much of what is left, and so on.

# %%
from functools import partial

from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.data.rows import load_scored_pairs

DIMS, SEEDS = (32, 64, 128, 256, D), range(3)
texts = [text for pair in load_scored_pairs("stsb", "train") for text in pair.texts]
texts = list(dict.fromkeys(texts))[::5]
teacher = encoder.encode(texts, convert_to_tensor=True)  # (2,108, D)


def nested(seed):
    """A matrix (D, D) after which the first columns serve alone: 100 steps on the teacher's vectors."""
    layer = torch.nn.Linear(D, D, bias=False)
    torch.nn.init.eye_(layer.weight)  # begin with the vectors as they are
    generator = torch.Generator().manual_seed(seed)
    batches = [
        torch.randint(len(teacher), (256,), generator=generator) for _ in range(100)
    ]

    def loss(layer, rows):
        x = teacher[rows]  # (B, D)
        cosines = x @ x.T  # (B, B), what every prefix should give
        return distillation.matryoshka_loss(
            lambda y: (y @ y.T - cosines).pow(2).mean(), layer(x), dims=DIMS
        )

    optimizer = adamw([layer.weight], lr=3e-3, weight_decay=0.0)
    schedule = partial(linear_schedule, warmup=10, total=100)
    for _ in fit(layer, loss, batches, optimizer, schedule):
        pass
    return layer.weight.detach().numpy().T


matrices = [nested(seed) for seed in SEEDS]
axes = np.linalg.svd(teacher.numpy(), full_matrices=False)[2].T  # (D, D)
prefixes = {
    "as they are": [np.eye(D, dtype=np.float32)],
    "Matryoshka": matrices,
    "principal axes": [axes],
}
by_width = {}  # name -> (widths, seeds, 2): Spearman and recall
for name, turned in prefixes.items():
    found = [
        [quality((Q @ matrix)[:, :m], (C @ matrix)[:, :m]) for matrix in turned]
        for m in DIMS
    ]
    by_width[name] = np.array(found)
print(f"{'columns':16}" + "".join(f"{m:14}" for m in DIMS))
for name, found in by_width.items():
    print(f"{name:16}" + "".join(f"{s:8.2f} {r:.3f}" for s, r in found.mean(1)))
    for m, (s, r) in zip(DIMS, found.mean(1), strict=True):
        curve[f"{m} columns, {name}"] = (4 * m, s, r)
# recall, (widths, seeds)
plain, doll, turned = (by_width[name][..., 1] for name in prefixes)
assert (doll[1] > plain[1] + 0.05).all(), "64 columns: trained finds more, every seed"
assert (doll[-1] < 1).all(), "and pays with the whole vector, not quite what it was"
assert turned[2] > doll[2].max(), "128 columns: axes without training find still more"
assert np.ptp(by_width["as they are"][:, 0, 0]) < 8, "Spearman hardly notices"

# %% [markdown]
# The last row is the lesson of the table. A new method must be compared with the cheapest thing that could do the same.
# On finished vectors a rotation that needs no training finds more neighbours than the trained matrix, at every width.
# On STS it is behind up to 128 columns, and at 32 and 64 nothing beats the plain prefix. The paper trains the whole
# model, on all of its data, and that is where the loss belongs; here it shows what it asks for.
# `minisbert train --matryoshka 256,128,64` trains the whole model with it.
#
# **Exercise 1.** Train the last layer of MiniLM with `matryoshka_loss` and `cosine_mse_loss` on STS-B pairs,
# `dims=(32, 384)`. Does the prefix of 32 gain more than the whole vector?
#
# ## Fewer bits
#
# The ranges come from the corpus. The queries stay in float32: there are few of them, and their digits cost nothing.
# One line of the table is different, *bits*: to count differing bits, `hamming_top_k` has to take those of the queries
# as well. *Bits, float query* has the same bytes, and multiplies the query's numbers with +1 and -1.

# %%
ranges = quantized.calibrate(C)
codes = quantized.to_int8(C, ranges)  # (N, D) int8
bits = quantized.to_bits(C)  # (N, D / 8) uint8
print("bytes a vector:", *(rows.nbytes // N for rows in (C, codes, bits)))
assert C.nbytes == 4 * codes.nbytes == 32 * bits.nbytes, "a quarter, a thirty-second"

restored, signs = quantized.from_int8(codes, ranges), quantized.from_bits(bits, D)
step = (ranges[1] - ranges[0]) / 255
assert (np.abs(restored - C) <= 0.501 * step).all(), "half a step"
curve["int8"] = (D, *quality(Q, restored))
distances, nearest = quantized.hamming_top_k(Q, bits, 10)
curve["bits"] = (D // 8, spearman(signs), recall(nearest))
curve["bits, float query"] = (D // 8, *quality(Q, signs))

int8_axes = {}  # both savings: the first m principal axes in m bytes
for m in DIMS:
    q, c = Q @ axes[:, :m], C @ axes[:, :m]
    limits = quantized.calibrate(c)
    int8_axes[m] = quality(q, quantized.from_int8(quantized.to_int8(c, limits), limits))
    curve[f"{m} columns, principal axes, int8"] = (m, *int8_axes[m])

candidates = quantized.hamming_top_k(Q, bits, 40)[1]  # (300, 40)
rescored = quantized.rescore(Q, candidates, restored[candidates], 10)[1]
curve["bits, rescored"] = (D // 8 + D, curve["int8"][1], recall(rescored))
for name in ("float32", "int8", *(name for name in curve if name.startswith("bits"))):
    size, s, r = curve[name]
    print(f"{name:36}{size:6,} bytes   Spearman {s:.2f}   recall {r:.3f}")
assert curve["int8"][2] > 0.98, "int8: nearly nothing is lost"
assert curve["bits"][2] < 0.85, "bits: a quarter of the neighbours is"
assert curve["bits, float query"][2] > curve["bits"][2] + 0.03, "same bytes, better"
assert curve["bits, rescored"][2] > 0.95, "forty found by bits, ten chosen by int8"
columns64 = [r for name, (_, _, r) in curve.items() if name.startswith("64 columns")]
assert curve["bits, float query"][2] > max(columns64), "48 bytes beat 256 of columns"

# %% [markdown]
# Mind the bytes of the last line. **Rescoring** the candidates needs the codes as well, if only for forty rows a query:
# they may lie on a disk, but they are there. It saves memory and time. It does not save bytes: int8 alone is smaller
# and better. And mind what it costs to cut columns: 384 bits are 48 bytes, 64 columns of float32 are 256, and with a
# float query the bits find more than any of those. Try other budgets in [bytes against
# recall](../docs/interactive.md#bytes-against-recall).
#
# **Exercise 2.** Bits of the principal axes are worse than bits of the vectors as they are. Measure it, and explain
# it by looking at how much each axis tells. What would a random rotation of the first 128 axes do?

# %% [markdown]
# ## The figure
#
# The neighbours that are left, by bytes of a vector. Up and to the left is good.
#
# ![Recall by bytes of a vector](figures/17_fewer_bytes.png)


# %%
def draw(plt):
    drawn, left = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    shades = ("#8bb8de", "#3b7ab8", "#1f4e79")
    sizes = 4 * np.array(DIMS)
    for (name, found), shade in zip(by_width.items(), shades, strict=True):
        found = found[..., 1]  # (widths, seeds)
        left.plot(sizes, found.mean(1), "o-", markersize=3, color=shade, label=name)
        left.fill_between(sizes, found.min(1), found.max(1), color=shade, alpha=0.3)
    recalls = [int8_axes[m][1] for m in DIMS]
    name, red = "principal axes, int8", "#c0392b"
    left.plot(DIMS, recalls, "s--", markersize=3, color=red, label=name)
    places = {"int8": (8, 1), "bits": (-20, -3), "bits, float query": (0, 8)}
    for name, place in (places | {"bits, rescored": (-6, -13)}).items():
        size, _, r = curve[name]
        near = {"xytext": place, "textcoords": "offset points"}
        left.plot(size, r, "D", markersize=4, color=red)
        left.annotate(name, (size, r), fontsize=7, color=red, **near)
    left.set(xscale="log", xlabel="bytes of a vector", ylabel="recall of the exact ten")
    ticks = [32, 64, 128, 256, 512, 1024]
    left.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    left.minorticks_off()
    left.set_title("Columns and bits")
    left.legend(frameon=False, fontsize=7, loc="lower right", title="first columns")
    return drawn


figure("17_fewer_bytes", draw)

# %% [markdown]
# **Exercise 3.** All savings at once: three layers (lesson 27), 128 principal axes, int8. How many bytes, and what is
# left?

# %% [markdown]
# ## Predict, then run
#
# **1.** Two sentences at an angle of 60 degrees, cosine 0.5. How many of the 384 bits differ? And two that have nothing
# to do with each other?

# %%
guess = predict(
    "17.1", "At 60 degrees, how many of the 384 bits differ?", ["64", "128", "192"]
)

# %%
angles = np.arccos(((C[first] * C[second]).sum(1)).clip(-1, 1))
differ = quantized.hamming(bits, bits)[first, second]
near = np.abs(angles - np.pi / 3) < 0.05
print(f"at 60 degrees {differ[near].mean():.0f} of {D}, expected {D / 3:.0f}", end="; ")
print(f"correlation with the angle {np.corrcoef(angles, differ)[0, 1]:.3f}")
assert abs(differ[near].mean() - D / 3) < 8, "a third: 60 of 180 degrees"
strangers = quantized.hamming(bits[:1], bits[-200:])
print(f"the first sentence and the last 200: {strangers.mean():.0f}")
assert abs(strangers.mean() - D / 2) < 25, "half: a right angle"
guess.answer("128")

# %% [markdown]
# **2.** Forty candidates for ten places. What do 10, 20 and 80 give?

# %%
guess = predict(
    "17.2",
    "Ten candidates for ten places give the recall ...",
    ["of the bits alone", "of the exact search", "in between"],
)

# %%
by_count = {}
for count in (10, 20, 40, 80):
    some = quantized.hamming_top_k(Q, bits, count)[1]
    by_count[count] = recall(quantized.rescore(Q, some, C[some], 10)[1])
    print(count, f"{by_count[count]:.3f}")
assert by_count[10] == curve["bits"][2], "ten for ten places: rescoring only sorts"
guess.answer("of the bits alone")

# %% [markdown]
# ## Break it
#
# **Prefix not renormalised.** The whole vector has length 1, its first half does not. Each text's prefix has a length
# of its own, and a dot product takes long prefixes for close ones.

# %%
lengths = np.linalg.norm(C[:, :64], axis=1)
kept = recall(np.argsort(-(Q[:, :64] @ C[:, :64].T), axis=1, kind="stable")[:, :10])
print(f"lengths {lengths.min():.2f} to {lengths.max():.2f}", end="; ")
print(f"recall {kept:.3f} instead of {plain[1, 0]:.3f}")
assert kept < plain[1, 0], "by dot product some neighbours are lost"

# %% [markdown]
# **Ranges of the vectors themselves.** A corpus grows. If each batch is divided by ranges of its own, the same vector
# has another code in every batch, and nothing says so.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["ranges of the vectors themselves"]):
    parts = [
        quantized.to_int8(C[start : start + 100], ranges) for start in range(0, N, 100)
    ]
wrong = recall(ten_nearest(Q, quantized.from_int8(np.concatenate(parts), ranges)))
print(f"recall {wrong:.3f} instead of {curve['int8'][2]:.3f}")
assert wrong < curve["int8"][2] - 0.03, "codes that mean another number each time"

# %% [markdown]
# **Lowest bit first.** Half of the world packs bits that way. On both sides it does no harm: the same bits differ. But
# let the index be written by one library and the queries by another:

# %%
with planted(MISTAKES["lowest bit first"]):
    theirs = quantized.to_bits(C)
    both_sides = recall(quantized.hamming_top_k(Q, theirs, 10)[1])
one_side = recall(quantized.hamming_top_k(Q, theirs, 10)[1])
print(f"both sides {both_sides:.3f}, one side {one_side:.3f}")
assert both_sides == curve["bits"][2], "nothing happens"
assert one_side < 0.2, "nearly everything is gone"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand beside what they practise. `python -m lessons.check answer 17 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 4.** Graded: a loss of prefixes, codes, bits, rescoring: `python -m lessons.check start 17`, `run 17`,
# `hint 17`.
#
# ## Sources
#
# - Kusupati et al. 2022, *Matryoshka representation learning*: losses on prefixes.
# - Yamada, Asai and Hajishirzi 2021, *Efficient passage retrieval with hashing for open-domain question answering*:
#   candidates by bits of both sides, then float questions against bits of passages.
# - sentence-transformers, `quantize_embeddings`, and its authors' article *Binary and scalar embedding quantization*
#   (Hugging Face, 2024): ranges, codes and rescoring as here.
# - Charikar 2002, *Similarity estimation techniques from rounding algorithms*: why differing signs estimate an angle.
# - What we have read of these: [docs/sources.md](../docs/sources.md).
#
# ## What you have now
#
# Your vectors take a quarter or a thirty-second of the memory, and you know the price. Next: [your own search
# engine](18_your_own_search.py).
