# %% [markdown]
# # Lesson 11: the training loop
#
# Steps through `minisbert/core/loop.py` and `minisbert/core/data.py`. Reading 65, chapter 40, pieces 150, exercises
# 40 minutes. You will compute one step of AdamW by hand, walk through the loop in five stops, write the bill of a
# step before it is run, and match ten losses of the reference to nine digits. Go through it cell by cell: run as a
# whole, `python lessons/11_training.py` prints all of `fit`, which you are to write before you see it.

# %%
import inspect
from functools import partial

import numpy as np
import torch
from course import (
    GOLDEN,
    TINY,
    chapter,
    figure,
    largest_difference,
    predict,
)

from minisbert.core import loop, losses
from lessons.by_hand.adamw import AdamW
from minisbert.core.loop import adamw_step, fit

# %% [markdown]
# ## The question
#
# A loss says how wrong the model is, its gradient says in which direction each of 22 million numbers should go. How
# far? Too far, and what the model knew is gone; not far enough, and nothing happens.
#
# ## The formula
#
# What turns a gradient into a step is an **optimizer**. Ours is **AdamW**: for each parameter p with gradient g, at
# step t = 1, 2, ..., with the learning rate lr, the **weight decay** w, and the *betas* 0.9 and 0.999,
#
#     m = beta1 m + (1 - beta1) g        a running mean of the gradient, 0 at the start
#     v = beta2 v + (1 - beta2) g^2      and of its square
#     p = p (1 - lr w)  -  lr * ( m / (1 - beta1^t) )  /  ( sqrt( v / (1 - beta2^t) ) + eps )        eps = 1e-8
#
# Before that comes **clipping**: with |g| the length of all gradients together and c the bound, g becomes
# g * min(1, c / |g|). And lr itself moves, by a **schedule**: up to its largest value, the *peak*, and down again. With s
# steps done of S, and a **warm-up** of W:
#
#     linear:  lr = peak * s / W   for s < W,   then   peak * max(0, S - s) / (S - W)
#
# The losses of this lesson are squares, of numbers or of cosines:
#
#     squared   mean of (score - target)^2            cosine    mean of (cos(u, v) - target)^2

# %% [markdown]
# ## The real function
#
# Three parameters with gradients 4, 0.01 and -1000, one step at lr = 0.1 without decay.

# %%
p = torch.ones(3, dtype=torch.float64)
g = torch.tensor([4.0, 0.01, -1000.0], dtype=torch.float64)
m = v = torch.zeros(3, dtype=torch.float64)
after, m, v = adamw_step(p, g, m, v, step=1, lr=0.1, weight_decay=0.0)
print("p", after, "m", m, "v", v, sep="\n")
assert largest_difference(m, [0.4, 0.001, -100]) < 1e-12, "a tenth of the gradient"
assert largest_difference(v, [0.016, 1e-7, 1000]) < 1e-9, "a thousandth of its square"
# the first: 0.4 / 0.1 = 4, sqrt(0.016 / 0.001) = 4
assert largest_difference(after, [0.9, 0.9, 1.1]) < 1e-6, "each moves by lr"

# %% [markdown]
# That is the point of Adam: the gradient's size cancels, its direction and its steadiness remain.
#
# **Write them:** the two losses, `linear_schedule` and `adamw_step` (`python -m lessons.check start 11`, then `run 11`),
# and compare. Without its first check `mse_loss` accepts scores (B, 1) and a target (B,). What does it return? `m` and
# `v` are corrected before they are used: what is returned, the corrected ones or not?

# %%
chapter("losses", "mse_loss", "cosine_mse_loss")
chapter("loop", "top", "linear_schedule", "adamw_step", "adamw")

# %% [markdown]
# The decay in the formula above is PyTorch's. The paper's (algorithm 2, line 12) is share * w * p, without lr: at lr
# 2e-5 the same `weight_decay=0.01` is fifty thousand times as strong there.
#
# The schedule, and the clipping:

