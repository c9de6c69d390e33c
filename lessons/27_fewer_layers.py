# %% [markdown]
# # Lesson 27: making it small: fewer layers
#
# Steps through `minisbert/training/losses.py`. About 45 minutes. You will drop layers of a model, see which ones it can
# do without, and train what is left to give the vectors of the whole.

# %%
import numpy as np
import torch
from course import figure, predict

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training import losses as distillation

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")

# %% [markdown]
# ## The question
#
# Each sentence goes through six layers of MiniLM, which takes nearly all of the time. Are six needed? Which ones? And
# can three of them learn what the others knew?
#
# ## The formula
#
# Keep n of L layers, the first, the last and the rest evenly between them, and teach the **student** its **teacher's**
# vectors, which is called **distillation**. No labels are needed, any text will do. The teacher is a constant
# (`detach`), so that only the student moves:
#
#     loss  =  mean over rows and columns of (student - teacher)^2
#
# ## The real function
#
# On numbers that one can check by eye.

# %%
print(
    distillation.spread_layers(12, 6),
    distillation.spread_layers(6, 3),
    distillation.spread_layers(6, 2),
)
assert distillation.spread_layers(12, 6) == [0, 2, 4, 7, 9, 11], (
    "the layers of BERT with which DistilBERT began"
)
student, teacher = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
assert distillation.distillation_loss(student, teacher) == 2.5, "(1 + 4) / 2"

# %% [markdown]
# And the real vectors. Two measures say what a saving costs. **Spearman**: half of the STS-B test pairs, as in lesson
# 09. **Recall**: of the ten nearest sentences that the whole model finds for 300 queries, how many are still among the
# ten? The first asks for the right scale of similarity, the second for the right neighbours; it is the harder one.
# (`lessons/neighbours.py` has the texts and both measures.)

# %%
import copy
import time

from lessons.neighbours import corpus, queries, recall_of, spearman, ten_nearest

L, D = encoder.bert.config.num_hidden_layers, encoder.width
N = len(corpus)
rates = {}  # sentences per second by number of layers, the best of all models with so many


def encoded(model):
    """The vectors of queries (300, D) and corpus (N, D)."""
    q, started = model.encode(queries), time.perf_counter()
    c, layers = model.encode(corpus), len(model.bert.layers)
    rates[layers] = max(rates.get(layers, 0), N / (time.perf_counter() - started))
    return q, c


Q, C = encoded(encoder)
recall = recall_of(ten_nearest(Q, C))


def quality(q, c):
    """Spearman x 100 and recall of queries q and a corpus c of any width."""
    return spearman(c), recall(ten_nearest(q, c))


whole = quality(Q, C)
print(f"{N:,} sentences, {len(queries)} queries: Spearman {whole[0]:.2f}")
assert whole[1] == 1, "the recall of itself"

# %% [markdown]
# ## Fewer layers
#
# Before any training: take layers out, and see what the rest makes of it. The residual connections of lesson 06 carry
# x past every layer, so a layer may be missing. But which?


# %%
def shortened(layers):
    """MiniLM with these of its layers."""
    student = copy.deepcopy(encoder)
    student.bert = distillation.keep_layers(encoder.bert, layers)
    return student


dropped = {}
for layers in ([0, 1, 2], [0, 2, 4], [0, 3, 5], [0, 5]):
    dropped[tuple(layers)] = quality(*encoded(shortened(layers)))
    print(
        f"layers {layers!s:10} Spearman {dropped[tuple(layers)][0]:.2f}, recall {dropped[tuple(layers)][1]:.3f}"
    )
assert distillation.spread_layers(L, 3) == [0, 3, 5], "what spread_layers takes of six,"
assert dropped[0, 3, 5][0] > dropped[0, 2, 4][0] + 8, (
    "because the last layer is the one that knows what comes out"
)

# %% [markdown]
# Now the students learn: 800 sentences of the training split each, once, 25 steps. The embeddings stay as they are, for
# they are the teacher's already. Dropout is off: the student should give the teacher's very numbers. The seed decides
# which sentences, and in which order.

# %%
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.data.datasets import load_scored_pairs

SEEDS = range(3)
texts = [
    text
    for pair in load_scored_pairs("stsb", "train")
    for text in (pair.sentence1, pair.sentence2)
]
texts = list(dict.fromkeys(texts))[::5]
teacher = encoder.encode(texts, convert_to_tensor=True)  # (2,108, D)
columns = TextColumns(encoder.tokenizer, [texts])


