# %% [markdown]
# # Lesson 12: what one number is worth
#
# Steps through `minisbert/core/loop.py` and `lessons/by_hand/paired.py`. Reading 40, pieces 20, exercises 50 minutes.
# You will train eighty small heads to see what one score is worth, and compare two schedules with one run, with many,
# and with pairs of runs.

# %%
from functools import partial

import numpy as np
import torch
from course import figure, largest_difference, predict

from minisbert.core import loop, losses, metrics

# %% [markdown]
# ## The question
#
# The loop of lesson 11 has run, and the score is four tenths better than yesterday's. Is the model better, or was it
# luck?
#
# ## The formula
#
# Of n runs with the scores x_1 to x_n:
#
#     mean      =  (x_1 + ... + x_n) / n
#     spread    =  sqrt( sum of (x_i - mean)^2 / (n - 1) )      the standard deviation of the runs
#     error     =  spread / sqrt(n)                             of their mean
#
# A mean of n runs is more certain than one run, by the root of n: `error` is called the **standard error** of the mean. (For
# the standard deviation of a sample one divides by n - 1; in NumPy, `ddof=1`.)
#
# The error of a difference a - b is sqrt(error_a^2 + error_b^2), if a and b are independent. If run i of both sides
# uses the same seed, take the n differences instead, and *their* mean and error: what both sides share is gone from d.
# An interval has two errors to each side.
#
#     d_i       =  a_i - b_i
#     gain      =  mean of d,  from  gain - 2 error of d  to  gain + 2 error of d
#
# If 0 is inside, nothing is shown. (Two errors hold the true gain 95 times in a hundred if there are twenty runs; with
# four it would take more than three.)
#
# ## The real function
#
# Four runs of a and four of b, in pairs. By hand: the means are 73 and 71.5; a's squared distances are 9, 1, 1 and 9,
# so its spread is sqrt(20 / 3). The differences are 1, 2, 1 and 2: spread sqrt(1 / 3), error half of that, .289.

# %%
from lessons.by_hand.paired import paired_gain

a, b = np.array([70.0, 74.0, 72.0, 76.0]), np.array([69.0, 72.0, 71.0, 74.0])


def standard_error(values):
    return values.std(ddof=1) / len(values) ** 0.5


apart = np.hypot(standard_error(a), standard_error(b))
gain, in_pairs, low, high = paired_gain(a, b)
print(f"a is better by {gain}; error {apart:.2f}, in pairs {in_pairs:.2f}")
print(f"in pairs from {low:.2f} to {high:.2f}")
assert abs(in_pairs - (1 / 3) ** 0.5 / 2) < 1e-12, "by hand"
assert gain < apart, "apart: less than one standard error, nothing is shown"
assert low > 0, "in pairs: a is better"

# %% [markdown]
# ## What a seed is
#
# A **seed** decides what chance decides: the first weights of a new head, the order of the rows, dropout's masks. To
# see what that does to a score we need many runs, so each must be short: MiniLM stays as it is, 480 pairs of STS-B
# become vectors once, and only a small network on top of (|u - v|, u * v, u), 256 numbers wide, is trained to give the
# score. Such a network on top of a model is called a **head**. Lesson 15 has three of them; this one, `siamese`, is a
# dense layer from 3 D columns to 256, a ReLU, and a dense layer to one number. It prints itself below.
# A run takes a fraction of a second.

# %%
from minisbert.checkpoints.layout import find_model
from minisbert.core.data import length_grouped_batches
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.heads import siamese
from minisbert.data.rows import load_scored_pairs
from minisbert.training.schedules import SCHEDULES

threads = torch.get_num_threads()
torch.set_num_threads(1)  # matrices this small gain nothing from a second core
encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))
pairs = load_scored_pairs("stsb", "train")[::12]
dev = load_scored_pairs("stsb", "dev")[::6]
both = [*pairs, *dev]
texts = [pair.sentence1 for pair in both] + [pair.sentence2 for pair in both]
vectors = encoder.encode(texts)
u, v = torch.from_numpy(vectors).chunk(2)  # (N, D) each, training rows first
targets = torch.tensor([pair.score / 5 for pair in both])
N, width = len(pairs), u.shape[1]
print(siamese(width))


