# %% [markdown]
# # Lesson 04: embeddings and LayerNorm
#
# Steps through `minisbert/core/bert.py`: `Embeddings`, `layer_norm`. Reading 40, chapter 15, pieces 65, exercises 50
# minutes. You will add up the first hidden states of three tokens by hand, and see why a model that forgets positions
# reads a bag of words.

# %%
import numpy as np
import torch
from course import chapter, figure, heatmap, largest_difference, predict

# %% [markdown]
# ## The question
#
# We have ids: [CLS] hello [SEP] is 101, 7592, 102. An id is a name, not a quantity; 7592 is not more than 102. How
# does the network get numbers that it can compute with, and how does it know which token came first?
#
# ![Map of the model: embeddings](drawings/map_04.svg)
#
# ## The formula
#
# `B` texts in a batch, `T` tokens each, `D` columns. Each token's vector, its first **hidden state**, is a sum of three
# rows from three tables:
#
#     x[b, t] = word[ids[b, t]] + position[t] + token_type[types[b, t]]       each (D,), so x is (B, T, D)
#
# A **token type** says to which of two texts in one input a token belongs, 0 to the first and 1 to the second; lesson
# 15 has such inputs. With a single text all types are 0, and a caller may leave them out: then the row of type 0 is
# added all the same.
#
# Each such vector on its own then goes through **LayerNorm**:
#
#     mean     = (1/D) sum over d of x[d]
#     variance = (1/D) sum over d of (x[d] - mean)^2
#     y[d]     = (x[d] - mean) / sqrt(variance + eps) * gamma[d] + beta[d]
#
# (On the site you can [play with it](../docs/interactive.md#mean-0-variance-1).)
#
# The root of the variance is the **standard deviation**, called *spread* below: how far numbers lie from their mean.
# gamma and beta, (D,) each, are learned. eps is a tiny number that keeps the root away from 0; here 1e-12.
#
# ![Embeddings: three rows, one sum](drawings/embeddings.svg)

# %% [markdown]
# ## The real function
#
# First `layer_norm` alone, on numbers small enough to do without paper. The mean of [1, 3] is 2, the variance 1. Then
# [2, 6] and [11, 13]: twice as much, and ten more.

# %%
from minisbert.core.encoder import SentenceEncoder
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))
embeddings = encoder.bert.embeddings

# %%
from minisbert.core import bert

x = torch.tensor([[1.0, 3.0], [2.0, 6.0], [11.0, 13.0]])  # (3, D) with D = 2
plain = bert.layer_norm(x, torch.ones(2), torch.zeros(2), eps=1e-12)
gamma, beta = torch.tensor([10.0, 1.0]), torch.tensor([0.0, 5.0])
stretched = bert.layer_norm(x, gamma, beta, eps=1e-12)
print(plain, stretched, sep="\n")
assert largest_difference(plain, [[-1, 1]] * 3) < 1e-6, "size and offset are gone"
assert largest_difference(stretched, [[-10, 6]] * 3) < 1e-5, "stretched and moved"

# %% [markdown]
# **Write it.** `layer_norm` is the first piece of `lessons/mine/lesson_04.py` (`python -m lessons.check start 04`, then
# `run 04`). Then read the book's beside yours. The class below it is how a formula gets numbers that can be learned: an
# `nn.Module`, whose `__init__` makes them and whose `forward` uses them. The lines above it are the legend of all
# shapes. `LayerNorm.forward` asks for `FUSED`. What computes while it is False, and what in
# `minisbert.SentenceEncoder`?

# %%
chapter("bert", "top", "layer_norm", "LayerNorm")

# %% [markdown]
# Every module of this course is written like that one: `super().__init__()`, which torch needs, then its parts as
# attributes. The names are not free: `self.word` here is `embeddings.word` in lesson 03's table, and another name would
# find nothing in the file. What an embedding module has:
#
#     self.word, self.position, self.token_type   nn.Embedding(n, D): tables of V, P and Y rows of D numbers
#     self.norm      LayerNorm(D, eps)            self.dropout    nn.Dropout(p), which we come to below
#
# V is the size of the vocabulary, P the number of positions, Y the number of token types, 2. All of them, eps and p are
# in the model's *config*, which the module is given: `config.vocab_size`, `config.max_position_embeddings`,
# `config.type_vocab_size`, `config.hidden_size`, `config.layer_norm_eps`, `config.hidden_dropout_prob`.
#
# Now three real tokens. The first four of 384 columns; check one number of the sum by eye.

# %%
ids = torch.tensor([[101, 7592, 102]])  # (B, T) = (1, 3)
with torch.no_grad():
    word = embeddings.word.weight[ids[0]]  # (T, D)
    position = embeddings.position.weight[:3]  # (T, D)
    token_type = embeddings.token_type.weight[0]  # (D,), the same for all
    total = word + position + token_type  # (T, D)
    normed = embeddings(ids, None)[0]  # (T, D), the real function
