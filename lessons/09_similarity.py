# %% [markdown]
# # Lesson 09: cosine, Pearson, Spearman
#
# Steps through `minisbert/core/metrics.py`, and the cosine of `minisbert/core/encoder.py`. Reading 40, chapter 15,
# pieces 50, exercises 50 minutes. You will measure how well MiniLM agrees with people, reach the published 82.03, and
# see how far a careless metric is from it.

# %%
import numpy as np
import torch
from course import chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# People have read 1,379 pairs of sentences and said how alike they are, from 0 to 5. The model says 0.66 for a pair,
# the people said 3.2. Is that right? The scales differ. What does it mean for two lists of numbers to *agree*?

# %%
from minisbert.data.rows import load_scored_pairs

pairs = load_scored_pairs("stsb", "test")
scores = np.array([pair.score for pair in pairs])  # (N,)
for pair in (pairs[0], pairs[700], pairs[1100]):
    print(f"{pair.score:.1f}  {pair.sentence1} / {pair.sentence2}")
assert len(pairs) == 1379, "the test split of the STS Benchmark"

# %% [markdown]
# These pairs are the **STS Benchmark**, STS-B: 8,628 pairs from captions, headlines and forums. Its rows come in three
# **splits**. A model is trained on *train*. What you choose, such as how long to train, you choose on **dev**. The
# third, *test*, is looked at once, at the end: choosing a setting by the test score is a way of training on it.
# MiniLM's model card names none of the three among its training data, though it names other captions, those of COCO and
# Flickr 30k.
#
# ![Map of the model: similarity](drawings/map_09.svg)
#
# ## The formula
#
# x and y are lists of N numbers. Pearson's r asks whether they lie on a line:
#
#     r = sum of (x_i - mean x) (y_i - mean y)  /  sqrt( sum of (x_i - mean x)^2  *  sum of (y_i - mean y)^2 )
#
# This is the cosine of lesson 01, after subtracting the mean from each list. Spearman's rho asks only for the order:
# it is Pearson's r of the *ranks*. Equal values, **ties**, share the mean of the ranks that they occupy: 10, 20, 20, 30
# have the ranks 1, 2.5, 2.5, 4.

# %% [markdown]
# ## The real function
#
# Three pairs. The people say 1, 2, 3. One model says 1, 2, 4, another 1, 2, 400, a third cannot tell the first two
# apart.

# %%
from minisbert.core import metrics

people = [1, 2, 3]
for model in ([1, 2, 4], [1, 2, 400], [1, 1, 2]):
    r, rho = metrics.pearson(model, people), metrics.spearman(model, people)
    ranks = metrics.ranks(model)
    print(f"{model!s:14} ranks {ranks}   Pearson {r:.4f}   Spearman {rho:.4f}")
r = metrics.pearson([1, 2, 4], people)
assert abs(r - 3 / np.sqrt(2 * 14 / 3)) < 1e-12, "by hand"
assert metrics.spearman([1, 2, 400], people) > 1 - 1e-12, "the order is right"
assert abs(metrics.spearman([1, 1, 2], people) - 0.86603) < 1e-5, "the tie's price"

# %% [markdown]
# **Write them:** `pearson`, `ranks`, `spearman` (`python -m lessons.check start 09`, then `run 09`), and compare. The stub
# imports `as_columns` of the book, and you may use it: it makes float64 arrays of x and y, and refuses lists of which no
# correlation is defined, such as one whose values are all equal.
# `pearson` ends with `np.clip`, though no correlation is above 1. What is it there for? What would `ranks([1, 2, 2, 3])`
# be with the first rank of a group in place of the middle, and what Spearman's correlation with 1, 2, 3, 4? And below
# them the cosine: `normalize` has an `eps`. What is the cosine with a vector of zeros, and what would it be without?

# %%
chapter("metrics")
chapter("encoder", "normalize", "cosine", "cosine_matrix")

# %% [markdown]
# Now the whole split, **zero-shot**, that is without any training: encode each sentence, compare. One forward pass,
# four poolings; *first-last* is the mean of the first layer's states and the last one's. `budgeted_batches` (lesson 25)
# makes batches of at most 4,096 tokens, and in `inference_mode` nothing is recorded for gradients.

# %%
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.pooling import cls_pool, max_pool, mean_pool
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import budgeted_batches
from minisbert.models.pooling import first_last_pool
from minisbert.models.properties import similarity_pairwise
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
encoded = encoder.tokenizer.encode(texts)
poolings = ("mean", "cls", "max", "first-last")
vectors = {name: torch.empty(len(texts), 384) for name in poolings}  # (2 N, D) each
with torch.inference_mode():
    for rows in budgeted_batches([len(ids) for ids in encoded.ids], 4096):
        ids, mask = pad_batch([encoded.ids[row] for row in rows], 0)
        states = {}
        hidden = encoder.bert(ids, mask, trace=states)  # (B, T, D)
        vectors["mean"][rows] = mean_pool(hidden, mask)
        vectors["cls"][rows] = cls_pool(hidden, mask)
        vectors["max"][rows] = max_pool(hidden, mask)
        vectors["first-last"][rows] = first_last_pool(hidden, mask, states["layers.0"])

