# %% [markdown]
# # Lesson 05: attention
#
# Steps through `minisbert/core/bert.py`: `attention`, `Attention`. Reading 50, chapter 15, pieces 100, exercises 70
# minutes. You will write one attention head with loops, then see all heads at once, and watch MiniLM's heads read a
# sentence.

# %%
import math

import torch
from course import chapter, figure, heatmap, largest_difference, predict

from lessons.mistakes import MISTAKES, planted
from minisbert.core import bert
from minisbert.core.encoder import SentenceEncoder
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))

# %% [markdown]
# ## The question
#
# "The animal did not cross the street because it was too tired." What is "it"? So far each token's vector knows its
# word and its position and nothing of its neighbours. Somehow "it" must fetch something from "animal". Which token
# should look at which, and how much?
#
# ![Map of the model: attention](drawings/map_05.svg)
#
# ## The formula
#
# The plainest idea first: each token takes a mean of all tokens' vectors, and those that resemble it count most.
# Scores x[t] . x[s], a softmax (lesson 00) makes shares of them, and the shares weigh the vectors.

# %%
ids = torch.tensor(encoder.tokenizer.encode(["The old fisherman mended his nets."]).ids)
with torch.no_grad():
    x = encoder.bert.embeddings(ids, None)[0]  # (T, D)
for divisor in (1, x.shape[1] ** 0.5):  # the scores as they are, and over sqrt(D)
    own = (x @ x.T / divisor).softmax(dim=-1).diagonal().min().item()
    print(f"scores / {divisor:.1f}: each token gives itself {own:.2f} or more")
    assert (own > 0.99) == (divisor == 1), "large scores: softmax picks one token"

# %% [markdown]
# Two things are wrong with this idea. The scores are sums of D products, so large that softmax gives nearly everything
# to one token; dividing them by a root, as the formula below does, mends that. And x . x is symmetric: a token can
# only look for others like itself, and "it" could never ask for the noun that it stands for. So each token gets three
# vectors, by three matrices that are learned.
#
# In **attention**, `H` **heads** work side by side; `K` is the width of one head, and D = H * K. Within one head each
# token t has three vectors of width K: a **query** q[t] (what am I looking for), a **key** k[t] (what can I be found
# by), a **value** v[t] (what do I pass on). Then
#
#     score[t, s]       = sum over j of q[t, j] * k[s, j]  /  sqrt(K)             (T, T)
#     probability[t, s] = exp(score[t, s]) / sum over r of exp(score[t, r])       (T, T), each row sums to 1
#     context[t, j]     = sum over s of probability[t, s] * v[s, j]               (T, K)
#
# ![Query, key and value, with their shapes](drawings/qkv.svg)
#
# (On the site you can play with [a softmax](../docs/interactive.md#scores-to-shares) and [see what the heads look
# at](../docs/interactive.md#what-does-a-token-look-at).)
#
# Token t asks; s runs over the tokens that answer, S of them, and here S = T. A pad gets the score minus infinity, so
# its probability is exp(-inf) = 0. In code subtract a row's largest score first, or use `torch.softmax`, which does:
# exp(1000) is infinite, and where all scores are low every exp is 0.
#
# In training, dropout (lesson 04) acts on the probabilities before they weigh the values, at the rate `self.dropout`,
# otherwise at the rate 0; `attention` returns the context, and the probabilities as they were before dropout.
#
# Why sqrt(K)? If the numbers of q and k are independent, with mean 0 and variance 1, each product has variance 1, and a
# sum of K of them has variance K: dividing by sqrt(K) gives the scores variance 1, whatever the width of a head.
#
# Here is one head with nothing but loops.


# %%
def one_head(q, k, v, real):
    """q, k, v: T lists of K numbers; real: T booleans -> context and probabilities, as lists."""
    tokens, width = len(q), len(q[0])
    context, probabilities = [], []
    for t in range(tokens):
        exponentials = []
        for s in range(tokens):
            score = sum(q[t][j] * k[s][j] for j in range(width)) / math.sqrt(width)
            exponentials.append(math.exp(score) if real[s] else 0.0)
        row = [value / sum(exponentials) for value in exponentials]
        probabilities.append(row)
        context.append(
            [sum(row[s] * v[s][j] for s in range(tokens)) for j in range(width)]
        )
    return context, probabilities


