# %% [markdown]
# # Sheet 33: instructions and prompts
#
# Steps through `lessons/by_hand/prompts.py`. Reading 35, pieces 20, exercises 20 minutes. After lesson 11. You will
# teach MiniLM two meanings of "similar" that contradict each other, ask for either by a few words before the text,
# and see what happens if they are forgotten.

# %%
import random
import tempfile

from course import figure, predict

from minisbert import SentenceEncoder
from minisbert.train import train

# %% [markdown]
# ## The question
#
# Is "three red apples" more like "seven red chairs" or like "three green chairs"? It depends on what you are after.
# An encoder has one vector for a text, so it must have decided. Unless it is told: newer models read an
# **instruction** or **prompt** before the text, "query: ", "passage: ", or a whole sentence that says what the vector
# is for.
#
# ## The formula
#
#     u  =  encode(prompt + text)        the same text, another prompt: another vector
#
# A prompt is text like any other. It is not a switch, and nothing in the architecture knows of it: only training
# gives it a meaning. The mean over tokens includes the prompt's own, unless the model's folder says `include_prompt:
# false`. Then the prompt is read by every layer and left out of the pooling: of the states h of a text's tokens, the
# first p of which are [CLS] and the prompt's,
#
#     v  =  mean over the tokens from p on of h
#
# so the vector is that of the text's own tokens, each of which has seen the prompt.
#
# ## The real function
#
# Triples of an anchor, a text that is like it and one that is not. Asked for the colour, "seven red chairs" is right
# and "three green chairs" wrong; asked for the number, it is the other way round. The test uses colours, numbers and
# things that training has not seen.

# %%
COLOURS = ["red", "green", "blue", "yellow", "black", "white", "orange", "purple"]
NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight", "nine"]
THINGS = [
    "apples",
    "chairs",
    "cars",
    "birds",
    "books",
    "boats",
    "coats",
    "dogs",
    "doors",
    "flowers",
    "hats",
    "horses",
    "houses",
    "keys",
    "lamps",
    "shoes",
    "tables",
    "trees",
    "wheels",
    "windows",
]
chance = random.Random(0)


def triples(colours, numbers, things, count):
    """(what is asked for, anchor, what is like it, what is not): two for each drawing, with sides exchanged."""
    found = []
    for _ in range(count):
        colour, other_colour = chance.sample(colours, 2)
        number, other_number = chance.sample(numbers, 2)
        thing, other_thing = chance.sample(things, 2)
        anchor = f"{number} {colour} {thing}"
        by_colour = f"{other_number} {colour} {other_thing}"
        by_number = f"{number} {other_colour} {other_thing}"
        found += [
            ("colour", anchor, by_colour, by_number),
            ("number", anchor, by_number, by_colour),
        ]
    return found


training = triples(COLOURS[:6], NUMBERS[:6], THINGS[:14], 480)
held_out = triples(COLOURS[6:], NUMBERS[6:], THINGS[14:], 100)
print(*training[:2], sep="\n")

PROMPTS = {"colour": "same colour: ", "number": "same number: "}
OTHER = {"colour": PROMPTS["number"], "number": PROMPTS["colour"]}
NONE = {"colour": "", "number": ""}


def share_right(encoder, prompts):
    """Of the held-out triples, how often the text that is like the anchor is nearer."""
    right = 0
    for asked in PROMPTS:
        rows = [triple[1:] for triple in held_out if triple[0] == asked]
        u, like, unlike = (
            encoder.encode([row[side] for row in rows], prompt=prompts[asked])
            for side in range(3)
        )
        right += int(((u * like).sum(1) > (u * unlike).sum(1)).sum())
    return right / len(held_out)


# %% [markdown]
# ## Predict, then run
#
# **1.** MiniLM has never been trained with these prompts. How often is it right?

# %%
guess = predict("33.1", "Untrained, with the right prompt:", ["0.5", "0.75", "0.95"])

# %%
encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
before = {
    name: share_right(encoder, prompts)
    for name, prompts in (("right", PROMPTS), ("none", NONE), ("other", OTHER))
}
print(before)
assert before["none"] == 0.5, (
    "one vector for both questions: right for one, wrong for the other"
)
assert abs(before["right"] - 0.5) < 0.1, (
    "to an untrained model a prompt is three more tokens"
)
guess.answer("0.5")

# %% [markdown]
# Without a prompt every model gets exactly half: both questions have the same three vectors, and whichever text is
# nearer answers one of them. No training can mend that.
#
# **2.** Sixty steps with the triplet loss of lesson 10, prompts before all three texts. Afterwards, with the *other*
# question's prompt?

# %%
guess = predict(
    "33.2", "Trained, with the other prompt:", ["0.5", "nearly 0", "nearly 1"]
)

# %%
rows = [tuple(PROMPTS[asked] + text for text in texts) for asked, *texts in training]
trained = train(encoder, rows, loss="triplet", epochs=2)
after = {
    name: share_right(trained, prompts)
    for name, prompts in (("right", PROMPTS), ("none", NONE), ("other", OTHER))
}
print(after)
assert after["right"] > 0.9, "on words that it has not been trained on"
assert after["none"] == 0.5, "by arithmetic, as before"
assert after["other"] < 0.1, "it does what it is told"
guess.answer("nearly 0")

