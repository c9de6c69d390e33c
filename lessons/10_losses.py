# %% [markdown]
# # Lesson 10: push and pull
#
# Steps through `minisbert/core/losses.py`. Reading 45, chapter 20, pieces 110, exercises 40 minutes. You will compute
# the losses that train sentence encoders on numbers that you can check, see which rows they push and how hard, and
# spread vectors over a circle.

# %%
import math

import torch
from course import chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Few sentences come with a score. Much more often we know only that two belong together: a question and its answer, a
# sentence and its translation, a sentence and itself. Can a space be learned from that alone? Pulling pairs together
# is easy: map everything to one point, a **collapse**. What pushes the others apart, and how hard?
#
# This lesson has two halves, with a good place for a break between them: first losses that know their wrong answers, then
# losses that take them from the batch.
#
# ## The formula
#
# `B` rows, `D` columns; d is a distance.
#
#     softmax      mean of  log( sum over c of exp(z_c) ) - z_right                        z a row of logits
#     triplet      mean of max( d(a,p) - d(a,n) + margin, 0 )                              d Euclidean
#
# A score of which a softmax makes a share is called a **logit**, and minus the logarithm of the right one's share is
# the **cross-entropy**: the first line. A **triplet** is an **anchor** a with a positive p and a negative n.
#
# Both need care in code. exp overflows, so a log of a sum of exp is `torch.logsumexp`, which subtracts the largest number
# first. And a root has an infinite slope at 0, where a = p: `torch.linalg.vector_norm(a - p, dim=1)` is the Euclidean
# distance, with the slope 0 there.

# %% [markdown]
# ## The real function
#
# Each loss first on vectors simple enough to do in your head.

# %%
from minisbert.core import losses

logits = torch.tensor([[0.0, 0.0, math.log(2)]])
value = losses.softmax_cross_entropy_loss(logits, torch.tensor([2])).item()
print(f"cross-entropy: {value:.5f}")
assert abs(value - math.log(2)) < 1e-6, "log 4 - log 2"

a, p, n = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 4.5]]])
triplet = losses.triplet_loss(a, p, n).item()
print(f"triplet: {triplet:.2f}")
assert abs(triplet - 1.5) < 1e-6, "5 - 4.5 + 1"

# %% [markdown]
# Training does not see the value of a loss. It sees the gradient:

# %%
a, p, n = (x.double().requires_grad_() for x in (a, p, n))
by_autograd = torch.autograd.grad(losses.triplet_loss(a, p, n), [a, p, n])
for name, gradient in zip(("anchor", "positive", "negative"), by_autograd, strict=True):
    print(f"{name:9} {gradient[0].tolist()}")
by_hand = [[[-0.6, 0.2]], [[0.6, 0.8]], [[0, -1]]]
assert largest_difference(torch.stack(by_autograd), by_hand) < 1e-12, "unit vectors"

# %% [markdown]
# Training goes against the gradient: the positive comes nearer, the negative goes away. Both arrows have length 1, near
# or far: a triplet pushes with constant force until the **margin** is kept, then not at all. The anchor feels both. (On
# the site you can [move the negative](../docs/interactive.md#a-margin).)
#
# ![The triplet loss and its gradient](drawings/triplet.svg)
#
# A cross-entropy pushes in another way: log( sum over c of exp(z_c) ) has the slope exp(z_c) / sum = share_c, and
# - z_right the slope -1 at the right answer. So each wrong answer is pushed by its share, the right one is pulled by
# 1 - share.

# %%
logits = logits.double().requires_grad_()  # shares 1/4, 1/4 and, the right one, 2/4
loss = losses.softmax_cross_entropy_loss(logits, torch.tensor([2]))
(slopes,) = torch.autograd.grad(loss, logits)
print(slopes)
assert largest_difference(slopes, [[0.25, 0.25, -0.5]]) < 1e-6, "their shares"

# %% [markdown]
# **Write them:** `softmax_cross_entropy_loss` and `triplet_loss`, the first two pieces of `lessons/mine/lesson_10.py`
# (`python -m lessons.check start 10`, then `run 10`). Lesson 06's ruler measures their gradients, if you want to see
# them. Then compare. Why `logsumexp`, and not the log of a sum of exps? Try logits of 100 in float32.

# %%
chapter("losses", "top", "softmax_cross_entropy_loss", "triplet_loss")

