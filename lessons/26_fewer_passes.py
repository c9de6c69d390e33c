# %% [markdown]
# # Lesson 26: the same formulas, faster: fused operations, the compiler, fewer bits
#
# Steps through `minisbert/core/bert.py`, `minisbert/backends/package.py`, `minisbert/backends/graphs.py`,
# `minisbert/system/devices.py`. Reading 50, chapter 10, exercises 80 minutes. You will count how often a formula goes
# through memory, read the loop that PyTorch's compiler makes of your LayerNorm, multiply in 16 and in 8 bits, and
# climb a ladder of steps to the same vectors, or nearly the same ones.

# %%
import torch
from course import TINY, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Lesson 25 no longer computes pads. What is left must be computed. Must it take so long?
#
# ## The formula
#
# A core waits for one of two things, its arithmetic or its memory. An operation on n numbers of b bytes that passes
# them p times through memory, reading or writing, and computes a operations with each, takes no less than
#
#     seconds = max(n a / operations per second,  n p b / bytes per second)
#
# There are three ways down from here: fewer passes p, by doing more in one loop (**fused** operations, a compiler);
# fewer bytes b (**bfloat16**, or the int8 of lesson 17); and more operations per second, which the same CPU has for
# the smaller numbers.
#
# LayerNorm on 2,048 tokens of MiniLM, p = 2 if all is done in one loop: 2,048 x 384 numbers of 4 bytes, read once and
# written once, are 6.3 MB. At 20 GB a second that is 0.3 ms, whatever is computed in between.

# %%
from dataclasses import replace

import minisbert
from minisbert.checkpoints.layout import find_model
from minisbert.core.encoder import SentenceEncoder
from minisbert.data.rows import load_scored_pairs
from minisbert.models.batching import tokenize

encoder = SentenceEncoder.load(find_model("all-MiniLM-L6-v2"))  # the book's
fast_encoder = minisbert.SentenceEncoder.load("all-MiniLM-L6-v2")
config = encoder.bert.config
D, F = config.hidden_size, config.intermediate_size
pairs = load_scored_pairs("stsb", "test")[::20]
texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
scores = [pair.score for pair in pairs]
tokens = tokenize(fast_encoder.tokenizer, texts)
N = len(texts)

# %%
assert 2048 * D * 4 * 2 == 6_291_456, "bytes: read once, written once"

# %% [markdown]
# **Exercise 1.** By the formula, for a loop that reads and writes each number once (p = 2): how many operations must a
# core do with each number of 4 bytes before memory no longer matters, at 100 billion operations and 10 GB a second?

# %% [markdown]
# ## The real function
#
# **Fused operations.** The formulas of `bert.py` go over the numbers many times: `layer_norm` takes a mean, subtracts
# it, squares, takes a mean again, multiplies twice and adds, and each step reads from memory what the last one
# wrote there. For each of the three formulas PyTorch has one operation that does all of it. `bert.FUSED` chooses;
# outside of lessons it is True. (`fused(choice, function, ...)` of `lessons/compiled.py` is a call with that choice,
# and `milliseconds(function, ...)` the median of eleven calls.) Is it the same formula? In float64:


# %%
from lessons.compiled import fused
from minisbert.core import bert
from minisbert.core.tokenizer import pad_batch
from minisbert.models.transformer_encoder import evaluating

tiny = SentenceEncoder.load(TINY).double()
rows = [row[:20] for row in tiny.tokenizer.encode(texts[:8]).ids]
batch, mask = pad_batch(rows, tiny.tokenizer.pad_id)
with evaluating(tiny):
    both = [fused(choice, tiny.bert, batch, mask)[mask] for choice in (False, True)]
print(f"hidden states written out and fused differ by {largest_difference(*both):.1e}")
assert largest_difference(*both) < 1e-10, "the same numbers"


# %%
from torch.nn import functional

from lessons.compiled import milliseconds
from minisbert.models.batching import same_text


def fused_layer_norm(x, weight, bias, eps):
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