# %% [markdown]
# The same weights are right always, half of the time, or never: by two words in front of the text. So a model that was
# trained with prompts must be used with *its* prompts, for queries and for documents. Forget them, and no error tells
# you. They belong in the model's folder, not in somebody's notebook, and have names there.

# %%
trained.settings.prompts.update(PROMPTS)
with tempfile.TemporaryDirectory() as folder:
    trained.save(folder)
    loaded = SentenceEncoder.load(folder)
by_name = loaded.encode("three red apples", prompt_name="colour")
by_hand = loaded.encode("same colour: three red apples")
print(loaded.settings.prompts)
assert (by_name == by_hand).all(), "a prompt is text before the text"

# %% [markdown]
# Must the prompt be in the mean? Its tokens are the same for every text, so they say little about this one. On one
# text by hand, then on all:

# %%
import torch

from lessons.by_hand.prompts import mean_after_prompt
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import pad_batch

states = torch.tensor(
    [[[9.0], [1.0], [3.0]]]
)  # (1, T, 1): a prompt's token and two others
mask = torch.ones(1, 3, dtype=torch.bool)
assert mean_after_prompt(states, mask, 1).item() == 2, "(1 + 3) / 2"


def own_tokens(texts, prompt):
    """Vectors (N, D) of texts that were read with a prompt and pooled without it."""
    count = (
        len(trained.tokenizer.encode([prompt]).ids[0]) - 1
    )  # [CLS] and the prompt, no [SEP]
    ids = trained.tokenizer.encode([prompt + text for text in texts]).ids
    batch, mask = pad_batch(ids, trained.tokenizer.pad_id)
    if mask is None:  # no text is shorter than another
        mask = torch.ones_like(batch, dtype=torch.bool)
    with torch.no_grad():
        return normalize(mean_after_prompt(trained.bert(batch, mask), mask, count))


right = 0
for asked, prompt in PROMPTS.items():
    rows = [triple[1:] for triple in held_out if triple[0] == asked]
    u = own_tokens([row[0] for row in rows], prompt)
    like = own_tokens([row[1] for row in rows], prompt)
    unlike = own_tokens([row[2] for row in rows], prompt)
    right += int(((u * like).sum(1) > (u * unlike).sum(1)).sum())
without = right / len(held_out)
print(f"prompt read and pooled {after['right']:.2f}, read and not pooled {without:.2f}")
assert without > 0.9, "the text's own tokens have seen the prompt: that is enough"

# %% [markdown]
# ## The figure
#
# ![Share of triples right, by prompt](figures/33_instructions_and_prompts.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(5.6, 2.6), layout="constrained")
    for shift, shares, ink, label in (
        (-0.18, before, "#bbbbbb", "before"),
        (0.18, after, "#1f4e79", "after"),
    ):
        places = [place + shift for place in range(3)]
        axes.bar(places, shares.values(), 0.34, color=ink, label=f"{label} training")
    axes.set_xticks(range(3), ["the right prompt", "none", "the other prompt"])
    axes.set(ylabel="share of triples right", ylim=(0, 1.05))
    axes.legend(frameon=False, loc="upper right")
    return drawn


figure("33_instructions_and_prompts", draw)

# %% [markdown]
# ## Break it
#
# Store the vectors of a corpus with one prompt, and ask with another: every document is still there, and the answers
# are not.

# %%
rows = [triple[1:] for triple in held_out if triple[0] == "colour"]
u = trained.encode([row[0] for row in rows], prompt=PROMPTS["colour"])
like, unlike = (
    trained.encode([row[side] for row in rows], prompt=PROMPTS["number"])
    for side in (1, 2)
)
mixed = float(((u * like).sum(1) > (u * unlike).sum(1)).mean())
print(f"query for the colour, documents for the number: {mixed:.2f} right")
assert mixed < 0.75, "hardly better than a coin"

# %% [markdown]
# ## Exercises
#
# `python -m lessons.check answer 33 1` gives a hint, and asked again, an answer.
#
# **Exercise 1.** Write the prompts with a capital letter, without the colon, or as "the colour is the same: ". Which
# of them still work, and what would you have to do so that all do?
#
# **Exercise 2.** A model's card says "query: " and "passage: ". You compare sentences with each other, as STS-B does.
# Which of the two do you take, and for which side?
#
# **Exercise 3.** Graded: the mean after a prompt: `python -m lessons.check start 33`, `run 33`, `hint 33`.
#
# ## Sources
#
# - Su et al. 2022, *One Embedder, Any Task: Instruction-Finetuned Text Embeddings* (arXiv 2212.09741).
# - Wang et al. 2022, *Text Embeddings by Weakly-Supervised Contrastive Pre-training* (arXiv 2212.03533): E5.
#
# ## What you have now
#
# You know what a prompt is, and why its absence is silent. Next: [search for a language
# model](34_search_for_a_language_model.py).
