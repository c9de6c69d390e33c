# %% [markdown]
# # Lesson 06: feed-forward and the layer
#
# Steps through `minisbert/core/bert.py`: `gelu`, `FeedForward`, `Layer`. About 40 minutes. You will put a whole layer
# together from its parts, and find out what the residual sums are good for.

# %%
import torch
from course import chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Attention moves information between tokens, and what it passes on is a weighted average. Averaging only mixes what is
# there. Which part of a layer computes something new from it?
#
# ![Map of the model: layer](drawings/map_06.svg)
#
# ## The formula
#
# The **feed-forward** block: two dense layers with a non-linear function between them, for each token on its own. `F`
# is the width in the middle, usually 4 D:
#
#     feed_forward(x) = W2 * gelu(W1 * x + b1) + b2        (B, T, D) -> (B, T, F) -> (B, T, D)
#     gelu(z)         = z * P(Z <= z),  Z standard normal  =  z/2 * (1 + erf(z / sqrt(2)))
#
# Such a function of one number is a **non-linearity**; here it is gelu. Without one, two dense layers are worth no more
# than one, since W2 (W1 x) = (W2 W1) x. A standard normal number is a random one with mean 0 and standard deviation 1,
# and erf is the function that adds up its bell curve; torch and Python's `math` have it.
#
# A layer wraps both blocks in the same way: the block's result is *added* to its input, a **residual sum**, and
# LayerNorm comes after it. The first transformers had this order, *post-LayerNorm*; many newer ones have LayerNorm in
# front of the block, *pre-LayerNorm* (lesson 23):
#
#     x = LayerNorm1(x + dropout(attention(x)))
#     x = LayerNorm2(x + dropout(feed_forward(x)))
#
# Dropout (lesson 04) acts in training only. In `Layer` both are `self.dropout`.
#
# ![The residual stream through one layer](drawings/residual.svg)

# %% [markdown]
# ## The real function
#
# **GELU** on small numbers. A standard normal number is below 1 with probability 0.8413, so gelu(1) = 0.8413, and
# gelu(-1) = -0.1587. Far to the right it is z itself, far to the left 0.

# %%
from minisbert.core.encoder import SentenceEncoder
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))

# %%
import math

from minisbert.core import bert

z = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])
print(bert.gelu(z))
assert largest_difference(bert.gelu(z), [-0.0040, -0.1587, 0, 0.8413, 2.9960]) < 1e-4
by_erf = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
assert abs(bert.gelu(torch.tensor(1.0)) - by_erf) < 1e-6, "the formula, by math.erf"

# %% [markdown]
# Now a layer on three tokens, from its parts. The first four columns after each step.

# %%
ids = torch.tensor([[101, 7592, 102]])  # [CLS] hello [SEP]
layer = encoder.bert.layers[0]
with torch.no_grad():
    x = encoder.bert.embeddings(ids, None)  # (1, T, D)
    attended, _ = layer.attention(x, None)  # (1, T, D)
    middle = layer.attention_norm(x + attended)  # (1, T, D)
    up = layer.feed_forward.up(middle)  # (1, T, F)
    down = layer.feed_forward.down(bert.gelu(up))  # (1, T, D)
    out = layer.feed_forward_norm(middle + down)  # (1, T, D)
    whole, _ = layer(x, None)  # the real function
steps = {"x": x, "attention(x)": attended, "after the sum and LayerNorm 1": middle}
steps |= {"feed_forward": down, "after the sum and LayerNorm 2": out}
for name, value in steps.items():
    print(name, value[0, :, :4], sep="\n")
assert up.shape[-1] == 1536 == 4 * 384, "F is 4 D here"
assert largest_difference(out, whole) < 1e-6, "six lines are a layer"

# %% [markdown]
# **Exercise 1.** The formula shows two places with dropout, and `Layer` has a third. Where, and what does dropout do
# there in training? (Lesson 10 needs it.)
#
# **Exercise 2.** Write gelu with torch.special.ndtr, the P(Z <= z) of the formula, and compare. Write it with
# torch.sigmoid(1.702 z) and compare again. (Lesson 15 has a use for the sigmoid.)

# %% [markdown]
# ## The figure
#
# Left: GELU and **ReLU**, which cuts at 0: max(0, z). Middle: the tanh approximation minus GELU, in ten-thousandths.
# Right: what enters the GELU in MiniLM, for a whole sentence. Four fifths of it is negative, and comes out between
# -0.17 and 0.
#
# ![GELU, its approximation, and what MiniLM feeds it](figures/06_layer.png)

# %%
from torch.nn.functional import gelu as ready_made_gelu

