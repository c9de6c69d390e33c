# %% [markdown]
# # Lesson 14: your own pieces inside the real model
#
# Uses `lessons/mistakes/planting.py` and `minisbert/diagnosis/tracing.py`. Reading 45, exercises 200 minutes. You
# will put hand-written pieces into the running package, let three instruments judge them, lose a bug among them and
# find it again.

# %%
import numpy as np
import torch
from course import figure, heatmap, largest_difference, predict

# %% [markdown]
# ## The question
#
# You have rebuilt the pieces one by one, and each has passed its checks. Are they a model? Do they hold together with
# 22 million real weights, forward, backward, over ten steps of training, up to a correlation? And when something is
# off in the whole: which piece was it?
#
# ## The formula
#
# Everything so far in one line, from a pair of texts to a number:
#
#     text -> ids -> h[0] -> h[1] .. h[L] -> mean over real tokens -> length 1 -> cosine -> rank -> Spearman
#
# And three instruments, each a difference from what the reference has computed:
#
#     layers     max over all layers and real tokens of | h ours - h reference |     tolerance 2e-5, float32
#     losses     max over ten training steps of | loss ours - loss reference |       tolerance 1e-9, float64
#     score      | Spearman ours - Spearman of the right code |, times 100
#
# ## The real function
#
# First the pieces. These are not copies of the package's: like yours, they write the same formulas in another way.
# Names and arguments are those of the package. `torch.einsum("bhtj,bhsj->bhts", q, k)` multiplies the elements of q and
# k and sums over j, the letter that is missing on the right; erfc(x) is 1 - erf(x); `addcmul(a, b, c)` is a + b * c.

# %%
from minisbert.checkpoints.layout import find_model
from minisbert.core.encoder import SentenceEncoder

FOLDER = find_model("all-MiniLM-L6-v2")
encoder = SentenceEncoder.load(FOLDER)  # the book's: its encode runs on the pieces

# %%
import math


