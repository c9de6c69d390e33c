# %% [markdown]
# # Lesson 27: making it small: fewer layers
#
# Steps through `minisbert/training/losses.py`. Reading 35, pieces 50, exercises 30 minutes. You will drop layers of a
# model, see which ones it can do without, and train what is left to give the vectors of the whole.

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
half = distillation.spread_layers(12, 6)
print(half, distillation.spread_layers(6, 3), distillation.spread_layers(6, 2))
assert half == [0, 2, 4, 7, 9, 11], "the layers of BERT with which DistilBERT began"
student, teacher = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
assert distillation.distillation_loss(student, teacher) == 2.5, "(1 + 4) / 2"

# %% [markdown]
# And the real vectors, with lesson 17's two measures of what a saving costs: Spearman on half of the STS-B test pairs,
# and recall, the share of the whole model's ten nearest sentences that are still among the ten, for 300 queries.

# %%
import copy

from lessons.neighbours import corpus, queries, recall_of, spearman, ten_nearest

L, D = encoder.bert.config.num_hidden_layers, encoder.width
N = len(corpus)


def encoded(model):
    """The vectors of queries (300, D) and corpus (N, D)."""
    return model.encode(queries), model.encode(corpus)


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
for layers in ((0, 1, 2), (0, 2, 4), (0, 3, 5), (0, 5)):
    dropped[layers] = quality(*encoded(shortened(layers)))
    print("layers {}: Spearman {:.2f}, recall {:.3f}".format(layers, *dropped[layers]))
assert distillation.spread_layers(L, 3) == [0, 3, 5], "what spread_layers takes of six"
assert dropped[0, 3, 5][0] > dropped[0, 2, 4][0] + 8, "the pooling expects the last one"

# %% [markdown]
# How much faster are they? All three models in turn, the best of four runs each, by the seconds of the CPU, which other
# programs do not change:

# %%
import time

sizes = {L: encoder, 3: shortened((0, 3, 5)), 2: shortened((0, 5))}
seconds = {count: [] for count in sizes}
for _ in range(4):
    for count, model in sizes.items():
        started = time.process_time()
        model.encode(corpus[:400])
        seconds[count].append(time.process_time() - started)
rates = {count: 400 / min(took) for count, took in seconds.items()}
for count, rate in rates.items():
    print(f"{count} layers: {rate:.0f} a second, {rate / rates[L]:.1f} times as many")

# %% [markdown]
# Now the students learn: 800 sentences of the training split each, once, 25 steps. The embeddings stay as they are:
# they are the teacher's already. Dropout is off, for the student should give the teacher's very numbers. The seed
# decides which sentences, and in which order.

# %%
from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.data.rows import load_scored_pairs

SEEDS = range(3)
texts = [text for pair in load_scored_pairs("stsb", "train") for text in pair.texts]
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
        # times D: the squared distance of two vectors
        vectors = student(*columns.batch(rows))
        return D * distillation.distillation_loss(vectors, teacher[rows])

    share = lambda step: linear_schedule(step, 3, len(batches))  # noqa: E731
    run = fit(student, loss, batches, adamw(trained, lr=5e-4), share, clip=1.0)
    return student, [step.loss for step in run]


taught = {}  # layers: Spearman and recall of the students, (seeds, 2)
for layers in ((0, 3, 5), (0, 5)):
    found = []
    for seed in SEEDS:
        student, steps = distilled(layers, seed)
        found.append(quality(*encoded(student)))
        print(f"layers {layers}, seed {seed}", end=": ")
        print(f"loss {steps[0]:.2f} -> {np.mean(steps[-5:]):.2f}", end=", ")
        print("Spearman {:.2f}, recall {:.3f}".format(*found[-1]))
    taught[layers] = np.array(found)

gain3, gain2 = (found - dropped[layers] for layers, found in taught.items())
for name, gain in (("three", gain3), ("two", gain2)):
    print("{} layers gain {:+.2f} and {:+.3f}".format(name, *gain.mean(axis=0)))
    assert (gain[:, 1] > 0.03).all(), "every student finds more neighbours than before"
