# %% [markdown]
# # Lesson 20: what changed since BERT
#
# Steps through `minisbert/architectures/mpnet.py`, `minisbert/architectures/rotary.py`,
# `minisbert/architectures/modernbert.py`, `minisbert/architectures/qwen3.py`. About 115 minutes. You will put each of
# the changes alone into the book's layer, find out what it buys, and see how ports of newer models go wrong.

# %%
import math
import random

import torch
from course import figure, largest_difference, predict
from torch import nn
from torch.nn import functional

from lessons.mistakes import MISTAKES, planted
from minisbert.architectures import modernbert, rotary
from minisbert.architectures import qwen3 as decoder
from minisbert.architectures.mpnet import MPNet, MPNetConfig, relative_buckets
from minisbert.architectures.qwen3 import Decoder, DecoderConfig
from minisbert.core import bert
from minisbert.core.encoder import SentenceEncoder, normalize
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.core.losses import multiple_negatives_ranking_loss
from minisbert.core.pooling import mean_pool
from minisbert.diagnosis.mistakes.planting import Mistake
from minisbert.system.assets import ensure

bert.FUSED = True  # lesson 13: the same numbers in less time

# %% [markdown]
# ## The question
#
# BERT is from 2018. The encoders and decoders that lead the tables today have another layer: positions are no longer
# added, LayerNorm has moved and lost its mean, the feed-forward block has a third matrix, biases are gone, most layers
# see only their neighbourhood, or only what is to their left. Which of these makes vectors better, which makes them
# cheaper, and which is only a habit?
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
#     every s                                 |s - t| <= 64                           local attention
#     every s                                 s <= t                                  causal mask
#     H heads of keys                         H / 2 or fewer                          grouped queries
#
# `R_t` turns each pair of columns (i, i + K/2) by the angle t * base^(-2i/K): the first pair by one radian per token,
# the last ones hardly at all.

# %% [markdown]
# ## The real function
#
# **Relative position bias** (T5, MPNet): one learned number per head for each distance, added to the score. Near
# distances have a number each, far ones share. 32 buckets do for any length.

# %%
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
cos, sin = rotary.rotary(places[None], 8, 10_000.0, torch.float64)  # (1, 1, T, K)
ours = torch.stack([turned(q, place) for place in places])
assert (
    largest_difference(rotary.rotate(q.expand(1, 1, 20, 8), cos, sin)[0, 0], ours)
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
)  # ModernBERT has both in one matrix, and GELU for the bend
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


def trained(model, loss, batches, rate):
    """Train with ``fit``; the mean loss of the last 20 steps."""
    optimizer = adamw(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=rate,
    )
    steps = fit(
        model,
        loss,
        batches,
        optimizer,
        lambda step: linear_schedule(step, 20, len(batches)),
    )
    return sum([step.loss for step in steps][-20:]) / 20


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
    "a sum of bends can only approach a product"
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
# ## Who chased whom
#
# The task: facts of three words, "cat chases dog", among other words. A query has the fact after the word *find*, a
# document has it among other fillers. For each query there is one right document, and one in which dog chases cat: the
# same words. Who guesses between the two finds every second one. Facts of the test are not in the training.

# %%
PAD, BOS, EOS, FIND = range(4)
NOUNS, VERBS, FILLERS = range(4, 16), range(16, 22), range(22, 30)
chance = random.Random(0)
facts = [(s, v, o) for s in NOUNS for v in VERBS for o in NOUNS if s < o]
chance.shuffle(facts)
known, unknown = (
    [one for s, v, o in some for one in ((s, v, o), (o, v, s))]
    for some in (facts[100:], facts[:100])
)
NEAR, FAR = (0, 3), (12, 18)  # how many fillers stand before a fact


def words(fact, front, first):
    before, after = (
        [chance.choice(FILLERS) for _ in range(chance.randint(*some))]
        for some in (front, NEAR)
    )
    return [BOS, *first, *before, *fact, *after, EOS]


def batch_of(rows, left=False):
    """Lists of ids -> ids and mask (B, T), pads on the right, or on the left as decoders have them."""
    longest = max(map(len, rows))

    def row(ids, pad):
        pads = [pad] * (longest - len(ids))
        return pads + ids if left else ids + pads

    mask = torch.tensor([row([True] * len(ids), False) for ids in rows])
    return torch.tensor([row(ids, PAD) for ids in rows]), mask


