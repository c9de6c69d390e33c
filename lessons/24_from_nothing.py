# %% [markdown]
# # Lesson 24: from nothing
#
# Steps through `minisbert/training/masked.py`, `minisbert/training/losses.py`,
# `minisbert/models/masked_language_model.py`. Reading 50, chapter 15, pieces 70, exercises 90 minutes. You will make
# an encoder of random weights, pre-train it, and find out what pre-training is good for.

# %% [markdown]
# ## The question
#
# Where do MiniLM's 22.7 million numbers come from? We start without them: a vocabulary from text on your disk (and the
# sentences of STS-B, a small download), an encoder whose weights are random, two cores and some minutes. What can it do
# before any training? What does it learn from text alone, without a single label? That is *pre-training*. And does it
# make a good sentence vector?
#
# ## The formula
#
# A **masked language model** (MLM) guesses hidden words: tokens, to be exact, so pieces of words too. Choose 15 % of a
# text's tokens (never [CLS], [SEP] or a pad). Of the chosen ones
#
#     80 %   become [MASK]
#     10 %   become a random token
#     10 %   stay
#
# and all of them are to be guessed. One number for each token, drawn evenly from 0 to 1, decides both: below .15 the
# token is chosen; below .15 * .8 = .12 it becomes [MASK], and from there to .135 another token. The last two kinds are
# there because no text that you will ever encode has a [MASK] in it: the model should look at its words too. The guess
# is a **logit** z for each of the V words of the vocabulary, from the token's hidden state h:
#
#     z  =  W LayerNorm( gelu( A h + a ) ) + b           W (V, D): the table of words again
#
#     loss  =  mean over the chosen words of   log( sum over v of exp z_v )  -  z_word
#
# which is lesson 10's softmax cross-entropy (and its `logsumexp`), with V classes: of N chosen words the logits are (N,
# V), and the words' ids (N,). A model that knows nothing gives each word 1 / V: its loss is ln V. Nobody labels
# anything; the text has its own answers. This is how BERT was trained, but for a second task that later models dropped
# (it had to say whether two sentences follow each other).
#
# ## The real function
#
# Four words, four random numbers from 0 to 1, by hand:

# %%
import inspect
import os

import numpy as np
import torch
from course import figure, predict

from minisbert.core import bert

bert.FUSED = True  # PyTorch's own kernels: the same numbers in less time (lesson 26)
torch.manual_seed(0)
torch.set_num_threads(min(torch.get_num_threads(), 2))
LONG = "LONG_FORM" in os.environ  # exercise 4

# %%
from lessons.by_hand.losses import mlm_loss
from minisbert.training.masked import mask_tokens

ids = torch.tensor([[5, 6, 7, 8]])
other = torch.tensor([[50, 60, 70, 80]])
chance = torch.tensor([[0.11, 0.13, 0.14, 0.50]])
inputs, chosen = mask_tokens(ids, torch.ones_like(ids), 4, chance, other)
print(inputs, chosen, sep="\n")
assert inputs.tolist() == [[4, 60, 7, 8]], "[MASK] is 4; another word; the word itself"
assert chosen.tolist() == [[True, True, True, False]], "below 0.15, so it is a question"
logits = torch.tensor([[0.0, 0.0, np.log(2)]], dtype=torch.float64)
sure, unsure = (mlm_loss(logits, torch.tensor([word])).item() for word in (2, 0))
assert abs(sure - np.log(2)) < 1e-12, "log(1 + 1 + 2) - log 2: half of the probability"
assert abs(unsure - np.log(4)) < 1e-12, "log 4 - 0: a quarter"

# %% [markdown]
# ## Text
#
# The sentences of STS-B's training pairs, without their scores, and the docstrings of Python, NumPy and a part of
# PyTorch, which every machine with this package has.

# %%
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

from lessons.search import docstrings
from minisbert.data.rows import load_scored_pairs

pairs = {name: load_scored_pairs("stsb", name) for name in ("train", "dev")}
captions = list(dict.fromkeys(text for row in pairs["train"] for text in row.texts))
names = ("numpy", "torch.nn", "torch.distributed")
packages = [Path(find_spec(name).origin).parent for name in names]
manuals = docstrings.read_sentences(get_path("stdlib"), *packages)
text = 3 * captions + manuals  # three times: there are three times as many docstrings
print(f"{len(captions):,} sentences of STS-B, {len(manuals):,} of manuals")
print(captions[7], manuals[7], manuals[-7], sep="\n")
assert len(manuals) > 20_000, "nothing was downloaded for these"

# %% [markdown]
# A vocabulary first. Its training starts with single characters and joins, again and again, the two pieces that stand
# side by side most often. This is **byte pair encoding**; the library trains WordPiece vocabularies in this way too. By
# hand, with four words: e and s stand side by side 9 times, in newest and widest, and no two pieces do so more often.
# The pair s, t is as frequent. Of equally frequent pairs the one with the lower numbers is joined: letters are numbered
# in alphabetical order, and joined pieces after them.

