# %% [markdown]
# # Lesson 29: more losses
#
# Steps through `contrastive_loss` of `minisbert/core/losses.py`, `minisbert/training/losses.py`,
# `lessons/by_hand/losses.py` and the geometry in `lessons/by_hand/geometry.py`. Reading 30, chapter 5, pieces 115,
# exercises 10 minutes. After lesson 10. You will compute three relatives of its losses and four variants, and measure
# alignment and uniformity of MiniLM.

# %%
import math

import numpy as np
import torch
from course import TINY, chapter, figure, largest_difference, predict

from lessons.by_hand import losses as by_hand
from minisbert.core import losses
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as more_losses

# %% [markdown]
# ## The question
#
# The losses of lesson 10 train nearly everything. Three relatives are met in papers and in other people's code. What do
# they ask that the others do not? And what have any of them done to the space: how would one measure that?
#
# ## The formula
#
# y is 1 for a pair that belongs together, else 0; d = 1 - cos, B rows on each side, tau the temperature.
#
#     contrastive  mean of ( y d(u,v)^2 + (1 - y) max(margin - d(u,v), 0)^2 ) / 2
#     NT-Xent      mean over the 2B rows z_i of u and v of  -log( exp(cos(z_i, its other view) / tau) / S_i )
#                  S_i = sum over all k but i of exp(cos(z_i, z_k) / tau)
#     CoSENT       log( 1 + sum over all pairs i, j with score_i > score_j of exp( scale * (cos_j - cos_i) ) )
#
# - *Contrastive* is the oldest: each pair alone, together or apart. Far enough apart, by the margin, is far enough.
# - *NT-Xent*, SimCLR's loss, lets both sides ask, and all other 2B - 1 rows answer: the other rows of u are wrong
#   answers for u_i, too.
# - *CoSENT* has no right answer, only an order: a pair with a higher score should have a higher cosine. The 1 is
#   exp(0).
#
# The last two overflow: they are written with lesson 10's `logsumexp`.
#
# And the space, with every vector scaled to length 1:
#
#     alignment   =  mean over pairs of |u - v|^2                                           how near are the pairs
#     uniformity  =  log( mean over all pairs of different rows of exp(-2 |x - y|^2) )      how evenly is all spread
#
# Lower is better in both.

# %% [markdown]
# ## The real function

# %%
right, diagonal = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
# 45 degrees: d = 1 - 0.70711 = 0.29289
for label, expected in ((1, 0.29289**2 / 2), (0, (0.5 - 0.29289) ** 2 / 2)):
    value = losses.contrastive_loss(right, diagonal, torch.tensor([label])).item()
    print(f"contrastive, label {label}: {value:.5f}")
    assert abs(value - expected) < 1e-5, "margin 0.5"

two = torch.eye(2)
value = by_hand.nt_xent_loss(two, two, temperature=1).item()
print(f"NT-Xent: {value:.5f}")
assert abs(value - (math.log(math.e + 2) - 1)) < 1e-6, "three answers for each row"
same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
# cosines 1 and 0 with the rows of two, while people say 0 and 1
value = more_losses.cosent_loss(two, same, torch.tensor([0, 1]), scale=1).item()
print(f"CoSENT: {value:.5f}")
assert abs(value - math.log(1 + math.e)) < 1e-6, "in the wrong order by a cosine of 1"

# %% [markdown]
# What is CoSENT good for? Scores of different data sets, or of different people, rarely share a scale, and the loss
# does not ask for one, as long as each batch has rows of one set: those of two scales would be compared with each
# other. It does not say how large a cosine should be, and neither does Spearman's correlation.
#
# ## Variants of lesson 10's losses
#
# Papers and libraries have each of them with a switch or two:
#
# - *Triplet of cosines*: d = 1 - cos, in 0..2. Longer vectors do not change it. (Lesson 10's figure has it.)
# - *Both directions* (CLIP): the mean of ranking's loss and the same loss of s_ji, without the h_ij; the answers choose
#   among the questions, too. It is `--symmetric` of `minisbert train`.
# - *A weight on hard negatives* (SimCSE's ablation): w is added to the logit of a row's own hard negative, h_ii, not to
#   those of other rows.
# - *Equal texts in a batch* (`ranking_among_duplicates_loss`): a positive that is right for another row as well is
#   taken out of that row's sum. The package draws batches without such rows instead (`minisbert/data/batches.py`).

