# %% [markdown]
# # Lesson 00: before we begin
#
# Uses `minisbert/core/loop.py` and `minisbert/core/metrics.py` on four rows of data. Reading 60, exercises 140
# minutes. You may not need it: `python -m lessons.check quiz 00` asks five questions and names the sections to read.
# If all five answers are right, go on to lesson 01.
#
# Run one cell after the other, in VS Code or in Jupyter, or all at once with `python lessons/00_before_we_begin.py`.
# Most numbers in the text have an `assert` beside them. Some cells ask for your guess, and the next one shows the
# answer.

# %%
import math

import numpy as np
import torch
from course import figure, largest_difference, predict

from minisbert.core import loop, metrics

# %% [markdown]
# ## The question
#
# A model is a function with numbers in it, its **parameters**. The model of this course has 22.7 million of them. Who
# finds the numbers that make it right?
#
# The method does not care how many there are, so let us take two. Four pairs of sentences; x is the number of words
# that the two have in common, y how alike people find them, from 0 to 5. The model is a line, w x + b:

# %%
x = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)  # words in common
y = torch.tensor([1.0, 1.0, 3.0, 5.0], dtype=torch.float64)  # what people say


def line(w, b):
    return w * x + b


# %% [markdown]
# ## The formula
#
# How wrong is a line? The **loss** says it in one number, here the mean of the squared errors over N = 4 rows:
#
#     loss(w, b) = mean over i of ( w x_i + b - y_i )^2
#
# How to do better? The **gradient** has one number for each parameter: by how much does the loss grow if this
# parameter grows a little? Go against it, by a small multiple, the **learning rate** lr. That is one step:
#
#     w = w - lr * dloss/dw          b = b - lr * dloss/db
#
# The rest of this lesson takes these lines apart, and adds three tools that the other lessons use: shapes, softmax, and
# correlation.

# %% [markdown]
# ## Shapes
#
# A **tensor** is a box of numbers. Its **shape** says how many along each axis: a list of 3 numbers has the shape (3,),
# a table of 2 rows and 3 columns (2, 3), and 8 such tables (8, 2, 3). Most bugs in a model are a wrong shape, and the
# worst of them are wrong shapes that nobody complains about.

# %%
table = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # (2, 3)
print(table.shape, table.sum(0), table.sum(1), table.mean())
assert table.sum(0).tolist() == [5, 7, 9], "axis 0 is summed: one per column, (3,)"
assert table.sum(1).tolist() == [6, 15], "axis 1 is summed: one per row, (2,)"
assert (table @ table.T).shape == (2, 2), "(2, 3) @ (3, 2): inner sizes must agree"
assert (table @ table.T)[0, 1] == 1 * 4 + 2 * 5 + 3 * 6, "row 0 by column 1"

# %% [markdown]
# Two ways to turn (2, 3) into (3, 2). Only one of them moves rows to columns. The other one reads the same six numbers
# in the same order and breaks the lines elsewhere.

# %%
print(table.T, table.reshape(3, 2), sep="\n")
assert table.T.tolist() == [[1, 4], [2, 5], [3, 6]], "transposed"
assert table.reshape(3, 2).tolist() == [[1, 2], [3, 4], [5, 6]], "reads on in rows"

# %% [markdown]
# Two tensors of different shapes can be added, if they fit. To add them by **broadcasting**, line their shapes up at
# the right end and compare them size by size. Two sizes fit if they are equal or if one of them is 1 or missing; that
# one is repeated:
#
#     (2, 3)        (2, 3)         (2, 3)
#        (3,)       (2, 1)            (2,)
#     ------        ------         ------
#     (2, 3)        (2, 3)         does not fit: 3 and 2

# %%
row = torch.tensor([10.0, 20.0, 30.0])  # (3,)
column = torch.tensor([[100.0], [200.0]])  # (2, 1)
print(table + row, table + column, sep="\n")
assert (table + row)[1].tolist() == [14, 25, 36], "(3,) is added to each row"
assert (table + column)[1].tolist() == [204, 205, 206], "(2, 1) is added to each column"

# %% [markdown]
# A column of four and a list of four: (4, 1) minus (4,). What is the result's shape?

