# %% [markdown]
# # Lesson 07: the whole encoder, and finding a bug
#
# Steps through `minisbert/core/bert.py`: `Bert`; and `lessons/by_hand/divergence.py`. Reading 45, chapter 15, pieces
# 70, exercises 70 minutes. You will compare every layer with what transformers, Hugging Face's library, computes,
# count the parameters, and then hunt a bug that somebody has planted.

# %%
import torch
from course import GOLDEN, chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# All the pieces are there. How do you know that the whole is right? It runs, but lesson 01 showed that running proves
# little. We need somebody who has done it before, and we need to compare *numbers*, not impressions.
#
# ![Map of the model: encoder](drawings/map_07.svg)
#
# ## The formula
#
# `L` layers, one after the other, each (B, T, D) to (B, T, D):
#
#     h[0] = embeddings(ids)          h[i+1] = layer_i(h[i], mask)          i = 0 .. L-1
#
# Every layer gets the same mask, with two axes more, so that it fits the scores (B, H, T, T); without a mask it gets
# None. A dict given as `trace` is filled with what comes out of each step:
#
#     mask (B, T)  ->  mask.bool()[:, None, None, :]  (B, 1, 1, T)
#     trace["embeddings"] = h[0]     trace[f"layers.{i}"] = h[i+1]     trace[f"layers.{i}.attention"] = probabilities
#
# And the measure: at each h, the largest absolute difference from the **reference**, over all real tokens,
#
#     d_i = max over b, t, c of | ours_i[b, t, c] - theirs_i[b, t, c] |        t runs over real tokens only
#
# The tool that we need: of all the names that both sides have, in the order in which our model computes them, the first
# whose states differ too much; or none,
#
#     the first name of ours with  d_i > tolerance,  or ""        a NaN is a difference, whatever it is compared with
#
# In float32 a sum of hundreds of products is rounded at every step, in an order that no library promises. A faithful
# copy of this model differs by a few millionths, most mistakes by more than 3e-4. So the bound, the **tolerance**, is
# 2e-5: above all rounding. But a third of the mistakes in `lessons/mistakes/` that concern this model slip under it: an
# epsilon outside the root, a mask that is large but finite, and everything that happens only in training, such as
# dropout. Those need float64, extreme inputs and gradients, which is what the package's tests use.

# %% [markdown]
# ## The real function
#
# Three tokens through `Bert`: the first four columns of the embeddings and of each layer. Watch the rows change, and
# keep their size. (The encoder is the larger one, of `minisbert/models/`, because the comparison below opens models of
# every kind. Its `bert` is that of the book.)

# %%
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure

folder = ensure("all-MiniLM-L6-v2")
encoder = SentenceEncoder.load(folder)

# %%
states = {}
with torch.no_grad():
    hidden = encoder.bert(torch.tensor([[101, 7592, 102]]), trace=states)  # (1, T, D)
for name in ("embeddings", *(f"layers.{i}" for i in range(6))):
    print(name, states[name][0, :, :4], sep="\n")
assert largest_difference(hidden, states["layers.5"]) == 0, "the last layer's output"

# %% [markdown]
# **Write it:** `Bert`, the whole class (`python -m lessons.check start 07`, then `run 07`). You have written the classes
# of its parts:
#
#     self.config, self.embeddings, self.layers    the config itself, Embeddings(config), L times Layer(config)
#     self.pooler                                  nn.Linear(D, D), or None where ``pooler`` is False
#
# The pooler is a dense layer on the first token, which a sentence encoder leaves alone; we come back to it. The
# layers must be in an `nn.ModuleList`: in a plain list torch does not see their parameters. Before a model is trained
# or loaded, its matrices and tables are random with the standard deviation `config.initializer_range`, and the biases
# of its dense layers are 0 (`nn.init.normal_(tensor, std=...)`, `nn.init.zeros_(tensor)`, for each of
# `self.modules()`). Then `forward`, and compare. Why does the book's refuse a mask of floats? It gives each layer the
# same mask: which models of lesson 23 cannot do with that? And which is the first of the L + 1 tensors of
# `hidden_states`?

# %%
chapter("bert", "Bert")

# %% [markdown]
# Now the reference. If transformers and sentence-transformers are installed, we ask them; otherwise we read what they
# computed when the project was made (`tests/reference/minilm.safetensors`, which keeps only hidden states and vectors).

# %%
import importlib.util

from safetensors.torch import load_file

from minisbert.diagnosis.tracing import (
    HIDDEN,
    VECTOR,
    compare_states,
    first_divergence,
    huggingface,
    inputs_of,
    our_states,
    print_rows,
)

texts = ["A man is playing a guitar.", "Hi", "Two dogs run through the snow."]
libraries = ("transformers", "sentence_transformers")
if all(importlib.util.find_spec(name) for name in libraries):
    inputs = inputs_of(encoder, texts)
    theirs = huggingface(folder, inputs, double=False)
    print("the reference: transformers and sentence-transformers, just now")
