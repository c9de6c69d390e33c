# %% [markdown]
# # Lesson 21: what changed since BERT: positions and norms
#
# Steps through `minisbert/architectures/mpnet.py`, `minisbert/architectures/modern.py`,
# `minisbert/architectures/qwen3.py`. About 72 minutes. You will put each of the changes alone into the book's layer and
# find out what it buys. Lesson 22 has what is left: who may look at whom, decoders, and their bugs.

# %%
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# BERT is from 2018. It is an encoder: each token sees all others. A **decoder** is a transformer that was trained to
# write, so each token sees only what comes before it; it can be made to give vectors too (lesson 22). The encoders
# and decoders that lead the tables today have another layer: positions are no longer added, LayerNorm has moved and
# lost its mean, the feed-forward block has a third matrix, biases are gone. Which of these makes vectors better,
# which makes them cheaper, and which is only a habit?
#
# One change at a time, then. A tiny model, a task that it learns in three seconds, and where a tiny model can tell
# nothing, arithmetic.
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
from minisbert.core import bert

bert.FUSED = True  # lesson 25: the same numbers in less time

# %%
import math

from minisbert.architectures.mpnet import relative_buckets

distances = torch.tensor([0, -1, -7, -8, -11, -12, -90, -91, -5000])
print(relative_buckets(distances).tolist())
half = [
    -1,
    -8,
    -12,
    -16,
    -23,
    -32,
    -46,
    -64,
    -91,
]  # where a bucket of the left half begins
by_logarithm = [
    d if d < 8 else min(15, 8 + int(8 * math.log(d / 8) / math.log(16) + 1e-9))
    for d in range(6000)
]
assert relative_buckets(-torch.arange(6000)).tolist() == by_logarithm, (
    "eight exact, then eight on a logarithmic scale"
)
assert relative_buckets(torch.tensor(half)).tolist() == [
    1,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
], "each at its beginning"

# %% [markdown]
# **Rotary positions** (Su et al. 2021): nothing is learned. A query and a key are turned by their places, and the dot
# product of two turned vectors sees only the difference of the angles.


# %%
from minisbert.architectures import modern


def turned(x, place, base=10_000.0):
    """x (..., K) as a query or key at a place, K even."""
    first, second = x.chunk(
        2, dim=-1
    )  # (..., K / 2) each: column i belongs with i + K / 2
    angles = place * base ** (
        -torch.arange(0, x.shape[-1], 2).double() / x.shape[-1]
    )  # (K / 2,) radians
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat(
        [first * cos - second * sin, second * cos + first * sin], dim=-1
    )  # (..., K)


right_angle = turned(torch.tensor([1.0, 0.0]), math.pi / 2)
assert largest_difference(right_angle, [0, 1]) < 1e-6, (
    "K = 2 at the place pi / 2: a quarter of a turn"
)
torch.manual_seed(0)
q, k = torch.randn(2, 8).double()
near, far = turned(q, 7) @ turned(k, 3), turned(q, 1007) @ turned(k, 1003)
print(f"4 apart: {near:.9f} at places 7 and 3, {far:.9f} at 1007 and 1003")
assert abs(near - far) < 1e-9, "only the distance counts"
assert abs(turned(q, 7).norm() - q.norm()) < 1e-12, "no vector gets longer"

places = torch.arange(20)
cos, sin = modern.rotary(places[None], 8, 10_000.0, torch.float64)  # (1, 1, T, K)
ours = torch.stack([turned(q, place) for place in places])
assert (
    largest_difference(modern.rotate(q.expand(1, 1, 20, 8), cos, sin)[0, 0], ours)
    < 1e-12
), "the package's rotate"

# %% [markdown]
# The **base** says how slowly the slowest pair turns. As long as it has not come round, it tells far places apart.
# ModernBERT has two bases, one for the layers that see 128 tokens and one for those that see all 8,192; Qwen3 has
# 1,000,000. Change the base under a trained model, and every distance means another one.

# %%
wavelength = {
    base: 2 * math.pi * base ** (62 / 64) for base in (10_000, 160_000, 1_000_000)
}
for base, tokens in wavelength.items():
    print(
        f"base {base:9,}, K = 64: the last pair comes round after {tokens:11,.0f} tokens"
    )
assert 128 < 8192 < wavelength[10_000] < wavelength[160_000], (
    "room in both, and far more in the second"
)