spearman, pearson, cosines = {}, {}, {}
for name, both in vectors.items():
    u, v = np.split(both.double().numpy(), 2)  # (N, D) each
    cosines[name] = similarity_pairwise(u, v, "cosine")  # (N,)
    spearman[name] = 100 * metrics.spearman(cosines[name], scores)
    pearson[name] = 100 * metrics.pearson(cosines[name], scores)
    print(f"{name:11} Spearman {spearman[name]:.2f}   Pearson {pearson[name]:.2f}")
assert abs(spearman["mean"] - 82.03) < 0.02, "published as 82.03"
assert abs(pearson["mean"] - 82.74) < 0.02, "published as 82.74"
for name, measured in (("cls", 73.50), ("max", 78.80), ("first-last", 81.55)):
    assert abs(spearman[name] - measured) < 0.02, "as sentence-transformers measures it"

# %% [markdown]
# `minisbert evaluate --split test` prints the same. The model was trained with the mean, and with another pooling it
# loses up to 8.5 points: once training is over, the pooling is not a matter of taste.
#
# **Exercise 1.** What Spearman would a model reach that is perfect, but rounds its answers to whole numbers from 0 to
# 5?
#
# ## The figure
#
# ![Cosine against people's scores, and Spearman by pooling](figures/09_similarity.png)


# %%
def draw(plt):
    drawn, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(3, 2)
    )
    left.scatter(scores, cosines["mean"], s=5, alpha=0.4, color="#1f4e79", linewidths=0)
    left.set(xlabel="people's score", ylabel="cosine")
    left.set_title(f"Mean pooling: Spearman {spearman['mean']:.2f}")
    bars = right.bar(list(spearman), list(spearman.values()), color="#3b7ab8")
    right.bar_label(bars, fmt="%.2f")
    right.set(ylim=(60, 88), ylabel="Spearman x 100", title="STS-B, test, by pooling")
    return drawn


figure("09_similarity", draw)

# %% [markdown]
# **Exercise 2.** Which ten pairs does the model misjudge most (rank of cosine against rank of score)? Whose side are
# you on?

# %% [markdown]
# ## Predict, then run
#
# **1.** Replace every cosine c by exp(10 c). What happens to Pearson, and what to Spearman?

# %%
guess = predict(
    "09.1", "exp(10 c) for c: what falls?", ["Pearson", "Spearman", "both", "neither"]
)

# %%
bent = np.exp(10 * cosines["mean"])
r, rho = 100 * metrics.pearson(bent, scores), 100 * metrics.spearman(bent, scores)
print(f"Pearson {pearson['mean']:.2f} -> {r:.2f}")
print(f"Spearman {spearman['mean']:.2f} -> {rho:.2f}")
assert r < pearson["mean"] - 5, "no longer on a line"
assert abs(rho - spearman["mean"]) < 1e-9, "the order is the same, and so are the ranks"
guess.answer("Pearson")

# %% [markdown]
# **2.** Cosine, dot product, negative Euclidean distance. On unit vectors |u - v|^2 = 2 - 2 cos, so all three have the
# same Spearman. And on the pooled vectors before they are scaled to length 1?

# %%
guess = predict(
    "09.2",
    "The dot product of vectors as pooled, beside the cosine's 82?",
    ["the same", "about 80", "below 60"],
)

# %%
u, v = np.split(vectors["mean"].double().numpy(), 2)
unit_u, unit_v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
raw, unit = {}, {}
for name in ("cosine", "dot", "euclidean", "manhattan"):
    for a, b, found in ((u, v, raw), (unit_u, unit_v, unit)):
        values = similarity_pairwise(a, b, name)  # (N,); distances are negative
        found[name] = 100 * metrics.spearman(values, scores)
    print(f"{name:10} unit vectors {unit[name]:.2f}   as pooled {raw[name]:.2f}")
for name in ("dot", "euclidean"):
    assert abs(unit[name] - unit["cosine"]) < 1e-3, "one order on the sphere"
assert raw["dot"] < 60, "lengths carry no meaning here, and a dot product reads them"
guess.answer("below 60")

# %% [markdown]
# **3.** How precise is 82.03? Draw 1,379 pairs with replacement, a thousand times, and look at the spread.

# %%
guess = predict(
    "09.3",
    "95 % of the draws are how far from 82.03, at most?",
    ["0.2 points", "2 points", "10 points"],
)

