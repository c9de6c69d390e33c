# %% [markdown]
# # Lesson 12: the training loop, and what a seed is
#
# Steps through `minisbert/core/loop.py`, `minisbert/core/data.py` and `minisbert/training/run_folder.py`. About 100
# minutes. You will take one step of the loop apart, match ten losses of the reference, stop a run and go on to the same
# bits, and train eighty small heads to see what one number is worth.

# %%
import inspect
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from course import GOLDEN, TINY, figure, largest_difference, predict
from safetensors.torch import load_file

from lessons.mistakes import MISTAKES, planted
from minisbert.checkpoints.layout import find_model
from minisbert.core import loop, losses, metrics
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.heads import siamese
from minisbert.core.loop import AdamW, adamw_step, fit
from minisbert.data.datasets import load_scored_pairs
from minisbert.system.devices import random_state, set_random_state
from minisbert.training.run_folder import RunState, load_state, save_state
from minisbert.training.train import SCHEDULES

threads = torch.get_num_threads()
torch.set_num_threads(1)  # matrices this small gain nothing from a second core

# %% [markdown]
# ## The question
#
# A loss says how wrong the model is, its gradient says in which direction each of 22 million numbers should go. How
# far? Too far, and what the model knew is gone; not far enough, and nothing happens. And when the loop has run and the
# score is four tenths better than yesterday's: is the model better?
#
# ## The formula
#
# What turns a gradient into a step is an **optimizer**. Ours is **AdamW**: for each parameter p with gradient g, at
# step t = 1, 2, ..., with the learning rate lr and the **weight decay** w,
#
#     m = 0.9 m + 0.1 g                  a running mean of the gradient, 0 at the start
#     v = 0.999 v + 0.001 g^2            and of its square
#     p = p (1 - lr w)  -  lr * ( m / (1 - 0.9^t) )  /  ( sqrt( v / (1 - 0.999^t) ) + 1e-8 )
#
# Before that comes **clipping**: with |g| the length of all gradients together and c the bound, g becomes
# g * min(1, c / |g|). And lr itself moves, by a **schedule**. With s steps done of S, and a **warm-up** of W:
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
p, g = (
    torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64),
    torch.tensor([4.0, 0.01, -1000.0], dtype=torch.float64),
)
m = v = torch.zeros(3, dtype=torch.float64)
after, m, v = adamw_step(p, g, m, v, step=1, lr=0.1, weight_decay=0.0)
print("p", after, "m", m, "v", v, sep="\n")
assert largest_difference(m, [0.4, 0.001, -100]) < 1e-12, "a tenth of the gradient"
assert largest_difference(v, [0.016, 1e-7, 1000]) < 1e-9, "a thousandth of its square"
assert largest_difference(after, [0.9, 0.9, 1.1]) < 1e-6, (
    "0.4 / 0.1 = 4, sqrt(0.016 / 0.001) = 4: each moves by lr"
)

# %% [markdown]
# That is the point of Adam: the gradient's size cancels, its direction and its steadiness remain.
#
# The decay in the formula above is PyTorch's. In the paper (algorithm 2, line 12) the decay is share * w * p,
# without lr. So the same `weight_decay=0.01` is, at lr 2e-5, fifty thousand times weaker
# here than there. Both are AdamW; only one of them is what `torch.optim.AdamW` does.
#
# The schedule, and the clipping:

# %%
print([round(loop.linear_schedule(step, warmup=2, total=6), 2) for step in range(7)])
assert [loop.linear_schedule(step, 2, 6) for step in range(7)] == [
    0,
    0.5,
    1,
    0.75,
    0.5,
    0.25,
    0,
], "up, then down"
parameter = torch.nn.Parameter(p.clone())
parameter.grad = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
print(norm.item(), parameter.grad)
assert norm == 5, "sqrt(9 + 16)"
assert largest_difference(parameter.grad, [0.6, 0.8, 0]) < 1e-6, (
    "the same direction, length 1"
)