# %% [markdown]
# **RMSNorm** is LayerNorm without the mean and beta. [1, 7] has the mean square 25. And what of the mean? Here is its
# share of the mean square in all thirteen places where MiniLM has a LayerNorm:


# %%
from torch.nn import functional

from lessons.mistakes import planted
from minisbert.architectures import qwen3 as decoder
from minisbert.core.encoder import SentenceEncoder
from minisbert.diagnosis.mistakes.planting import Mistake
from minisbert.system.assets import ensure


def rms(x, gamma, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gamma


x = torch.tensor([1.0, 7.0])
print(rms(x, 1, 0), bert.layer_norm(x, torch.ones(2), torch.zeros(2), 1e-12))
assert largest_difference(rms(x, 1, 0), [0.2, 1.4]) < 1e-6, "divided by 5"
wide = torch.randn(3, 32)
assert (
    largest_difference(rms(wide, wide[0], 1e-6), decoder.rms_norm(wide, wide[0], 1e-6))
    < 1e-6
), "the package's"

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
texts = [
    "A cat sits on the mat.",
    "Two people are playing chess.",
    "The stock market fell sharply today.",
]
shares = []


def spy(x, weight, bias, eps):
    shares.append((x.mean(-1).pow(2) / x.pow(2).mean(-1)).mean().item())
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


with planted(Mistake("spy", "no mistake", bert, "layer_norm", spy)):
    right_vectors = encoder.encode(texts)  # (3, D)
print(
    f"{len(shares)} LayerNorms, the mean is {max(shares):.2%} of the mean square at most"
)
assert len(shares) == 13, "after the embeddings, and twice in each of six layers"
assert max(shares) < 0.01, "the mean that LayerNorm subtracts was hardly there"

# %% [markdown]
# **SwiGLU** (Shazeer 2020): two matrices lead up, and one result decides how much of the other passes. With F cut to
# two thirds it has as many parameters as before. What is it good for? It can multiply. Both blocks learn x_i * x_(i+1)
# in 400 steps:


# %%
from torch import nn

from lessons.chases import trained
from minisbert.architectures import modernbert


def gated(gate, up):
    return gate * torch.sigmoid(gate) * up


gate, up = torch.randn(2, 5, 3)
assert largest_difference(gated(torch.tensor(1.0), torch.tensor(2.0)), 1.4621) < 1e-4, (
    "2 * 0.7311"
)
assert largest_difference(gated(gate, up), decoder.swiglu(gate, up)) < 1e-6, (
    "the package's"
)
packed = torch.cat(
    [gate, up], dim=-1
)  # ModernBERT has both in one matrix, and GELU as non-linearity
assert largest_difference(modernbert.geglu(packed), bert.gelu(gate) * up) < 1e-6, (
    "GeGLU: first the gate, then the rest"
)


class Block(nn.Module):
    """A feed-forward block of 8 columns without biases: plain with F = 48, gated with F = 32."""

    def __init__(self, with_gate):
        super().__init__()
        width = 32 if with_gate else 48
        self.up, self.down = (
            nn.Linear(8, width, bias=False),
            nn.Linear(width, 8, bias=False),
        )
        self.gate = nn.Linear(8, width, bias=False) if with_gate else None

    def forward(self, x):
        up = self.up(x)
        return self.down(
            bert.gelu(up) if self.gate is None else gated(self.gate(x), up)
        )


products = {}
for with_gate in (False, True):
    torch.manual_seed(0)
    block = Block(with_gate)
    inputs = [torch.randn(64, 8) for _ in range(400)]

    def error(model, x):
        return (model(x) - x * x.roll(1, 1)).pow(2).mean()

    products[with_gate] = trained(block, error, inputs, rate=1e-2)
    count = sum(parameter.numel() for parameter in block.parameters())
    print(
        f"{'SwiGLU' if with_gate else 'GELU':7}{count} parameters, squared error {products[with_gate]:.3f}"
    )
assert products[True] < 0.6 * products[False], (
    "a sum of functions of single numbers can only approach a product"
)

# %% [markdown]
# **No biases.** One of BERT's biases has never done anything: that of the keys. It adds q b to *all* scores of a query,
# and softmax does not care.

# %%
for layer in encoder.bert.layers:
    layer.attention.key.bias.data.zero_()
print(
    f"without the biases of the keys: {largest_difference(encoder.encode(texts), right_vectors):.1e}"
)
assert largest_difference(encoder.encode(texts), right_vectors) < 1e-6, (
    "2,304 trained numbers, and no vector changes"
)

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
from lessons.chases import FAR, Embedder, found, learn
from minisbert.architectures.mpnet import MPNet, MPNetConfig


class RotaryAttention(bert.Attention):
    """The book's attention with rotated queries and keys; base 100, because the texts are short."""

    def forward(self, x, mask):
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(x)),
            self.split(self.value(x)),
        )
        rotation = modern.rotary(
            torch.arange(x.shape[1])[None], query.shape[-1], 100.0, x.dtype
        )
        query, key = modern.rotate(query, *rotation), modern.rotate(key, *rotation)
        context, probabilities = bert.attention(query, key, value, mask)
        return self.output(self.merge(context)), probabilities


SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
SIZES |= {
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SIZES |= {"initializer_range": 0.15}  # a thin model starts with larger weights


def book(layers=2, rotary=False):
    """A new encoder of the book, on demand with other attention."""
    torch.manual_seed(0)
    model = bert.Bert(bert.BertConfig(**SIZES, num_hidden_layers=layers), pooler=False)
    for layer in model.layers if rotary else ():
        layer.attention.__class__ = (
            RotaryAttention  # the same parameters, another formula
        )
    return model


def without_table(model):
    model.embeddings.position.weight.requires_grad_(False).zero_()
    return model


torch.manual_seed(0)
relative = MPNet(MPNetConfig(**SIZES, num_hidden_layers=2), pooler=False)
kinds = {
    "no places": without_table(book()),
    "a table of places": book(),
    "relative bias": without_table(relative),
    "rotary": without_table(book(rotary=True)),
}
models, moved = {}, {}
for name, model in kinds.items():
    models[name] = Embedder(model)
    last_loss = learn(models[name])
    moved[name] = found(models[name]), found(models[name], FAR)
    print(
        f"{name:20}loss {last_loss:.3f}   found {moved[name][0]:5.1%}, where no text had been {moved[name][1]:5.1%}"
    )
assert moved["no places"][0] < 0.65, "a bag of words: a coin decides who chased whom"
assert min(moved[name][0] for name in kinds if name != "no places") > 0.8, (
    "each of the three can tell"
)
assert moved["a table of places"][1] < 0.6, "rows of the table that were never trained"
assert min(moved["relative bias"][1], moved["rotary"][1]) > 0.75, (
    "a distance is the same everywhere"
)

# %% [markdown]
# That is what the change buys: not a better vector, but one that does not depend on where in the text something
# stands, and no table that ends at 512. (That a *rotated* model reads ten times as far as it was trained is another
# matter. New lengths are new distances, and these it has not seen either.)
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
print(
    f"24 layers, directly: post-norm {after:.1e} (by hand {2**-24:.1e}), pre-norm {before:.3f}"
)
assert 0.5 < after / 2**-24 < 2, "a factor of 1 / sqrt(2), 48 times"
assert abs(before - 1) < 1e-12, "a sum hands its gradient on as it is"

# %% [markdown]
# The blocks carry gradients too, or nobody could have trained BERT. But twelve layers, sixty steps, weights of the
# size 1 / sqrt(D), the same rate for both:


# %%
from minisbert.core.pooling import mean_pool


class PreNormLayer(bert.Layer):
    def forward(self, x, mask):
        attended, probabilities = self.attention(self.attention_norm(x), mask)
        x = x + attended
        return x + self.feed_forward(self.feed_forward_norm(x)), probabilities


def deep(pre):
    SIZES["initializer_range"] = 32**-0.5
    model = book(layers=12)
    SIZES["initializer_range"] = 0.15
    for layer in model.layers if pre else ():
        layer.__class__ = PreNormLayer
    # subtle: nothing has normalised the last sum: every pre-norm model has one more norm at its end
    return Embedder(
        model,
        (lambda x, mask: mean_pool(functional.layer_norm(x, (32,)), mask))
        if pre
        else mean_pool,
    )


depth = {pre: learn(deep(pre), steps=60) for pre in (False, True)}
print(
    f"12 layers after 60 steps: post-norm loss {depth[False]:.2f}, pre-norm {depth[True]:.2f}"
)
assert depth[True] < depth[False] - 0.5, (
    "pre-norm learns at once; post-norm wants a smaller rate and a longer warm-up"
)

# %% [markdown]
# ## The figure
#
# Left: how often the right document is found, at places of the training and beyond. Right: what is left of a gradient
# on the direct way, by depth.
#
# ![Found by kind of position; gradient by depth](figures/21_what_changed_since_bert.png)


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


figure("21_what_changed_since_bert", draw)

# %% [markdown]
# **Exercise 3.** Train the rotary encoder with the bases 2, 100, 10,000 and 1,000,000. Does the tiny model care?

# %% [markdown]
# ## Predict, then run
#
# **1.** Half of the world pairs the columns (i, i + K/2), the other half (2i, 2i + 1). A checkpoint (lesson 03) of one
# half comes into the code of the other. What has to be done?

# %%
guess = predict(
    "21.1",
    "From pairs of neighbours to pairs of halves: one must ...",
    [
        "train again",
        "permute rows of the query and key weights",
        "permute the columns of the word table",
    ],
)

# %%
neighbours = (
    torch.arange(8).unflatten(0, (2, 4)).T.flatten()
)  # 0 4 1 5 2 6 3 7: halves, written as neighbours


def interleaved(x, cos, sin):
    """The same rotation with the pairs (2i, 2i + 1)."""
    first, second = x[..., 0::2], x[..., 1::2]
    cos, sin = (y[..., : y.shape[-1] // 2] for y in (cos, sin))
    return torch.stack(
        [first * cos - second * sin, second * cos + first * sin], dim=-1
    ).flatten(-2)


some = torch.randn(1, 1, 20, 8).double()
both = (
    modern.rotate(some, cos, sin)[..., neighbours],
    interleaved(some[..., neighbours], cos, sin),
)
assert largest_difference(*both) < 1e-12, (
    "the order of the columns inside a head, and nothing else"
)
guess.answer("permute rows of the query and key weights")

# %% [markdown]
# **2.** A model with rotary positions was trained with the base 100, and runs with the base 10,000: one number in a
# configuration file. Of its 200 documents it still finds ...

# %%
guess = predict(
    "21.2", "With another base it finds ...", ["none", "half", "nearly all"]
)


# %%
from lessons.chases import as_change


def other_base(positions, width, base, dtype, right=modern.rotary):
    return right(positions, width, 10_000.0, dtype)


with planted(as_change(modern, "rotary", other_base)):
    slower = found(models["rotary"])
print(f"found {slower:.1%} instead of {moved['rotary'][0]:.1%}")
assert slower > 0.9, "no demo shows it: the wrong vectors agree among themselves"
guess.answer("nearly all")

# %% [markdown]
# ## Break it
#
# Mistakes that a port can make, each planted into our trained rotary encoder. The mean cosine is that of right and
# wrong vector of the same query. Then two searches: everything computed wrongly, queries and documents alike, and wrong
# queries in an index that somebody else has built rightly.


# %%
from lessons.chases import wrong
from lessons.mistakes import MISTAKES


def causal_attention(query, key, value, mask=None, dropout=0.0, right=bert.attention):
    return right(
        query,
        key,
        value,
        mask & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril(),
    )


changes = {
    "nothing": {},
    "bfloat16": {"low": torch.bfloat16},
    "rotary base 10,000 for 100": {"change": as_change(modern, "rotary", other_base)},
    "rotation interleaved": {"change": MISTAKES["rotation interleaved"]},
    "places not rotated": {
        "change": as_change(modern, "rotate", lambda x, cos, sin: x)
    },
    "a decoder's mask left in": {
        "change": as_change(bert, "attention", causal_attention)
    },
    "[CLS] instead of the mean": {"pool": lambda hidden, mask: hidden[:, 0]},
}
table = {
    name: wrong(name, models["rotary"], **change) for name, change in changes.items()
}

# %% [markdown]
# No line crashes, and each gives vectors of the right shape and length. Rounding is 0.999 and more; a wrong base is
# less than that, and most documents are still found. So compare numbers with the reference before you index ten million
# texts. `minisbert certify` does that, and names many of these causes; lesson 22 has those of decoders.

# %%
assert table["nothing"][0] > 0.99999, "the table's own zero"
assert table["bfloat16"][0] > 0.999, "rounding"
for name in list(table)[2:]:
    assert table[name][0] < 0.998, f"{name}: far from rounding"
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
