# %% [markdown]
# # Lesson 13: making it fast
#
# Steps through `minisbert/fast/batching.py`, `minisbert/fast/fused.py`, `minisbert/system/devices.py`, and `pad_batch`
# of `minisbert/core/tokenizer.py`. About 45 minutes. You will climb a ladder of six steps to the same vectors, and
# count what was computed for nothing.

# %%
import statistics
import time

import torch
from course import figure, largest_difference
from minisbert.fast.fused import FusedBert, evaluating
from minisbert.fast.kernels import linear

import minisbert
from minisbert.core import bert, data, metrics, pooling, tokenizer
from minisbert.core.data import length_grouped_batches
from minisbert.core.encoder import SentenceEncoder, normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.fast import fused
from minisbert.fast.batching import budgeted_batches, packed_batches, to_ids, tokenize
from minisbert.mistakes import MISTAKES, planted
from minisbert.mistakes.planting import Mistake
from minisbert.models.folders import find_model
from minisbert.objectives.scored_pairs import load_scored_pairs
from minisbert.system.devices import choose_precision

encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))  # the book's: easy to follow, and what is to be beaten
pairs = load_scored_pairs("stsb", "test")[::20]
texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
ids = encoder.tokenizer.encode(texts).ids
lengths = [len(row) for row in ids]
N = len(texts)
print(f"{N} sentences of {min(lengths)} to {max(lengths)} tokens, {sum(lengths):,} in all")

# %% [markdown]
# ## The question
#
# The encoder is right. Now somebody has a million sentences and two CPU cores. Where does the time go, and how much of
# it buys nothing?
#
# ## The formula
#
# A batch is a rectangle: `B` rows of `T` tokens, T the length of the longest row, and the shorter ones are filled with
# pads. A layer multiplies for *each* of the B T tokens, pads included,
#
#     4 D D  (queries, keys, values, output)  +  2 D F  (feed-forward)  +  2 T D  (scores and contexts)
#
# numbers. So with rows of lengths n_1 .. n_B the share that is computed for nothing is
#
#     waste = 1 - (n_1 + ... + n_B) / (B T)

# %%
config = encoder.bert.config
D, F = config.hidden_size, config.intermediate_size
for T in (14, 128, 512):
    dense, between = 4 * D * D + 2 * D * F, 2 * T * D
    print(f"T = {T:3}: {dense:,} + {between:,} multiplications a token and layer, attention {between / dense:.1%}")
assert dense > 16 * 2 * 128 * D, "for sentences the time goes into the dense layers: it follows the tokens"

# %% [markdown]
# ## The real function
#
# Three rows of 2, 4 and 3 tokens in one rectangle:

# %%
batch, mask = pad_batch([[101, 102], [101, 7592, 2088, 102], [101, 7592, 102]], pad_id=0)
print(batch, mask.int(), sep="\n")
assert mask.sum() / mask.numel() == 0.75, "a quarter of it is pads"
assert pad_batch([[101, 102], [101, 102]], pad_id=0)[1] is None, "rows of one length: nothing to hide, no mask"

# %% [markdown]
# Rows of like length in one batch, longest first, no more tokens than the budget: the pads become few.

# %%
print(budgeted_batches([3, 9, 4, 4, 3, 9], batch_tokens=20))
assert budgeted_batches([3, 9, 4, 4, 3, 9], batch_tokens=20) == [[1, 5], [2, 3, 0, 4]], "18 and 16, 2 of them pads"

# %% [markdown]
# They become none if we give up the rectangle. All but attention looks at one token at a time and does not care whose
# it is: so the tokens of all texts of a batch are laid end to end, M of them, and only attention cuts them apart, by
# groups of one length.

# %%
keys, _ = tokenize(encoder.tokenizer, ["A cat.", "A dog.", "Snow falls on the hills.", "A bird."])
for packed in packed_batches(keys, batch_tokens=20):
    print([to_ids(group, torch.device("cpu")).tolist() for group in packed])
packed = [[len(group) for group in batch] for batch in packed_batches(keys, batch_tokens=20)]
assert packed == [[1, 2], [1]], "8 + 2 * 5 tokens, in groups of one length, and the text that found no room"

