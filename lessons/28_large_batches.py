# %% [markdown]
# # Lesson 28: large batches on a small machine
#
# Steps through `minisbert/training/gradient_cache.py`. Reading 45, chapter 5, pieces 70, exercises 110 minutes. You
# will cut a contrastive batch into parts without changing its gradient by a digit, see where the memory of training
# goes, and break dropout in a way that no error message shows.

# %%
import math

import torch
from course import TINY, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Lesson 11 had a trick for batches that do not fit into memory: compute one half, then the other, and add up the
# gradients. It works because the mean of a batch is made of the means of its halves. Supervised SimCSE trains on
# batches of 512, and there it does not work: each row is compared with all others. Half a batch has half the wrong
# answers to choose from. Must the machine be as large as the batch?
#
# ## The formula
#
# `v_i` are the vectors of row i, f the encoder with parameters theta, `L` any loss of all rows together. The chain
# rule, row by row:
#
#     v_i       =  f(x_i, theta)
#     dL/dtheta =  sum over i of   dL/dv_i  *  dv_i/dtheta
#
# The first factor needs all vectors and no encoder. The second needs the encoder and one row only. So:
#
#     1.  v_i for all rows, part by part; keep the vectors, throw the rest away
#     2.  L, and dL/dv_i for all rows: a matrix of the size of the vectors, the cache
#     3.  each part again, and backward from its rows of the cache
#
# That is **gradient caching** (Gao et al. 2021). Nothing in it is an approximation. Its price is a second forward:
# where a backward takes as long as two forwards, a step takes a third longer.
#
# ![Gradient caching in three steps](drawings/gradient_cache.svg)

# %% [markdown]
# ## The real function
#
# First the trick that does not work. Four sentences at right angles, each its own answer, temperature 1. All four
# together have three wrong answers each, two halves have one.

# %%
from minisbert.core import losses

threads = torch.get_num_threads()
torch.set_num_threads(min(threads, 2))
four = torch.eye(4)
whole = losses.simcse_loss(four, four, temperature=1.0).item()
halves = [losses.simcse_loss(half, half, temperature=1.0) for half in four.chunk(2)]
halves = torch.stack(halves).mean().item()
print(f"the batch {whole:.5f}, the mean of its halves {halves:.5f}")
assert abs(whole - math.log(1 + 3 / math.e)) < 1e-6, "-log( e / (e + 1 + 1 + 1) )"
assert abs(halves - math.log(1 + 1 / math.e)) < 1e-6, "-log( e / (e + 1) ): easier"

# %% [markdown]
# Now the one that does, on the smallest loss that compares rows: the product of two. One weight w = 3 is the encoder,
# the rows are x = 1 and x = 2, their "vectors" w x. By hand:
#
#     v          3 and 6                     loss  3 * 6 = 18  =  2 w^2
#     dL/dv      6 and 3                     each row's gradient is the other row
#     dL/dw      6 * 1  +  3 * 2  =  12      and 4 w = 12


# %%
from torch import nn

from minisbert.training import gradient_cache


