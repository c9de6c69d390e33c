# %% [markdown]
# # Lesson 08: pooling and the mask
#
# Steps through `minisbert/core/pooling.py`. Reading 45, chapter 30, pieces 105, exercises 70 minutes. You will make
# one vector out of many, and meet mistakes that a cosine of two vectors does not show.

# %%
import torch
from course import chapter, figure, largest_difference, predict

from lessons.mistakes import MISTAKES, planted
from minisbert.core import pooling
from minisbert.core.encoder import SentenceEncoder, cosine
from minisbert.core.tokenizer import pad_batch
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))

# %% [markdown]
# ## The question
#
# The encoder gives a vector for each token: (B, T, D). A sentence should have one: (B, D). Sentences differ in length,
# and a batch is a rectangle, so the short ones are filled up with pads. Which vector represents the sentence, and how
# do the pads stay out of it? Making one vector out of many is called **pooling**.
#
# ![Map of the model: pooling](drawings/map_08.svg)
#
# ## The formula
#
# m[b, t] is 1 (or True) for a real token and 0 (or False) for a pad; without a mask, `None`, all tokens are real. h is
# the hidden state, (B, T, D).
#
#     mean       v[b] = sum over t of m[b, t] * h[b, t]  /  sum over t of m[b, t]
#     cls        v[b] = h[b, 0]                                       the first token is always [CLS]
#     max        v[b, d] = max over t with m[b, t] = 1 of h[b, t, d]
#     attention  v[b] = sum over t of p[b, t] * h[b, t],   p = softmax over real t of (w . h[b, t] + c)
#
# The mean divides each text by its *own* number of tokens. (A mask of 1 and 0 is an integer tensor: `mask.bool()` makes
# booleans of either kind, so that `~` means "not".)

# %% [markdown]
# ## The real function
#
# Three tokens and a pad, two columns. The pad holds 100: whatever is there must not matter.
#
# ![Pooling: many vectors to one, without the pads](drawings/pooling.svg)

# %%
# (B, T, D) = (1, 4, 2)
hidden = torch.tensor([[[1.0, -3.0], [3.0, -1.0], [2.0, -8.0], [100.0, 100.0]]])
mask = torch.tensor([[True, True, True, False]])  # (B, T)
weight, bias = torch.zeros(1, 2), torch.zeros(1)
attention = pooling.attention_pool(hidden, mask, weight, bias)
for name, result, expected in (
    ("mean", pooling.mean_pool(hidden, mask), [2, -4]),
    ("cls", pooling.cls_pool(hidden, mask), [1, -3]),
    ("max", pooling.max_pool(hidden, mask), [3, -1]),
    ("attention, weight 0", attention, [2, -4]),
):
    print(f"{name:20} {result[0].tolist()}")
    assert largest_difference(result, [expected]) < 1e-6, name

# %% [markdown]
# Attention pooling starts as the mean, since all scores are equal. With w = (0, 1) the scores are -3, -1 and -8, and
# the second token takes most of the weight: 1 / (exp(-2) + 1 + exp(-7)) = 0.880.

# %%
learned = pooling.attention_pool(hidden, mask, torch.tensor([[0.0, 1.0]]), bias)
shares = torch.tensor([-3.0, -1.0, -8.0]).softmax(0)
print(shares, learned)
assert largest_difference(learned[0], shares @ hidden[0, :3]) < 1e-6, "learned shares"

# %% [markdown]
# **Write them:** `mean_pool`, `max_pool` and `attention_pool` are the first pieces of `lessons/mine/lesson_08.py`
# (`python -m lessons.check start 08`, then `run 08`). Then compare. The book's mean fills pads with 0 before it adds
# them up, and does not multiply by the mask: what may be in a pad that makes a difference?

# %%
chapter("pooling", "top", "mean_pool", "cls_pool", "max_pool", "attention_pool")

# %% [markdown]
# And in the model: MiniLM's folder asks for the mean (`1_Pooling/config.json`), then scales to length 1.