text = "The old fisherman mended his nets by the harbour wall."
text_ids = torch.tensor(encoder.tokenizer.encode([text]).ids)
states, inputs = {}, []
with torch.no_grad():
    encoder.bert(text_ids, trace=states)
    names = ["embeddings", *(f"layers.{i}" for i in range(5))]
    for name, block in zip(names, encoder.bert.layers, strict=True):
        found, _ = block.attention(states[name], None)
        between = block.attention_norm(states[name] + found)
        inputs.append(block.feed_forward.up(between)[0])  # (T, F)
inputs = torch.stack(inputs)  # (L, T, F)
grid = torch.linspace(-5, 5, 1001, dtype=torch.float64)
gap = ready_made_gelu(grid, approximate="tanh") - bert.gelu(grid)


def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(10, 3.3), layout="constrained"
    )
    left.plot(grid, grid.clamp_min(0), color="#bbbbbb", label="ReLU")
    left.plot(grid, bert.gelu(grid), color="#1f4e79", label="GELU")
    left.set(xlim=(-4, 3), ylim=(-0.5, 3), title="GELU", xlabel="z")
    left.legend(frameon=False)
    middle.plot(grid, 1e4 * gap, color="#1f4e79")
    middle.set(title="tanh approximation - GELU, times 10,000", xlabel="z")
    right.hist(inputs.flatten().numpy(), bins=100, range=(-6, 4), color="#3b7ab8")
    right.axvline(0, color="black", linewidth=0.8)
    right.set(title="What MiniLM's GELUs receive", xlabel="z", yticks=[])
    return drawn


figure("06_layer", draw)
negative = (inputs < 0).float().mean().item()
print(f"{negative:.0%} negative; tanh is off by up to {gap.abs().max():.1e}")
assert 0.7 < negative < 0.9, "four fifths"
assert -0.17 < bert.gelu(inputs).min() < -0.16, "gelu's lowest value is -0.17"
assert 4e-4 < gap.abs().max() < 5e-4, "small for a plot, large beside rounding"

# %% [markdown]
# **Exercise 3.** For one token, which of the 1,536 middle columns is largest in layer 5? Which other tokens activate
# it?

# %% [markdown]
# ## Predict, then run
#
# **1.** Change the second token's vector. Which rows of `feed_forward`'s result change? And of the whole layer's?

# %%
guess = predict(
    "06.1",
    "Which rows change in feed_forward, and which in the layer?",
    ["the second; the second", "the second; all", "all; all"],
)

# %%
with torch.no_grad():
    other = x.clone()
    other[0, 1] += 1
    moved_block = (layer.feed_forward(other) - layer.feed_forward(x)).abs().amax(-1)[0]
    moved_layer = (layer(other, None)[0] - layer(x, None)[0]).abs().amax(-1)[0]
print(moved_block, moved_layer)
assert (moved_block > 1e-5).tolist() == [False, True, False], "one token at a time"
assert (moved_layer > 1e-5).all(), "attention has told the others"
guess.answer("the second; all")

# %% [markdown]
# **2.** Without the GELU, W2 (W1 x + b1) + b2 is a single matrix of D by D. How many parameters would that save per
# layer?

# %%
guess = predict(
    "06.2",
    "One matrix instead of two saves ...",
    ["nothing", "half of the parameters", "seven eighths of them"],
)

# %%
with torch.no_grad():
    up_layer, down_layer = layer.feed_forward.up, layer.feed_forward.down
    one_matrix = down_layer.weight @ up_layer.weight  # (D, F) times (F, D) -> (D, D)
    one_bias = down_layer.weight @ up_layer.bias + down_layer.bias
    straight = down_layer(up_layer(x))
two = sum(p.numel() for p in layer.feed_forward.parameters())
one = one_matrix.numel() + one_bias.numel()
print(f"{two:,} -> {one:,}")
off = largest_difference(x @ one_matrix.T + one_bias, straight)
assert off < 1e-4, "two straight lines in a row are one"
assert 0.87 < 1 - one / two < 0.88, "seven eighths are saved"
guess.answer("seven eighths of them")

# %% [markdown]
# ## Break it
#
# Known mistakes in these pieces. First the change in the layer above, then what is left of the sentence vectors: the
# cosine between the right and the wrong vector of the same text.

# %%
from lessons.mistakes import MISTAKES, planted