# %%
shares = [loop.linear_schedule(step, warmup=2, total=6) for step in range(7)]
print(shares)
assert shares == [0, 0.5, 1, 0.75, 0.5, 0.25, 0], "up, then down"
parameter = torch.nn.Parameter(p.clone())
parameter.grad = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
print(norm.item(), parameter.grad)
assert norm == 5, "sqrt(9 + 16)"
assert largest_difference(parameter.grad, [0.6, 0.8, 0]) < 1e-6, "length 1"

# %% [markdown]
# ## The loop
#
# Those were the parts; here is the whole. `python -m minisbert.train` runs this loop, and so do nearly all lessons that
# train.
#
# ![One turn of the training loop](drawings/loop.svg)
#
# It knows nothing about sentences. A model, a loss, batches: anything will do, even one weight w and two rows, x = 1
# and x = 2, for which w x should be x. And it does not know AdamW: here the optimizer is the plainest there is,
# p - lr g with lr = 0.1, so that every number can be had by hand:
#
#     loss      ( (w - 1)^2 + (2 w - 2)^2 ) / 2    =  2.5 (w - 1)^2        10 at w = 3
#     gradient                                        5 (w - 1)            10 at w = 3, so the next w is 2
#
# Before you see the loop, write it; the book's is printed further down. `fit(model, loss, batches, optimizer, schedule,
# start=0, clip=math.inf, micro_batches=...)` is a generator: it *yields* after each step, and the caller takes one step at
# a time.
#
#     for each batch, with s = start, start + 1, ... :
#         the rate of each group of the optimizer  =  group["initial_lr"] * schedule(s)
#         the gradients of the optimizer's parameters  =  0
#         for each part in micro_batches(batch):   backward of   loss(model, part) * len(part) / len(batch)
#         norm  =  the length of these gradients together;  above clip, they are cut to it (`clip_grad_norm_` does both)
#         raise Diverged  if the sum of those losses, or norm, is not finite
#         one step of the optimizer
#         yield Step(s + 1, batch, sum of the losses, schedule(s))
#
# A batch that is too large for the memory comes in several **micro-batches**, of different sizes maybe; by default it is
# its own only one. An optimizer has groups of parameters, `optimizer.param_groups`, dictionaries with "params" and "lr".
# The parameters are those of the groups, whether the model has them or not.
#
# "lr" is the rate of the next step, and the loop overwrites it in each. So the peak has to be kept, and the group is where
# it is kept: if a group has no "initial_lr" yet, its "lr" is the peak, and "initial_lr" becomes that number; from then on
# it is only read. A script that calls `fit` once for each epoch hands over the same optimizer each time, and so does one
# that goes on after a break. Had the loop kept the peaks in a list of its own, the second call would take the last rate
# of the first for the peak.
#
# `Diverged` is an error: give it a sentence with the number of the step, the loss and the norm.

# %%
chapter("loop", "Diverged", "Step")

# %% [markdown]
# **Write it:** `fit` is the hardest piece of the core, three stars, and the one that you will use most. Run the grader
# until it passes. Then go on: we walk through the book's in **five stops**. At each you see its lines, and what becomes
# of w without one of them; compare with yours, stop by stop.

# %%
x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)  # two rows
source = inspect.getsource(fit)


def squared_error(model, rows):
    """The mean over these rows, as `fit` wants it."""
    return losses.mse_loss(model(x[rows]).squeeze(1), x[rows].squeeze(1))


def walk_with(old="", new="", loss=squared_error, schedule=lambda step: 1.0, **options):
    """w after each step, as the caller sees it; with ``old`` in the source of ``fit`` replaced."""
    assert old in source
    scope = dict(vars(loop))
    exec(source.replace(old, new), scope)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = scope["fit"](model, loss, [[0, 1]] * 3, optimizer, schedule, **options)
    return [round(model.weight.item(), 6) for _ in steps]


def stop(first, last):
    """Print the lines of ``fit`` from one to another."""
    lines = source.splitlines()
    begin, end = (
        next(i for i in range(len(lines)) if x in lines[i]) for x in (first, last)
    )
    print("\n".join(lines[begin : end + 1]))


print("w:", walk_with())
assert walk_with() == [2, 1.5, 1.25], "half of the way to 1 in each step"