torch.manual_seed(0)
x, wide = (torch.randn(2048, width) for width in (D, F))  # a batch of 2,048 tokens
query, key, value = torch.randn(3, 32, config.num_attention_heads, 64, 32)
mask = same_text(torch.arange(64).expand(32, 64) // 16)
norm = encoder.bert.layers[0].attention_norm
affine = norm.weight, norm.bias, norm.eps
attend = functional.scaled_dot_product_attention
formulas = {
    "gelu": (bert.gelu, functional.gelu, [wide]),
    "layer_norm": (bert.layer_norm, fused_layer_norm, [x, *affine]),
    "attention": (bert.attention, attend, [query, key, value, mask]),
}
with torch.inference_mode():
    for name, (formula, operation, inputs) in formulas.items():
        slow = milliseconds(formula, *inputs)
        quick = milliseconds(operation, *inputs)
        print(f"{name:12} written out {slow:5.2f} ms, fused {quick:5.2f} ms", end=", ")
        print(f"{slow / quick:4.1f} times as fast")

# %% [markdown]
# **The compiler** does the same with formulas that nobody has fused by hand, yours for example. It first runs the
# Python code once, with tensors that have a shape and no numbers, and lists the operations. The list goes to a
# *backend*, the part that makes code of it. Ours keeps the list and compiles nothing:

# %%
operations, sizes = [], []


def note(graph, inputs):
    """Keep the name of each operation, and how many numbers it reads and writes."""
    for node in graph.graph.nodes:
        if node.op.startswith("call_"):
            operations.append(node.name)
            touched = (*node.all_input_nodes, node)
            sizes.extend(each.meta["example_value"].numel() for each in touched)
    return graph


with torch.no_grad():
    torch.compile(norm, backend=note)(x)
print(len(operations), "operations:", ", ".join(operations))
assert len(operations) == 9, "seven over all T D numbers, two only over T"

# %% [markdown]
# Then it writes C++ for it. `compile_package` of `backends/package.py` does that ahead of time, into a file that needs
# no compiler any more; the source is inside. (About 20 seconds, most of it g++.)

# %%
from lessons.compiled import compiled, shortened

ways = {"written out": norm, "fused": lambda x: fused(True, norm, x)}
function, source = compiled(norm, x)
if function:
    ways["compiled"] = function
    print(shortened(source))
    assert source.count('extern "C"') == 1, "nine operations have become one function"
    assert largest_difference(function(x)[0], norm(x)) < 1e-5, "the same numbers"
else:
    print(source)

# %% [markdown]
# One loop over the tokens, `x0`, is shared out among the cores. In it are three short ones over the D numbers of a
# token, 16 at a time if the CPU has registers of 512 bits: the sum, the sum of squares, the result. A token's 1,536
# bytes stay in the nearest cache between them, so memory is read once and written once. (`384` is in the code, and eps:
# the compiler knows your model.) For a LayerNorm alone the fused operation does the same:

# %%
with torch.inference_mode():
    for name, call in ways.items():
        print(f"{name:12} {milliseconds(call, x):.2f} ms")

# %% [markdown]
# The gain comes from a whole encoder: the compiler also fuses across the formulas, calls no Python in between, and lays
# out each weight once as the CPU's matrix product likes it. `minisbert compile all-MiniLM-L6-v2` takes half a
# minute or more, and the ladder below uses it.
#
# **Exercise 2.** Read the compiled GELU as you have read LayerNorm: write one with `torch.erf`, compile it, count the
# loops.

# %% [markdown]
# ## Fewer bits
#
# **bfloat16** is float32 without its last 16 bits: the same range, and 8 binary digits of precision where float32 has
# 24. So each number has two to three right decimal digits. Is the vector still good for anything? (`packed(model,
# tokens)` of `lessons/compiled.py` encodes as lesson 25 did, several texts in one row.)


# %%
from lessons.compiled import packed
from minisbert.core import InputError, metrics


def spearman(vectors):
    u, v = vectors.chunk(2)
    return 100 * metrics.spearman((u * v).sum(1).numpy(), scores)


third = torch.tensor(1 / 3)
print(f"1/3 is {third.bfloat16().item()} in bfloat16")
assert third.bfloat16().item() == 171 / 512, "0.010101011: eight digits from the 1 on"

right = torch.from_numpy(encoder.encode(texts))
rounded = fused(True, packed, fast_encoder, replace(tokens, dtype=torch.bfloat16))
points = [spearman(right), spearman(rounded)]
cosine = (rounded * right).sum(1).min()
print(f"Spearman {points[0]:.2f} and {points[1]:.2f}; lowest cosine {cosine:.5f}")
assert cosine > 0.9994, "turned by a degree or two at most"
assert abs(points[1] - points[0]) < 0.5, "the order of the pairs hardly changes"
assert largest_difference(rounded, right) > 2e-5, "but these are other numbers"

# %% [markdown]
# Only products are rounded like that. The sums inside a product, softmax, LayerNorm and the pooling stay in float32: a
# sum of 384 numbers in 8 digits would lose the small ones. And it pays only where the CPU multiplies bfloat16 in
# hardware; elsewhere it is emulated, many times slower, and `choose_dtype` refuses it:

# %%
from minisbert.system.devices import choose_dtype

dtype, reason = choose_dtype("auto", torch.device("cpu"))
print(f"bfloat16 here: {'yes' if dtype == torch.bfloat16 else 'no'}, {reason}")

# %% [markdown]
# **int8.** Eight bits have no room for a range and for digits. So the layers multiply integers, and the ranges are kept
# apart:
#
#     x      =  step * c + middle       c from -128 to 127; step and middle for each token, from its own range
#     w      =  scale * codes           codes from -127 to 127; a scale for each column of the output
#     x . w  =  step * scale * (c . codes)  +  middle * scale * sum(codes)
#
# All the rounding is in c and codes: their product is exact. Many CPUs have an instruction that multiplies and adds
# four pairs of such integers where it would multiply one pair of float32.

# %%
import copy
import inspect

from minisbert.backends import graphs as int8

print(inspect.getsource(int8.quantized_linear))
row, integers = torch.tensor([[-1.0, 0.0, 1.55]]), torch.tensor([[1, 2, 3]]).char()
y = int8.quantized_linear(row, integers, scale=torch.tensor([0.5]))
# step 0.01, c = [-128, -28, 127], middle 0.28: 0.01 * 0.5 * 197 + 0.28 * 0.5 * 6
print(y)
assert abs(y - 1.825) < 1e-6, "nothing was rounded here, so this is x . w"

few = texts[:100]
in_int8 = copy.deepcopy(encoder)
int8.quantize_layers(in_int8.bert)
cosines = (in_int8.encode(few) * encoder.encode(few)).sum(1)
print(f"cosine to float32: mean {cosines.mean():.4f}, lowest {cosines.min():.4f}")
assert cosines.mean() > 0.995, "36 layers of integers, and the vectors hardly turn"

# %% [markdown]
# That saves time only where the compiler joins the rounding to what stands before it:
# `minisbert compile all-MiniLM-L6-v2 --dtype int8`.
#
# **Exercise 3.** `int8.quantize_layers` one layer at a time, in a copy of the encoder for each: which one costs the
# most cosine?

# %% [markdown]
# ## The ladder
#
# Each step changes one thing. The last ones run if this machine has them: bfloat16, and a package in the cache folder
# (`minisbert compile all-MiniLM-L6-v2`, with `--dtype bfloat16` or `--dtype int8`).

# %%
import statistics
import time

ladder = {
    "written out": (False, fast_encoder, "float32"),
    "fused": (True, fast_encoder, "float32"),
}
if dtype == torch.bfloat16:
    ladder["bfloat16"] = (True, fast_encoder, "bfloat16")
for form in ("float32", "bfloat16", "int8"):
    try:
        model = minisbert.load("all-MiniLM-L6-v2", compiled="auto", dtype=form)
        ladder[f"compiled, {form}"] = (True, model, form)
    except InputError as error:
        print(f"compiled, {form}: {error}")

vectors, seconds = {}, {name: [] for name in ladder}
for turn in range(4):  # in alternation: a slow moment of the machine hits all alike
    for name, (choice, model, form) in ladder.items():
        started = time.perf_counter()
        vectors[name] = fused(choice, packed, model, tokens, form)
        if turn:  # the first is to warm up
            seconds[name].append(time.perf_counter() - started)

# %%
rate = {name: N / statistics.median(found) for name, found in seconds.items()}
print(f"{'':20}{'sentences/s':>13}{'factor':>8}{'difference':>12}{'Spearman':>10}")
for name, found in vectors.items():
    factor, apart = rate[name] / rate["written out"], largest_difference(found, right)
    print(f"{name:20}{rate[name]:13.0f}{factor:8.1f}{apart:12.1e}", end="")
    print(f"{spearman(found):10.2f}")
    assert spearman(found) > spearman(right) - 1, "no step costs a point"
for name in ("written out", "fused"):
    assert largest_difference(vectors[name], right) < 2e-6, f"{name}: the same vectors"

# %% [markdown]
# The times are those of your machine, and vary from run to run. `python -m benchmarks.ladder` measures with more care.
#
# **Exercise 4.** `torch.set_num_threads(1)`, then 2, then as many as there are: which steps of the ladder gain, which
# do not?
#
# ## The figure
#
# ![Sentences a second, step by step](figures/26_fewer_passes.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
    bars = axes.barh(list(ladder), [rate[name] for name in ladder], color="#3b7ab8")
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.margins(x=0.15)
    axes.set(title="Sentences a second, on this machine")
    axes.invert_yaxis()
    return drawn


figure("26_fewer_passes", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** The nine operations of LayerNorm, each by itself. How often do the T D numbers pass through memory, read or
# written?

# %%
guess = predict("26.1", "Passes of all T D numbers:", ["2", "7", "12"])

# %%
passes = sum(size == 2048 * D for size in sizes)
print(f"{passes} passes; one loop that does it all needs 2")
assert passes == 12, "each operation reads what the last one wrote"
guess.answer("12")

# %% [markdown]
# **2.** Rounding to bfloat16 costs Spearman next to nothing. Would it be a good dtype for the weights of a training
# run, which move by a ten-thousandth of themselves at each step?

# %%
guess = predict(
    "26.2",
    "A weight of 1.0 gets 1,000 times an update of 0.0001, in bfloat16. It is then ...",
    ["1.1", "about 1.05", "1.0"],
)

# %%
weight = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    weight += 0.0001
print(weight.item())
assert weight.item() == 1.0, "the next number after 1.0 is 1.0078: each sum rounds back"
guess.answer("1.0")

# %% [markdown]
# So training in bfloat16 keeps the weights and the optimizer in float32, and rounds only what enters a product.
#
# ## Break it
#
# A second encoder, written for speed, drifts away from the first. So there is only one: `minisbert.SentenceEncoder`
# runs the book's modules, and a mistake planted in the book shows in it as well, as long as the formula is what
# computes. A package is a copy of the code at one moment.

# %%
from lessons.mistakes import MISTAKES, planted

with planted(MISTAKES["no 1/sqrt(K)"]):
    found = {
        "the book": encoder.encode(texts[:20]),
        "encode": fast_encoder.encode(texts[:20]),
        "encode, FUSED": fused(True, fast_encoder.encode, texts[:20]),
    }
for name, vectors_with_it in found.items():
    change = largest_difference(vectors_with_it, right[:20])
    print(f"{name:14} changes by {change:.1e}")
    assert (change > 0.01) == (name != "encode, FUSED"), "PyTorch's formula is right"
apart = largest_difference(found["encode"], found["the book"])
assert apart < 2e-6, "the same mistake in both"
if function:
    before = norm(x)
    with planted(MISTAKES["LayerNorm over everything"]):
        live, frozen = norm(x), function(x)[0]
    print(f"a LayerNorm changes by {largest_difference(live, before):.1e}", end=", ")
    print(f"compiled by {largest_difference(frozen, before):.1e}")
    assert largest_difference(frozen, before) < 1e-5, "as it was when it was taken"

# %% [markdown]
# Three rules follow. What you write yourself runs everywhere (lesson 14 counts the calls), except in a package: that
# one has the hash of the code it was made from, and is refused after a change. Two results that agree prove nothing if
# they come from the same code, so tests compare with transformers. And a mistake *inside* a formula shows on one side
# of the switch only, so tests compare the two.
#
# ## Exercises
#
# Exercises 1 to 4 stand beside what they practise. `python -m lessons.check answer 26 1` gives a hint for the first,
# and asked again, the answer.
#
# No piece is graded here, so there is no `python -m lessons.check start 26`: what is new are ways to compute, and the
# formulas are those that you have written. `quiz 26` asks five questions.
#
# ## Sources
#
# - Williams, Waterman and Patterson 2009, *Roofline: an insightful visual performance model for multicore
#   architectures*: arithmetic or memory, whichever takes longer.
# - Micikevicius et al. 2018, *Mixed precision training*, section 3. Kalamkar et al. 2019, *A study of BFLOAT16 for
#   deep learning training*.
# - Dao et al. 2022, *FlashAttention*: attention in tiles, for long texts.
#
# ## What you have now
#
# You can tell what a fused operation, a compiler and fewer bits bring, and what they change. Next: [making it small:
# fewer layers](27_fewer_layers.py).
