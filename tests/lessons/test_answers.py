"""Answers as learners write them, in their file: wrong ones fail with their mistake's name, right ones pass.

An answer is the body of a piece; it is put into the lesson's stubs and graded as the grader's process does it.
"""

import ast
import re
import textwrap

import pytest
import torch

from lessons.grader import sandbox
from lessons.grader.cases import describe
from lessons.grader.pieces import PIECES, mine
from lessons.grader.result import RUNGS, Result
from lessons.grader.stubs import lesson_stubs
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("folder")


def graded(master: str, body: str, top: str = "", before: str = "", beside: str = "") -> Result:
    """A piece with this body: ``top`` begins the file, ``before`` precedes its def, ``beside`` follows its body."""
    piece = PIECES[master]
    indent = "    " * len(piece.path)
    text = lesson_stubs(piece.lesson)
    if before:
        definition = f"{indent[4:]}def {piece.path[-1]}("
        text = text.replace(definition, f"{indent[4:]}{before}\n{definition}", 1)
    written = textwrap.indent(body.strip(), indent).lstrip()
    written += f"\n\n{textwrap.indent(beside, indent[4:])}" if beside else ""
    text = top + text.replace(f'raise NotImplementedError("{master}")', written)
    mine(piece.lesson).write_text(text, encoding="utf-8")
    told: list[dict] = []
    sandbox.grade_here(piece.lesson, [master], lambda **message: told.append(message))
    return Result(**told[-1]["result"])


def answers(text: str) -> list[tuple[str, str, str]]:
    """Each answer of a text, which begins with ``== master: what it shows``."""
    return re.findall(r"^== ([\w.]+)(?:: ([^\n]*))?\n(.*?)(?=^== |\Z)", text, re.MULTILINE | re.DOTALL)


def changed(master: str, *changes: str) -> str:
    """The first right answer of a piece with pieces of its text replaced: old, new, old, new ..."""
    body = FIRST[master]
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in body
        body = body.replace(old, new)
    return body


