# %% [markdown]
# # Sheet 31: where vectors fail
#
# Steps through `lessons/by_hand/limits.py`. Reading 50, pieces 20, exercises 80 minutes. After lesson 18. You will
# ask MiniLM thirty questions of which it gets two right, find out how many answers four columns can hold and why
# training does not find them, and, in an exercise, read a text back out of its vector.

# %%
import itertools

import numpy as np
import torch
from course import figure, largest_difference, predict

from lessons.search.bm25 import bm25_scores
from lessons.search.docstrings import terms
from minisbert import SentenceEncoder

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")

# %% [markdown]
# ## The question
#
# A sentence, the same sentence with one fact changed, and a paraphrase that shares few words with it: which of the
# two is nearer? A benchmark asks this of random pairs, where it is easy. Here the changed sentence is the hardest
# that one can write: a "not", another number, two names exchanged, another time, another quantity.
#
# ## The formula
#
#     right   if   cos(said, meant)  >  cos(said, changed)
#
# A model that knows nothing gets half of them. What does one get that was trained on a billion pairs?
#
# ## Predict, then run
#
# **1.** Of thirty.

# %%
guess = predict("31.1", "MiniLM gets right ...", ["2", "9", "17", "26"])

# %%
# said | changed | meant
TRIPLES = {
    "negation": """
The door is locked. | The door is not locked. | Nobody can open the door.
He accepted the offer. | He did not accept the offer. | He said yes to the proposal.
The test was positive. | The test was not positive. | The result came back positive.
She remembers his name. | She does not remember his name. | She can recall what he is called.
The drug is safe for children. | The drug is not safe for children. | Kids can take it without risk.
We will refund you. | We will not refund you. | You will get your money back.""",
    "numbers": """
The flight leaves at 9 o'clock. | The flight leaves at 5 o'clock. | The plane takes off at nine.
The flat has two bedrooms. | The flat has four bedrooms. | There are two rooms to sleep in.
The firm lost 3 million dollars. | The firm lost 30 million dollars. | The company made a loss of $3m.
Take one tablet a day. | Take ten tablets a day. | Swallow a single pill daily.
The bridge is 200 metres long. | The bridge is 2,000 metres long. | The bridge has a length of 0.2 km.
The population doubled. | The population halved. | Twice as many people live there now.""",
    "who did it": """
The dog bit the man. | The man bit the dog. | The man was bitten by the dog.
Alice lent Bob money. | Bob lent Alice money. | Bob borrowed money from Alice.
Germany beat Brazil. | Brazil beat Germany. | Brazil lost against Germany.
The teacher thanked the pupil. | The pupil thanked the teacher. | The pupil received the teacher's thanks.
Google bought YouTube. | YouTube bought Google. | YouTube was acquired by Google.
The cat chased the mouse. | The mouse chased the cat. | The mouse ran from the cat.""",
    "time": """
Wash your hands before you cook. | Wash your hands after you cook. | Clean hands first, then prepare the food.
The shop opens tomorrow. | The shop opened yesterday. | From tomorrow on you can buy there.
She was ill before the holiday. | She was ill after the holiday. | When the holiday began she had been sick.
He used to smoke. | He has begun to smoke. | He is no longer a smoker.
The bill will be paid. | The bill has been paid. | Payment is still to come.
Save the file, then close the window. | Close the window, then save the file. | Before closing the window, save it.""",
    "how many": """
All students passed. | Some students passed. | Not one student failed.
Few people came. | Many people came. | Hardly anybody showed up.
The bottle is almost empty. | The bottle is almost full. | There is hardly anything left in the bottle.
Everybody may enter. | Members may enter. | Entry is open to all.
It rarely rains there. | It often rains there. | Rain is uncommon in that place.
At least ten people died. | At most ten people died. | The number of dead is ten or more.""",
}
cosines = {}  # kind: (6, 2), of what was said with what changed and with what was meant
for kind, text in TRIPLES.items():
    rows = [part.strip() for part in text.replace("\n", "|").split("|") if part]
    said, changed, meant = encoder.encode(rows).reshape(6, 3, -1).transpose(1, 0, 2)
    cosines[kind] = np.stack([(said * changed).sum(1), (said * meant).sum(1)], axis=1)
    right = (cosines[kind][:, 1] > cosines[kind][:, 0]).sum()
    changes, means = cosines[kind].mean(0)
    print(f"{kind:12} {right} of 6; mean cosine with changed {changes:.2f}", end=", ")
    print(f"with meant {means:.2f}")