# %%
guess = predict(
    "00.1",
    "The shape of (4, 1) minus (4,)?",
    ["(4,)", "(4, 1)", "(4, 4)", "none: an error"],
)

# %%
print((x[:, None] - y).shape)  # [:, None] adds an axis of size 1
assert (x[:, None] - y).shape == (4, 4), (
    "1 is repeated 4 times, and so is what is missing: each x minus each y"
)
guess.answer("(4, 4)")

# %% [markdown]
# Every x minus every y: useful if you want it, and a trap if you do not. *Break it* falls into it.
#
# **Exercise 1.** Eight tables of 12 rows and 384 columns have the shape (8, 12, 384). Which shape must a tensor have
# to scale each of the 384 columns by its own factor? Each table? Each row of each table?
#
# ## Softmax
#
# How do scores become shares? They should be positive and sum to 1, and the larger score should get the larger share.
# The **softmax** takes the exponential of each and divides by the sum:
#
#     softmax(s)_i = exp(s_i) / sum over j of exp(s_j)
#
# Scores 0 and log 3 give exp 1 and 3, and thus a quarter and three quarters. Divide the scores by a number below 1
# first, the **temperature**, and the winner takes more; by one above 1, and the shares even out.

# %%
scores = torch.tensor([0.0, math.log(3)], dtype=torch.float64)
for temperature in (0.5, 1, 10):
    print(f"temperature {temperature:4}: {(scores / temperature).softmax(0)}")
assert largest_difference(scores.softmax(0), [0.25, 0.75]) < 1e-12, "1 and 3, over 4"
assert largest_difference((scores / 0.5).softmax(0), [0.1, 0.9]) < 1e-12, (
    "1 and 9, over 10"
)

# %%
guess = predict(
    "00.2",
    "100 is added to every score. The shares ...",
    ["even out", "sharpen", "stay as they are"],
)

# %%
assert largest_difference((scores + 100).softmax(0), scores.softmax(0)) < 1e-12, (
    "exp(100) is in every term: it cancels"
)
guess.answer("stay as they are")

# %% [markdown]
# A softmax sees only differences, and that is of use. The exponential of 710 is too large for a float64, that of 89 for
# a float32 (numbers of 64 and of 32 bits, lesson 01). Written as above, a softmax of large scores divides infinity by
# infinity. But any constant may be subtracted, so subtract the largest score, as PyTorch does. Then the largest
# exponential is exp(0) = 1, and nothing overflows.

# %%
large = torch.tensor([1000.0, 1000.0 + math.log(3)], dtype=torch.float64)
as_written = large.exp() / large.exp().sum()
stable = (large - large.max()).exp() / (large - large.max()).exp().sum()
print(as_written, stable, large.softmax(0))
assert as_written.isnan().all(), "infinity over infinity is not a number, NaN"
assert largest_difference(stable, [0.25, 0.75]) < 1e-12, (
    "the same formula, minus the largest score"
)
assert largest_difference(large.softmax(0), [0.25, 0.75]) < 1e-12, "as in PyTorch"

# %% [markdown]
# ## Gradients
#
# Back to the line. At w = 0, b = 0 it says 0 for every pair, so the errors are -1, -1, -3, -5 and the loss is
# (1 + 1 + 9 + 25) / 4 = 9. The derivative of a square is twice what is squared, times the derivative of the inside,
# which is x_i for w and 1 for b:
#
#     dloss/dw = mean of 2 * error_i * x_i = 2 * ( -1*0 - 1*1 - 3*2 - 5*3 ) / 4 = -11
#     dloss/db = mean of 2 * error_i       = 2 * ( -1 - 1 - 3 - 5 ) / 4         = -5
#
# **Autograd** gets the same without a pencil. It records what is computed from a tensor that `requires_grad`;
# `backward` goes through the record from the end to the beginning, multiplies the derivatives (the chain rule), and
# *adds* the result to `.grad`: calling `backward` twice gives -22. Set `.grad` to zero between two steps.

