# %% [markdown]
# # Lesson 02: text to ids
#
# Steps through `minisbert/core/tokenizer.py`. Reading 50, chapter 40, pieces 85, exercises 70 minutes. You will write
# WordPiece by hand, and batches with their mask, and show that it gives the same ids as the library on every sentence
# of the STS Benchmark (lesson 09).

# %%
import torch
from course import chapter, figure, largest_difference, predict

# %% [markdown]
# ## The question
#
# A network multiplies numbers; a sentence is a string. How does one become the other, when there are millions of words
# and the network has a table of 30,522 rows?
#
# A table of whole words would be too large and still miss words. A table of letters would be small, and a sentence
# would be a hundred steps long. **WordPiece** is in between: frequent words are one piece, a **token**, rare ones are
# several.

# %%
from minisbert.core.tokenizer import Tokenizer
from minisbert.system.assets import ensure

folder = ensure("all-MiniLM-L6-v2")
tokenizer = Tokenizer.load(folder, limit=256)  # at most 256 tokens per text
lines = (
    (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
)
vocab = {piece: i for i, piece in enumerate(lines)}  # the line number is the id
inner = sum(piece.startswith("##") for piece in vocab)
print(f"V = {len(vocab):,} pieces; {inner:,} of them, such as ##s, continue a word")
assert len(vocab) == 30522, "V, the size of the vocabulary"

# %% [markdown]
# ![Map of the model: tokenizer](drawings/map_02.svg)
#
# ## The formula
#
# `V` is the **vocabulary**: a set of pieces, each with an id. A piece that continues a word begins with `##`. A word w
# of n letters is cut from the left, the longest piece first:
#
#     s = 0
#     while s < n:   e = the largest end with  piece(w[s:e]) in V     (piece = "##" + letters if s > 0)
#                    take that piece, s = e;  if there is no such e, the whole word is [UNK]
#
# ![WordPiece cuts from the left, the longest piece first](drawings/wordpiece.svg)
#
# (On the site you can [cut texts of your own](../docs/interactive.md#cut-a-text-into-tokens).)
#
# Before that the text is cleaned, lowercased, stripped of accents, and split at white space and around every
# punctuation mark. After that [CLS] goes in front and [SEP] at the end. A text of `T` tokens becomes T ids, these
# **special tokens** included. (Two more are [UNK], for an unknown word, and [PAD], which fills short texts up.) Here it
# is, written out.


# %%
import unicodedata


def is_punctuation(character):
    # for characters that are no spaces; $ and + count, but the euro sign does not
    ascii_mark = character.isascii() and not character.isalnum()
    return ascii_mark or unicodedata.category(character).startswith("P")


def split_words(text):
    """Text -> words in lower case without accents, each punctuation mark a word of its own."""
    # NFD: an accent becomes a character of its own, of category Mn
    text = unicodedata.normalize("NFD", text.lower())
    letters = []
    for character in text:
        category = unicodedata.category(character)
        if character.isspace():
            letters.append(" ")
        elif category == "Mn" or category.startswith("C"):
            continue  # accents, control characters
        elif is_punctuation(character):
            letters.append(f" {character} ")
        else:
            letters.append(character)
    return "".join(letters).split()


def wordpiece(word, vocab):
    """One word -> its pieces, longest first."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocab:
                break
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


def to_ids(text):
    pieces = [piece for word in split_words(text) for piece in wordpiece(word, vocab)]
    return [vocab[piece] for piece in ("[CLS]", *pieces, "[SEP]")]


# %% [markdown]
# ## The real function
#
# `Tokenizer.encode` on a text of three tokens. Check the three ids against the lines of `weights/all-MiniLM-L6-v2/vocab.txt`:
# "hello" is on line 7593, counted from 1.

# %%
encoded = tokenizer.encode(["Hello"])
print(encoded.ids, tokenizer.tokens(encoded.ids[0]))
assert encoded.ids == [[101, 7592, 102]], "[CLS] hello [SEP]"
assert to_ids("Hello") == encoded.ids[0], "ours gives the same"

# %% [markdown]
# One word agrees, but one word is not a test. The STS Benchmark has 17,256 sentences: news, captions, forum posts, in
# three splits (lesson 09).

# %%
from minisbert.data.rows import load_scored_pairs

sentences = [
    text
    for split in ("train", "dev", "test")
    for pair in load_scored_pairs("stsb", split)
    for text in (pair.sentence1, pair.sentence2)
]
library = tokenizer.encode(sentences)
both = zip(sentences, library.ids, strict=True)
different = [text for text, ids in both if to_ids(text) != ids]
print(f"{len(sentences):,} sentences, {len(different)} with other ids")
assert len(sentences) == 17256, "both sentences of 8,628 pairs"
assert not different, f"WordPiece by hand differs on {different[:3]}"

# %% [markdown]
# **Write it.** `split_words` and `word_pieces`, the first two pieces of this lesson, are these functions with all the
# rules: `python -m lessons.check start 02` writes them, empty, to `lessons/mine/lesson_02.py`, and `run 02` says what is
# right. The stub imports two helpers, `cleaned(c)`, which gives a space for white space and nothing for a control
# character, and `is_ideograph(c)`; the rules for them are a bonus.
#
# Agreement on 17,256 sentences is strong evidence, but not proof. Our version differs where this data has no example.
# The rule makes [UNK] of a word of more than 100 letters (Google's own code says 200; we follow the library), a word of
# each Chinese character, and a small letter of each capital alone, so that a final sigma is a sigma like any other. It
# drops U+FFFD, and keeps code points that Unicode has not assigned; ours does the reverse. `split_words` and
# `word_pieces` in `minisbert/core/tokenizer.py` have all the rules.

# %%
from minisbert.core.tokenizer import token_ids

for text in ("東京", "ΟΔΟΣ", "a\u0378b", "a\ufffdb"):
    assert to_ids(text) != tokenizer.encode([text]).ids[0], "a rule that ours lacks"
    assert token_ids(text, vocab) == tokenizer.encode([text]).ids[0], "the package's"

# %% [markdown]
# The book's versions, and, once you have written them, yours below each. `word_pieces` returns `[unknown]` from inside
# its loop. What would a word become whose start is known, if it were `break`? (The answers to the questions about the
# book are in [the book in ten evenings](TEN_EVENINGS.md).)

# %%
chapter("tokenizer", "top", "is_ideograph", "is_punctuation", "split_words")
chapter("tokenizer", "word_pieces", "token_ids")

# %% [markdown]
# **Exercise 1.** Give `split_words` the rule for Chinese characters (code points 4E00 to 9FFF will do) until the first
# assert fails on 東京.

# %% [markdown]
# ## From rows to a rectangle
#
# A network computes a batch of texts at once, and a tensor is a rectangle, but texts are not of one length. So the
# short rows are filled up with **pads**, and a **mask** says which tokens are real. With n_b the number of ids in row b
# of B rows, and T the largest of them:
#
#     ids[b, t]   =  the t-th id of row b  if  t < n_b,  else the id of [PAD]        (B, T), integers
#     mask[b, t]  =  t < n_b                                                         (B, T), True or False
#
# If all rows have T ids there is nothing to hide, and the mask is None. It is made from the lengths, not from the ids:
# a real token may have the pad's id. A row may be a list or a tuple of ids.

# %%
from minisbert.core.tokenizer import pad_batch

ids, mask = pad_batch([[101, 7592, 102], [101, 102]], pad_id=0)
print(ids, mask, sep="\n")
assert ids.tolist() == [[101, 7592, 102], [101, 102, 0]], "one pad"
assert mask.tolist() == [[True, True, True], [True, True, False]], "and where it is"

# %% [markdown]
# **Write it:** `pad_batch` is the third piece. When does the book's give no mask, and what does attention (lesson 05)
# save by that? And which lines make texts into rows, before any are padded: what does `Tokenizer.__init__` switch off,
# and why?

# %%
chapter("tokenizer", "pad_batch", "Encoded", "Tokenizer.__init__", "Tokenizer.encode")

# %% [markdown]
# ## The figure
#
# How long are sentences in tokens, and how often does a word need more than one piece?
#
# ![Tokens per sentence, and pieces per word](figures/02_text_to_ids.png)

# %%
from collections import Counter

lengths = [len(ids) for ids in library.ids]
cuts = Counter(
    len(wordpiece(word, vocab)) for text in sentences for word in split_words(text)
)


def draw(plt):
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.hist(lengths, bins=range(0, 72, 2), color="#3b7ab8")
    left.set(
        xlabel="tokens, with [CLS] and [SEP]",
        ylabel="sentences",
        title="STS Benchmark, 17,256 sentences",
    )
    pieces, words = zip(*sorted(cuts.items()), strict=True)
    bars = right.bar([str(count) for count in pieces], words, color="#3b7ab8")
    right.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    right.set(
        yscale="log",
        xlabel="pieces",
        ylabel="words (log scale)",
        title="Pieces that a word is cut into",
    )
    return drawn


figure("02_text_to_ids", draw)
print(f"mean {sum(lengths) / len(lengths):.1f} tokens, longest {max(lengths)}")
print(f"{cuts[1] / cuts.total():.1%} of the words are one piece")
assert max(lengths) == 70, "far below the model's limit of 256"
assert 0.95 < cuts[1] / cuts.total() < 0.97, "most words in a text are frequent words"

# %% [markdown]
# **Exercise 2.** Which ten `##` pieces are the most frequent in the STS Benchmark? Are they endings?

# %% [markdown]
# ## Predict, then run
#
# **1.** How is "embeddings" cut? The word itself is not in the vocabulary. And "unaffable"? Do the cuts match the
# word's prefix, stem and ending?

# %%
guess = predict(
    "02.1",
    'How is "unaffable" cut?',
    ["un ##aff ##able", "una ##ffa ##ble", "not at all", "[UNK]"],
)

# %%
for word in ("embeddings", "unaffable", "tokenization"):
    print(word, wordpiece(word, vocab))
assert wordpiece("embeddings", vocab) == ["em", "##bed", "##ding", "##s"], (
    "em is longest"
)
pieces = wordpiece("unaffable", vocab)
assert pieces == ["una", "##ffa", "##ble"], "greedy, without any idea of un-"
guess.answer("una ##ffa ##ble")

# %% [markdown]
# **2.** "Zürich", "ZURICH" and "zurich": one, two or three different rows of ids?

# %%
guess = predict(
    "02.2",
    '"Zürich", "ZURICH", "zurich": how many different rows of ids?',
    ["one", "two", "three"],
)

# %%
rows = tokenizer.encode(["Zürich", "ZURICH", "zurich"]).ids
print(rows)
assert rows[0] == rows[1] == rows[2], "case and accents never reach the first layer"
guess.answer("one")

# %% [markdown]
# **3.** An empty text has how many tokens?

# %%
guess = predict("02.3", "How many tokens has an empty text?", ["0", "1", "2"])

# %%
print(tokenizer.tokens(tokenizer.encode([""]).ids[0]))
assert tokenizer.encode([""]).ids == [[101, 102]], "two: [CLS] and [SEP]"
guess.answer("2")

# %% [markdown]
# **4.** Lesson 15 puts a pair of sentences into one input, `[CLS] a [SEP] b [SEP]`. Sentence a has 10 tokens, b has 3,
# and only 8 of them fit. `longest_first` shortens the longer one first. What is left of each? And of 10 and 9?

# %%
guess = predict(
    "02.4",
    "10 and 9 tokens, room for 8: what is left of each?",
    ["5 and 3", "4 and 4", "8 and 0"],
)

# %%
from minisbert.core.tokenizer import longest_first

print(longest_first(10, 3, 8), longest_first(10, 9, 8))
assert longest_first(10, 3, 8) == (5, 3), "the short one loses nothing"
assert longest_first(10, 9, 8) == (4, 4), "both are cut once they are equal"
guess.answer("4 and 4")

# %% [markdown]
# How the book does it. `assemble` puts the special tokens around what is left. Which of a pair is shortened if both have
# the same length and one token is too many?

# %%
chapter("tokenizer", "longest_first", "Slot", "assemble")

# %% [markdown]
# **Exercise 3.** `tokenizer.encode(["the the the ..."])` with 300 words: read `.truncated` and the number of ids. Why
# must a program say that it has cut a text?

# %% [markdown]
# ## Break it
#
# **A rule changed.** Take the *shortest* piece first, or forget the `##`. Both give ids, and no error. Then compare the
# vectors of a sentence cut in both ways: calling the model, `encoder(ids)`, runs its `forward`.


# %%
from minisbert.core.encoder import SentenceEncoder


def shortest_first(word):
    """Each letter is a piece in V, so the shortest piece is always a single letter."""
    return [word[0], *(f"##{letter}" for letter in word[1:])]


without_marks = [piece.removeprefix("##") for piece in wordpiece("embeddings", vocab)]
print(shortest_first("cat"), [vocab[piece] for piece in shortest_first("cat")])
print(without_marks, [vocab[piece] for piece in without_marks])
assert {*shortest_first("aabcdefghijklmnopqrstuvwxyz")} <= {*vocab}, "all in V"

encoder = SentenceEncoder.load(folder)
with torch.no_grad():
    right = encoder(torch.tensor([to_ids("A cat sits.")]))  # (1, D)
    words = split_words("A cat sits.")
    spelled = [vocab[piece] for word in words for piece in shortest_first(word)]
    wrong = encoder(torch.tensor([[101, *spelled, 102]]))
print(f"cosine of the same sentence cut in two ways: {(right @ wrong.T).item():.3f}")
assert (right @ wrong.T).item() < 0.6, "a word that is spelled is hardly the same word"

# %% [markdown]
# **A trap in the file.** The published `tokenizer.json` of this model fills every text up to 128 tokens with **pads**
# and cuts at 128, while the model's own limit is 256. Loaded as is, it turns "hello" into 128 ids. `Tokenizer` clears
# both settings.

# %%
from tokenizers import Tokenizer as Library

naive = Library.from_file(str(folder / "tokenizer.json")).encode("hello").ids
print(len(naive), naive[:5])
assert len(naive) == 128, "3 tokens and 125 pads"
assert encoder.tokenizer.limit == 256, "max_seq_length of sentence_bert_config.json"

# %% [markdown]
# Pads do no harm as long as the mask hides them from attention (lesson 05) and from the mean over tokens (lesson 08);
# they only cost time. Now plant "no attention mask" and see what the padding decides.

# %%
from lessons.mistakes import MISTAKES, planted

ids = torch.tensor([naive])  # (1, 128)
mask = ids != 0
with torch.no_grad():
    short = encoder(*pad_batch([encoded.ids[0]], 0))  # (1, D), no pads
    padded = encoder(ids, mask)
    with planted(MISTAKES["no attention mask"]):
        unmasked = encoder(ids, mask)
with_mask = largest_difference(short, padded)
without = largest_difference(short, unmasked)
print(f"largest difference with a mask {with_mask:.1e}, without {without:.2f}")
assert with_mask < 2e-6, "hidden pads change nothing"
assert without > 0.05, "125 pads outvote three tokens"

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 3 stand above; `python -m lessons.check answer 02 1` gives a hint for the first, then the answer.
#
# **Exercise 4.** Graded: words, their pieces, a batch: `python -m lessons.check start 02`, then `run 02`; `hint 02` when
# you are stuck.
#
# ## Sources
#
# - Schuster and Nakajima 2012, *Japanese and Korean voice search*: where word pieces come from.
# - Wu et al. 2016, *Google's neural machine translation system*, section 4.1: word pieces in translation.
# - Devlin et al. 2019, *BERT*, section 3, and figure 2: [CLS], [SEP] and the 30,000 pieces. The paper does not say how
#   a word is cut; `WordpieceTokenizer` in tokenization.py of google-research/bert takes the longest piece first.
#
# ## What you have now
#
# `python -m lessons.check mine 02` counts for how many of 17,256 sentences your ids are the library's.
#
# You can turn any text into the ids that the model was trained on. Next: [the weights file](03_weights_file.py).
