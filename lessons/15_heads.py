# %% [markdown]
# # Lesson 15: three heads that score a pair
#
# Steps through `minisbert/core/heads.py` and `minisbert/models/pair_model.py`. About 60 minutes. You will set three
# ways of reading two sentences side by side, train small heads in seconds, and see what three bugs from one published
# notebook cost.

# %%
import torch
from course import chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# A cosine compares two vectors in a fixed way. Could a small network learn to compare better? It reads two sentences
# and gives a score. The question that decides everything else: *where do the two sentences meet*?
#
# ## The formula
#
# `B` pairs, `T` and `S` tokens, `D` columns. mlp is Linear, ReLU, Linear to one number.
#
#     joint     h = bert([CLS] a [SEP] b [SEP])            (B, T + S, D)     score = mlp(h[:, 0])
#     siamese   u = pool(bert(a)),  v = pool(bert(b))      (B, D) each       score = mlp([|u - v|; u * v; u])
#     cross     h = bert(a),  g = bert(b)                  (B, T, D), (B, S, D)
#               found = attention(queries of h, keys and values of g)        score = mlp([h[:, 0]; found[:, 0]])
#
# An **mlp**, for multi-layer perceptron, is dense layers (Linear, in torch) with a non-linearity between them (lesson
# 06). A semicolon sets vectors side by side: [a; b] of two vectors (D,) is one of (2 D,).
#
# Joint: they meet in every layer; the field says **cross-encoder**. Siamese: they meet only after pooling, as two
# vectors; an encoder that is used this way is a **bi-encoder**. Cross: after the encoder, token by token.
#
# ![Three heads: where do the sentences meet?](drawings/heads.svg)

# %% [markdown]
# ## The real function
#
# `combine` on three pairs of width 2. Check the first row by eye: |1 - 3| = 2, |2 - 1| = 1, 1 * 3, 2 * 1, then u.

# %%
from minisbert.models.sentence_encoder import SentenceEncoder

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")

# %%
from minisbert.core import heads

u = torch.tensor([[1.0, 2.0], [0.0, 5.0], [4.0, 4.0]])  # (B, D)
v = torch.tensor([[3.0, 1.0], [0.0, 5.0], [-4.0, 4.0]])
features = heads.combine(u, v, ("|u-v|", "u*v", "u"))  # (B, 3 D)
print(features)
assert features[0].tolist() == [2, 1, 3, 2, 1, 2], "the first pair by hand"
assert features[1, :2].tolist() == [0, 0], "equal vectors have no difference"

# %% [markdown]
# Cross-attention on three tokens each. The `compare` variant starts with identity matrices. So before
# it is trained, it gives each token of a the vector of the token of b that is most like it. Here b holds the same
# tokens in another order.

# %%
a = torch.tensor([[[6.0, 0.0], [0.0, 6.0], [-6.0, 0.0]]])  # (B, T, D)
b = a[:, [2, 0, 1]]  # (B, S, D)
with torch.no_grad():
    found = heads.CrossHead(2, "compare", heads=1).attention(a, b)
print(found)
assert largest_difference(found, a) < 1e-3, "each token has found its like"

# %% [markdown]
# And a head that names a relation. **Natural language inference** asks whether a hypothesis follows from a premise: yes
# (entailment), no (contradiction), or not to be said (neutral). SBERT learned its vectors from it, by
# softmax(W (u, v, |u - v|)) over the three classes. Three examples:

# %%
from minisbert.core.encoder import cosine
from minisbert.training.train import count_parameters

inference = [
    (
        "entailment",
        "A soccer game with multiple males playing.",
        "Some men are playing a sport.",
    ),
    (
        "neutral",
        "An older and younger man smiling.",
        "Two men are smiling and laughing at the cats playing on the floor.",
    ),
    (
        "contradiction",
        "A man inspects the uniform of a figure in some East Asian country.",
        "The man is sleeping.",
    ),
]
labels, *columns = zip(*inference, strict=True)
u, v = (torch.from_numpy(encoder.encode(list(column))) for column in columns)  # (B, D)
classifier = heads.ConcatHead(384, outputs=3)
with torch.no_grad():
    logits = classifier(u, v)  # (B, 3)
for label, near, shares in zip(labels, cosine(u, v), logits.softmax(1), strict=True):
    print(
        f"{label:13} cosine {near:.2f}   untrained classifier {[round(share, 2) for share in shares.tolist()]}"
    )
assert logits.shape == (3, 3), "a class per column, not a score per pair"
assert count_parameters(classifier)[0] == 9 * 384 + 3, (
    "W is (3, 3 D); the paper has no bias"
)
assert cosine(u, v)[0] > cosine(u, v)[1] > cosine(u, v)[2], (
    "entailment is near, but a cosine cannot say 'no'"
)