total = sum((c[:, 1] > c[:, 0]).sum() for c in cosines.values())
print(f"{total} of 30")
assert total <= 4, "far fewer than a coin would get"
assert cosines["who did it"][:, 0].min() > 0.97, "the same words in another order"
guess.answer("2")

# %% [markdown]
# Two of thirty, where a coin gets fifteen. The model is consistently wrong, because it measures what a text is *about*,
# and "not" does not change the subject. For search that is right. It is the wrong tool for deciding whether a claim is
# true, a contract is the same or a dose is safe, and a cosine of .98 for exchanged roles gives no warning. A model that
# is trained on such pairs does better: [lesson 15](15_heads.py) trains two. Ask them the thirty triples above.
#
# ## How many answers fit into one vector
#
# Those failures can be mended by training. Is there one that cannot? Let each query have two right documents, and
# each *pair* of documents have a query. The vectors need not come from a model: we may put them wherever we like.
# How many of the n (n - 1) / 2 pairs can be the two nearest of some query?
#
#     columns    pairs that are possible, n documents of length 1       why
#     2          n                                                      neighbours on a circle
#     3          3 n - 6                                                neighbours on a sphere: the edges of its hull
#     4          all of them, for every n                               below
#
# With two columns and four documents that is 4 of 6, and no training mends it. With 384 columns no such bound is left.
# So what is the limit? First, what training finds.
#
# **2.** We let gradient descent place vectors of 4 columns. Up to how many documents does it find every pair?

# %%
guess = predict(
    "31.2",
    "4 columns, every pair an answer, by descent: up to about ...",
    ["8", "50", "400"],
)


# %%
def reached(n, columns, steps=400):
    """The share of all pairs of n documents that are the two nearest of some query, after training on the test."""
    torch.manual_seed(0)
    pairs = torch.tensor(list(itertools.combinations(range(n), 2)))  # (P, 2)
    wanted = torch.zeros(len(pairs), n).scatter_(1, pairs, 0.5)  # (P, n)
    queries, documents = torch.randn(len(pairs), columns), torch.randn(n, columns)
    rows = [queries.requires_grad_(), documents.requires_grad_()]
    optimizer = torch.optim.Adam(rows, lr=0.05)
    for _ in range(steps):
        q, d = (torch.nn.functional.normalize(x, dim=1) for x in rows)
        scores = 20 * q @ d.T  # (P, n)
        loss = -(scores.log_softmax(1) * wanted).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = scores.topk(2, dim=1).indices.sort(dim=1).values
    return (found == pairs).all(1).float().mean().item()


SIZES = (3, 4, 6, 8, 12, 16, 20)
curves = {columns: [reached(n, columns) for n in SIZES] for columns in (2, 4, 6)}
for columns, shares in curves.items():
    found = [f"{n}: {share:.0%}" for n, share in zip(SIZES, shares, strict=True)]
    print(f"{columns} columns", *found, sep="   ")
for n, share in zip(SIZES, curves[2], strict=True):
    assert share <= min(1, 2 / (n - 1)) + 1e-6, "n of n (n - 1) / 2: the bound"
assert curves[4][3] > 0.9 > curves[4][4], "this descent: 8 documents, and not 12"
assert min(curves[6]) > 0.95, "two columns more, and it finds 20"
guess.answer("8")

# %% [markdown]
# It is tempting to read a law from such curves: so many documents for so many columns. It would be a law of this
# descent. Here are four columns that do it for any number of documents. Document t is an angle, and its vector is
#
#     v(t)  =  (cos t, sin t, cos 2t, sin 2t) / sqrt(2)                                        of length 1
#     q     =  (cos a + cos b, sin a + sin b, -cos(a + b) / 2, -sin(a + b) / 2)                the query for a and b
#
# Multiply q with v(t), use cos x cos y + sin x sin y = cos(x - y), and you get, but for a factor and a constant,
#
#     - (1 - cos(t - a)) (1 - cos(t - b))
#
# which is 0 at t = a and at t = b, and below 0 everywhere else: two factors that are never negative. So a and b are the
# two nearest, and nobody else. (The path of v is the trigonometric **moment curve**. With 2 k columns, cos and sin of t
# to k t, the same product of k factors gives every k documents a query.)

# %%
from lessons.by_hand.limits import on_the_curve, query_for_two

half_turn = torch.tensor([np.pi])
by_hand = query_for_two(torch.tensor([0.0]), half_turn)
print(by_hand)
assert largest_difference(by_hand, [[0, 0, 1, 0]]) < 1e-6, (
    "where cos 2t is largest: 0 and pi"
)

# %% [markdown]
# **3.** Twelve documents, evenly on the curve, were too many for descent.

