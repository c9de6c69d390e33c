# %% [markdown]
# # Lesson 20: two-stage search
#
# Steps through `lessons/search/docstrings.py`, `lessons/search/fusion.py`. Reading 50, chapter 5, pieces 20,
# exercises 260 minutes. You will search documents that are too long for an encoder, join two engines that disagree,
# and let a third one judge what they found.

# %%
import numpy as np
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Lesson 18 searched single sentences. Real documents are pages, MiniLM reads 256 tokens, and a vector of 384 numbers
# has to stand for all of it. Words and vectors make different mistakes. And what judges well, such as a cross-encoder,
# is too slow to judge everything. So nearly every search engine has **two stages**: a fast one that *finds* some
# candidates among all documents, and a slow one that *sorts* them.
#
# The corpus: long docstrings of Python, NumPy and parts of PyTorch, each without its first sentence. That sentence is
# the question. So the questions are English, and nobody has written them to suit a search engine. To keep the lesson
# short, we take the modules of the test split (lesson 18).

# %%
import inspect
from pathlib import Path
from sysconfig import get_path
from textwrap import shorten

from lessons.search import docstrings
from minisbert.core import bert

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)

print(inspect.getsource(docstrings.read_questions))
library = Path(torch.__file__).parent
folders = {"": get_path("stdlib"), "numpy": Path(np.__file__).parent}
for name in ("nn", "optim", "distributions"):
    folders[f"torch.{name}"] = library / name
