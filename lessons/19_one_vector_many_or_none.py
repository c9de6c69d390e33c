# %% [markdown]
# # Lesson 19: one vector, many, or none
#
# Steps through `minisbert/models/static_encoder.py`, `minisbert/models/sparse_encoder.py`,
# `minisbert/search/by_tokens.py`. Reading 55, chapter 10, pieces 15, exercises 90 minutes. You will take the encoder
# away, then the single vector, and see what each costs in bytes, milliseconds and right answers.

# %%
import numpy as np
import torch
from course import figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# So far a text became one vector. It need not be one. A text can have no vector at all, only weights of words, searched
# with an inverted index: for each word, a list of the texts that have it. It can be the mean of a table's rows, without
# an encoder. Or it can keep a vector for each token and let the query choose. Which is best? That depends on what we
# measure: right answers, bytes, or milliseconds.
#
# The corpus is lesson 18's, the docstrings of the standard library: names ask for the first sentences of their
# docstrings.

# %%
from lessons.search import docstrings
from minisbert.core import bert

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)

entries = docstrings.read_entries()
documents = [entry.document for entry in entries]  # N texts
test = [i for i, e in enumerate(entries) if docstrings.split_of(e.module) == "test"]
# Q queries; entry i's query is answered by document i
right = np.array(test[:: max(1, len(test) // 200)][:200])
queries = [entries[i].query for i in right]
N, Q = len(documents), len(queries)
print(f"{Q} queries, {N:,} documents; {queries[0]!r} asks for {documents[right[0]]!r}")
assert len({*queries}) == Q == 200, "two hundred questions, no two alike"

# %% [markdown]
# ## The formula
#
# Four ways to compare a query q with a document d. E is an encoder's states of a text's tokens, one row per token:
#
#     dense              cos( mean of E_q,  mean of E_d )                                      one vector
#     static             cos( mean of rows of a table,  the same )                             one vector, no encoder
#     sparse             sum over words of  w_q[word] * w_d[word],                             none: weights of words
#                        SPLADE:  w[word] = max over tokens of log(1 + relu(logit[word]))
#     late interaction   sum over q's tokens i of  max over d's tokens j of  E_q[i] E_d[j]     many
#
# The sum of best matches of **late interaction** is called **MaxSim**. Each token of the query picks its own partner,
# so a document need not say everything with a single direction. What a document says twice counts once.

# %% [markdown]
# ## The real function
#
# **MaxSim** by hand. The first token of the query finds its equal (1), the second one the best of .8, 0 and -1:

# %%
from minisbert.search.by_tokens import max_sim

query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
document = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, -1.0]])
print(query @ document.T)
assert abs(max_sim(query, document).item() - 1.8) < 1e-6, "1 + .8"
twice = torch.cat([document, document[:1]])
assert max_sim(query, twice) == max_sim(query, document), "said twice, counted once"

# %% [markdown]
# A corpus asks for that many times. `Matrices` keeps the tokens of all documents in one array; a query is multiplied
# with all of them at once, and each document's maximum is that of its segment:

# %%
import inspect

from minisbert.search.by_tokens import Matrices

print(inspect.getsource(Matrices.scores))

# %% [markdown]
# **Static vectors** are the rows of a table, one per token, and a text's vector is the mean of its tokens' rows.
# Neither a word's neighbours nor the order of the words matters. (word2vec and GloVe were such tables: [before
# transformers](../docs/before-transformers.md).)

# %%
from minisbert.models.static_encoder import bag_mean

table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]])
ids, starts = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([0, 3])
both = bag_mean(table, ids, starts)  # two texts: 0 1 2 and 2 1 0
print(both)
assert largest_difference(both[0], both[1]) == 0, "dog bites man is man bites dog"

# %% [markdown]
# **SPLADE** uses BERT's masked-language head (lesson 24), which was trained to fill in hidden words: at each token it
# gives every word of the vocabulary a logit. SPLADE keeps each word's highest logit over the tokens, and takes a
# logarithm, so that no single word dominates. A word whose logits are all below 0 has weight 0. A second loss,
# **FLOPS**, pulls weights towards 0: for each word it squares the mean weight over the batch, and it adds these squares
# up.