# %% [markdown]
# ## The real function
#
# Three tokens, K = 4, so the scores are divided by 2. The first query is zero: it matches all keys equally. The second
# one matches the second key with a score of 2 log 3 / 2 = log 3, and the others with 0: that key gets three fifths. The
# third token is a pad in the second run.
#
# ![The mask: a pad gets no share](drawings/mask.svg)

# %%
log3 = math.log(3)
q = [[0, 0, 0, 0], [0, 2 * log3, 0, 0], [2 * log3, 0, 0, 0]]
k = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
v = [[10, 0, 0, 0], [0, 10, 0, 0], [0, 0, 10, 0]]
query, key, value = (  # one text and one head: (B, H, T, K) = (1, 1, 3, 4)
    torch.tensor(rows, dtype=torch.float64)[None, None] for rows in (q, k, v)
)
for real in ([True, True, True], [True, True, False]):
    mask = torch.tensor(real)[None, None, None]  # (B, 1, 1, T)
    context, probabilities = bert.attention(query, key, value, mask)
    print(probabilities[0, 0], context[0, 0], sep="\n")
    by_loops, shares = one_head(q, k, v, real)
    assert largest_difference(context[0, 0], by_loops) < 1e-12, "loops agree"
    assert largest_difference(probabilities[0, 0], shares) < 1e-12, "here too"
assert largest_difference(probabilities[0, 0, 1], [0.25, 0.75, 0]) < 1e-12, "no pad"

# %% [markdown]
# **Write it.** `attention` is the first piece of `lessons/mine/lesson_05.py` (`python -m lessons.check start 05`, then
# `run 05`): all heads and all texts at once, on (B, H, T, K). Loops or matrix products are both welcome; only the
# numbers count. Then read the book's. Fill the scores with 0 *after* the softmax in place of minus infinity before it:
# which sum is no longer 1? And `weights` has dropout, `probabilities` does not: which of them is returned, and what for?

# %%
chapter("bert", "attention", "attend")

# %% [markdown]
# ## From one head to a module
#
# The vectors q, k and v come from x by three dense layers, and a fourth one, the **output** matrix, comes after the
# heads. Their contexts are set side by side again, (T, D), and it (`self.output`) mixes them: without it no column could
# hold anything of two heads. What leaves attention is its result. So a module for attention has, by the names of lesson
# 03's table:
#
#     self.query, self.key, self.value, self.output    nn.Linear(D, D), four matrices with their biases
#     self.heads     H                                 self.dropout    its rate, a plain number
#
# and computes, with the rate self.dropout in training and 0 otherwise:
#
#     context, probabilities  =  attention(split(query(x)), split(key(x)), split(value(x)), mask, rate)
#     result                  =  output(merge(context)),  beside the probabilities
#
# (The book's may run PyTorch's own operation in place of `attention`. It is faster and has no probabilities to return, so
# the docstring allows None in their place. Yours calls `attention` and always has them.)
#
# Now a head of MiniLM on a real sentence. The vectors q, k and v are dense layers of x, the first of them
# `module.query`; head h takes the columns from h * K to (h + 1) * K. `Attention.split` does that for all heads at once:
# (B, T, D) becomes (B, H, T, K).
#
# ![Splitting the columns into heads, and merging them](drawings/split_and_merge.svg)

# %%
text = "The animal did not cross the street because it was too tired."
ids = torch.tensor(encoder.tokenizer.encode([text]).ids)  # (1, T)
tokens = encoder.tokenizer.tokens(ids[0].tolist())
states = {}
with torch.no_grad():
    encoder.bert(ids, trace=states)  # fills every intermediate result, by name
    module = encoder.bert.layers[3].attention
    x = states["layers.2"]  # (1, T, D): what layer 3 reads; we count from 0
    queries, keys, values = (
        dense(x) for dense in (module.query, module.key, module.value)
    )  # (1, T, D) each
    head, width = 1, module.split(queries).shape[-1]
    columns = slice(head * width, (head + 1) * width)
    of_head = (y[0, :, columns].tolist() for y in (queries, keys, values))
    by_loops, shares = one_head(*of_head, [True] * len(tokens))
    split = (module.split(y) for y in (queries, keys, values))  # (1, H, T, K) each
    all_heads, everything = bert.attention(*split)
print(f"T = {len(tokens)}, H = {module.heads}, K = {width}, D = {module.heads * width}")
off = largest_difference(all_heads[0, head], by_loops)
print(f"one head with loops against the real one: {off:.1e}")
assert off < 1e-5, "the same head, written twice"
off = largest_difference(everything, states["layers.3.attention"])
assert off < 1e-6, "as the model itself computed it"