entries = docstrings.read_questions(folders)
entries = [entry for entry in entries if docstrings.split_of(entry.module) == "test"]
documents = [entry.document for entry in entries]  # N texts
questions = [entry.query for entry in entries]
N = len(documents)
right = np.arange(N)  # question i asks for document i
print(f"{N} documents, and a question for each")
for entry in entries[:: N // 4]:
    print(f"{entry.query}\n    {shorten(entry.document, 84)}")
assert 400 < N < 1200, "other versions of the three packages have a few more or fewer"

# %% [markdown]
# ## The formula
#
# Two engines give each document a rank, 1 for the best. **Reciprocal rank fusion** adds
#
#     RRF(d)  =  sum over engines of   1 / (60 + rank of d)
#
# and nothing else: scores of two engines have no common unit, ranks have. The 60 makes the first ranks nearly equal, so
# that being second twice beats being first once and tenth once.
#
# A long document is cut into **chunks**, overlapping pieces of some eighty words. Each has a vector, and the document's
# score is that of its best chunk.

# %% [markdown]
# ## The real function

# %%
from lessons.search.fusion import reciprocal_ranks

one, other = np.array([[9.0, 5.0, 1.0]]), np.array([[0.1, 0.3, 0.2]])
joined = reciprocal_ranks(one) + reciprocal_ranks(other)
print(joined)
by_hand = [[1 / 61 + 1 / 63, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62]]
assert largest_difference(joined, by_hand) < 1e-12, "ranks 1 2 3 and 3 1 2"
assert joined.argmax() == 1, "second and first"


# %%
def chunks(text, size=80, overlap=10):
    """Pieces of ``size`` words, each beginning with the last ``overlap`` of the one before."""
    words = text.split()
    starts = range(0, max(1, len(words) - overlap), size - overlap)
    return [" ".join(words[start : start + size]) for start in starts]


# %%
pieces = chunks("a b c d e f g", 4, 1)
print(pieces)
assert pieces == ["a b c d", "d e f g"], "d is in both"

# %% [markdown]
# ## The first stage: find
#
# BM25 needs no limit. MiniLM reads 256 tokens and drops the rest. It wants no prompt before a text, as other encoders
# do (sheet 33). (`dtype="auto"` takes the numbers that this CPU multiplies fastest: bfloat16 on some, float32 on
# others, lesson 26.)

# %%
from lessons.search.measure import interval, ndcg_of_each

results = {}  # name -> nDCG@10 of each question


def best(scores):
    """The ten best documents of each question, (N, 10), by scores (N, N)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]


def enter(name, found):
    """Enter an engine by what it found for each question, best first, and print it."""
    results[name] = ndcg_of_each(found, right)
    low, high = interval(results[name])
    print(f"{name:34}{results[name].mean():.3f}  ({low:.3f} to {high:.3f})")


def judge(name, scores):
    enter(name, best(scores))


def gain(name, base):
    """The mean difference of two engines and its 95 % interval, question by question (lesson 09)."""
    difference = results[name] - results[base]
    low, high = interval(difference)
    print(f"{name} minus {base}: {difference.mean():+.3f} ({low:+.3f} to {high:+.3f})")
    return difference.mean(), low, high


# %%
from lessons.search import bm25

words = [docstrings.terms(text) for text in documents]
asked = [docstrings.terms(text) for text in questions]
lexical = bm25.bm25_scores(asked, words)  # (N, N)
judge("BM25", lexical)

# %%
guess = predict(
    "20.1",
    "MiniLM reads the first 48 tokens of each document instead of 256. nDCG@10 falls by ...",
    ["less than a point", "about three points", "more than eight points"],
)

# %%
import torch.nn.functional as F

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))


def read(texts):
    """The states of each text's tokens, N tensors (T, 384)."""
    return encoder.encode(texts, output_value="token_embeddings", dtype="auto")


def means(states):
    """One unit vector for each text (N, 384): what encode returns."""
    return F.normalize(torch.stack([x.mean(dim=0) for x in states])).numpy()


asked_states = read(questions)
asking = means(asked_states)
encoder.max_seq_length = 48
judge("MiniLM, 48 tokens", asking @ means(read(documents)).T)
encoder.max_seq_length = 256
states = read(documents)  # the second stage needs them again
vectors = means(states)
dense = asking @ vectors.T  # (N, N)
judge("MiniLM, 256 tokens", dense)
lost, low, _ = gain("MiniLM, 256 tokens", "MiniLM, 48 tokens")
assert low > 0.08, "what was cut away was part of the answer"
guess.answer("more than eight points")

# %% [markdown]
# Nearly half of the documents have more than 256 tokens. If 48 tokens lose so much, what do 256 lose of those? Chunks
# leave no word out. (What a chunk does lose is its document: nothing in it says what the whole was about.)

# %%
guess = predict(
    "20.2",
    "All text in chunks of 80 words, the best chunk counts. Against 256 tokens of each document it is ...",
    ["no better", "a few points better", "more than eight points better"],
)

# %%
parts = [chunks(text) for text in documents]
counts = np.array([len(some) for some in parts])
starts = np.cumsum(counts) - counts
flat = [piece for some in parts for piece in some]
piece_vectors = encoder.encode(flat, dtype="auto")
print(f"{len(flat):,} chunks of {N} documents")
chunked = np.maximum.reduceat(asking @ piece_vectors.T, starts, axis=1)  # (N, N)
judge("MiniLM, best chunk", chunked)
more, low, high = gain("MiniLM, best chunk", "MiniLM, 256 tokens")
assert -0.06 < more < 0.01, "three times the vectors, and no better"
guess.answer("no better")

# %% [markdown]
# The reason is in the questions: they ask for a document *as a whole*, and its beginning says what it is about. A
# question about a detail on page three would need its chunk. Measure it on your own corpus.
#
# **Exercise 1.** (medium) **Late chunking**: cut the *states* into windows of eighty tokens instead of the text, and
# take the mean of each. Every chunk then knows its document. Better than chunks of text?
#
# **Exercise 2.** (hard) Write questions about details: for thirty long documents a question whose answer is in the
# last third. Who wins now, 256 tokens or chunks?
#
# ## Join them
#
# BM25 is a little behind MiniLM. Does it add anything, or are both wrong about the same questions?

# %%
guess = predict(
    "20.3",
    "BM25 and MiniLM by reciprocal ranks: against MiniLM alone ...",
    ["worse: the average of both", "the same", "one to six points better"],
)

# %%
both = reciprocal_ranks(lexical) + reciprocal_ranks(dense)
judge("BM25 + MiniLM", both)
more, _, _ = gain("BM25 + MiniLM", "MiniLM, 256 tokens")
assert 0.01 < more < 0.06, "three points or so, for a sum of ranks"
missed = {name: results[name] == 0 for name in ("BM25", "MiniLM, 256 tokens")}
neither = (missed["BM25"] & missed["MiniLM, 256 tokens"]).mean()
print(
    f"not among ten: BM25 {missed['BM25'].mean():.0%},",
    f"MiniLM {missed['MiniLM, 256 tokens'].mean():.0%}, both {neither:.0%}",
)
assert neither < 0.75 * missed["MiniLM, 256 tokens"].mean(), "they miss different ones"
guess.answer("one to six points better")

# %% [markdown]
# **Exercise 3.** (easy) Fuse three: BM25, 256 tokens and the best chunk. Is there a gain, and does its interval leave
# out 0?
#
# **Exercise 4.** (easy) 60 is a habit. Try 1, 10 and 1000, and look at the intervals before you choose.

# %% [markdown]
# ## The second stage: sort
#
# The right document is nearly always among twenty candidates, and first for about half of the questions. A judge that
# reads question and document *together* could put it there.

# %%
K = 20
candidates = np.argsort(-both, axis=1, kind="stable")[:, :K]  # (N, K)
recall = (candidates == right[:, None]).any(axis=1).mean()
first = (candidates[:, 0] == right).mean()
print(f"among {K}: {recall:.3f}, first: {first:.3f}")
assert recall > 0.85, "no judge can do better than this share"

# %% [markdown]
# Who judges? A cross-encoder (lesson 15) is the usual one, after it has learned from half a million questions: those of
# **MS MARCO**, which people asked a web search, each with a passage that answers it. Ours learned to see a *not* in
# sixty steps, because its sentences differed in a word. Documents differ in everything. We gave it sixty steps on
# lesson 18's names, each with its docstring and three of the ten nearest others, and let it sort the ten best of MiniLM
# for 150 queries of dev:
#
#     MiniLM, nDCG@10                              .482
#     sorted by the cross-encoder alone            .330    -.152 (-.201 to -.102)
#     by 20 cosines + cross-encoder, as trained    .469    -.013 (-.028 to +.002)
#
# Its loss was 1.27 at the end; the cosine without it has 1.29. So in a minute no cross-encoder of ours beats the first
# stage. (`minisbert evaluate --rerank MODEL` measures one that you have.)
#
# Late interaction (lesson 19) needs no training. Each token of the question picks the document's token that fits it
# best. For all N documents that would be much work; for twenty it is little.


# %%
def late_scores(candidates):
    """The mean best match of the question's tokens in each of its candidates: (N, K) -> (N, K)."""
    scores = np.empty(candidates.shape)
    for i, row in enumerate(candidates):
        question = F.normalize(asked_states[i], dim=1)  # (T, 384)
        for k, document in enumerate(row):
            tokens = F.normalize(states[document], dim=1)  # (T, 384)
            scores[i, k] = (question @ tokens.T).amax(dim=1).mean()
    return scores


# %%
late = late_scores(candidates)  # (N, K)
products = np.mean([len(x) for x in asked_states]) * np.mean([len(x) for x in states])
print(f"{products:,.0f} products of vectors for a document, the first stage needs 1")
assert products > 1000, "why it is the second stage"


def judge_sorted(name, scores):
    """Enter an engine that sorts the candidates by ``scores`` (N, K)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    enter(name, np.take_along_axis(candidates, order, axis=1))


judge_sorted("found by both, sorted by late", late)
first_stage = 1 / (61 + np.arange(K))  # column 0 has rank 1
judge_sorted("found by both, sorted by all", reciprocal_ranks(late) + first_stage)

# %% [markdown]
# A judge that replaces the first stage throws its knowledge away. A judge that joins it, by ranks again, keeps it.
# Which gain is the surer one? And what are both stages worth beside the one engine that we began with?

# %%
gain("found by both, sorted by late", "BM25 + MiniLM")
more, _, _ = gain("found by both, sorted by all", "BM25 + MiniLM")
assert more > 0, "the second stage against the first"
more, _, _ = gain("found by both, sorted by all", "MiniLM, 256 tokens")
assert more > 0.02, "two stages against one"

# %% [markdown]
# **Exercise 5.** (medium) Sort fifty candidates instead of twenty. What does it cost, what does it gain, and which
# number of this lesson says how much it could gain at most?
#
# **Exercise 6.** (hard) **Distil** the judge back into the encoder: on lesson 18's names of the training modules, train
# 20 cosines by `margin_mse_loss` to differ as 20 times the late scores do. Does the first stage get the judge's gain?
# And what do the same rows give by their labels?

# %% [markdown]
# ## The figure
#
# ![nDCG@10 of each engine with its interval](figures/20_two_stage_search.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for place, each in enumerate(results.values()):
        low, high = interval(each)
        axes.plot([low, high], [place, place], color="#bbbbbb", linewidth=2)
        axes.plot(each.mean(), place, "o", color="#1f4e79")
    axes.set_yticks(range(len(results)), list(results), fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="nDCG@10", title="Find, join, sort")
    return drawn


figure("20_two_stage_search", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** Why ranks? Add the *scores* of BM25 and the cosine instead, as they are.

# %%
guess = predict(
    "20.4",
    "BM25's scores plus cosines: the sum sorts nearly as ... would",
    ["BM25", "MiniLM", "both by ranks"],
)

# %%
judge("sum of scores", lexical + dense)
print(f"BM25 {lexical.std():.2f}, cosines {dense.std():.2f}: standard deviations")
summed, shared = best(lexical + dense), []
for ten in (best(lexical), best(dense)):
    shared.append(np.mean([len({*a} & {*b}) for a, b in zip(summed, ten, strict=True)]))
print(f"of its ten, {shared[0]:.1f} are BM25's and {shared[1]:.1f} MiniLM's")
assert shared[0] > shared[1] + 2, "the louder one is heard"
guess.answer("BM25")

# %% [markdown]
# ## Break it
#
# **The question in the document.** Index the docstrings whole, first sentences and all, as a pipeline does that was not
# told which part is the question:

# %%
whole = [docstrings.terms(f"{entry.query} {entry.document}") for entry in entries]
value = ndcg_of_each(best(bm25.bm25_scores(asked, whole)), right).mean()
print(f"BM25 {value:.3f} instead of {results['BM25'].mean():.3f}")
assert value > 0.9, "a high score that measures nothing"

# %% [markdown]
# **The order is not the ranks.** `argsort` says which document is first, second, third. The rank of a document is where
# it stands in that order, which is the inverse. With one `argsort` too few in one of two engines the fusion still finds
# something, so the bug is hard to see:

# %%
from lessons.mistakes import MISTAKES, planted
from lessons.search import fusion

with planted(MISTAKES["order taken for ranks"]):
    wrong = fusion.reciprocal_ranks(dense)
value = ndcg_of_each(best(reciprocal_ranks(lexical) + wrong), right).mean()
print(f"{value:.3f} instead of {results['BM25 + MiniLM'].mean():.3f}")
assert value < results["BM25"].mean() - 0.02, "worse than BM25 alone: that is the test"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 6 stand beside what they practise. `python -m lessons.check answer 20 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 7.** Graded: reciprocal_ranks: `python -m lessons.check start 20`, `run 20`, `hint 20`.
#
# ## Sources
#
# - Cormack, Clarke and Büttcher 2009, *Reciprocal rank fusion outperforms Condorcet and individual rank
#   learning methods*: the sum of reciprocal ranks (its abstract); 60 was fixed in a pilot of theirs and not altered.
# - Khattab and Zaharia 2020, *ColBERT: efficient and effective passage search via contextualized late interaction over
#   BERT*.
# - Nogueira and Cho 2019, *Passage re-ranking with BERT*.
# - Hofstätter et al. 2020, *Improving efficient neural ranking models with cross-architecture knowledge distillation*
#   (its abstract): margin MSE.
# - Günther et al. 2024, *Late chunking* (arXiv 2409.04701).
# - MS MARCO: sbert.net, *MS MARCO* ("about 500k real search queries from Bing search engine").
#
# ## What you have now
#
# You have two stages: one that finds, one that judges. Next: [an index by hand](21_an_index_by_hand.py).