# %% [markdown]
# Such a head returns logits, and is trained by their cross-entropy (lesson 10). For a question of yes or no a single
# logit z is enough: 1 / (1 + exp(-z)) is the share of yes. That is a softmax over the scores 0 and z, and its
# cross-entropy the same. (Its logarithm in one step is `logsigmoid`: the share of z = -800 itself is 0.)

# %%
import math

from minisbert.core import losses
from minisbert.training import losses as more_losses

yes, no = torch.tensor([1.0]), torch.tensor([0.0])
one_logit = more_losses.binary_cross_entropy_loss(2 * yes, no).item()
logits = torch.tensor([[0.0, 2.0]])
two_classes = losses.softmax_cross_entropy_loss(logits, torch.tensor([0])).item()
print(f"wrongly sure: {one_logit:.4f}, as two classes {two_classes:.4f}")
assert abs(one_logit - math.log(1 + math.exp(2))) < 1e-6, "1 / (1 + e^2) is right"
assert abs(one_logit - two_classes) < 1e-6, "one logit, or two that differ by as much"

# %% [markdown]
# How large are they, on MiniLM? The encoder has 22,713,216 parameters; the heads add little. `freeze` keeps the lowest
# two layers as they are.

# %%
from minisbert.models.pair_model import PairModel
from minisbert.training.train import freeze

makers = {"joint": heads.JointHead, "siamese": heads.siamese, "cross": heads.CrossHead}
expected = {
    "joint": (22_812_033, 19_263_105),
    "siamese": (23_008_641, 19_459_713),
    "cross": (23_501_697, 19_952_769),
}
torch.manual_seed(0)  # a new head is random
models = {name: PairModel(encoder, make(384)) for name, make in makers.items()}
freeze(encoder.bert, layers=2)
for name, model in models.items():
    total, trained = count_parameters(model)
    print(
        f"{name:8} {total:>12,} parameters, {trained:>12,} of them trained; head {total - 22_713_216:,}"
    )
    assert (total, trained) == expected[name], (
        f"{name}: as counted by hand from the layers' sizes"
    )
encoder.requires_grad_(True)

# %% [markdown]
# **Exercise 1.** Give the siamese head a symmetric form without losing anything. How?

# %% [markdown]
# ## A race, with the encoder frozen
#
# Training the whole encoder takes minutes (`minisbert train --recipe sts-siamese`; the README has the
# results). Here the encoder is **frozen**, and we train heads only, on 400 short pairs. Then a head is a matter of a
# second. It is not a fair race: the joint head needs an encoder that has learned to read two sentences at once, and
# this one has not.


# %%
from minisbert.core.loop import adamw, fit
from minisbert.core.metrics import pearson
from minisbert.core.pooling import cls_pool
from minisbert.data.datasets import load_scored_pairs


def short_pairs(split, count):
    """``count`` pairs of short sentences, drawn with a fixed seed."""
    pairs = [
        p
        for p in load_scored_pairs("stsb", split)
        if max(len(p.sentence1), len(p.sentence2)) <= 45
    ]
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))
    return [pairs[i] for i in order[:count]]


def read(model, pairs):
    """What the head will read, made once: u and v (2, N, D), or for joint pairs [CLS] alone (1, N, D)."""
    encoded = model.tokenize(
        [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs]
    )
    ids, mask, types = model.batch(encoded, list(range(len(pairs))))
    with torch.no_grad():
        if model.joint:
            return cls_pool(model.encoder.bert(ids, mask, types))[None]
        return torch.stack(model.encoder.unscaled(ids, mask).chunk(2))


def train_head(make, columns):
    """150 steps of squared error on a head that reads ``columns``. Lesson 11 takes ``fit`` apart."""

    def loss(head, rows):
        return losses.mse_loss(scores(head, columns[:, rows]), targets[rows])

    torch.manual_seed(0)
    head = make(384)
    optimizer = adamw(list(head.parameters()), lr=1e-3, weight_decay=0.01)
    batches = (torch.randint(len(targets), (64,)) for _ in range(150))
    list(fit(head, loss, batches, optimizer, schedule=lambda step: 1.0))
    return head.eval()


def scores(head, columns):
    """(N,) on the scale of 0 to 1. A joint head's [CLS] states are read by its mlp."""
    return (head.mlp(columns[0]) if len(columns) == 1 else head(*columns)).squeeze(-1)


def quality(head, columns):
    """Pearson on the dev pairs, x 100."""
    with torch.no_grad():
        return 100 * pearson(scores(head, columns), people)