rows = {"word": word, "position": position, "type": token_type[None], "sum": total}
for name, values in (rows | {"after LayerNorm": normed}).items():
    print(name, values[:, :4].detach(), sep="\n")

norm = embeddings.norm
variance = total.var(1, correction=0, keepdim=True)
by_hand = (total - total.mean(1, keepdim=True)) / (variance + norm.eps).sqrt()
by_hand = by_hand * norm.weight + norm.bias
assert largest_difference(by_hand, normed) < 1e-5, "three rows, then LayerNorm"

# %% [markdown]
# The code has one more word, **dropout**. While a model is trained, it sets each number to 0 with a probability p and
# divides the others by 1 - p, so that nothing relies on any single number. Afterwards, in **eval mode**, which `load`
# and `.eval()` switch on, it does nothing at all. Lesson 10 makes use of it. In the function that you will write,
# dropout is the last step.
#
# **Write it:** `Embeddings`, the whole class: `__init__`, then `forward`. Before you compare: `self.position(...)` may
# have the shape (T, D). What adds it to every text of the batch? And let `self.norm` and `self.dropout` change places:
# what breaks in training, and why does `encode` not notice?

# %%
chapter("bert", "Embeddings")

# %% [markdown]
# Why LayerNorm? There are two in every layer (lesson 06). Here are the lengths of the tokens' vectors from layer to
# layer, with all of them and without any. A dict given to the model as `trace` is filled with what each layer returns.

# %%
from lessons.mistakes import planted
from lessons.mistakes.planting import Mistake


def unchanged(x, *_):
    return x


NO_NORM = Mistake("no LayerNorm", "numbers as they are", bert, "layer_norm", unchanged)


def lengths():
    """The mean length of a token's vector after the embeddings and after each layer."""
    states = {}
    with torch.no_grad():
        encoder.bert(ids, None, trace=states)
    names = ["embeddings", *(f"layers.{i}" for i in range(6))]
    return [states[name].norm(dim=-1).mean().item() for name in names]


held = lengths()
with planted(NO_NORM):
    loose = lengths()
print("with   ", *(f"{length:8.1f}" for length in held))
print("without", *(f"{length:8.1f}" for length in loose))
assert max(held) < 2 * min(held), "the same size everywhere"
assert loose[-1] > 100 * loose[0], "each layer adds to what it gets, and the sum grows"

# %% [markdown]
# A layer that gets numbers a hundred times as large as those it was trained on is another layer.
#
# **Exercise 1.** Print the largest and the smallest gamma. Which column does the model silence most?
#
# ## The figure
#
# Position vectors were learned; no one told them that 7 is next to 8. Left: the cosine of each position vector with
# every other. Right: the spread of each token's numbers before and after LayerNorm, for one sentence. It would be 1
# after it, were it not for gamma.
#
# ![Cosines of position vectors, and spread before and after LayerNorm](figures/04_embeddings.png)

# %%
with torch.no_grad():
    table = embeddings.position.weight[:64]
    units = table / table.norm(dim=1, keepdim=True)
    cosines = units @ units.T  # (64, 64)
    text_ids = encoder.tokenizer.encode(["The old fisherman mended his nets."]).ids
    tokens = encoder.tokenizer.tokens(text_ids[0])
    text_ids = torch.tensor(text_ids)  # (1, T)
    first = embeddings.word(text_ids)[0] + token_type  # (T, D)
    first = first + embeddings.position.weight[: len(tokens)]
    second = embeddings(text_ids, None)[0]


def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    image = heatmap(left, cosines, [], [""])
    left.set_xticks(range(0, 64, 8), range(0, 64, 8), rotation=0, ha="center")
    left.set_yticks(range(0, 64, 8), range(0, 64, 8))
    left.set(title="Cosine of position vectors", xlabel="position", ylabel="position")
    drawn.colorbar(image, ax=left, shrink=0.8)
    places = np.arange(len(tokens))
    for values, shift, label, shade in (
        (first, -0.2, "sum of the three rows", "#8bb8de"),
        (second, 0.2, "after LayerNorm", "#1f4e79"),
    ):
        spreads = values.std(1, correction=0).numpy()
        right.bar(places + shift, spreads, width=0.4, label=label, color=shade)
    right.set_xticks(places, tokens, rotation=45, ha="right")
    right.set(title="Standard deviation over the columns", ylim=(0, 0.95))
    right.legend(frameon=False, loc="upper right")
    return drawn


figure("04_embeddings", draw)
near, far = cosines[50, 51].item(), cosines[50, 30].item()
print(f"cosine of positions 50 and 51: {near:.2f}, of 50 and 30: {far:.2f}")
assert near > 0.85 > far, "neighbours are alike"
assert cosines[0, 1:].max() < 0.4, "position 0 is always [CLS], and like no other"

# %% [markdown]
# **Exercise 2.** Which ten words are nearest to "dog" in the word table, by cosine? Are they alike in meaning, or in
# spelling?