# %%
text = "A cat sits."
ids = encoder.tokenizer.encode([text]).ids[0]
with torch.no_grad():
    states = encoder.bert(torch.tensor([ids]))  # (1, T, D)
    pooled = pooling.mean_pool(states)  # (1, D)
vector = pooled / pooled.norm()
print(encoder.pooling.mode, encoder.normalize, vector[0, :4])
whole = encoder.encode([text])
assert largest_difference(vector, whole) < 1e-6, "as in lesson 01"

# %% [markdown]
# **Exercise 1.** Pool with weights 1, 1/2, 1/3, ... from the front. What would you expect of it, and why?

# %% [markdown]
# ## The figure
#
# The same short sentence with more and more pads after it, as in a batch with ever longer neighbours. How near is its
# vector to the one without pads?
#
# ![Cosine with the unpadded vector, by number of pads](figures/08_pooling.png)

# %%
counts = list(range(0, 41, 4))


def drift(pool):
    """The cosine between ``pool`` with each number of pads and ``pool`` without any."""
    found = []
    with torch.no_grad():
        for count in counts:
            padded = torch.tensor([ids + [0] * count])
            real = torch.arange(len(ids) + count)[None] < len(ids)  # (1, T)
            with_pads = pool(encoder.bert(padded, real), real)
            found.append(cosine(with_pads, pool(states, None)).item())
    return found


curves = {"mean": drift(pooling.mean_pool), "max": drift(pooling.max_pool)}
for name in ("mean over pads", "max over pads"):
    with planted(MISTAKES[name]):
        curves[name] = drift(getattr(pooling, MISTAKES[name].attribute))


def draw(plt):
    drawn, axes = plt.subplots(figsize=(7.5, 3.3), layout="constrained")
    styles = (("-", "#1f4e79"), ("--", "#8bb8de"), ("-o", "#c0392b"), ("-s", "#e59866"))
    for (label, values), (style, shade) in zip(curves.items(), styles, strict=True):
        axes.plot(counts, values, style, color=shade, label=label, markersize=4)
    axes.set(xlabel="pads behind the sentence", ylim=(0.5, 1.02))
    axes.set_ylabel("cosine with the vector without pads")
    axes.set_title(f'"{text}", {len(ids)} tokens')
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


figure("08_pooling", draw)
for name, values in curves.items():
    print(f"{name:16} with 40 pads: cosine {values[-1]:.3f}")
assert min(curves["mean"] + curves["max"]) > 0.99999, "with the mask, pads do not exist"
assert curves["mean over pads"][-1] < 0.7, "without it they decide: 40 votes against 6"
assert 0.9 < curves["max over pads"][-1] < 0.99, "max lets in fewer of them"

# %% [markdown]
# ## Predict, then run
#
# **1.** Attention gave no probability to the pads. Are the hidden states *at* the pads zero?

# %%
guess = predict("08.1", "Are the hidden states at the pads zero?", ["yes", "no"])

# %%
with torch.no_grad():
    padded, real = pad_batch([ids, ids + ids], 0)
    at_pads = encoder.bert(padded, real)[0, len(ids) :]  # (pads, D)
of_pads, of_tokens = at_pads.norm(dim=-1), states.norm(dim=-1)
print(f"length at the pads {of_pads.mean():.1f}, at the tokens {of_tokens.mean():.1f}")
assert of_pads.min() > 3, "no token looks at a pad, but a pad looks at the others"
guess.answer("no")

# %% [markdown]
# **2.** Three poolings (`pooling.POOLINGS` has them by name), one text: does the vector change if [SEP] is removed? And
# how do the vectors of mean and cls compare: nearly equal, or far apart?

# %%
guess = predict(
    "08.2",
    "The vectors of mean and cls for one text are ...",
    ["nearly equal", "related", "at right angles"],
)

# %%
with torch.no_grad():
    apart = cosine(pooling.mean_pool(states), pooling.cls_pool(states)).item()
    without = encoder.bert(torch.tensor([ids[:-1]]))
    for name in ("mean", "cls", "max"):
        pool = pooling.POOLINGS[name]
        near = cosine(pool(states), pool(without)).item()
        print(f"{name:5} without [SEP]: cosine {near:.3f}")
        assert near < 0.9999, "all of them: [SEP] takes part in every layer"
