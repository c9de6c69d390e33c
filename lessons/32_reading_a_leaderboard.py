# %% [markdown]
# # Sheet 32: reading a leaderboard
#
# Steps through `lessons/by_hand/leaderboard.py`. Reading 35, pieces 25, exercises 90 minutes. After lessons 13 and
# 18. You will take a mean apart, cheat on purpose and measure what it brings, and say how far apart two scores must
# be.

# %%
import numpy as np
import torch
from course import figure, predict

from lessons.by_hand.leaderboard import borda_counts, mean_by_type
from lessons.last_layer import LastLayer, both, cosines, run, tokens, vectors
from lessons.search.docstrings import read_entries, split_of
from lessons.search.measure import interval, ndcg_of_each
from minisbert.core import losses, metrics
from minisbert.data.rows import load_scored_pairs

# %% [markdown]
# ## The question
#
# People choose an encoder by MTEB, a table of dozens of tasks of several types that prints two means and ranks models
# by a count. What does a difference of one point in such a column tell you?
#
# ## The formula
#
#     mean by task  =  sum over all tasks of the score / their number
#     mean by type  =  mean over types of the mean over its tasks
#     Borda count   =  sum over tasks of the number of models below
#
# The first lets the type with the most tasks decide. The second weighs a type with one task like one with twenty. The
# third counts who is ahead, and not by how much; equal scores give neither a point.
#
# ## The real function
#
# Three models, two tasks of one type and one of another. Whom would you take?

# %%
small = np.array([[80.0, 70.0, 40.0], [78.0, 68.0, 60.0], [70.0, 60.0, 61.0]])  # (M, T)
types = ["sts", "sts", "search"]
print(
    "by task",
    small.mean(1),
    "by type",
    mean_by_type(small, types),
    "Borda",
    borda_counts(small),
)
assert mean_by_type(small, types).tolist() == [57.5, 66.5, 63.0], "(75 + 40) / 2, ..."
assert borda_counts(small).tolist() == [4, 3, 2], (
    "above two models twice; once, once, once; twice"
)

# %% [markdown]
# The first leads by Borda's count, and is last by type. Neither is wrong: they answer other questions.
#
# Now a board of our own. Four tasks of two types: the three genres of the STS Benchmark, and a search of docstrings by
# their names (lesson 18, 600 of them). Three models, each MiniLM with another last layer, by `LastLayer` and `run` of
# lesson 13: **as published**; a **specialist**, trained on half of STS-B's short training pairs; and a **cheat**,
# trained on half of the test pairs.

# %%
test = load_scored_pairs("stsb", "test")
seen, unseen = test[::2], test[1::2]
short = [pair for pair in load_scored_pairs("stsb", "train") if tokens(pair) <= 16]


def regression(model, pairs):
    u, v = model(both(pairs)).chunk(2)
    target = torch.tensor([pair.score / 5 for pair in pairs])
    return losses.cosine_mse_loss(u, v, target)


models = {
    "as published": LastLayer(),
    "specialist": run(regression, short[::2])[0],
    "cheat": run(regression, seen, epochs=3)[0],
}

# %% [markdown]
# The benchmark's file has the genres one after the other: 625 test pairs of captions, 254 of forums, 500 of news.

# %%
GENRES = {
    "captions": slice(0, 625),
    "forums": slice(625, 879),
    "news": slice(879, 1379),
}
names = [entry for entry in read_entries() if split_of(entry.module) == "test"][:600]
right, people = np.arange(len(names)), np.array([pair.score for pair in test])
board, of_pairs, of_queries = {}, {}, {}
for name, model in models.items():
    found = of_pairs[name] = cosines(model, test)
    scores = [
        100 * metrics.spearman(found[rows], people[rows]) for rows in GENRES.values()
    ]
    queries = vectors(model, [entry.query for entry in names])
    documents = vectors(model, [entry.document for entry in names])
    order = np.argsort(-(queries @ documents.T).numpy(), axis=1, kind="stable")
    of_queries[name] = 100 * ndcg_of_each(order, right)
    board[name] = np.array([*scores, of_queries[name].mean()])

everything = np.stack(list(board.values()))  # (M, T)
columns = [
    *everything.T,
    everything.mean(axis=1),
    mean_by_type(everything, ["sts", "sts", "sts", "search"]),
    borda_counts(everything),
]
print(*(f"{task:>9}" for task in (*GENRES, "search", "by task", "by type", "Borda")))
for name, row in zip(board, np.stack(columns, axis=1), strict=True):
    print(*(f"{value:9.1f}" for value in row), name)
gain = board["specialist"] - board["as published"]  # (4,)
assert 0.5 < gain.mean() < 2.5, "the specialist is a point or so ahead"

# %% [markdown]
# ## Predict, then run
#
# **1.** A point in the mean. Where does it come from?

# %%
guess = predict(
    "32.1",
    "The specialist's point comes from ...",
    ["all four tasks alike", "one genre", "the search"],
)

# %%
print(dict(zip((*GENRES, "search"), gain.round(1).tolist(), strict=True)))
assert gain[2] > 3, "news, half of its training pairs"
assert gain[0] < 0, "captions have lost"
guess.answer("one genre")