# %%
from minisbert.models.sparse_encoder import splade_pool


def flops_loss(vectors):
    """Add up the squared mean weight of each word in a batch (Paria et al. 2020): (B, V) -> one number."""
    return vectors.mean(dim=0).square().sum()


print(inspect.getsource(splade_pool))
# one text, two tokens, three words
logits = torch.tensor([[[np.e - 1, -3.0, 0.0], [np.e**2 - 1, 0.0, -1.0]]])
weights = splade_pool(logits)
print(weights)
assert largest_difference(weights, [[2.0, 0.0, 0.0]]) < 1e-6, "ln(e^2), and two zeros"
spread = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
crowded = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
assert flops_loss(spread) == 1**2 + 1**2
assert flops_loss(crowded) == 2**2, "the same weights, but in one word of all texts"

# %% [markdown]
# We have no trained SPLADE here, so lesson 18's BM25 represents the sparse engines. It too gives weights to words and
# can use an inverted index, but only for words that occur in the text; SPLADE also gives weights to related words.
#
# ## Four engines, one corpus
#
# The encoder runs once, and we keep the hidden states of all tokens. Their mean is the dense vector; late interaction
# compares the states themselves, each scaled to length 1. The encoder was never trained for that.

# %%
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure

encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))


def unit(x):
    """Rows of length 1."""
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def read(texts):
    """The states of each text's tokens: N arrays (T, 384)."""
    return [x.numpy() for x in encoder.encode(texts, output_value="token_embeddings")]


states = {"documents": read(documents), "queries": read(queries)}
dense = {
    side: unit(np.stack([x.mean(axis=0) for x in found]))
    for side, found in states.items()
}
again = encoder.encode(documents[:50])
assert largest_difference(dense["documents"][:50], again) < 1e-5, "what encode gives"
tokens = sum(map(len, states["documents"]))
print(f"{tokens:,} tokens in {N:,} documents, {tokens / N:.1f} each")

# %% [markdown]
# The table, from the same encoder: each of its 30,522 tokens goes through it alone. Of 384 directions the 256 along
# which these vectors differ most are kept, and frequent tokens are made to count less. (These directions are the
# *principal components*: lesson 17's principal axes, after the mean has been subtracted.)

# %%
from minisbert.models.static_encoder import distill, sif_weights

print(inspect.getsource(distill))
print(inspect.getsource(sif_weights))
static_model = distill(encoder, dim=256)
static = {
    "documents": static_model.encode(documents),
    "queries": static_model.encode(queries),
}
assert static["documents"].shape == (N, 256), "a kilobyte each"

# %% [markdown]
# **Exercise 1.** Distil with `coefficient=1e9`, which weights all tokens alike. What did the weights buy?

# %%
import time

from lessons.search.measure import interval, ndcg_of_each
from minisbert.search import by_tokens

results = {}


def judge(name, search, bytes_per_document):
    """nDCG@10 with its interval, bytes of a document, milliseconds of a query without its encoding."""
    start = time.perf_counter()
    found = search()
    spent = (time.perf_counter() - start) / Q
    each = ndcg_of_each(found, right)
    results[name] = each, bytes_per_document, spent
    low, high = interval(each)
    print(f"{name:28}{each.mean():.3f} ({low:.3f} to {high:.3f})", end="")
    print(f"{bytes_per_document:9,.0f} bytes{1000 * spent:8.2f} ms")


def late(documents, queries):
    return by_tokens.late_top_k(queries, documents, 10)[1]


def packed(found, columns=384):
    return Matrices.of([unit(x).astype(np.float32) for x in found], columns)


# %%
from lessons.search import bm25
from minisbert.search.dense import top_k

words = [docstrings.terms(text) for text in documents]
asked = [docstrings.terms(text) for text in queries]


def by_words():
    """BM25, which counts the documents' words anew: an index would not, and be faster."""
    scores = bm25.bm25_scores(asked, words)
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]