def queries_of(some, front=NEAR):
    return [words(fact, front, [FIND]) for fact in some]


def documents_of(some, front=NEAR):
    return [words(fact, front, []) for fact in some]


class Embedder(nn.Module):
    """An encoder and a pooling: ids and mask (B, T) -> vectors (B, D)."""

    def __init__(self, encoder, pool=mean_pool, left=False, after=None):
        super().__init__()
        self.encoder, self.pool, self.left, self.after = (
            encoder,
            pool,
            left,
            after or nn.Identity(),
        )

    def forward(self, ids, mask):
        return self.after(self.pool(self.encoder(ids, mask), mask))

    def encode(self, rows):
        with torch.no_grad():
            return normalize(self(*batch_of(rows, self.left)))


def learn(model, steps=200):
    """Train on the known facts; the other document of each fact is a hard negative. The last loss."""

    def loss(model, some):
        turned_round = [fact[::-1] for fact in some]
        rows = [queries_of(some), documents_of(some), documents_of(turned_round)]
        return multiple_negatives_ranking_loss(
            *(model(*batch_of(each, model.left)) for each in rows)
        )

    chance.seed(1)
    batches = [chance.sample(known, 32) for _ in range(steps)]
    return trained(model, loss, batches, rate=5e-3)


def found(model, front=NEAR):
    """The share of unknown facts whose document is nearest to their query, among 200."""
    chance.seed(2)
    queries, documents = queries_of(unknown, front), documents_of(unknown, front)
    nearest = (model.encode(queries) @ model.encode(documents).T).argmax(dim=1)
    return (nearest == torch.arange(len(unknown))).float().mean().item()


# %% [markdown]
# Four ways to say where a word is, each in the book's layer: not at all; the book's table; MPNet's bias without the
# table; rotation without the table. Then the facts move to places that no training text had.


# %%
class RotaryAttention(bert.Attention):
    """The book's attention with rotated queries and keys; base 100, because the texts are short."""

    def forward(self, x, mask):
        query, key, value = (
            self.split(self.query(x)),
            self.split(self.key(x)),
            self.split(self.value(x)),
        )
        rotation = rotary.rotary(
            torch.arange(x.shape[1])[None], query.shape[-1], 100.0, x.dtype
        )
        query, key = rotary.rotate(query, *rotation), rotary.rotate(key, *rotation)
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
# ## Who looks at whom
#
# **Local attention.** In ModernBERT-base 14 of 22 layers look at 64 tokens on each side, and every third at all. A
# token in the middle has 129 places to look at, one at an end 65:


# %%
def seen(tokens, half=64):
    """How many tokens each token of a text sees in a local layer: (T,)."""
    places = torch.arange(tokens)
    return (places + half + 1).clamp_max(tokens) - (places - half).clamp_min(0)


mask = modernbert.local_mask(torch.arange(200)[None], None, 64)  # (1, 1, T, T)
assert torch.equal(mask[0, 0].sum(dim=-1), seen(200)), "counted in the package's mask"
assert (seen(200).min(), seen(200).max()) == (65, 129), "at the ends, and in the middle"


def scores_of(tokens):
    """Of ModernBERT-base's 22 layers, per token: with local layers, and if all were global."""
    local = seen(tokens).sum().item() / tokens
    return 14 * local + 8 * tokens, 22 * tokens


share = {}
for tokens in (64, 128, 512, 2048, 8192):
    mixed, full = scores_of(tokens)
    share[tokens] = mixed / full
    print(
        f"{tokens:6,} tokens: {mixed:9,.0f} scores a token instead of {full:9,}: {mixed / full:.0%}"
    )
assert share[64] == 1, (
    "a sentence has no distance of more than 64: for it local is global"
)
assert 0.36 < share[8192] < 0.38, (
    "and a long text pays for little more than its 8 global layers of 22"
)

# %% [markdown]
# **Grouped queries.** Sixteen heads of queries, and only eight of keys and values, of which each serves two. A decoder
# that writes must keep the keys and values of all it has read; for Qwen3's 0.6 B parameters (28 layers, K = 128, two
# bytes a number) that is:

# %%
cache = {heads: 2 * 28 * heads * 128 * 2 for heads in (16, 8)}
print(
    f"{cache[16] / 1024:.0f} KiB a token with 16 heads of keys, {cache[8] / 1024:.0f} KiB with 8"
)
assert cache[8] == 112 * 1024, "keys and values, layers, heads, columns, bytes"
heads = torch.arange(3.0)[None, :, None, None]  # three heads of one number each
assert decoder.repeat_heads(heads, 2).flatten().tolist() == [0, 0, 1, 1, 2, 2], (
    "neighbours share, not 0 1 2 0 1 2"
)

# %% [markdown]
# For embeddings nobody keeps anything: each text is read once, and the gain is 28 times two smaller matrices. It comes
# with the decoder that one starts from.
#
# **The causal mask** too. A decoder was trained to guess the next word, and must not see it. So a token knows what is
# to its left, and only the *last* one has read everything: its state is the vector. Pads come on the left, where they
# shift all places alike, which rotation does not notice.


# %%
def last_token(hidden, mask):
    """The state of the last real token, whichever side the pads are on."""
    places = torch.arange(mask.shape[1]) * mask  # (B, T)
    return hidden[torch.arange(len(hidden)), places.argmax(dim=1)]  # (B, D)


def new_decoder():
    torch.manual_seed(0)
    sizes = DecoderConfig(
        30,
        32,
        2,
        4,
        64,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=100.0,
        initializer_range=0.15,
    )
    return Embedder(Decoder(sizes), last_token, left=True, after=nn.Linear(32, 32))


model = new_decoder()
print(
    f"a decoder of two layers, last token, Dense: loss {learn(model):.3f}, found {found(model):.1%}"
)
assert found(model) > 0.9, "last-token pooling learns who chased whom"

ids, mask = batch_of(queries_of(unknown[:1]))
with torch.no_grad():
    whole, cut = model.encoder(ids), model.encoder(ids[:, :4])
    shifted = model.encoder(functional.pad(ids, (5, 0)), functional.pad(mask, (5, 0)))
assert largest_difference(whole[:, :4], cut) < 1e-5, (
    "what comes after a token does not reach it"
)
assert largest_difference(whole, shifted[:, 5:]) < 1e-5, (
    "five pads on the left change nothing"
)

# %% [markdown]
# ## The figure
#
# Left: how often the right document is found, at places of the training and beyond. Middle: what is left of a gradient
# on the direct way, by depth. Right: scores a token in ModernBERT-base, with local layers and without.
#
# ![Found by kind of position; gradient by depth; scores by length](figures/20_what_changed_since_bert.png)


# %%
def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(10, 3.2), layout="constrained"
    )
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
        middle.plot(
            depths,
            [direct(pre, layers) for layers in depths],
            "o-",
            markersize=3,
            color=shade,
        )
        middle.annotate(
            "pre-norm" if pre else "post-norm",
            (14, 0.15 if pre else 1e-3),
            color=shade,
            fontsize=8,
        )
    middle.set(yscale="log", xlabel="layers", title="Gradient on the direct way")
    lengths = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    for which, shade in ((1, "#bbbbbb"), (0, "#1f4e79")):
        name = "all global" if which else "14 of 22 local"
        right.plot(
            lengths,
            [scores_of(tokens)[which] for tokens in lengths],
            color=shade,
            label=name,
        )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="tokens of the text",
        title="Scores a token, 22 layers",
    )
    right.legend(frameon=False, fontsize=8)
    return drawn