# %%
up = torch.tensor([[0.0, 1.0]])
value = by_hand.cosine_triplet_loss(right, diagonal, up, margin=1).item()
print(f"triplet of cosines: {value:.5f}")
assert abs(value - 0.29289) < 1e-5, "0.29289 - 1 + margin"

beside = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
there = losses.multiple_negatives_ranking_loss(two, beside, scale=1).item()
back = losses.multiple_negatives_ranking_loss(beside, two, scale=1).item()
value = more_losses.symmetric_ranking_loss(two, beside, scale=1).item()
print(f"ranking: {there:.5f} there, {back:.5f} back, {value:.5f} in both directions")
assert abs(value - (there + back) / 2) < 1e-6, "their mean"

hard = two.flip(0)  # each row has the other's answer as its hard negative
value = by_hand.weighted_simcse_loss(two, two, hard, 1.0, math.log(2)).item()
print(f"SimCSE, own hard negatives twice: {value:.5f}")
assert abs(value - (math.log(2 * math.e + 3) - 1)) < 1e-6, "e + 1 + 2 * 1 + e in a row"

# %% [markdown]
# ## The figure
#
# Alignment and uniformity of sentence vectors. Lower left is better. Either alone is easy: random vectors are spread
# out, and an untrained model puts all texts into one narrow cone, which is called **anisotropy**. The pairs are 150 of
# STS-B dev with a score higher than 4. (SimCSE measures alignment on such pairs, section 3, footnote 3, and uniformity
# on all of STS-B; here the texts of the same pairs must do.)
#
# ![Alignment and uniformity](figures/29_more_losses.png)

# %%
from minisbert.data.rows import load_scored_pairs
from lessons.by_hand.geometry import alignment, mean_off_diagonal_cosine, uniformity

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
pairs = [pair for pair in load_scored_pairs("stsb", "dev") if pair.score > 4][:150]
firsts, seconds = [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]


def place(model):
    """Alignment of the pairs, uniformity of all different texts, and their mean cosine."""
    u, v = model.encode(firsts), model.encode(seconds)
    everything = model.encode(sorted({*firsts, *seconds}))
    return alignment(u, v), uniformity(everything), mean_off_diagonal_cosine(everything)


places = {
    "MiniLM, mean": place(encoder),
    "MiniLM, cls": place(SentenceEncoder.load("all-MiniLM-L6-v2", pooling="cls")),
    "tiny, untrained": place(SentenceEncoder.load(TINY)),
}
noise = np.random.default_rng(0).normal(size=(300, 384))
places["random vectors"] = (
    alignment(noise[:150], noise[150:]),
    uniformity(noise),
    mean_off_diagonal_cosine(noise),
)
for name, (aligned, uniform, mean_cosine) in places.items():
    print(f"{name:16} alignment {aligned:.2f}   uniformity {uniform:6.2f}", end="   ")
    print(f"mean cosine {mean_cosine:5.2f}")
assert places["MiniLM, mean"][1] < -3, "well spread"
assert places["MiniLM, mean"][0] < places["random vectors"][0] / 2, "and pairs are near"
assert places["tiny, untrained"][1] > -1, "all texts in one narrow cone: anisotropy"
near = places["tiny, untrained"][0] < places["MiniLM, mean"][0]
assert near, "and every pair is near: alignment alone is nothing"


def draw(plt):
    drawn, axes = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
    for name, (aligned, uniform, _) in places.items():
        axes.scatter(uniform, aligned, s=30, color="#1f4e79")
        side = "left" if uniform < -2 else "right"
        offset = {"xytext": (0, 7), "textcoords": "offset points", "ha": side}
        axes.annotate(name, (uniform, aligned), fontsize=8, **offset)
    axes.set(xlabel="uniformity", ylabel="alignment", ylim=(0, 2.3))
    return drawn


figure("29_more_losses", draw)

# %% [markdown]
# **Exercise 1.** Encode the pairs with "positions forgotten" planted. Do alignment and uniformity notice?

# %% [markdown]
# ## Predict, then run
#
# **1.** All cosines of a batch become larger by 0.3. What does CoSENT's loss do?