many = {side: packed(found) for side, found in states.items()}
postings = 5 * sum(len({*text}) for text in words) / N  # bytes, as in lesson 18
judge("sparse (BM25)", by_words, postings)
judge("static", lambda: top_k(static["queries"], static["documents"], 10)[1], 4 * 256)
judge("dense", lambda: top_k(dense["queries"], dense["documents"], 10)[1], 4 * 384)
size = many["documents"].rows.nbytes / N
judge("late interaction", lambda: late(many["documents"], many["queries"]), size)
score = {name: each.mean() for name, (each, *_) in results.items()}
assert score["static"] < score["dense"] < score["late interaction"], "at a price"

# %% [markdown]
# Encoder and weights are the same, so what dense search lacks was lost in the mean. Is the difference more than luck?
# Both engines were asked the same questions, so lesson 09's bootstrap can draw the differences, question by question:

# %%
gain = interval(results["late interaction"][0] - results["dense"][0])
print(f"late minus dense: {score['late interaction'] - score['dense']:+.3f}", end=", ")
print(f"95 % in {gain[0]:+.3f} to {gain[1]:+.3f}")
assert gain[0] > 0, "not luck"

# %% [markdown]
# ## Both of them trained
#
# That comparison flatters neither: the states were never trained to be compared one by one, and the mean was never
# trained for names. So we give both the same sixty steps on lesson 18's pairs, the names and sentences of the training
# modules, 32 a step: the in-batch loss of lesson 10, once over the cosines of means, once over MaxSim. (Divided by the
# number of the query's tokens, so that both scores are at most 1, and the scale of 20 means the same.)

# %%
import copy

from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.encoder import normalize
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.core.losses import multiple_negatives_ranking_loss

STEPS = 60
known = [entry for entry in entries if docstrings.split_of(entry.module) == "train"]
asking = TextColumns(encoder.tokenizer, [[entry.query for entry in known]])
answering = TextColumns(encoder.tokenizer, [[entry.document for entry in known]])


def token_states(model, columns, batch):
    """The states of a batch's tokens, each of length 1 (B, T, D), and which tokens are real (B, T)."""
    ids, mask = columns.batch(batch)
    if mask is None:  # texts of one length
        mask = torch.ones_like(ids, dtype=torch.bool)
    return normalize(model.bert(ids, mask)), mask


def late_loss(model, batch):
    """Each query against all documents of its batch, by MaxSim."""
    q, q_real = token_states(model, asking, batch)  # (B, S, D)
    d, d_real = token_states(model, answering, batch)  # (B, T, D)
    products = torch.einsum("bsd,ctd->bcst", q, d)  # (B, B, S, T)
    products = products.masked_fill(
        ~d_real[None, :, None], -1.0
    )  # a pad is nobody's partner
    best = products.amax(dim=3) * q_real[:, None]  # (B, B, S)
    scores = best.sum(dim=2) / q_real.sum(dim=1, keepdim=True)  # (B, B)
    return torch.nn.functional.cross_entropy(20 * scores, torch.arange(len(batch)))


def mean_loss(model, batch):
    """The same by the cosines of means."""
    return multiple_negatives_ranking_loss(
        model(*asking.batch(batch)), model(*answering.batch(batch))
    )


