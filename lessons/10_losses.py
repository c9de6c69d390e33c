# %% [markdown]
# # Lesson 10: contrastive, triplet, SimCSE
#
# Steps through `minisbert/core/losses.py`, and the geometry in `minisbert/evaluation/metrics.py`.
# About 60 minutes. You will compare three losses by the pushes that they give, meet their relatives, spread vectors
# over a circle, and measure alignment and uniformity of MiniLM.

# %%
import numpy as np
import torch
from course import TINY, chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Few sentences come with a score. Much more often we know only that two belong together: a question and its answer, a
# sentence and its translation, a sentence and itself. Can a space be learned from that alone? Pulling pairs together
# is easy: map everything to one point, a **collapse**. What pushes the others apart, and how hard?
#
# ## The formula
#
# `B` rows, `D` columns; d is a distance, y is 1 for a pair that belongs together, else 0; tau is the temperature.
#
#     contrastive  mean of ( y d(u,v)^2 + (1 - y) max(margin - d(u,v), 0)^2 ) / 2          d = 1 - cos
#     triplet      mean of max( d(a,p) - d(a,n) + margin, 0 )                              d Euclidean, or 1 - cos
#     SimCSE       mean over i of -log( exp(cos(u_i, v_i) / tau) / sum over j of exp(cos(u_i, v_j) / tau) )
#
# **Contrastive** looks at a pair, **triplet** at three, an **anchor** with a positive and a negative. SimCSE looks at
# the whole batch: for row i every other row j is a wrong answer, an **in-batch negative**, and no one had to label it.
#
# Two of these formulas need care in code. exp overflows, so a log of a sum of exp is `torch.logsumexp`, which subtracts
# the largest number first. And a root has an infinite slope at 0, where a = p: `torch.linalg.vector_norm(a - p, dim=1)`
# is the Euclidean distance, with the slope 0 there.
#
# ![In-batch negatives: each row's wrong answers are the others' right ones](drawings/negatives.svg)

# %% [markdown]
# ## The real function
#
# Each loss first on vectors simple enough to do in your head.

# %%
import math

from minisbert.core import losses
from minisbert.models.sentence_encoder import SentenceEncoder

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")

right, diagonal = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]])
# 45 degrees: d = 1 - 0.70711 = 0.29289
for label, expected in ((1, 0.29289**2 / 2), (0, (0.5 - 0.29289) ** 2 / 2)):
    value = losses.contrastive_loss(right, diagonal, torch.tensor([label])).item()
    print(f"contrastive, label {label}: {value:.5f}")
    assert abs(value - expected) < 1e-5, "margin 0.5"

a, p, n = torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 4.5]]])
triplet = losses.triplet_loss(a, p, n).item()
print(f"triplet: {triplet:.2f}")
assert abs(triplet - 1.5) < 1e-6, "5 - 4.5 + 1"

three = torch.eye(3)  # three rows at right angles, each its own answer
simcse = losses.simcse_loss(three, three, temperature=1).item()
print(f"SimCSE: {simcse:.5f}")
expected = -math.log(math.e / (math.e + 2))
assert abs(simcse - expected) < 1e-6, "-log(e / (e + 1 + 1))"

# %% [markdown]
# Training does not see the value of a loss. It sees the gradient:

# %%
a, p, n = (x.double().requires_grad_() for x in (a, p, n))
by_autograd = torch.autograd.grad(losses.triplet_loss(a, p, n), [a, p, n])
for name, gradient in zip(("anchor", "positive", "negative"), by_autograd, strict=True):
    print(f"{name:9} {gradient[0].tolist()}")
assert largest_difference(by_autograd[1], [[0.6, 0.8]]) < 1e-12, (
    "down the gradient: the positive comes nearer"
)
assert largest_difference(by_autograd[2], [[0, -1]]) < 1e-12, (
    "down the gradient: the negative goes away"
)
assert largest_difference(by_autograd[0], [[-0.6, 0.2]]) < 1e-12, (
    "the anchor: away from the one, towards the other"
)

# %% [markdown]
# The arrows of the positive and the negative have length 1, near or far: a triplet pushes with constant force until the
# **margin** is kept, then not at all. The anchor feels both, (-0.6, 0.2) together.
#
# ![The triplet loss and its gradient](drawings/triplet.svg)
#
# From there the **chain rule** carries the gradient back through the encoder, layer by layer. A dense layer with GELU,
# y = gelu(z) and z = x W^T + b, gets dL/dy and hands on. P is lesson 06's, and p its slope, the bell curve:
#
#     p(z)  = exp(-z^2 / 2) / sqrt(2 pi)
#     dL/dz = dL/dy * ( P(z) + z p(z) )          the slope of z P(z)
#     dL/dx = dL/dz W          dL/dW = dL/dz^T x          dL/db = sum over rows of dL/dz