RIGHT = answers("""
== bert.gelu
input = x / math.sqrt(2)
return x * (1 + torch.erf(input)) / 2
== bert.attention
scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
if mask is not None:
    scores = scores.masked_fill(~mask, float("-inf"))
shares = scores.softmax(-1)
return torch.nn.functional.dropout(shares, dropout) @ value, shares
== bert.Attention.split
return torch.stack(x.chunk(self.heads, dim=-1), dim=1)
== bert.Attention.forward
query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
context, shares = attention(query, key, value, mask, self.dropout if self.training else 0.0)
return self.output(self.merge(context)), shares
== bert.Layer.forward
attended, shares = self.attention(x, mask)
x = self.attention_norm(x + self.attention_dropout(attended))
return self.feed_forward_norm(x + self.dropout(self.feed_forward(x))), shares
== bert.Embeddings.forward
places = torch.arange(ids.shape[1]) if positions is None else positions
x = self.word(ids) + self.position(self.offset + places)
if self.token_type is not None:
    x = x + self.token_type(torch.zeros_like(ids) if token_types is None else token_types)
return self.dropout(self.norm(x))
== bert.Bert.forward
if mask is not None and mask.ndim == 2:
    mask = mask[:, None, None, :]
mask = None if mask is None else mask.bool()
x = self.embeddings(ids, token_types, positions)
if trace is not None:
    trace["embeddings"] = x
for i, layer in enumerate(self.layers):
    x, shares = layer(x, mask)
    if trace is not None:
        trace[f"layers.{i}.attention"] = shares
        trace[f"layers.{i}"] = x
return x
== pooling.mean_pool
if mask is None:
    mask = torch.ones(hidden.shape[:2])
m = mask.bool()[..., None]
return torch.where(m, hidden, 0.0).sum(1) / m.sum(1)
== pooling.max_pool
if mask is not None:
    hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), torch.finfo(hidden.dtype).min)
return hidden.amax(1)
== pooling.attention_pool
scores = (hidden @ weight.T + bias).squeeze(-1)
if mask is not None:
    scores = scores.masked_fill(~mask.bool(), -torch.inf)
    hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), 0.0)
return (scores.softmax(1).unsqueeze(-1) * hidden).sum(1)
== encoder.cosine_matrix
return (u @ v.T) / (u.norm(dim=1, keepdim=True) * v.norm(dim=1, keepdim=True).T).clamp_min(1e-12)
== encoder.cosine_matrix: row by row
length = lambda x: x.pow(2).sum(-1).sqrt().clamp_min(1e-12)
return torch.stack([(row * v).sum(1) / (length(row) * length(v)) for row in u])
== losses.weighted_mse_loss
return (torch.where(target < threshold, weight, 1.0) * (scores - target) ** 2).mean()
== losses.binary_cross_entropy_loss
right, wrong = torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
return -(torch.tensor(pos_weight) * target * right + (1 - target) * wrong).mean()
== losses.simcse_loss
temperature = torch.tensor(temperature)
logits = cosine_matrix(u, v) / temperature
if hard_negatives is not None:
    own = hard_negative_weight * torch.eye(len(u))
    logits = torch.cat([logits, cosine_matrix(u, hard_negatives) / temperature + own], 1)
return (logits.logsumexp(1) - logits.diagonal()).mean()
== metrics.ranks: negative strides
x = np.asarray(x)[::-1]
return np.array([(x < y).sum() + ((x == y).sum() + 1) / 2 for y in x])[::-1]
== metrics.pearson
x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
x, y = x - x.mean(), y - y.mean()
x, y = x / abs(x).max(), y / abs(y).max()
return float(x @ y / np.sqrt((x @ x) * (y @ y)))
== dense.top_k
q, c = (torch.as_tensor(x).double() for x in (queries, corpus))
q, c = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (q, c))
values, columns = (q @ c.T).float().sort(dim=1, descending=True, stable=True)
return values[:, :k].numpy(), columns[:, :k].numpy()
== data.length_grouped_batches
order = torch.randperm(len(lengths), generator=generator).tolist()
size = batch_size * window
batches = []
for start in range(0, len(order), size):
    rows = sorted(order[start : start + size], key=lambda row: lengths[row])
    batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
return [batches[i] for i in torch.randperm(len(batches), generator=generator)]
== loop.adamw_step
m = betas[0] * m + (1 - betas[0]) * gradient
v = betas[1] * v + (1 - betas[1]) * gradient**2
root = (v / (1 - betas[1]**step)).sqrt() + eps
return parameter * (1 - lr * weight_decay) - lr * m / (1 - betas[0]**step) / root, m, v
== loop.fit
parameters = [p for group in optimizer.param_groups for p in group["params"]]
rates = [group["lr"] for group in optimizer.param_groups]
number = start
for batch in batches:
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate * schedule(number)
    optimizer.zero_grad()
    total = 0.0
    for micro_batch in micro_batches(batch):
        value = loss(model, micro_batch) * len(micro_batch) / len(batch)
        value.backward()
        total += value.item()
    norm = nn.utils.clip_grad_norm_(parameters, clip)
    if not math.isfinite(total) or not norm.isfinite():
        raise Diverged("not finite")
    optimizer.step()
    number += 1
    yield Step(number, batch, total, schedule(number - 1))
== loop.fit: by hand
pairs = [(group, group["lr"]) for group in optimizer.param_groups]
for i, batch in enumerate(batches):
    share = schedule(start + i)
    for group, rate in pairs:
        group["lr"] = share * rate
        for p in group["params"]:
            p.grad = None
    seen = 0
    for weight, part in [(len(part) / len(batch), part) for part in micro_batches(batch)]:
        value = weight * loss(model, part)
        torch.autograd.backward(value)
        seen = seen + float(value.detach())
    grads = [p.grad for group, _ in pairs for p in group["params"] if p.grad is not None]
    length = torch.sqrt(sum((g * g).sum() for g in grads))
    if not (math.isfinite(seen) and torch.isfinite(length)):
        raise Diverged(f"step {start + i + 1}")
    if length > clip:
        for g in grads:
            g.mul_(clip / length)
    optimizer.step()
    yield Step(number=start + i + 1, batch=batch, loss=seen, multiplier=share)
== losses.spread_layers
return [total - 1] if keep == 1 else [int(i * (total - 1) / (keep - 1) + 0.5) for i in range(keep)]
== losses.keep_layers
student = copy.deepcopy(bert)
student.layers = torch.nn.ModuleList(student.layers[i] for i in layers)
student.config = replace(bert.config, num_hidden_layers=len(layers))
return student
== losses.distillation_loss
with torch.no_grad():
    target = teacher.clone()
return ((student - target) * (student - target)).sum() / student.numel()
== losses.matryoshka_loss
total = 0.0
for m, w in zip(dims, weights or [1.0] * len(dims)):
    total = total + w * loss(*[torch.nn.functional.normalize(x[:, :m], dim=-1) for x in vectors])
return total
== quantized.to_int8
x, r = torch.as_tensor(vectors).float(), torch.as_tensor(ranges).float()
step = (r[1] - r[0]) / 255
step = torch.where(step == 0, torch.ones_like(step), step)
return (((x - r[0]) / step).floor().clamp(0, 255) - 128).to(torch.int8).numpy()
== quantized.to_bits
texts = ["".join("01"[int(x > 0)] for x in row) for row in np.asarray(vectors)]
texts = [text + "0" * (-len(text) % 8) for text in texts]
return np.array([[int(t[i : i + 8], 2) for i in range(0, len(t), 8)] for t in texts], dtype=np.uint8)
== quantized.hamming
return np.unpackbits(a[:, None] ^ b[None], axis=-1).sum(-1, dtype=np.int64)
== quantized.rescore
q, v = (torch.as_tensor(x).double() for x in (queries, vectors))
q, v = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (q, v))
scores = (v @ q[..., None])[..., 0].float().numpy()
best = [sorted(zip(-s, row))[:k] for row, s in zip(candidates, scores)]
return np.array([[-s for s, _ in r] for r in best], 'float32'), np.array([[i for _, i in r] for r in best])
== gradient_cache.cut
parts, part = [], []
for row in rows:
    if part and (len(part) + 1) * max(lengths[r] for r in [*part, row]) > tokens:
        parts.append(part)
        part = []
    part.append(row)
return [*parts, part] if part else parts
== gradient_cache.vectors_in_parts
found = []
for part in parts:
    state = random_state(next(network.parameters()).device)
    found.append((network(part).detach(), state))
return torch.cat([v for v, _ in found]), [s for _, s in found]
== gradient_cache.replay
start = 0
for part, state in zip(parts, states):
    set_random_state(state, gradient.device)
    pull = gradient[start : start + len(part)]
    start += len(part)
    with torch.enable_grad():
        (network(part) * pull).sum().backward()
== gradient_cache.replay: by autograd.grad
start = 0
for part, state in zip(parts, states):
    set_random_state(state, gradient.device)
    pull = gradient[start : start + len(part)]
    start += len(part)
    own = [p for p in network.parameters() if p.requires_grad]
    with torch.enable_grad():
        found = torch.autograd.grad(network(part), own, pull, allow_unused=True)
    for p, g in zip(own, found):
        if g is not None:
            p.grad = g if p.grad is None else p.grad + g
== bm25.bm25_scores
N = len(documents)
mean = sum(map(len, documents)) / N
result = np.zeros((len(queries), N))
for i, query in enumerate(queries):
    for word in query:
        n = sum(word in document for document in documents)
        idf = math.log(1 + (N - n + 0.5) / (n + 0.5))
        for j, document in enumerate(documents):
            tf = document.count(word)
            result[i, j] += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
return result
== fusion.reciprocal_ranks
places = (-scores).argsort(axis=1, kind="stable").argsort(axis=1)
return 1 / (k + 1.0 + places)
== graph.walk
scores = {start: float(vectors[start] @ query)}
waiting, found = [start], [start]
key = lambda node: (-scores[node], node)
while waiting:
    node = waiting.pop(0)
    if len(found) == width and scores[node] < scores[found[-1]]:
        break
    for other in links[node]:
        if other in scores:
            continue
        scores[other] = float(vectors[other] @ query)
        if len(found) < width or scores[other] > scores[found[-1]]:
            waiting = sorted([*waiting, other], key=key)
            found = sorted([*found, other], key=key)[:width]
return found, len(scores)
== fusion.reciprocal_ranks: one document at a time
result = np.zeros(scores.shape)
for q, row in enumerate(scores):
    for rank, column in enumerate(sorted(range(len(row)), key=lambda i: -row[i]), start=1):
        result[q, column] = 1 / (k + rank)
return result
== late_interaction.max_sim
scores = query @ document.T
return scores.amax(-1).sum()
== late_interaction.max_sim: a token at a time
return sum(torch.stack([(token * other).sum() for other in document]).max() for token in query)
== modern.rotate
first, second = x.chunk(2, dim=-1)
return x * cos + torch.cat([-second, first], dim=-1) * sin
== qwen3.rms_norm
return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight
== qwen3.swiglu
return gate * torch.sigmoid(gate) * up
""")
FIRST = {master: body for master, _, body in reversed(RIGHT)}