# %% [markdown]
# **1. The rate.** The schedule gives a share of the peak, and the peak is kept as `initial_lr`. Forget to keep it, and
# each share is one of the last rate: after the first step of a warm-up, which is 0, there is nothing left to share.

# %%
stop("for number, batch", "* multiplier")
warm = {"schedule": lambda step: (0, 1, 0.5)[step]}
print("w:", walk_with(**warm))
assert walk_with(**warm) == [3, 2, 1.75], "no step, a whole one, half a one"
kept = 'group.setdefault("initial_lr", group["lr"])'
assert walk_with(kept, 'group["lr"]', **warm) == [3, 3, 3], "0 times anything"

# %% [markdown]
# **2. The gradient of the last step goes.** `backward` adds to what is there.

# %%
stop("optimizer.zero_grad()", "total = 0.0")
forgotten = walk_with("optimizer.zero_grad()", "pass")
print("w:", forgotten)
assert forgotten == [2, 0.5, -0.75], "the second step is 10 + 5"

# %% [markdown]
# **3. The gradient of this one.** That `backward` adds is of use, too: the gradients of the micro-batches' means add up
# to that of the whole mean, if each counts by its share of the rows.

# %%
stop("for micro_batch in", "scaled.item()")
row_by_row = {"micro_batches": lambda batch: [[row] for row in batch]}
assert walk_with(**row_by_row) == walk_with(), "4 / 2 + 16 / 2 = 10, as before"
unweighted = walk_with(" * (len(micro_batch) / len(batch))", **row_by_row)
print("w:", unweighted)
assert unweighted[0] == 1, "4 + 16: twice the gradient"
assert walk_with("scaled.backward()", "pass") == [3, 3, 3], "a loss alone moves nothing"

# %% [markdown]
# **4. Too long, or no number at all.** A gradient longer than `clip` is cut to it; and a loss or a gradient that is not
# finite must not reach the weights.

# %%
stop("norm = ", "step skipped")
assert walk_with(clip=5.0)[0] == 2.5, "10 becomes 5"
unclipped = walk_with("parameters, clip", "parameters, math.inf", clip=5.0)
assert unclipped == walk_with(), "the whole 10"


def divided(model, rows):
    return squared_error(model, rows) / 0


try:
    walk_with(loss=divided)
except loop.Diverged as error:
    message = str(error)
print(message)
assert "step skipped" in message, "the weights are those of the last good step"
check = "not (math.isfinite(total) and norm.isfinite())"
lost = walk_with(check, "False", loss=divided)
assert not np.isfinite(lost).any(), "every weight lost"

# %% [markdown]
# **5. The step, and the caller's turn.** `fit` is a generator: nothing happens until someone asks for a step, and
# between two steps the caller logs, evaluates, saves, or stops. Hand over before the step, and it evaluates the weights
# of the step before; the last step is never taken at all, if the caller stops there.

# %%
stop("optimizer.step()", "multiplier)")
last = source[source.index("        optimizer.step()") :]
step_line, yield_line = last.rstrip().split("\n")
early = walk_with(last, f"{yield_line}\n{step_line}\n")
print("w:", early)
assert early == [3, 2, 1.5], "a step behind"

# %% [markdown]
# The whole of it at once, with its docstring. Let `clip_grad_norm_` and `optimizer.step()` change places: what is clipped
# now? Leave out the factor `len(micro_batch) / len(batch)`: by how much is the gradient of four equal parts too large?

# %%
chapter("loop", "fit")

# %% [markdown]
# And sentences? A batch is a list of row numbers, the tokens wait in `TextColumns`, and the loss fetches what it needs:
# `u, v = encoder(*pairs.batch(rows)).chunk(2)`.

# %%
from minisbert.core.data import TextColumns
from minisbert.core.encoder import SentenceEncoder

encoder = SentenceEncoder.load(TINY)
pairs = TextColumns(
    encoder.tokenizer,
    [["a cat", "the dog runs", "a ball"], ["the cat", "a dog", "the red ball"]],
)
ids, mask = pairs.batch([2, 0])
u, v = encoder(ids, mask).chunk(2)
print(ids, f"u {tuple(u.shape)}, v {tuple(v.shape)}", sep="\n")
first, second = (encoder.tokenizer.tokens(ids[row])[1:4] for row in (0, 2))
assert first == ["a", "ball", "[SEP]"], "first all first sentences,"
assert second == ["the", "red", "ball"], "then all second ones: one forward for both"