class Weight(nn.Module):
    """Row i to w x_i, (b, 1, 1): rows, texts of a row, columns of a vector."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
        self.calls = []

    def forward(self, rows):
        self.calls.append((list(rows), torch.is_grad_enabled()))
        x = torch.tensor([1.0, 2.0], dtype=torch.float64)[rows]
        return (self.w * x)[:, None, None]


encoder = Weight()
vectors, states = gradient_cache.vectors_in_parts(encoder, [[0], [1]])
print("step 1:", vectors.flatten().tolist(), "has a graph:", vectors.requires_grad)
assert vectors.flatten().tolist() == [3, 6], "one after the other"
assert not vectors.requires_grad, "and no way back to w: only the vectors are left"

vectors.requires_grad_()
loss = vectors.prod()
loss.backward()
print(f"step 2: loss {loss.item()}, cache {vectors.grad.flatten().tolist()}")
assert vectors.grad.flatten().tolist() == [6, 3], "the encoder was not asked"

for part in range(2):
    own = slice(part, part + 1)
    gradient_cache.replay(encoder, [[part]], states[own], vectors.grad[own])
    print(f"step 3: after part {part} the gradient of w is {encoder.w.grad.item()}")
assert encoder.w.grad.item() == 12, "6 * 1, then 3 * 2 more"

# %% [markdown]
# The package puts the three steps behind a network. To the loss a `GradientCache` looks like any other: rows in,
# vectors out. Two words of torch for how it does that. A **leaf** is a tensor with which a computation begins, as far
# as autograd knows: `vectors` above was one, for it was detached from what made it. A **hook** is a function that
# torch calls when something happens, here when a leaf's gradient is there. So what comes out is a leaf, and a hook on
# it replays the parts. A hook runs in the middle of a backward, and there torch makes no graphs. But `replay` needs one
# of each part, so its loop stands in `with torch.enable_grad():`.

# %%
import inspect

from minisbert.training.gradient_cache import GradientCache

print(inspect.getsource(gradient_cache.compute_in_parts))
encoder = Weight()
loss = GradientCache(encoder, lambda rows: [[row] for row in rows])([0, 1]).prod()
loss.backward()
print("calls (rows, with a graph?):", encoder.calls)
assert encoder.w.grad.item() == 12, "the same number"
expected = [([0], False), ([1], False), ([0], True), ([1], True)]
assert encoder.calls == expected, "twice forward: this is the price"

# %% [markdown]
# **Exercise 1.** In `Weight`, let the loss be the mean of v^2, which compares nothing. Is the cache wrong there? Is
# it needed?
#
# **Exercise 2.** With batch normalisation a row's vector depends on the other rows of its part. Which line of the
# formula breaks?

# %% [markdown]
# ## Dropout
#
# A row goes through the encoder twice, and dropout draws a mask each time. But the gradient is that of the vectors of
# step 1: with another mask in step 3 it would be multiplied with the derivative of *another* network. So the state of
# the random generator is kept before each part and put back before its replay. A GPU has a generator of its own, so
# both functions ask for the device, which is that of the network's parameters or of the gradient:

# %%
from minisbert.system.devices import random_state, set_random_state

device = next(encoder.parameters()).device
state = random_state(device)
drawn = torch.rand(3)
assert not torch.equal(torch.rand(3), drawn), "the generator has moved on"
set_random_state(state, device)
assert torch.equal(torch.rand(3), drawn), "the same numbers again"

# %% [markdown]
# And `cut` makes the parts, in the order of the rows: as many rows as fit into so many tokens, if each is padded to
# the longest of its part.

# %%
lengths = [30, 50, 20, 40]
assert gradient_cache.cut([0, 1, 2, 3], lengths, tokens=100) == [[0, 1], [2, 3]], (
    "2 * 50 and 2 * 40: with row 2 the first would be 3 * 50"
)

# %% [markdown]
# The tiny model, twelve pairs in parts, float64, dropout on. For the reference we draw the masks part by part too, but
# keep all graphs and make one ordinary backward.

# %%
from minisbert.core.data import TextColumns
from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.base_loss import VectorNetwork
from minisbert.training.gradient_cache import cut

pairs = load_scored_pairs("stsb", "dev")
texts = [[pair.texts[side] for pair in pairs[:12]] for side in (0, 1)]
model = SentenceEncoder.load(TINY).double().train()
columns = TextColumns(model.tokenizer, texts)
network = VectorNetwork(model, columns)  # row numbers to (B, 2, D)
rows = list(range(12))


def in_batch_loss(vectors):
    """SimCSE's loss of pairs, (B, 2, D)."""
    return losses.simcse_loss(*vectors.unbind(1))


def gradients(make_vectors):
    """The loss from seed 0, and all gradients in one long vector."""
    network.zero_grad()
    torch.manual_seed(0)
    loss = in_batch_loss(make_vectors())
    loss.backward()
    found = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return loss.item(), torch.cat(found)


cached = GradientCache(network, lambda rows: cut(rows, columns.lengths, tokens=100))
parts = cached.divide(rows)
expected_loss, expected = gradients(lambda: torch.cat([network(p) for p in parts]))
found_loss, found = gradients(lambda: cached(rows))
difference = largest_difference(found, expected)
print(f"{len(parts)} parts: loss {found_loss:.12f}, one graph {expected_loss:.12f}")
print(f"largest gradient {expected.abs().max():.4f}, difference {difference:.1e}")
assert len(parts) > 3, "cut, and not only once"
assert found_loss == expected_loss, "the same vectors, so the same loss to the bit"
assert difference < 1e-12, "exact: what differs is the order of a sum"

