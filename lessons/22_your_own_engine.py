# %% [markdown]
# # Lesson 22: an engine of your own functions
#
# Steps through `lessons/engine.py`. Reading 25, chapter 10, exercises 70 minutes. You will search a folder of yours
# with the functions that you wrote, and put a number on it.

# %%
import numpy as np
from course import figure, predict

from lessons import engine as search
from lessons.search import modules

# %% [markdown]
# ## The question
#
# `bm25_scores`, `top_k`, `to_int8`, `reciprocal_ranks`, `max_sim`, `walk`: six functions, each graded, none of them a
# search engine. What is missing between them and a tool that you use every day? And how good is it?
#
# ## The formula
#
#     folder  ->  files  ->  chunks of 80 words  ->  words, and vectors in int8
#     query   ->  50 chunks by vectors (top_k), 50 by words (bm25_scores)
#             ->  sum of 1 / (60 + rank)  (reciprocal_ranks)
#             ->  of each of the best chunks, the sentence that fits (max_sim)
#
# Nothing in it is new. The names in brackets are yours where you have written them and the grader passes them; where
# not, the package's are used, with a mark.
#
#     python -m lessons.engine ~/notes                      a page in your browser, served by this machine only
#     python -m lessons.engine ~/notes --ask "spare key"    one question, in the terminal
#
# ## The real function
#
# A folder that every reader has: twenty modules of Python's standard library. A picture and an empty file show what the
# engine leaves out.

# %%
folder = modules.folder()
(folder / "photo.txt").write_bytes(b"\x89PNG\0\0")
(folder / "nothing.md").touch()

chunks, skipped = search.read_folder(folder, most=20_000)
found = {chunk.path for chunk in chunks}
print(f"{len(chunks)} chunks of {len(found)} files", dict(skipped))
assert skipped == {"binary": 1, "empty": 1}, "counted, and no reason to stop"
first, second = chunks[:2]
assert first.text.split()[-10:] == second.text.split()[:10], "ten words are in both"
assert all(len(chunk.text.split()) <= 80 for chunk in chunks)

# %% [markdown]
# A chunk knows its file and its line, so that an answer can be looked up. (Why chunks: [lesson
# 20](20_two_stage_search.py).) Vectors are kept on disk. What must their key be? The text alone would give you the
# vectors of yesterday's model. Here is what the engine does:

# %%
import inspect

print(inspect.getsource(search.encode_new))

# %% [markdown]
# Only new texts are encoded. So a folder of 20,000 chunks costs its minutes once.

# %%
import time

kept = folder / "vectors.npz"  # the program keeps it in lessons/mine/engine
seconds = []
for _ in range(2):
    started = time.perf_counter()
    engine = search.Engine(chunks, kept=kept)
    seconds.append(time.perf_counter() - started)
print(engine.whose())
print("started in {:.1f} s, and again in {:.1f} s".format(*seconds))
assert engine.codes.dtype == np.int8, "a byte for each of 384 numbers"
found = engine.search("the smallest element of a queue by priority")
search.show(found)
assert {hit["path"] for hit in found["hits"][:3]} & {"heapq.py", "queue.py"}

# %% [markdown]
# And this is what joins them, with `reciprocal_ranks` in the middle:

# %%
print(inspect.getsource(search.Engine.joined))

# %% [markdown]
# The score is no cosine. It is a sum of two fractions: a chunk that both engines rank first has 2 / 61 = .0328, and no
# chunk can have more. It does not say whether the best answer is any good: a question that the folder cannot answer
# gets nearly the same scores, because something is always first.

# %%
nonsense = engine.search("how do I ripen a cheese")["hits"][0]
print(f"{nonsense['score']}  {nonsense['path']}:{nonsense['line']}")
assert nonsense["score"] > 0.016, "1 / 61 for being first among the wrong ones"

# %% [markdown]
# ## A number for it
#
# Twenty questions, written before the engine saw them, each with the file that answers it. Your own folder needs your
# own twenty. A line of such a file is a question, a tab, and a part of the path.