# %%
w = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
b = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
loss = (line(w, b) - y).pow(2).mean()
loss.backward()
print(f"loss {loss.item()}, gradient {w.grad.item()} and {b.grad.item()}")
assert (loss.item(), w.grad.item(), b.grad.item()) == (9, -11, -5), "as by hand"
(line(w, b) - y).pow(2).mean().backward()
assert w.grad.item() == -22, "added to what was there"

# %% [markdown]
# A third way needs no calculus and checks the other two: move a parameter a little to both sides, and see by how much
# the loss changes. It needs two losses per parameter, so nobody trains like that. Everybody tests like that.

# %%
little = 1e-4
with torch.no_grad():  # record nothing
    up, down = (
        (line(w + move, b) - y).pow(2).mean().item() for move in (little, -little)
    )
print(f"by differences {(up - down) / (2 * little):.6f}")
assert abs((up - down) / (2 * little) + 11) < 1e-6, "-11 again"

# %% [markdown]
# **Exercise 2.** Take the loss -log softmax(s)[r], where r is the right answer. Show on paper that its gradient by s
# is softmax(s), minus 1 at r. Check it with autograd for s = (0, log 3), r = 0.
#
# ## One step
#
# The gradient is negative: the loss falls if w and b grow. With lr = 0.1 they become 1.1 and 0.5, and the loss falls
# from 9 to 0.535. PyTorch's **SGD**, stochastic gradient descent, is this step and nothing else. *Stochastic* means
# that each step looks at a few random rows, a **batch**, and not at all of them: cheaper, and a little wrong each time.
# One pass over all rows, batch by batch, is an **epoch**. A `torch.nn.Parameter` is a tensor that requires a gradient
# and that a model counts among its own.

# %%
w, b = (torch.nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
(line(w, b) - y).pow(2).mean().backward()
with torch.no_grad():
    w -= 0.1 * w.grad
    b -= 0.1 * b.grad
    after = (line(w, b) - y).pow(2).mean().item()
print(f"w {w.item():.2f}, b {b.item():.2f}, loss {after:.3f}")
assert abs(after - 0.535) < 1e-12, "(0.25 + 0.36 + 0.09 + 1.44) / 4"

# %% [markdown]
# ## The real function
#
# How small can the loss get? For a line there is a formula: w = 1.4, b = 0.4, loss 0.3. Now many steps, with the
# package's own loop, `fit`, which trains nearly every model of this course. It takes a model, a loss of a batch,
# batches, an optimizer and a schedule (lesson 11), here one that keeps the rate as it is. It is a generator: a `for`
# over it gets control after each step. The model is a **dense layer**, x times a matrix plus a bias: `torch.nn.Linear`,
# here with a matrix of one number. Calling a model, `model(x)`, runs its method `forward`.


# %%
def train(lr, steps=20, rows=(0, 1, 2, 3)):
    """The losses before each step, all over the same rows; and w and b at the end."""
    model = torch.nn.Linear(1, 1).double()  # (N, 1) -> (N, 1): w x + b
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)

    def squared_error(model, batch):
        predicted = model(x[batch, None]).squeeze(1)  # (N, 1) -> (N, 1) -> (N,)
        return (predicted - y[batch]).pow(2).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    steps = loop.fit(
        model, squared_error, [list(rows)] * steps, optimizer, lambda step: 1.0
    )
    return [step.loss for step in steps], (model.weight.item(), model.bias.item())


losses, (slope, offset) = train(0.1)
print(
    f"{losses[0]:.3f} {losses[1]:.3f} ... {losses[-1]:.3f}   w {slope:.2f}, b {offset:.2f}"
)
assert abs(losses[1] - 0.535) < 1e-12, "the step by hand"
assert losses[-1] < 0.305, "nearly as good as a line can be on these pairs"

# %%
guess = predict(
    "00.3",
    "The loss after 20 steps with lr = 0.3?",
    ["0.3", "about 9", "above a million"],
)

# %%
by_rate = {lr: train(lr, steps=21)[0] for lr in (0.01, 0.1, 0.3)}
print({lr: f"{losses[-1]:.3g}" for lr, losses in by_rate.items()})
assert by_rate[0.3][-1] > 1e6, (
    "each step jumps over the valley, and lands higher on the other side"
)
assert by_rate[0.01][-1] > 1.5 * by_rate[0.1][-1], "a small rate is safe, and slow"
guess.answer("above a million")