# %% [markdown]
# ## The loop
#
# Those were the parts; here is the whole. There is no other loop in this project: `python -m minisbert.train` runs this
# one, and so does every lesson that trains.
#
# ![One turn of the training loop](drawings/loop.svg)

# %%
print(inspect.getsource(fit))

# %% [markdown]
# It knows nothing about sentences. A model, a loss, batches: anything will do, even one weight w = 3 and two rows,
# x = 1 and x = 2, for which w x should be x. By hand:
#
#     loss      ( (3 - 1)^2 + (6 - 2)^2 ) / 2      =  (4 + 16) / 2  =  10
#     gradient  ( 2 * 2 * 1  +  2 * 4 * 2 ) / 2    =  (4 + 16) / 2  =  10
#
# The middle of the loop first, without the loop: what does `backward` leave behind?

# %%
x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)  # two rows
model = torch.nn.Linear(1, 1, bias=False).double()
torch.nn.init.constant_(model.weight, 3.0)


def squared_error(model, rows):
    """The mean over these rows, as `fit` wants it."""
    return losses.mse_loss(model(x[rows]).squeeze(1), x[rows].squeeze(1))


loss = squared_error(model, [0, 1])
loss.backward()
print(
    f"loss {loss.item()}, gradient {model.weight.grad.item()}, weight {model.weight.item()}"
)
assert (loss.item(), model.weight.grad.item()) == (10, 10), "by hand"
assert model.weight.item() == 3, "backward computes gradients and moves nothing"
squared_error(model, [0, 1]).backward()
assert model.weight.grad.item() == 20, (
    "it adds to what is there: without zero_grad each step drags the last ones along"
)
model.zero_grad()
for row in (0, 1):
    (squared_error(model, [row]) * (1 / 2)).backward()
    print(f"after row {row}: gradient {model.weight.grad.item()}")
assert model.weight.grad.item() == 10, (
    "and that is of use: micro-batches, one after the other, give the whole gradient"
)

# %% [markdown]
# So a batch that is too large for the memory is cut into **micro-batches**. Now the same step by `fit`, with the
# gradient clipped to 5. It is a generator, so nothing happens until someone asks for a step, and between two steps it
# is the caller's turn: to log, to evaluate, to save, to stop.

# %%
optimizer = loop.adamw([model.weight], lr=0.1)
steps = fit(
    model,
    squared_error,
    [[0, 1], [0, 1], [1, 0]],
    optimizer,
    schedule=lambda step: 1.0,
    clip=5.0,
)
assert model.weight.item() == 3, "no one has asked yet"
step = next(steps)
moments = optimizer.state[model.weight]
print(
    step,
    f"gradient {model.weight.grad.item():.4f}, m {moments['exp_avg'].item():.4f}",
    sep="\n",
)
print(f"v {moments['exp_avg_sq'].item():.4f}, weight {model.weight.item():.4f}")
assert (step.number, step.batch, step.loss, step.multiplier) == (1, [0, 1], 10, 1), (
    "what the step reports"
)
assert abs(model.weight.grad.item() - 5) < 1e-5, (
    "zeroed, computed, clipped, and left there to be looked at"
)
assert abs(moments["exp_avg"].item() - 0.5) < 1e-6, "m: a tenth of it"
assert abs(moments["exp_avg_sq"].item() - 0.025) < 1e-6, "v: a thousandth of its square"
assert abs(model.weight.item() - 2.9) < 1e-6, (
    "0.5 / 0.1 = 5, sqrt(0.025 / 0.001) = 5: moved by lr, towards 1"
)
assert next(steps).number == 2, (
    "on we go; and the third step is never made, because no one asks for it"
)

# %% [markdown]
# One more thing, and it has saved many a night's work: a loss that is not a number must not reach the weights.

# %%
before = model.weight.item()
try:
    next(
        fit(
            model,
            lambda model, rows: squared_error(model, rows) / 0,
            [[0, 1]],
            optimizer,
            lambda step: 1.0,
        )
    )