# %%
from lessons.by_hand.backward import dense_gelu_backward

x, W, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, -1.0]]), torch.zeros(1)
dx, dW, db = dense_gelu_backward(x, W, b, torch.tensor([[4.0]]))
print(dx, dW, db)
assert dx.tolist() == [[4, -2]], "z = 0, where the slope is a half: 2 times W"
assert (dW.tolist(), db.tolist()) == ([[2, 4]], [2]), "2 times x, and 2"

# %% [markdown]
# **Exercise 1.** Two rows of a batch hold the same sentence. What does SimCSE do to them, and how does
# `unique_batches` of `minisbert/data/batches.py` help?
#
# ## Four relatives
#
# A score of which a softmax will make a share is called a **logit**, and minus the logarithm of the share of the right
# class is the **cross-entropy**. SimCSE's loss is one: the cosines of row i, divided by tau, are the logits of B
# classes, and the right class is i. Four more losses are close to it:
#
# - *Softmax cross-entropy* is the general form, for any logits: log( sum over c of exp(z_c) ) - z_right.
# - *Multiple negatives ranking* is the same loss, used on pairs of two different texts, such as a question and its
#   answer. It multiplies the cosines by a scale, and can also let the answers choose among the questions.
# - *NT-Xent*, SimCLR's loss, lets both sides ask, and all other 2B - 1 rows answer: the other rows of u are wrong
#   answers for u_i, too.
# - *CoSENT* has no right answer, only an order. It asks that pairs with a higher score have a higher cosine:
#
#       log( 1 + sum over all pairs i, j with score_i > score_j of exp( scale * (cos_j - cos_i) ) )       1 = exp(0)
#
# All of them are the logarithm of a sum of exp. At a scale of 20 and above some exp overflows, so `logsumexp` takes the
# largest exponent m out first: m + log( sum of exp(x - m) ).
#
# And their gradient is short: log( sum over c of exp(z_c) ) has the slope exp(z_c) / sum = share_c, and - z_right the
# slope -1 at the right answer. So each wrong answer is pushed by its share, the right one is pulled by 1 - share.

# %%
from minisbert.training import losses as more_losses

logits = torch.tensor([[0.0, 0.0, math.log(2)]])
value = losses.softmax_cross_entropy_loss(logits, torch.tensor([2])).item()
print(f"cross-entropy: {value:.5f}")
assert abs(value - math.log(2)) < 1e-6, "log 4 - log 2"
ranking = losses.multiple_negatives_ranking_loss(three, three, scale=1).item()
assert abs(ranking - expected) < 1e-6, "the same number as SimCSE's"
two = torch.eye(2)
value = more_losses.nt_xent_loss(two, two, temperature=1).item()
print(f"NT-Xent: {value:.5f}")
assert abs(value - (math.log(math.e + 2) - 1)) < 1e-6, (
    "three answers: its own other view, and both of the other row"
)
same = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
# cosines 1 and 0 with the rows of two, while people say 0 and 1
value = more_losses.cosent_loss(two, same, torch.tensor([0, 1]), scale=1).item()
print(f"CoSENT: {value:.5f}")
assert abs(value - math.log(1 + math.e)) < 1e-6, (
    "one pair of pairs, in the wrong order by a cosine of 1"
)

# %% [markdown]
# What is CoSENT good for? Scores of different data sets, or of different people, rarely share a scale, and the loss
# does not ask for one. It does not say how large a cosine should be, and neither does Spearman's correlation.
#
# ## The figure
#
# Left: the push on a negative (the slope of the loss with respect to its cosine) by how near it is; the positive has a
# cosine of 0.8. The smaller the temperature, the more SimCSE looks at the nearest negatives only. Middle: 24 points on
# a circle, each with a partner close by, before and after 200 steps of SimCSE. Right: alignment and
# uniformity of sentence vectors. Lower left is better. Either alone is easy: random vectors are spread out, and an
# untrained model puts all texts into one narrow cone, which is called **anisotropy**.
#
# ![Push by cosine, points on a circle, alignment and uniformity](figures/10_losses.png)

