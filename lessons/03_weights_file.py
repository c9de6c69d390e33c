# %% [markdown]
# # Lesson 03: the weights file
#
# Steps through `minisbert/core/weights.py`. Reading 40, chapter 30, pieces 20, exercises 70 minutes. You will read a
# safetensors file with `open`, `json`, `struct` and one call of NumPy, account for each of its 22,713,216 parameters,
# and see which errors a strict loader finds and which one it cannot find.

# %%
import numpy as np
import torch
from course import TINY, chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# Somebody trained a model and gives you 90,868,376 bytes. Which byte is which weight of which layer? And how would you
# know that none is missing, none is left over, and none has landed in the wrong place?

# %%
from minisbert.system.assets import ensure

folder = ensure("all-MiniLM-L6-v2")
path = folder / "model.safetensors"
print(f"{path.stat().st_size:,} bytes")

# %% [markdown]
# ![Map of the model: weights](drawings/map_03.svg)
#
# ## The formula
#
# A **safetensors** file has three parts:
#
#     8 bytes          n, the length of the header: an unsigned integer, little-endian
#     n bytes          the header: JSON, for each tensor its dtype, its shape, and where it begins and ends
#     the rest         the numbers, one tensor after the other, row by row
#
# A tensor (R, C) of float32 at `begin` has its element (r, c) at byte 8 + n + begin + 4 * (r * C + c). *Little-endian*
# means that the lowest byte comes first; in Python's formats that is `<`, and `Q` is an unsigned integer of 8 bytes,
# `f4` a float of 4.
#
# ![A safetensors file](drawings/safetensors.svg)

# %%
import json
import struct

with open(path, "rb") as file:
    (n,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(n))
metadata = header.pop("__metadata__")
print(f"header of {n:,} bytes: {len(header)} tensors, and metadata {metadata}")
for name in list(header)[:5]:
    print(f"{name:55} {header[name]}")
for name in header:
    assert header[name]["dtype"] in ("F32", "I64"), "float32, or integers"

# %% [markdown]
# ## The real function
#
# Three rows of the word table, those of [CLS] hello [SEP], first by arithmetic on bytes, then through `load_bert`: it
# makes an encoder and fills it with what `core/weights.py` reads.

# %%
from minisbert.core.encoder import load_bert

about = header["embeddings.word_embeddings.weight"]
width = about["shape"][1]  # D
by_hand = []
with open(path, "rb") as file:
    for row in (101, 7592, 102):
        file.seek(8 + n + about["data_offsets"][0] + 4 * row * width)
        by_hand.append(np.frombuffer(file.read(4 * width), dtype="<f4"))
by_hand = np.stack(by_hand)  # (3, D)

bert = load_bert(folder)
print(by_hand[:, :4])
loaded = bert.embeddings.word.weight[[101, 7592, 102]].detach()  # without a gradient
print(loaded[:, :4])
assert largest_difference(by_hand, loaded) == 0, "the same bits"

# %% [markdown]
# The loader needs a name table, because our modules have other names than the file. `core/weights.py` has it for BERT,
# written out in four parts. They map our modules' names to the file's, and `tensor_names` makes names of tensors:
#
#     TABLES      a weight each
#     NORMS       a weight and a bias
#     IN_LAYER    a weight and a bias, in each layer: layers.0.attention.query, encoder.layer.0.attention.self.query
#     POOLER      a weight and a bias, only if asked for
#
# `IN_LAYER` is the same for every layer, so its names have no front: one entry is "attention.query" with
# "attention.self.query". For layer i, `layers.i.` goes before the first and `encoder.layer.i.` before the second.
#
# Lessons 04 to 07 explain the modules: MiniLM has six layers, and each layer an attention with a query, among others. The
# names on the left will be *your* names: `self.query` in a class `Attention` of your own is `attention.query` in this
# table, and under any other name it would find nothing in the file.
#
# **Write it:** `tensor_names` (`python -m lessons.check start 03`, then `run 03`). The stub imports the four parts.

# %%
from minisbert.core import weights