except loop.Diverged as error:
    message = str(error)
print(message)
assert "step skipped" in message, "fit says so, and stops before the step"
assert model.weight.item() == before, "the weights are those of the last good step"

# %% [markdown]
# `loop.adamw` is torch's own AdamW, which takes the steps of `adamw_step` faster. Five steps of both, with decay. (A
# loss that is a dot product with g has the gradient g: so we can choose the gradients.)

# %%
generator = torch.Generator().manual_seed(0)
theirs = torch.nn.Linear(3, 1, bias=False).double()
theirs.weight.data[0] = p
gradients = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(5)]
optimizer = loop.adamw([theirs.weight], lr=0.1, weight_decay=0.01)
ours, m, v = p, torch.zeros_like(p), torch.zeros_like(p)
for step in fit(
    theirs,
    lambda model, g: model(g).sum(),
    gradients,
    optimizer,
    schedule=lambda step: 1.0,
):
    ours, m, v = adamw_step(
        ours, step.batch, m, v, step.number, lr=0.1, weight_decay=0.01
    )
    print(step.number, ours.tolist())
assert largest_difference(ours, theirs.weight[0]) < 1e-12, (
    "torch's optimizer, written out"
)

# %% [markdown]
# And sentences? A batch is a list of row numbers, the tokens wait in `TextColumns`, and the loss fetches what it needs:
# `u, v = encoder(*pairs.batch(rows)).chunk(2)`.

# %%
encoder = SentenceEncoder.load(TINY)
pairs = TextColumns(
    encoder.tokenizer,
    [["a cat", "the dog runs", "a ball"], ["the cat", "a dog", "the red ball"]],
)
ids, mask = pairs.batch([2, 0])
u, v = encoder(ids, mask).chunk(2)
print(ids, f"u {tuple(u.shape)}, v {tuple(v.shape)}", sep="\n")
assert encoder.tokenizer.tokens(ids[0])[1:3] == ["a", "ball"], (
    "first all first sentences,"
)
assert encoder.tokenizer.tokens(ids[2])[1:4] == ["the", "red", "ball"], (
    "then all second ones: one forward for both"
)

# %% [markdown]
# ## Ten steps, and the reference's
#
# The tiny model (two layers, width 24, random numbers in every parameter), five pairs with scores, float64, dropout
# off. transformers and torch did the same ten steps when the project was made, and every loss was written down.

# %%
golden = load_file(GOLDEN / "trace.safetensors")
five = list(range(5))  # the one batch of the ten steps


def pair_loss(encoder, rows):
    """(cosine - score)^2, the mean over these pairs."""
    u, v = (
        encoder(golden[f"{side}.ids"][rows], golden[f"{side}.mask"][rows])
        for side in ("first", "second")
    )
    return losses.cosine_mse_loss(u, v, golden["targets"][rows].to(u.dtype))


def ten_steps(make):
    """Ten losses of the tiny model; ``make`` makes the optimizer."""
    encoder = SentenceEncoder.load(TINY).double()
    parameters = [
        parameter
        for name, parameter in encoder.named_parameters()
        if "pooler" not in name
    ]
    optimizer = make(parameters, lr=1e-2, weight_decay=0.01)
    steps = fit(
        encoder,
        pair_loss,
        [five] * 10,
        optimizer,
        lambda step: loop.linear_schedule(step, warmup=3, total=12),
    )
    return [step.loss for step in steps]


trace = ten_steps(loop.adamw)
for step, (ours, theirs) in enumerate(
    zip(trace, golden["losses"].tolist(), strict=True)
):
    print(f"step {step}  loss {ours:.12f}  reference {theirs:.12f}")
assert largest_difference(trace, golden["losses"]) < 1e-9, "ten losses, to nine digits"
assert largest_difference(ten_steps(AdamW), golden["losses"]) < 1e-9, (
    "and with AdamW written out"
)