# %% [markdown]
# ## The other rows of the batch
#
# That was the first half. A classifier knows its classes, a triplet its negative. Pairs know only what is right. So the
# second half takes the wrong answers from the batch: B rows, and the partner of each row is a wrong answer for all the
# others. tau is the **temperature**:
#
#     ranking      mean over i of -log( exp(s_ii) / sum over j of ( exp(s_ij) + exp(h_ij) ) )
#     SimCSE       mean over i of -log( exp(s_ii) / sum over j of ( exp(s_ij) + exp(h_ij) ) )
#                  ranking:  s_ij = scale cos(a_i, p_j)        h_ij = scale cos(a_i, n_j)
#                  SimCSE:   s_ij = cos(u_i, v_j) / tau        h_ij = cos(u_i, n_j) / tau
#
# Both are cross-entropies of the first half: the cosines of row i are the logits of B classes, and the right class is i.
# Every other row j is an **in-batch negative**, and no one had to label it. (SimCSE is *simple contrastive learning of
# sentence embeddings*; a **contrastive** loss pulls together what belongs together and pushes the rest apart.)
#
# Two rows at right angles, each its own answer, at temperature 1: the logits of each row are 1 and 0, so the loss is
# log(e + 1) - 1 = 0.3133.
#
# ![In-batch negatives: each row's wrong answers are the others' right ones](drawings/negatives.svg)
#
# A **hard negative** is a wrong answer that somebody has looked for, because it is hard to tell from the right one.
# The n_j are more columns of logits, wrong for every row; without them the h_ij are left out. With the other's answer as
# each row's hard negative the logits are 1, 0, 0 and 1: log(2 e + 2) - 1 = 1.0064.
#
# *Ranking*, in full multiple negatives ranking, is used on two different texts, such as a question and its answer.
# *SimCSE* is used on a sentence and itself, or what follows from it. (Lesson 29 has variants: the triplet loss of
# cosines, ranking in both directions, a weight on hard negatives.)

# %%
from minisbert.models.sentence_encoder import SentenceEncoder

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
two = torch.eye(2)  # two rows at right angles, each its own answer
hard = two.flip(0)  # and each with the other's answer as its hard negative
for negatives, total in (  # `total` is the sum of all exponentials of a row
    (None, math.e + 1),
    (hard, 2 * math.e + 2),
):
    value = losses.simcse_loss(two, two, negatives, 1.0).item()
    print(f"SimCSE: {value:.5f}, {math.log(total):.5f} - 1 by hand")
    assert abs(value - (math.log(total) - 1)) < 1e-6, "by hand"
ranking = losses.multiple_negatives_ranking_loss(two, two, hard, scale=1).item()
assert abs(ranking - (math.log(2 * math.e + 2) - 1)) < 1e-6, "as SimCSE's"

# %% [markdown]
# **Write them:** `multiple_negatives_ranking_loss` and `simcse_loss`. The cross-entropy of the first half is in your
# file. Then compare. In the book's ranking loss the labels are 0 to B - 1 with hard negatives and without. Why?

# %%
chapter("losses", "multiple_negatives_ranking_loss", "simcse_loss")

# %% [markdown]
# **Exercise 1.** Two rows of a batch hold the same sentence. What does SimCSE do to them, and how does
# `unique_batches` of `minisbert/data/batches.py` help?
#
# ## The figure
#
# Left: the push on a negative (the slope of the loss with respect to its cosine) by how near it is; the positive has a
# cosine of 0.8. The smaller the temperature, the more SimCSE looks at the nearest negatives only. Right: 24 points on a
# circle, each with a partner close by, before and after 200 steps of SimCSE. The angle from a point to its nearest
# neighbour says how evenly they are spread: 360 / 24 = 15 degrees at best. (On the site you can [choose the
# temperature](../docs/interactive.md#points-on-a-circle).)
#
# ![Push by cosine, points on a circle](figures/10_losses.png)

# %%
from lessons.by_hand.losses import cosine_triplet_loss  # d = 1 - cos
from minisbert.core.encoder import normalize
from minisbert.core.loop import fit

grid = torch.linspace(-0.99, 0.99, 199, dtype=torch.float64)


def push(loss):
    """d loss / d cos for a negative at each cosine of the grid, scaled to a largest push of 1."""
    slopes = []
    for cos in grid:
        cos = cos.clone().requires_grad_()
        negative = torch.stack([cos, (1 - cos * cos).sqrt()])[None]  # (1, 2)
        slopes.append(torch.autograd.grad(loss(negative), cos)[0])
    return torch.stack(slopes) / max(slopes)