def distilled(layers, seed, sentences=800):
    """A student that has seen its teacher's vectors of some sentences, and the loss of every step."""
    student = shortened(layers).requires_grad_(False)
    trained = list(student.bert.layers.requires_grad_(True).parameters())
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randperm(len(texts), generator=generator)[:sentences].tolist()
    grouped = length_grouped_batches([columns.lengths[i] for i in seen], 32, generator)
    batches = [[seen[i] for i in batch] for batch in grouped]

    def loss(student, rows):
        # times D: the squared distance of two vectors, a number of a size that one can picture
        return D * distillation.distillation_loss(
            student(*columns.batch(rows)), teacher[rows]
        )

    share = lambda step: linear_schedule(step, 3, len(batches))  # noqa: E731
    steps = [
        step.loss
        for step in fit(
            student, loss, batches, adamw(trained, lr=5e-4), share, clip=1.0
        )
    ]
    return student, steps


taught, started = {}, time.perf_counter()
for layers in ([0, 3, 5], [0, 5]):
    for seed in SEEDS:
        student, steps = distilled(layers, seed)
        taught[tuple(layers), seed] = quality(*encoded(student))
        print(
            f"layers {layers}, seed {seed}: loss {steps[0]:.2f} -> {np.mean(steps[-5:]):.2f}, ",
            end="",
        )
        print(
            f"Spearman {taught[tuple(layers), seed][0]:.2f}, recall {taught[tuple(layers), seed][1]:.3f}"
        )
print(f"{time.perf_counter() - started:.0f} s for {len(taught)} students")


def seeds_of(layers):
    """Spearman and recall of the students, (seeds, 2)."""
    return np.array([taught[layers, seed] for seed in SEEDS])


for layers in ((0, 3, 5), (0, 5)):
    gain = seeds_of(layers) - dropped[layers]
    print(
        f"{len(layers)} layers: Spearman {gain[:, 0].mean():+.2f}, recall {gain[:, 1].mean():+.3f} by distillation"
    )
    assert (gain[:, 1] > 0.03).all(), (
        "every student finds more of its teacher's neighbours than before"
    )
assert (seeds_of((0, 5))[:, 0] > dropped[0, 5][0] + 2).all(), (
    "two layers gain on STS, whatever the seed"
)
assert (np.abs(seeds_of((0, 3, 5))[:, 0] - dropped[0, 3, 5][0]) < 1.5).all(), (
    "three layers hardly change there,"
)
assert seeds_of((0, 3, 5))[:, 1].min() > seeds_of((0, 5))[:, 1].max(), (
    "and find more than two do"
)

# %% [markdown]
# Read it with care. For two layers distillation is worth three points on STS. For three layers it costs half a point
# there, more than the seeds differ by. What it brings, for both and for every seed, is neighbours: the loss asks for
# the teacher's vectors, not for people's scores, and the two measures need not agree. (A real distillation shows its
# student millions of sentences, and these have seen 800.) On the command line a teacher is
# `minisbert train --teacher all-MiniLM-L6-v2 --student-layers 3`; docs/training.md says what else it can be.
#
# **Exercise 1.** Save a student (`student.save("small")`) and open it in sentence-transformers. Give it all 10,536
# sentences of the training split instead of 800: how much of the rest does it make up?
#
# ## The figure
#
# What the layers cost, by sentences per second on this machine: a ring for a model whose layers were dropped, a dot for
# each distilled student. Left people's scores, right the neighbours of the whole model.
#
# ![Spearman and recall by sentences per second](figures/27_fewer_layers.png)


# %%
def draw(plt):
    drawn, panels = plt.subplots(1, 2, figsize=(8.2, 2.8), layout="constrained")
    for measure, axes in enumerate(panels):
        axes.plot(rates[6], whole[measure], "o", color="#1f4e79", label="all 6 layers")
        for layers, shade in (((0, 3, 5), "#3b7ab8"), ((0, 5), "#c0392b")):
            rate, found = rates[len(layers)], seeds_of(layers)[:, measure]
            before = dropped[layers][measure]
            axes.plot(rate, before, "o", color=shade, fillstyle="none")
            name = f"layers {', '.join(map(str, layers))}"
            axes.plot(
                [rate] * len(found), found, "o", color=shade, markersize=4, label=name
            )
        axes.set(xlabel="sentences per second", xlim=(0, 1.1 * max(rates.values())))
    panels[0].set(ylabel="Spearman x 100")
    panels[1].set(ylabel="recall of the exact ten")
    panels[0].legend(frameon=False, fontsize=8, loc="lower left")
    return drawn