# %% [markdown]
# Why ten? The first loss proves the forward pass. The second needs gradients and an optimizer to be right, and any
# error in them grows from step to step. Ten losses that agree to nine digits leave very little room.
#
# **Exercise 1.** Ten losses agree. Which mistakes could still hide? (What do these five pairs, in eval mode, never
# do?)
#
# ## Stop, and go on to the same bits
#
# A run of two days stops after one: a power cut. What must be on disk so that the second day gives the same numbers as
# if nothing had happened? Dropout is on now, as in a real run.


# %%
def begin(seed):
    """The tiny model, ready to train; its dropout draws from torch's generator."""
    model = SentenceEncoder.load(TINY).train()
    for parameter in model.parameters():
        parameter.data = (
            parameter.data.clone()
        )  # as train does: where a number lies in memory can decide its last bit
    trained = [
        parameter
        for name, parameter in model.named_parameters()
        if "pooler" not in name
    ]
    torch.manual_seed(seed)
    return model, loop.adamw(trained, lr=1e-3, weight_decay=0.01)


def advance(model, optimizer, steps, done=0):
    """The losses of the next ``steps`` steps on the five pairs, after ``done`` others."""
    return [
        step.loss
        for step in fit(
            model, pair_loss, [five] * steps, optimizer, lambda step: 1.0, start=done
        )
    ]


cpu = torch.device("cpu")
model, optimizer = begin(seed=0)
straight = advance(model, optimizer, 8)  # never stopped

with tempfile.TemporaryDirectory() as folder:
    state = Path(folder) / "state"
    model, optimizer = begin(seed=0)
    advance(model, optimizer, 4)
    save_state(
        state,
        model,
        optimizer,
        random_state(cpu),
        RunState(step=4),
        data="the five pairs",
    )
    print(
        [
            f"{file.name}, {file.stat().st_size:,} bytes"
            for file in sorted(state.iterdir())
        ]
    )

    continued = {}
    for kept in ("everything", "no random state", "no moments", "weights only"):
        model, optimizer = begin(seed=99)  # the next day: another process, another seed
        progress, randomness = load_state(
            state, model, optimizer, data="the five pairs"
        )
        if kept in ("everything", "no moments"):
            set_random_state(randomness, cpu)
        if kept in ("no moments", "weights only"):
            optimizer.state.clear()
        continued[kept] = advance(
            model, optimizer, 8 - progress.step, done=progress.step
        )

print(f"{'never stopped':16}", *(f"{loss:.8f}" for loss in straight[4:]))
for kept, found in continued.items():
    print(f"{kept:16}", *(f"{loss:.8f}" for loss in found))
assert continued["everything"] == straight[4:], "equal, not nearly equal: every bit"
assert continued["no moments"][0] == straight[4], (
    "the first loss needs the weights and the dropout only"
)
assert continued["no moments"][1] != straight[5], (
    "the next one shows that AdamW had forgotten"
)
assert continued["no random state"][0] != straight[4], (
    "other dropout masks, another loss at once"
)
assert continued["weights only"][0] != straight[4], "what most scripts save"

# %% [markdown]
# None of the wrong ways looks wrong. The losses are in the right range, the run ends well, and the numbers in the paper
# cannot be made again. `python -m minisbert.train --resume RUN` keeps all of it, with the order of the rows as well.
#
# **Exercise 2.** `python -m minisbert.train --max-steps 20 --out runs/a`: press Ctrl-C half-way, `--resume runs/a`,
# and compare `metrics.jsonl` with that of a run that was never stopped. How would you show that they are equal?
#
# ## What a seed is
#
# A **seed** decides what chance decides: the first weights of a new head, the order of the rows, dropout's masks. To
# see what that does to a score we need many runs, so each must be short: MiniLM stays as it is, 480 pairs of STS-B
# become vectors once, and only the siamese head (|u - v|, u * v, u), then 256 and 1, is trained. A run takes a sixth of
# a second.