else:
    golden = load_file(GOLDEN / "minilm.safetensors")
    inputs = {"ids": golden["ids"], "mask": golden["mask"]}
    inputs["token_types"] = torch.zeros_like(golden["ids"])
    theirs = {"embeddings": golden["hidden.0"], "vector": golden["vectors"]}
    theirs |= {f"layers.{i}": golden[f"hidden.{i + 1}"] for i in range(6)}
    print("the reference: what they computed once")

ours = our_states(encoder, inputs)
# The tool of the formula, and the same as the command has it, with a table.
from lessons.by_hand import divergence

layers = {name: state for name, state in ours.items() if state.ndim == 3}  # (B, T, D)
apart = divergence.first_divergence(layers, theirs, inputs["mask"], HIDDEN)
print("the first to differ:", apart or "none")
assert not apart, "all hidden states agree"
tolerances = {name: VECTOR if name == "vector" else HIDDEN for name in ours}
rows = compare_states(ours, theirs, inputs["mask"], tolerances)
print_rows(rows)
assert first_divergence(rows) is None, "every tensor within its tolerance"
assert max(row.difference for row in rows) < 1e-5, "a few millionths"
assert {f"layers.{i}" for i in range(6)} <= {row.name for row in rows}, "every layer"

# %% [markdown]
# `minisbert trace` prints the same table from the command line.
#
# **Write it:** `first_divergence`, ten lines, which you will use in every port of a model. (`compare_states` of
# `minisbert/diagnosis/tracing.py` does the same, and reads attention's probabilities too.)
#
# **Exercise 1.** The tolerance is absolute. Why would a relative one be a poor choice for hidden states around 0?
#
# ## How large it is
#
# Every parameter now has a place; lesson 03 finds them in the file. The **pooler**, the last of them, makes one vector
# of the first token's, and hardly any sentence encoder uses it. With the legend of `core/bert.py`, `V` vocabulary, `D`
# width, `F` feed-forward width, `L` layers, and `P` rows of the position table, a BERT has
#
#     embeddings      (V + P + Y) * D  +  2 D                three tables and a LayerNorm; Y token types, 2 here
#     attention       L * (4 * (D * D + D)  +  2 D)          query, key, value, output; a LayerNorm
#     feed-forward    L * (2 * D * F + F + D  +  2 D)        up and down; a LayerNorm
#     pooler          D * D + D                              a dense layer on the first token


# %%
def parameters(V, D, L, F, P):
    return {
        "embeddings": (V + P + 2) * D + 2 * D,
        "attention": L * (4 * (D * D + D) + 2 * D),
        "feed-forward": L * (2 * D * F + F + D + 2 * D),
        "pooler": D * D + D,
    }


minilm = parameters(V=30522, D=384, L=6, F=1536, P=512)
base = parameters(V=30522, D=768, L=12, F=3072, P=512)
for part, count in minilm.items():
    print(f"{part:14} {count:>12,}   BERT base {base[part]:>12,}")
counted = sum(parameter.numel() for parameter in encoder.parameters())
assert sum(minilm.values()) == counted == 22_713_216, "as torch counts them"
assert sum(base.values()) == 109_482_240, "BERT base: the 110 million of the paper"

# %% [markdown]
# ## The figure
#
# How far three mistakes move the hidden states, layer by layer, against rounding and the tolerance. The scale is
# logarithmic: between rounding and the smallest of these three lies a wide empty band.
#
# ![Difference from the right hidden states, layer by layer](figures/07_encoder.png)

# %%
from lessons.mistakes import MISTAKES, planted

layers = ["embeddings", *(f"layers.{i}" for i in range(6))]
rounding = "rounding (float32 beside float64)"
curves = {rounding: our_states(SentenceEncoder.load(folder).double(), inputs)}
for name in ("LayerNorm eps 1e-5", "tanh GELU", "no attention mask"):
    with planted(MISTAKES[name]):
        curves[name] = our_states(encoder, inputs)
real = inputs["mask"][:, :, None]
curves = {
    label: [
        largest_difference(other[name] * real, ours[name].to(other[name].dtype) * real)
        for name in layers
    ]
    for label, other in curves.items()
}


def draw(plt):
    drawn, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    shades = ("#888888", "#8bb8de", "#3b7ab8", "#1f4e79")
    lines = zip(curves.items(), shades, "osD^", strict=True)
    for (label, values), shade, mark in lines:
        shown = [max(value, 1e-8) for value in values]
        axes.plot(range(7), shown, mark + "-", color=shade, label=label)
    axes.axhline(HIDDEN, color="#c0392b", linestyle="--", label=f"tolerance {HIDDEN:g}")
    axes.set_xticks(range(7), ["embeddings", *(f"layer {i}" for i in range(6))])
    axes.set(yscale="log", ylabel="largest difference")
    axes.set_title("Rounding stays below the bound, mistakes above it")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawn


figure("07_encoder", draw)
for label, values in curves.items():
    print(f"{label:36} last layer {values[-1]:.1e}")
for label, values in curves.items():
    assert (max(values) < HIDDEN) == (label == rounding), "only rounding is below"
    assert (min(values[1:]) > HIDDEN) == (label != rounding), "the others are above"