# %% [markdown]
# **Write it:** `Attention`, the whole class: `__init__`, `split`, `merge`, `forward`. Before you compare: `merge`
# transposes before it flattens. Which shape, and which numbers, has a reshape to (B, T, D) without that?

# %%
chapter("bert", "Attention")

# %% [markdown]
# Where does "it" look, in this head?

# %%
it = tokens.index("it")
for share, token in sorted(zip(shares[it], tokens, strict=True), reverse=True)[:4]:
    print(f"{share:.2f}  {token}")
assert shares[it][tokens.index("animal")] > 0.6, "from the pronoun to its noun"

# %% [markdown]
# **Exercise 1.** `one_head` computes exp(score) directly. Multiply the queries by 1000 and see it fail. What does a
# softmax do to be safe, and why may it?
#
# **Exercise 2.** How many multiplications does `attention` make, in B, H, T, K? Which part grows with the square of
# T?

# %% [markdown]
# ## The figure
#
# Three heads of MiniLM on this sentence. A row is the token that looks, a column the one that is looked at. The first
# head looks one token back. The second mostly looks at the next one. The third is the one above. One sentence proves
# nothing about a head: try others before you say what it does. Many heads send most of their attention to [CLS].
#
# ![Attention of three heads](figures/05_attention.png)

# %%
shown = (
    ("layers.0.attention", 2, "one token back"),
    ("layers.1.attention", 8, "the next token"),
    ("layers.3.attention", 1, "it: animal"),
)
back = states["layers.0.attention"][0, 2].diagonal(-1).mean()
ahead = states["layers.1.attention"][0, 8].diagonal(1).mean()
print(f"mean share of the token before {back:.3f}, of the next token {ahead:.3f}")
assert back > 0.99, "the first head looks one token back"
assert 0.5 < ahead < 0.8, "the second looks ahead most of the time"


def draw(plt):
    drawn, panels = plt.subplots(
        1, 3, figsize=(10, 3.9), layout="constrained", sharey=True
    )
    for axes, (name, number, role) in zip(panels, shown, strict=True):
        heatmap(axes, states[name][0, number], tokens, tokens)
        axes.set_title(f"layer {name.split('.')[1]}, head {number}: {role}")
        ticks = range(len(tokens))
        axes.set_xticks(ticks, tokens, rotation=90, ha="center", fontsize=8)
    return drawn


figure("05_attention", draw)

# %% [markdown]
# A warning. That a head looks somewhere does not prove that the answer depends on it. Pictures like these suggest; to
# know, remove the head and measure.
#
# **Exercise 3.** Remove a single head (set its columns of the context to 0) and measure the change of "it". Which of
# the 72 heads matters most for it?
#
# ## Predict, then run
#
# **1.** All queries are zero. What does each token get?

# %%
guess = predict(
    "05.1",
    "All queries are zero. Each token gets ...",
    ["zeros", "its own value", "the mean of all values"],
)

# %%
with torch.no_grad():
    context, _ = bert.attention(torch.zeros_like(key), key, value)
print(context[0, 0])
mean = value[0, 0].mean(0).expand(3, 4)
assert largest_difference(context[0, 0], mean) < 1e-12, "the mean of all values"
guess.answer("the mean of all values")

# %% [markdown]
# **2.** Add the same vector c to every key. What changes in the probabilities? (q.(k + c) = q.k + q.c, and q.c is the
# same for all s.)

# %%
guess = predict(
    "05.2",
    "The same vector added to every key: the probabilities ...",
    ["become equal", "change a little", "stay"],
)

# %%
_, before = bert.attention(query, key, value)
c = torch.tensor([5.0, -3.0, 2.0, 1.0], dtype=torch.float64)
_, after = bert.attention(query, key + c, value)
print(f"{largest_difference(before, after):.1e}")
assert largest_difference(before, after) < 1e-12, (
    "a softmax sees only differences. A key bias has no effect"
)
guess.answer("stay")

# %% [markdown]
# **3.** A batch with a short and a long sentence: the short one gets pads. How much does its result change?

# %%
guess = predict(
    "05.3",
    "With pads, the short sentence's result changes ...",
    ["at most by rounding", "in the second digit", "in the first digit"],
)

# %%
short = encoder.tokenizer.encode(["It rains."]).ids[0]
alone = torch.tensor([short])  # (1, 5)
padded = torch.tensor([short + [0] * 7])  # (1, 12)
with torch.no_grad():
    a = encoder.bert(alone)
    b = encoder.bert(padded, padded != 0)[:, : len(short)]
