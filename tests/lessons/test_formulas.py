"""Whoever types what a lesson prints passes: its functions as they stand, its formulas word for word in torch."""

import ast
import math
import string
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lessons.grader.ladder import climb
from lessons.grader.pieces import PIECES, lesson_file
from lessons.grader.result import RUNGS
from minisbert.core.bert import attention as right_attention
from minisbert.core.bert import gelu as right_gelu
from minisbert.core.encoder import cosine

TYPED: dict[str, Callable] = {}  # by master's name: its lesson's formula, typed
# what their lessons say in prose, or only use: the docstring in the stub says the rest
IN_PROSE = {
    "weights.Family.names",  # a table
    "heads.CrossHead.forward",  # the lesson prints one of its two variants
    "tokenizer.pad_batch",
    "vocabulary.learn_merges",
    "data.length_grouped_batches",
    "dense.top_k",  # checked against sorted() in the lesson itself
    "loop.fit",  # the lesson on the loop prints its source
    "losses.spread_layers",
    "losses.keep_layers",
    "quantized.rescore",
    "gradient_cache.cut",
    "gradient_cache.vectors_in_parts",
    "gradient_cache.replay",
    "graph.walk",
}


def typed(master: str) -> Callable[[Callable], Callable]:
    def enter(function: Callable) -> Callable:
        TYPED[master] = function
        return function

    return enter


def of_lesson(master: str, *names: str) -> dict:
    """Functions that the lesson of a piece defines, by name."""
    tree = ast.parse(lesson_file(PIECES[master].lesson).read_text(encoding="utf-8"))
    chosen = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"unicodedata": unicodedata, "string": string, "torch": torch}
    exec(compile(ast.Module(chosen, []), "lesson", "exec"), space)
    return space


# -------------------------------------------------------------------------------- a sentence is read


@typed("encoder.cosine_matrix")
def cosine_matrix(u, v):
    lengths = [x.pow(2).sum(1, keepdim=True).sqrt() for x in (u, v)]
    return (u / lengths[0]) @ (v / lengths[1]).T


TYPED["tokenizer.split_words"] = of_lesson("tokenizer.split_words", "is_punctuation", "split_words")["split_words"]


@typed("tokenizer.word_pieces")
def _(word, vocabulary, unknown="[UNK]"):
    return of_lesson("tokenizer.word_pieces", "wordpiece")["wordpiece"](word, vocabulary)


@typed("bert.layer_norm")
def layer_norm(x, weight, bias, eps):
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (x - mean).pow(2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


@typed("bert.Embeddings.forward")
def _(self, ids, token_types, positions=None):
    types = torch.zeros_like(ids) if token_types is None else token_types
    x = self.word.weight[ids] + self.position.weight[: ids.shape[1]] + self.token_type.weight[types]
    return self.dropout(self.norm(x))


@typed("bert.attention")
def _(query, key, value, mask=None, dropout=0.0):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    probabilities = scores.softmax(-1)
    return torch.nn.functional.dropout(probabilities, dropout) @ value, probabilities


@typed("bert.Attention.split")
def _(self, x):
    width = x.shape[-1] // self.heads
    return torch.stack([x[..., h * width : (h + 1) * width] for h in range(self.heads)], dim=1)


@typed("bert.Attention.merge")
def _(self, x):
    return torch.cat([x[:, h] for h in range(x.shape[1])], dim=-1)


@typed("bert.Attention.forward")
def _(self, x, mask):
    query, key, value = (self.split(dense(x)) for dense in (self.query, self.key, self.value))
    context, probabilities = right_attention(query, key, value, mask, self.dropout if self.training else 0.0)
    return self.output(self.merge(context)), probabilities


@typed("bert.gelu")
def _(z):
    return z / 2 * (1 + torch.erf(z / math.sqrt(2)))


@typed("bert.FeedForward.forward")
def _(self, x):
    middle = right_gelu(x @ self.up.weight.T + self.up.bias)
    return middle @ self.down.weight.T + self.down.bias


@typed("bert.Layer.forward")
def _(self, x, mask):
    attended, probabilities = self.attention(x, mask)
    x = self.attention_norm(x + self.dropout(attended))
    return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), probabilities


@typed("bert.Bert.forward")
def _(self, ids, mask=None, token_types=None, trace=None, positions=None):
    if mask is not None and mask.ndim == 2:
        mask = mask.bool()[:, None, None, :]
    h = self.embeddings(ids, token_types, positions)
    if trace is not None:
        trace["embeddings"] = h
    for i, layer in enumerate(self.layers):
        h, probabilities = layer(h, mask)
        if trace is not None:
            trace |= {f"layers.{i}.attention": probabilities, f"layers.{i}": h}
    return h


def weights_of(hidden, mask):
    m = torch.ones(hidden.shape[:2]) if mask is None else mask
    return m.to(hidden.dtype)[:, :, None]


@typed("pooling.mean_pool")
def _(hidden, mask=None):
    m = weights_of(hidden, mask)
    return (m * hidden).sum(1) / m.sum(1)