# %% [markdown]
# How rows become batches: `length_grouped_batches` sorts within windows only. What would training lose if it sorted all
# rows? (It is a piece of lesson 25.)

# %%
chapter("data", "top", "TextColumns", "length_grouped_batches")

# %% [markdown]
# ## The bill of a step
#
# Will it fit in memory, and how long will it take? You can tell before you run it. A multiplication and an addition are two
# operations. Backward costs twice as much as forward: each product has two factors, and the gradient of each is a
# product of the same size. In memory there are the weights, a gradient for each, and AdamW's m and v, the *moments*;
# and what backward needs again, such as T probabilities for each token, head and layer. For B rows of T tokens, D
# columns, F columns of the feed-forward block, H heads and L layers, four bytes a number, and without the pooler's
# parameters, since no vector needs the pooler:
#
#     forward  =  2 L B T ( 4 D D  +  2 D F  +  2 T D )           backward  =  2 forward
#     weights  =  gradients  =  4 parameters (lesson 07)          moments  =  2 weights
#     probabilities  =  4 L B H T T

# %%
from lessons.by_hand.sheet import training_step
from minisbert.core.weights import BertConfig

minilm = BertConfig(30_522, 384, 6, 12, 1536, 512)
bill = training_step(minilm, B=32, T=64)
print({name: f"{value:,}" for name, value in bill.items()})
dense, between = 4 * 384 * 384 + 2 * 384 * 1536, 2 * 64 * 384
assert bill["forward"] == 2 * 6 * 32 * 64 * (dense + between), "45 billion"
assert bill["weights"] == 4 * (22_713_216 - 384 * 384 - 384), "without a pooler"
assert dense > 16 * 2 * 128 * 384, "for sentences the time follows the tokens"

# %% [markdown]
# ## Ten steps, and the reference's
#
# The tiny model (two layers, width 24, random numbers in every parameter), five pairs with scores, float64, dropout
# off. transformers and torch did the same ten steps when the project was made, and every loss was written down. We take
# them twice: with `loop.adamw`, which is torch's own, and with `AdamW` of `lessons/by_hand/`, which calls `adamw_step`.

# %%
from safetensors.torch import load_file

golden = load_file(GOLDEN / "trace.safetensors")
five = list(range(5))  # the one batch of the ten steps


def pair_loss(encoder, rows):
    """(cosine - score)^2, the mean over these pairs."""
    u = encoder(golden["first.ids"][rows], golden["first.mask"][rows])
    v = encoder(golden["second.ids"][rows], golden["second.mask"][rows])
    return losses.cosine_mse_loss(u, v, golden["targets"][rows].to(u.dtype))


def ten_steps(make):
    """Ten losses of the tiny model; ``make`` makes the optimizer."""
    encoder = SentenceEncoder.load(TINY).double()
    named = encoder.named_parameters()
    parameters = [parameter for name, parameter in named if "pooler" not in name]
    optimizer = make(parameters, lr=1e-2, weight_decay=0.01)
    schedule = partial(loop.linear_schedule, warmup=3, total=12)
    steps = fit(encoder, pair_loss, [five] * 10, optimizer, schedule)
    return [step.loss for step in steps]


trace = ten_steps(loop.adamw)
theirs = golden["losses"]
for step in range(10):
    print(f"step {step}  loss {trace[step]:.12f}  reference {theirs[step].item():.12f}")
assert largest_difference(trace, theirs) < 1e-9, "ten losses, to nine digits"
assert largest_difference(ten_steps(AdamW), theirs) < 1e-9, "and with our own step"