names = weights.tensor_names(layers=6, pooler=True)
for ours in (
    "embeddings.word.weight",
    "layers.0.attention.query.weight",
    "layers.0.feed_forward_norm.bias",
):
    print(f"{ours:35} {names[ours]}")
assert {*names} == {name for name, _ in bert.named_parameters()}, (
    "each of our parameters is in the table"
)
left_over = {*header} - {*names.values()}
print("in the file, but not in the table:", left_over or "nothing")
assert all(weights.is_skipped(name) for name in left_over), "known by name"

# %% [markdown]
# The four parts and the book's function. Which modules have no bias?

# %%
chapter("weights", "top", "tensor_names")

# %% [markdown]
# Now the count, by the names in the header. Lesson 07 computes these sizes from V, D, L, F and P.


# %%
import math


def part(name):
    """The part of the model that a tensor belongs to."""
    if name.startswith("encoder.layer."):
        return f"layer {name.split('.')[2]}"
    return name.split(".")[0]


counts = {}
for name, entry in header.items():
    if entry["dtype"] == "F32":  # what is learned; the other tensor numbers the places
        counts[part(name)] = counts.get(part(name), 0) + math.prod(entry["shape"])
for name, count in counts.items():
    print(f"{name:12} {count:>12,}  {count / sum(counts.values()):6.1%}")
print(f"{'all':12} {sum(counts.values()):>12,}")
in_torch = sum(parameter.numel() for parameter in bert.parameters())
assert sum(counts.values()) == in_torch == 22_713_216, "as torch counts"

# %% [markdown]
# **Exercise 1.** Read the last row of the position table by hand, byte by byte, as above.

# %% [markdown]
# ## The figure
#
# ![Where the parameters of MiniLM are](figures/03_weights_file.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(8.5, 1.6), layout="constrained")
    left = 0.0
    shades = {"embeddings": "#1f4e79", "pooler": "#d0d0d0"}
    for number, (name, count) in enumerate(counts.items()):
        shade = shades.get(name, ("#8bb8de", "#3b7ab8")[number % 2])
        axes.barh(0, count / 1e6, left=left, color=shade)
        ink = "white" if shade in ("#1f4e79", "#3b7ab8") else "black"
        middle = left + count / 2e6
        if count > 1e6:
            words = f"{name}\n{count / 1e6:.1f}"
            axes.text(middle, 0, words, ha="center", va="center", color=ink, fontsize=8)
        left += count / 1e6
    axes.set(yticks=[], xlabel="million parameters", title="MiniLM's parameters")
    return drawn


