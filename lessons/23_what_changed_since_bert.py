# %% [markdown]
# # Lesson 23: what changed since BERT
#
# Steps through `minisbert/architectures/mpnet.py`, `minisbert/architectures/modern.py`,
# `minisbert/architectures/modernbert.py`, `minisbert/architectures/qwen3.py`. Reading 65, chapter 15, pieces 45,
# exercises 110 minutes. You will put each of the changes alone into the book's layer and find out what it buys, make
# vectors with a model that was built to write, and see how ports of such models go wrong.

# %%
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# BERT is from 2018. It is an encoder: each token sees all others. A **decoder** is a transformer that was trained to
# write, so each token sees only what comes before it. Two newer models stand for the others here: ModernBERT (2024), an
# encoder for long texts, and Qwen3-Embedding (2025), a decoder that was trained to embed. In both, positions are no
# longer added, norms have moved, the feed-forward block has a third matrix, biases are gone, and a token no longer
# looks everywhere. Which of these makes vectors better, which makes them cheaper, and which changes nothing? One change
# at a time, on a tiny model and a task that it learns in three seconds.
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
#
# And who may answer? With pads no one may see:
#
#     BERT                     every s
#     local attention          |s - t| <= 64
#     causal mask              s <= t

# %% [markdown]
# ## The real function
#
# **Relative position bias** (T5, MPNet): one learned number per head for each distance, added to the score. Near
# distances have a number each, far ones share. 32 buckets do for any length.

# %%
import inspect
import math

from minisbert.architectures.mpnet import relative_buckets
from minisbert.core import bert

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)

print(inspect.getsource(relative_buckets))
distances = torch.tensor([0, -1, -7, -8, -11, -12, -90, -91, -5000])
print(relative_buckets(distances).tolist())
for d in (0, 7, 8, 11, 12, 90, 91, 5000):  # eight exact, then eight on a log scale
    far_one = min(15, 8 + int(8 * math.log(max(d, 8) / 8) / math.log(16)))
    assert relative_buckets(torch.tensor(-d)) == (d if d < 8 else far_one)

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

assert round(2 * math.pi * 10_000 ** (62 / 64)) == 47_117, "once round, below"
assert 5.0e6 < 2 * math.pi * 1_000_000 ** (126 / 128) < 5.1e6, "Qwen3: K = 128"

places = torch.arange(20)
cos, sin = modern.rotary(places[None], 8, 10_000.0, torch.float64)  # (1, 1, T, K)
ours = torch.stack([turned(q, place) for place in places])
packages = modern.rotate(q.expand(1, 1, 20, 8), cos, sin)[0, 0]
assert largest_difference(packages, ours) < 1e-12, "the package's rotate"

# %% [markdown]
# Each pair is a clock's hand: its angle says the place, up to whole turns. The **base** sets the slowest hand. With
# 10,000 and K = 64 it comes round after 2 pi 10,000^(62/64) = 47,117 tokens, with Qwen3's 1,000,000 and K = 128 after
# 2 pi 1,000,000^(126/128), five million. That is not a limit: where one hand has come round, the others still tell the
# two places apart. The length on which a model was *trained* ends much earlier. Change the base under a trained model,
# and every distance means another one.

# %% [markdown]
# **RMSNorm** is LayerNorm without the mean and beta. [1, 7] has the mean square 25. Was the mean worth subtracting?
# Here is its share of the mean square in all thirteen places where MiniLM has a LayerNorm:


# %%
from torch.nn import functional

from lessons.mistakes import planted
from minisbert.core.encoder import SentenceEncoder
from lessons.mistakes.planting import Mistake
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


bert.FUSED = False  # or PyTorch's operation takes the place of what we listen to
with planted(Mistake("spy", "no mistake", bert, "layer_norm", spy)):
    encoder.encode(texts)
bert.FUSED = True
print(f"{len(shares)} LayerNorms, the mean is at most {max(shares):.2%} of that")
assert len(shares) == 13, "after the embeddings, and twice in each of six layers"
assert max(shares) < 0.01, "the mean that LayerNorm subtracts was hardly there"

# %% [markdown]
# **SwiGLU** (Shazeer 2020): two matrices lead up, and one result decides how much of the other passes. With F cut to
# two thirds it has as many parameters as before. What does it gain? It can multiply. Both blocks learn x_i * x_(i-1) in
# 400 steps (`trained` is lesson 11's loop; it returns the mean of the last twenty losses):


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
assert products["SwiGLU"] < 0.6 * products["GELU"], "sums only approach a product"

# %% [markdown]
# **No biases.** One of BERT's has never done anything, that of the keys: it adds the same to all scores of a query, and
# softmax does not change (lesson 05).
#
# **Exercise 1.** Count the parameters of one layer of BERT-base, ModernBERT-base (D = 768, F = 1,152, gated, no biases)
# and Qwen3's 0.6 B (D = 1,024, F = 3,072, gated, no biases; 16 heads of queries and 8 of keys and values, of K = 128
# columns each).