# %%
encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))
pairs, dev = (
    load_scored_pairs("stsb", "train")[::12],
    load_scored_pairs("stsb", "dev")[::6],
)
both = [*pairs, *dev]
vectors = encoder.encode(
    [pair.sentence1 for pair in both] + [pair.sentence2 for pair in both]
)
u, v = torch.from_numpy(vectors).chunk(2)  # (N, D) each, training rows first
targets = torch.tensor([pair.score / 5 for pair in both])
N, width = len(pairs), u.shape[1]


def head_loss(head, rows):
    return losses.mse_loss(head(u[rows], v[rows]).squeeze(-1), targets[rows])


def run(first_weights, order, schedule="linear"):
    """Train a head from these two seeds; Spearman x 100 on dev."""
    torch.manual_seed(first_weights)
    head = siamese(width)
    optimizer = loop.adamw(list(head.parameters()), lr=5e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(order)
    batches = [
        rows
        for _ in range(5)
        for rows in length_grouped_batches([1] * N, 32, generator)
    ]  # five epochs
    share = partial(
        SCHEDULES[schedule], warmup=round(0.1 * len(batches)), total=len(batches)
    )
    for _ in fit(head, head_loss, batches, optimizer, share, clip=1.0):
        pass
    with torch.no_grad():
        return 100 * metrics.spearman(
            head(u[N:], v[N:]).squeeze(-1).numpy(), targets[N:].numpy()
        )


seeds = range(20)
scores = {
    schedule: np.array([run(seed, seed, schedule) for seed in seeds])
    for schedule in ("linear", "cosine")
}
alone = {
    "first weights": np.array([run(seed, 0) for seed in seeds[:10]]),
    "order of rows": np.array([run(0, seed) for seed in seeds[:10]]),
}
for name, found in (scores | alone).items():
    low, high = found.min(), found.max()
    print(
        f"{name:14} mean {found.mean():.2f}  deviation {found.std(ddof=1):.2f}  from {low:.2f} to {high:.2f}"
    )
plain = 100 * metrics.spearman((u[N:] * v[N:]).sum(1).numpy(), targets[N:].numpy())
print(f"the plain cosine of the same vectors: {plain:.2f}")
assert run(3, 3) == scores["linear"][3], "the same seed, the same bits"
assert np.ptp(scores["linear"]) > 3, (
    "another seed, some other score: several points apart"
)
assert all(found.std(ddof=1) > 0.3 for found in alone.values()), (
    "and both the weights and the order do it"
)
assert plain > max(scores["linear"]), (
    "and no head that learned from 480 pairs is as good as none"
)

# %% [markdown]
# (480 pairs are few for 300,000 new numbers. The spread is what we are after here.)
#
# A mean of n runs is surer than one run, by the root of n: the standard deviation of the runs, divided by sqrt(n), is
# the **standard error** of their mean. (For the standard deviation of a sample one divides by n - 1: `ddof=1`.) Two
# means that are less than two standard errors apart may well be equal.
#
# Which schedule is better, linear or cosine? With one run each the answer depends on which seeds you drew.

# %%
wins = (scores["cosine"][:, None] > scores["linear"][None, :]).mean()
print(f"of all pairs of a cosine run and a linear run, cosine wins {100 * wins:.0f} %")
gain = scores["linear"] - scores["cosine"]  # seed by seed
unpaired = np.sqrt(sum(found.var(ddof=1) / len(found) for found in scores.values()))
paired = gain.std(ddof=1) / np.sqrt(len(gain))
print(
    f"linear is better by {gain.mean():.2f}; standard error {unpaired:.2f}, compared seed by seed {paired:.2f}"
)
assert 0.1 < wins < 0.45, "try each once, and you will often be told the opposite"
assert gain.mean() > 2 * paired, "twenty seeds can tell"
assert paired < 0.7 * unpaired, "and they tell more when both sides use the same seeds"

# %% [markdown]
# So: several seeds, the same on both sides, and the spread along with the mean. A mean of one run is no result. (And
# the seed is not a setting: the best of twenty is what chance gave, not what the method gives.)
#
# **Exercise 3.** Plot the mean of the first n of the twenty scores over n. From which n on would you have believed
# it?
#
# **Exercise 4.** All of MiniLM on all of STS-B: `python -m minisbert.train --seed 1 --out runs/1`, and two seeds
# more. How wide is the spread of the test Spearman now? What would a paper have to show to claim three tenths?
#
# ## The figure
#
# Left: the three schedules that `train` offers. Middle: ten losses, ours on the reference's, and with two mistakes
# planted. Right: a line for each seed, the mean in red. Most lines fall, and yet the two columns overlap.
#
# ![Schedules, ten losses, heads by seed](figures/12_training.png)

# %%
wrong = {}
for name, mistake in MISTAKES.items():
    if mistake.target in ("loop.linear_schedule", "loop.adamw"):
        with planted(mistake):
            wrong[name] = ten_steps(loop.adamw)


def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(8.4, 2.7), layout="constrained", width_ratios=(2, 3, 2)
    )
    shades = ("#1f4e79", "#3b7ab8", "#8bb8de")
    for (name, schedule), shade in zip(SCHEDULES.items(), shades, strict=True):
        left.plot(
            [schedule(step, 20, 200) for step in range(201)], color=shade, label=name
        )
    left.set(xlabel="step", ylabel="share of the peak rate", title="Three schedules")
    left.legend(frameon=False)
    middle.plot(
        golden["losses"],
        "o",
        color="#c0392b",
        markersize=7,
        fillstyle="none",
        label="reference",
    )
    middle.plot(trace, "-", color="#1f4e79", label="ours")
    for name, style in (("warm-up off by one", "--"), ("no bias correction", ":")):
        middle.plot(wrong[name], style, color="#888888", label=name)
    middle.set(xlabel="step", ylabel="loss", title="Ten losses", ylim=(-0.02, 0.5))
    middle.legend(frameon=False, ncols=2, fontsize=8)
    right.plot(
        [0, 1], list(scores.values()), color="#3b7ab8", linewidth=0.7, antialiased=False
    )
    right.plot(
        [0, 1],
        [found.mean() for found in scores.values()],
        color="#c0392b",
        linewidth=3,
    )
    right.set_xticks(range(len(scores)), scores)
    right.set(xlim=(-0.3, 1.3), ylabel="dev Spearman x 100", title="Twenty seeds each")
    return drawn


