"""Whoever types what a lesson prints passes: its functions as they stand, its formulas word for word in torch."""

import ast
import string
import unicodedata

import numpy as np
import pytest
import torch

from lessons.grader.ladder import climb
from lessons.grader.pieces import PIECES, lesson_file
from lessons.grader.result import RUNGS


def of_lesson(number: int, *names: str) -> dict:
    """Functions that a lesson defines, by name."""
    tree = ast.parse(lesson_file(number).read_text(encoding="utf-8"))
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"unicodedata": unicodedata, "string": string}
    exec(compile(ast.Module(chosen, []), "lesson", "exec"), space)
    return space


TEXT = of_lesson(2, "is_punctuation", "split_words", "wordpiece")


def word_pieces(word, vocabulary, unknown="[UNK]"):
    return TEXT["wordpiece"](word, vocabulary)


def cosine_matrix(u, v):
    lengths = [x.pow(2).sum(1, keepdim=True).sqrt() for x in (u, v)]
    return (u / lengths[0]) @ (v / lengths[1]).T


def pearson(x, y):
    x, y = (np.asarray(side, dtype=np.float64) for side in (x, y))
    x, y = x - x.mean(), y - y.mean()
    with np.errstate(all="ignore"):
        return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def embeddings(self, ids, token_types, positions=None):
    types = torch.zeros_like(ids) if token_types is None else token_types
    x = self.word.weight[ids] + self.position.weight[: ids.shape[1]] + self.token_type.weight[types]
    return self.dropout(self.norm(x))


def attention(query, key, value, mask=None, dropout=0.0):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    probabilities = scores.softmax(-1)
    return torch.nn.functional.dropout(probabilities, dropout) @ value, probabilities


def layer(self, x, mask):
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(x + self.dropout(attended))
    return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), probabilities


def simcse(u, v, hard_negatives=None, temperature=0.05, hard_negative_weight=0.0):
    exponentials = torch.exp(cosine_matrix(u, v) / temperature)
    return -torch.log(exponentials.diagonal() / exponentials.sum(1)).mean()


def linear(step, warmup, total):
    return step / warmup if step < warmup else max(0, total - step) / (total - warmup)


@pytest.mark.parametrize(
    ("master", "function", "printed"),
    [
        ("encoder.cosine_matrix", cosine_matrix, "cos(u, v) = sum over d of u[d] * v[d]  /  (|u| * |v|)"),
        ("tokenizer.split_words", TEXT["split_words"], "def split_words"),
        ("tokenizer.word_pieces", word_pieces, "def wordpiece"),
        ("bert.Embeddings.forward", embeddings, "word[ids[b, t]] + position[t] + token_type[types[b, t]]"),
        ("bert.attention", attention, "probability[t, s] = exp(score[t, s]) / sum over r of exp(score[t, r])"),
        ("bert.Layer.forward", layer, "x = LayerNorm1(x + attention(x))"),
        ("metrics.pearson", pearson, "sqrt( sum of (x_i - mean x)^2  *  sum of (y_i - mean y)^2 )"),
        ("losses.simcse_loss", simcse, "sum over j of exp(cos(u_i, v_j) / tau)"),
        ("loop.linear_schedule", linear, "peak * max(0, S - s) / (S - W)"),
    ],
)
def test_the_printed_formula_passes(master, function, printed):
    piece = PIECES[master]
    assert printed in lesson_file(piece.lesson).read_text(encoding="utf-8")
    result = climb(piece, function, guard=False)
    assert result.status == "passed", result.rungs[-1]
    left = [title for title, holds, _ in result.rungs if not holds]
    assert left in ([], [RUNGS["bonus"]])