train_pairs, dev_pairs = short_pairs("train", 400), short_pairs("dev", 200)
targets = torch.tensor([pair.score / 5 for pair in train_pairs])
people = [pair.score / 5 for pair in dev_pairs]
siamese, joint = models["siamese"], models["joint"]
siamese_train, siamese_dev = read(siamese, train_pairs), read(siamese, dev_pairs)
siamese_head = train_head(heads.siamese, siamese_train)
joint_head = train_head(heads.JointHead, read(joint, train_pairs))
cosines = torch.nn.functional.cosine_similarity(*siamese_dev)
result = {
    "siamese": quality(siamese_head, siamese_dev),
    "joint": quality(joint_head, read(joint, dev_pairs)),
    "cosine, untrained": 100 * pearson(cosines, people),
}
for name, value in result.items():
    print(f"{name:20} dev Pearson {value:.1f}")
assert result["cosine, untrained"] > result["siamese"] > result["joint"] + 10, (
    "a cosine is hard to beat"
)

# %% [markdown]
# The cosine wins: MiniLM was trained for it with a billion pairs, and 400 pairs cannot teach a head of 295,425
# parameters the same. Heads pay when the encoder is trained with them.
#
# **Exercise 2.** Train heads with SBERT's other concatenations (`heads.CONCATS`) on the same columns. Which part
# matters most?

# %% [markdown]
# ## The figure
#
# Every pair of **dev**, on which nothing was trained: what people said, and what the head says. On the left the head
# above, in the middle one that never sees the second sentence: a bug that we plant here and meet again below.
#
# ![Scores of a right and a blind head](figures/15_heads.png)

# %%
from lessons.mistakes import MISTAKES, planted

blind = "head reads the first sentence only"
with planted(MISTAKES[blind]):
    blind_head = train_head(heads.siamese, siamese_train)
    result[blind] = quality(blind_head, siamese_dev)
with torch.no_grad():
    right_scores = scores(siamese_head, siamese_dev)
    blind_scores = scores(blind_head, siamese_dev)


def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(10, 3.3), layout="constrained", width_ratios=(3, 3, 4)
    )
    panels = (
        (left, right_scores, "siamese head"),
        (middle, blind_scores, "first sentence only"),
    )
    for axes, values, label in panels:
        axes.scatter(
            [5 * score for score in people],
            5 * values,
            s=9,
            alpha=0.6,
            color="#1f4e79",
            linewidths=0,
        )
        axes.set(
            xlabel="people's score", ylabel="head's score", ylim=(-1.5, 6), title=label
        )
    names = sorted(result, key=result.get)
    bars = right.barh(
        range(len(names)), [result[name] for name in names], color="#3b7ab8"
    )
    right.bar_label(bars, fmt="%.0f", padding=2)
    right.set_yticks(
        range(len(names)),
        [name.replace(" the ", "\nthe ", 1) for name in names],
        fontsize=8,
    )
    right.set(xlabel="dev Pearson x 100, encoder frozen", xlim=(0, 100))
    return drawn


figure("15_heads", draw)
assert result[blind] < 25, "what can be guessed from one sentence"

# %% [markdown]
# ## Predict, then run
#
# **1.** Is the siamese head symmetric: score(a, b) = score(b, a)? Look at its three parts.

# %%
guess = predict("15.1", "Is the siamese head symmetric?", ["yes", "no"])

# %%
with torch.no_grad():
    turned = scores(siamese_head, siamese_dev.flip(0))
print(
    f"largest difference of score(a, b) and score(b, a): {5 * largest_difference(right_scores, turned):.2f} of 5"
)
assert largest_difference(right_scores, turned) > 0.02, (
    "|u - v| and u * v are symmetric, u is not"
)
guess.answer("no")

# %% [markdown]
# **2.** Which pair among 10,000 sentences is the most alike? How many forward passes does the joint head need, and how
# many the siamese one?

# %%
guess = predict(
    "15.2",
    "Forward passes of the joint head for 10,000 sentences?",
    ["10,000", "a million", "50 million"],
)

# %%
count = 10_000
print(f"joint {count * (count - 1) // 2:,}, siamese {count:,}")
assert count * (count - 1) // 2 == 49_995_000, (
    "each pair on its own: the reason for sentence vectors (lesson 16)"
)
guess.answer("50 million")

# %% [markdown]
# **3.** In the joint input, token types say which sentence a token belongs to. This model was never trained on pairs.
# Do the types still change what [CLS] sees?

# %%
guess = predict("15.3", "Do the types change what [CLS] sees?", ["yes", "no"])

# %%
pair = (["A cat sits."], ["A kitten is sitting."])
with torch.no_grad():
    joint = models["joint"]
    right = joint(*joint.batch(joint.tokenize(*pair), [0]))
    with planted(MISTAKES["joined pairs without token types"]):
        wrong = joint(*joint.batch(joint.tokenize(*pair), [0]))