# %%
guess = predict(
    "31.3",
    "The construction, in float32: it finds every pair of up to ...",
    ["12 documents", "100 and more", "a million"],
)


# %%
def constructed(n):
    """Documents (n, 4) on the curve, the queries (P, 4) for all pairs, the pairs (P, 2), in float64."""
    angles = 2 * np.pi * torch.arange(n, dtype=torch.float64) / n
    pairs = torch.combinations(torch.arange(n), 2)
    queries = query_for_two(angles[pairs[:, 0]], angles[pairs[:, 1]])
    return on_the_curve(angles), queries, pairs


def share_found(n, dtype):
    """The share of pairs that are the two nearest if vectors are stored as ``dtype``; products are exact."""
    documents, queries, pairs = constructed(n)
    scores = queries.to(dtype).double() @ documents.to(dtype).double().T  # (P, n)
    return (
        (scores.topk(2).indices.sort(1).values == pairs).all(1).double().mean().item()
    )


dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
stored = {}
margins = {}
for n in (12, 50, 100, 200, 400):
    documents, queries, _ = constructed(n)
    best = (queries @ documents.T).topk(3).values
    margins[n] = (best[:, 1] - best[:, 2]).min().item()  # of the second over the third
    stored[n] = [share_found(n, dtype) for dtype in dtypes]
    shares = [f"{str(d)[6:]} {x:.1%}" for d, x in zip(dtypes, stored[n], strict=True)]
    print(f"{n:3} documents, margin {margins[n]:.0e}:", *shares, sep="  ")
assert all(shares[3] == 1 for shares in stored.values()), (
    "float64: all 79,800 pairs of 400"
)
assert stored[100][2] == 1 > stored[400][2], "float32: all pairs of 100, not of 400"
assert stored[50][1] < 0.95, "float16 loses some of 50"
assert abs(margins[400] * 400**4 / (margins[100] * 100**4) - 1) < 0.05, (
    "margin: 134 / n^4"
)
guess.answer("100 and more")

# %% [markdown]
# So it is not the number of columns that ends it. It is the **margin**: by how much the right documents win. Here it
# shrinks like 134 / n^4, so each doubling of the documents needs four more bits in every number. And it is **descent**:
# this solution exists for 12 documents, and a loss that starts from random vectors does not find it. A trained encoder
# has both troubles, and a third: its queries are sentences, and nobody chooses their vectors one by one.
#
# Weller et al. extrapolate curves such as those of descent: by them, 1,024 columns would be enough for some four
# million documents if every *pair* is an answer. (Their first version bounds the columns by the sign rank of the table
# of right answers. For pairs that is a small constant, as you have just seen; it grows with the size of an answer. The
# theorem of their second version bounds the columns for a given margin.) Their data set LIMIT asks it of real models.
# Here is a small one: twenty people, and for each pair of them one thing that only these two like.

# %%
names = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eva",
    "Finn",
    "Gus",
    "Hana",
    "Ivo",
    "Jon",
    "Kim",
    "Leo",
    "Mia",
    "Nils",
    "Ona",
    "Paul",
    "Quin",
    "Rosa",
    "Sam",
    "Tess",
]
vocabulary = [encoder.tokenizer.backend.id_to_token(i) for i in range(2000, 12000)]
things = [w for w in vocabulary if w.isascii() and w.isalpha()]
things = [w for w in things if len(w) == 6 and w.endswith("s")]


def limit(n):
    """Recall at 2 of MiniLM and of BM25 if each two of n people like a thing of their own."""
    pairs = list(itertools.combinations(range(n), 2))
    liked = dict(zip(things[: len(pairs)], pairs, strict=True))
    likes = {k: [thing for thing, pair in liked.items() if k in pair] for k in range(n)}
    documents = [f"{names[k]} likes {', '.join(likes[k])}." for k in range(n)]
    queries = [f"Who likes {thing}?" for thing in liked]
    by_words = bm25_scores([terms(q) for q in queries], [terms(d) for d in documents])
    by_vectors = encoder.encode(queries) @ encoder.encode(documents).T
    recalls = []
    for scores in (by_vectors, by_words):
        best = np.argsort(-scores, axis=1, kind="stable")[:, :2]
        both = zip(pairs, best.tolist(), strict=True)
        recalls.append(np.mean([len({*a} & {*b}) / 2 for a, b in both]))
    return recalls


people = (4, 6, 10, 16, 20)
recalls = np.array([limit(n) for n in people])  # (5, 2)
for n, (vectors, words) in zip(people, recalls, strict=True):
    print(f"{n:2} people, {n * (n - 1) // 2:3} questions", end=": ")
    print(f"MiniLM finds {vectors:.0%}, BM25 {words:.0%}")
