# %% [markdown]
# # Sheet 30: from the wild
#
# Steps through `minisbert/core/heads.py`, `minisbert/core/loop.py` and `lessons/by_hand/losses.py`. Reading 25,
# exercises 40 minutes. You will find seven mistakes of two published notebooks, each by a check of two lines.

# %%
import torch
from course import figure, largest_difference, predict

from minisbert.core import loop

# %% [markdown]
# ## The question
#
# A published notebook trains the three heads of lesson 15 on STS-B. Its loss falls, and its scores look plausible for a
# first try. Lesson 15 has planted four of its bugs. Which other lines do not do what they say? And what would have told
# its author, who saw no error?
#
# ## The formula
#
# The most expensive one is in attention between two sentences. B pairs, T and S tokens; q of the one sentence, k of the
# other:
#
#     as meant    score[b, t, s]  =  q[b, t] . k[b, s]        a token looks along its own pair: softmax over s
#     as there    score[t, b, c]  =  q[b, t] . k[c, t]        a pair looks at all pairs, place by place: softmax over c
#
# ## The real function
#
# `MultiheadAttention(384, 8)` reads (T, B, D) unless it is told `batch_first=True`. The notebook gives it (B, T, D). It
# does not complain, for both are three numbers. So what does the first token of a pair attend to? Look at pair 0
# twice, with other neighbours each time.

# %%
library = torch.nn.MultiheadAttention(384, 8).eval()  # as there
careful = torch.nn.MultiheadAttention(384, 8, batch_first=True).eval()
careful.load_state_dict(library.state_dict())
generator = torch.Generator().manual_seed(0)
first, second = torch.randn(2, 4, 5, 384, generator=generator)  # (B, T, D), 4 pairs
strangers = second.clone()
strangers[1:] = strangers[1:].flip(2)  # other neighbours; pair 0 is untouched
moved = {}
with torch.no_grad():
    for name, attention in (("batch_first", careful), ("as there", library)):
        found = [attention(first, b, b)[0][0] for b in (second, strangers)]
        moved[name] = largest_difference(*found)
    # the attention weights (T, B, B) of a pair by itself
    _, alone = library(first[:1], second[:1], second[:1])
print(moved)
assert moved["batch_first"] < 1e-6, "pair 0 is untouched, and so is what it finds"
assert moved["as there"] > 0.01, "its score depends on who else is in the batch"
assert (alone == 1).all(), "a pair alone: a softmax over one is 1"

# %% [markdown]
# Shuffle the dev set, and the scores change. Trained on STS-B with the notebook's settings, 20 epochs, such a head
# reached a Pearson of 21.5 on dev and 26.9 on test; attention along the sentence that also compares, `--recipe
# sts-cross-attention`, 88.1 and 84.1 (docs/results.md). To train one yourself, plant *attention across the batch*
# around it:
#
#     with planted(MISTAKES["attention across the batch"]):
#         main(["sts-cross-attention-published", "--batch-size", "8"])  # of benchmarks.notebooks
#
# **Exercise 1.** Which test of two lines finds it in any model that scores pairs?
#
# ## The figure
#
# Another notebook, which trains SBERT, has a schedule that ends too early. It tells the scheduler of `total - warmup`
# steps, as if the warm-up were counted beside them. It is counted in them. A plot of the first half shows nothing.
#
# ![The share of the rate, as meant and as there](figures/30_from_the_wild.png)

# %%
total, warmup = 1000, 100
meant = [loop.linear_schedule(step, warmup, total) for step in range(total)]
there = [loop.linear_schedule(step, warmup, total - warmup) for step in range(total)]
assert max(there) == max(meant) == 1, "both reach the peak"
assert largest_difference(meant[:warmup], there[:warmup]) == 0, "by the same way"


def draw(plt):
    drawn, axes = plt.subplots(figsize=(8.4, 2.4), layout="constrained")
    axes.plot(meant, color="#1f4e79", label="as meant")
    axes.plot(there, color="#c0392b", label="as there")
    axes.set(xlabel="step", ylabel="share of the peak rate")
    axes.legend(frameon=False)
    return drawn