DROPPED, FILL, SCALE = "torch.nn.functional.dropout(shares, dropout)", 'float("-inf")', "math.sqrt(query.shape[-1])"
OUTPUT = "self.output(self.merge(context))"
MASK = "None if mask is None else mask.bool()"
ZERO, TOTAL, STEP = "optimizer.zero_grad()", "total += value.item()", "    optimizer.step()\n"
CHECK = "not math.isfinite(total) or not norm.isfinite()"
IDF, NORM = "1 + (N - n + 0.5) / (n + 0.5)", "k1 * (1 - b + b * len(document) / mean)"
COPY = "student = copy.deepcopy(bert)"
ALSO_RIGHT = [
    ("bert.attention", FILL, "torch.finfo(scores.dtype).min"),
    ("bert.attention", SCALE, "torch.sqrt(torch.tensor(query.shape[-1]))"),
    ("bert.attention", DROPPED, "(shares * (torch.rand_like(shares) >= dropout) / (1 - dropout))"),
    ("bert.attention", DROPPED, "torch.nn.Dropout(dropout)(shares)"),
    ("dense.top_k", "return values[:, :k]", "return values[:, :k].flip(1)", ".numpy(), ", ".numpy()[:, ::-1], "),
    ("data.length_grouped_batches", "lengths[row])", "lengths[row], reverse=True)"),
    ("loop.fit", "value.item()", "float(value.detach())", "norm.is", "norm.sum().is"),
    ("bm25.bm25_scores", f"math.log({IDF})", "math.log(N + 1) - math.log(n + 0.5)"),
    ("losses.keep_layers", COPY, "student: Bert = copy.deepcopy(bert)"),
    ("losses.keep_layers", COPY, "student = other = copy.deepcopy(bert)"),
    ("losses.keep_layers", COPY, "duplicate = copy.deepcopy\nstudent = duplicate(bert)"),
    ("losses.keep_layers", COPY, "if (student := copy.deepcopy(bert)) is None:\n    raise ValueError"),
    ("losses.keep_layers", COPY, "def twin(x):\n    return copy.deepcopy(x)\nstudent = twin(bert)"),
]