def head_loss(head, rows):
    return losses.mse_loss(head(u[rows], v[rows]).squeeze(-1), targets[rows])


def run(first_weights, order, schedule="linear"):
    """Train a head from these two seeds; Spearman x 100 on dev."""
    torch.manual_seed(first_weights)
    head = siamese(width)
    optimizer = loop.adamw(list(head.parameters()), lr=5e-3, weight_decay=0.0)
    generator = torch.Generator().manual_seed(order)
    batches = []
    for _ in range(5):  # epochs
        batches += length_grouped_batches([1] * N, 32, generator)
    warmup, total = round(0.1 * len(batches)), len(batches)
    share = partial(SCHEDULES[schedule], warmup=warmup, total=total)
    for _ in loop.fit(head, head_loss, batches, optimizer, share, clip=1.0):
        pass
    with torch.no_grad():
        found = head(u[N:], v[N:]).squeeze(-1)
    return 100 * metrics.spearman(found.numpy(), targets[N:].numpy())


seeds = range(20)
linear = np.array([run(seed, seed) for seed in seeds])
cosine = np.array([run(seed, seed, "cosine") for seed in seeds])
weights = np.array([run(seed, 0) for seed in seeds[:10]])
orders = np.array([run(0, seed) for seed in seeds[:10]])
for name, found in (
    ("both", linear),
    ("first weights", weights),
    ("order of rows", orders),
):
    print(f"{name:14} mean {found.mean():.2f}  deviation {found.std(ddof=1):.2f}")
    print(f"{'':14} from {found.min():.2f} to {found.max():.2f}")
    assert found.std(ddof=1) > 0.3, "both the weights and the order do it"
plain = 100 * metrics.spearman((u[N:] * v[N:]).sum(1).numpy(), targets[N:].numpy())
print(f"the plain cosine of the same vectors: {plain:.2f}")
assert run(3, 3) == linear[3], "the same seed, the same bits"
assert np.ptp(linear) > 3, "another seed, another score: several points apart"
assert plain > max(linear), "no head that learned from 480 pairs is as good as none"

# %% [markdown]
# (480 pairs are few for 300,000 new numbers. The spread is the subject here.) Each line is one method, and its scores
# are up to nine points apart.
#
# So take several seeds, the same on both sides of a comparison, and report the spread along with the mean. The seed is
# not a setting: the best of twenty is what chance gave, not what the method gives.
#
# **Exercise 1.** Plot the mean of the first n of the twenty scores over n. From which n on would you have believed
# it?
#
# **Exercise 2.** All of MiniLM on all of STS-B: `minisbert train --seed 1 --out runs/1`, and two seeds
# more. How wide is the spread of the test Spearman now? What would a paper have to show to claim three tenths?
#
# ## The figure
#
# Left: a line for each seed, the mean in red. The schedules differ in how the rate falls after the warm-up: in a line,
# or as a cosine does. Most lines fall, and yet the two columns overlap. Right: somebody compares the two with n runs of
# each. How often would that person conclude that cosine is better? One curve: different seeds; the other: the same
# seeds.
#
# ![Two schedules by seed; how often n runs mislead](figures/12_what_one_number_is_worth.png)

# %%
chance = np.random.default_rng(0)
counts = [1, 2, 3, 4, 6, 8, 10]
misled = {"different seeds": [], "the same seeds": []}
for n in counts:
    one, other = chance.integers(0, 20, (2, 4000, n))  # n runs of each, 4,000 times
    for label, rows in (("different seeds", other), ("the same seeds", one)):
        ahead = cosine[rows].mean(1) > linear[one].mean(1)
        misled[label].append(ahead.mean().round(3).item())
print(counts, misled)
assert misled["different seeds"][-1] > 0.05, "ten runs of each still mislead some"
assert misled["the same seeds"][3] < 0.02, "four pairs hardly anybody"


def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.9), layout="constrained")
    thin = {"linewidth": 0.7, "antialiased": False}
    left.plot([0, 1], [linear, cosine], color="#3b7ab8", **thin)
    left.plot([0, 1], [linear.mean(), cosine.mean()], color="#c0392b", linewidth=3)
    left.set_xticks([0, 1], ["linear", "cosine"])
    left.set(xlim=(-0.3, 1.3), ylabel="dev Spearman x 100", title="Twenty seeds each")
    for name, color in (("different seeds", "#c0392b"), ("the same seeds", "#1f4e79")):
        right.plot(counts, misled[name], "o-", color=color, label=name)
    right.set(xlabel="runs of each", ylabel="share misled", ylim=(-0.02, 0.5))
    right.set_title("Told that the worse one is better")
    right.legend(frameon=False)
    return drawn