# %% [markdown]
# ## Who chased whom
#
# The task: facts of three words, "cat chases dog", among other words. A query has the fact after the word *find*, a
# document has it among other fillers. For each query there is one right document, and one in which dog chases cat: the
# same words. A guess between the two is right half of the time. Facts of the test are not in the training.
# (`lessons/chases.py` makes the texts; its `learn` is lesson 11's loop with lesson 10's loss, and the other document as
# a hard negative.) In ids: 1 begins a text, 2 ends it, 3 is *find*, 4 to 15 are animals, 16 to 21 verbs, then fillers.

# %%
from lessons.chases import documents_of, learn, queries_of, unknown

print(inspect.getsource(learn))
print("query   ", queries_of(unknown[:1])[0])
print("document", documents_of(unknown[:1])[0])
print("rival   ", documents_of(unknown[1:2])[0])
assert unknown[0] == unknown[1][::-1], "the same three words, the other way round"

# %% [markdown]
# Four ways to say where a word is, each in the book's layer: not at all; the book's table; MPNet's bias without the
# table; rotation without the table. Then the facts move to places that no training text had. (`book` and `mpnet` make
# encoders of two layers, `Embedder` is one of them with its pooling, and `found` is the share of the 200 facts of the
# test whose document is nearest to their query.)


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
assert min(near for near, _ in list(moved.values())[1:]) > 0.8, "three can tell"
assert moved["a table of places"][1] < 0.6, "rows of the table that were never trained"
assert moved["relative bias"][1] > 0.75, "a distance is the same everywhere"
assert moved["rotary"][1] > 0.75, "here, too"

# %% [markdown]
# So the change does not buy a better vector. It buys one that does not depend on where in the text something stands,
# and no table that ends at 512. (A text longer than all that the model was trained on is another matter: it has new
# distances.)
#
# **Exercise 2.** ALiBi: minus a slope times |t - s| in place of a learned bias, slopes 1/2, 1/4, 1/8, 1/16. Who
# chased whom?
#
# ## How deep one can go
#
# BERT is **post-norm**: LayerNorm divides each of its 2 L sums by its size. Let a block's result be as large as its
# input, and independent of it: the sum is larger by sqrt(2), LayerNorm takes that back, and with it a factor of the
# gradient that came by the direct way. **Pre-norm** leaves the sum alone.


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
# left. (A pre-norm model has one more norm at its end, for its sum grows with each layer.)
#
# **Exercise 3.** Twelve layers, `book(12, size=32**-0.5)` of `lessons/chases.py`, learn 60 steps, once as they are and
# once pre-norm. What is the loss of each?

# %% [markdown]
# ## Who may look at whom
#
# **Local attention.** In ModernBERT-base 14 of 22 layers look at 64 tokens on each side, every third layer at all. A
# token in the middle has 129 places to look at, one at an end 65:

# %%
from minisbert.architectures import modernbert

print(inspect.getsource(modernbert.local_mask))


def seen(tokens, half=64):
    """How many tokens each token of a text sees in a local layer: (T,)."""
    places = torch.arange(tokens)
    return (places + half + 1).clamp_max(tokens) - (places - half).clamp_min(0)


mask = modernbert.local_mask(torch.arange(200)[None], None, 64)  # (1, 1, T, T)
assert torch.equal(mask[0, 0].sum(dim=-1), seen(200)), "counted in the package's mask"
assert (seen(200).min(), seen(200).max()) == (65, 129), "at the ends, and in the middle"


def scores_of(tokens):
    """Scores a token in ModernBERT-base: 14 layers are local, 8 global."""
    return 14 * seen(tokens).sum().item() / tokens + 8 * tokens


share = {tokens: scores_of(tokens) / (22 * tokens) for tokens in (64, 512, 8192)}
print({tokens: f"{value:.0%} of BERT's scores" for tokens, value in share.items()})
assert share[64] == 1, "no distance in a sentence is above 64: local is global"
assert 0.36 < share[8192] < 0.38, "little more than the 8 global layers of 22"

# %% [markdown]
# **The causal mask.** A decoder was trained to guess the next word, and must not see it. So a token knows what is to
# its left, and only the *last* one has read everything: its state is the vector. Pads come on the left, where they
# shift all places alike, which rotation does not notice.


# %%
from lessons.chases import batch_of
from minisbert.architectures.qwen3 import Decoder, DecoderConfig

print(inspect.getsource(decoder.causal_mask))


def last_token(hidden, mask):
    """The state of the last real token, whichever side the pads are on."""
    places = torch.arange(mask.shape[1]) * mask  # (B, T)
    return hidden[torch.arange(len(hidden)), places.argmax(dim=1)]  # (B, D)