# %%
chance = np.random.default_rng(0)
draws = [chance.integers(len(pairs), size=len(pairs)) for _ in range(1000)]
spread = np.percentile(
    [100 * metrics.spearman(cosines["mean"][rows], scores[rows]) for rows in draws],
    [2.5, 97.5],
)
print(f"95 % of the draws lie in {spread[0]:.1f} .. {spread[1]:.1f}")
off = abs(spread - spearman["mean"]).max()
assert 1.5 < off < 2.5, "another test set of this size could have given 80 or 84"
guess.answer("2 points")

# %% [markdown]
# That does not make every difference below two points chance. Two models meet the same pairs, and what is hard for one
# is often hard for the other. So take the *difference* in every draw: a paired **bootstrap**. Is the mean better than
# [CLS], by 8.5 points, and than the first and last layer averaged, by half a point?

# %%
for other in ("cls", "first-last"):
    gains = []
    for rows in draws[:300]:
        first = metrics.spearman(cosines["mean"][rows], scores[rows])
        second = metrics.spearman(cosines[other][rows], scores[rows])
        gains.append(100 * (first - second))
    low, high = np.percentile(gains, [2.5, 97.5])
    gain = spearman["mean"] - spearman[other]
    print(f"mean minus {other}: {gain:.2f}, 95 % in {low:.2f} .. {high:.2f}")
    assert (low > 0) == (other == "cls"), "better than [CLS]; the other is not decided"

# %% [markdown]
# **Exercise 3.** Papers on STS12 to STS16 report "all" or "mean" over several sets. Split this test set by genre (it
# is in the file's first column) and compute both. How far apart are they?

# %% [markdown]
# ## Break it
#
# **Pearson without centring.** That is a plain cosine of the two lists. All cosines and all scores are mostly
# positive, so it is high for any model.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["Pearson not centred"]):
    uncentred = 100 * metrics.pearson(cosines["mean"], scores)
    of_noise = 100 * metrics.pearson(chance.uniform(0, 1, len(scores)), scores)
print(f"MiniLM {uncentred:.2f} (truly {pearson['mean']:.2f})")
print(f"random numbers {of_noise:.2f} (truly about 0)")
assert uncentred > 95, "a splendid score"
assert of_noise > 70, "and a decent one for noise"

# %% [markdown]
# **Spearman without ties.** Many pairs have the same score: there are only 70 different ones. `argsort` twice gives
# equal values different ranks, in the order of the file. So the result depends on the order of the rows, which means
# nothing. Sort the file by the model's own cosines and the score rises; reverse it, and it falls.

# %%
print(f"{len(set(scores.tolist()))} different scores among {len(scores)} pairs")
up = np.argsort(cosines["mean"])
found = {}
with planted(MISTAKES["Spearman without tie handling"]):
    orders = {"as in the file": np.arange(len(up)), "sorted": up, "reversed": up[::-1]}
    for label, order in orders.items():
        found[label] = 100 * metrics.spearman(cosines["mean"][order], scores[order])
        print(f"{label:15} {found[label]:.2f}")
right = 100 * metrics.spearman(cosines["mean"][up], scores[up])
print(f"with tie handling, in any order: {right:.2f}")
assert abs(right - spearman["mean"]) < 1e-9, "the order of the rows plays no part"
assert found["sorted"] - found["reversed"] > 4, "four points for free"
gain = found["as in the file"] - right
assert 0.1 < gain < 0.3, "and a small, believable gain on the file as it is"

# %% [markdown]
# **A mistake that costs nothing.** Remember *divided by T* from lesson 08. Its vectors are wrong; here is its score.

# %%
lengths = np.array([len(ids) for ids in encoded.ids])
wrong_u, wrong_v = np.split(
    vectors["mean"].double().numpy() * (lengths / lengths.max())[:, None], 2
)
wrong = 100 * metrics.spearman(similarity_pairwise(wrong_u, wrong_v), scores)
print(f"{wrong:.4f} against {spearman['mean']:.4f}")
assert abs(wrong - spearman["mean"]) < 0.001, "a score is not a proof of right code"
assert largest_difference(wrong_u, u) > 0.1, "for these vectors are different"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 09 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: Pearson, ranks with ties, Spearman: `python -m lessons.check start 09`, `run 09`, `hint 09`.
#
# ## Sources
#
# - Cer et al. 2017, *SemEval-2017 task 1*: the scale, and the STS Benchmark.
# - Spearman 1904, *The proof and measurement of association between two things*.
# - Reimers, Beyer and Gurevych 2016, *Task-oriented intrinsic evaluation of semantic textual similarity*: Pearson can
#   mislead.
# - Gao, Yao and Chen 2021, *SimCSE*, appendix B and table B.1: how papers differ in what they average.
#
# ## What you have now
#
# `python -m lessons.check mine 09` scores your encoder with your Spearman: 82.03.
#
# You can say how good your encoder is, 82.03 on the STS Benchmark, and how sure that is. Next: [push and
# pull](10_losses.py).
