# %% [markdown]
# # Lesson 22: what changed since BERT: positions and norms
#
# Steps through `minisbert/architectures/mpnet.py`, `minisbert/architectures/modern.py`,
# `minisbert/architectures/qwen3.py`. About 60 minutes. You will put each of the changes alone into the book's layer and
# find out what it buys. Lesson 23 has what is left: who may look at whom, decoders, and their bugs.

# %%
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# BERT is from 2018. It is an encoder: each token sees all others. A **decoder** is a transformer that was trained to
# write, so each token sees only what comes before it (lesson 23). The encoders and decoders that lead the tables today
# have another layer: positions are no longer added, LayerNorm has moved and lost its mean, the feed-forward block has
# a third matrix, biases are gone. Which of these makes vectors better, which makes them cheaper, and which is only a
# habit? One change at a time, on a tiny model and a task that it learns in three seconds.
#
# ## The formula
#
# Where BERT has the left side, newer models have the right one. As in lesson 05, token t asks and s answers:
#
#     x = word[id] + position[t]              x = word[id], and places enter the scores:
#     score[t, s] = q k / sqrt(K)             q k / sqrt(K) + bias[bucket(s - t)]     relative position bias
#                                             (R_t q) (R_s k) / sqrt(K)               rotary positions
#     x = LayerNorm(x + f(x))                 x = x + f(norm(x))                      pre-norm
#     (x - mean) / std * gamma + beta         x / sqrt(mean of x^2) * gamma           RMSNorm
#     W2 gelu(W1 x + b1) + b2                 W3 (silu(W1 x) * W2 x)                  SwiGLU; GeGLU with gelu
#
# **SiLU** is one more non-linearity, z times the sigmoid (lesson 15) of z.
#
# `R_t` turns each pair of columns (i, i + K/2) by the angle t * base^(-2i/K): the first pair by one radian per token,
# the last ones hardly at all.

# %% [markdown]
# ## The real function
#
# **Relative position bias** (T5, MPNet): one learned number per head for each distance, added to the score. Near
# distances have a number each, far ones share. 32 buckets do for any length.

# %%
import math

from minisbert.architectures.mpnet import relative_buckets
from minisbert.core import bert

bert.FUSED = True  # lesson 26: the same numbers in less time

distances = torch.tensor([0, -1, -7, -8, -11, -12, -90, -91, -5000])
print(relative_buckets(distances).tolist())
by_logarithm = [
    d if d < 8 else min(15, 8 + int(8 * math.log(d / 8) / math.log(16) + 1e-9))
    for d in range(6000)
]
assert relative_buckets(-torch.arange(6000)).tolist() == by_logarithm, (
    "eight exact, then eight on a logarithmic scale"
)

# %% [markdown]
# **Rotary positions** (Su et al. 2021): nothing is learned. A query and a key are turned by their places, and the dot
# product of two turned vectors sees only the difference of the angles.


# %%
from minisbert.architectures import modern


def turned(x, place, base=10_000.0):
    """x (..., K) as a query or key at a place, K even."""
    first, second = x.chunk(2, dim=-1)  # (..., K / 2) each: i belongs with i + K / 2
    exponents = -torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]
    angles = place * base**exponents  # (K / 2,) radians
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


right_angle = turned(torch.tensor([1.0, 0.0]), math.pi / 2)
assert largest_difference(right_angle, [0, 1]) < 1e-6, "K = 2: a quarter of a turn"
torch.manual_seed(0)
q, k = torch.randn(2, 8).double()
near, far = turned(q, 7) @ turned(k, 3), turned(q, 1007) @ turned(k, 1003)
print(f"4 apart: {near:.9f} at places 7 and 3, {far:.9f} at 1007 and 1003")
assert abs(near - far) < 1e-9, "only the distance counts"

places = torch.arange(20)
cos, sin = modern.rotary(places[None], 8, 10_000.0, torch.float64)  # (1, 1, T, K)
ours = torch.stack([turned(q, place) for place in places])
packages = modern.rotate(q.expand(1, 1, 20, 8), cos, sin)[0, 0]
assert largest_difference(packages, ours) < 1e-12, "the package's rotate"

# %% [markdown]
# The **base** says how slowly the slowest pair turns. As long as it has not come round, it tells far places apart.
# Change the base under a trained model, and every distance means another one.

# %%
for base in (
    10_000,
    160_000,
    1_000_000,
):  # ModernBERT has the first two, Qwen3 the last
    tokens = 2 * math.pi * base ** (62 / 64)
    print(f"base {base:9,}, K = 64: the last pair comes round after {tokens:11,.0f}")

# %% [markdown]
# **RMSNorm** is LayerNorm without the mean and beta. [1, 7] has the mean square 25. And what of the mean? Here is its
# share of the mean square in all thirteen places where MiniLM has a LayerNorm:


# %%
from torch.nn import functional

from lessons.mistakes import planted
from minisbert.core.encoder import SentenceEncoder
from minisbert.diagnosis.planting import Mistake
from minisbert.system.assets import ensure


def rms(x, gamma, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gamma


x = torch.tensor([1.0, 7.0])
print(rms(x, 1, 0), bert.layer_norm(x, torch.ones(2), torch.zeros(2), 1e-12))
assert largest_difference(rms(x, 1, 0), [0.2, 1.4]) < 1e-6, "divided by 5"

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
texts = ["A cat sits on the mat.", "The stock market fell sharply today."]
shares = []


def spy(x, weight, bias, eps):
    shares.append((x.mean(-1).pow(2) / x.pow(2).mean(-1)).mean().item())
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


with planted(Mistake("spy", "no mistake", bert, "layer_norm", spy)):
    right_vectors = encoder.encode(texts)  # (3, D)
print(f"{len(shares)} LayerNorms, the mean is at most {max(shares):.2%} of that")
assert len(shares) == 13, "after the embeddings, and twice in each of six layers"
assert max(shares) < 0.01, "the mean that LayerNorm subtracts was hardly there"

# %% [markdown]
# **SwiGLU** (Shazeer 2020): two matrices lead up, and one result decides how much of the other passes. With F cut to
# two thirds it has as many parameters as before. What is it good for? It can multiply. Both blocks learn x_i * x_(i+1)
# in 400 steps:


# %%
from types import SimpleNamespace

from torch import nn

from lessons.chases import trained
from minisbert.architectures import qwen3 as decoder


def gated(gate, up):
    return gate * torch.sigmoid(gate) * up


assert largest_difference(gated(*torch.tensor([1.0, 2.0])), 1.4621) < 1e-4, "2 * 0.7311"


def error(model, x):
    return (model(x) - x * x.roll(1, 1)).pow(2).mean()


torch.manual_seed(0)
up, down = nn.Linear(8, 48, bias=False), nn.Linear(48, 8, bias=False)
sizes = SimpleNamespace(hidden_size=8, intermediate_size=32)
gated_block = decoder.GatedFeedForward(sizes)  # down(gated(gate(x), up(x)))
blocks = {"GELU": nn.Sequential(up, nn.GELU(), down), "SwiGLU": gated_block}
inputs = [torch.randn(64, 8) for _ in range(400)]
products = {name: trained(blocks[name], error, inputs, rate=1e-2) for name in blocks}
for name, block in blocks.items():
    count = sum(parameter.numel() for parameter in block.parameters())
    print(f"{name:7}{count} parameters, squared error {products[name]:.3f}")
assert products["SwiGLU"] < 0.6 * products["GELU"], (
    "a sum of functions of single numbers can only approach a product"
)

# %% [markdown]
# **No biases.** One of BERT's biases has never done anything: that of the keys. It adds q b to *all* scores of a query,
# and softmax does not care.

# %%
for layer in encoder.bert.layers:
    layer.attention.key.bias.data.zero_()
change = largest_difference(encoder.encode(texts), right_vectors)
print(f"without the biases of the keys: {change:.1e}")
assert change < 1e-6, "2,304 trained numbers, and no vector changes"

# %% [markdown]
# **Exercise 1.** Count the parameters of one layer of BERT-base, ModernBERT-base (F = 1,152, gated, no biases) and
# Qwen3's 0.6 B (D = 1,024, F = 3,072).

# %% [markdown]
# ## Who chased whom
#
# The task: facts of three words, "cat chases dog", among other words. A query has the fact after the word *find*, a
# document has it among other fillers. For each query there is one right document, and one in which dog chases cat: the
# same words. Who guesses between the two finds every second one. Facts of the test are not in the training.
# (`lessons/chases.py` makes the texts; its `learn` is a loop of lesson 11 with the loss of lesson 10, and the other
# document as a hard negative.) In ids: 1 begins a text, 2 ends it, 3 is *find*, 4 to 15 are animals, 16 to 21 verbs,
# the rest are fillers.

# %%
from lessons.chases import documents_of, queries_of, unknown

print("query   ", queries_of(unknown[:1])[0])
print("document", documents_of(unknown[:1])[0])
print("rival   ", documents_of(unknown[1:2])[0])
assert unknown[0] == unknown[1][::-1], "the same three words, the other way round"

# %% [markdown]
# Four ways to say where a word is, each in the book's layer: not at all; the book's table; MPNet's bias without the
# table; rotation without the table. Then the facts move to places that no training text had.


# %%
from lessons.chases import FAR, Embedder, book, found, learn, mpnet


class RotaryAttention(bert.Attention):
    """The book's attention with rotated queries and keys; base 100, because the texts are short."""

    def forward(self, x, mask):
        query, key = self.split(self.query(x)), self.split(self.key(x))
        places = torch.arange(x.shape[1])[None]
        cos, sin = modern.rotary(places, query.shape[-1], 100.0, x.dtype)
        query, key = modern.rotate(query, cos, sin), modern.rotate(key, cos, sin)
        value = self.split(self.value(x))
        context, probabilities = bert.attention(query, key, value, mask)
        return self.output(self.merge(context)), probabilities


kinds = {
    "no places": book(),
    "a table of places": book(),
    "relative bias": mpnet(),
    "rotary": book(attention=RotaryAttention),
}
models, moved = {}, {}
for name, model in kinds.items():
    if name != "a table of places":  # of the others none has a table
        model.embeddings.position.weight.requires_grad_(False).zero_()
    models[name] = Embedder(model)
    last_loss = learn(models[name])
    moved[name] = found(models[name]), found(models[name], FAR)
    print(f"{name:20}loss {last_loss:.3f}", end="   ")
    print(f"found {moved[name][0]:5.1%}, at new places {moved[name][1]:5.1%}")
assert moved["no places"][0] < 0.65, "a bag of words: a coin decides who chased whom"
assert min(moved[name][0] for name in moved if name != "no places") > 0.8, (
    "each of the three can tell"
)
assert moved["a table of places"][1] < 0.6, "rows of the table that were never trained"
assert min(moved["relative bias"][1], moved["rotary"][1]) > 0.75, (
    "a distance is the same everywhere"
)

# %% [markdown]
# That is what the change buys: not a better vector, but one that does not depend on where in the text something
# stands, and no table that ends at 512. (A text longer than all that the model was trained on is another matter: its
# new lengths are new distances.)
#
# **Exercise 2.** ALiBi: minus a slope times |t - s| in place of a learned bias, slopes 1/2, 1/4, 1/8, 1/16. Who
# chased whom?
#
# ## How deep one can go
#
# Post-LayerNorm divides the sum by its size, at each of 2 L sums. Let a block's result be as large as its input, and
# independent of it: the sum is larger by sqrt(2), LayerNorm takes that back, and with it a factor of the gradient that
# came by the direct way. **Pre-norm** leaves the sum alone.


# %%
def direct(pre, layers=24, width=512):
    """How much of a gradient passes 2 * ``layers`` sums on the direct way, with blocks of noise."""
    torch.manual_seed(0)
    start = x = torch.randn(width, dtype=torch.float64, requires_grad=True)
    for _ in range(2 * layers):
        x = x + torch.randn(width, dtype=torch.float64)
        x = x if pre else functional.layer_norm(x, (width,))
    weight = torch.randn(width, dtype=torch.float64)
    return (torch.autograd.grad(x @ weight, start)[0].norm() / weight.norm()).item()


after, before = direct(pre=False), direct(pre=True)
print(f"24 layers, directly: post-norm {after:.1e}, pre-norm {before:.3f}")
assert 0.5 < after / 2**-24 < 2, "a factor of 1 / sqrt(2), 48 times: 6e-8"
assert abs(before - 1) < 1e-12, "a sum hands its gradient on as it is"

# %% [markdown]
# The blocks carry gradients too, or nobody could have trained BERT; exercise 3 measures how much of the difference is
# left. (A pre-norm model has one more norm at its end: nothing has normalised the last sum, and it grows with each
# layer.)
#
# **Exercise 3.** Twelve layers, `book(12, size=32**-0.5)` of `lessons/chases.py`, learn 60 steps, once as they are and
# once pre-norm. What is the loss of each?

# %% [markdown]
# ## The figure
#
# Left: how often the right document is found, at places of the training and beyond. Right: what is left of a gradient
# on the direct way, by depth.
#
# ![Found by kind of position; gradient by depth](figures/22_what_changed_since_bert.png)


# %%
def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    rows = range(len(moved))
    for offset, (which, shade) in enumerate(
        (("trained places", "#1f4e79"), ("places beyond", "#8bb8de"))
    ):
        values = [100 * pair[offset] for pair in moved.values()]
        left.barh(
            [row + 0.2 - 0.4 * offset for row in rows],
            values,
            0.38,
            color=shade,
            label=which,
        )
    left.set(yticks=rows, yticklabels=moved, xlabel="found, %", title="Who chased whom")
    left.axvline(50, color="black", linewidth=0.8, linestyle=":")
    left.legend(frameon=False, fontsize=7, loc="lower right")
    depths = (1, 2, 4, 8, 12, 24)
    for pre, shade in ((True, "#1f4e79"), (False, "#c0392b")):
        right.plot(
            depths,
            [direct(pre, layers) for layers in depths],
            "o-",
            markersize=3,
            color=shade,
        )
        right.annotate(
            "pre-norm" if pre else "post-norm",
            (14, 0.15 if pre else 1e-3),
            color=shade,
            fontsize=8,
        )
    right.set(yscale="log", xlabel="layers", title="Gradient on the direct way")
    return drawn


figure("22_what_changed_since_bert", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** Half of the world pairs the columns (i, i + K/2), the other half (2i, 2i + 1). A checkpoint (lesson 03) of one
# half comes into the code of the other. What has to be done?

# %%
guess = predict(
    "22.1",
    "From pairs of neighbours to pairs of halves: one must ...",
    [
        "train again",
        "permute rows of the query and key weights",
        "permute the columns of the word table",
    ],
)

# %%
neighbours = torch.arange(8).unflatten(0, (2, 4)).T.flatten()  # 0 4 1 5 2 6 3 7


def interleaved(x, cos, sin):
    """The same rotation with the pairs (2i, 2i + 1)."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = (y[..., : y.shape[-1] // 2] for y in (cos, sin))
    result = [first * cos - second * sin, second * cos + first * sin]
    return torch.stack(result, dim=-1).flatten(-2)


some = torch.randn(1, 1, 20, 8).double()
halves = modern.rotate(some, cos, sin)[..., neighbours]
assert (
    largest_difference(halves, interleaved(some[..., neighbours], cos, sin)) < 1e-12
), "the order of the columns inside a head, and nothing else"
guess.answer("permute rows of the query and key weights")

# %% [markdown]
# **2.** A model with rotary positions was trained with the base 100, and runs with the base 10,000: one number in a
# configuration file. Of its 200 documents it still finds ...

# %%
guess = predict(
    "22.2", "With another base it finds ...", ["none", "half", "nearly all"]
)


# %%
from lessons.chases import as_change, wrong


def other_base(positions, width, base, dtype, right=modern.rotary):
    return right(positions, width, 10_000.0, dtype)


base = as_change(modern, "rotary", other_base)
with planted(base):
    slower = found(models["rotary"])
print(f"found {slower:.1%} instead of {moved['rotary'][0]:.1%}")
assert slower > 0.9, "no demo shows it: the wrong vectors agree among themselves"
guess.answer("nearly all")

# %% [markdown]
# ## Break it
#
# Mistakes that a port can make, each planted into our trained rotary encoder. The mean cosine is that of right and
# wrong vector of the same query. *Found* counts twice: with all vectors computed wrongly, and with wrong queries in an
# index that somebody else has built rightly.


# %%
from lessons.mistakes import MISTAKES


def causal_attention(query, key, value, mask=None, dropout=0.0, right=bert.attention):
    past = torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril()
    return right(query, key, value, mask & past)


changes = {
    "nothing": {},
    "bfloat16": {"low": torch.bfloat16},
    "rotary base 10,000 for 100": {"change": base},
    "rotation interleaved": {"change": MISTAKES["rotation interleaved"]},
    "places not rotated": {"change": as_change(modern, "rotate", lambda x, *_: x)},
    "a decoder's mask left in": {
        "change": as_change(bert, "attention", causal_attention)
    },
    "[CLS] instead of the mean": {"pool": lambda hidden, mask: hidden[:, 0]},
}
table = {
    name: wrong(name, models["rotary"], **change) for name, change in changes.items()
}

# %% [markdown]
# No line crashes, and each gives vectors of the right shape and length. A wrong base turns them more than rounding
# does, and most documents are still found. So compare numbers with the reference before you index ten million texts:
# `minisbert certify` does that, and `minisbert trace` names many of these causes.

# %%
for name, (cosine, *_) in table.items():
    rounding = name in ("nothing", "bfloat16")
    assert cosine > 0.999 if rounding else cosine < 0.998, name
assert table["places not rotated"][1] < 0.65, "a bag of words again"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand beside what they practise. `python -m lessons.check answer 21 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 4.** Graded: rotate, rms_norm, swiglu: `python -m lessons.check start 21`, `run 21`, `hint 21`.
#
# ## Sources
#
# - Raffel et al. 2020, *Exploring the limits of transfer learning with a unified text-to-text transformer* (T5), and
#   Song et al. 2020, *MPNet*: position biases in buckets.
# - Su et al. 2021, *RoFormer: enhanced transformer with rotary position embedding*.
# - Xiong et al. 2020, *On layer normalization in the transformer architecture*: why post-norm needs a warm-up.
# - Zhang and Sennrich 2019, *Root mean square layer normalization*. Shazeer 2020, *GLU variants improve transformer*.
# - Warner et al. 2024, *Smarter, better, faster, longer* (ModernBERT).
# - The mistakes, as reported on GitHub: transformers issue 25199 (interleaved or halved).
#
# ## What you have now
#
# You can read the configuration of a model of this year: its norms, its positions, its gates. Next: [who looks at
# whom: local attention, decoders, and their bugs](23_who_looks_at_whom.py).