# %% [markdown]
# ## Predict, then run
#
# **1.** Multiply all three tables by 100, then add 7 to every column of every token. By how much does the output of the
# embeddings change?

# %%
guess = predict(
    "04.1",
    "Tables times 100, and 7 added: the output changes ...",
    ["100 times", "by 7", "a little", "not at all"],
)

# %%
with torch.no_grad():
    scaled = norm(100 * total + 7)
print(f"{largest_difference(scaled, normed):.1e}")
assert largest_difference(scaled, normed) < 1e-4, "LayerNorm takes both out again"
guess.answer("not at all")

# %% [markdown]
# **2.** "dog bites man" and "man bites dog" had a cosine of 0.907 in lesson 01. Suppose the position vectors are not
# added. What will it be?

# %%
guess = predict(
    "04.2", "The cosine without position vectors?", ["about 0.5", "about 0.9", "1"]
)

# %%
from lessons.mistakes import MISTAKES

pair = ["dog bites man", "man bites dog"]
with planted(MISTAKES["positions forgotten"]):
    u, v = encoder.encode(pair)
print(f"cosine {u @ v:.6f}, largest difference {largest_difference(u, v):.1e}")
assert largest_difference(u, v) < 1e-6, "nothing else in a BERT knows about order"
guess.answer("1")

# %% [markdown]
# Attention sums over tokens (lesson 05); LayerNorm and feed-forward (lesson 06) look at one token at a time. Shuffle
# the tokens and every result is shuffled likewise; the mean over tokens does not notice. Order enters here or nowhere.
#
# ## Break it
#
# Every known mistake in these two pieces, and how far it moves the embeddings of our three tokens.

# %%
moved = {}
for name, mistake in MISTAKES.items():
    if mistake.target in ("bert.layer_norm", "bert.Embeddings.forward"):
        with planted(mistake), torch.no_grad():
            moved[name] = largest_difference(embeddings(ids, None)[0], normed)
for name, change in sorted(moved.items(), key=lambda item: item[1]):
    print(f"{change:10.1e}  {name:32} {MISTAKES[name].meaning}")

# %% [markdown]
# Read the list from the top.
#
# - *token types ignored* changes nothing: with a single sentence all types are 0. A test must have a second sentence.
# - The two with *dropout* change nothing, for the model is in eval mode. A test must train.
# - *detached LayerNorm statistics* changes nothing but rounding: only the gradient is wrong. A test must look at
#   gradients. (**Detached** means that autograd takes a number for a constant: no gradient passes it.)
# - *eps outside the root*: with eps = 1e-12 it is invisible. A test must use a larger eps.
# - *LayerNorm eps 1e-5*, *unbiased variance* (D - 1 for D) and *x.std() + eps* are small: a right and a wrong vector of
#   one text have a cosine above 0.99999, and the cosines of pairs move by less than 1e-3.
# - The others are larger, and the model still runs.
#
# So the choice of test data decides what a test can find. The package's tests use models whose every parameter is
# random, pairs of sentences, eps = 1e-3, and gradients.

# %%
for name in (
    "token types ignored",
    "embeddings without dropout",
    "dropout before the LayerNorm",
    "detached LayerNorm statistics",
    "eps outside the root",
):
    assert moved[name] < 1e-5, f"{name} hides from this test"
for name in ("LayerNorm eps 1e-5", "unbiased variance"):
    assert 1e-3 < moved[name] < 0.02, f"{name} is small"
for name in ("positions from 1", "no gamma", "no beta", "embeddings not normalised"):
    assert moved[name] > 1, f"{name} is large"

types = torch.tensor([[0, 0, 1]])  # now [SEP] belongs to a second sentence
with torch.no_grad():
    right = embeddings(ids, types)
    with planted(MISTAKES["token types ignored"]):
        wrong = embeddings(ids, types)
print(f"types ignored, with a second sentence: {largest_difference(right, wrong):.2f}")
assert largest_difference(right, wrong) > 0.1, "now it shows"

# %% [markdown]
# **Exercise 3.** RMSNorm (lesson 23) leaves the mean in ("mean not subtracted" above). Why does it move these numbers
# so little?

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 04 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: LayerNorm, and the module of the embeddings: `python -m lessons.check start 04`, `run 04`,
# `hint 04`.
#
# ## Sources
#
# - Devlin et al. 2019, *BERT*, section 3 and figure 2: the sum of three embeddings.
# - Ba, Kiros and Hinton 2016, *Layer normalization*, section 3.
# - Vaswani et al. 2017, *Attention is all you need*, section 3.5: why positions must be added (theirs are computed).
#
# ## What you have now
#
# `python -m lessons.check mine 04` compares MiniLM's layers, computed by what you have written so far.
#
# You have the first hidden states, and LayerNorm, which comes back in every layer. Next:
# [attention](05_attention.py).