# %%
from minisbert.core.encoder import normalize
from minisbert.core.loop import fit
from minisbert.evaluation.metrics import uniformity

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
pushes = {
    "contrastive, margin 0.5": push(
        lambda n: losses.contrastive_loss(anchor, n, torch.tensor([0]), margin=0.5)
    ),
    "triplet (cosine), margin 0.2": push(
        lambda n: losses.triplet_loss(anchor, partner, n, 0.2, "cosine")
    ),
    "SimCSE, temperature 0.5": push(
        lambda n: losses.simcse_loss(anchor, partner, n, temperature=0.5)
    ),
    "SimCSE, temperature 0.05": push(
        lambda n: losses.simcse_loss(anchor, partner, n, temperature=0.05)
    ),
}
half = {
    name: grid[int((values > 0.5).nonzero()[0])].item()
    for name, values in pushes.items()
}
for name, cos in half.items():
    print(f"{name:30} half of its push at cosine {cos:.2f}")
assert (
    half["SimCSE, temperature 0.05"] > 0.75 > 0.5 > half["SimCSE, temperature 0.5"]
), "small tau, near ones only"


def spread(steps=200):
    """Points in a narrow cone, their unit vectors before and after SimCSE against partners close by."""
    generator = torch.Generator().manual_seed(0)
    points = torch.tensor([1.0, 0.0]) + 0.3 * torch.randn(24, 2, generator=generator)
    noise = 0.02 * torch.randn(24, 2, generator=generator)
    table = torch.nn.Embedding.from_pretrained(points.clone(), freeze=False)

    def loss(table, rows):
        unit = normalize(table(rows))
        return losses.simcse_loss(unit, unit + noise[rows], temperature=0.05)

    optimizer = torch.optim.Adam(table.parameters(), lr=0.02)
    rows = [torch.arange(24)] * steps
    list(fit(table, loss, rows, optimizer, schedule=lambda step: 1.0))  # lesson 11
    return normalize(points), normalize(table.weight).detach()


before, after = spread()
print(f"uniformity on the circle: {uniformity(before):.2f} -> {uniformity(after):.2f}")
assert uniformity(after) < uniformity(before) - 0.5, (
    "no one said where to go, only: not together"
)

# %% [markdown]
# **Alignment**: how near are pairs that belong together? **Uniformity**: how evenly are all vectors spread? On 150
# pairs of STS-B dev with a score higher than 4. SimCSE measures alignment on such pairs (section 3, footnote 3), and
# uniformity on all of STS-B; here the texts of the same pairs must do. With every vector scaled to length 1:
#
#     alignment   =  mean over pairs of |u - v|^2
#     uniformity  =  log( mean over all pairs of different rows of exp(-2 |x - y|^2) )

# %%
from minisbert.data.datasets import load_scored_pairs
from minisbert.evaluation.metrics import alignment, mean_off_diagonal_cosine

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
    print(
        f"{name:16} alignment {aligned:.2f}   uniformity {uniform:6.2f}   mean cosine {mean_cosine:5.2f}"
    )
assert places["MiniLM, mean"][1] < -3, "well spread"
assert places["MiniLM, mean"][0] < places["random vectors"][0] / 2, "and pairs are near"
assert places["tiny, untrained"][1] > -1, (
    "a model that knows nothing puts all texts into one narrow cone: anisotropy"
)
assert places["tiny, untrained"][0] < places["MiniLM, mean"][0], (
    "with every pair near: alignment alone is nothing"
)


def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(10.5, 3.5), layout="constrained", width_ratios=(4, 3, 3)
    )
    shades = ("#c0392b", "#e59866", "#8bb8de", "#1f4e79")
    for (label, values), shade in zip(pushes.items(), shades, strict=True):
        left.plot(grid, values, color=shade, label=label)
    left.set(
        xlabel="cosine of the negative",
        ylabel="push, largest = 1",
        title="How hard a negative is pushed away",
    )
    left.legend(frameon=False, fontsize=8, loc="upper left")
    left.set_ylim(-0.03, 1.6)
    left.set_yticks([0, 0.5, 1])
    middle.scatter(
        *(1.25 * before.T), s=14, color="#e59866", label="before (drawn outside)"
    )
    middle.scatter(*after.T, s=14, color="#1f4e79", label="after")
    middle.set(
        xlim=(-1.4, 1.4),
        ylim=(-1.4, 1.9),
        aspect="equal",
        xticks=[],
        yticks=[],
        title="SimCSE on a circle",
    )
    middle.legend(
        frameon=False,
        fontsize=8,
        loc="upper center",
        ncols=2,
        columnspacing=0.8,
        handletextpad=0.2,
    )
    for name, (aligned, uniform, _) in places.items():
        right.scatter(uniform, aligned, s=30, color="#1f4e79")
        side = "left" if uniform < -2 else "right"
        right.annotate(
            name,
            (uniform, aligned),
            xytext=(0, 7),
            textcoords="offset points",
            ha=side,
            fontsize=8,
        )
    right.set(
        xlabel="uniformity",
        ylabel="alignment",
        ylim=(0, 2.3),
        title="Near pairs, even spread",
    )
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
assert gradient.abs().max() == 0, (
    "none: its loss is 0 and stays 0 if the negative moves a little"
)
guess.answer("0")

