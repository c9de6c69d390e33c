# %% [markdown]
# # Lesson 23: from nothing
#
# Steps through `minisbert/training/objectives/masked.py`, `minisbert/training/losses.py`,
# `minisbert/models/masked_language_model.py`. About 82 minutes. You
# will make an encoder that has never read a word, let it read, and find out what reading
# is good for.

# %% [markdown]
# ## The question
#
# Twenty-one lessons began with `load("all-MiniLM-L6-v2")`. Somebody has trained 22.7
# million numbers, you have studied what is done with them, and nobody has told you where
# they come from. So: no download. A vocabulary from text that is on your disk, an encoder
# whose weights are dice, two cores and some minutes. What can it do before it has read
# anything? What does it learn from text alone, without a single label? And is that what
# makes a good sentence vector?
#
# The answer to the last question is not the one that most people expect.
#
# ## The formula
#
# A **masked language model** (MLM) guesses hidden words. Choose 15 % of the words of a text
# (never [CLS], [SEP] or a pad). Of the chosen ones
#
#     80 %   become [MASK]
#     10 %   become some other word
#     10 %   stay
#
# and all of them are to be guessed: the last two because no text that you will ever
# encode has a [MASK] in it, and the model should look at its words too. The guess is a
# **logit** z for each of the V words of the vocabulary, from the token's hidden state h:
#
#     z  =  W LayerNorm( gelu( A h + a ) ) + b           W (V, D): the table of words again
#
#     loss  =  mean over the chosen words of   log( sum over v of exp z_v )  -  z_word
#
# which is lesson 10's softmax cross-entropy, with V classes. A model that knows nothing
# gives each word 1 / V: its loss is ln V. Nobody labels anything. The text has its own
# answers, and this is all of BERT's pre-training but for a second task that later models
# dropped (it had to say whether two sentences follow each other).
#
# ## The real function
#
# Four words, four draws of a die with values from 0 to 1, by hand:

# %%
import os

import numpy as np
import torch
from course import figure, predict

from minisbert.core import bert
from minisbert.system.devices import choose_dtype

bert.FUSED = True  # the same formulas, faster: lesson 25
torch.manual_seed(0)
torch.set_num_threads(min(torch.get_num_threads(), 2))
DTYPE, _ = choose_dtype("auto", torch.device("cpu"))  # bfloat16 where it is fast
SCALE = float(os.environ.get("LONG_FORM", "1"))  # 15: the long form

# %%
from minisbert.training.losses import mlm_loss
from minisbert.training.objectives.masked import mask_tokens

ids = torch.tensor([[5, 6, 7, 8]])
other = torch.tensor([[50, 60, 70, 80]])
die = torch.tensor([[0.11, 0.13, 0.14, 0.50]])
inputs, chosen = mask_tokens(ids, torch.ones_like(ids), 4, die, other)
print(inputs, chosen, sep="\n")
assert inputs.tolist() == [[4, 60, 7, 8]], "[MASK] is 4; another word; the word itself"
assert chosen.tolist() == [[True, True, True, False]], "below 0.15, so it is a question"
logits = torch.tensor([[0.0, 0.0, np.log(2)]], dtype=torch.float64)
sure, unsure = (mlm_loss(logits, torch.tensor([word])).item() for word in (2, 0))
print(sure, unsure)
assert abs(sure - np.log(2)) < 1e-12, "log(1 + 1 + 2) - log 2: half of the probability"
assert abs(unsure - np.log(4)) < 1e-12, "log 4 - 0: a quarter"

# %% [markdown]
# ## Text
#
# What every machine with this package has: the sentences of STS-B's training pairs (their
# scores stay in the drawer), and the docstrings of Python, NumPy and
# a part of PyTorch.

# %%
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

from lessons.search import docstrings
from minisbert.data.datasets import load_scored_pairs