figure("12_what_one_number_is_worth", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** The mean of linear is higher than that of cosine, by about a point. Somebody runs each of them once, with any
# seed. How often is cosine ahead?

# %%
guess = predict(
    "12.1",
    "One run of each: the worse schedule is ahead ...",
    ["hardly ever", "about one time in three", "every second time"],
)

# %%
wins = (cosine[:, None] > linear[None, :]).mean()
print(f"of all pairs of a cosine run and a linear run, cosine wins {100 * wins:.0f} %")
assert 0.2 < wins < 0.45, "try each once, and you will often be told the opposite"
guess.answer("about one time in three")

# %% [markdown]
# **2.** Twenty runs of each. Is the standard error of their difference smaller, if run i of both sides has the same
# seed?

# %%
guess = predict(
    "12.2",
    "With the same seeds on both sides the standard error is ...",
    ["larger", "the same", "smaller"],
)

# %%
unpaired = np.hypot(standard_error(linear), standard_error(cosine))
gain, paired, low, high = paired_gain(linear, cosine)  # seed by seed
print(f"linear is better by {gain:.2f}; error {unpaired:.2f}, in pairs {paired:.2f}")
print(f"in pairs from {low:.2f} to {high:.2f}")
assert low > 0, "twenty seeds can tell"
assert paired < 0.7 * unpaired, "and they tell more when both sides use the same seeds"
guess.answer("smaller")

# %% [markdown]
# **3.** Four runs of linear have a standard error of 1.2. How many have one of 0.6?

# %%
guess = predict(
    "12.3",
    "Half the standard error takes ... the runs",
    ["twice", "four times", "ten times"],
)

# %%
drawn = chance.integers(0, 20, (4000, 16))  # 16 of our twenty runs, 4,000 times
of_four, of_sixteen = linear[drawn[:, :4]].mean(1).std(), linear[drawn].mean(1).std()
print(f"means of 4 runs spread by {of_four:.2f}, of 16 by {of_sixteen:.2f}")
assert 1.8 < of_four / of_sixteen < 2.2, "the root of four"
guess.answer("four times")

# %% [markdown]
# ## Break it
#
# One of lesson 11's mistakes, which the ten losses found at once: a warm-up that is off by one. Would the score have
# told you? Twenty seeds, each with the right code and with the wrong one.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["warm-up off by one"]):
    mistaken = np.array([run(seed, seed) for seed in seeds])
gain, error, low, high = paired_gain(mistaken, linear)  # seed by seed
deviation = linear.std(ddof=1)
print(f"right {linear.mean():.2f}, deviation {deviation:.2f}")
print(f"wrong {mistaken.mean():.2f}")
print(f"by pairs of one seed {gain:+.2f}, from {low:.2f} to {high:.2f}")
assert abs(gain) < deviation, "one run could not tell them apart"
assert low > 0, "twenty pairs can, and the mistake is the better of the two"
assert largest_difference(mistaken, linear) > 0, "though every single number is another"
torch.set_num_threads(threads)

# %% [markdown]
# The bug *wins*: its warm-up learns a little more in each step, and in so short a run that may be what helps. No score
# would ever have sent anybody to look for it. A score says what works on these data, not what was meant. It is a
# thermometer with an error of a degree; the ten losses are a ruler with nine digits. Use the ruler to find mistakes and
# the thermometer, many times, to compare methods.
#
# **Exercise 3.** Remove the warm-up from `run`. Better or worse, and by how many standard errors, paired?
#
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 12 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: paired_gain: `python -m lessons.check start 12`, `run 12`, `hint 12`.
#
# ## Sources
#
# - Reimers and Gurevych 2017, *Reporting score distributions makes a difference*: seeds, and why one run is no result.
# - Dodge et al. 2020, *Fine-tuning pretrained language models*: first weights and order of rows, apart.
#
# ## What you have now
#
# You can tell a gain from luck, by a function of your own. Next: [training for real](13_training_for_real.py).