figure("12_training", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** Look at the first two losses of the trace. Why are they equal? And was that step for nothing: is m still 0
# after it?

# %%
guess = predict("12.1", "After a step at rate 0, is m still 0?", ["yes", "no"])

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
    "12.2",
    "Gradients a thousand times as large: AdamW's steps ...",
    ["are a thousand times as large", "blow up", "stay as they are"],
)


# %%
def walk(gradients):
    """The steps that one parameter takes, at lr 0.1 without decay."""
    x, m, v = torch.zeros(1, dtype=torch.float64), torch.zeros(1), torch.zeros(1)
    steps = []
    for step, gradient in enumerate(gradients, start=1):
        new, m, v = adamw_step(
            x,
            torch.tensor([gradient], dtype=torch.float64),
            m,
            v,
            step,
            lr=0.1,
            weight_decay=0.0,
        )
        steps.append((x - new).item())
        x = new
    return np.array(steps)


gradients = np.array([1.0, 2.0, -1.0, 0.5, 1.5])
print(walk(gradients), walk(1000 * gradients), sep="\n")
assert largest_difference(walk(gradients), walk(1000 * gradients)) < 1e-8, (
    "nothing else: the scale cancels"
)
guess.answer("stay as they are")

# %% [markdown]
# **3.** Then what is clipping good for? One gradient among many is a hundred times too large: a broken row. What
# happens to the steps after it, without and with clipping to 1?