# %% [markdown]
# Why ten? The first loss proves the forward pass. The second is the same one, because the warm-up begins at rate 0. The
# third is the first that needs gradients and an optimizer to be right, and any error in them grows from step to step.
# Ten losses that agree to nine digits leave very little room.
#
# **Exercise 1.** Ten losses agree. Which mistakes could still hide? (What do these five pairs, in eval mode, never
# do?)
#
# ## The figure
#
# Left: the three schedules that `train()` offers; they differ in how the rate falls after the warm-up. Right:
# ten losses, ours on the reference's, and with two mistakes planted.
#
# ![Schedules, and ten losses](figures/11_training.png)

# %%
from lessons.mistakes import MISTAKES, planted
from minisbert.training.schedules import SCHEDULES

wrong = {}
for name, mistake in MISTAKES.items():
    if mistake.target in ("loop.linear_schedule", "loop.adamw"):
        with planted(mistake):
            wrong[name] = ten_steps(loop.adamw)


def draw(plt):
    drawn, (left, right) = plt.subplots(
        1, 2, figsize=(8.4, 2.7), layout="constrained", width_ratios=(2, 3)
    )
    shades = ("#1f4e79", "#3b7ab8", "#8bb8de")
    for (name, schedule), shade in zip(SCHEDULES.items(), shades, strict=True):
        shares = [schedule(step, 20, 200) for step in range(201)]
        left.plot(shares, color=shade, label=name)
    left.set(xlabel="step", ylabel="share of the peak rate", title="Three schedules")
    left.legend(frameon=False)
    open_circle = {"color": "#c0392b", "markersize": 7, "fillstyle": "none"}
    right.plot(theirs, "o", **open_circle, label="reference")
    right.plot(trace, "-", color="#1f4e79", label="ours")
    for name, style in (("warm-up off by one", "--"), ("no bias correction", ":")):
        right.plot(wrong[name], style, color="#888888", label=name)
    right.set(xlabel="step", ylabel="loss", title="Ten losses", ylim=(-0.02, 0.5))
    right.legend(frameon=False, ncols=2, fontsize=8)
    return drawn