def trained_by(loss):
    """The encoder after sixty steps, all layers, the table of words left alone."""
    model = copy.deepcopy(encoder).requires_grad_(False)
    layers = list(model.bert.layers.requires_grad_(True).parameters())
    chance = torch.Generator().manual_seed(0)
    batches = length_grouped_batches(answering.lengths, 32, chance)[:STEPS]

    def schedule(step):
        return linear_schedule(step, STEPS // 10, STEPS)

    curve = [
        step.loss
        for step in fit(
            model, loss, batches, adamw(layers, lr=1e-4), schedule, clip=1.0
        )
    ]
    print(f"{loss.__name__}: {np.mean(curve[:5]):.2f} -> {np.mean(curve[-5:]):.2f}")
    return model.eval()


def states_by(model):
    """The states of queries and documents by another model."""
    states = {}
    for side, texts in (("documents", documents), ("queries", queries)):
        tensors = model.encode(texts, output_value="token_embeddings")
        states[side] = [tensor.numpy() for tensor in tensors]
    return states


# %%
guess = predict(
    "19.1",
    "Sixty steps for both. Late interaction's lead over the mean, .044, becomes ...",
    ["larger", "smaller", "a deficit"],
)

# %%
by_means = trained_by(mean_loss)
asked_means = by_means.encode(queries)
means = by_means.encode(documents)
judge("dense, trained", lambda: top_k(asked_means, means, 10)[1], 4 * 384)
trained_states = states_by(trained_by(late_loss))
trained_many = {side: packed(found) for side, found in trained_states.items()}
size = trained_many["documents"].rows.nbytes / N
judge(
    "late interaction, trained",
    lambda: late(trained_many["documents"], trained_many["queries"]),
    size,
)
for name, rival in (
    ("late interaction, trained", "late interaction"),
    ("dense, trained", "dense"),
    ("late interaction, trained", "dense, trained"),
):
    difference = results[name][0] - results[rival][0]
    low, high = interval(difference)
    print(f"{name} minus {rival}: {difference.mean():+.3f}, {low:+.3f} to {high:+.3f}")

for name in ("dense", "late interaction"):
    learned = results[f"{name}, trained"][0] - results[name][0]
    assert interval(learned)[0] > 0.02, f"{name} learns, in sixty steps"
lead = score["late interaction"] - score["dense"]
trained_lead = difference.mean()  # of the last line
assert 0 < trained_lead < lead - 0.01, "a good part of the lead is gone"
guess.answer("smaller")

# %% [markdown]
# Sixty steps are worth nine points to the mean and six to late interaction. What was +.044 before is +.018 now, and its
# interval holds 0: a good part of what late interaction was ahead by was that nobody had trained the mean for names. A
# method that is judged untrained is judged by its starting point.
#
# It costs bytes and milliseconds. Two ways to pay less: fewer columns per token, along the principal axes of the
# documents' tokens (lesson 17); and to ask it only about the dense engine's fifty best, which is *reranking* (lesson
# 18).

# %%
rows = unit(np.concatenate(states["documents"]))  # (all tokens, 384)
axes = np.linalg.eigh(rows.T @ rows)[1][:, ::-1]  # (384, 384), the longest first


def cut(side, columns=64):
    return packed([unit(x) @ axes[:, :columns] for x in states[side]], columns)


few_documents, few_queries = cut("documents"), cut("queries")
size = few_documents.rows.nbytes / N
judge("late, 64 columns", lambda: late(few_documents, few_queries), size)


def reranked(candidates=50):
    _, found = top_k(dense["queries"], dense["documents"], candidates)
    best = []
    for query, some in zip(many["queries"], found, strict=True):
        few = Matrices.of([many["documents"][j] for j in some], 384)
        best.append(some[np.argsort(-few.scores(query), kind="stable")[:10]])
    return np.stack(best)


size = many["documents"].rows.nbytes / N + 4 * 384
judge("dense, then late on 50", reranked, size)
spent = {name: seconds for name, (_, _, seconds) in results.items()}
assert spent["dense, then late on 50"] < spent["late interaction"], "50 of 5,000"

# %% [markdown]
# **Exercise 2.** Leave [CLS] and [SEP] out of the documents, then of the queries too. What do they contribute?
#
# **Exercise 3.** Add the ranks of BM25 and dense, 1 / (60 + rank) each, and sort by the sum. Is the pair better than
# either?

# %% [markdown]
# ## The figure
#
# Up is better, left is smaller, red is trained, and a large dot is slow: its area grows with the root of the time, or
# the slow ones would hide the others. The bars are 95 % intervals of the mean. With two hundred questions they are
# wide; paired differences, as above, tell the engines apart all the same.
#
# ![Quality by bytes of a document; the larger a dot, the slower the query](figures/19_one_vector_many_or_none.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, (each, size, spent) in results.items():
        low, high = interval(each)
        axes.plot([size, size], [low, high], color="#bbbbbb", linewidth=1)
        area = 20 + 60 * (1000 * spent) ** 0.5
        shade = "#c0392b" if "trained" in name else "#1f4e79"
        axes.scatter(size, each.mean(), s=area, color=shade, alpha=0.8)
        # late interaction and what reranks with it have nearly the same bytes
        place = {
            "late interaction": (0, 22),
            "late interaction, trained": (9, 8),
            "dense, trained": (9, 2),
        }.get(name, (9, -18))
        offset = {"xytext": place, "textcoords": "offset points"}
        axes.annotate(name, (size, each.mean()), fontsize=8, **offset)
    axes.set(xscale="log", xlabel="bytes of a document", ylabel="nDCG@10")
    axes.set(title="One vector, many, or none", xlim=(30, 200_000))
    return drawn


figure("19_one_vector_many_or_none", draw)

# %% [markdown]
# **Exercise 4.** How many columns per token does late interaction need here to be better than dense with fewer bytes
# than 10 kB?
#
# **Exercise 5.** Keep the token vectors as int8 with lesson 17's `to_int8`. Bytes, nDCG?

# %% [markdown]
# ## Predict, then run
#
# "the dog bites the man" and "the man bites the dog": the cosine of their static vectors is ...

# %%
guess = predict(
    "19.2",
    "dog bites man, man bites dog, by the table: the cosine is ...",
    ["0.5", "0.9", "1"],
)

# %%
dog, man = static_model.encode(["the dog bites the man", "the man bites the dog"])
context = encoder.encode(["the dog bites the man", "the man bites the dog"])
print(f"by the table {dog @ man:.4f}, by the encoder {context[0] @ context[1]:.4f}")
assert abs(dog @ man - 1) < 1e-6, "a mean has no order"
guess.answer("1")

# %% [markdown]
# ## Break it
#
# Ports of late interaction go wrong in ways that a single vector cannot. Two of them, asked the same questions:

# %%
starts = many["documents"].starts[:-1]
mistakes = {
    "each document token seeks": lambda products: products.max(axis=1),
    "all pairs of tokens": lambda products: products.sum(axis=1),
}
for name, of_token in mistakes.items():
    products = (rows @ query.T for query in many["queries"])  # (all tokens, T) each
    scores = np.stack([np.add.reduceat(of_token(x), starts) for x in products])
    found = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    wrong = ndcg_of_each(found, right).mean()
    print(f"{name:28}{wrong:.3f} instead of {score['late interaction']:.3f}")
    assert wrong < score["late interaction"] - 0.05, "found something: hard to see"

# %% [markdown]
# With the sides exchanged, long documents win, because each of their tokens adds something. Without the maximum, the
# score is the dot product of two sums, so one vector per text would have been enough.
#
# **Pads that were not cut off** are tokens like others. Copies of a token do no harm: the maximum does not see them.
# But here each document gets five more vectors that nobody scaled to length 1:

# %%
pads = np.random.default_rng(0).standard_normal((5, 384)).astype(np.float32) * 3
noisy = Matrices.of([np.concatenate([unit(x), pads]) for x in states["documents"]], 384)
moved = late(noisy, many["queries"]) != late(many["documents"], many["queries"])
print(f"{moved.mean():.0%} of the places change")
assert moved.mean() > 0.3, "one long vector is everybody's best partner"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 19 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: max_sim: `python -m lessons.check start 19`, `run 19`, `hint 19`.
#
# ## Sources
#
# - Khattab and Zaharia 2020, *ColBERT: efficient and effective passage search via contextualized late interaction over
#   BERT*: MaxSim, query augmentation, punctuation left out.
# - Formal et al. 2021, *SPLADE* (arXiv 2107.05720): words' weights from the masked-language head, summed over the
#   tokens, and the FLOPS that make them few; *SPLADE v2* (arXiv 2109.10086) takes the maximum over the tokens.
# - Robertson and Zaragoza 2009, *The probabilistic relevance framework: BM25 and beyond*.
# - Model2Vec, MinishLab/model2vec on GitHub: tables from encoders. Its weights are after Arora et al. 2017, *A simple
#   but tough-to-beat baseline for sentence embeddings*.
#
# ## What you have now
#
# You can weigh one vector, a vector per token and none at all against each other. Next: [two-stage
# search](20_two_stage_search.py).