@typed("pooling.max_pool")
def _(hidden, mask=None):
    return torch.stack([text[m[:, 0] == 1].amax(0) for text, m in zip(hidden, weights_of(hidden, mask), strict=True)])


@typed("pooling.attention_pool")
def _(hidden, mask, weight, bias):
    found = []
    for text, m in zip(hidden, weights_of(hidden, mask), strict=True):
        real = text[m[:, 0] == 1]
        p = (real @ weight.T + bias).softmax(0)
        found.append((p * real).sum(0))
    return torch.stack(found)


# ---------------------------------------------------------------------------------- it is judged


@typed("metrics.pearson")
def pearson(x, y):
    x, y = (np.asarray(side, dtype=np.float64) for side in (x, y))
    x, y = x - x.mean(), y - y.mean()
    with np.errstate(all="ignore"):
        return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


@typed("metrics.ranks")
def ranks(x):
    x = np.asarray(x)
    places = [np.flatnonzero(np.sort(x) == value) + 1 for value in x]
    return np.array([place.mean() for place in places])


@typed("metrics.spearman")
def _(x, y):
    return pearson(ranks(x), ranks(y))


@typed("heads.combine")
def _(u, v, features):
    named = {"u": u, "v": v, "|u-v|": abs(u - v), "u*v": u * v}
    return torch.cat([named[feature] for feature in features], dim=-1)


@typed("heads.JointHead.forward")
def _(self, h):
    return self.mlp(h[:, 0])


@typed("heads.CrossAttention.forward")
def _(self, h, g, mask=None):
    query, key, value = self.split(self.query(h)), self.split(self.key(g)), self.split(self.value(g))
    found, _ = right_attention(query, key, value, None if mask is None else mask.bool()[:, None, None, :])
    return self.output(self.merge(found))


@typed("losses.weighted_mse_loss")
def _(scores, target, threshold=0.2, weight=2.0):
    return ((scores - target) ** 2 * torch.where(target < threshold, weight, 1.0).to(scores.dtype)).mean()


@typed("losses.binary_cross_entropy_loss")
def _(logits, target, pos_weight=1.0):
    yes, no = (torch.nn.functional.logsigmoid(z) for z in (logits, -logits))
    return -(pos_weight * target * yes + (1 - target) * no).mean()


# ---------------------------------------------------------------------------------- and trained


@typed("losses.softmax_cross_entropy_loss")
def cross_entropy(z, right):
    return (z.logsumexp(1) - z[torch.arange(len(z)), right.long()]).mean()


@typed("losses.contrastive_loss")
def _(u, v, y, margin=0.5):
    d = 1 - cosine(u, v)
    return (y * d**2 + (1 - y) * torch.clamp(margin - d, min=0) ** 2).mean() / 2


@typed("losses.triplet_loss")
def _(a, p, n, margin=1.0, distance="euclidean"):
    d = {"euclidean": lambda x, y: (x - y).norm(dim=1), "cosine": lambda x, y: 1 - cosine(x, y)}[distance]
    return torch.clamp(d(a, p) - d(a, n) + margin, min=0).mean()


@typed("backward.dense_gelu_backward")
def _(x, W, b, dy):
    z = x @ W.T + b
    P, p = (1 + torch.erf(z / math.sqrt(2))) / 2, torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    dz = dy * (P + z * p)
    return dz @ W, dz.T @ x, dz.sum(0)


@typed("losses.cosent_loss")
def _(u, v, score, scale=20.0):
    cos = cosine(u, v)
    exponents = [torch.zeros((), dtype=cos.dtype)]  # exp(0) is the 1
    for i in range(len(cos)):
        exponents += [scale * (cos[j] - cos[i]) for j in range(len(cos)) if score[i] > score[j]]
    return torch.stack(exponents).logsumexp(0)


@typed("losses.multiple_negatives_ranking_loss")
def _(anchors, positives, hard_negatives=None, scale=20.0, symmetric=False, duplicates=None):
    logits, right = scale * cosine_matrix(anchors, positives), torch.arange(len(anchors))
    loss = cross_entropy(logits, right)
    return (loss + cross_entropy(logits.T, right)) / 2 if symmetric else loss


@typed("losses.simcse_loss")
def _(u, v, hard_negatives=None, temperature=0.05, hard_negative_weight=0.0):
    exponentials = torch.exp(cosine_matrix(u, v) / temperature)
    return -torch.log(exponentials.diagonal() / exponentials.sum(1)).mean()


@typed("losses.nt_xent_loss")
def _(u, v, temperature=0.05):
    z = torch.cat([u, v])
    total = 0.0
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        logits = cosine_matrix(z[i : i + 1], z[others]) / temperature
        total = total + cross_entropy(logits, torch.tensor([others.index((i + len(u)) % len(z))]))
    return total / len(z)


def unit(x):
    x = np.asarray(x, dtype=np.float64)
    return x / np.sqrt((x**2).sum(1, keepdims=True))


@typed("metrics.alignment")
def _(u, v):
    return float(((unit(u) - unit(v)) ** 2).sum(1).mean())