# %% [markdown]
# ## The figure
#
# What does a **graph** keep, from forward to backward? Everything that backward will need: in MiniLM's six layers far
# more than a hundred numbers of each token for every one of the 384 columns. `lessons/memory.py` counts those bytes, by
# a hook that torch calls when it keeps a tensor. Left: one graph, and gradient caching in parts of 256 tokens. Right:
# the naive way, which adds up the gradients of the parts' own losses; the cosine of that gradient with the right one.
#
# ![Memory by batch size, and the gradient of parts beside that of the batch](figures/28_large_batches.png)

# %%
from lessons.memory import kept_for_backward

minilm = SentenceEncoder.load("all-MiniLM-L6-v2").train()
short = sorted(pairs, key=lambda pair: len(pair.sentence1) + len(pair.sentence2))[:128]
sides = [[pair.texts[side] for pair in short] for side in (0, 1)]
short_texts = TextColumns(minilm.tokenizer, sides)
large = VectorNetwork(minilm, short_texts)
in_parts = GradientCache(large, lambda rows: cut(rows, short_texts.lengths, 256))

sizes = [8, 16, 32, 64]
memory = {"one graph": [], "in parts": []}
for size in sizes:
    batch = list(range(0, 128, 128 // size))  # short and less short
    for name, one in {"one graph": large, "in parts": in_parts}.items():
        mib = kept_for_backward(large, in_batch_loss, one, batch)
        memory[name].append(mib)
        print(f"{size:3} pairs, {name}: {mib:6.1f} MiB")
graphs, parts = memory.values()
assert graphs[-1] > 6 * graphs[0], "eight times the rows, and memory with them"
assert max(parts) < 1.25 * min(parts[1:]), "the largest part decides, not the batch"

sides = [[pair.texts[side] for pair in pairs[:256]] for side in (0, 1)]
fixed = [torch.from_numpy(minilm.encode(column)) for column in sides]
fixed = torch.stack(fixed, 1)  # (256, 2, D)


def by_vectors(parts):
    """The gradient by the vectors, if each part of so many rows has a loss of its own."""
    leaf = fixed.clone().requires_grad_()
    own = [in_batch_loss(part) * len(part) / len(leaf) for part in leaf.chunk(parts)]
    sum(own).backward()
    return leaf.grad.flatten()


cuts, alike = [1, 2, 4, 8, 16, 32, 64, 128], []
for number in cuts:
    cosine = torch.cosine_similarity(by_vectors(1), by_vectors(number), dim=0).item()
    print(f"{number:3} parts of 256 pairs: cosine with the right gradient {cosine:.2f}")
    alike.append(cosine)
assert alike == sorted(alike, reverse=True), "the more parts, the further away"
assert alike[-1] < 0.7, "from two parts on it is the gradient of something else"


def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(sizes, graphs, "o-", color="#1f4e79", label="one graph")
    left.plot(sizes, parts, "s--", color="#c0392b", label="in parts")
    left.set(title="kept for backward", xlabel="pairs in the batch", ylabel="MiB")
    left.set(ylim=0, xticks=sizes)
    left.legend(frameon=False)
    right.semilogx(cuts, alike, "o-", base=2, color="#1f4e79")
    right.set(title="losses of parts, added up", xlabel="parts of a batch of 256")
    right.set(ylabel="cosine with the right gradient", ylim=(0, 1.05))
    right.set_xticks(cuts, cuts)
    return drawn


figure("28_large_batches", draw)

# %% [markdown]
# **Exercise 3.** `minisbert train --loss ranking --batch-size 512 --micro-tokens 768 --limit 5000
# --max-steps 3 --out runs/large`. Watch the memory (`/usr/bin/time -v`), then with `--micro-tokens 3000`.
#
# **Exercise 4.** Replay costs a forward because the graph was thrown away. Keep the graph of the last part of step 1
# instead: how much time does it save with four parts, and what does it cost?

# %% [markdown]
# ## Predict, then run
#
# Something must grow with the batch, or it could be as large as the data set. How many bytes are the cosines of 1,024
# triplets, of each anchor with all positives and negatives? And how many would the graph be?

# %%
guess = predict(
    "28.1",
    "The cosines of 1,024 anchors with all others take ...",
    ["8 KiB", "8 MiB", "8 GiB"],
)

# %%
B, n, D = 1024, 3, 384
tokens = B * n * 16  # of 16 tokens each
counted = sum(short_texts.lengths[row] for row in range(0, 128, 2))
graph = tokens * graphs[-1] / counted  # MiB
vectors, cosines = B * n * D * 4 / 2**20, B * 2 * B * 4 / 2**20
print(f"vectors {vectors:.1f}, cosines {cosines:.1f}, graph {graph:,.0f} MiB")
assert cosines == 8, "grows with the square of the batch, but starts so small"
assert graph > 1000 * vectors, "what step 1 throws away"
guess.answer("8 MiB")

# %% [markdown]
# The state of the random generator was kept for dropout. In eval mode there is none.

# %%
guess = predict("28.2", "Without dropout, does the random state matter?", ["yes", "no"])

# %%
from lessons.mistakes import MISTAKES, planted

network.eval()
(_, with_state), generator = gradients(lambda: cached(rows)), torch.get_rng_state()
with planted(MISTAKES["replay without the random state"]):
    _, without = gradients(lambda: cached(rows))
network.train()
assert largest_difference(with_state, without) == 0, "nothing is drawn in eval mode"
guess.answer("no")

# %% [markdown]
# **Exercise 5.** The rows of a batch are sorted by length before they are cut. What changes in the number of parts,
# and what in the gradient?

# %% [markdown]
# ## Break it
#
# Two mistakes. First the one that was invisible in eval mode, now with dropout.

# %%
with planted(MISTAKES["replay without the random state"]):
    broken_loss, broken = gradients(lambda: cached(rows))
error = ((broken - expected).norm() / expected.norm()).item()
print(f"loss {broken_loss:.12f}, as before; the gradient is {100 * error:.0f} % off")
assert broken_loss == expected_loss, "steps 1 and 2 are right, so the loss is"
assert error > 0.1, "and the gradient is not"

# %% [markdown]
# Does training show it? Thirty steps each way:


# %%
from minisbert.core.loop import adamw, fit


def train(steps=30):
    """Losses of the tiny model on the twelve pairs."""
    model = SentenceEncoder.load(TINY).train()
    network = VectorNetwork(model, columns)
    for parameter in model.parameters():  # may share memory with the file
        parameter.data = parameter.data.clone()
    torch.manual_seed(1)
    trained = [p for name, p in network.named_parameters() if "pooler" not in name]
    optimizer = adamw(trained, lr=1e-3)
    loss = lambda network, rows: in_batch_loss(network(rows))  # noqa: E731
    own = GradientCache(network, cached.divide)
    run = fit(own, loss, [rows] * steps, optimizer, lambda step: 1.0)
    return [step.loss for step in run]


right = train()
with planted(MISTAKES["replay without the random state"]):
    wrong = train()
print(f"from {right[0]:.2f} to {right[-1]:.2f}; with the mistake to {wrong[-1]:.2f}")
assert right[0] == wrong[0], "the first loss is that of the same vectors"
assert sum(wrong[-5:]) < 5 * wrong[0], "and it falls: slowly, and who would know?"

# %% [markdown]
# The second is the classic of every loop over chunks: what is left over at the end is left out.

# %%
with planted(MISTAKES["a forgotten last part"]):
    left = gradient_cache.cut(rows, columns.lengths, 100)
print(f"a forgotten last part: {sum(map(len, left))} of {len(rows)} rows")
assert sum(map(len, left)) < len(rows), "count the rows: the cheapest test there is"
torch.set_num_threads(threads)

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 28 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: the cut, the first forward, the replay: `python -m lessons.check start 28`, `run 28`,
# `hint 28`.
#
# ## Sources
#
# - Gao, Zhang, Han and Callan 2021, *Scaling deep contrastive learning batch size under memory limited setup*
#   (arXiv 2101.06983): the three steps, and their use in several processes.
# - Gao, Yao and Chen 2021, *SimCSE*, appendix A: batches of 512 for supervised training.
# - Chen et al. 2016, *Training deep nets with sublinear memory cost*: the other way to trade a forward for memory,
#   along the layers instead of the rows.
# - What we have read of these: [docs/sources.md](../docs/sources.md).
#
# ## What you have now
#
# You can train with batches that do not fit into memory. Next: [more losses](29_more_losses.py).