assert (recalls[:, 1] == 1).all(), "words find every answer"
assert recalls[0, 0] > 0.8, "vectors too, of four people"
assert recalls[-1, 0] < 0.5, "and fewer with every person"

# %% [markdown]
# Counting words answers all of it. 384 columns could hold it many times over, and lose three fifths of it at twenty
# people: the model never learned that a list is to be kept item by item. So engines that must not miss a name or a part
# number keep an index of words beside the vectors ([lesson 20](20_two_stage_search.py) joins the two), or a vector for
# each token ([lesson 19](19_one_vector_many_or_none.py)).
#
# ## The figure
#
# Left: each of the thirty triples. Above the line the paraphrase is nearer. Middle: the pairs that gradient descent
# finds for free vectors, and, dotted, what four columns hold on the moment curve. Right: MiniLM and BM25 on the small
# LIMIT.
#
# ![Thirty triples, reachable pairs, recall by people](figures/31_where_vectors_fail.png)


# %%
def draw(plt):
    size = {"figsize": (10.4, 3.2), "layout": "constrained"}
    drawn, (left, middle, right) = plt.subplots(1, 3, **size)
    for kind, found in cosines.items():
        left.plot(*found.T, "o", markersize=4, label=kind)
    left.plot([0.45, 1], [0.45, 1], color="gray", linewidth=0.8)
    left.set(xlabel="cosine with the changed fact", ylabel="with the paraphrase")
    left.legend(fontsize=7, frameon=False, loc="upper left")
    for columns, shares in curves.items():
        middle.plot(SIZES, shares, marker=".", label=f"{columns} columns, descent")
    middle.plot(SIZES, np.ones(len(SIZES)), "k:", label="4 columns, by construction")
    middle.set(xlabel="documents", ylim=(0, 1.05))
    middle.set(ylabel="share of pairs that a query can find")
    middle.legend(
        fontsize=7, frameon=False, loc="upper right", bbox_to_anchor=(1, 0.97)
    )
    for name, recall in zip(("MiniLM", "BM25"), recalls.T, strict=True):
        right.plot(people, recall, marker=".", label=name)
    right.set(xlabel="people", ylabel="recall of the two who like it", ylim=(0, 1.05))
    right.legend(fontsize=7, frameon=False)
    return drawn


figure("31_where_vectors_fail", draw)

# %% [markdown]
# ## Exercises
#
# `python -m lessons.check answer 31 1` gives a hint, and asked again, an answer with our numbers.
#
# **Exercise 1.** *Inversion.* A vector of a text is not anonymous. Encode every word that occurs twice in STS-B's
# training sentences as a text of its own, and print the ten words nearest to the vector of "My sister was treated for
# diabetes in Boston last winter." How large a share of a test sentence's words (without "the" and its like) is found
# so?
#
# **Exercise 2.** *Bias.* For eight occupations, compare "The nurse finished work." with "He finished work." and "She
# finished work." Then the test of Caliskan et al.: the difference of two groups of first names in their mean cosine
# with words of career and of family, divided by its standard deviation over the names. What would you have to know
# before you use the vectors to sort applications?
#
# **Exercise 3.** Write ten triples of your own field. Which kind does a model trained on your data learn?
#
# **Exercise 4.** Start the descent of `reached(12, 4)` from the construction, with a little noise. Does it stay?
#
# **Exercise 5.** Graded: the query for two documents: `python -m lessons.check start 31`, `run 31`, `hint 31`.
#
# ## Sources
#
# - Weller, Boratko, Naim & Lee, *On the Theoretical Limitations of Embedding-Based Retrieval* (2025, arXiv
#   2508.21038; version 2, 2026): theorem 1 (margin), section 4 (free vectors), 5.2 (LIMIT), appendix D (sign rank).
# - Gale 1963, *Neighborly and cyclic polytopes*: points on the moment curve, of which every few are neighbours (second
#   hand, as textbooks on polytopes quote it).
# - Morris, Kuleshov, Shmatikov & Rush, *Text Embeddings Reveal (Almost) As Much As Text* (2023, arXiv 2310.06816): 92
#   % of texts of 32 tokens recovered word for word, by a model trained to invert.
# - Caliskan, Bryson & Narayanan, *Semantics derived automatically from language corpora contain human-like biases*
#   (Science, 2017; arXiv 1608.07187): the association test.
#
# ## What you have now
#
# You know what to measure before you trust a cosine: changed facts, lists of items, and what a vector gives away. Next:
# [reading a leaderboard](32_reading_a_leaderboard.py).