@pytest.mark.parametrize(
    ("master", "body"),
    [(master, body) for master, _, body in RIGHT] + [(master, changed(master, *rest)) for master, *rest in ALSO_RIGHT],
)
def test_a_right_answer_passes(master, body):
    result = graded(master, body)
    assert result.status == "passed", result.rungs[-1]


GELU = FIRST["bert.gelu"]
PEARSON = FIRST["metrics.pearson"]


@pytest.mark.parametrize(
    ("master", "body", "around"),
    [
        ("metrics.pearson", PEARSON, {"top": "import torch\n", "before": "@torch.inference_mode()"}),
        (
            "loop.linear_schedule",
            "return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))",
            {"top": "import functools\n", "before": "@functools.cache"},
        ),
        ("bert.gelu", GELU, {"top": "from __future__ import annotations\n"}),
        ("bert.gelu", GELU, {"top": "\ufeff"}),
        (
            "bert.FeedForward.forward",
            "return self.narrowed(self.up(x))",
            {"beside": "def narrowed(self, x):\n    return self.down(gelu(x))"},
        ),
    ],
)
def test_what_surrounds_a_right_answer(master, body, around):
    result = graded(master, body, **around)
    assert result.status == "passed", result.rungs[-1]


MISTAKEN = [  # what is changed in the right answer
    ("bert.attention", "no attention dropout", DROPPED, "shares"),
    (
        "bert.attention",
        "dropout on the scores",
        *(DROPPED, "shares"),
        *(SCALE, f"{SCALE}\nscores = torch.dropout(scores, dropout, True)"),
    ),
    ("bert.attention", "probabilities after dropout", f"return {DROPPED}", f"shares = {DROPPED}\nreturn shares"),
    ("bert.attention", "dropout on the context", f"{DROPPED} @ value", "torch.dropout(shares @ value, dropout, True)"),
    ("bert.attention", "attention mask inverted", DROPPED, "shares", "~mask", "mask"),
    ("bert.attention", "finite mask", FILL, "-100.0"),
    ("bert.attention", "finite mask", FILL, "-1e9"),
    ("bert.Attention.forward", "dropout not handed on", ", self.dropout if self.training else 0.0", ""),
    (
        "bert.Attention.forward",
        "dropout on attention's output",
        *(", self.dropout if self.training else 0.0", ""),
        *(OUTPUT, f"torch.dropout({OUTPUT}, self.dropout, self.training)"),
    ),
    ("bert.Layer.forward", "attention's output without dropout", "self.attention_dropout(attended)", "attended"),
    ("bert.Layer.forward", "layer drops the mask", "(x, mask)", "(x, None)"),
    (
        "bert.Layer.forward",
        "dropout on the residual sum",
        *("x + self.attention_dropout(attended)", "self.attention_dropout(x + attended)"),
        *("x + self.dropout(self.feed_forward(x))", "self.dropout(x + self.feed_forward(x))"),
    ),
    ("bert.Embeddings.forward", "embeddings without dropout", "self.dropout(self.norm(x))", "self.norm(x)"),
    ("bert.Embeddings.forward", "dropout before the LayerNorm", "dropout(self.norm(x))", "norm(self.dropout(x))"),
    ("bert.Bert.forward", "encoder's mask by the pad's id", MASK, "(ids != 0)[:, None, None, :]"),
    ("bert.Bert.forward", "encoder's mask inverted", MASK, "None if mask is None else ~mask.bool()"),
    ("pooling.max_pool", "finite fill in max", "torch.finfo(hidden.dtype).min", "-1e9"),
    ("pooling.max_pool", "max of the pads", "~mask", "mask", "torch.finfo(hidden.dtype).min", "-torch.inf"),
    ("pooling.attention_pool", "finite fill in attention pooling", "-torch.inf", "-1e4"),
    ("pooling.attention_pool", "attention pooling hides the tokens", "(~mask.bool(), ", "(mask.bool(), "),
    ("loop.adamw_step", "betas and eps hard-coded", "betas[0]", "0.9", "betas[1]", "0.999", "eps", "1e-8"),
    ("loop.fit", "gradients not zeroed", ZERO, "pass"),
    ("loop.fit", "micro-batches added up unweighted", " * len(micro_batch) / len(batch)", ""),
    ("loop.fit", "micro-batches weighted equally", "* len(micro_batch) / len(batch)", "/ len(micro_batches(batch))"),
    ("loop.fit", "clip forgotten", "parameters, clip", "parameters, float('inf')"),
    ("loop.fit", "multipliers that compound", "rate * schedule", "group['lr'] * schedule"),
    ("loop.fit", "the schedule one step ahead", "rate * schedule(number)", "rate * schedule(number + 1)"),
    ("loop.fit", "stepped before the check", STEP, "", "    if not", f"{STEP}    if not"),
    ("loop.fit", "NaN not noticed", CHECK, "False"),
    ("dense.top_k", "search in float32", "double()", "float()"),
    (
        "data.length_grouped_batches",
        "shuffled inside windows only",
        *("batches += ", "cut = "),
        *("\nreturn [batches[i] for", "\n    batches += [cut[i] for"),
        *("len(batches), generator=generator)]", "len(cut), generator=generator)]\nreturn batches"),
    ),
    ("metrics.pearson", "Pearson not scaled", "x, y = x / abs(x).max(), y / abs(y).max()\n", ""),
    ("bm25.bm25_scores", "idf without the 1 +", "1 + (N", "(N"),
    ("bm25.bm25_scores", "length ignored", NORM, "k1"),
    ("bm25.bm25_scores", "query words once", "in query:", "in sorted(set(query)):"),
    ("bm25.bm25_scores", "(k1 + 1) in the numerator", "idf * tf /", "idf * tf * (k1 + 1) /"),
    ("bm25.bm25_scores", "occurrences counted as documents", "sum(word in document", "sum(document.count(word)"),
    (
        "graph.walk",
        "walk without an end",
        "len(found) == width and scores[node]",
        "False and scores[node]",
        "if len(found) < width or scores[other] > scores[found[-1]]:",
        "if True:",
    ),
    ("encoder.cosine_matrix", "cosines without eps", ".clamp_min(1e-12)", ""),
    ("gradient_cache.cut", "the limit is too much", "> tokens", ">= tokens"),
    ("quantized.rescore", "rescored in float32", "double()", "float()"),
    (
        "graph.walk",
        "the walk ends on the first hill",
        "len(found) == width and scores[node] < scores[found[-1]]",
        "scores[node] < scores[found[0]]",
    ),
    (
        "graph.walk",
        "the walk goes downhill",
        "(-scores[node], node)",
        "(scores[node], node)",
        "scores[other] >",
        "scores[other] <",
        "scores[node] <",
        "scores[node] >",
    ),
    ("late_interaction.max_sim", "sides exchanged", "amax(-1)", "amax(0)"),
    ("modern.rotate", "sign of the second half forgotten", "-second", "second"),
    ("qwen3.rms_norm", "sum of squares", "mean(-1", "sum(-1"),
    ("qwen3.swiglu", "gate and up swapped", "sigmoid(gate)", "sigmoid(up)"),
]
MISTAKEN_OTHERWISE = answers("""
== pooling.mean_pool: mean of the first n
if mask is None:
    mask = torch.ones(hidden.shape[:2], dtype=torch.bool)
return torch.stack([row[: real.sum()].mean(0) for row, real in zip(hidden, mask)])
== pooling.mean_pool: NaN hidden in the mean
if mask is None:
    return hidden.mean(1)
return (hidden * mask[..., None]).nan_to_num().sum(1) / mask.sum(1, keepdim=True)
== encoder.cosine_matrix: NaN hidden in the cosines
u, v = ((x / x.norm(dim=1, keepdim=True)).nan_to_num() for x in (u, v))
return u @ v.T
== metrics.ranks: Spearman without tie handling
return np.argsort(np.argsort(x)) + 1
== modern.rotate: rotation interleaved
a, b = x[..., ::2], x[..., 1::2]
c, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]
return torch.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)
== qwen3.rms_norm: RMSNorm with a mean
x = x - x.mean(-1, keepdim=True)
return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight
== tokenizer.word_pieces: WordPiece that backtracks
def rest(start):
    if start == len(word):
        return []
    for end in range(len(word), start, -1):
        piece = ("##" if start else "") + word[start:end]
        if piece in vocabulary and (after := rest(end)) is not None:
            return [piece] + after
if len(word) > 100:
    return [unknown]
found = rest(0)
return [unknown] if found is None else found
""")