# %%
guess = predict(
    "29.1", "All cosines rise by 0.3: CoSENT ...", ["rises", "falls", "stays as it is"]
)

# %%
cosines = torch.tensor([0.1, 0.5, 0.2], dtype=torch.float64)
people = torch.tensor([0.0, 1.0, 2.0])


def cosent(cosines):
    """CoSENT's loss of pairs (u, v) in the plane with these cosines."""
    u = torch.tensor([[1.0, 0.0]]).double().expand(len(cosines), 2)
    v = torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1)
    return more_losses.cosent_loss(u, v, people)


print(cosent(cosines), cosent(cosines + 0.3))
assert largest_difference(cosent(cosines), cosent(cosines + 0.3)) < 1e-9, "differences"
guess.answer("stays as it is")

# %% [markdown]
# So a model that was trained with it may give 0.7 to unrelated texts: its cosines order pairs, and no threshold of
# another model holds for it.
#
# **2.** A pair that does not belong together has the cosine 0.3, the margin is 0.5. Which way, and how hard, does the
# contrastive loss move it?

# %%
guess = predict(
    "29.2", "A negative at cosine 0.3, margin 0.5, is ...", ["pushed", "left", "pulled"]
)

# %%
far = torch.tensor([[0.3, 0.91**0.5]], dtype=torch.float64, requires_grad=True)
apart = losses.contrastive_loss(right.double(), far, torch.tensor([0]))
(gradient,) = torch.autograd.grad(apart, far)
print(gradient)
assert gradient.abs().max() == 0, "d = 0.7 is beyond the margin: far enough"
guess.answer("left")

# %% [markdown]
# ## Break it
#
# The known mistakes of the two harder ones, on one batch: the value, and the angle between the right and the wrong
# gradient.

# %%
from lessons.mistakes import MISTAKES, planted

generator = torch.Generator().manual_seed(1)
base, other = torch.randn(2, 8, 16, generator=generator, dtype=torch.float64)
scores = torch.tensor([0.0, 1, 1, 2, 3, 3, 4, 5])
calls = {
    "losses.nt_xent_loss": lambda x: by_hand.nt_xent_loss(x, other, 0.5),
    "losses.cosent_loss": lambda x: more_losses.cosent_loss(x, other, scores),
}
angles = {}
for target, loss in calls.items():
    x = base.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x), x)
    for name, mistake in MISTAKES.items():
        if mistake.target == target:
            with planted(mistake):
                value = loss(x)
            (wrong,) = torch.autograd.grad(value, x)
            cos = (gradient * wrong).sum() / (gradient.norm() * wrong.norm())
            angles[name] = math.degrees(math.acos(cos.clamp(-1, 1)))
            print(f"{name:34} {value.item():8.4f}   angle {angles[name]:4.0f}")
assert angles["order the wrong way round"] > 45, "other pairs, and the other way"
assert angles["no 1 inside the log"] < 1, "the direction is right, only the size is not"

# %% [markdown]
# ## Now read the chapter
#
# One loss.
#
# - Which line would you change for the paper's own form, in which 1 means apart and d is Euclidean?
# - Why is the margin at most 2?
#
# Answers are in [the book in ten evenings](TEN_EVENINGS.md).

# %%
chapter("losses", "contrastive_loss")

# %% [markdown]
# ## Exercises
#
# Exercise 1 stands beside what it practises. `python -m lessons.check answer 29 1` gives a hint, and asked again, the
# answer.
#
# **Exercise 2.** Graded: contrastive, NT-Xent, CoSENT, alignment, uniformity: `python -m lessons.check start 29`,
# `run 29`, `hint 29`.
#
# ## Sources
#
# - Hadsell, Chopra and LeCun 2006, *Dimensionality reduction by learning an invariant mapping*, equation 4.
# - Wang and Isola 2020, *Understanding contrastive representation learning through alignment and uniformity on the
#   hypersphere*, section 4.
# - SimCLR (Chen et al. 2020), equation 1; CoSENT (Huang et al. 2024), the formula as sentence-transformers
#   has it.
#
# ## What you have now
#
# You have the losses that other people's code may ask for, and two measures of a space. Next: [the
# sheets](README.md#sheets-one-evening-labs), one evening each.