figure("11_training", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** Look at the first two losses of the trace. Why are they equal? And was that step for nothing: is m still 0
# after it?

# %%
guess = predict("11.1", "After a step at rate 0, is m still 0?", ["yes", "no"])

# %%
print(trace[:3])
assert trace[0] == trace[1], "step 0 of a warm-up has rate 0: nothing moves"
moved, m, _ = adamw_step(p, g, torch.zeros_like(p), torch.zeros_like(p), step=1, lr=0.0)
print(moved, m)
assert torch.equal(moved, p), "the parameters stay,"
assert m.all(), "but the averages have seen their first gradient"
guess.answer("no")

# %% [markdown]
# **2.** All gradients, of all steps, are a thousand times as large. What does AdamW do?

# %%
guess = predict(
    "11.2",
    "Gradients a thousand times as large: AdamW's steps ...",
    ["are a thousand times as large", "blow up", "stay as they are"],
)


# %%
def walk(gradients):
    """The steps that one parameter takes, at lr 0.1 without decay."""
    x, m, v = torch.zeros(1, dtype=torch.float64), torch.zeros(1), torch.zeros(1)
    steps = []
    for step, gradient in enumerate(gradients, start=1):
        g = torch.tensor([gradient], dtype=torch.float64)
        new, m, v = adamw_step(x, g, m, v, step, lr=0.1, weight_decay=0.0)
        steps.append((x - new).item())
        x = new
    return np.array(steps)


gradients = np.array([1.0, 2.0, -1.0, 0.5, 1.5])
small, large = walk(gradients), walk(1000 * gradients)
print(small, large, sep="\n")
assert largest_difference(small, large) < 1e-8, "nothing else: the scale cancels"
guess.answer("stay as they are")

# %% [markdown]
# **3.** Then what is clipping good for? One gradient among many is a hundred times too large: a broken row. What
# happens to the steps after it, without and with clipping to 1?

# %%
guess = predict(
    "11.3",
    "Without clipping, the steps after the spike are ...",
    ["larger", "as before", "smaller"],
)

# %%
spike = np.array([1.0] * 5 + [100.0] + [1.0] * 20)
free, clipped = walk(spike), walk(np.minimum(spike, 1.0))
print("without", free.round(3), "with", clipped.round(3), sep="\n")
assert abs(clipped - 0.1).max() < 1e-6, "with clipping every step is lr"
assert free[5] < 0.1, "without it even the spike's own step is small"
assert 0.1 / 9 < free[-1] < 0.1 / 7, "20 steps later they are an eighth"
guess.answer("smaller")

# %% [markdown]
# m forgets a tenth of that gradient in each step, v only a thousandth of its square. Clipping keeps it out of both.
#
# **Exercise 2.** MiniLM has 22.7 million parameters. How many bytes does AdamW remember from one step to the next, and
# how many are there with the weights and the gradients?
#
# ## Break it
#
# The known mistakes in the schedule and in the choice of the optimizer, planted in the ten steps: how far the losses
# are from the reference, and the last loss.

# %%
for name, found in {"the right code": trace, **wrong}.items():
    off = largest_difference(found, theirs)
    print(f"{name:32} {off:8.1e}   last loss {found[-1]:.4f}")
    assert (off > 1e-5) == (name in wrong), "far outside 1e-9"
    assert found[0] > 0.26 > 0.1 > found[-1], "and yet all of them train"
assert {"warm-up off by one", "no bias correction", "weight decay coupled"} <= {*wrong}

# %% [markdown]
# And those inside AdamW's step, on one parameter that is 1 and gets the gradient 4 three times, lr 0.1, decay 0.01. By
# hand: the decay takes 0.001, the step 0.1, so 0.899 after the first. *decay without lr* is not a blunder by itself: it
# is the paper's own rule at a schedule of 1. It is a mistake wherever the decay was chosen for PyTorch's.


# %%
def three_steps():
    """The parameter after each of three steps."""
    x, m, v = torch.ones(1, dtype=torch.float64), torch.zeros(1), torch.zeros(1)
    found = []
    g = torch.tensor([4.0], dtype=torch.float64)
    for step in (1, 2, 3):
        x, m, v = loop.adamw_step(x, g, m, v, step, lr=0.1)
        found.append(round(x.item(), 6))
    return found


right = three_steps()
print(f"{'the right code':24} {right}")
assert right[0] == 0.899, "by hand"
for name, first in (
    ("decay in the gradient", 0.9),  # divided by the root like the rest, it is gone
    ("decay without lr", 0.89),  # 0.01 of the parameter in each step
    ("averages not corrected", 0.682772),  # 0.999 - 0.1 * 0.4 / sqrt(0.016)
    ("step counted from 0", 0.899),  # right once, then behind
):
    with planted(MISTAKES[name]):
        found = three_steps()
    print(f"{name:24} {found}")
    assert found[0] == first, name
    assert found != right, name

# %% [markdown]
# Would the score have found these mistakes? See lesson 12. (In torch a `Dataset` holds rows, a `DataLoader` draws
# batches of them, and a collator makes one tensor of a batch. Sheet 30 has mistakes with all of them, from notebooks.)

# %% [markdown]
# ## Exercises
#
# Exercises 1 and 2 stand above; `python -m lessons.check answer 11 1` gives a hint for the first, then the answer.
#
# **Exercise 3.** Graded: the losses, the schedule, AdamW's step, the loop, the bill of a step:
# `python -m lessons.check start 11`, `run 11`, `hint 11`.
#
# ## Sources
#
# - Kingma and Ba 2015, *Adam*, algorithm 1 and section 3 (bias correction).
# - Loshchilov and Hutter 2019, *Decoupled weight decay regularization*, algorithm 2, line 12; for the other rule, the
#   documentation of torch.optim.AdamW.
# - Devlin et al. 2019, *BERT*, appendix A.2: warm-up and linear decay. Pascanu et al. 2013, *On the difficulty of
#   training recurrent neural networks*: clipping.
# - [docs/sources.md](../docs/sources.md): the papers behind this project, and which of them we have read.
#
# ## What you have now
#
# `python -m lessons.check mine 11` trains ten steps with your schedule and your AdamW.
#
# You have a training loop of which you know what each line is for, and whose first ten losses are the reference's.
# Next: [what one number is worth](12_what_one_number_is_worth.py).