# %% [markdown]
# A batch of one row: the fourth pair, x = 3, y = 5. Its gradient at 0, 0 is 2 * (0 - 5) * 3 = -30 for w and -10 for b,
# so a step of 0.1 leads to w = 3, b = 1. What is the loss over all four pairs then? It was 9. (And what is the error of
# the fourth pair itself? It was 5.)

# %%
guess = predict(
    "00.4",
    "After one step on the fourth pair alone:",
    ["about 0.5", "about 5", "above 9"],
)

# %%
_, (slope, offset) = train(0.1, steps=1, rows=[3])
after = (line(slope, offset) - y).pow(2).mean().item()
print(f"w {slope:.0f}, b {offset:.0f}, loss {after}")
assert after == 12.5, "errors 0, 3, 4, 5: (0 + 9 + 16 + 25) / 4"
_, (slope, offset) = train(0.05, steps=1, rows=[3])
gentle = (line(slope, offset) - y).pow(2).mean().item()
print(f"with half the rate: w {slope}, b {offset}, loss {gentle}")
assert gentle == 0.375, "errors 0.5, 0.5, 1 and 0: the fourth pair is met exactly"
guess.answer("above 9")

# %% [markdown]
# The fourth pair's own error is 5 before the step and 5 after it: a rate of 0.1 overshoots even the pair that the step
# was made for, and lands as far on the other side. Half the rate meets that pair exactly, and the loss of all four
# falls to 0.375, near the best possible 0.3. The mean of four is less steep than this row's loss, so a batch of one
# asks for a smaller rate; lesson 13 looks for the rate of a real model.
#
# **Exercise 3.** At which learning rate does the training of the line begin to fail? Try rates between 0.2 and 0.3. If
# you know eigenvalues, explain it by those of the matrix of second derivatives, ((7, 3), (3, 2)).
#
# ## Correlation
#
# The line is trained. Is it good? A loss of 0.3 depends on the scale of the scores. A **correlation** does not: it says
# from -1 to 1 how well two lists go together. **Pearson's** asks whether they lie on one rising line, whatever its
# slope. **Spearman's** asks only whether the order is the same: it replaces each number by its rank.
#
#     x minus its mean 1.5:  -1.5  -0.5   0.5   1.5         y minus its mean 2.5:  -1.5  -1.5   0.5   2.5
#     Pearson = sum of products / sqrt( sum of squares * sum of squares ) = 7 / sqrt(5 * 11) = 0.944
#
#     ranks of x: 1 2 3 4        ranks of y: 1.5 1.5 3 4, since the two lowest share ranks 1 and 2
#     Spearman = Pearson of the ranks = 4.5 / sqrt(5 * 4.5) = 0.949

# %%
print(f"Pearson {metrics.pearson(x, y):.3f}, Spearman {metrics.spearman(x, y):.3f}")
assert abs(metrics.pearson(x, y) - 7 / math.sqrt(5 * 11)) < 1e-12, "by hand"
assert abs(metrics.spearman(x, y) - 4.5 / math.sqrt(5 * 4.5)) < 1e-12, "by hand"
assert abs(metrics.pearson(line(1.4, 0.4), y) - metrics.pearson(x, y)) < 1e-12, (
    "training the line changed nothing here"
)

# %% [markdown]
# A correlation ignores slope and offset. So it cannot tell a trained line from x itself, and it would not notice scores
# that are all too high by 2.
#
# **Exercise 4.** Find four y for which Spearman's correlation with x is 1 and Pearson's below 0.8.
#
# ## The figure
#
# Left: the loss of 20 steps at three learning rates. Middle: the shares of the scores 0, 1, 2, 3 at three temperatures.
# Right: points in perfect order that do not lie on a line.
#
# ![Loss by learning rate, softmax by temperature, order without a line](figures/00_before_we_begin.png)