# %%
questions = [(question.text, question.file) for question in modules.QUESTIONS]
for question, file in questions:
    print(f"{question:60}{file}")

# %% [markdown]
# ## Predict, then run
#
# **1.** The questions avoid the words of the answers where they can. Which engine is best?

# %%
guess = predict(
    "22.1",
    "nDCG@10 on the twenty, question by question:",
    ["words", "vectors", "both joined", "twenty questions do not say"],
)

# %%
from lessons.search.measure import interval

print(engine.card(questions))
scores = engine.scores(questions)  # of each engine, for each question: (20,)
decided = {}
for rival in ("words", "vectors"):
    gain = scores["joined"] - scores[rival]  # the same questions, in pairs (lesson 09)
    low, high = interval(gain)
    differ = (gain != 0).sum()
    print(f"joined - {rival}: {gain.mean():+.3f} ({low:+.3f} .. {high:+.3f})", end=", ")
    print(f"{differ} of 20 questions differ")
    decided[rival] = low > 0 or high < 0
assert scores["joined"].mean() > 0.75, "most questions have their file at the top"
assert not any(decided.values()), "both intervals of the difference hold 0"
guess.answer("twenty questions do not say")

# %% [markdown]
# The joined engine has the best mean, and that is all one can say. Most questions are answered by all three at once and
# tell nothing apart: what decides is the handful on which they differ.
#
# **2.** How many questions of this kind would it take? The half-width of an interval shrinks with the root of their
# number.

# %%
guess = predict(
    "22.2",
    "To see joined ahead of words, if its lead stays what it is: about ... questions",
    ["40", "400", "4,000"],
)


# %%
def questions_needed(gain):
    """So many that two errors of the mean are as large as the mean gain (Q,)."""
    error = gain.std(ddof=1)  # of one question
    return (2 * error / gain.mean()) ** 2


needed = {
    rival: questions_needed(scores["joined"] - scores[rival])
    for rival in ("words", "vectors")
}
for rival, count in needed.items():
    print(f"joined against {rival}: {count:,.0f} questions")
assert 20 < needed["words"] < 80, "forty would do, twenty do not"
guess.answer("40")

# %% [markdown]
# Twenty questions find a broken engine at once and cannot tell two good ones apart. [Lesson
# 18](18_your_own_search.py) has some 1,600 for that, and its interval is still four points wide.
#
# ## The figure
#
# ![nDCG@10 of words, vectors and both, with intervals](figures/22_your_own_engine.png)


# %%
def draw(plt):
    drawn, axes = plt.subplots(figsize=(6, 1.9), layout="constrained")
    for place, each in enumerate(scores.values()):
        axes.plot(interval(each), [place, place], color="#bbbbbb", linewidth=2)
        axes.plot(each.mean(), place, "o", color="#1f4e79")
    axes.set_yticks(range(len(scores)), list(scores))
    axes.set_ylim(-0.5, 2.5)
    axes.invert_yaxis()
    axes.set(xlabel="nDCG@10, twenty questions", xlim=(0.5, 1))
    return drawn


figure("22_your_own_engine", draw)

# %% [markdown]
# ## Exercises
#
# No piece is new here: all six are of lessons 16 to 21. `python -m lessons.check answer 22 1` gives a hint, and asked
# again, an answer.
#
# **Exercise 1.** Run it over a folder of yours, and write twenty questions before you look. Which of the two engines
# finds more, and what do its failures have in common?
#
# **Exercise 2.** `--walk` searches by your walk over a graph (lesson 21). How many vectors does it read, and from how
# many chunks on is it faster than exact search?
#
# **Exercise 3.** Put lesson 18's trained model in place of MiniLM (`MODEL` in `lessons/engine.py`). Better on your
# twenty? By more than the interval?
#
# ## Sources
#
# - Cormack, Clarke & Büttcher 2009: reciprocal rank fusion, as in lesson 20.
# - Questions and files: ours; the standard library is Python's own.
#
# ## What you have now
#
# You have a search engine that runs on your own functions, as many as you have written. Part III is done. Next: [what
# changed since BERT](23_what_changed_since_bert.py).
