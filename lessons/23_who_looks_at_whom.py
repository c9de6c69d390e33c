# %% [markdown]
# # Lesson 23: who looks at whom: local attention, decoders, and their bugs
#
# Steps through `minisbert/architectures/modernbert.py`, `minisbert/architectures/qwen3.py`. About 40 minutes. You will
# count what a token may look at, make vectors with a model that was built to write, and see how ports of such models go
# wrong.

# %%
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# In BERT every token looks at every other one. That costs the square of the length, and it is not the only way: newer
# encoders look at their neighbourhood in most layers, and decoders only at what is to their left. What does it save,
# what is lost, and how does one get a vector out of a model that was built to write the next word?
#
# ## The formula
#
# Token t asks and s answers. Who may answer?
#
#     BERT                     every s
#     local attention          |s - t| <= 64
#     causal mask              s <= t
#
# And with how many heads? BERT has H of queries and H of keys. With **grouped queries** there are H / 2 or fewer of
# keys and values, and neighbouring heads of queries share one.
#
# ## The real function
#
# **Local attention.** In ModernBERT-base 14 of 22 layers look at 64 tokens on each side, every third layer at all. A
# token in the middle has 129 places to look at, one at an end 65:

# %%
from minisbert.core import bert

bert.FUSED = True  # lesson 26: the same numbers in less time

# %%
from minisbert.architectures import modernbert


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
from minisbert.architectures import qwen3 as decoder

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
from torch import nn
from torch.nn import functional

from lessons.chases import Embedder, batch_of, found, learn, queries_of, unknown
from minisbert.architectures.qwen3 import Decoder, DecoderConfig


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
# **Exercise 1.** Take the causal mask from the decoder and train it anew, with the mean. Which of the two learns
# better here?

# %% [markdown]
# ## The figure
#
# Scores a token in ModernBERT-base, with local layers and without.
#
# ![Scores a token by length](figures/23_who_looks_at_whom.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    lengths = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    for which, shade in ((1, "#bbbbbb"), (0, "#1f4e79")):
        name = "all global" if which else "14 of 22 local"
        axes.plot(
            lengths,
            [scores_of(tokens)[which] for tokens in lengths],
            color=shade,
            label=name,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="tokens of the text",
        title="Scores a token, 22 layers",
    )
    axes.legend(frameon=False, fontsize=8)
    return drawn


figure("23_who_looks_at_whom", draw)

# %% [markdown]
# **Exercise 2.** At which length does attention take half of the time in ModernBERT-base? Use lesson 25's formula
# with `scores_of`.

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
from lessons.mistakes import planted
from minisbert.architectures import modern

blind = new_decoder()
still = as_change(modern, "rotate", lambda x, cos, sin: x)
with planted(still):
    learn(blind)
    blind_found = found(blind)
print(f"found {blind_found:.1%}")
assert blind_found > 0.75, (
    "the mask is a position: the first token sees one token, the second two"
)
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
assert largest_difference(firsts, firsts[:1].expand_as(firsts)) < 1e-6, (
    "it has read nothing but itself"
)
guess.answer("1")

# %% [markdown]
# ## Break it
#
# Each mistake in the next table has been reported in public, of some port of some model. Each is planted into our
# trained decoder. The mean cosine is that of right and wrong vector of the same query. Then two searches: everything
# computed wrongly, queries and documents alike, and wrong queries in an index that somebody else has built rightly.


# %%
from lessons.chases import wrong
from lessons.mistakes import MISTAKES
from minisbert.core.pooling import mean_pool


def place_as_on_the_right(hidden, mask):
    return hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]


def no_causal_mask(mask, tokens, device):
    return mask.expand(-1, 1, tokens, -1)


def pads_seen(mask, tokens, device, right=decoder.causal_mask):
    return right(None, tokens, device)


changes = {
    "nothing": {},
    "bfloat16": {"low": torch.bfloat16},
    "prefix left out": {"first": ()},
    "causal mask forgotten": {
        "change": as_change(decoder, "causal_mask", no_causal_mask)
    },
    "gate and up swapped": {"change": MISTAKES["gate and up swapped"]},
    "RMSNorm with a mean": {"change": MISTAKES["RMSNorm with a mean"]},
    "rotation interleaved": {"change": MISTAKES["rotation interleaved"]},
    "pads on the left, attention sees them": {
        "change": as_change(decoder, "causal_mask", pads_seen)
    },
    "pads on the left, place counted as on the right": {"pool": place_as_on_the_right},
    "pads on the right, the last column taken": {
        "pool": lambda hidden, mask: hidden[:, -1],
        "left": False,
    },
    "end token forgotten: the last word is taken": {"end": False},
    "mean instead of the last token": {"pool": mean_pool},
    "Dense layer left out": {"after": False},
}
table = {name: wrong(name, model, **change) for name, change in changes.items()}

# %% [markdown]
# The sizes are those of a toy of thirty words. What carries over is this:
#
# - *No line crashes.* Each gives vectors of the right shape and length.
# - Rounding is 0.999 and more. A forgotten causal mask is 0.9, and most documents are still found: no demo shows it,
#   and you pay for it in every query.
# - The Dense layer left out gives a cosine of about 0, and the search is as good as before, as long as *both* sides
#   lack it. The day the index comes from one engine and the query from another, nothing is found.
# - Pads do their harm in batches. Alone, a text has none, and every test with one sentence passes.
#
# So compare numbers with the reference, of texts of different lengths in one batch, before you index ten million of
# them. `minisbert certify` does that, and `minisbert trace` names many of these causes.

# %%
assert table["nothing"][0] > 0.99999, "the table's own zero"
assert table["bfloat16"][0] > 0.999, "rounding"
assert all(
    table[name][0] < 0.998 for name in table if name not in ("nothing", "bfloat16")
), "each is far from rounding"
assert table["causal mask forgotten"][1] > 0.65, (
    "most documents are found, and nobody notices"
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
# Exercises 1 to 2 stand beside what they practise. `python -m lessons.check answer 22 1` gives a hint for the first,
# and asked again, the answer.
#
# No piece is graded here, so there is no `python -m lessons.check start 22`: a decoder's layer is made of the pieces of
# lesson 22. `quiz 22` asks five questions.
#
# ## Sources
#
# - Warner et al. 2024, *Smarter, better, faster, longer* (ModernBERT). Qwen team 2025, *Qwen3 Embedding*.
# - Ainslie et al. 2023, *GQA: training generalized multi-query transformer models from multi-head checkpoints*.
# - The mistakes, as reported: Echo pull request 24 (place counted as on the right: cosine 0.37), mlx-swift-lm 418 (pads
#   seen), crow 355 (mean for last token), text-embeddings-inference 660 (Dense), omlx 1817 (prefix), all on GitHub.
#
# ## What you have now
#
# You know who looks at whom in each kind of model, and which bugs come of it. Next: [from
# nothing](24_from_nothing.py).