figure("20_what_changed_since_bert", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** A decoder without any position: neither table nor bias nor rotation. Can it tell who chased whom?

# %%
guess = predict(
    "20.1",
    "A causal decoder without positions ...",
    ["guesses, as the bag of words does", "can tell"],
)

# %%
blind = new_decoder()
still = Mistake(
    "no rotation",
    "queries and keys are not rotated",
    rotary,
    "rotate",
    lambda x, cos, sin: x,
)
with planted(still):
    learn(blind)
    blind_found = found(blind)
print(f"found {blind_found:.1%}")
assert blind_found > 0.75, (
    "the mask is a position: the first token sees one token, the second two"
)
guess.answer("can tell")

# %% [markdown]
# **2.** The first token of a causal decoder is BOS. Somebody takes its state, as one does with [CLS]. Which cosine do
# two unrelated texts get?

# %%
guess = predict(
    "20.2",
    "Two unrelated texts by their first token: the cosine is ...",
    ["about 0", "about 0.5", "1"],
)

# %%
with torch.no_grad():
    firsts = model.encoder(*batch_of(documents_of(unknown[:9])))[:, 0]
print((normalize(firsts) @ normalize(firsts).T)[:3, :3])
assert largest_difference(firsts, firsts[:1].expand_as(firsts)) < 1e-6, (
    "it has read nothing but itself"
)
guess.answer("1")

# %% [markdown]
# **3.** Half of the world pairs the columns (i, i + K/2), the other half (2i, 2i + 1). A checkpoint of one half comes
# into the code of the other. What has to be done?

# %%
guess = predict(
    "20.3",
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
    rotary.rotate(some, cos, sin)[..., neighbours],
    interleaved(some[..., neighbours], cos, sin),
)
assert largest_difference(*both) < 1e-12, (
    "the order of the columns inside a head, and nothing else"
)
guess.answer("permute rows of the query and key weights")

# %% [markdown]
# ## Break it
#
# Each row of the next table has been reported in public, of some port of some model. Each is planted into our trained
# decoder, or into the rotary encoder where it needs one that looks both ways. The mean cosine is that of right and
# wrong vector of the same query. Then two searches: everything computed wrongly, queries and documents alike, and wrong
# queries in an index that somebody else has built rightly.


# %%
def as_change(owner, attribute, stand_in):
    return Mistake(attribute, "", owner, attribute, stand_in)


def wrong(
    name,
    model,
    change=None,
    pool=None,
    left=None,
    low=None,
    first=(FIND,),
    end=True,
    after=True,
):
    """Vectors of queries and documents with one thing wrong, and a row of the table."""
    chance.seed(2)
    queries, documents = queries_of(unknown), documents_of(unknown)
    right, index = model.encode(queries), model.encode(documents)
    other = Embedder(
        model.encoder, pool or model.pool, model.left if left is None else left
    )
    other.after = model.after if after else nn.Identity()
    queries, documents = (
        [row[: None if end else -1] for row in rows] for rows in (queries, documents)
    )
    queries = [[BOS, *first, *row[2:]] for row in queries]
    change = change or as_change(bert, "gelu", bert.gelu)  # nothing
    with planted(change), torch.autocast("cpu", low, enabled=low is not None):
        u, v = other.encode(queries).float(), other.encode(documents).float()
    both, one = (
        ((u @ side.T).argmax(dim=1) == torch.arange(len(u))).float().mean().item()
        for side in (v, index)
    )
    table[name] = (right * u).sum(dim=1).mean().item(), both, one
    print(
        f"{name:50}cosine {table[name][0]:6.3f}   found {both:6.1%}, in the right index {one:6.1%}"
    )


def place_as_on_the_right(hidden, mask):
    return hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]


def no_causal_mask(mask, tokens, device):
    return mask.expand(-1, 1, tokens, -1)


def pads_seen(mask, tokens, device, right=decoder.causal_mask):
    return right(None, tokens, device)


def causal_attention(query, key, value, mask=None, dropout=0.0, right=bert.attention):
    return right(
        query,
        key,
        value,
        mask & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril(),
    )


def other_base(positions, width, base, dtype, right=rotary.rotary):
    return right(positions, width, 10_000.0, dtype)


table = {}
looks_both_ways = models["rotary"]
wrong("nothing", model)
wrong("bfloat16", model, low=torch.bfloat16)
wrong("prefix left out", model, first=())
wrong(
    "rotary base 10,000 for 100", model, change=as_change(rotary, "rotary", other_base)
)
wrong(
    "causal mask forgotten",
    model,
    change=as_change(decoder, "causal_mask", no_causal_mask),
)
wrong("gate and up swapped", model, change=MISTAKES["gate and up swapped"])
wrong("RMSNorm with a mean", model, change=MISTAKES["RMSNorm with a mean"])
wrong("rotation interleaved", model, change=MISTAKES["rotation interleaved"])
wrong(
    "pads on the left, attention sees them",
    model,
    change=as_change(decoder, "causal_mask", pads_seen),
)
wrong(
    "pads on the left, place counted as on the right", model, pool=place_as_on_the_right
)
wrong(
    "pads on the right, the last column taken",
    model,
    pool=lambda hidden, mask: hidden[:, -1],
    left=False,
)
wrong("end token forgotten: the last word is taken", model, end=False)
wrong("mean instead of the last token", model, pool=mean_pool)
wrong("Dense layer left out", model, after=False)
wrong(
    "encoder: causal mask left in",
    looks_both_ways,
    change=as_change(bert, "attention", causal_attention),
)
wrong(
    "encoder: [CLS] instead of the mean",
    looks_both_ways,
    pool=lambda hidden, mask: hidden[:, 0],
)