assert (gain2[:, 0] > 2).all(), "two layers gain on STS, whatever the seed"
assert (np.abs(gain3[:, 0]) < 1.5).all(), "three layers hardly change there"
assert taught[0, 3, 5][:, 1].min() > taught[0, 5][:, 1].max(), "and find more than two"

# %% [markdown]
# For two layers distillation is worth three points on STS. For three layers it costs half a point there, more than the
# seeds differ by. Both find more neighbours, with every seed: the loss asks for the teacher's vectors, not for people's
# scores, and the two measures need not agree. (A real distillation shows its student millions of sentences, and these
# have seen 800.) On the command line a teacher is `minisbert train --teacher all-MiniLM-L6-v2 --student-layers 3`;
# docs/training.md says what else it can be.
#
# **Exercise 1.** Save a student (`student.save("small")`) and open it in sentence-transformers. Give it all 10,536
# sentences of the training split instead of 800: how much of the rest does it make up?
#
# ## The figure
#
# What the layers cost, by sentences per CPU second on this machine: a ring for a model whose layers were dropped, a dot
# for each distilled student. Left people's scores, right the neighbours of the whole model.
#
# ![Spearman and recall by sentences per second](figures/27_fewer_layers.png)


# %%
def draw(plt):
    drawn, panels = plt.subplots(1, 2, figsize=(8.2, 2.8), layout="constrained")
    for measure, axes in enumerate(panels):
        axes.plot(rates[6], whole[measure], "o", color="#1f4e79", label="all 6 layers")
        for layers, shade in (((0, 3, 5), "#3b7ab8"), ((0, 5), "#c0392b")):
            rate, name = rates[len(layers)], f"layers {', '.join(map(str, layers))}"
            before = dropped[layers][measure]
            axes.plot(rate, before, "o", color=shade, fillstyle="none")
            for found in taught[layers][:, measure]:
                axes.plot(rate, found, "o", color=shade, markersize=4, label=name)
                name = None  # one entry of the legend
        axes.set(xlabel="sentences per CPU second", xlim=(0, 1.1 * max(rates.values())))
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
half = sum(parameter.numel() for parameter in sizes[3].bert.parameters())
print(f"{parameters:,} parameters, {words:,} in the table of words", end="; ")
print(f"with three layers {half:,}")
assert words / parameters > 0.5, "more than half of MiniLM is its table of 30,522 words"
assert half / parameters > 0.75, "and no layer that you drop makes that smaller"
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
dropped[1, 4] = quality(*encoded(shortened((1, 4))))
print(f"layers 0 and 5 {dropped[0, 5][0]:.2f}, 1 and 4 {dropped[1, 4][0]:.2f}")
assert dropped[0, 5][0] > dropped[1, 4][0] + 10, "the first knows what comes in"
guess.answer("more than ten points")

# %% [markdown]
# ## Break it
#
# **Layers dropped from the top.** The easiest way to shorten a list, and the wrong end of it.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["layers dropped from the top"]):
    layers = distillation.spread_layers(L, 3)
wrong = dropped[tuple(layers)][0]
print(layers, f"Spearman {wrong:.2f} instead of {dropped[0, 3, 5][0]:.2f}")
assert wrong < dropped[0, 3, 5][0] - 15, "its top half is missing"

# %% [markdown]
# **Distilled against itself.** The student's vectors are given twice, and the loss is perfect from the first step.

# %%
with planted(MISTAKES["distilled against itself"]):
    _, steps = distilled((0, 5), seed=0, sentences=64)
print(steps)
assert steps == [0, 0], "a loss of 0 is no success: nothing was learned"

# %% [markdown]
# **Teacher with gradients.** Without the detach the loss falls faster, since both sides move. Our teacher's vectors are
# a table without gradients, so nothing happens. A teacher that runs beside its student would move towards it, and both
# may end where it is easiest to agree, at one point for all sentences.

# %%
one = torch.tensor([[1.0, 2.0]], requires_grad=True)
other = torch.tensor([[0.0, 4.0]], requires_grad=True)
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
# - What we have read of these: [docs/sources.md](../docs/sources.md).
#
# ## What you have now
#
# You have a smaller model that was taught by a larger one. Next: [large batches on a small
# machine](28_large_batches.py).