# %% [markdown]
# What remains is to multiply faster. `linear` of `fast/kernels.py` is a dense layer with GELU in the same pass over the
# numbers; the fused layer norm goes over them once, the formula in `bert.py` six times. Fused operations are the same
# formulas.

# %%
generator = torch.Generator().manual_seed(0)
x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((3, D), (F, D), (F,)))
written_out = bert.gelu(x @ weight.T + bias)  # (3, F)
at_once = linear(x, weight, bias, with_gelu=True)
print(written_out[:, :5], at_once[:, :5], sep="\n")
assert largest_difference(written_out, at_once) < 2e-4, "up to rounding: sums of 384 products of size 20"
assert largest_difference(written_out, at_once) > 0, "and not bit by bit: the order of the sum is another"

# %% [markdown]
# ## The ladder
#
# Six ways to the same vectors, the last two through `FusedBert`, which is `bert.py` in fused operations. Each function
# takes its name and returns (N, D); `tokens` counts what it has computed.

# %%
tokens = {}
precision, reason = choose_precision("auto", torch.device("cpu"))
print(f"bfloat16 here: {'yes' if precision == torch.bfloat16 else 'no'}, {reason}")


def encode(name, batches, model, width=0):
    """The vectors of all texts from these batches; each row is padded to ``width`` tokens if that is given."""
    vectors, tokens[name] = torch.empty(N, D), 0
    with evaluating(encoder):
        for rows in batches:
            batch, mask = pad_batch([ids[row] for row in rows], encoder.tokenizer.pad_id)  # (B, T)
            if width:
                mask = torch.ones_like(batch, dtype=torch.bool) if mask is None else mask
                more = (0, width - batch.shape[1])
                batch, mask = torch.nn.functional.pad(batch, more), torch.nn.functional.pad(mask, more)
            vectors[rows] = normalize(pooling.mean_pool(model(batch, mask), mask))
            tokens[name] += batch.numel()
    return vectors


def cut(order, size=32):
    return [order[start : start + size] for start in range(0, N, size)]


def of_one_length(batch_tokens=2048):
    """Batches in which all rows have one length: no pads at all."""
    return [rows for batch in side_by_side(batch_tokens) for rows in batch]


def side_by_side(batch_tokens=2048):
    """Batches of groups in which all rows have one length, as ``packed_batches`` makes them."""
    batches, room = [], 0
    for row in sorted(range(N), key=lambda row: -lengths[row]):
        if lengths[row] > room:
            batches.append([])
            room = batch_tokens
        if not batches[-1] or lengths[batches[-1][-1][0]] != lengths[row]:
            batches[-1].append([])
        batches[-1][-1].append(row)
        room -= lengths[row]
    return batches


def packed_texts(name, dtype=torch.float32, batch_tokens=2048):
    """The vectors of all texts by ``FusedBert``, groups of several lengths side by side."""
    vectors, tokens[name] = torch.empty(N, D), 0
    fast = FusedBert(encoder.bert, dtype)
    with evaluating(encoder):
        for batch in side_by_side(batch_tokens):
            groups = [torch.tensor([ids[row] for row in rows]) for rows in batch]  # (B, T) each
            for rows, hidden in zip(batch, fast(groups), strict=True):  # (B, T, D) each
                vectors[rows] = normalize(pooling.mean_pool(hidden))
                tokens[name] += hidden.shape[0] * hidden.shape[1]
    return vectors


in_order, by_length = cut(list(range(N))), cut(sorted(range(N), key=lambda row: -lengths[row]))
ladder = {
    "all to 128": lambda name: encode(name, in_order, encoder.bert, width=128),
    "to the longest of 32": lambda name: encode(name, in_order, encoder.bert),
    "sorted by length": lambda name: encode(name, by_length, encoder.bert),
    "one length, no mask": lambda name: encode(name, of_one_length(), encoder.bert),
    "side by side": packed_texts,
}
if precision == torch.bfloat16:
    ladder["bfloat16"] = lambda name: packed_texts(name, torch.bfloat16)

vectors, seconds = {}, {name: [] for name in ladder}
for turn in range(3):  # in alternation: a slow moment of the machine hits all of them alike
    for name, step in ladder.items():
        if turn and name == "all to 128":  # once is long enough
            continue
        started = time.perf_counter()
        vectors[name] = step(name)
        seconds[name].append(time.perf_counter() - started)