# %% [markdown]
# The curves start at the mistake. *no attention mask* and *tanh GELU* leave the embeddings as they are (drawn at the
# bottom), *LayerNorm eps* does not. So the *first* row that differs tells you where to look. Later rows only show that
# an error, once made, is passed on.
#
# **Exercise 2.** Compare in float64: `encoder.double()` on our side, `double=True` for the reference. How large is
# the largest difference now, and what does that prove that float32 could not?
#
# ## Predict, then run
#
# **1.** Somebody forgets the last layer, so their table has no row layers.5. Of the rows that both have, which is the
# first to differ?

# %%
guess = predict(
    "07.1",
    "One layer short: the first row to differ?",
    ["embeddings", "layers.4", "pooler"],
)


# %%
def table(name):
    """The rows of a comparison in which the other side has made this mistake."""
    with planted(MISTAKES[name]):
        wrong = our_states(encoder, inputs)
    return compare_states(ours, wrong, inputs["mask"], tolerances)


found = table("one layer short")
print_rows(found)
first = first_divergence(found).name
assert first == "pooler", "their table lacks layer 5; what was computed from it differs"
guess.answer("pooler")

# %% [markdown]
# **2.** And if the LayerNorm after the embeddings is missing? And if the mean is taken over pads?

# %%
guess = predict(
    "07.2",
    "The mean over pads: the first row to differ?",
    ["embeddings", "layers.0", "pooled"],
)

# %%
bare = first_divergence(table("embeddings not normalised")).name
pooled = first_divergence(table("mean over pads")).name
print(f"{bare}, and {pooled}")
assert bare == "embeddings", "at the very start"
assert pooled == "pooled", "all of the encoder is right"
guess.answer("pooled")

# %% [markdown]
# **3.** "detached probabilities" is wrong in the backward pass only. Does this table find it?

# %%
guess = predict("07.3", "Does the table find a wrong backward pass?", ["yes", "no"])

# %%
first = first_divergence(table("detached probabilities"))
assert first is None, "no: equal results do not prove the gradient"
print("no difference; the package's tests compare the gradients too")
guess.answer("no")

# %% [markdown]
# **4.** Double the width D (and F with it). Do the parameters of the layers double, or quadruple?

# %%
guess = predict(
    "07.4", "Twice the width: the parameters of attention ...", ["double", "quadruple"]
)

# %%
wide = parameters(V=30522, D=768, L=6, F=3072, P=512)
for part in ("embeddings", "attention", "feed-forward"):
    print(f"{part:14} x {wide[part] / minilm[part]:.2f}")
assert wide["embeddings"] == 2 * minilm["embeddings"], "tables are linear in D"
assert 3.98 < wide["attention"] / minilm["attention"] < 4, "D by D: quadratic"
guess.answer("quadruple")

# %% [markdown]
# ## Break it
#
# Now the hunt. A mistake is drawn at random and planted in "somebody's port"; you get its tensors and nothing else.
# First the table of first divergence. Say aloud what you suspect before you go on.

# %%
import random

secret = random.Random(7).choice(
    ["no 1/sqrt(K)", "1/K", "heads interleaved", "quick GELU", "no attention biases"]
)
with planted(MISTAKES[secret]):
    port = our_states(encoder, inputs)

rows = compare_states(ours, port, inputs["mask"], tolerances)
print_rows(rows)
first = first_divergence(rows)
assert first is not None, "the port differs"

# %% [markdown]
# The first row that differs leaves a handful of lines. Next: plant each known mistake on *our* side, one after the
# other, and see which one makes everything equal.

# %%
from lessons.mistakes.hunt import suspects, verdict


def again():
    return compare_states(our_states(encoder, inputs), port, inputs["mask"], tolerances)


whole, partly = suspects(rows, again)
print(verdict(rows, whole, partly))
assert whole == [secret], "one mistake, and only one, gives these numbers"

# %% [markdown]
# If no known mistake fits, you **bisect** by hand, which is to halve the stretch in which the mistake must be: write out
# q, then the scores, then the probabilities, and compare each.
# The tool for your own code is
#
#     minisbert trace --write ours.safetensors         every intermediate result, by name
#     minisbert trace --against yours.safetensors      your tensors of the same names against ours
#
# **Exercise 3.** Change the seed of the hunt (lesson 12 is about seeds) and guess from the table before you run the
# last cell. How often are you right?
#
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 07 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: the encoder itself, from ids to hidden states, and the tool: `python -m lessons.check start 07`,
# `run 07`, `hint 07`.
#
# ## Sources
#
# - Devlin et al. 2019, *BERT*, section 3.
# - Wolf et al. 2020, *Transformers: state-of-the-art natural language processing*: the reference.
# - Goldberg 1991, *What every computer scientist should know about floating-point arithmetic*: why not 0.
#
# ## What you have now
#
# `python -m lessons.check mine 07` compares every layer of MiniLM, from your `forward`, with the reference.
#
# Ids go in and hidden states come out, equal to the reference, and you know how to find the first row that is not.
# Next: [pooling and the mask](08_pooling.py).