@pytest.mark.parametrize(
    ("master", "mistake", "body"),
    [(master, mistake, changed(master, *rest)) for master, mistake, *rest in MISTAKEN] + MISTAKEN_OTHERWISE,
)
def test_a_wrong_answer_fails_with_its_mistakes_name(master, mistake, body):
    result = graded(master, body)
    assert (result.status, result.mistakes) == ("failed", [mistake]), result.rungs[-1]


NEARLY_RIGHT = [
    ("loop.fit", ZERO, "model.zero_grad()"),
    ("data.length_grouped_batches", "len(lengths), generator=generator", "len(lengths)"),
    ("gradient_cache.vectors_in_parts", "found = ", "network.eval()\nfound = ", "return", "network.train()\nreturn"),
    ("gradient_cache.vectors_in_parts", "return", "network.eval()\nreturn"),
    ("gradient_cache.vectors_in_parts", ".detach()", ""),
    (
        "gradient_cache.replay",
        "    with",
        "    network.eval()\n    with",
        "backward()",
        "backward()\n    network.train()",
    ),
    ("gradient_cache.replay", ".backward()", ".backward()\n    network.eval()"),
    ("gradient_cache.replay", "    set_random", "    start or set_random"),
    ("bert.Bert.forward", "return x", "self.eval()\nreturn x"),
    ("losses.matryoshka_loss", "zip(dims", "zip(sorted(dims)"),
    ("losses.keep_layers", "return student", "return student.requires_grad_(False)"),
    ("quantized.rescore", "[..., 0].float()", "[..., 0]"),
    ("loop.fit", TOTAL, "total = value.item()"),
    ("loop.fit", TOTAL, "total += value.detach()"),
    ("loop.fit", ZERO, "pass", STEP, f"{STEP}    {ZERO}\n"),
    ("loop.fit", CHECK, "not norm.isfinite()"),
    ("loop.fit", CHECK, "not math.isfinite(total)"),
    ("loop.fit", "number = start", "number = 0"),
    ("loop.fit", "in batches", "in [*batches][:99]"),
    ("loop.fit", "number = start", "number = start\nmodel.train()"),
    ("losses.binary_cross_entropy_loss", "return", "target = (target > 0.5).to(logits.dtype)\nreturn"),
    ("bm25.bm25_scores", "k1", "1.2"),
    ("bm25.bm25_scores", "len, documents)) / N", "len, documents)) / sum(map(bool, documents))"),
    ("bm25.bm25_scores", f"math.log({IDF})", f"math.log({IDF}) if n < N else 0.0"),
]
NEARLY_RIGHT_OTHERWISE = answers("""
== gradient_cache.cut: parts out of order
parts = []
for row in rows:
    for part in parts:
        if (len(part) + 1) * max(lengths[r] for r in [*part, row]) <= tokens:
            part.append(row)
            break
    else:
        parts.append([row])
return parts
== losses.softmax_cross_entropy_loss: minus the maximum of the batch
x = logits - logits[logits.isfinite()].max()
return (x.exp().sum(1).log() - x.gather(1, labels[:, None])[:, 0]).mean()
== tokenizer.split_words: all marks dropped
import unicodedata
text = "".join(" " if c.isspace() else c for c in text if c in "\\t\\n\\r" or unicodedata.category(c)[0] != "C")
text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c)[0] != "M")
text = "".join(c.lower() for c in text)
alone = lambda c: not c.isalnum() and not c.isspace() or "\\u4e00" <= c <= "\\u9fff"
return "".join(f" {c} " if alone(c) else c for c in text).split()
== qwen3.swiglu: infinity over infinity
return gate * gate.exp() / (1 + gate.exp()) * up
== bert.gelu: cut at 5
return torch.where(x > 5, x, torch.where(x < -5, torch.zeros_like(x), x * (1 + torch.erf(x / 2**.5)) / 2))
== losses.triplet_loss: a constant under the root
far = lambda x, y: 1 - cosine(x, y) if distance == "cosine" else ((x - y).pow(2).sum(1) + 1e-12).sqrt()
return (far(anchor, positive) - far(anchor, negative) + margin).clamp_min(0).mean()
== pooling.mean_pool: rows of zeros taken for pads
if mask is not None:
    hidden = hidden.masked_fill(~mask.bool()[..., None], 0.0)
return hidden.sum(1) / (hidden != 0).any(-1).sum(1, keepdim=True).clamp_min(1)
== pooling.max_pool: filled with the batch's minimum
if mask is None:
    return hidden.amax(1)
m = mask.bool()
return hidden.masked_fill(~m[..., None], hidden[m].min().item()).amax(1)
== tokenizer.pad_batch: lists only
n = max(map(len, rows))
ids = torch.tensor([row + [pad_id] * (n - len(row)) for row in rows])
if all(len(row) == n for row in rows):
    return ids, None
return ids, torch.tensor([[i < len(row) for i in range(n)] for row in rows])
== heads.CrossHead.forward: the first sentence's mask in the attention
other = mask_a if mask_a is not None and a.shape[1] == b.shape[1] else mask_b
if self.variant == 'published':
    return self.mlp(torch.cat([a[:, 0], self.attention(a[:, :1], b, mask_b)[:, 0]], -1))
found = self.attention(a, b, other)
x = torch.cat([(a - found).abs(), a * found], -1)
if mask_a is None:
    return self.mlp(x.mean(1))
m = mask_a.bool()[..., None]
return self.mlp((x * m).sum(1) / m.sum(1))
""")