print(f"{largest_difference(a, b):.1e}")
assert largest_difference(a, b) < 2e-5, "a probability of 0 passes nothing on"
guess.answer("at most by rounding")

# %% [markdown]
# ## Break it
#
# The known mistakes in `attention` and around it. Two texts, one with pads; the largest change of the last hidden
# state at real tokens, and the average **entropy** of the probabilities, which says how widely a head looks: 0 is one
# token, log T is all tokens equally.


# %%
def look(ids, mask):
    """At real tokens: the last hidden states, and the mean entropy of all heads."""
    states = {}
    with torch.no_grad():
        hidden = encoder.bert(ids, mask, trace=states)
    layers = [states[f"layers.{i}.attention"].transpose(1, 2)[mask] for i in range(6)]
    rows = torch.stack(layers)  # (L, tokens, H, T)
    return hidden[mask], -(rows * rows.clamp_min(1e-12).log()).sum(-1).mean().item()


length = ids.shape[1]
batch = torch.cat([ids, torch.tensor([short + [0] * (length - len(short))])])  # (2, T)
right, entropy = look(batch, batch != 0)
print(f"{'the right code':40} entropy {entropy:.2f}")
changes, entropies = {}, {}
for name, mistake in MISTAKES.items():
    if mistake.target.startswith(("bert.attention", "bert.Attention")):
        with planted(mistake):
            wrong, entropies[name] = look(batch, batch != 0)
        changes[name] = largest_difference(wrong, right)
        row = f"{name:40} entropy {entropies[name]:.2f}"
        print(f"{row}   largest change {changes[name]:8.1e}")

# %% [markdown]
# Without 1/sqrt(K) the scores are 5.7 times as large, the softmax is nearly a hard choice, and the entropy falls. With
# 1/K it is the reverse: every token looks everywhere. The last lines below draw random numbers to show that a sum of K
# products grows like sqrt(K).
#
# A mask of -10 in place of minus infinity changes very little here, and passes every careless test; *finite mask*,
# which is -10^9, changes nothing at all until scores are as low as that. *attention mask inverted* leaves a text
# without pads with nothing to look at: a softmax of nothing but minus infinity is 0/0, nan. *detached probabilities*
# changes nothing in the **forward pass**, from ids to vectors: the gradient, which comes by the way back, is wrong. And dropout (lesson 04) sleeps in eval mode, so six
# mistakes with it show nothing either, and only *dropout alive in eval* does.

# %%
assert (
    entropies["no 1/sqrt(K)"] < entropy < entropies["1/sqrt(D)"] < entropies["1/K"]
), "the scale sets the sharpness"
assert changes["detached probabilities"] < 2e-5, "right forward, wrong backward"
assert changes["finite mask"] == changes["no attention dropout"] == 0, "hidden here"
assert math.isnan(changes["attention mask inverted"]), "0/0"
assert changes["mask of -10"] < 1e-2, "nearly right, which is the worst kind of wrong"
assert changes["no attention mask"] > 0.1, "pads are looked at"
assert changes["heads merged without transposing"] > 1, "right numbers, wrong places"

generator = torch.Generator().manual_seed(0)
for K in (4, 64, 1024):
    q, k = (torch.randn(10000, K, generator=generator) for _ in range(2))
    spread = (q * k).sum(1).std().item()
    print(f"K = {K:4}: spread of q.k {spread:6.2f}, sqrt(K) = {math.sqrt(K):6.2f}")
    assert abs(spread / math.sqrt(K) - 1) < 0.05, "sqrt(K)"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 05 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: one head, then many, as a module: `python -m lessons.check start 05`, `run 05`, `hint 05`.
# `x.transpose(-2, -1)` swaps the last two axes, `x.flatten(-2)` joins them, `x.masked_fill(where, y)` writes y where a
# mask is True.
#
# ## Sources
#
# - Vaswani et al. 2017, *Attention is all you need*, sections 3.2.1 and 3.2.2, equation 1 and footnote 4 (the root).
# - Clark et al. 2019, *What does BERT look at?*, sections 3 and 4: heads that look back, onward, at [SEP], at nouns.
# - Jain and Wallace 2019, *Attention is not explanation*: the warning above, with evidence.
#
# ## What you have now
#
# `python -m lessons.check mine 05` draws a head of MiniLM, from your attention.
#
# Your tokens look at each other, in as many heads as you like. Next: [feed-forward and the layer](06_layer.py).