anchor = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
partner = torch.tensor([[0.8, 0.6]], dtype=torch.float64)  # cosine 0.8
of_triplet = push(lambda n: cosine_triplet_loss(anchor, partner, n, 0.2))
pushes, half = {"triplet (cosine), margin 0.2": of_triplet}, {}
for tau in (0.5, 0.05):
    values = push(lambda n, tau=tau: losses.simcse_loss(anchor, partner, n, tau))
    pushes[f"SimCSE, temperature {tau}"] = values
    half[tau] = grid[int((values > 0.5).nonzero()[0])].item()
    print(f"temperature {tau}: half of the largest push at cosine {half[tau]:.2f}")
assert half[0.05] > 0.75 > 0.5 > half[0.5], "small tau, near ones only"


def spread(steps=200):
    """24 unit vectors in a narrow cone, before and after SimCSE with partners close by."""
    generator = torch.Generator().manual_seed(0)
    points = torch.tensor([1.0, 0.0]) + 0.3 * torch.randn(24, 2, generator=generator)
    noise = 0.02 * torch.randn(24, 2, generator=generator)
    table = torch.nn.Embedding.from_pretrained(points.clone(), freeze=False)

    def loss(table, rows):
        unit = normalize(table(rows))
        return losses.simcse_loss(unit, unit + noise[rows], temperature=0.05)

    # makes the steps: lesson 11 takes one apart
    optimizer = torch.optim.Adam(table.parameters(), lr=0.02)
    rows = [torch.arange(24)] * steps
    list(fit(table, loss, rows, optimizer, schedule=lambda step: 1.0))  # lesson 11
    return normalize(points), normalize(table.weight).detach()


def nearest(points):
    """The mean angle from a point (N, 2) to its nearest neighbour, in degrees."""
    cosines = (points @ points.T).fill_diagonal_(-1).clamp(-1, 1)
    return cosines.max(dim=1).values.acos().rad2deg().mean().item()


before, after = spread()
print(f"angle to the nearest: {nearest(before):.1f} -> {nearest(after):.1f} degrees")
assert nearest(before) < 4 < 13 < nearest(after), "no one said where to go"


def draw(plt):
    drawn, (left, middle) = plt.subplots(
        1, 2, figsize=(8, 3.5), layout="constrained", width_ratios=(4, 3)
    )
    shades = ("#e59866", "#8bb8de", "#1f4e79")
    for (label, values), shade in zip(pushes.items(), shades, strict=True):
        left.plot(grid, values, color=shade, label=label)
    left.set(xlabel="cosine of the negative", ylabel="push, largest = 1")
    left.set_title("How hard a negative is pushed away")
    left.legend(frameon=False, fontsize=8, loc="upper left")
    left.set(ylim=(-0.03, 1.6), yticks=[0, 0.5, 1])
    for points, shade, label in (
        (1.25 * before, "#e59866", "before (drawn outside)"),
        (after, "#1f4e79", "after"),
    ):
        middle.scatter(*points.T, s=14, color=shade, label=label)
    middle.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.9), aspect="equal", xticks=[], yticks=[])
    middle.set_title("SimCSE on a circle")
    narrow = {"ncols": 2, "columnspacing": 0.8, "handletextpad": 0.2}
    middle.legend(frameon=False, fontsize=8, loc="upper center", **narrow)
    return drawn


figure("10_losses", draw)

# %% [markdown]
# **Exercise 2.** Use `losses.multiple_negatives_ranking_loss` in `spread`. With which `scale` does it give SimCSE's
# points?

# %% [markdown]
# ## Predict, then run
#
# **1.** A triplet whose negative is already further than the positive by more than the margin: how large is its
# gradient?

# %%
guess = predict(
    "10.1",
    "The gradient of a triplet that keeps its margin?",
    ["0", "small", "as large as the others'"],
)

# %%
far = torch.tensor([[30.0, 0.0]], dtype=torch.float64, requires_grad=True)
(gradient,) = torch.autograd.grad(losses.triplet_loss(a.detach(), p.detach(), far), far)
print(gradient)
assert gradient.abs().max() == 0, "its loss is 0, and stays 0 if the negative moves"
guess.answer("0")

# %% [markdown]
# Such triplets teach nothing, so people look for hard negatives.
#
# **2.** 64 rows, u and v random and unrelated, at temperature 1. Every column is about equally likely. What is the
# SimCSE loss, roughly?

# %%
guess = predict(
    "10.2",
    "The SimCSE loss of 64 unrelated rows, at temperature 1?",
    ["0", "about 1", "about 4.2", "64"],
)