texts = [
    "A cat sits on the mat.",
    "Two people are playing chess.",
    "The stock market fell sharply today.",
]
right_vectors = encoder.encode(texts)  # (3, D)
change, agreement = {}, {}
pieces = ("bert.gelu", "bert.FeedForward.forward", "bert.Layer.forward")
for name, mistake in MISTAKES.items():
    if mistake.target in pieces:
        with planted(mistake), torch.no_grad():
            change[name] = largest_difference(layer(x, None)[0], whole)
            agreement[name] = (encoder.encode(texts) * right_vectors).sum(1).min()
        row = f"{name:36} layer {change[name]:8.1e}"
        print(f"{row}   least cosine {agreement[name]:.5f}")

# %% [markdown]
# *tanh GELU*: the cosine of right and wrong is 1.00000 to five digits. The approximation is a fine function, but these
# weights were trained with the other one, and a port that uses it is not equal. Forgetting a residual, or moving the
# LayerNorm in front of the block (as many newer models do, with weights trained for that), destroys everything.
#
# The last six rows show what a test has to have. The layer above got no mask, so *layer drops the mask* is hidden in
# it, and only the batch of three texts with pads tells. And the five with dropout (lesson 04) are hidden in eval mode.

# %%
assert agreement["tanh GELU"] > 0.99999, "invisible in a cosine"
assert 1e-4 < change["tanh GELU"] < 2e-2, "visible in a number"
for name in (
    "pre-LayerNorm",
    "attention's residual forgotten",
    "one LayerNorm for both blocks",
):
    assert agreement[name] < 0.7, f"{name}: another model altogether"

# %% [markdown]
# What are the residual sums good for? The gradient has a way around each block. Set all the blocks' weights to zero:
# with the sums a layer still passes its input on, without them the input is gone, and so is its gradient.

# %%
torch.manual_seed(0)
# V = 50, D = 8, one layer, two heads, F = 16, ten positions
small = bert.Layer(bert.BertConfig(50, 8, 1, 2, 16, 10)).eval()
with torch.no_grad():
    for parameter in (*small.attention.parameters(), *small.feed_forward.parameters()):
        parameter.zero_()


def gradient():
    """How the layer's first output depends on its input (1, 3, 8)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 3, 8, generator=generator).requires_grad_()
    small(x, None)[0][0, 0, 0].backward()
    return x.grad.abs().max().item()


with_sums = gradient()
with planted(MISTAKES["attention's residual forgotten"]):
    without = gradient()
print(f"gradient with the sums {with_sums:.2f}, without attention's {without:.2f}")
assert with_sums > 0.1, "a way past the blocks"
assert without == 0, "no way at all"

# %% [markdown]
# The way back through the other half, by the **chain rule**: a dense layer with GELU, y = gelu(z) and z = x W^T + b,
# gets dL/dy from the layer above and hands on. P is the standard normal distribution, p its slope, the bell curve:
#
#     p(z)  = exp(-z^2 / 2) / sqrt(2 pi)
#     dL/dz = dL/dy * ( P(z) + z p(z) )          the slope of z P(z)
#     dL/dx = dL/dz W          dL/dW = dL/dz^T x          dL/db = sum over rows of dL/dz

# %%
from lessons.by_hand.backward import dense_gelu_backward

x, W, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, -1.0]]), torch.zeros(1)
dx, dW, db = dense_gelu_backward(x, W, b, torch.tensor([[4.0]]))
print(dx, dW, db)
assert dx.tolist() == [[4, -2]], "z = 0, where the slope is a half: 2 times W"
assert (dW.tolist(), db.tolist()) == ([[2, 4]], [2]), "2 times x, and 2"

# %% [markdown]
# ## Now read the chapter
#
# GELU, the feed-forward block and the layer.
#
# - A layer drops numbers in three places. Find them; one is in lesson 05's part of the chapter.
# - Which two lines would make this a pre-LayerNorm layer, as in lesson 23, and what would then be missing behind the
#   last one?
#
# Answers are in [the book in ten evenings](TEN_EVENINGS.md).

# %%
chapter(6)

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 06 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: GELU, feed-forward, the layer, the way back: `python -m lessons.check start 06`, `run 06`,
# `hint 06`.
#
# ## Sources
#
# - Hendrycks and Gimpel 2016, *Gaussian error linear units*, section 2: both forms.
# - Vaswani et al. 2017, *Attention is all you need*, sections 3.1 and 3.3: residual sums, feed-forward.
# - Xiong et al. 2020, *On layer normalization in the transformer architecture*, section 3: before or after the sum.
#
# ## What you have now
#
# `python -m lessons.check mine 06` compares MiniLM's layers again: more of them is yours.
#
# You have one whole layer of BERT. Next: [the whole encoder, and finding a bug](07_encoder.py).