# %%
from lessons.by_hand.vocabulary import learn_merges

joins = learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
assert joins == [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")], "9, 9, 7, 7 times"

# %% [markdown]
# Lesson 02 read such a vocabulary. This one shows what it was trained on:

# %%
from minisbert.training.masked import train_vocabulary

print(inspect.getsource(train_vocabulary))
tokenizer = train_vocabulary(text, 6000, max_length=64)
V = tokenizer.backend.get_vocab_size()
for some in ("A man plays a guitar.", "The tensor is contiguous.", "photosynthesis"):
    print(tokenizer.tokens(tokenizer.encode([some]).ids[0])[1:-1])
assert V == 6000, "as many as we asked for"
assert {"guitar", "tensor"} <= tokenizer.backend.get_vocab().keys(), "it has seen both"

# %% [markdown]
# ## Before it has read anything

# %%
import copy

from minisbert.training.masked import new_model

print(inspect.getsource(new_model))
model = new_model(tokenizer, layers=3, width=256)
untrained = copy.deepcopy(model)
count = sum(parameter.numel() for parameter in model.parameters())
print(f"{count:,} parameters, all random")
assert 3.5e6 < count < 4.5e6, "a sixth of MiniLM"
QUESTIONS = [
    "A man is playing a [MASK].",
    "Two dogs are [MASK] in the snow.",
    "The stock [MASK] fell sharply on Friday.",
    "Return a [MASK] of the array.",
    "The default value is [MASK].",
]


def show_guesses(model):
    """Print three guesses for each question, with their probabilities."""
    for question in QUESTIONS:
        guesses = model.fill_mask(question, 3)
        print(f"    {question:42}", *(f"{word} {share:.3f}" for word, share in guesses))


show_guesses(model)
assert model.fill_mask(QUESTIONS[0], 1)[0][1] < 0.003, "no word is likely"

# %% [markdown]
# The judge: STS-B's dev pairs, by Spearman's correlation (lesson 09). Each model is judged twice, with its vectors as
# they are and whitened. **Whitening** subtracts the mean, turns vectors to their principal axes (lesson 17), and
# divides each column by its spread.

# %%
from minisbert.core.metrics import spearman
from minisbert.models.properties import similarity_pairwise

dev = [[row.texts[side] for row in pairs["dev"]] for side in (0, 1)]
scores = np.array([row.score for row in pairs["dev"]])
table = {}  # name -> correlation times 100, as it is and whitened
longest = {}  # name -> the share of the variance that lies along the longest axis


def judge(name, model):
    """Enter a model into the table."""
    u, v, sample = (model.encode(texts) for texts in (*dev, captions[::4]))
    mean = sample.mean(axis=0)
    _, spreads, axes = np.linalg.svd(sample - mean, full_matrices=False)  # (D,), (D, D)
    longest[name] = spreads[0] ** 2 / (spreads**2).sum()
    # an axis without any spread has nothing to tell, and stays short
    turn = axes.T / np.maximum(spreads, 1e-3 * spreads[0])
    plain = similarity_pairwise(u, v)  # cosines
    whitened = similarity_pairwise((u - mean) @ turn, (v - mean) @ turn)
    table[name] = [100 * spearman(each, scores) for each in (plain, whitened)]
    print("{:15} {:.1f}, whitened {:.1f}".format(name, *table[name]))


# %%
guess = predict(
    "24.1",
    "Random weights, no training at all: STS-B dev, Spearman x 100, is about ...",
    ["0", "25", "55"],
)

# %%
judge("random", untrained)
assert 50 < table["random"][0] < 65, "as good as many a trained model"
guess.answer("55")

# %% [markdown]
# It knows nothing, and its scores correlate at more than .5 with people's. Each word has a random vector, and in 256
# columns random vectors are nearly orthogonal. The mean of such vectors is a bag of words, and its cosine counts the
# words that two texts share; three random layers blur that a little. Whitening takes the words that all texts have down
# and rare words up, as BM25's idf does, and needs no label and no training either. ([Before
# transformers](../docs/before-transformers.md) has like numbers for one-hot words, and those of word2vec.)

# %%
assert table["random"][1] > table["random"][0] + 10, "rare words count more"

# %% [markdown]
# So "better than chance" is no achievement. These are the numbers to beat, and every table of sentence encoders should
# have them as its first row.
#
# ## Pre-training

# %%
from functools import partial

from minisbert.core.data import TextColumns, length_grouped_batches
from minisbert.core.loop import adamw, fit, linear_schedule
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.training.masked import draw_masks

print(inspect.getsource(draw_masks))
print(inspect.getsource(MaskedLanguageModel.logits))
reading = TextColumns(tokenizer, [text])
special = torch.tensor(model.special_ids)


def hidden_words(model, batch):
    """The loss of guessing the words that were hidden in a batch of texts."""
    ids, mask = reading.batch(batch)
    words = ~torch.isin(ids, special)
    inputs, chosen = draw_masks(ids, words, model.mask_id, V)
    return mlm_loss(model.logits(inputs, mask, chosen), ids[chosen])


def train(model, loss, lengths, size, steps, lr):
    """Take ``steps`` steps of ``fit`` with batches of ``size``, and return the losses."""
    generator, batches = torch.Generator().manual_seed(0), []
    while len(batches) < steps:
        batches += length_grouped_batches(lengths, size, generator)
    optimizer = adamw(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = partial(linear_schedule, warmup=steps // 10, total=steps)
    model.train()
    run = fit(model, loss, batches[:steps], optimizer, schedule, clip=1.0)
    curve = [step.loss for step in run]
    model.eval()
    return curve


# %%
size, steps = (128, 1950) if LONG else (32, 390)
curve = train(model, hidden_words, reading.lengths, size, steps, lr=1e-3)
print(f"{steps} steps: {curve[0]:.2f} -> {np.mean(curve[-20:]):.2f}")
show_guesses(model)
assert abs(curve[0] - np.log(V)) < 0.3, "ln V: it began without an opinion"
assert np.mean(curve[-20:]) < curve[0] - 1.3, "and now it has one"

# %% [markdown]
# It has learned which words are frequent, and hardly more. The **long form** of exercise 4 reads twenty times as much
# text, down to a loss of 4.29. Its first guesses are
#
#     A man is playing a [MASK].                  guitar 0.06, piano 0.05, potato 0.04
#     Two dogs are [MASK] in the snow.            running 0.36, playing 0.20, walking 0.04
#     The stock [MASK] fell sharply on Friday.    shares 0.08, jones 0.02, was 0.01
#     Return a [MASK] of the array.               list 0.23, number 0.03, tuple 0.03
#     The default value is [MASK].                none 0.06, used 0.03, returned 0.02
#
# Nobody has told it what a guitar is, or that dogs run. Is it a better encoder now?

# %%
guess = predict(
    "24.2",
    "STS-B after pre-training, against that of random weights: ...",
    ["much better", "a little better", "worse"],
)

# %%
judge("pre-trained", model)
lost = table["random"][0] - table["pre-trained"][0]
assert lost > 2, "worse, and in the long form too"
guess.answer("worse")

# %% [markdown]
# **Worse.** This is no accident of a small model: on STS-B's test pairs the mean of BERT's states has 46.35, the mean
# of GloVe's vectors of words 58.02 (both by the documentation of sentence-transformers). To guess words, a state says
# what *kind* of word belongs here. That becomes the largest difference between two vectors, and hides what the texts
# are about. How much of all difference lies along one axis?


# %%
print({name: round(float(share), 2) for name, share in longest.items()})
assert longest["pre-trained"] > 1.3 * longest["random"], "one axis outweighs the others"

# %% [markdown]
# **Exercise 1.** Hide 40 % of the words instead of 15 %. What becomes of the loss, and of the score?
#
# **Exercise 2.** `minisbert train --recipe from-nothing` does the pre-training as a command, with `--resume`. Stop it
# with Ctrl-C, resume it, and compare the losses.

# %% [markdown]
# ## Something on top
#
# So a masked language model is no sentence encoder. It is what one **starts** from. We go on with STS-B's training
# pairs, which people have scored, and the CoSENT loss of lesson 29. We do it twice, for the same number of steps: after
# pre-training, and from random weights. Without the second, nobody could say what pre-training was good for.

# %%
from minisbert.training.losses import cosent_loss

rated = TextColumns(
    tokenizer, [[row.texts[side] for row in pairs["train"]] for side in (0, 1)]
)
targets = torch.tensor([row.score / 5 for row in pairs["train"]])


def rate(model, batch):
    """CoSENT on a batch of scored pairs."""
    u, v = model(*rated.batch(batch)).chunk(2)
    return cosent_loss(u, v, targets[batch])


# %%
for start, origin in (("random", untrained), ("pre-trained", model)):
    student = copy.deepcopy(origin)
    train(student, rate, rated.lengths, 64, 360 if LONG else 24, lr=4e-4)
    judge(f"{start}, scores", student)

# %% [markdown]
# **Exercise 3.** Join the two: whitened vectors of random weights and MiniLM's, side by side. Does the bag of words
# know anything that MiniLM does not?

# %% [markdown]
# ## What was it good for?
#
# In these minutes pre-training made the vectors worse, and training on scores from there ended below training from
# random weights. Scores helped, wherever we started. And nothing beats the whitened random weights by much: people's
# scores of sentences reward a bag of words with weights first.

# %%
assert table["pre-trained"][1] < table["random"][1], "alone it does not pay here"
for start in ("random", "pre-trained"):
    assert table[f"{start}, scores"][0] > table[start][0] + 3, "people's scores help"
assert max(row[1] for row in table.values()) < table["random"][1] + 3, "hard to beat"

# %% [markdown]
# The long form says the same with more patience, vectors as they are: random 57.1, pre-trained 53.5, with scores 72.6
# and 71.9. It pays later: MiniLM has 86.7, and no bag of words gets there. MiniLM's ancestors read billions of words on
# many chips (lesson 11 has the bill of a step).
#
# **Exercise 4.** Run the long form: `LONG_FORM=1 python lessons/24_from_nothing.py`, about half an hour. Which of the
# five guesses are right now? Which numbers changed?
#
# **Exercise 5.** No labels at all: in place of the scores take names of functions and their docstrings, and captions
# with themselves, by lesson 10's in-batch loss.

# %% [markdown]
# ## The figure
#
# ![Four models, as they are and whitened](figures/24_from_nothing.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    places, both = np.arange(len(table)), np.array(list(table.values()))
    axes.barh(places - 0.2, both[:, 0], 0.4, label="as it is", color="C0")
    axes.barh(places + 0.2, both[:, 1], 0.4, label="whitened", color="C1")
    axes.set_yticks(places, list(table))
    axes.invert_yaxis()
    axes.set(xlabel="STS-B dev, Spearman x 100", xlim=(0, 100))
    axes.legend(loc="upper right")
    return drawn


figure("24_from_nothing", draw)

# %% [markdown]
# ## Predict, then run
#
# **1.** No network: guess each hidden word by how frequent the words are. The loss is then the entropy of the text's
# words. A model that knows nothing has ln 6000 = 8.7.

# %%
guess = predict(
    "24.3",
    "Guessing by frequency alone, the loss is about ...",
    ["8.5", "6.8", "3"],
)

# %%
counts = np.bincount([i for ids in reading.encoded[0].ids for i in ids[1:-1]])
shares = counts[counts > 0] / counts.sum()
entropy = -(shares * np.log(shares)).sum()
print(f"by frequency {entropy:.2f}; our model at its end {np.mean(curve[-20:]):.2f}")
assert 6.4 < entropy < 7.2, "what a table of 6,000 numbers knows"
guess.answer("6.8")

# %% [markdown]
# A short run has learned little more than that table.
#
# ## Break it
#
# Pre-training needs no labels, so a bug can hand it the answers, and then the loss falls *faster*. Each of these is
# planted, and trained for twenty steps.

# %%
from lessons.mistakes import MISTAKES, planted


def first_steps():
    """Twenty steps from random weights: the mean of the last five losses."""
    torch.manual_seed(0)
    fresh = copy.deepcopy(untrained)
    return np.mean(train(fresh, hidden_words, reading.lengths, 32, 20, lr=1e-3)[-5:])


ends = {"right": first_steps()}
for name in ("nothing is hidden", "special tokens are hidden too"):
    with planted(MISTAKES[name]):
        ends[name] = first_steps()
print({name: round(float(loss), 2) for name, loss in ends.items()})
assert ends["nothing is hidden"] < ends["right"] - 0.3, "the answer is in the question"
assert ends["special tokens are hidden too"] < ends["right"] - 0.15, "two easy points"

# %% [markdown]
# [CLS] is always first and [SEP] always last, so guessing them is easy. A falling loss proves nothing. The proof is a
# word that was hidden, and a guess that you can read: look at `fill_mask` first.
#
# ## Exercises
#
# Exercises 1 to 5 stand beside what they practise. `python -m lessons.check answer 24 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 6.** Graded: mask_tokens, learn_merges, mlm_loss: `python -m lessons.check start 24`, `run 24`, `hint 24`.
#
# ## Sources
#
# - Sennrich, Haddow and Birch 2016, *Neural machine translation of rare words with subword units*, algorithm 1: the
#   vocabulary.
# - Devlin et al. 2019, *BERT: pre-training of deep bidirectional transformers for language understanding*, section 3.1:
#   15 %, and 80, 10 and 10 of them.
# - sentence-transformers' documentation, *STS Models*: the mean of BERT's states behind the mean of GloVe's vectors.
# - Su et al. 2021, *Whitening sentence representations for better semantics and faster retrieval* (arXiv 2103.15316).
# - Wieting and Kiela 2019, *No training required: exploring random encoders for sentence classification* (arXiv
#   1901.10444): random encoders, before us. Their word vectors are trained; ours are random too.
#
# ## What you have now
#
# You have a language model that began as random numbers. What follows makes things fast and small. Next: [making it
# fast: pads and packing](25_speed.py).