# %% [markdown]
# The sizes are those of a toy of thirty words. What carries over is this:
#
# - *No line crashes.* Each gives vectors of the right shape and length.
# - Rounding is 0.999 and more. Another base or a forgotten causal mask is 0.9, and most documents are still found: no
#   demo shows it, and you pay for it in every query.
# - The Dense layer left out gives a cosine of about 0, and the search is as good as before, as long as *both* sides
#   lack it. The day the index comes from one engine and the query from another, nothing is found.
# - Pads do their harm in batches. Alone, a text has none, and every test with one sentence passes.
#
# So compare numbers with the reference, of texts of different lengths in one batch, before you index ten million of
# them. `minisbert certify` does that, and names many of these causes.

# %%
assert table["nothing"][0] > 0.99999, "the table's own zero"
assert table["bfloat16"][0] > 0.999, "rounding"
assert all(
    table[name][0] < 0.998 for name in table if name not in ("nothing", "bfloat16")
), "each is far from rounding"
for name in ("rotary base 10,000 for 100", "causal mask forgotten"):
    assert table[name][1] > 0.65, (
        f"{name}: most documents are found, and nobody notices"
    )
for name in (
    "pads on the right, the last column taken",
    "pads on the left, place counted as on the right",
):
    assert table[name][0] < 0.7, f"{name}: another token's state"
assert abs(table["Dense layer left out"][0]) < 0.5, (
    "a vector of the right width, and of another space"
)
assert (
    table["Dense layer left out"][1] > 0.8 > 0.3 > table["Dense layer left out"][2]
), "fine alone, useless together"

# %% [markdown]
# ## Exercises
#
# 1. Take the causal mask from the decoder and train it anew, with the mean. Which of the two learns better here?
# 2. Train the rotary encoder with the bases 2, 100, 10,000 and 1,000,000. Does the tiny model care?
# 3. ALiBi: minus a slope times |t - s| in place of a learned bias, slopes 1/2, 1/4, 1/8, 1/16. Who chased whom?
# 4. Count the parameters of one layer of BERT-base, ModernBERT-base (F = 1,152, gated, no biases) and Qwen3's 0.6 B
#    (D = 1,024, F = 3,072).
# 5. At which length does attention take half of the time in ModernBERT-base? Use lesson 13's formula with `scores_of`.
# 6. Graded: rotate, rms_norm, swiglu: `python -m lessons.check start 20`, `run 20`, `hint 20`.
#
# ## Sources
#
# - Raffel et al. 2020, *Exploring the limits of transfer learning with a unified text-to-text transformer* (T5), and
#   Song et al. 2020, *MPNet*: position biases in buckets.
# - Su et al. 2021, *RoFormer: enhanced transformer with rotary position embedding*.
# - Xiong et al. 2020, *On layer normalization in the transformer architecture*: why post-norm needs a warm-up.
# - Zhang and Sennrich 2019, *Root mean square layer normalization*. Shazeer 2020, *GLU variants improve transformer*.
# - Ainslie et al. 2023, *GQA: training generalized multi-query transformer models from multi-head checkpoints*.
# - Warner et al. 2024, *Smarter, better, faster, longer* (ModernBERT). Qwen team 2025, *Qwen3 Embedding*.
# - The mistakes, as reported: Echo pull request 24 (place counted as on the right: cosine 0.37), mlx-swift-lm 418 (pads
#   seen), crow 355 (mean for last token), transformers issue 25199 (interleaved or halved), text-embeddings-inference
#   660 (Dense), omlx 1817 (prefix), all on GitHub.