def new_decoder():
    torch.manual_seed(0)
    sizes = DecoderConfig(
        vocab_size=30,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        num_key_value_heads=2,
        head_dim=8,
        rope_theta=100.0,
        initializer_range=0.15,
    )
    return Embedder(Decoder(sizes), last_token, left=True, after=nn.Linear(32, 32))


model = new_decoder()
print(f"decoder, last token, Dense: loss {learn(model):.3f}, found {found(model):.1%}")
assert found(model) > 0.9, "last-token pooling learns who chased whom"

ids, mask = batch_of(queries_of(unknown[:1]))
with torch.no_grad():
    whole, cut = model.encoder(ids), model.encoder(ids[:, :4])
    shifted = model.encoder(functional.pad(ids, (5, 0)), functional.pad(mask, (5, 0)))
assert largest_difference(whole[:, :4], cut) < 1e-5, "what comes after is not seen"
assert largest_difference(whole, shifted[:, 5:]) < 1e-5, "pads on the left: no change"

# %% [markdown]
# With **grouped queries** there are H / 2 or fewer heads of keys and values, and neighbouring heads of queries share
# one. A decoder that writes keeps the keys and values of all that it has read, so half of the heads is half of that
# memory. An embedder keeps nothing: for it the gain is two smaller matrices in each layer.
#
# **Exercise 4.** Take the causal mask from the decoder and train it anew, with the mean. Which of the two learns
# better here?
#
# **Exercise 5.** At which length does attention take half of the time in ModernBERT-base? Use the bill of lesson 11
# with `scores_of`.
#
# ## The figure
#
# Above: who may look at whom, token t in row t, in a text of 12 tokens (with a window of 2 instead of 64). Below: how
# often the right document is found, at places of the training and beyond.
#
# ![Three masks; found by kind of position](figures/23_what_changed_since_bert.png)


# %%
def draw(plt):
    layout = [["BERT", "local", "causal"], ["found"] * 3]
    drawn, axes = plt.subplot_mosaic(layout, figsize=(7, 5), layout="constrained")
    places = torch.arange(12)
    masks = {
        "BERT": torch.ones(12, 12),
        "local": modernbert.local_mask(places[None], None, 2)[0, 0],
        "causal": decoder.causal_mask(None, 12, places.device).reshape(12, 12),
    }
    for name, mask in masks.items():
        look = {"cmap": "Blues", "vmin": 0, "vmax": 1.3, "edgecolors": "white"}
        axes[name].pcolormesh(mask.flip(0), **look)
        axes[name].set(aspect="equal", xticks=[], yticks=[], xlabel="s answers")
        axes[name].set_title(f"{name}: {mask.sum():.0f} of 144")
    axes["BERT"].set_ylabel("t asks")
    rows, bars = range(len(moved)), axes["found"]
    for which, name, shade in ((0, "trained", "#1f4e79"), (1, "beyond", "#8bb8de")):
        values = [100 * pair[which] for pair in moved.values()]
        bars.barh(
            [y + 0.2 - 0.4 * which for y in rows], values, 0.38, color=shade, label=name
        )
    bars.set(yticks=rows, yticklabels=moved, xlabel="found, %", title="Who chased whom")
    bars.axvline(50, color="black", linewidth=0.8, linestyle=":")
    bars.legend(title="places", frameon=False, fontsize=7, loc="lower right")
    return drawn


figure("23_what_changed_since_bert", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** A decoder without any position: neither table nor bias nor rotation. Can it tell who chased whom?

# %%
guess = predict(
    "23.1",
    "A causal decoder without positions ...",
    ["guesses, as the bag of words does", "can tell"],
)

# %%
from lessons.chases import as_change

blind = new_decoder()
still = as_change(modern, "rotate", lambda x, cos, sin: x)
with planted(still):
    learn(blind)
    blind_found = found(blind)
print(f"found {blind_found:.1%}")
assert blind_found > 0.75, "the mask is a position: who sees two tokens is the second"
guess.answer("can tell")

# %% [markdown]
# **2.** The first token of a causal decoder is **BOS**, which marks the beginning of a sequence. Somebody takes its
# state, as one does with [CLS]. Which cosine do two unrelated texts get?

# %%
guess = predict(
    "23.2",
    "Two unrelated texts by their first token: the cosine is ...",
    ["about 0", "about 0.5", "1"],
)

# %%
from lessons.chases import documents_of
from minisbert.core.encoder import normalize

with torch.no_grad():
    firsts = model.encoder(*batch_of(documents_of(unknown[:9])))[:, 0]
print((normalize(firsts) @ normalize(firsts).T)[:3, :3])
alike = largest_difference(firsts, firsts[:1].expand_as(firsts))
assert alike < 1e-6, "it has read nothing but itself"
guess.answer("1")

# %% [markdown]
# ## Break it
#
# Most of these mistakes have been reported in public. Each is planted into our trained decoder. The mean cosine is that
# of right and wrong vector of the same query. Then two searches: everything computed wrongly, queries and documents
# alike, and wrong queries in an index that somebody else has built rightly.


# %%
from lessons.chases import wrong
from lessons.mistakes import MISTAKES
from minisbert.core.pooling import mean_pool


print(inspect.getsource(wrong))
causal_mask, rotary = decoder.causal_mask, modern.rotary


def no_causal(mask, tokens, device):
    return mask.expand(-1, 1, tokens, -1)


def pads_seen(mask, tokens, device):
    return causal_mask(None, tokens, device)


def other_base(places, width, base, dtype):
    return rotary(places, width, 10_000.0, dtype)


def last_column(hidden, mask):
    return hidden[:, -1]


def counted_from_the_left(hidden, mask):
    return hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]