figure("30_from_the_wild", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** 1,000 steps, and a warm-up of 100. At how many steps is that rate 0, the very first one not counted?

# %%
guess = predict("30.1", "Steps at a rate of 0, of 1,000?", ["1", "10", "100"])

# %%
idle = sum(share == 0 for share in there[1:])  # step 0 has rate 0 in any warm-up
print(f"{idle} of {total} at a rate of 0; as meant, the last one has {meant[-1]:.4f}")
assert idle == 100, "the last tenth of the data is read, paid for, and not learned from"
guess.answer("100")

# %% [markdown]
# **2.** Back to the first notebook. Its `weighted_mse_loss` counts targets below 1 twice, to be strict with pairs that
# have nothing in common. But the labels were divided by 5 before. What share of STS-B's training pairs counts twice?

# %%
guess = predict(
    "30.2",
    "Of the training pairs, the loss counts twice ...",
    ["about a fifth", "about a half", "more than nine in ten"],
)

# %%
from minisbert.data.rows import load_scored_pairs

labels = torch.tensor([pair.score for pair in load_scored_pairs("stsb", "train")])
twice = {
    "as meant, of 0 to 5": (labels < 1).float().mean(),
    "as there, of 0 to 1": (labels / 5 < 1).float().mean(),
}
print({name: f"{share:.1%}" for name, share in twice.items()})
assert twice["as meant, of 0 to 5"] < 0.2, "a few pairs stand out"
assert twice["as there, of 0 to 1"] > 0.9, "a weight of nearly all weights nothing"
guess.answer("more than nine in ten")

# %% [markdown]
# A threshold on the wrong scale: all but the perfect pairs count twice. No score suffered, for the function is never
# called.
#
# **3.** The tokenizer is asked for `padding="False"`. What is that string, where a flag is wanted?

# %%
guess = predict("30.3", 'As a flag, the string "False" is ...', ["true", "false"])

# %%
flag = "False"
print(bool(flag))
assert flag, "which is why a flag is a bool and not its name"
guess.answer("true")

# %% [markdown]
# Luckily the library knows no padding of that name, and refuses.
#
# ## Break it
#
# As printed, the first notebook cannot run at all: a comma is missing, and its `Dataset` asks for a column that does
# not exist. The scores that it shows come from another state of the code. With those two put right, there is more. It
# makes a `DataCollatorWithPadding` and does not pass it to the `DataLoader`, so rows of several lengths meet in a
# batch:

# %%
try:
    rows = [torch.tensor([101, 4937, 102]), torch.tensor([101, 102])]
    torch.utils.data.default_collate(rows)
    raise AssertionError("two lengths in one batch")
except RuntimeError as error:
    print(error)

# %% [markdown]
# And freezing. The notebook asks for `freeze_layers = 4`, and there are two pieces of code for it. One is a function
# that freezes the lowest four layers and the embeddings; it is never called. The other is in the constructors, and
# counts from the wrong end: it freezes layers below 6 - 4, so four layers *train*, and two and no embeddings are fixed.
# Nothing reports that one. Count what is trained:

# %%
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.starting_model import count_parameters

trained = {}
for name, frozen in (("as meant", 4), ("as there", 6 - 4)):
    bert = SentenceEncoder.load("all-MiniLM-L6-v2").bert
    bert.layers[:frozen].requires_grad_(False)
    if name == "as meant":
        bert.embeddings.requires_grad_(False)
    trained[name] = count_parameters(bert)[1]
    print(f"{name}: {trained[name]:>10,} of 22,713,216 are trained")
assert trained["as meant"] == 2 * 1_774_464 + 384 * 385, "two layers, and the pooler"
assert trained["as there"] == 22_713_216 - 2 * 1_774_464, "all but two layers"

# %% [markdown]
# The seven, and what each one said:
#
#     1  attention across the batch                                  nothing
#     2  a schedule that ends when nine tenths are done              nothing
#     3  a threshold of 1 on labels from 0 to 1                      nothing
#     4  the string "False" as a flag                                an error, because no padding has that name
#     5  a collator that nobody gets                                 an error, at the first two lengths in a batch
#     6  a function that freezes and is never called                 nothing
#     7  layers counted from the wrong end                           nothing
#
# Two stop with an error, by luck, and five say nothing. What finds them is always the same: change what
# must not matter, and look whether it does; leave out what must matter, and look whether anything changes; count.
#
# **Exercise 2.** Take a training script of your own. Change one thing that must not matter, leave out one that must,
# and print how many parameters are trained.
#
# ## Exercises
#
# Exercises 1 and 2 stand beside what they practise. `python -m lessons.check answer 30 1` gives a hint for the first,
# and asked again, the answer.
#
# ## Sources
#
# - The two notebooks, and what of them is here: [docs/sources.md](../docs/sources.md).
# - PyTorch's documentation of `MultiheadAttention`: `batch_first`, False unless it is set.
#
# ## What you have now
#
# You have found other people's bugs by their numbers: two lines each, and no score. Back to [the course](README.md).