# %%
generator = torch.Generator().manual_seed(0)
u, v = (torch.randn(64, 384, generator=generator) for _ in range(2))
value = losses.simcse_loss(u, v, temperature=1).item()
print(f"{value:.3f}, log 64 = {math.log(64):.3f}")
assert abs(value - math.log(64)) < 0.05, "the loss of a guess among 64"
guess.answer("about 4.2")

# %% [markdown]
# **3.** Unsupervised SimCSE feeds the same sentence twice and relies on dropout (lesson 04) to make two views. How near
# are they? Without dropout they are equal, and SimCSE's authors report that the vectors collapse.

# %%
guess = predict(
    "10.3",
    "Two dropout views of a sentence are ...",
    ["equal", "near", "at right angles"],
)

# %%
from minisbert.core.encoder import cosine
from minisbert.core.tokenizer import pad_batch
from minisbert.data.rows import load_scored_pairs

pairs = load_scored_pairs("stsb", "dev")[:32]
texts = [pair.sentence1 for pair in pairs]
ids, mask = pad_batch(encoder.tokenizer.encode(texts).ids, 0)
torch.manual_seed(0)
encoder.train()  # dropout is alive now
with torch.no_grad():
    one, two = encoder(ids, mask), encoder(ids, mask)
encoder.eval()
views = cosine(one, two)
print(f"two dropout views: cosine {views.mean():.3f}, least {views.min():.3f}")
assert 0.7 < views.mean() < 0.999, "near, and not equal"
guess.answer("near")

# %% [markdown]
# ## Break it
#
# Every known mistake of SimCSE's loss, on one batch of random vectors: the value, and the angle between the right and
# the wrong gradient. An angle of 0 is a gradient of right direction and perhaps wrong length; above 90 degrees,
# training goes backwards. (A *contradiction* is a hard negative here, as in SimCSE's data; lesson 15 has such pairs.)

# %%
from lessons.mistakes import MISTAKES, planted

generator = torch.Generator().manual_seed(1)
base = torch.randn(8, 16, generator=generator, dtype=torch.float64)
near = base + 0.5 * torch.randn(8, 16, generator=generator, dtype=torch.float64)
other = torch.randn(8, 16, generator=generator, dtype=torch.float64)


def value_and_gradient():
    x = base.clone().requires_grad_()
    value = losses.simcse_loss(x, near, other, 0.5)
    return value.item(), torch.autograd.grad(value, x)[0].flatten()


value, gradient = value_and_gradient()
print(f"{'the right one':36} {value:8.4f}")
angles = {}
for name, mistake in MISTAKES.items():
    if mistake.target == "losses.simcse_loss":
        with planted(mistake):
            value, wrong = value_and_gradient()
        cos = torch.nn.functional.cosine_similarity(gradient, wrong, dim=0)
        angles[name] = math.degrees(math.acos(cos.clamp(-1, 1)))
        print(f"{name:36} {value:8.4f}   angle {angles[name]:4.0f}")
assert angles["SimCSE labels off by one"] > 60, "pulled to a stranger"
assert 1 < angles["contradictions left out"] < 45, "a little sideways"

# %% [markdown]
# Does it matter in the end? Spread the points of the figure with two of the mistakes.

# %%
angle = {"right": nearest(after)}
for name in ("temperature multiplied", "SimCSE labels off by one"):
    with planted(MISTAKES[name]):
        angle[name] = nearest(spread()[1])
for name, value in angle.items():
    print(f"{name:26} angle to the nearest {value:.1f}")
    assert name == "right" or value < 0.8 * angle["right"], f"{name}: not so even"

# %% [markdown]
# ## Exercises
#
# Exercises 1 and 2 stand above; `python -m lessons.check answer 10 1` gives a hint for the first, then the answer.
#
# **Exercise 3.** Graded: cross-entropy, triplet, ranking, SimCSE: `python -m lessons.check start 10`, `run 10`,
# `hint 10`.
#
# ## Sources
#
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 3: the triplet objective, Euclidean, margin 1.
# - Henderson et al. 2017, *Efficient natural language response suggestion for Smart Reply*, section 4.4: in-batch
#   negatives.
# - Gao, Yao and Chen 2021, *SimCSE*, section 2 (equation 1), section 3 (equation 4), section 4 (equation 5).
#
# ## What you have now
#
# `python -m lessons.check mine 10` computes your losses on pairs with their partners, and with others'.
#
# You have the losses that move vectors, and know what each pushes and pulls. Next: [the training loop](11_training.py).
# ([More losses](29_more_losses.py), and two measures of what they did to a space, are in an appendix.)
