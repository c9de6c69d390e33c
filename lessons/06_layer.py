# %% [markdown]
# # Lesson 06: feed-forward and the layer
#
# Steps through `minisbert/core/bert.py`: `gelu`, `FeedForward`, `Layer`. Reading 45, chapter 10, pieces 125,
# exercises 50 minutes. You will put a whole layer together from its parts, and find out what the residual sums are
# good for.

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
#     feed_forward(x) = W2 gelu(W1 x + b1) + b2            (B, T, D) -> (B, T, F) -> (B, T, D)
#     gelu(z)         = z * P(Z <= z),  Z standard normal  =  z/2 * (1 + erf(z / sqrt(2)))
#
# W1 x is a product of a matrix with each token's vector. A function of one number is a **non-linearity**; here it is
# gelu. Without one, two dense layers are worth no more than one, since W2 (W1 x) = (W2 W1) x. A standard normal
# number is a random one with mean 0 and standard deviation 1, and erf is the function that adds up its bell curve;
# torch and Python's `math` have it.
#
# A layer wraps both blocks in the same way: the block's result is *added* to its input, a **residual sum**, and
# LayerNorm comes after it. The first transformers had this order, *post-LayerNorm*; many newer ones have LayerNorm in
# front of the block, *pre-LayerNorm* (lesson 23):
#
#     x = LayerNorm1(x + dropout(attention(x)))
#     x = LayerNorm2(x + dropout(feed_forward(x)))
#
# Dropout (lesson 04) acts in training only. In `Layer` both are `self.dropout`. `attention` gives two results (lesson 05):
# the first is what is added, and the second, the probabilities, is what the layer's `forward` returns beside x.
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
# **Write it.** `gelu` first (`python -m lessons.check start 06`, then `run 06`), then `FeedForward`, the whole class. Its
# parts, by the names of lesson 03's table:
#
#     self.up   D to F, nn.Linear(D, F)        self.down   F to D, nn.Linear(F, D)
#
# D and F are `config.hidden_size` and `config.intermediate_size`. What runs in place of `gelu` while `FUSED` is True?

# %%
chapter("bert", "gelu", "FeedForward")

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
# **Write it:** `Layer`, the whole class. You have written the classes of all its parts but `LayerNorm`, which you have
# read:
#
#     self.attention, self.attention_norm          Attention(D, H, rate of its probabilities), LayerNorm(D, eps)
#     self.feed_forward, self.feed_forward_norm    FeedForward(config), LayerNorm(D, eps)
#     self.dropout                                 nn.Dropout(p), one for both blocks
#
# H is `config.num_attention_heads`. The config has two rates: `attention_probs_dropout_prob` for the probabilities,
# `hidden_dropout_prob` for p. Then compare. Which two lines would make this a pre-LayerNorm layer, as in lesson 23, and
# what would then be missing behind the last one?

# %%
chapter("bert", "Layer")

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
# The last five rows show what a test has to have. The layer above got no mask, so *layer drops the mask* is hidden in
# it, and only the batch of three texts with pads tells. And the four with dropout (lesson 04) are hidden in eval mode.

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
# ## Half an hour: the way back
#
# `backward()` went through that layer for us. Once in this course we go back by hand, through a dense layer with GELU:
# y = gelu(z) and z = x W^T + b. The layer above hands down dL/dy, how the loss L depends on each number of y. We must say
# how L depends on x, W and b. There are three steps, and a ruler that tells whether each is right.
#
# **The ruler.** A slope can be measured: move one number by a tiny h up and down, and divide the change of the loss by
# 2 h. For each number i of x, with the others as they are:
#
#     slope[i]  =  ( loss(x with x[i] + h)  -  loss(x with x[i] - h) )  /  (2 h)
#
# It needs no derivative, so it cannot share a mistake with one. It is slow, two forward passes for each number, and
# exact to seven digits or so. **Write it:** `measured_gradient` is a piece of this lesson.
#
# **One number.** x = 1, w = 2, b = 0, so z = 2; and dL/dy is 4. The **chain rule** multiplies the slopes on the way:
# L moves 4 times as much as y, y moves gelu's slope times as much as z, and z moves w times as much as x. gelu(z) is a
# product, z P(z). Its slope has two terms, where p is the slope of P, the bell curve:
#
#     p(z)  = exp(-z^2 / 2) / sqrt(2 pi)
#     dL/dz = dL/dy * ( P(z) + z p(z) )          the slope of z P(z)

# %%
from lessons.by_hand.backward import dense_gelu_backward, measured_gradient

P = 0.5 * (1 + math.erf(2 / math.sqrt(2)))
p = math.exp(-(2**2) / 2) / math.sqrt(2 * math.pi)
by_rule = 4 * (P + 2 * p) * 2  # dL/dy, the slope of gelu at z = 2, w
one = torch.tensor([1.0], dtype=torch.float64)
by_ruler = measured_gradient(lambda x: 4 * bert.gelu(2 * x).sum(), one).item()
print(f"dL/dx by the rule {by_rule:.8f}, measured {by_ruler:.8f}")
assert abs(by_rule - by_ruler) < 1e-7, "the rule holds"

# %% [markdown]
# **Many columns, many rows.** x is (N, D), W is (F, D), z is (N, F). Column d of x takes part in all F columns of z, so
# what comes back to it is a *sum* over them: dL/dx[n, d] = sum over f of dL/dz[n, f] * W[f, d]. And W[f, d] is used by
# all N rows, so its slope is a sum over rows: sum over n of dL/dz[n, f] * x[n, d]. Both sums are matrix products:
#
#     dL/dx = dL/dz W          dL/dW = dL/dz^T x          dL/db = sum over rows of dL/dz
#
# First on numbers for the head, then 37 slopes beside the ruler.

# %%

x, W, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, -1.0]]), torch.zeros(1)
dx, dW, db = dense_gelu_backward(x, W, b, torch.tensor([[4.0]]))
print(dx, dW, db)
assert dx.tolist() == [[4, -2]], "z = 0, where the slope is a half: 2 times W"
assert (dW.tolist(), db.tolist()) == ([[2, 4]], [2]), "2 times x, and 2"

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(3, 4, generator=generator, dtype=torch.float64)  # N = 3, D = 4
W = torch.randn(5, 4, generator=generator, dtype=torch.float64)  # F = 5
b = torch.randn(5, generator=generator, dtype=torch.float64)
pull = torch.randn(3, 5, generator=generator, dtype=torch.float64)  # dL/dy


def loss(x, W, b):
    """One number out of the layer's 15: its slope with respect to y is ``pull``."""
    return (pull * bert.gelu(x @ W.T + b)).sum()


by_rule = dense_gelu_backward(x, W, b, pull)
by_ruler = (
    measured_gradient(lambda x: loss(x, W, b), x),
    measured_gradient(lambda W: loss(x, W, b), W),
    measured_gradient(lambda b: loss(x, W, b), b),
)
for name, rule, ruler in zip(("x", "W", "b"), by_rule, by_ruler, strict=True):
    off = largest_difference(rule, ruler)
    print(f"dL/d{name}: {rule.numel():2} slopes, largest difference {off:.1e}")
    assert off < 1e-7, "the rule and the ruler agree"

# %% [markdown]
# **Write it:** `dense_gelu_backward`, and measure it yourself before you ask the grader. A wrong rule shows at once: leave
# out z p(z), and the largest difference is some tenths.

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 06 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: GELU, feed-forward, the layer, the ruler, the way back: `python -m lessons.check start 06`,
# `run 06`, `hint 06`.
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