figure("03_weights_file", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** What share of MiniLM's parameters is the word table alone: a tenth, a quarter, a half? And how many of its
# rows does a sentence of 15 tokens read?

# %%
guess = predict(
    "03.1",
    "The word table's share of MiniLM's parameters?",
    ["a tenth", "a quarter", "a half"],
)

# %%
share = 30522 * 384 / sum(counts.values())
print(f"{share:.1%}; a sentence of 15 tokens reads at most 15 of 30,522 rows")
assert 0.51 < share < 0.52, "half of the file is a dictionary"
guess.answer("a half")

# %% [markdown]
# **2.** Which file size follows from the count alone?

# %%
guess = predict("03.2", "How large is the file?", ["45 MB", "91 MB", "182 MB"])

# %%
offsets = [entry["data_offsets"] for entry in header.values()]
size = 8 + n + sum(end - begin for begin, end in offsets)
print(f"{size:,} bytes; of these {4 * sum(counts.values()):,} are parameters")
assert size == path.stat().st_size == 90_868_376, "every byte is accounted for"
guess.answer("91 MB")

# %% [markdown]
# **Exercise 2.** How many bytes would the file have in float16, two bytes a number? Which numbers could be lost?

# %% [markdown]
# ## Break it
#
# A **checkpoint** is a model on disk: its weights, and the settings to rebuild it. We damage copies of the tiny one in
# `weights/tiny` (2 layers, width 24, all parameters random) and load them.


# %%
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from minisbert.core import InputError


def load_changed(change):
    """``load_bert`` of a copy whose tensors ``change`` has altered."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        copy = Path(place) / "copy"
        shutil.copytree(TINY, copy)
        tensors = load_file(copy / "model.safetensors")
        change(tensors)
        save_file(tensors, copy / "model.safetensors")
        return load_bert(copy)


def forget(tensors):
    del tensors["encoder.layer.1.output.LayerNorm.bias"]


def misspell(tensors):
    tensors["encoder.layer.0.attention.self.qery.bias"] = tensors.pop(
        "encoder.layer.0.attention.self.query.bias"
    )


for change in (forget, misspell):
    try:
        load_changed(change)
    except InputError as error:
        print(str(error).partition(":\n")[2])
    else:
        raise AssertionError("a strict loader must refuse this file")

# %% [markdown]
# A loader that is not strict would leave the missing bias as it was initialised: at zero. The model would run without
# complaint and be wrong, as if somebody had forgotten beta, the bias of LayerNorm (lesson 04).
#
# And now the mistake that no loader can find. Query and key (lesson 05) have the same shape. Swap them in the file:


# %%
from lessons.mistakes import MISTAKES, planted


def swap(tensors):
    for i in range(2):
        for part in ("weight", "bias"):
            key, query = (
                f"encoder.layer.{i}.attention.self.{name}.{part}"
                for name in ("key", "query")
            )
            tensors[key], tensors[query] = tensors[query], tensors[key]


ids = torch.tensor([[2, 57, 58, 59, 3]])  # (1, T)
tiny = load_bert(TINY)
with torch.no_grad():
    right = tiny(ids)  # (1, T, D)
    swapped = load_changed(swap)(ids)
    off = largest_difference(right, swapped)
    print(f"swapped in the file: no error, largest difference {off:.2f}")
    assert off > 0.1, "loaded without complaint, and wrong"
    for name in ("q and k swapped", "no beta"):
        with planted(MISTAKES[name]):
            wrong = tiny(ids)
        off = largest_difference(right, wrong)
        apart = largest_difference(swapped, wrong)
        print(f"{name}: {off:.2f} from the right numbers, {apart:.1e} from the file's")
        assert (apart < 1e-5) == (name == "q and k swapped"), "one of them is the swap"

# %% [markdown]
# What refused the first two is `fill`, 32 lines. It collects all problems before it raises: what would you see of a file
# with another prefix if it raised at the first? `load_bert` calls it, and looks for the pooler among the names in the
# file: what would happen without looking? `reading` stands around the parsing of files. Which of the errors that it
# names has your own code left to the traceback?

# %%
chapter("weights", "fill")
chapter("encoder", "load_bert")
chapter("checks", "InputError", "reading")

# %% [markdown]
# (How the config and the other files of a folder are read, `python -m lessons.appendix` prints. Nothing later builds on
# it. Which two names in one file could be the same to `canonical`, and why is that an error?)
#
# The numbers of the swapped file are those of the mistake "q and k swapped", up to rounding in float32. So a wrong
# result can be recognised, like a fingerprint. The grader does that for you.
#
# **Exercise 3.** `minisbert/architectures/distilbert.py` has a table for DistilBERT. Which of BERT's tensors does it
# lack?

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 03 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: the name table of a model: `python -m lessons.check start 03`, then `run 03`; `hint 03` when
# you are stuck.
#
# ## Sources
#
# - The safetensors format: the README of huggingface/safetensors, section "Format".
# - Devlin et al. 2019, *BERT*, section 3: L, H and A of the base and the large model (there H is our D, A our H).
# - Wang et al. 2020, *MiniLM*, section 3: what its student, 12 layers of width 384, was taught. The 6 layers in this
#   file are every second one of those (model card of nreimers/MiniLM-L6-H384-uncased), then trained on pairs.
#
# ## What you have now
#
# `python -m lessons.check mine 03` loads MiniLM by your names.
#
# You know every number in the file, and which part of the model it belongs to. Next: [embeddings and
# LayerNorm](04_embeddings.py).
