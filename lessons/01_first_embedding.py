# %% [markdown]
# # Lesson 01: the first embedding
#
# Steps through `minisbert/core/encoder.py`, from the outside. Reading 35, chapter 5, pieces 15, exercises 50 minutes.
# You will have sentence vectors and a similarity matrix in the first minute; the rest asks what these numbers are.
#
# Run one cell after the other, in VS Code or in Jupyter, or all at once with `python lessons/01_first_embedding.py`.
# Most numbers in the text have an `assert` beside them. If one fails, either the code or the text is wrong.

# %%
import numpy as np
from course import chapter, figure, heatmap, largest_difference, predict

from lessons.mistakes import MISTAKES, planted
from minisbert.core.encoder import SentenceEncoder
from minisbert.system.assets import ensure

# %% [markdown]
# ## The question
#
# Do two sentences say the same thing? They may share no word and mean the same, or share every word and mean the
# opposite. So comparing letters will not do. Can we turn a sentence into a list of numbers such that *alike in
# meaning* becomes *near in space*? Such a list is called an **embedding**.
#
# Somebody has trained such a map, an **encoder**: all-MiniLM-L6-v2. We load it and try.

# %%
encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"))  # fetched once, 92 MB
sentences = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Two people are playing chess.",
    "The stock market fell sharply today.",
]
vectors = encoder.encode(sentences)  # (N, D)
print(vectors.shape, vectors.dtype)
assert vectors.shape == (4, 384), "four sentences, 384 numbers each"

# %% [markdown]
# ## The formula
#
# Two symbols for now: `N` is the number of sentences, `D` the number of columns of a vector, its **width**. Here N = 4
# and D = 384. (The course has one legend of dimensions, at the top of `minisbert/core/bert.py`.)
#
# The similarity of two vectors u and v, each (D,), is the **cosine** of the angle between them:
#
#     cos(u, v) = sum over d of u[d] * v[d]  /  (|u| * |v|)        |u| = sqrt(sum over d of u[d]^2)
#
# It is 1 if both point the same way, 0 if they are at right angles, -1 if they are opposite. Their lengths do not
# matter. All pairs at once are a matrix product: scale each row to length 1, then (N, D) times (D, N) gives (N, N).

# %% [markdown]
# ## The real function
#
# `SentenceEncoder.similarity`, which calls `cosine_matrix`, first on vectors small enough to check by eye. Three
# vectors of width 2: to the right, up, and in between. The cosine of 45 degrees is 0.7071.

# %%
small = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]])
print(encoder.similarity(small, small))
expected = [[1, 0, 0.7071], [0, 1, 0.7071], [0.7071, 0.7071, 1]]
assert largest_difference(encoder.similarity(small, small), expected) < 1e-4, (
    "cosines of 0, 45 and 90 degrees"
)

# %% [markdown]
# Now the real ones. The first four columns of three sentences, then the whole matrix.

# %%
print(vectors[:3, :4])
matrix = encoder.similarity(vectors, vectors)  # (N, N)
print(matrix)
assert matrix[0, 1] > 0.6, "the cat and the kitten share almost no words, yet are near"
assert np.abs(matrix[0, 2:]).max() < 0.1, "chess and the stock market are elsewhere"

# %% [markdown]
# No single column means anything you could name. What carries meaning is how whole vectors lie relative to each other.
#
# Look at the lengths: this model scales every vector to length 1. Then the cosine is the plain dot product, and
# `vectors @ vectors.T` is the same matrix.

# %%
print(np.linalg.norm(vectors, axis=1))
assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6), "unit vectors"
assert largest_difference(vectors @ vectors.T, matrix) < 1e-6, "cosine = dot product"

# %% [markdown]
# **Exercise 1.** Write ten sentences, five pairs with the same meaning. Is each one's nearest neighbour its partner?

# %% [markdown]
# ## The figure
#
# ![The similarity matrix as a heat map](figures/01_first_embedding.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(7.5, 3.9), layout="constrained")
    numbered = [f"{text}  {i}" for i, text in enumerate(sentences, start=1)]
    image = heatmap(axes, matrix, numbered, ["1", "2", "3", "4"], ".2f")
    drawn.colorbar(image, label="cosine")
    axes.set_title("Cosine of each sentence with each other one")
    return drawn


figure("01_first_embedding", draw)