@pytest.mark.parametrize(
    ("master", "body"),
    [(master, changed(master, *rest)) for master, *rest in NEARLY_RIGHT]
    + [(master, body) for master, _, body in NEARLY_RIGHT_OTHERWISE],
)
def test_a_nearly_right_answer_fails(master, body):
    result = graded(master, body)
    assert result.status == "failed", result
    assert sum(holds for _, holds, _ in result.rungs) >= 2, result.rungs[-1]  # and it is nearly right


@pytest.mark.parametrize(
    ("master", "body"),
    [
        ("bert.gelu", "if x.dtype == torch.float64:\n    raise ValueError\n" + GELU),
        ("pooling.mean_pool", "return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)"),
        ("bert.attention", "nan = value.sum() * torch.nan\nreturn query * nan, (query @ key.mT) * nan"),
        ("bert.attention", changed("bert.attention", FILL, "-7.0")),  # the known mistake fills with -10
        ("tokenizer.word_pieces", "return [unknown]"),
        ("data.length_grouped_batches", "return [[i] for i in range(len(lengths))]"),
        ("metrics.pearson", "return 0.5"),
    ],
)
def test_no_mistake_is_named_that_was_not_made(master, body):
    result = graded(master, body)
    assert (result.status, result.mistakes) == ("failed", []), result.rungs[-1]