print(f"with types {right.item():.4f}, without {wrong.item():.4f}")
assert largest_difference(right, wrong) > 1e-4, (
    "yes: type 1 is another row of the table, added to every token of b"
)
guess.answer("yes")

# %% [markdown]
# ## Break it
#
# Three bugs from one published notebook. Each one trains without an error, and the score does not give it away.
#
# - *head reads the first sentence only*: u is given twice.
# - *second ids from the first*: a line was copied, and b's ids are those of a. The same result by another route.
# - *both towers read the joined pair*: each tower gets `[CLS] a [SEP] b [SEP]`, so u = v.
#
# And one that many people write: *u - v without the absolute value*.

# %%
name = "u - v without the absolute value"
with planted(MISTAKES[name]):
    result[name] = quality(train_head(heads.siamese, siamese_train), siamese_dev)

with planted(MISTAKES["second ids from the first"]):
    few_u, few_v = read(siamese, dev_pairs[:8])
assert largest_difference(few_u, few_v) < 1e-5, (
    "the second vector is the first one again"
)

with planted(MISTAKES["both towers read the joined pair"]):
    few_u, few_v = read(siamese, dev_pairs[:8])
    assert largest_difference(few_u, few_v) < 1e-5, "both towers give one vector"
    twice = read(siamese, train_pairs + dev_pairs)
    wrong_head = train_head(heads.siamese, twice[:, : len(train_pairs)])
    result["both towers read the joined pair"] = quality(
        wrong_head, twice[:, len(train_pairs) :]
    )

for name, value in result.items():
    print(f"{name:36} dev Pearson {value:5.1f}")
assert 30 < result["both towers read the joined pair"] < 70, (
    "the encoder has seen both: wrong, but not hopeless"
)
assert result["u - v without the absolute value"] < result["siamese"], (
    "the sign is noise to a symmetric question"
)

# %% [markdown]
# That is why such bugs live long: a score of 50 looks like a weak model, not like a broken one. One question would
# have found two of them: *does the score change when only the second sentence changes?* The third would have fallen to
# another: *is |u - v| zero for two different sentences?* Ask such questions in a test.


# %%
from contextlib import nullcontext


def changed(name):
    """How far the untrained siamese score moves when only the second sentence changes."""
    with planted(MISTAKES[name]) if name else nullcontext(), torch.no_grad():
        encoded = [
            siamese.tokenize(["A cat."], [second])
            for second in ("A kitten.", "It rains.")
        ]
        one, other = (siamese(*siamese.batch(pair, [0])) for pair in encoded)
    return largest_difference(one, other)


print(f"right {changed(None):.4f}")
assert changed(None) > 1e-3, "it must"
for name in ("head reads the first sentence only", "second ids from the first"):
    print(f"{name} {changed(name):.4f}")
    assert changed(name) < 1e-6, f"{name}: the second sentence plays no part"

# %% [markdown]
# The notebook has six more; sheet 30 finds each of them by a check of two lines.
#
# What the two scored losses of the exercises do beyond their names: `weighted_mse_loss` is the mean of (score -
# target)^2 times a weight, which is larger for targets below a threshold. `binary_cross_entropy_loss` takes a
# `pos_weight`, by which the losses of the rows with answer yes are multiplied: with one yes for nine times no, 9
# makes both count alike. The share of yes, 1 / (1 + exp(-z)), is called the **sigmoid** of z.

# %% [markdown]
# **Exercise 3.** "unit vectors to the head" is in the list of mistakes. Train with it. Is it worse here? What would
# you conclude?

# %% [markdown]
# ## Now read the chapter
#
# The heads, all of them.
#
# - `siamese` has u among its features and not v. Is its score the same for (a, b) and (b, a)?
# - `published` gives attention only `a[:, :1]`. Why is that enough?
# - Why does `compare` begin with identity matrices and not with small random numbers?
#
# Answers are in [the book in ten evenings](TEN_EVENINGS.md).

# %%
chapter(15)

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand beside what they practise. `python -m lessons.check answer 15 1` gives a hint for the first,
# and asked again, the answer.
#
# **Exercise 4.** Graded: each head: `python -m lessons.check start 15`, `run 15`, `hint 15`.
#
# ## Sources
#
# - Devlin et al. 2019, *BERT*, section 4.1 and figure 4a: a pair in one input.
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 1 (65 hours against 5 seconds), section 3, section 6 and table 6
#   (what is concatenated).
# - Humeau et al. 2020, *Poly-encoders*, section 4.4: between joint and siamese.
#
# ## What you have now
#
# You have three heads that score a pair, and know how much of each can be computed beforehand. Next: [search, and the
# sixty-five hours](16_search.py).