figure("27_fewer_layers", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** Half of the layers are gone. How much smaller is the file?

# %%
guess = predict(
    "27.1",
    "Half of the layers gone: the file is smaller by ...",
    ["half", "less than a quarter", "nine tenths"],
)

# %%
parameters = sum(parameter.numel() for parameter in encoder.bert.parameters())
words = encoder.bert.embeddings.word.weight.numel()
half = sum(parameter.numel() for parameter in shortened([0, 3, 5]).bert.parameters())
print(
    f"{parameters:,} parameters, {words:,} of them the table of words; with three layers {half:,}"
)
assert words / parameters > 0.5, (
    "more than half of MiniLM is its table of 30,522 words,"
)
assert half / parameters > 0.75, "and no layer that you drop makes it smaller"
guess.answer("less than a quarter")

# %% [markdown]
# **2.** Two layers, before any training: the first and the last, or the second and the fifth?

# %%
guess = predict(
    "27.2",
    "On STS, layers 0 and 5 are ahead of layers 1 and 4 by ...",
    ["less than two points", "about five points", "more than ten points"],
)

# %%
dropped[1, 4] = quality(*encoded(shortened([1, 4])))
print(f"layers 0 and 5 {dropped[0, 5][0]:.2f}, 1 and 4 {dropped[1, 4][0]:.2f}")
assert dropped[0, 5][0] > dropped[1, 4][0] + 10, (
    "the first layer is the one that knows what comes in, the last what comes out"
)
guess.answer("more than ten points")

# %% [markdown]
# ## Break it
#
# **Layers dropped from the top.** The easiest way to shorten a list, and the wrong end of it.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["layers dropped from the top"]):
    layers = distillation.spread_layers(L, 3)
print(
    layers,
    f"Spearman {dropped[tuple(layers)][0]:.2f} instead of {dropped[0, 3, 5][0]:.2f}",
)
assert dropped[tuple(layers)][0] < dropped[0, 3, 5][0] - 15, (
    "a model that stops in the middle of a sentence, so to say"
)

# %% [markdown]
# **Distilled against itself.** One name too few in the loop, and the loss is perfect from the first step.

# %%
with planted(MISTAKES["distilled against itself"]):
    _, steps = distilled([0, 5], seed=0, sentences=64)
print(steps)
assert steps == [0, 0], "a loss of 0 is no success: nothing was learned"

# %% [markdown]
# **Teacher with gradients.** Without the detach the loss falls faster, since both sides move. Here the teacher's
# vectors are a table without gradients, so nothing happens. With a teacher that runs beside its student, everything
# does: the two meet where it is easiest, at one point for all sentences.

# %%
one, other = (
    torch.tensor([[1.0, 2.0]], requires_grad=True),
    torch.tensor([[0.0, 4.0]], requires_grad=True),
)
distillation.distillation_loss(one, other).backward()
assert other.grad is None, "right: the teacher is a constant"
with planted(MISTAKES["teacher with gradients"]):
    distillation.distillation_loss(one, other).backward()
print(other.grad)
assert other.grad.tolist() == [[-1, 2]], "wrong: it is pulled towards its student"

# %% [markdown]
# ## Exercises
#
# Exercise 1 stands beside what it practises. `python -m lessons.check answer 27 1` gives a hint for it, and asked
# again, the answer.
#
# **Exercise 2.** Graded: which layers, a shorter model, its loss: `python -m lessons.check start 27`, `run 27`,
# `hint 27`.
#
# ## Sources
#
# - Sanh et al. 2019, *DistilBERT*: a student that begins with every other layer of its teacher.
# - Reimers and Gurevych 2020, *Making monolingual sentence embeddings multilingual*, section 1: squared errors against
#   a teacher's vectors.
# - Hofstätter et al. 2020, *Improving efficient neural ranking models with cross-architecture knowledge distillation*:
#   a cross-encoder's scores as the target, by their differences; `margin_mse_loss` in the same file.
# - Every claim about a paper in this project, and how it was checked: [docs/sources.md](../docs/sources.md).
#
# ## What you have now
#
# You have a smaller model that was taught by a larger one. Next: [large batches on a small
# machine](28_large_batches.py).