rate = {name: N / statistics.median(found) for name, found in seconds.items()}
first = next(iter(ladder))
print(f"{'':22}{'tokens':>8}{'wasted':>9}{'sentences/s':>13}{'factor':>8}{'difference':>12}")
for name, found in vectors.items():
    waste, distance = 1 - sum(lengths) / tokens[name], largest_difference(found, vectors[first])
    print(f"{name:22}{tokens[name]:8,}{waste:9.1%}{rate[name]:13.0f}{rate[name] / rate[first]:8.1f}{distance:12.1e}")

# %% [markdown]
# The times are those of your machine, a few seconds long, and will be others tomorrow; how many tokens were computed
# is a matter of arithmetic. `python -m tests.benchmarks.ladder` measures with more care.

# %%
assert tokens["all to 128"] == 128 * N, "every sentence is 128 tokens long, whatever it says"
assert tokens["to the longest of 32"] < tokens["all to 128"] / 3, "most of the naive way is pads"
assert tokens["sorted by length"] < 0.8 * tokens["to the longest of 32"], "neighbours of like length: fewer pads"
assert tokens["one length, no mask"] == sum(lengths), "none"
for name in ("to the longest of 32", "sorted by length", "one length, no mask", "side by side"):
    assert largest_difference(vectors[name], vectors["all to 128"]) < 2e-6, f"{name}: the same vectors"

# %% [markdown]
# bfloat16 keeps 8 bits of each number's precision, float32 keeps 24. That is a rounding in the third digit in every
# product. Is the vector still good for anything?

# %%
if "bfloat16" in vectors:
    cosines = (vectors["bfloat16"] * vectors["side by side"]).sum(1)
    scores = [pair.score for pair in pairs]
    spearman = {}
    for name in ("side by side", "bfloat16"):
        u, v = vectors[name].chunk(2)
        spearman[name] = 100 * metrics.spearman((u * v).sum(1).numpy(), scores)
    print(f"least cosine with the float32 vector: {cosines.min():.5f}")
    print(f"Spearman {spearman['side by side']:.2f} in float32, {spearman['bfloat16']:.2f} in bfloat16")
    assert cosines.min() > 0.999, "a twentieth of a degree is lost, or two"
    assert abs(spearman["bfloat16"] - spearman["side by side"]) < 0.5, "the order of the pairs hardly changes"
    assert largest_difference(vectors["bfloat16"], vectors["side by side"]) > 2e-5, "but as parity it is a failure"

# %% [markdown]
# `encode` of the book is the third rung. `minisbert.SentenceEncoder` has the top of this ladder, with the tokenizer
# before it and each text computed once; all the rest it inherits from the book.

# %%
fast_encoder = minisbert.SentenceEncoder.load("all-MiniLM-L6-v2")
result = torch.from_numpy(fast_encoder.encode(texts))
again = fast_encoder.encode([texts[0]] * 500)
assert isinstance(fast_encoder, SentenceEncoder), "a subclass"
assert largest_difference(result, vectors["side by side"]) < 2e-6, "the same vectors"
assert (again == again[0]).all(), "500 times the same text is one text"

# %% [markdown]
# ## The figure
#
# ![Sentences a second and tokens computed, step by step](figures/13_speed.png)


# %%
def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained", sharey=True)
    names = list(ladder)
    bars = left.barh(names, [rate[name] for name in names], color="#3b7ab8")
    left.bar_label(bars, fmt="%.0f", padding=3)
    left.margins(x=0.15)
    left.set(title="Sentences a second, on this machine")
    left.invert_yaxis()
    right.barh(names, [sum(lengths)] * len(names), color="#1f4e79", label="real tokens")
    pads = [tokens[name] - sum(lengths) for name in names]
    right.barh(names, pads, left=sum(lengths), color="#d9d9d9", label="pads")
    right.set(title="Tokens computed")
    right.legend(frameon=False, loc="lower right")
    return drawn