print(f"mean and cls of one text: cosine {apart:.2f}")
assert 0.5 < apart < 0.95, "related, not equal"
guess.answer("related")

# %% [markdown]
# **3.** A text that says everything twice has the same tokens twice. Is its mean the vector of the text said once?

# %%
guess = predict(
    "08.3",
    "Said twice in one text, the cosine with the vector of it said once is ...",
    ["1", "about 0.94", "about 0.6"],
)

# %%
once, twice = encoder.encode([text, f"{text} {text}"])
print(f"cosine {once @ twice:.3f}")
assert 0.9 < once @ twice < 0.99, "other positions, other neighbours: other states"
guess.answer("about 0.94")

# %% [markdown]
# The mean counts each token as often as it stands there, but the states that it averages are not the same ones.
#
# A text must get the same vector whatever else is in its batch. That is worth a test of its own: it needs no reference.

# %%
long = "In the beginning the committee had wanted to publish the whole report. " * 3
together = encoder.encode([text, long])[0]
assert largest_difference(once, together) < 1e-6, "by rounding only"

# %% [markdown]
# ## Sort, pad, run, put back
#
# Now the call that everybody makes, `encoder.encode(texts)`. A batch goes through the model in one call, `encoder(ids,
# mask)`, which runs `forward`. It is the same for training and for use:
#
#     vectors = pooling(bert(ids, mask), mask)         (B, T) -> (B, T, D) -> (B, D)
#     and, if self.normalize, each of them scaled to length 1
#
# `encode` makes batches of any number of texts, in four steps:
#
#     sort       the numbers of the texts, 0 to n - 1, by how many tokens each has, the shortest first
#     pad        the next batch_size of them: their rows of ids as one rectangle, with its mask (lesson 02's `pad_batch`)
#     run        ids and mask through the model, without gradients: a vector for each row
#     put back   row i of the result is the vector of text i: NumPy, (n, D), in the dtype of the model's weights
#
# What is the sorting for? Count the pads of four texts in two batches, as they come and sorted.

# %%
four = ["Rain.", "A cat sits on the mat.", "Snow falls.", "Dogs bark all night long."]
rows = encoder.tokenizer.encode(four).ids
lengths = [len(row) for row in rows]


def pads(order):
    """How many pads are computed if the texts are taken two by two in this order."""
    total = 0
    for pair in (order[:2], order[2:]):
        _, real = pad_batch([rows[number] for number in pair], encoder.tokenizer.pad_id)
        total += 0 if real is None else (~real).sum().item()
    return total


by_length = sorted(range(4), key=lambda number: lengths[number])
print(f"lengths {lengths}: {pads([0, 1, 2, 3])} pads as they come", end=", ")
print(f"{pads(by_length)} in the order {by_length}")
assert pads(by_length) < pads([0, 1, 2, 3]), "work for nothing, and most of it is saved"

# %% [markdown]
# **Write it:** `SentenceEncoder.forward` and `SentenceEncoder.encode`. The tokenizer is `self.tokenizer`, with `encode`
# and `pad_id`; the other parts are `self.bert`, `self.pooling`, `self.normalize`, `self.width` (D). The stub imports two
# functions of the book: lesson 02's `pad_batch`, and `normalize`, which scales each row of a matrix to length 1.
#
# Then read the class in which everything so far comes together. `vectors[batch] = ...` puts rows back. What would you get
# from a list to which each batch is appended? `encode` calls `forward`, and so does training. What does that guarantee?
# Sort the texts the other way round, the longest first: which numbers change?

# %%
alone = [encoder.encode([text])[0] for text in four]
assert largest_difference(encoder.encode(four, batch_size=2), alone) < 1e-6, "put back"

# %%
chapter("encoder", "top", "SentenceEncoder.__init__", "SentenceEncoder.load")
chapter("encoder", "SentenceEncoder.encode", "SentenceEncoder.forward")