def attention(query, key, value, mask=None, dropout=0.0):
    """query (B, H, T, K), key, value (B, H, S, K) -> context, probabilities (B, H, T, S)."""
    scores = torch.einsum("bhtj,bhsj->bhts", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    probabilities = exponentials / exponentials.sum(-1, keepdim=True)
    kept = torch.nn.functional.dropout(probabilities, dropout)
    return torch.einsum("bhts,bhsj->bhtj", kept, value), probabilities


def gelu(x):
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def layer_norm(x, weight, bias, eps):
    variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return torch.addcmul(bias, (x - mean) / (variance + eps).sqrt(), weight)


def mean_pool(hidden, mask=None):
    if mask is None:
        return hidden.sum(1) / hidden.shape[1]
    mask = mask.bool()
    shares = mask.to(hidden.dtype) / mask.sum(1, keepdim=True)  # (B, T), sum 1
    real = torch.where(mask[..., None], hidden, 0.0)  # 0 times NaN would be NaN
    return torch.einsum("bt,btd->bd", shares, real)


def ranks(x):
    """Half-way between the first and the last place that each value could have."""
    ordered = np.sort(x)
    first, last = (np.searchsorted(ordered, x, side) for side in ("left", "right"))
    return (first + last + 1) / 2


def linear_schedule(step, warmup, total):
    up = step / warmup if warmup else 1.0
    return max(0.0, min(up, (total - step) / max(1, total - warmup)))


# %% [markdown]
# `replaced` of `lessons/mistakes/planting.py` puts a function wherever the package holds the original: in its own
# module, in modules that have imported it, in tables. `planted` uses it for mistakes. To **graft** is to use it for
# pieces, here with a count of how often each is called. On three numbers:

# %%
from collections import Counter
from contextlib import ExitStack, contextmanager

from lessons.grader.pieces import PIECES
from minisbert.core import bert
from lessons.mistakes.planting import replaced


@contextmanager
def grafted(functions):
    """While this lasts the book computes with these functions."""
    with ExitStack() as stack:
        for master, function in functions.items():
            piece = PIECES[master]
            put = replaced(piece.original, function, piece.owner, piece.path[-1])
            stack.enter_context(put)
        yield


def counted(function, master):
    def call(*arguments, **options):
        calls[master] += 1
        return function(*arguments, **options)

    return call


calls = Counter()
written = {
    "bert.attention": attention,
    "bert.gelu": gelu,
    "bert.layer_norm": layer_norm,
    "pooling.mean_pool": mean_pool,
    "metrics.ranks": ranks,
    "loop.linear_schedule": linear_schedule,
}
pieces = {master: counted(function, master) for master, function in written.items()}
x = torch.tensor([-1.0, 0.0, 2.0])
before = bert.gelu(x)
with grafted(pieces):
    within = bert.gelu(x)
after = bert.gelu(x)
print(before, within, after, dict(calls), sep="\n")
assert calls["bert.gelu"] == 1, "only in between it was ours"
assert largest_difference(within, before) < 1e-6, "the same numbers"
assert torch.equal(before, after), "and the package is as it was"

# %% [markdown]
# ## Three instruments
#
# The layers of MiniLM on three texts of `tests/reference/`, the ten losses of lesson 11, and Spearman on 100 pairs. All
# three go through the book, because nothing in the package goes around it.

# %%
from minisbert.core import metrics
from minisbert.core.encoder import cosine
from minisbert.data.rows import load_scored_pairs
from minisbert.diagnosis.tracing import HIDDEN
from tests.parity import golden
from tests.parity.checks import CHECKS

reference = golden("minilm")
pairs = load_scored_pairs("stsb", "test")[::14][:100]
texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
people = [pair.score for pair in pairs]


def layers():
    """The largest difference from the reference's hidden states, all layers."""
    real = reference["mask"]
    with torch.no_grad():
        states = encoder.bert.hidden_states(reference["ids"], real)
    return max(
        largest_difference(h[real], reference[f"hidden.{i}"][real])
        for i, h in enumerate(states)
    )


def ten_losses():
    """The largest difference from the reference's ten losses."""
    found = {fact.name: fact for fact in CHECKS["training_trace"]()}
    return found["10 losses"].largest


def score():
    """Spearman x 100 on the pairs."""
    vectors = torch.from_numpy(encoder.encode(texts, batch_size=20))
    u, v = vectors.chunk(2)  # (N, D) each
    return 100 * metrics.spearman(cosine(u, v), people)


right_score = score()
calls.clear()
with grafted(pieces):
    found = layers(), ten_losses(), score()
print(f"layers {found[0]:.1e}, losses {found[1]:.1e}")
print(f"score {found[2]:.4f}, the package's {right_score:.4f}")
for master, times in calls.items():
    print(f"  {master:24} called {times:,} times")
assert found[0] <= HIDDEN, "the layers of MiniLM, on hand-written pieces"
assert found[1] <= 1e-9, "ten losses: so the gradients are right, too"
assert abs(found[2] - right_score) < 0.01, "and the score"
assert set(calls) == set(pieces), "every piece was really used"

# %% [markdown]
# That is what `python -m lessons.check mine 14` does with *your* model: it grades your files, joins what passes and
# the book's rest to one file, `lessons/mine/my_minisbert.py`, and runs these instruments on all 1,379 pairs.
#
# **Exercise 1.** Find a mistake that none of the three instruments notices. (What do they never do? Long texts,
# batches of one, token types, dropout.) Then write the check that would.

# %% [markdown]
# ## The figure
#
# Eight mistakes, and what each instrument says of them. A dark field: the instrument has noticed.
#
# ![Which instrument notices which mistake](figures/14_capstone.png)

# %%
from lessons.mistakes import MISTAKES, planted

NAMES = (
    "no attention mask",
    "mask of -10",
    "tanh GELU",
    "LayerNorm eps 1e-5",
    "detached probabilities",
    "mean over pads",
    "warm-up off by one",
    "Spearman without tie handling",
)
seen = {}
for name in NAMES:
    with planted(MISTAKES[name]):
        seen[name] = layers(), ten_losses(), abs(score() - right_score)
    print(f"{name:30}", *(f"{value:8.1e}" for value in seen[name]))
bounds = (HIDDEN, 1e-9, 0.1)  # a score that moves by less than a tenth tells nothing
noticed = {}
for name, values in seen.items():
    noticed[name] = [value > bound for value, bound in zip(values, bounds, strict=True)]


def draw(plt):
    drawn, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
    columns = [f"layers\n> {HIDDEN:g}", "ten losses\n> 1e-9", "Spearman\n> 0.1"]
    heatmap(axes, 0.85 * np.array([noticed[name] for name in NAMES]), NAMES, columns)
    axes.set_xticks(range(3), columns, rotation=0, ha="center")
    axes.set_aspect("auto")
    for row, name in enumerate(NAMES):
        for column, form in enumerate((".0e", ".0e", ".2f")):
            ink = "white" if noticed[name][column] else "black"
            number = f"{seen[name][column]:{form}}"
            axes.text(column, row, number, ha="center", va="center", color=ink)
    return drawn


figure("14_capstone", draw)
assert all(any(flags) for flags in noticed.values()), "together they miss none of these"
for column in range(3):
    assert not all(flags[column] for flags in noticed.values()), "none is enough alone"
assert noticed["detached probabilities"] == [False, True, False], "a wrong gradient"
assert sum(flags[2] for flags in noticed.values()) == 3, "the score misses five"
assert noticed["tanh GELU"][0], "a wrong function: the layers tell,"
assert not noticed["tanh GELU"][2], "and the score does not"

# %% [markdown]
# Look down the last column: the score has noticed three of the eight.
#
# ## Predict, then run
#
# **1.** You graft your `attention` and encode 200 sentences with the book, 20 at a time, through 6 layers. How many
# times is it called?

# %%
guess = predict(
    "14.1",
    "How often is your attention called by the book?",
    ["10 times", "60 times", "200 times", "1,200 times"],
)

# %%
import minisbert

calls.clear()
fast_encoder = minisbert.SentenceEncoder.load(FOLDER)
with grafted(pieces):
    encoder.encode(texts, batch_size=20)
    by_book = calls["bert.attention"]
    fast_encoder.encode(texts)  # several sentences in a row: lesson 25
print(f"book {by_book}, minisbert.SentenceEncoder {calls['bert.attention'] - by_book}")
assert by_book == 200 / 20 * 6, "once for each layer of each batch"
assert calls["bert.attention"] > by_book, "yours in the other as well: one forward"
guess.answer("60 times")

# %% [markdown]
# ## Break it
#
# Now lose a bug. Somebody wrote the einsum of the scores with two letters exchanged, "bhst" for "bhts". No shape is
# wrong, for s and t run over the same sentence. Every row still sums to 1.


# %%
def attention_with_typo(query, key, value, mask=None, dropout=0.0):
    scores = torch.einsum("bhtj,bhsj->bhst", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    probabilities = scores.softmax(-1)
    return torch.einsum("bhts,bhsj->bhtj", probabilities, value), probabilities


with grafted(pieces | {"bert.attention": attention_with_typo}):
    found = layers(), ten_losses(), score()
print(f"layers {found[0]:.1e}, losses {found[1]:.1e}")
print(f"score {found[2]:.2f}, right {right_score:.2f}")
assert found[0] > HIDDEN, "the layers say no,"
assert found[1] > 1e-9, "the losses say no,"
assert found[2] > 10, "and yet the score is not nothing"

# %% [markdown]
# Three instruments say that something is wrong; none says what. (The score is not nothing, because the residual sums
# carry the words past attention.) So compare every intermediate result with the package's, which lesson 07 has compared
# with transformers, and find the first that differs.

# %%
from minisbert.diagnosis.tracing import (
    VECTOR,
    compare_states,
    first_divergence,
    inputs_of,
    our_states,
    print_rows,
)

three = ["A man is playing a guitar.", "Hi", "Two dogs run through the snow."]
inputs = inputs_of(fast_encoder, three)
truth = our_states(fast_encoder, inputs)
tolerances = {name: VECTOR if name == "vector" else HIDDEN for name in truth}


def states_with(**changed):
    with grafted(pieces | {f"bert.{name}": changed[name] for name in changed}):
        return our_states(fast_encoder, inputs)


def again():
    """Ours, with whatever is planted in it, beside the port's."""
    ours = our_states(fast_encoder, inputs)
    return compare_states(ours, ported, inputs["mask"], tolerances)


ported = states_with(attention=attention_with_typo)
rows = again()
print_rows(rows[:4])
assert first_divergence(rows).name == "layers.0.attention", "it is in attention"

# %% [markdown]
# And the known mistakes, one after the other on our side, until everything is equal.

# %%
from lessons.mistakes.hunt import suspects, verdict

whole, part = suspects(rows, again)
print(verdict(rows, whole, part))
assert whole == ["q and k swapped"], "t and s exchanged, or q and k: the same numbers"

# %% [markdown]
# **Two bugs at once.** The same typo, and somewhere else tanh for erf. Now no single mistake explains everything.


# %%
def tanh_gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


ported = states_with(attention=attention_with_typo, gelu=tanh_gelu)
rows = again()
whole, part = suspects(rows, again)
print(verdict(rows, whole, part))
assert whole == [], "none alone"
assert part == {"q and k swapped": "layers.0"}, "with it the first attention agrees"
ported = states_with(gelu=tanh_gelu)  # the first is repaired; look again
rows = again()
whole, part = suspects(rows, again)
print(verdict(rows, whole, part))
assert whole == ["tanh GELU"], "one at a time, from the front"

# %% [markdown]
# **Exercise 2.** Write the typo into your own file in `lessons/mine/`, and run `python -m lessons.check run 05`, then
# `mine 14`. What does the grader call it, and what does `mine` do with it?
#
# **Exercise 3.** Draw a mistake with `random.choice` that you do not look at, plant it in a friend's checkout, and
# give them only `minisbert trace`. How long do they need?
#
# **Exercise 4.** Port the encoder to another framework, dump every intermediate result under the same names, and let
# `minisbert trace --against yours.safetensors` speak.
#
# ## Exercises
#
# Exercises 1 to 4 stand above; `python -m lessons.check answer 14 1` gives a hint for the first, then the answer.
#
# **Exercise 5.** Graded: everything at once, `python -m lessons.check mine 14`. The capstone has no pieces itself, so
# there is no `python -m lessons.check start 14`.
#
# ## Sources
#
# - Reimers and Gurevych 2019, *Sentence-BERT*. All of it: you can now.
# - Sculley et al. 2015, *Hidden technical debt in machine learning systems*: why silent errors are the expensive ones.
# - Karpathy 2019, *A recipe for training neural networks*: "neural net training fails silently".
#
# ## What you have now
#
# Your own functions run inside the real model, and you can find whose fault a wrong number is. Part II is done. Next:
# [three heads that score a pair](15_heads.py).