# %% [markdown]
# So most triplets teach nothing, and people look for **hard negatives**, wrong answers that are hard to tell from the
# right one.
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
# **3.** Unsupervised SimCSE feeds the same sentence twice and relies on **dropout**, which sets random numbers to zero
# while a model is trained, to make two views. How near are they? Without dropout they are equal, and there is nothing
# to learn: SimCSE's authors report that the vectors collapse.

# %%
guess = predict(
    "10.3",
    "Two dropout views of a sentence are ...",
    ["equal", "near", "at right angles"],
)

# %%
from minisbert.core.encoder import cosine
from minisbert.core.tokenizer import pad_batch

ids, mask = pad_batch(encoder.tokenizer.encode(firsts[:32]).ids, 0)
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
# training goes backwards.

# %%
from lessons.mistakes import MISTAKES, planted

generator = torch.Generator().manual_seed(1)
base = torch.randn(8, 16, generator=generator, dtype=torch.float64)
near = base + 0.5 * torch.randn(8, 16, generator=generator, dtype=torch.float64)
other = torch.randn(8, 16, generator=generator, dtype=torch.float64)


def value_and_gradient():
    x = base.clone().requires_grad_()
    value = losses.simcse_loss(
        x, near, other, temperature=0.5, hard_negative_weight=0.7
    )
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
assert 1 < angles["weight on every contradiction"] < 30, (
    "a little sideways: a training run would hide it"
)

# %% [markdown]
# Does it matter in the end? Spread the points of the figure with two of the mistakes.

# %%
uniform = {"right": uniformity(after)}
for name in ("temperature multiplied", "SimCSE labels off by one"):
    with planted(MISTAKES[name]):
        uniform[name] = uniformity(spread()[1])
for name, value in uniform.items():
    print(f"{name:26} uniformity {value:.2f}")
    assert name == "right" or value > uniform["right"] + 0.2, (
        f"{name}: the points do not spread as they should"
    )

# %% [markdown]
# **Exercise 3.** Encode the pairs with "positions forgotten" planted. Do alignment and uniformity notice?

# %% [markdown]
# ## Now read the chapter
#
# The losses, and the checks that they begin with.
#
# - In `multiple_negatives_ranking_loss` the line `backward = logits.T` stands before hard negatives are added. What
#   if after?
# - Without its first check `mse_loss` accepts scores (B, 1) and a target (B,). What does it return?
# - Why `logsumexp`, and not the log of a sum of exps? Try logits of 100.
#
# Answers are in [the book in ten evenings](TEN_EVENINGS.md).

# %%
chapter(10)

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand beside what they practise. `python -m lessons.check answer 10 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 4.** Graded: the losses and their gradients, and those of a layer: `python -m lessons.check start 10`,
# `run 10`, `hint 10`.
#
# ## Sources
#
# - Hadsell, Chopra and LeCun 2006, *Dimensionality reduction by learning an invariant mapping*, equation 4.
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 3: the triplet objective, Euclidean, margin 1.
# - Gao, Yao and Chen 2021, *SimCSE*, section 2 (equation 1), section 3 (equation 4), section 4 (equation 5).
# - Wang and Isola 2020, *Understanding contrastive representation learning through alignment and uniformity on the
#   hypersphere*, section 4.
# - SimCLR (Chen et al. 2020), equation 1 (unverified); CoSENT (Huang et al. 2024), the formula as sentence-transformers
#   has it.
#
# ## What you have now
#
# `python -m lessons.check mine 10` computes your losses on pairs with their partners, and with others'.
#
# You have the losses that move vectors, and know what each pushes and pulls. Next: [the training
# loop](11_training.py).