@typed("metrics.uniformity")
def _(x):
    x = unit(x)
    pairs = [(i, j) for i in range(len(x)) for j in range(i)]
    return float(np.log(np.mean([np.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i, j in pairs])))


@typed("losses.mse_loss")
def _(scores, target):
    return ((scores - target) ** 2).mean()


@typed("losses.cosine_mse_loss")
def _(u, v, target):
    return ((cosine(u, v) - target) ** 2).mean()


@typed("loop.linear_schedule")
def _(step, warmup, total):
    return step / warmup if step < warmup else max(0, total - step) / (total - warmup)


@typed("loop.adamw_step")
def _(p, g, m, v, t, lr, w=0.01, betas=(0.9, 0.999), eps=1e-8):
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g**2
    p = p * (1 - lr * w) - lr * (m / (1 - betas[0] ** t)) / (torch.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p, m, v


# ----------------------------------------------------------------- made small, searched, modern


@typed("sheet.training_step")
def _(config, B, T):
    D, F, L, H = (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
    )
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    # the table of the lesson on the encoder, with as many token types as there are
    weights = 4 * (rows * D + 2 * D + L * (4 * (D * D + D) + 2 * D) + L * (2 * D * F + F + D + 2 * D))
    forward = 2 * L * B * T * (4 * D * D + 2 * D * F + 2 * T * D)
    found = {"forward": forward, "backward": 2 * forward, "weights": weights, "gradients": weights}
    return found | {"moments": 2 * weights, "probabilities": 4 * L * B * H * T * T}


@typed("losses.distillation_loss")
def _(student, teacher):
    return ((student - teacher.detach()) ** 2).mean()


@typed("losses.matryoshka_loss")
def _(loss, *vectors, dims, weights=None):
    weights = [1.0] * len(dims) if weights is None else weights
    return sum(
        w * loss(*(x[:, :m] / x[:, :m].norm(dim=1, keepdim=True) for x in vectors))
        for m, w in zip(dims, weights, strict=True)
    )


@typed("quantized.to_int8")
def _(x, ranges):
    x = np.asarray(x, dtype=np.float32)
    low, high = ranges
    step = np.where(high == low, np.float32(1), (high - low) / 255)
    return (np.floor((x - low) / step) - 128).clip(-128, 127).astype(np.int8)


@typed("quantized.to_bits")
def _(x):
    return np.packbits(np.asarray(x) > 0, axis=1)


@typed("quantized.hamming")
def _(a, b):
    one, other = np.unpackbits(a, axis=1), np.unpackbits(b, axis=1)
    return (one[:, None] != other[None]).sum(-1)


@typed("bm25.bm25_scores")
def _(queries, documents, k1=1.2, b=0.75):
    N, mean = len(documents), sum(map(len, documents)) / len(documents)
    scores = np.zeros((len(queries), N))
    for q, query in enumerate(queries):
        for word in query:
            n = sum(word in document for document in documents)
            idf = math.log(1 + (N - n + 0.5) / (n + 0.5))
            for d, document in enumerate(documents):
                tf = document.count(word)
                scores[q, d] += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
    return scores


@typed("modern.rotate")
def _(x, cos, sin):
    # the lesson's ``turned``, with the cosines and sines of all places at once
    half = x.shape[-1] // 2
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[..., :half], sin[..., :half]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


TYPED["qwen3.rms_norm"] = of_lesson("qwen3.rms_norm", "rms")["rms"]
TYPED["qwen3.swiglu"] = of_lesson("qwen3.swiglu", "gated")["gated"]


@typed("late_interaction.max_sim")
def _(query, document):
    return sum(max(i @ j for j in document) for i in query)


@typed("masked.mask_tokens")
def _(ids, words, mask_id, chance, other):
    inputs, chosen = ids.clone(), words.bool() & (chance < 0.15)
    for at in chosen.nonzero().tolist():
        share = chance[tuple(at)] / 0.15
        if share < 0.8:
            inputs[tuple(at)] = mask_id
        elif share < 0.9:
            inputs[tuple(at)] = other[tuple(at)]
    return inputs, chosen


@typed("losses.mlm_loss")
def _(z, word):
    return cross_entropy(z, word)


@typed("fusion.reciprocal_ranks")
def _(scores, k=60):
    rank = np.argsort(np.argsort(-np.asarray(scores), axis=1, kind="stable"), axis=1) + 1
    return 1 / (k + rank)


@pytest.mark.parametrize("master", TYPED)
def test_the_printed_formula_passes(master):
    piece = PIECES[master]
    assert piece.printed in lesson_file(piece.lesson).read_text(encoding="utf-8")
    result = climb(piece, TYPED[master], guard=False)
    assert result.status == "passed", result.rungs[-1]
    left = [title for title, holds, _ in result.rungs if not holds]
    assert left in ([], [RUNGS["bonus"]])


def test_every_piece_whose_lesson_prints_a_formula_is_typed():
    assert TYPED.keys() | IN_PROSE == PIECES.keys()
    assert not TYPED.keys() & IN_PROSE