# %%
guess = predict(
    "12.3",
    "Without clipping, the steps after the spike are ...",
    ["larger", "as before", "smaller"],
)

# %%
spike = np.array([1.0] * 5 + [100.0] + [1.0] * 20)
free, clipped = walk(spike), walk(np.minimum(spike, 1.0))
print("without", free.round(3), "with", clipped.round(3), sep="\n")
assert abs(clipped - 0.1).max() < 1e-6, "with clipping every step is lr"
assert free[5] < 0.1, "without it even the spike's own step is small,"
assert free[-1] < 0.02, "and 20 steps later they are an eighth"
guess.answer("smaller")

# %% [markdown]
# One broken row, and the steps after it shrink; twenty steps later they are an eighth of what they should be. m forgets
# a tenth of that gradient in each step, v only a thousandth of its square. Clipping keeps it out of both.
#
# **Exercise 5.** Remove the warm-up from `run`. Better or worse, and by how many standard errors, paired?
#
# ## Break it
#
# The known mistakes in the schedule and in the choice of the optimizer, planted in the ten steps: how far the losses
# are from the reference, and the last loss.

# %%
print(
    f"{'the right code':32} {largest_difference(trace, golden['losses']):8.1e}   last loss {trace[-1]:.4f}"
)
for name, found in wrong.items():
    print(
        f"{name:32} {largest_difference(found, golden['losses']):8.1e}   last loss {found[-1]:.4f}"
    )
assert {
    "warm-up off by one",
    "no bias correction",
    "weight decay coupled",
} <= wrong.keys(), "they are among them"
assert (
    min(largest_difference(found, golden["losses"]) for found in wrong.values()) > 1e-5
), "far outside 1e-9"
assert max(found[-1] for found in wrong.values()) < 0.1, (
    "and yet all of them train: the loss falls from 0.27"
)

# %% [markdown]
# And those inside AdamW's step, on one parameter that is 1 and gets the gradient 4 three times, lr 0.1, decay 0.01. By
# hand: the decay takes 0.001, the step 0.1, so 0.899 after the first. *decay without lr* is not a blunder by itself: it
# is the paper's own rule at a schedule of 1. It is a mistake wherever the decay was chosen for PyTorch's.


# %%
def three_steps():
    """The parameter after each of three steps."""
    x, m, v = torch.ones(1, dtype=torch.float64), torch.zeros(1), torch.zeros(1)
    found = []
    for step in (1, 2, 3):
        x, m, v = loop.adamw_step(
            x, torch.tensor([4.0], dtype=torch.float64), m, v, step, lr=0.1
        )
        found.append(round(x.item(), 6))
    return found


right = three_steps()
print(f"{'the right code':24} {right}")
places = {}
for name in (
    "decay in the gradient",
    "decay without lr",
    "averages not corrected",
    "step counted from 0",
):
    with planted(MISTAKES[name]):
        places[name] = three_steps()
    print(f"{name:24} {places[name]}")
assert right[0] == 0.899, "by hand"
assert places["decay in the gradient"][0] == 0.9, (
    "divided by the root like the rest, the decay is gone"
)
assert places["decay without lr"][0] == 0.89, (
    "0.01 of the parameter in each step: after 100 steps two thirds are lost"
)
assert (
    abs(places["averages not corrected"][0] - (0.999 - 0.1 * 0.4 / 0.016**0.5)) < 1e-6
), "a step of 3.2 times lr"
assert (
    places["step counted from 0"][0] == right[0] != places["step counted from 0"][1]
), "right once, then behind"

# %% [markdown]
# Which of them would the score have told you? Take *warm-up off by one* to the heads: twenty seeds, each with the right
# code and with the wrong one.

# %%
with planted(MISTAKES["warm-up off by one"]):
    mistaken = np.array([run(seed, seed) for seed in seeds])