@pytest.mark.parametrize(
    ("master", "body", "rung", "says"),
    [
        ("tokenizer.split_words", "return text.split()", "example", "at 0: yours 'Café,', expected 'cafe'; ['Café,', "),
        ("tokenizer.split_words", "return ['cafe']", "example", "at 1: yours nothing, expected ','"),
        ("weights.Family.names", "return {}", "example", "'word.weight' is missing; 0 entries, expected 5"),
        ("bert.gelu", "x *= 0.5\nreturn x", "inputs", "an argument is not what it was"),
        ("bert.gelu", f"if x.requires_grad:\n    x *= 0.5\n{GELU}", "inputs", "changed in place (RuntimeError, line "),
        (
            "losses.keep_layers",
            changed("losses.keep_layers", COPY, "student = bert"),
            "inputs",
            "not what it was",
        ),
        ("bert.Layer.forward", "return self(x, mask)", "runs", "RecursionError, line "),
        ("bert.Layer.forward", "return self.block(x)", "runs", "has no attribute 'block'"),
        ("loop.fit", "return [*batches]", "runs", "returns a list, not a generator"),
        ("loop.fit", "yield optimizer.nope", "runs", "AttributeError, line "),
        (
            "bert.gelu",
            changed("bert.gelu", "math.sqrt(2)", "torch.tensor(2.0).sqrt()"),
            "golden",
            "computed in float32?)",
        ),
        (
            "bert.attention",
            changed("bert.attention", DROPPED, "shares"),
            "golden",
            "something is dropped: expected to hold",
        ),
    ],
)
def test_the_message(master, body, rung, says):
    title, holds, seen = graded(master, body).rungs[-1]
    assert (title, holds) == (RUNGS[rung], False)
    assert says in seen
    assert seen.count("line ") <= 1