pairs = {name: load_scored_pairs("stsb", name) for name in ("train", "dev")}
captions = list(dict.fromkeys(text for row in pairs["train"] for text in row.texts))
packages = [
    Path(find_spec(name).origin).parent
    for name in ("numpy", "torch.nn", "torch.distributed")
]
manuals = docstrings.read_sentences(get_path("stdlib"), *packages)
text = 3 * captions + manuals  # three times: there are three times as many docstrings
print(
    f"{len(captions):,} sentences about cats and guitars, {len(manuals):,} of manuals"
)
for some in (captions[7], manuals[7], manuals[-7]):
    print("   ", some)
assert len(manuals) > 20_000, "enough to learn from, and nothing was downloaded for it"

# %% [markdown]
# A vocabulary first. Its training starts with single characters and joins, again and
# again, the two pieces that stand side by side most often (byte pair encoding, which the
# library uses to train WordPiece vocabularies too). By hand, with four words: e s stands
# in 9 texts, in newest and widest, and nothing stands side by side more often.

# %%
from lessons.by_hand.vocabulary import learn_merges

joins = learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
print(joins)
assert joins == [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")], "9, 9, 7, 7 times"

# %% [markdown]
# Lesson 02 read such a vocabulary. This one is yours, and it shows what you read:

# %%
import time

from minisbert.training.objectives.masked import train_vocabulary

started = time.process_time()
tokenizer = train_vocabulary(text, 6000, max_length=64)
V = tokenizer.backend.get_vocab_size()
print(f"{V} pieces in {time.process_time() - started:.1f} s")
for some in (
    "A man is playing a guitar.",
    "The tensor is contiguous.",
    "photosynthesis",
):
    print("   ", tokenizer.tokens(tokenizer.encode([some]).ids[0])[1:-1])
assert V == 6000, "as many as we asked for"
assert "guitar" in tokenizer.backend.get_vocab(), "it has seen guitars"
assert "tensor" in tokenizer.backend.get_vocab(), "and tensors"
assert len(tokenizer.encode(["photosynthesis"]).ids[0]) > 5, "but no biology"

# %% [markdown]
# ## Before it has read anything

# %%
import copy

from minisbert.training.objectives.masked import new_model

model = new_model(tokenizer, layers=3, width=256)
untrained = copy.deepcopy(model)
count = sum(parameter.numel() for parameter in model.parameters())
print(f"{count:,} parameters, all random")
QUESTIONS = [
    "A man is playing a [MASK].",
    "Two dogs are [MASK] in the snow.",
    "The stock [MASK] fell sharply on Friday.",
    "Return a [MASK] of the array.",
    "The default value is [MASK].",
]


def show_guesses(model):
    """Three guesses for each question, with their probabilities."""
    for question in QUESTIONS:
        guesses = model.fill_mask(question, 3)
        shown = ", ".join(f"{word} {share:.3f}" for word, share in guesses)
        print(f"    {question:42} {shown}")
    return [model.fill_mask(question, 3)[0] for question in QUESTIONS]


before = show_guesses(model)
assert 3.5e6 < count < 4.5e6, "a sixth of MiniLM"
assert max(share for _, share in before) < 0.003, "no word is likely"

# %% [markdown]
# Two judges: STS-B's dev pairs, by Spearman's correlation, and a search. The search is
# lesson 17's: 200 names of the standard library ask for their docstrings among all.

# %%
from lessons.search.measure import ndcg_of_each
from minisbert.core.metrics import spearman
from minisbert.search.dense import top_k

entries = docstrings.read_entries()
documents = [entry.document for entry in entries]
splits = [docstrings.split_of(entry.module) for entry in entries]
test = [i for i, split in enumerate(splits) if split == "test"]
asked = np.array(test[:: max(1, len(test) // 200)][:200])
dev = [[row.texts[side] for row in pairs["dev"]] for side in (0, 1)]
scores = np.array([row.score for row in pairs["dev"]])
table = {}  # name -> STS-B dev Spearman and nDCG@10, as they are and whitened; CPU seconds


def whitening(vectors):
    """What centres vectors (N, D) and makes all their principal axes equally long."""
    mean = vectors.mean(axis=0)
    _, lengths, axes = np.linalg.svd(vectors - mean, full_matrices=False)
    keep = lengths > 1e-3 * lengths[0]
    matrix = (axes[keep] / lengths[keep, None]).T  # (D, at most D)
    return lambda some: unit((some - mean) @ matrix)


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def judge(name, encode, seconds):
    """Enter a model, by its function from texts to unit vectors, into the table."""
    u, v = (encode(texts) for texts in dev)
    asks, answers = encode([entries[i].query for i in asked]), encode(documents)
    row = []
    for change in (unit, whitening(np.concatenate([encode(captions[::4]), answers]))):
        cosines = (change(u) * change(v)).sum(axis=1)
        found = top_k(change(asks), change(answers), 10)[1]
        row += [spearman(cosines, scores), ndcg_of_each(found, asked).mean()]
    table[name] = [100 * value for value in row] + [seconds]
    show = "{:18} STS-B {:4.1f}, whitened {:4.1f}   search {:4.1f}, {:4.1f}   {:4.0f} s"
    print(show.format(name, *(table[name][i] for i in (0, 2, 1, 3, 4))))


# %%
guess = predict(
    "23.1",
    "Random weights, no training at all: STS-B dev, Spearman x 100, is about ...",
    ["0", "25", "55"],
)

# %%
judge("random", untrained.encode, 0)
assert 50 < table["random"][0] < 65, "as good as many a trained model"
guess.answer("55")

# %% [markdown]
# It knows nothing, and its scores already correlate at more than .5 with people's! There is no magic: each word has
# a random vector, and in 256 columns random vectors are nearly orthogonal. The mean of
# such vectors is a bag of words, and its cosine counts the words that two texts share.
# Three random layers blur that a little.
#
# The second number is worse for our pride. **Whitening** (lesson 27's principal axes, each
# divided by its length) takes the words that all texts have down and rare words up, as
# BM25's idf does. It needs no label and no training:

# %%
plain, whitened = table["random"][0], table["random"][2]
print(f"random weights, whitened: {whitened:.1f}")
assert whitened > 70, "counting words is worth that much, and nothing has been learned"
assert whitened > plain + 10, "the axes were there; they had the wrong lengths"

# %% [markdown]
# So "better than chance" is no achievement in this trade. **These** are the numbers to
# beat, and every table of sentence encoders should have them as its first row.
#
# ## Reading

# %%
from functools import partial

from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.training.objectives.masked import draw_masks

reading = TextColumns(tokenizer, [text])
special = torch.tensor(model.special_ids)


def hidden_words(model, batch):
    """The loss of guessing the words that were hidden in a batch of texts."""
    ids, mask = reading.batch(batch)
    words = ~torch.isin(ids, special)
    inputs, chosen = draw_masks(ids, words, model.mask_id, V)
    return mlm_loss(model.logits(inputs, mask, chosen, DTYPE), ids[chosen])


def train(model, loss, lengths, size, steps, lr, more=()):
    """``steps`` steps of ``fit``: the losses, and CPU seconds. The model ends in eval."""
    generator, batches = torch.Generator().manual_seed(0), []
    while len(batches) < steps:
        batches += length_grouped_batches(lengths, size, generator)
    optimizer = adamw([*model.parameters(), *more], lr=lr, weight_decay=0.01)
    schedule = partial(linear_schedule, warmup=steps // 10, total=steps)
    model.train()
    started = time.process_time()
    run = fit(model, loss, batches[:steps], optimizer, schedule, clip=1.0)
    curve = [step.loss for step in run]
    model.eval()
    return curve, time.process_time() - started


# %%
curve, read_for = train(
    model, hidden_words, reading.lengths, 128, steps=int(130 * SCALE), lr=1e-3
)
print(f"{len(curve)} steps, {read_for:.0f} s of CPU: {curve[0]:.2f} -> {curve[-1]:.2f}")
after = show_guesses(model)
assert abs(curve[0] - np.log(V)) < 0.3, "ln V: it began without an opinion"
assert np.mean(curve[-20:]) < curve[0] - 1.3, "and now it has one"

# %% [markdown]
# It has learned which words are frequent, and hardly more. The long form,
# `LONG_FORM=15`, reads for seventeen minutes of CPU (some 1,900 steps, to a loss of 4.29),
# and its first guesses are
#
#     A man is playing a [MASK].                  guitar 0.06, piano 0.05, potato 0.04
#     Two dogs are [MASK] in the snow.            running 0.36, playing 0.20, walking 0.04
#     The stock [MASK] fell sharply on Friday.    shares 0.08, jones 0.02, was 0.01
#     Return a [MASK] of the array.               list 0.23, number 0.03, tuple 0.03
#     The default value is [MASK].                none 0.06, used 0.03, returned 0.02
#
# Nobody has told it what a guitar is, or that dogs run. The potato is honest, too.
#
# Is it a better encoder now?

# %%
guess = predict(
    "23.2",
    "STS-B after reading, against that of random weights: ...",
    ["much better", "a little better", "worse"],
)

# %%
judge("read", model.encode, read_for)
assert table["read"][0] < table["random"][0] - 2, "worse, and in the long form too"
guess.answer("worse")

# %% [markdown]
# **Worse.** This is no accident of a small model: on STS-B's test pairs the mean of BERT's
# states has 46.35, the mean of GloVe's vectors of words 58.02 (both by the documentation of
# sentence-transformers). To guess words, a state says what *kind* of word belongs here.
# That becomes the largest difference between two vectors, and drowns what the texts are
# about. How much of all difference lies along one axis?

# %%
sample = captions[:: len(captions) // 1000]


def first_axis(model):
    """The share of the variance that lies along the longest principal axis."""
    vectors = model.encode(sample)
    _, lengths, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    return lengths[0] ** 2 / (lengths**2).sum()


along = {"random": first_axis(untrained), "read": first_axis(model)}
print({name: round(float(share), 2) for name, share in along.items()})
assert along["read"] > 1.3 * along["random"], "one axis drowns the others"

# %% [markdown]
# **Exercise 1.** Hide 40 % of the words instead of 15 %. What becomes of the loss, and of the score?
#
# **Exercise 2.** `python -m minisbert.train --recipe from-nothing` does the reading as a command, with `--resume`.
# Stop it with Ctrl-C, resume it, and compare the losses.

# %% [markdown]
# ## Something on top
#
# So a masked language model is no sentence encoder. It is what one **starts** from. Three
# ways to go on, each also from random weights, for the same number of steps: without that,
# nobody could say what reading was good for.
#
# - **contrast** (lesson 10): the name of a function and its docstring belong together, and
#   so does a sentence with itself under another dropout mask (SimCSE). No labels.
# - **scores**: STS-B's training pairs by CoSENT (lesson 10), which people have labelled.
# - **a teacher**: MiniLM's vectors, by lesson 26's squared error. MiniLM has read a billion
#   pairs, so this is the end of "from nothing".

# %%
from minisbert.core import losses
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.losses import cosent_loss, distillation_loss

STEPS = int(24 * SCALE)
teaching = [i for i, split in enumerate(splits) if split == "train"]
left = [entries[i].query for i in teaching] + captions
right = [documents[i] for i in teaching] + captions
matching = TextColumns(tokenizer, [left, right])
rated = TextColumns(
    tokenizer, [[row.texts[side] for row in pairs["train"]] for side in (0, 1)]
)
targets = torch.tensor([row.score / 5 for row in pairs["train"]])
lesson = (captions + [documents[i] for i in teaching])[:: max(1, round(4 / SCALE))]
teacher = SentenceEncoder.load("all-MiniLM-L6-v2", max_seq_length=64)
wanted = torch.from_numpy(teacher.encode(lesson))  # (N, 384)
lessons_of = TextColumns(tokenizer, [lesson])


def contrast(model, batch):
    u, v = model(*matching.batch(batch), DTYPE).chunk(2)
    return losses.multiple_negatives_ranking_loss(u, v)


def rate(model, batch):
    u, v = model(*rated.batch(batch), DTYPE).chunk(2)
    return cosent_loss(u, v, targets[batch])


def learn(model, batch, widen):
    return distillation_loss(
        widen(model(*lessons_of.batch(batch), DTYPE)), wanted[batch]
    )


def widened(model, widen):
    """The encode function of a student with a matrix from its width to its teacher's."""

    def encode(texts):
        with torch.no_grad():
            vectors = widen(torch.from_numpy(model.encode(texts)))
        return torch.nn.functional.normalize(vectors).numpy()

    return encode


# %%
for start, origin in (("random", untrained), ("read", model)):
    cost = table[start][2]
    for name, loss, data in (("contrast", contrast, matching), ("scores", rate, rated)):
        student = copy.deepcopy(origin)
        _, spent = train(student, loss, data.lengths, 64, STEPS, lr=4e-4)
        judge(f"{start}, {name}", student.encode, cost + spent)
    student, widen = copy.deepcopy(origin), torch.nn.Linear(256, 384, bias=False)
    taught = partial(learn, widen=widen)
    _, spent = train(
        student, taught, lessons_of.lengths, 64, STEPS, 1e-3, widen.parameters()
    )
    judge(f"{start}, teacher", widened(student, widen), cost + spent)

# %% [markdown]
# **Exercise 3.** Average the two: whitened dice and MiniLM's vectors side by side. Does the bag of words know
# anything that MiniLM does not?

# %% [markdown]
# ## What was it good for?
#
# Read the table without hope. In these minutes
#
# - reading made every number worse, and what came on top of it stayed behind the same thing
#   on top of dice;
# - people's scores are worth more than these minutes of text;
# - and nothing beats the whitened dice by much, for a bag of words with weights is what
#   both judges reward first.
#
# The long form says the same with more patience. Plain and whitened, STS-B and search:
#
#     random              57.1  75.8    9.4  26.3
#     read                53.5  71.6    7.5  20.6
#     random, contrast    64.7  75.8   20.3  28.5
#     read,   contrast    63.6  73.2   16.2  24.9
#     random, scores      72.6  77.3   10.3  24.9
#     read,   scores      71.9  76.5    7.5  23.5
#     random, teacher     71.7  78.6   20.3  26.3
#     read,   teacher     63.6  73.8    9.4  25.3
#
# So, from nothing and in twenty minutes of CPU: 71.9 with reading, and 72.6 in five minutes
# without it. Does reading pay at all? It does, later: MiniLM has 86.7 and 40 on the same two
# judges, and no bag of words gets there. Its ancestors read billions of words on many chips.
# Our minutes bought the first stretch of that road, in which a model learns which words are
# frequent, and then which stand beside each other. What a sentence is about comes after it.

# %%
best = max(row[2] for row in table.values())
print(f"the best of our models, whitened: {best:.1f}")
assert table["read"][2] < table["random"][2], "reading alone does not pay here"
for start in ("random", "read"):
    gain = table[f"{start}, scores"][0] - table[start][0]
    assert gain > 4, f"{start}: people's scores help, wherever one starts"

# %% [markdown]
# **Exercise 4.** Run the long form: `LONG_FORM=15 python lessons/23_from_nothing.py`, a quarter of an hour of
# reading. Which of the five guesses are right now? Which numbers changed?
#
# **Exercise 5.** Read captions only (`text = captions`). Is the STS-B score better, and the search?

# %% [markdown]
# ## The figure
#
# ![Two judges, eight models](figures/23_from_nothing.png)


# %%
def draw(plt):
    drawn, panels = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
    for axes, column, title in zip(
        panels,
        (0, 1),
        ("STS-B dev, Spearman x 100", "search, nDCG@10 x 100"),
        strict=True,
    ):
        places = np.arange(len(table))
        plain = [row[column] for row in table.values()]
        white = [row[column + 2] for row in table.values()]
        axes.barh(places + 0.2, plain, 0.4, label="as it is", color="C0")
        axes.barh(places - 0.2, white, 0.4, label="whitened", color="C1")
        axes.set_yticks(places, list(table))
        axes.invert_yaxis()
        axes.set_title(title)
    bars = panels[0].get_legend_handles_labels()
    drawn.legend(*bars, loc="outside lower center", ncols=2)
    panels[1].set_yticks([])
    return drawn


figure("23_from_nothing", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** No network: guess each hidden word by how frequent the words are. The loss is then
# the entropy of the text's words. A model without an opinion has ln 6000 = 8.7.

# %%
guess = predict(
    "23.3",
    "Guessing by frequency alone, the loss is about ...",
    ["8.5", "6.8", "3"],
)

# %%
counts = np.bincount(
    [i for ids in reading.encoded[0].ids for i in ids[1:-1]], minlength=V
)
shares = counts[counts > 0] / counts.sum()
entropy = -(shares * np.log(shares)).sum()
print(f"by frequency {entropy:.2f}; our model after {len(curve)} steps {curve[-1]:.2f}")
assert 6.4 < entropy < 7.2, "what a table of 6,000 numbers knows"
guess.answer("6.8")

# %% [markdown]
# Look where the curve is. A short run has learned little more than that table; below it
# begins what only a reader can know.
#
# **2.** A vocabulary from the captions alone, without the manuals: into how many pieces does
# it cut "iterator"?

# %%
guess = predict(
    "23.4", "Pieces of 'iterator', which no caption has ...", ["1", "2", "4"]
)

# %%
narrow = train_vocabulary(captions, 6000)
cut = {
    name: one.tokens(one.encode(["iterator"]).ids[0])[1:-1]
    for name, one in (("all text", tokenizer), ("captions", narrow))
}
print(cut)
assert len(cut["all text"]) == 1, "a word of the manuals"
assert len(cut["captions"]) == 4, "put together from what captions have"
guess.answer("4")

# %% [markdown]
# ## Break it
#
# Pre-training has a trap of its own: it needs no labels, so a bug can hand it the answers,
# and then the loss falls *faster*. Each of these is planted, and reads for twenty steps.

# %%
from lessons.mistakes import MISTAKES, planted

ends = {}
for name in (None, "nothing is hidden", "special tokens are hidden too"):
    torch.manual_seed(0)
    reader = copy.deepcopy(untrained)
    if name is None:
        name = "right"
        run, _ = train(reader, hidden_words, reading.lengths, 64, 20, 1e-3)
    else:
        with planted(MISTAKES[name]):
            run, _ = train(reader, hidden_words, reading.lengths, 64, 20, 1e-3)
    ends[name] = np.mean(run[-5:])
    print(f"{name:32} {ends[name]:.2f}")
assert ends["nothing is hidden"] < ends["right"] - 0.3, "the answer is in the question"
assert ends["special tokens are hidden too"] < ends["right"] - 0.15, (
    "[CLS] is always first and [SEP] always last: easy points"
)

# %% [markdown]
# A falling loss proves nothing. The proof is a word that was hidden, and a guess that you
# can read: `fill_mask` is the first thing to look at, and the last.
#
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 23 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: mask_tokens, learn_merges, mlm_loss: `python -m lessons.check start 23`, `run 23`, `hint 23`.
#
# ## Sources
#
# - Sennrich, Haddow and Birch 2016, *Neural machine translation of rare words with subword
#   units*, algorithm 1: the vocabulary.
# - Devlin et al. 2019, *BERT: pre-training of deep bidirectional transformers for language
#   understanding*, section 3.1: 15 %, and 80, 10 and 10 of them.
# - sentence-transformers' documentation, *STS Models*: the mean of BERT's states behind
#   the mean of GloVe's vectors.
# - Su et al. 2021, *Whitening sentence representations for better semantics and faster
#   retrieval* (arXiv 2103.15316).
# - Wieting and Kiela 2019, *No training required: exploring random encoders for sentence
#   classification* (arXiv 1901.10444): what dice can do, before us.