changes = {
    "nothing": {},
    "bfloat16": {"low": torch.bfloat16},
    "prefix left out": {"first": ()},
    "causal mask forgotten": as_change(decoder, "causal_mask", no_causal),
    "gate and up swapped": MISTAKES["gate and up swapped"],
    "rotation interleaved": MISTAKES["rotation interleaved"],  # pairs (2i, 2i + 1)
    "rotary base 10,000 for 100": as_change(modern, "rotary", other_base),
    "pads on the left, seen": as_change(decoder, "causal_mask", pads_seen),
    "pads on the left, place counted as on the right": {"pool": counted_from_the_left},
    "pads on the right, the last column taken": {"pool": last_column, "left": False},
    "end token forgotten: the last word is taken": {"end": False},
    "mean instead of the last token": {"pool": mean_pool},
    "Dense layer left out": {"after": False},
}
table = {}
for name, change in changes.items():
    options = change if isinstance(change, dict) else {"change": change}
    table[name] = wrong(name, model, **options)

# %% [markdown]
# The sizes are those of a toy of thirty words. What carries over is this:
#
# - *No line crashes.* Each gives vectors of the right shape and length.
# - Rounding is 0.999 and more. A forgotten causal mask is 0.86, and most documents are still found, so no demo shows
#   it.
# - The Dense layer left out gives a cosine of about 0, and the search is as good as before if *both* sides lack it. The
#   day the index comes from one engine and the query from another, nothing is found.
# - Pads do their harm in batches. A single text has none, and every test with one sentence passes.
#
# So compare numbers with the reference, of texts of different lengths in one batch, before you index ten million of
# them. `minisbert certify` does that, and `minisbert trace` says where two models part.

# %%
assert table["nothing"][0] > 0.99999, "no change, no difference"
assert table["bfloat16"][0] > 0.999, "rounding"
assert max(row[0] for row in list(table.values())[2:]) < 0.998, "far from rounding"
assert table["causal mask forgotten"][1] > 0.65, "found, and nobody notices"
for name in list(table)[8:10]:
    assert table[name][0] < 0.7, f"{name}: another token's state"
cosine, alone, mixed = table["Dense layer left out"]
assert abs(cosine) < 0.5, "a vector of the right width, in another space"
assert alone > 0.8 > 0.3 > mixed, "fine alone, useless together"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 23 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: rotate, rms_norm, swiglu: `python -m lessons.check start 23`, `run 23`, `hint 23`.
#
# ## Sources
#
# - Raffel et al. 2020, *Exploring the limits of transfer learning with a unified text-to-text transformer* (T5), and
#   Song et al. 2020, *MPNet*: position biases in buckets.
# - Su et al. 2021, *RoFormer: enhanced transformer with rotary position embedding*.
# - Xiong et al. 2020, *On layer normalization in the transformer architecture*: why post-norm needs a warm-up.
# - Zhang and Sennrich 2019, *Root mean square layer normalization*. Shazeer 2020, *GLU variants improve transformer*.
# - Warner et al. 2024, *Smarter, better, faster, longer* (ModernBERT). Qwen team 2025, *Qwen3 Embedding*.
# - Ainslie et al. 2023, *GQA: training generalized multi-query transformer models from multi-head checkpoints*.
# - The mistakes, as reported on GitHub: transformers issue 25199 (interleaved or halved), Echo pull request 24 (place
#   counted as on the right: cosine 0.37), mlx-swift-lm 418 (pads seen), crow 355 (mean for last token),
#   text-embeddings-inference 660 (Dense), omlx 1817 (prefix).
#
# ## What you have now
#
# You can read the configuration of a model of this year: its norms, its positions, its gates, who looks at whom, and
# which bugs come of it. Next: [from nothing](24_from_nothing.py).