# %% [markdown]
# **Exercise 2.** The sum of the tokens instead of their mean: which of the four similarities of lesson 09 (cosine, dot
# product, Euclidean distance, and Manhattan distance, the sum of |u[d] - v[d]|) would notice?
#
# ## Break it
#
# Two texts of different length in one batch. For each mistake: the largest change of the pooled vectors, and the least
# cosine between right and wrong.

# %%
batch, real = pad_batch(encoder.tokenizer.encode([text, long]).ids, 0)
with torch.no_grad():
    h = encoder.bert(batch, real)  # (2, T, D)
changes, cosines = {}, {}
for name, mistake in MISTAKES.items():
    if mistake.target in ("pooling.mean_pool", "pooling.max_pool", "pooling.cls_pool"):
        right = getattr(pooling, mistake.attribute)(h, real)
        with planted(mistake):
            wrong = getattr(pooling, mistake.attribute)(h, real)
        changes[name] = largest_difference(right, wrong)
        cosines[name] = cosine(right, wrong).min().item()
        row = f"{name:28} largest change {changes[name]:6.3f}"
        print(f"{row}   least cosine {cosines[name]:.4f}")

# %% [markdown]
# *divided by T* and *one global denominator* change the numbers a lot and the direction not at all, so no cosine and no
# score made of cosines shows them. The mistake surfaces only when somebody uses the vector's length: a dot product, a
# Euclidean distance, a head that reads u and v as they are (lesson 15).

# %%
for name in ("divided by T", "one global denominator"):
    assert changes[name] > 0.1, f"{name}: other numbers"
    assert cosines[name] > 0.99999, f"{name}: the same direction"
for name in ("mean of the first n", "finite fill in max", "NaN hidden in the mean"):
    assert changes[name] < 1e-6, f"{name}: hidden here"
for name in ("mean over pads", "max over pads", "CLS taken from the last token"):
    assert cosines[name] < 0.99, f"{name}: another direction"

# %% [markdown]
# Some mistakes do not show on this batch, and two give nan or inf. *mean of the first n* and *max of the first n* are
# right as long as all pads are at the end. *finite fill in max* needs states below -10^9, and *NaN hidden in the mean*
# a NaN. The longer text has no pads, so the mean and the largest of its pads are 0/0 and minus infinity.
#
# *pads set to 0 before max* is wrong only in columns whose real tokens are all negative. How many are there?

# %%
negative = (pooling.max_pool(h[:1], real[:1]) < 0).sum().item()
print(f"{negative} of 384 columns of the short text")
with planted(MISTAKES["pads set to 0 before max"]):
    zeroed = pooling.max_pool(h[:1], real[:1])
assert (zeroed == 0).sum().item() == negative > 0, "where the pad's 0 has won"

# %% [markdown]
# A mask can also fail without a mistake in any formula: 0 * NaN is NaN. Multiply by the mask, and one bad
# number in a pad spoils the sentence; fill instead, and it does not.

# %%
spoiled = hidden.clone()
spoiled[0, 3] = float("nan")
print(pooling.mean_pool(spoiled, mask), (spoiled * mask[..., None]).sum(1))
assert not pooling.mean_pool(spoiled, mask).isnan().any(), "filled"
assert (spoiled * mask[..., None]).sum(1).isnan().all(), "multiplied"

# %% [markdown]
# **Exercise 3.** Pool without [CLS] and [SEP] ("[CLS] and [SEP] left out" is in the list above). Is it worse? Lesson
# 09 has the means to measure it.

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 08 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: mean, max and attention pooling, `forward` and `encode`: `python -m lessons.check start 08`,
# `run 08`, `hint 08`.
#
# ## Sources
#
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 3; section 6 and table 6: mean, max and cls compared.
# - Devlin et al. 2019, *BERT*, section 3, just before 3.1: [CLS] as the summary of a text.
# - Gao, Yao and Chen 2021, *SimCSE*, section 6.3 and table 6: cls with and without a dense layer, and the average of
#   first and last layer.
#
# ## What you have now
#
# `python -m lessons.check mine 08` shows your vectors beside MiniLM's.
#
# You have rebuilt a sentence encoder from text to vector. Part I is done. Next: [cosine, Pearson,
# Spearman](09_similarity.py).