# %% [markdown]
# Four points on news, half a point in the search, and less on captions than before: together one point of the mean. If
# your texts are captions, the model with the better mean is the worse one. So read the columns that look like your
# work.
#
# **2.** The cheat leads on all four. How much of its lead on the STS Benchmark would you get on pairs that it has not
# seen?

# %%
guess = predict(
    "32.2",
    "Of what the cheat gains on the seen pairs, unseen ones keep",
    ["all", "half", "a tenth"],
)


# %%
def spearman_of(name, rows):
    return 100 * metrics.spearman(of_pairs[name][rows], people[rows])


halves = {
    name: (spearman_of(name, slice(0, None, 2)), spearman_of(name, slice(1, None, 2)))
    for name in models
}
for name, (on_seen, on_unseen) in halves.items():
    print(f"{name:12}  seen {on_seen:.1f}   unseen {on_unseen:.1f}")
lead = np.subtract(halves["cheat"], halves["as published"])  # (2,)
assert lead[0] > 10, "it has read the answers"
assert lead[1] < 0.2 * lead[0], "and learned a little of the task"
guess.answer("a tenth")

# %% [markdown]
# Nobody cheats like this. But training splits of benchmarks are training data, and near copies of test pairs stand in
# other sets: 17 to 50 % of the pairs of STS12 to STS16 are in STS-B's training split. MTEB's column *zero-shot* is the
# share of a board's tasks on which a model was not trained, as far as its authors say. What you can check is a set of
# your own that is younger than the model.
#
# **3.** The specialist is ahead in the search, too, on 600 queries.

# %%
guess = predict("32.3", "Is that gain more than chance?", ["yes", "nobody can tell"])

# %%
difference = of_queries["specialist"] - of_queries["as published"]  # (600,), in pairs
low, high = interval(difference)
print(f"search: {difference.mean():+.2f}, 95 % in {low:+.2f} .. {high:+.2f}")
assert low < 0 < high, "the interval has both signs"
guess.answer("nobody can tell")

# %% [markdown]
# And that is in pairs, query by query (lesson 12). A board can do the same with its tasks. MTEB's documentation draws
# the 41 tasks of its English board again with replacement: the first of 122 models stays first in 44 % of the draws,
# and of the 121 pairs of neighbours on the board 120 have overlapping ranks.
#
# ## The figure
#
# ![What the specialist and the cheat gain on each task](figures/32_reading_a_leaderboard.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for shift, name, ink in (
        (-0.18, "specialist", "#1f4e79"),
        (0.18, "cheat", "#c0392b"),
    ):
        axes.bar(
            np.arange(4) + shift,
            board[name] - board["as published"],
            0.34,
            color=ink,
            label=name,
        )
    axes.set_xticks(range(4), [*GENRES, "search"])
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.set(ylabel="points above as published")
    axes.legend(frameon=False)
    return drawn


figure("32_reading_a_leaderboard", draw)

# %% [markdown]
# ## Break it
#
# Pool our three genres, as the STS Benchmark does: one Spearman of 1,379 pairs in place of a mean of three. No model
# has changed.

# %%
for name, scores in board.items():
    pooled = spearman_of(name, slice(None))
    print(f"{name:12}  mean of genres {scores[:3].mean():.1f}, pooled {pooled:.1f}")
    assert pooled > scores[:3].mean() + 1, "pairs of two genres are easy to order"

# %% [markdown]
# ## Exercises
#
# `python -m lessons.check answer 32 1` gives a hint, and asked again, an answer.
#
# **Exercise 1.** You are given the cheat's scores and vectors, and not its training data. Which test would raise your
# suspicion?
#
# **Exercise 2.** Choose a task of MTEB that looks like your work. Read its paper: where do its labels come from, how
# many queries does it have, and which of the five models at the top name its training split among their data?
#
# **Exercise 3.** *A published figure.* Lee, Pincombe and Welsh had people grade how much alike each two of fifty short
# news texts are. The package gensim carries both, `lee.cor` and `similarities0-1.txt` (`pip install gensim`, then
# `gensim.test.utils.datapath`). Their abstract reports correlations of about .6 between people, about .6 for the best
# of their LSA models, and closer to .5 for the best count of words. What does a count of words of yours have, and what
# MiniLM? And the nDCG@10 of each, with the people's grades?
#
# **Exercise 4.** Graded: mean by type, Borda counts: `python -m lessons.check start 32`, `run 32`, `hint 32`.
#
# ## Sources
#
# - Muennighoff, Tazi, Magne & Reimers 2022, *MTEB: Massive Text Embedding Benchmark* (arXiv 2210.07316): 8 types of
#   tasks, 58 data sets. Its repository, embeddings-benchmark/mteb: pull requests 1345 (Borda) and 2153 (zero-shot in
#   per cent), `docs/get_started/advanced_usage/rank_stability.md` (the draws).
# - Lee, Pincombe & Welsh 2005, *An empirical evaluation of models of text document similarity* (its abstract).
# - `docs/retrieval.md`: the overlap of STS-B's training split with STS12 to STS16.
#
# ## What you have now
#
# You can say what a point on a board is made of. Next: [instructions and
# prompts](33_instructions_and_prompts.py).