# %%
def draw(plt):
    drawn, (left, middle, right) = plt.subplots(
        1, 3, figsize=(8.4, 2.8), layout="constrained"
    )
    for (lr, values), shade in zip(
        by_rate.items(), ("#8bb8de", "#1f4e79", "#c0392b"), strict=True
    ):
        left.semilogy(values, color=shade, label=f"lr {lr}")
    left.set(xlabel="step", ylabel="loss", ylim=(0.1, 1e4), title="20 steps")
    left.legend(frameon=False, loc="upper right")
    four = torch.arange(4, dtype=torch.float64)
    for place, (temperature, shade) in enumerate(
        ((0.5, "#1f4e79"), (1, "#5b8fc0"), (10, "#c9dcee"))
    ):
        middle.bar(
            four + 0.27 * (place - 1),
            (four / temperature).softmax(0),
            0.25,
            color=shade,
            label=f"{temperature}",
        )
    middle.set(xlabel="score", ylabel="share", title="Softmax by temperature")
    middle.legend(frameon=False)
    right.plot(curve, curve_scores, "o", color="#1f4e79")
    right.set(
        xlabel="x",
        ylabel="exp(x)",
        title=f"Spearman 1, Pearson {metrics.pearson(curve, curve_scores):.2f}",
    )
    return drawn


curve = np.arange(0.0, 8.0)
curve_scores = np.exp(curve)
figure("00_before_we_begin", draw)

# %% [markdown]
# ## Predict, then run
#
# Eight points with y = exp(x), x from 0 to 7. The order is perfect, so Spearman's correlation is 1. And Pearson's?

# %%
guess = predict(
    "00.5",
    "Pearson's correlation of x and exp(x)?",
    ["1", "about 0.8", "about 0", "below 0"],
)

# %%
print(
    f"Pearson {metrics.pearson(curve, curve_scores):.3f}, Spearman {metrics.spearman(curve, curve_scores):.3f}"
)
assert 0.75 < metrics.pearson(curve, curve_scores) < 0.8, "not on a line"
assert metrics.spearman(curve, curve_scores) > 1 - 1e-12, "the order is the same"
guess.answer("about 0.8")

# %% [markdown]
# Who is right? It depends on what you want. A search shows the best ten results, whatever their scores: order is all
# that counts. That is why this field reports Spearman's.
#
# ## Break it
#
# The trap of *Shapes*. The dense layer returns (N, 1), and our y is (N,). Forget `squeeze(1)`, and the error is (4, 4):
# each prediction minus each y. There is no error message; the loss is a number, and it falls. Guess what the line will
# say.

# %%
w, b = (torch.nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))
optimizer = torch.optim.SGD([w, b], lr=0.1)


def careless(model, batch):
    return (line(w, b)[:, None] - y).pow(2).mean()  # (4, 1) - (4,) -> (4, 4)


nothing = torch.nn.Identity()  # a model without parameters: `careless` has its own
steps = loop.fit(nothing, careless, [[0]] * 100, optimizer, lambda step: 1)
careless_losses = [step.loss for step in steps]
print(
    f"loss {careless_losses[0]:.2f} -> {careless_losses[-1]:.2f}, predictions {line(w, b).detach()}"
)
assert careless_losses[-1] < careless_losses[0] / 3, "it trains beautifully"
assert largest_difference(line(w, b), [2.5] * 4) < 0.02, (
    "to say the mean of all y, whatever x is"
)

# %% [markdown]
# Each prediction is pulled to each y, and the mean is the best answer to all of them. When a model says the same for
# everything, look at the shapes first.

# %% [markdown]
# ## Exercises
#
# Exercises 1 to 4 stand above. `python -m lessons.check answer 00 1` gives a hint for the first, and asked again, the
# answer. The first function to write is in lesson 01: there is no `python -m lessons.check start 00`.
#
# ## Sources
#
# - Robbins and Monro 1951, *A stochastic approximation method*: step by step to a solution, by noisy experiments.
# - Baydin et al. 2018, *Automatic differentiation in machine learning: a survey*: what `backward` does.
# - [PyTorch's broadcasting rules](https://docs.pytorch.org/docs/stable/notes/broadcasting.html), word for word.
#
# ## What you have now
#
# You can read shapes, softmax and gradients, which is all that the course takes for granted. Next: [the first
# embedding](01_first_embedding.py).