differences = mistaken - scores["linear"]  # (20,), seed by seed
error = differences.std(ddof=1) / len(seeds) ** 0.5  # of their mean
print(
    f"right {scores['linear'].mean():.2f}, wrong {mistaken.mean():.2f}; deviation {scores['linear'].std(ddof=1):.2f}"
)
print(f"by pairs of one seed {differences.mean():+.2f} ± {error:.2f}")
assert abs(differences.mean()) < scores["linear"].std(ddof=1), (
    "one run could not tell them apart"
)
assert differences.mean() > 2 * error, (
    "twenty pairs can, and the mistake is the better of the two"
)
assert largest_difference(mistaken, scores["linear"]) > 0, (
    "though every single number is another"
)
torch.set_num_threads(threads)

# %% [markdown]
# The bug *wins*: its warm-up learns a little more in each step, and in so short a run that may be what helps. No score
# would ever have sent anybody to look for it. A score says what works on these data, not what was meant, and it is a
# thermometer with an error of a degree; the ten losses are a ruler with nine digits. Use the ruler to find mistakes and
# the thermometer, many times, to compare methods.
#
# ## From the wild
#
# One more schedule, from a published notebook that trains SBERT: it tells the scheduler of `total - warmup` steps, as
# if the warm-up were counted beside them. It is counted in them. What does the rate do at the end?

# %%
total, warmup = 1000, 100
cut_short = [
    loop.linear_schedule(step, warmup, total - warmup) for step in range(total)
]
idle = sum(share == 0 for share in cut_short[1:])  # step 0 has rate 0 in any warm-up
last = loop.linear_schedule(total - 1, warmup, total)  # with the right total
print(
    f"{idle} of {total} steps at a rate of 0; with the right total the last one has {last:.4f} of the peak"
)
assert idle == 100, "the last tenth of the data is read, paid for, and not learned from"
assert max(cut_short) == 1, "and a plot of its first half shows nothing"

# %% [markdown]
# (In torch a `Dataset` holds rows, a `DataLoader` draws batches of them, and a collator makes one tensor of a batch.
# Adam's m and v, in optimizers' files, are called *moments*.)
#
# And three from the notebook of lesson 10. As printed it cannot run at all: a comma is missing, and its `Dataset` asks
# for a column that does not exist. The scores that it shows come from another state of the code. With those two put
# right, it asks the tokenizer for `padding="False"`. A string of five letters is true; luckily the library knows no
# padding of that name, and refuses. It makes a `DataCollatorWithPadding` and does not pass it to the `DataLoader`, so
# rows of several lengths meet in a batch and cannot be stacked: the first batch stops the run. And it defines a
# function that freezes layers, which is never called. No error message will ever mention that one. Lesson 10 counts
# what was frozen instead.

# %%
flag = "False"
print(bool(flag))
assert flag, "which is why a flag is a bool and not its name"
try:
    torch.utils.data.default_collate(
        [torch.tensor([101, 4937, 102]), torch.tensor([101, 102])]
    )
    raise AssertionError("two lengths in one batch")
except RuntimeError as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 12 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: the loss, the schedule, AdamW's step: `python -m lessons.check start 12`, `run 12`,
# `hint 12`.
#
# ## Sources
#
# - Kingma and Ba 2015, *Adam*, algorithm 1 and section 3 (bias correction).
# - Loshchilov and Hutter 2019, *Decoupled weight decay regularization*, algorithm 2; its line 12 decays by the schedule
#   times the decay, the documentation of torch.optim.AdamW by lr times the decay.
# - Devlin et al. 2019, *BERT*, appendix A.2: warm-up and linear decay. Pascanu et al. 2013, *On the difficulty of
#   training recurrent neural networks*: clipping.
# - Reimers and Gurevych 2017, *Reporting score distributions makes a difference*: seeds, and why one run is no result.
# - Dodge et al. 2020, *Fine-tuning pretrained language models*: first weights and order of rows, apart.
# - Every claim about a paper in this project, and how it was checked: [docs/sources.md](../docs/sources.md).