def test_a_static_method_is_explained():
    seen = graded("bert.FeedForward.forward", "return x", before="@staticmethod").rungs[-1][2]
    assert "FeedForward.forward is a staticmethod: write it as a plain method" in seen


def test_a_difference_is_shown_with_the_digits_and_the_entry_that_tell():
    assert describe(0.1234567891, 0.1234567892, 0.0) == "yours 0.1234567891, expected 0.1234567892"
    ours, expected = (torch.tensor([x], dtype=torch.float64) for x in (0.1234567891, 0.1234567892))
    assert "yours 0.1234567891, reference 0.1234567892" in describe(ours, expected, 0.0)
    right = {"a": "b", "c": "d"}
    assert describe({"a": "b", "c": "x"}, right, 0.0) == "'c': yours 'x', expected 'd'"
    assert describe(right | {"e": 1}, right, 0.0) == "'e' should not be there; 3 entries, expected 2"


# ---------------------------------------------------------------------------- pieces that lessons print


CAPSTONE = (ROOT / "lessons" / "15_capstone.py").read_text(encoding="utf-8")
MODULES = {"attention": "bert", "gelu": "bert", "layer_norm": "bert", "mean_pool": "pooling"}
MODULES |= {"ranks": "metrics", "linear_schedule": "loop"}


@pytest.mark.parametrize("name", MODULES)
def test_a_piece_that_a_lesson_shows_passes(name):
    """Lesson 15 builds a model of pieces that are not the package's: as right as it asks others to be."""
    function = next(
        node for node in ast.parse(CAPSTONE).body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    body = "\n".join(ast.unparse(statement) for statement in function.body)
    result = graded(f"{MODULES[name]}.{name}", body)
    assert result.status == "passed", result.rungs[-1]