figure("13_speed", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** A batch of one text has no pads at all. Is one text at a time the fastest, then?

# %%
for budget in (1, 256, 2048):
    started = time.perf_counter()
    found = packed_texts(f"budget {budget}", batch_tokens=budget)
    took = time.perf_counter() - started
    print(f"at most {budget:5,} tokens: {len(side_by_side(budget)):4} batches, {N / took:6.0f} sentences/s")
    assert tokens[f"budget {budget}"] == sum(lengths), "the same tokens in all of them"
    assert largest_difference(found, vectors["side by side"]) < 2e-6, "and the same vectors"

# %% [markdown]
# As a rule it is not: each call has a fixed cost, and a matrix of a dozen rows keeps neither the cores nor the caches
# busy. Far too large a batch is slow as well, when its intermediate results no longer fit the cache.
#
# **2.** Training may not sort the whole file: batches must change from epoch to epoch. `length_grouped_batches` sorts
# within windows of a shuffled file. What share of the tokens are pads, with windows of 1, 5 and 50 batches of 32?

# %%
train = load_scored_pairs("stsb", "train")[:2000]
of_pairs = [max(map(len, encoder.tokenizer.encode([pair.sentence1, pair.sentence2]).ids)) for pair in train]


def pads(batches):
    """The share of pads in an epoch of these batches."""
    computed = sum(len(rows) * max(of_pairs[row] for row in rows) for rows in batches)
    return 1 - sum(of_pairs[row] for rows in batches for row in rows) / computed


shares = {}
for window in (1, 5, 50):
    shares[window] = pads(length_grouped_batches(of_pairs, 32, torch.Generator().manual_seed(0), window))
    print(f"window {window:2}: {shares[window]:.1%} pads")
assert shares[1] > 0.4, "a window of one batch sorts nothing"
assert shares[50] < 0.1, "that is what train.py does"

# %% [markdown]
# **3.** Does a sentence's vector depend on which others are in its batch?

# %%
alone = torch.cat([encoder(torch.tensor([ids[row]])).detach() for row in range(3)])
print(f"{largest_difference(alone, vectors['all to 128'][:3]):.1e}")
assert largest_difference(alone, vectors["all to 128"][:3]) < 2e-6, "no, but for the rounding of sums in another order"

# %% [markdown]
# ## Break it
#
# **A fast path can hide a bug.** Two mistakes about pads, in the naive way and in batches of one length.

# %%
for name in ("no attention mask", "mean over pads"):
    changes = {}
    with planted(MISTAKES[name]):
        for step in ("to the longest of 32", "one length, no mask"):
            changes[step] = largest_difference(ladder[step](step), vectors[step])
            print(f"{name:20} {step:22} largest change {changes[step]:.1e}")
    assert changes["to the longest of 32"] > 0.01, "wrong if there are pads"
    assert changes["one length, no mask"] < 2e-6, "and invisible if there are none: test with ragged batches"

# %% [markdown]
# **A second copy can drift from the first.** `FusedBert` computes attention on its own: a mistake in the book does not
# show in it, nor the other way round. The package does not compare the two while it runs; production code knows nothing
# of tests, or of you. Plant the same mistake on each side, and let the numbers tell.


# %%
def no_scale(query, key, value):
    return (query @ key.mT).softmax(-1) @ value


def distances():
    """How far the vectors of 20 texts are from the right ones: the book's, and those of its fast twin."""
    both = (torch.as_tensor(each.encode(texts[:20])) for each in (encoder, fast_encoder))
    return [largest_difference(found, vectors["side by side"][:20]) for found in both]


drifted = Mistake("no scale in the fast path", "attention there forgets the scale", fused, "attention", no_scale)
apart = {"right": distances()}
for name, mistake in (("wrong in the book", MISTAKES["no 1/sqrt(K)"]), ("wrong in the fast path", drifted)):
    with planted(mistake):
        apart[name] = distances()
for name, (book, fast) in apart.items():
    print(f"{name:24} the book changes by {book:.1e}, its fast twin by {fast:.1e}")
assert max(apart["right"]) < 2e-6, "one model, twice"
assert apart["wrong in the book"][0] > 0.01, "the book shows the mistake"
assert apart["wrong in the book"][1] < 2e-6, "the fused encoder goes on as before"
assert apart["wrong in the fast path"][0] < 2e-6 < 0.01 < apart["wrong in the fast path"][1], "and the reverse"

# %% [markdown]
# Hence two rules. Tests compare the fast path with the book (`tests/test_fused.py`), so drift on either side is seen.
# And what you write yourself is judged through the book (lesson 15): the fast path would not call it once.
#
# **Sorted, and not put back.** The rows come out longest first. Forget to undo that, and you have the right vectors in
# the wrong places, and no shape, no norm and no mean will tell.

# %%
longest_first = [row for rows in of_one_length() for row in rows]
misplaced = vectors["side by side"][longest_first]
found = {}
for name, each in (("put back", vectors["side by side"]), ("not put back", misplaced)):
    found[name] = 100 * metrics.spearman((each[: N // 2] * each[N // 2 :]).sum(1).numpy(), [p.score for p in pairs])
    print(f"{name:14} Spearman {found[name]:6.2f}")
assert found["put back"] > 75, "as it should be on these pairs"
assert abs(found["not put back"]) < 40, "nothing is left of it"

# %% [markdown]
# **Batches.** The known mistakes in `pad_batch`, by what they do to the vectors of two sentences, a short and a long
# one; and in `length_grouped_batches`, by what they do to an epoch of 2,000 pairs.

# %%
two = [lengths.index(min(lengths)), lengths.index(max(lengths))]
changes = {}
for name in ("mask by the pad's id", "pads in front", "mask the wrong way round"):
    with planted(MISTAKES[name]):
        batch, mask = tokenizer.pad_batch([ids[row] for row in two], encoder.tokenizer.pad_id)
    try:
        with torch.no_grad():
            changes[name] = largest_difference(encoder(batch, mask), vectors["side by side"][two])
        print(f"{name:26} largest change {changes[name]:.1e}")
    except ValueError as error:
        changes[name] = str(error)
        print(f"{name:26} refused: {error}")
assert changes["mask by the pad's id"] < 2e-6, "right for as long as no text holds the pad's own token"
assert changes["pads in front"] > 1e-2, "the words of the short one have moved to other positions"
assert "no real token" in changes["mask the wrong way round"], "the longest row would be nothing but pads"


def epoch():
    """Share of pads, rows seen, mean length in the first and in the last tenth of the batches."""
    batches = data.length_grouped_batches(of_pairs, 32, torch.Generator().manual_seed(0))
    tenth = len(batches) // 10
    ends = [[of_pairs[row] for rows in part for row in rows] for part in (batches[:tenth], batches[-tenth:])]
    return pads(batches), sum(map(len, batches)), *map(statistics.mean, ends)


right = epoch()
print(f"{'the right code':26} pads {right[0]:.1%}, rows {right[1]}, mean length {right[2]:.0f} .. {right[3]:.0f}")
epochs = {}
for name in ("not grouped by length", "short batches first", "last batch dropped"):
    with planted(MISTAKES[name]):
        share, rows, begin, end = epochs[name] = epoch()
    print(f"{name:26} pads {share:.1%}, rows {rows}, mean length {begin:.0f} .. {end:.0f}")
assert epochs["not grouped by length"][0] > 4 * right[0], "nothing wrong, only slow"
assert epochs["short batches first"][3] > 2 * epochs["short batches first"][2], "the last thing learned is long"
assert epochs["last batch dropped"][1] == 2000 // 32 * 32, "sixteen pairs are never seen, in this epoch or in any"

# %% [markdown]
# ## Exercises
#
# 1. `torch.set_num_threads(1)`, then 2, then as many as there are: which steps of the ladder gain, which do not?
# 2. Encode ten copies of the file. Which steps become faster for a sentence, and why?
# 3. At which T does attention cost as much as the dense layers? Work it out from the formula, then look at the time.
# 4. A cache of vectors by text, kept on disk: what must its key hold? (`minisbert/run/index.py` has an answer.)
# 5. Graded: rows to a rectangle, batches of like length: `python -m lessons.check start 13`, `run 13`, `hint 13`.
#
# ## Sources
#
# - Vaswani et al. 2017, *Attention is all you need*, table 1: what a layer costs.
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 7: batches of like length, and what they gain.
# - Micikevicius et al. 2018, *Mixed precision training*, section 3. Kalamkar et al. 2019, *A study of BFLOAT16 for
#   deep learning training*.
# - Dao et al. 2022, *FlashAttention*: attention in tiles, for long texts.