# %% [markdown]
# **Exercise 2.** Write two sentences with a cosine below -0.1. It takes a few tries: among a thousand random sentences
# of the STS Benchmark (lesson 09) about one pair in twenty is that far apart. Why are most cosines above 0? (Lesson 10
# measures it.)

# %% [markdown]
# ## Predict, then run
#
# A cell asks for your guess, and the next one shows the answer. Type `2!` in place of `2` if you are sure. `python -m
# lessons.check guesses` counts how often you were right, and how often when you were sure.
#
# **1.** "dog bites man" and "man bites dog" have the same words. Is their cosine near 0, about 0.5, about 0.9, or 1?

# %%
guess = predict(
    "01.1",
    'The cosine of "dog bites man" and "man bites dog"?',
    ["near 0", "about 0.5", "about 0.9", "1"],
)

# %%
u, v = encoder.encode(["dog bites man", "man bites dog"])
print(f"{u @ v:.3f}")
assert 0.85 < u @ v < 0.95, "near, and not 1: the order counts"
guess.answer("about 0.9")

# %% [markdown]
# **2.** One sentence negates the other: "A man is playing a guitar." and "A man is not playing a guitar." Which is
# nearer to the first one: its negation, or "A person plays an instrument."?

# %%
guess = predict(
    "01.2",
    'Which is nearer to "A man is playing a guitar."?',
    ["its negation", "the wider statement"],
)

# %%
u, negated, wider = encoder.encode(
    [
        "A man is playing a guitar.",
        "A man is not playing a guitar.",
        "A person plays an instrument.",
    ]
)
print(f"its negation {u @ negated:.3f}, the wider statement {u @ wider:.3f}")
assert u @ negated > u @ wider, "what it is about counts, not whether it is true"
guess.answer("its negation")

# %% [markdown]
# **3.** A question and four answers, one about each planet. Mars should win. Which one
# comes second?

# %%
guess = predict(
    "01.3", "Mars wins. Which planet comes second?", ["Venus", "Jupiter", "Saturn"]
)

# %%
question = "Which planet is known as the Red Planet?"
answers = [
    "Venus is often called Earth's twin because of its similar size and proximity.",
    "Mars, known for its reddish appearance, is often referred to as the Red Planet.",
    "Jupiter, the largest planet in our solar system, has a prominent red spot.",
    "Saturn, famous for its rings, is sometimes mistaken for the Red Planet.",
]
found = encoder.similarity(encoder.encode([question]), encoder.encode(answers))[0]
for score, answer in sorted(zip(found, answers, strict=True), reverse=True):
    print(f"{score:.3f}  {answer}")
assert np.abs(found - [0.465, 0.811, 0.728, 0.750]).max() < 1e-3, "Mars, then Saturn"
guess.answer("Saturn")

# %% [markdown]
# **Exercise 3.** `encoder.encode([""])` gives a vector. Of what? Print `encoder.tokenizer.encode([""]).ids`. (Lesson
# 02.)

# %% [markdown]
# ## Break it
#
# The encoder is a few hundred lines of tensor code. Suppose you wrote it yourself and made one mistake. Would you see
# it in this matrix? `lessons/mistakes/` has mistakes that people make. `planted` puts one of them into the running
# `minisbert/core` and takes it out again at the end of the block. (The encoder here is the one in `core`;
# `minisbert.SentenceEncoder` runs the same formulas and would show the same mistakes.)

# %%
print(f"{len(MISTAKES)} known mistakes; for example:")
largest = {"tanh GELU": 0.001, "[CLS] and [SEP] left out": 0.03, "no 1/sqrt(K)": 0.1}
for name in (*largest, "ReLU"):
    with planted(MISTAKES[name]):
        wrong = encoder.encode(sentences)
    wrong_matrix = encoder.similarity(wrong, wrong)
    moved = largest_difference(wrong_matrix, matrix)
    print(f"{name:24} largest change {moved:.4f}   first row {wrong_matrix[0]}")
    if name in largest:
        assert 1e-4 < moved < largest[name], "wrong, but not visibly"
        assert wrong_matrix[0].argsort()[-2] == 1, "the kitten is still the nearest"
again = encoder.encode(sentences)
assert largest_difference(again, vectors) < 1e-6, "outside the block all is right again"

# %% [markdown]
# Each name is one detail of the encoder that somebody got wrong: a function in lesson 06 (*tanh GELU*, *ReLU*), two
# tokens that frame a text in lesson 02 (*[CLS] and [SEP] left out*), a root in lesson 05 (*no 1/sqrt(K)*). You need
# not know them yet to see what they do.
#
# The first row of the right matrix was 1, 0.655, -0.073, 0.091. Three of the four wrong encoders give a matrix that no
# one would question: the cat is near the kitten and far from the stock market. Only the last one looks odd. So "the
# results look sensible" is not a test, and that is why this project compares every number with a reference. Lesson 07
# shows how to find the mistake.

# %% [markdown]
# ## Where these numbers come from
#
# **BERT** (2018) is a **network**, a function of many learned numbers in layers, that turns a text into one vector
# for each of its words, or pieces of words. It is a
# **transformer**: a stack of steps of one and the same form, its **layers**. Its smaller version, BERT base, has twelve
# layers and 110 million learned numbers; ours has six layers. A layer takes the vectors of all words, lets them look at
# each other (lesson 05), works on each alone (lesson 06), and returns as many vectors of the same width; so one layer
# can follow another, and each has numbers of its own. The vectors that leave the last one are averaged, and that is the
# sentence's (lesson 08).
#
# Who chose the numbers? Three trainings, one after the other.
#
# 1. *Guessing hidden words.* BERT was given books and Wikipedia with some words hidden, and after each batch of texts
#    its numbers were moved a little, so that it would have guessed better. (It also guessed whether one text follows
#    another.) Nobody had to label anything. Lesson 24 trains an encoder so, from random numbers.
# 2. *Copying.* MiniLM is smaller. It was trained to do inside what a large model of this kind does (lesson 27). It has
#    twelve layers; ours has every second one of them.
# 3. *Pairs.* Then it was trained on pairs that belong together, such as a question and its answer: a hundred million of
#    a set of a billion, to give the two vectors that are nearer to each other than to those of other pairs (lesson 10).
#    Only this makes a cosine say something about meaning.
#
# What is left of it is a file of 22.7 million numbers, four bytes each. Such a number is a **float32**: 32 bits for its
# sign, its size and its first 24 binary digits, which are about seven decimal ones; 2^24 + 1 has 25 binary digits, and
# is rounded to 2^24. A **float64** has twice the bits and about sixteen decimal digits. So float32 sums depend a little
# on the order in which they are made, and two right programs differ in the seventh digit. Lesson 07 is about telling
# that from a mistake. How vectors of sentences were made before BERT: [before
# transformers](../docs/before-transformers.md).

# %%
print(f"one third as a float32: {np.float32(1) / np.float32(3):.12f}")
assert abs(float(np.float32(1) / np.float32(3)) - 1 / 3) > 1e-9, "not one third"
big = np.float32(2**24)
assert big + np.float32(1) == big, "25 binary digits do not fit"
assert len(encoder.bert.layers) == 6, "every second one of twelve"
numbers = sum(p.numel() for p in encoder.bert.parameters())  # numel counts a tensor's
assert numbers == 22_713_216, "all learned"

# %% [markdown]
# ## Now read the chapter
#
# `minisbert/core` is a book of ten chapters; this is its table of contents. Which of them does `encoder.encode` need,
# and which only training?

# %%
chapter("__init__")

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above. `python -m lessons.check answer 01 1` gives a hint for the first, and asked again, the
# answer.
#
# **Exercise 4.** Graded: write the matrix of cosines yourself. `python -m lessons.check start 01` writes the empty
# function to `lessons/mine/`, `python -m lessons.check run 01` checks it and says what is wrong. It takes and returns a
# `Tensor`, PyTorch's array: `u @ v.T`, `u * v`, `u.sum(1)` and `u[:, None]` are as in NumPy, `u.sqrt()` is the root.
#
# ## Sources
#
# - Reimers and Gurevych 2019, *Sentence-BERT*, section 3: one encoder for each sentence, compared by cosine.
# - Wang et al. 2020, *MiniLM*: how a large model teaches a small one.
# - The model cards of nreimers/MiniLM-L6-H384-uncased (which layers were kept) and of
#   sentence-transformers/all-MiniLM-L6-v2 (the set of pairs; 100,000 steps of 1,024 pairs each).
#
# ## What you have now
#
# `python -m lessons.check mine 01 "One." "Another."` compares your own sentences by your function.
#
# You have sentences as vectors and the matrix of their cosines. Next: [text to ids](02_text_to_ids.py).
