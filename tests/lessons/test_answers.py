"""Answers as learners write them, in their file: wrong ones fail with their mistake's name, right ones pass.

An answer is the body of a piece; it is put into the lesson's stubs and graded as the grader's process does it.
"""

import textwrap

import pytest
import torch

from lessons.grader import sandbox
from lessons.grader.cases import describe
from lessons.grader.pieces import PIECES, mine
from lessons.grader.result import RUNGS, Result
from lessons.grader.stubs import lesson_stubs


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("lessons.grader.pieces.MINE", tmp_path)
    return tmp_path


def graded(master: str, body: str, top: str = "", before: str = "", beside: str = "") -> Result:
    """A piece with this body: ``top`` begins the file, ``before`` stands above its def, ``beside`` after its body."""
    piece = PIECES[master]
    indent = "    " * len(piece.path)
    name = piece.path[-1]
    text = lesson_stubs(piece.lesson)
    if before:
        head, _, tail = text.partition(f"{indent[4:]}def {name}(")
        text = f"{head}{indent[4:]}{before}\n{indent[4:]}def {name}({tail}"
    written = textwrap.indent(textwrap.dedent(body).strip(), indent).lstrip()
    written += "".join(f"\n\n{textwrap.indent(textwrap.dedent(beside).strip(), indent[4:])}" if beside else "")
    text = top + text.replace(f'raise NotImplementedError("{master}")', written)
    mine(piece.lesson).write_text(text, encoding="utf-8")
    told: list[dict] = []
    sandbox.grade_here(piece.lesson, [master], lambda **message: told.append(message))
    return Result(**told[-1]["result"])


# ---------------------------------------------------------------------------------- wrong answers

ATTENTION = """
scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]){0}
if mask is not None:
    scores = scores.masked_fill({mask}, {fill})
shares = scores.softmax(-1)
{end}
"""
DROPPED = "torch.nn.functional.dropout({}, dropout)"


def attention(end: str, scores: str = "", mask: str = "~mask", fill: str = "float('-inf')") -> str:
    return ATTENTION.format(scores, mask=mask, fill=fill, end=end)


HEADS = "query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))\n"
LAYER = """
attended, shares = self.attention(x, {mask})
x = self.attention_norm({first})
return self.feed_forward_norm({second}), shares
"""
FIRST, SECOND = "x + self.attention_dropout(attended)", "x + self.dropout(self.feed_forward(x))"
EMBEDDED = """
places = torch.arange(ids.shape[1]) if positions is None else positions
x = self.word(ids) + self.position(self.offset + places)
if self.token_type is not None:
    x = x + self.token_type(torch.zeros_like(ids) if token_types is None else token_types)
return {}
"""
BERT = """
if mask is not None and mask.ndim == 2:
    mask = mask[:, None, None, :]
mask = {}
x = self.embeddings(ids, token_types, positions)
if trace is not None:
    trace["embeddings"] = x
for i, layer in enumerate(self.layers):
    x, shares = layer(x, mask)
    if trace is not None:
        trace[f"layers.{{i}}.attention"] = shares
        trace[f"layers.{{i}}"] = x
return x
"""
FIRST_N = """
if mask is None:
    mask = torch.ones(hidden.shape[:2], dtype=torch.bool)
return torch.stack([{} for row, real in zip(hidden, mask)])
"""
MAX = """
if mask is not None:
    hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), {})
return hidden.amax(1)
"""
LEARNED = """
scores = (hidden @ weight.T + bias).squeeze(-1)
if mask is not None:
    scores = scores.masked_fill({}, {})
    hidden = hidden.masked_fill(~mask.bool().unsqueeze(-1), 0.0)
return (scores.softmax(1).unsqueeze(-1) * hidden).sum(1)
"""
BACKTRACKING = """
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
"""
ADAMW = """
m = {0} * m + (1 - {0}) * gradient
v = {1} * v + (1 - {1}) * gradient**2
root = (v / (1 - {1}**step)).sqrt() + {2}
return parameter * (1 - lr * weight_decay) - lr * m / (1 - {0}**step) / root, m, v
"""
TOP_K = """
q, c = (torch.as_tensor(x).{} for x in (queries, corpus))
q, c = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12) for x in (q, c))
values, columns = (q @ c.T).float().sort(dim=1, descending=True, stable=True)
return values[:, :k].numpy(), columns[:, :k].numpy()
"""
BATCHES = """
order = torch.randperm(len(lengths), generator=generator).tolist()
size = batch_size * window
batches = []
for start in {starts}:
    rows = sorted(order[start : start + size], key=lambda row: lengths[row]{reverse})
    cut = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    batches += {cut}
return {batches}
"""
IN_ORDER, SHUFFLED = "range(0, len(order), size)", "[{0}[i] for i in torch.randperm(len({0}), generator=generator)]"
PEARSON = """
x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
x, y = x - x.mean(), y - y.mean()
"""
FIT = """
parameters = [p for group in optimizer.param_groups for p in group["params"]]
rates = [group["lr"] for group in optimizer.param_groups]
number = start
for batch in batches:
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate * schedule(number)
    {zero}
    total = 0.0
    for micro_batch in micro_batches(batch):
        value = loss(model, micro_batch){share}
        value.backward()
        total += {item}
    norm = nn.utils.clip_grad_norm_({clipped})
    {check}
    number += 1
    yield Step(number, batch, total, schedule(number - 1))
"""
CHECK = (
    "if not math.isfinite(total) or not norm.isfinite():\n        raise Diverged('not finite')\n    optimizer.step()"
)


def fit(
    zero: str = "optimizer.zero_grad()",
    share: str = " * len(micro_batch) / len(batch)",
    item: str = "value.item()",
    clipped: str = "parameters, clip",
    check: str = CHECK,
) -> str:
    return FIT.format(zero=zero, share=share, item=item, clipped=clipped, check=check)


BY_HAND = """
pairs = [(group, group["lr"]) for group in optimizer.param_groups]
for i, batch in enumerate(batches):
    share = schedule(start + i)
    for group, rate in pairs:
        group["lr"] = share * rate
        for p in group["params"]:
            p.grad = None
    parts = [(len(part) / len(batch), part) for part in micro_batches(batch)]
    seen = 0
    for weight, part in parts:
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
"""
A_F, F_F, E_F, B_F = "bert.Attention.forward", "bert.Layer.forward", "bert.Embeddings.forward", "bert.Bert.forward"

WRONG = {
    # dropout, which only training shows
    "attention, none": ("bert.attention", attention("return shares @ value, shares"), "no attention dropout"),
    "attention, of the scores": (
        "bert.attention",
        attention("return shares @ value, shares", f"\nscores = {DROPPED.format('scores')}"),
        "dropout on the scores",
    ),
    "attention, returned": (
        "bert.attention",
        attention(f"shares = {DROPPED.format('shares')}\nreturn shares @ value, shares"),
        "probabilities after dropout",
    ),
    "attention, of the context": (
        "bert.attention",
        attention(f"return {DROPPED.format('shares @ value')}, shares"),
        "dropout on the context",
    ),
    "Attention, none": (
        A_F,
        HEADS + "context, shares = attention(query, key, value, mask)\nreturn self.output(self.merge(context)), shares",
        "dropout not handed on",
    ),
    "Attention, of the output": (
        A_F,
        HEADS + "context, shares = attention(query, key, value, mask)\n"
        "return torch.nn.functional.dropout(self.output(self.merge(context)), self.dropout, self.training), shares",
        "dropout on attention's output",
    ),
    "Layer, none": (
        F_F,
        LAYER.format(mask="mask", first="x + attended", second="x + self.feed_forward(x)"),
        "layer without dropout",
    ),
    "Layer, first none": (
        F_F,
        LAYER.format(mask="mask", first="x + attended", second=SECOND),
        "attention's output without dropout",
    ),
    "Layer, second none": (
        F_F,
        LAYER.format(mask="mask", first=FIRST, second="x + self.feed_forward(x)"),
        "feed-forward's output without dropout",
    ),
    "Layer, of the sum": (
        F_F,
        LAYER.format(
            mask="mask", first="self.attention_dropout(x + attended)", second="self.dropout(x + self.feed_forward(x))"
        ),
        "dropout on the residual sum",
    ),
    "Embeddings, none": (E_F, EMBEDDED.format("self.norm(x)"), "embeddings without dropout"),
    "Embeddings, before the norm": (E_F, EMBEDDED.format("self.norm(self.dropout(x))"), "dropout before the LayerNorm"),
    # masks
    "mask of the ids": (B_F, BERT.format("(ids != 0)[:, None, None, :]"), "encoder's mask by the pad's id"),
    "mask inverted": (
        B_F,
        BERT.format("None if mask is None else ~mask.bool()"),
        "encoder's mask inverted",
    ),
    "attention, inverted": (
        "bert.attention",
        attention("return shares @ value, shares", mask="mask"),
        "attention mask inverted",
    ),
    "attention, inverted, -1e9": (
        "bert.attention",
        attention("return shares @ value, shares", mask="mask", fill="-1e9"),
        "attention mask inverted",
    ),
    "layer drops the mask": (F_F, LAYER.format(mask="None", first=FIRST, second=SECOND), "layer drops the mask"),
    "mean of the first n": ("pooling.mean_pool", FIRST_N.format("row[: real.sum()].mean(0)"), "mean of the first n"),
    "max of the first n": ("pooling.max_pool", FIRST_N.format("row[: real.sum()].amax(0)"), "max of the first n"),
    "attention_pool of the first n": (
        "pooling.attention_pool",
        FIRST_N.format("((row[: real.sum()] @ weight.T + bias).softmax(0) * row[: real.sum()]).sum(0)"),
        "attention pooling of the first n",
    ),
    "mean inverted": (
        "pooling.mean_pool",
        "if mask is None:\n    return hidden.mean(1)\nmask = ~mask.bool()\n"
        "return hidden.masked_fill(~mask[..., None], 0).sum(1) / mask.sum(1, keepdim=True)",
        "pads averaged, not tokens",
    ),
    "max inverted": (
        "pooling.max_pool",
        "return (hidden if mask is None else hidden.masked_fill(mask.bool()[..., None], -torch.inf)).amax(1)",
        "max of the pads",
    ),
    "attention_pool inverted": (
        "pooling.attention_pool",
        LEARNED.format("mask.bool()", "-torch.inf"),
        "attention pooling hides the tokens",
    ),
    "attention_pool inverted twice": (
        "pooling.attention_pool",
        LEARNED.format("mask.bool()", "-torch.inf").replace("~mask", "mask"),
        "attention pooling of the pads",
    ),
    # fills that are not low enough
    **{
        f"attention, {fill}": (
            "bert.attention",
            attention(f"return {DROPPED.format('shares')} @ value, shares", fill=fill),
            "finite mask",
        )
        for fill in ("-100.0", "-1e4", "-1e9")
    },
    **{
        f"max_pool, {fill}": ("pooling.max_pool", MAX.format(fill), "finite fill in max")
        for fill in ("-100.0", "-1e4", "-1e9")
    },
    **{
        f"attention_pool, {fill}": (
            "pooling.attention_pool",
            LEARNED.format("~mask.bool()", fill),
            "finite fill in attention pooling",
        )
        for fill in ("-100.0", "-1e4", "-1e9")
    },
    # the rest
    "backtracking": ("tokenizer.word_pieces", BACKTRACKING, "WordPiece that backtracks"),
    "betas": ("loop.adamw_step", ADAMW.format("0.9", "0.999", "eps"), "betas hard-coded"),
    "eps": ("loop.adamw_step", ADAMW.format("betas[0]", "betas[1]", "1e-8"), "eps hard-coded"),
    "betas and eps": ("loop.adamw_step", ADAMW.format("0.9", "0.999", "1e-8"), "betas and eps hard-coded"),
    "fit, zero_grad forgotten": ("loop.fit", fit(zero="pass"), "gradients not zeroed"),
    "fit, no share": ("loop.fit", fit(share=""), "micro-batches added up unweighted"),
    "fit, equal shares": (
        "loop.fit",
        fit(share=" / len(micro_batches(batch))"),
        "micro-batches weighted equally",
    ),
    "fit, not clipped": ("loop.fit", fit(clipped="parameters, float('inf')"), "clip forgotten"),
    "fit, rates that compound": (
        "loop.fit",
        fit().replace("zip(optimizer.param_groups, rates)", "[(g, g['lr']) for g in optimizer.param_groups]"),
        "multipliers that compound",
    ),
    "fit, a step ahead": (
        "loop.fit",
        fit().replace("rate * schedule(number)", "rate * schedule(number + 1)"),
        "the schedule one step ahead",
    ),
    "fit, stepped first": (
        "loop.fit",
        fit(check="optimizer.step()\n    " + CHECK.replace("\n    optimizer.step()", "")),
        "stepped before the check",
    ),
    "fit, no check": ("loop.fit", fit(check="optimizer.step()"), "NaN not noticed"),
    "float32": ("search.top_k", TOP_K.format("float()"), "search in float32"),
    "shuffled in windows": (
        "data.length_grouped_batches",
        BATCHES.format(starts=IN_ORDER, reverse="", cut=SHUFFLED.format("cut"), batches="batches"),
        "shuffled inside windows only",
    ),
    "unscaled": ("metrics.pearson", PEARSON + "return float(x @ y / np.sqrt((x @ x) * (y @ y)))", "Pearson not scaled"),
    "NaN of the lengths hidden": (
        "encoder.cosine_matrix",
        "return (u @ v.T / (u.norm(dim=1)[:, None] * v.norm(dim=1))).nan_to_num()",
        "NaN hidden in the cosines",
    ),
    "NaN of the rows hidden": (
        "encoder.cosine_matrix",
        "u, v = ((x / x.norm(dim=1, keepdim=True)).nan_to_num() for x in (u, v))\nreturn u @ v.T",
        "NaN hidden in the cosines",
    ),
    "NaN of the pads hidden": (
        "pooling.attention_pool",
        "scores = (hidden.nan_to_num() @ weight.T + bias).squeeze(-1)\n"
        "scores = scores if mask is None else scores.masked_fill(~mask.bool(), -torch.inf)\n"
        "return (scores.softmax(1).unsqueeze(-1) * hidden).nan_to_num().sum(1)",
        "NaN hidden in the learned average",
    ),
    "NaN of the mean hidden": (
        "pooling.mean_pool",
        "if mask is None:\n    return hidden.mean(1)\n"
        "return (hidden * mask[..., None]).nan_to_num().sum(1) / mask.sum(1, keepdim=True)",
        "NaN hidden in the mean",
    ),
    "argsort of argsort": ("metrics.ranks", "return np.argsort(np.argsort(x)) + 1", "Spearman without tie handling"),
    "argsort of argsort, float": (
        "metrics.ranks",
        "return np.asarray(x).argsort().argsort().astype(np.float64) + 1",
        "Spearman without tie handling",
    ),
}


# lesson 19
BM25 = "bm25.bm25_scores"
COUNTED = """
N = len(documents)
mean = sum(map(len, documents)) / N
result = np.zeros((len(queries), N))
for i, query in enumerate(queries):
    for word in {words}:
        n = sum(word in document for document in documents)
        idf = {idf}
        for j, document in enumerate(documents):
            tf = document.count(word)
            result[i, j] += idf * tf / (tf + {norm})
return result
"""
IDF, NORM = "math.log(1 + (N - n + 0.5) / (n + 0.5))", "k1 * (1 - b + b * len(document) / mean)"


def counted(words: str = "query", idf: str = IDF, norm: str = NORM) -> str:
    return COUNTED.format(words=words, idf=idf, norm=norm)


WRONG |= {
    "bm25, idf of the paper": (BM25, counted(idf="math.log((N - n + 0.5) / (n + 0.5))"), "idf without the 1 +"),
    "bm25, plain idf": (BM25, counted(idf="math.log(N / n) if n else 0.0"), "ln(N / n)"),
    "bm25, idf in base 10": (BM25, counted(idf=IDF.replace("log", "log10")), "logarithm of base 10"),
    "bm25, no length": (BM25, counted(norm="k1"), "length ignored"),
    "bm25, swapped": (BM25, counted(norm="b * (1 - k1 + k1 * len(document) / mean)"), "k1 and b swapped"),
    "bm25, a set of words": (BM25, counted(words="sorted(set(query))"), "query words once"),
    "bm25, as in Wikipedia": (
        BM25,
        counted().replace("idf * tf /", "idf * tf * (k1 + 1) /"),
        "(k1 + 1) in the numerator",
    ),
    "bm25, n of occurrences": (
        BM25,
        counted().replace("sum(word in document for", "sum(document.count(word) for"),
        "occurrences counted as documents",
    ),
}


# lesson 21
MAX_SIM = "late_interaction.max_sim"
SCORES = "scores = query @ document.T\nreturn {}"

WRONG |= {
    "max_sim, other side": (MAX_SIM, SCORES.format("scores.max(0).values.sum()"), "sides exchanged"),
    "max_sim, mean": (MAX_SIM, SCORES.format("scores.amax(-1).mean()"), "best matches averaged"),
    "max_sim, all pairs": (MAX_SIM, SCORES.format("scores.sum()"), "no maximum over tokens"),
}

# lesson 20
ROTATE, RMS, GATE = "rotary.rotate", "decoder.rms_norm", "decoder.swiglu"
TURNED = """
first, second = {}
return x * cos + torch.cat([{}], dim=-1) * sin
"""
HALVES = "x.chunk(2, dim=-1)"

WRONG |= {
    "rotate, backwards": (ROTATE, TURNED.format(HALVES, "second, -first"), "rotated backwards"),
    "rotate, no sign": (ROTATE, TURNED.format(HALVES, "second, first"), "sign of the second half forgotten"),
    "rotate, neighbours": (
        ROTATE,
        "a, b = x[..., ::2], x[..., 1::2]\nc, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]\n"
        "return torch.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)",
        "rotation interleaved",
    ),
    "RMSNorm, a standard deviation": (
        RMS,
        "x = x - x.mean(-1, keepdim=True)\nreturn x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight",
        "RMSNorm with a mean",
    ),
    "RMSNorm, a length": (RMS, "return x / (x.pow(2).sum(-1, keepdim=True) + eps).sqrt() * weight", "sum of squares"),
    "SwiGLU, swapped": (GATE, "return gate * up * torch.sigmoid(up)", "gate and up swapped"),
    "SwiGLU, GELU": (GATE, "return torch.nn.functional.gelu(gate) * up", "GELU in the gate"),
}


@pytest.mark.parametrize(("master", "body", "mistake"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_fails_with_its_mistakes_name(master, body, mistake):
    result = graded(master, body)
    assert (result.status, result.mistakes) == ("failed", [mistake]), result.rungs[-1]


# ---------------------------------------------------------------------------------- right answers

LENGTHS = "return (u @ v.T) / ({} * {}.T).clamp_min(1e-12)"
BCE = """
weight = torch.tensor(pos_weight)
return -(weight * target * torch.nn.functional.logsigmoid(logits) + (1 - target) * {}).mean()
"""
SIMCSE = """
logits = cosine_matrix(u, v) / {temperature}
if hard_negatives is not None:
    own = hard_negative_weight * torch.eye(len(u))
    logits = torch.cat([logits, cosine_matrix(u, hard_negatives) / {temperature} + own], 1)
return (logits.logsumexp(1) - logits.diagonal()).mean()
"""
RIGHT = {
    "product over lengths": (
        "encoder.cosine_matrix",
        LENGTHS.format(*[f"{x}.norm(dim=1, keepdim=True)" for x in "uv"]),
    ),
    "lengths by sqrt": (
        "encoder.cosine_matrix",
        LENGTHS.format(*[f"({x} * {x}).sum(1, keepdim=True).sqrt()" for x in "uv"]),
    ),
    "row by row": (
        "encoder.cosine_matrix",
        "length = lambda x: x.pow(2).sum(-1).sqrt().clamp_min(1e-12)\n"
        "return torch.stack([(row * v).sum(1) / (length(row) * length(v)) for row in u])",
    ),
    "chunk": ("bert.Attention.split", "return torch.stack(x.chunk(self.heads, dim=-1), dim=1)"),
    "a variable input": ("bert.gelu", "input = x / math.sqrt(2)\nreturn x * (1 + torch.erf(input)) / 2"),
    "where": (
        "more_losses.weighted_mse_loss",
        "return (torch.where(target < threshold, weight, 1.0) * (scores - target) ** 2).mean()",
    ),
    "arithmetic": (
        "more_losses.weighted_mse_loss",
        "w = 1.0 + (weight - 1.0) * (target < threshold).float()\nreturn (w * (scores - target) ** 2).mean()",
    ),
    "BCE": ("more_losses.binary_cross_entropy_loss", BCE.format("torch.nn.functional.logsigmoid(-logits)")),
    "BCE, softplus": (
        "more_losses.binary_cross_entropy_loss",
        BCE.format("-(logits.clamp_min(0) + torch.log1p(torch.exp(-logits.abs())))"),
    ),
    "SimCSE": ("losses.simcse_loss", SIMCSE.format(temperature="temperature")),
    "SimCSE, temperature": ("losses.simcse_loss", SIMCSE.format(temperature="torch.tensor(temperature)")),
    "negative strides": (
        "metrics.ranks",
        "x = np.asarray(x)[::-1]\nreturn np.array([(x < y).sum() + ((x == y).sum() + 1) / 2 for y in x])[::-1]",
    ),
    "negative strides, two": (
        "search.top_k",
        TOP_K.format("double()").replace(
            "values[:, :k].numpy(), columns[:, :k].numpy()",
            "tuple(x[:, :k].numpy()[:, ::-1].copy()[:, ::-1] for x in (values, columns))",
        ),
    ),
    "longest first in a window": (
        "data.length_grouped_batches",
        BATCHES.format(starts=IN_ORDER, reverse=", reverse=True", cut="cut", batches=SHUFFLED.format("batches")),
    ),
    "the least float": ("pooling.max_pool", MAX.format("torch.finfo(hidden.dtype).min")),
    "attention, the least float": (
        "bert.attention",
        attention(f"return {DROPPED.format('shares')} @ value, shares", fill="torch.finfo(scores.dtype).min"),
    ),
    "attention, a root in float32": (
        "bert.attention",
        attention(f"return {DROPPED.format('shares')} @ value, shares").replace(
            "math.sqrt(query.shape[-1])", "torch.sqrt(torch.tensor(query.shape[-1]))"
        ),
    ),
    "attention, own dropout": (
        "bert.attention",
        attention("keep = torch.rand_like(shares) >= dropout\nreturn (shares * keep / (1 - dropout)) @ value, shares"),
    ),
    "attention, a module": ("bert.attention", attention("return torch.nn.Dropout(dropout)(shares) @ value, shares")),
    "layer in steps": (
        F_F,
        "a, shares = self.attention(x, mask)\na = self.attention_dropout(a)\na = a + x\na = self.attention_norm(a)\n"
        "b = self.dropout(self.feed_forward(a))\nreturn self.feed_forward_norm(b + a), shares",
    ),
    "scaled otherwise": (
        "metrics.pearson",
        PEARSON + "x, y = x / np.abs(x).max(), y / np.abs(y).max()\n"
        "return float((x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)))",
    ),
    "betas in float arithmetic": ("loop.adamw_step", ADAMW.format("betas[0]", "betas[1]", "eps")),
    "where in the mean": (
        "pooling.mean_pool",
        "if mask is None:\n    mask = torch.ones(hidden.shape[:2])\nm = mask.bool()[..., None]\n"
        "return torch.where(m, hidden, 0.0).sum(1) / m.sum(1)",
    ),
}

# lesson 21
RIGHT |= {
    "MaxSim, a token at a time": (
        MAX_SIM,
        "return sum(torch.stack([(token * other).sum() for other in document]).max() for token in query)",
    ),
    "MaxSim, by einsum": (MAX_SIM, "return torch.einsum('qk,dk->qd', query, document).amax(1).sum()"),
}

# lesson 20
RIGHT |= {
    "rotate, written out": (
        ROTATE,
        "half = x.shape[-1] // 2\na, b = x[..., :half], x[..., half:]\nc, s = cos[..., :half], sin[..., :half]\n"
        "return torch.cat((a * c - b * s, b * c + a * s), -1)",
    ),
    "RMSNorm, by lengths": (
        RMS,
        "return weight * x / torch.sqrt(x.norm(dim=-1, keepdim=True).square() / x.shape[-1] + eps)",
    ),
    "SwiGLU, written out": (GATE, "return torch.sigmoid(gate) * gate * up"),
}

# lessons 16 and 17
RIGHT |= {
    "layers by int": (
        "distillation.spread_layers",
        "if keep == 1:\n    return [total - 1]\nreturn [int(i * (total - 1) / (keep - 1) + 0.5) for i in range(keep)]",
    ),
    "layers deleted from a copy": (
        "distillation.keep_layers",
        "student = copy.deepcopy(bert)\nfor i in reversed(range(len(bert.layers))):\n"
        "    if i not in layers:\n        del student.layers[i]\n"
        "student.config = replace(bert.config, num_hidden_layers=len(layers))\nreturn student",
    ),
    **{
        f"layers of a copy, {name}": (
            "distillation.keep_layers",
            f"{copied}\nstudent.layers = torch.nn.ModuleList(student.layers[i] for i in layers)\n"
            "student.config = replace(bert.config, num_hidden_layers=len(layers))\nreturn student",
        )
        for name, copied in (
            ("annotated", "student: Bert = copy.deepcopy(bert)"),
            ("chained", "student = other = copy.deepcopy(bert)"),
            ("aliased", "duplicate = copy.deepcopy\nstudent = duplicate(bert)"),
            ("walrus", "if (student := copy.deepcopy(bert)) is None:\n    raise ValueError"),
            ("of a helper", "def twin(model):\n    return copy.deepcopy(model)\nstudent = twin(bert)"),
        )
    },
    "squares summed and divided": (
        "distillation.distillation_loss",
        "with torch.no_grad():\n    target = teacher.clone()\n"
        "return ((student - target) * (student - target)).sum() / student.numel()",
    ),
    "prefixes with torch's normalize": (
        "distillation.matryoshka_loss",
        "parts = [[torch.nn.functional.normalize(x[:, :m], dim=-1) for x in vectors] for m in dims]\n"
        "return sum(w * loss(*part) for w, part in zip(weights or [1.0] * len(dims), parts))",
    ),
    "int8 by torch": (
        "quantized.to_int8",
        "x, r = torch.as_tensor(vectors).float(), torch.as_tensor(ranges).float()\n"
        "step = (r[1] - r[0]) / 255\nstep = torch.where(step == 0, torch.ones_like(step), step)\n"
        "return (((x - r[0]) / step).floor().clamp(0, 255) - 128).to(torch.int8).numpy()",
    ),
    "bits row by row": (
        "quantized.to_bits",
        "rows = []\nfor row in np.asarray(vectors):\n"
        "    text = ''.join('1' if x > 0 else '0' for x in row)\n"
        "    text += '0' * (-len(text) % 8)\n"
        "    rows.append([int(text[i : i + 8], 2) for i in range(0, len(text), 8)])\n"
        "return np.array(rows, dtype=np.uint8)",
    ),
    "distances by unpackbits": (
        "quantized.hamming",
        "return np.unpackbits(a[:, None] ^ b[None], axis=-1).sum(-1, dtype=np.int64)",
    ),
    "distances by a product": (
        "quantized.hamming",
        "x, y = (np.unpackbits(z, axis=1).astype(np.int64) for z in (a, b))\n"
        "return x.sum(1)[:, None] + y.sum(1) - 2 * x @ y.T",
    ),
    "rescored by torch": (
        "quantized.rescore",
        "q, v = (torch.as_tensor(x).double() for x in (queries, vectors))\n"
        "q, v = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (q, v))\n"
        "scores = (v @ q[..., None])[..., 0].float().numpy()\nbest = []\n"
        "for row, found in zip(candidates, scores):\n"
        "    best.append(sorted(zip(-found, row))[:k])\n"
        "return np.array([[-s for s, _ in r] for r in best], 'float32'), np.array([[i for _, i in r] for r in best])",
    ),
    "parts by a running maximum": (
        "gradient_cache.cut",
        "parts, part = [], []\nfor row in rows:\n"
        "    if part and (len(part) + 1) * max(lengths[r] for r in [*part, row]) > tokens:\n"
        "        parts.append(part)\n        part = []\n    part.append(row)\n"
        "return [*parts, part] if part else parts",
    ),
    "vectors detached": (
        "gradient_cache.vectors_in_parts",
        "device = next(network.parameters()).device\nfound = []\nfor part in parts:\n"
        "    state = random_state(device)\n    found.append((network(part).detach(), state))\n"
        "return torch.cat([v for v, _ in found]), [s for _, s in found]",
    ),
    "fit": ("loop.fit", fit()),
    "fit by hand": ("loop.fit", BY_HAND),
    "fit by torch": (
        "loop.fit",
        fit(zero="model.zero_grad()", item="float(value.detach())", check=CHECK.replace("norm.", "norm.sum().")),
    ),
    "replay by autograd.grad": (
        "gradient_cache.replay",
        "start = 0\nfor part, state in zip(parts, states):\n"
        "    set_random_state(state, gradient.device)\n    pull = gradient[start : start + len(part)]\n"
        "    start += len(part)\n    own = [p for p in network.parameters() if p.requires_grad]\n"
        "    with torch.enable_grad():\n"
        "        found = torch.autograd.grad(network(part), own, pull, allow_unused=True)\n"
        "    for p, g in zip(own, found):\n        if g is not None:\n"
        "            p.grad = g if p.grad is None else p.grad + g",
    ),
    "replay by a product": (
        "gradient_cache.replay",
        "start = 0\nfor part, state in zip(parts, states):\n"
        "    set_random_state(state, gradient.device)\n    pull = gradient[start : start + len(part)]\n"
        "    start += len(part)\n    with torch.enable_grad():\n        (network(part) * pull).sum().backward()",
    ),
}


# lesson 19
RIGHT |= {
    "bm25, counted": (BM25, counted()),
    "bm25, the idf in two logarithms": (BM25, counted(idf="math.log(N + 1) - math.log(n + 0.5)")),
    "bm25, one matrix product": (
        BM25,
        "words = sorted({word for query in queries for word in query})\n"
        "tf = [[document.count(word) for word in words] for document in documents]\n"
        "tf = np.array(tf).reshape(len(documents), -1)\n"
        "asked = np.array([[query.count(word) for word in words] for query in queries]).reshape(len(queries), -1)\n"
        "length = np.array([len(document) for document in documents])[:, None]\n"
        "idf = np.log1p((len(tf) - (tf > 0).sum(0) + 0.5) / ((tf > 0).sum(0) + 0.5))\n"
        "return asked @ (idf * tf / (tf + k1 * (1 - b + b * length / length.mean()))).T",
    ),
    "bm25, an inverted index": (
        BM25,
        "index = {}\n"
        "for row, document in enumerate(documents):\n"
        "    for word, tf in Counter(document).items():\n"
        "        index.setdefault(word, []).append((row, tf))\n"
        "total = sum(len(document) for document in documents)\n"
        "scores = np.zeros((len(queries), len(documents)))\n"
        "for i, query in enumerate(queries):\n"
        "    for word, times in Counter(query).items():\n"
        "        found = index.get(word, [])\n"
        "        weight = times * math.log(1 + (len(documents) - len(found) + 0.5) / (len(found) + 0.5))\n"
        "        for row, tf in found:\n"
        "            share = len(documents[row]) * len(documents) / total\n"
        "            scores[i, row] += weight / (1 + k1 / tf * (1 - b + b * share))\n"
        "return scores",
    ),
}


@pytest.mark.parametrize(("master", "body"), RIGHT.values(), ids=RIGHT)
def test_a_right_answer_passes(master, body):
    result = graded(master, body)
    assert result.status == "passed", result.rungs[-1]


GELU = "return x * (1 + torch.erf(x / math.sqrt(2))) / 2"
MEAN = PEARSON + "x, y = x / abs(x).max(), y / abs(y).max()\nreturn float(x @ y / np.sqrt((x @ x) * (y @ y)))"


@pytest.mark.parametrize(
    ("master", "body", "around"),
    [
        ("metrics.pearson", MEAN, {"top": "import torch\n", "before": "@torch.no_grad()"}),
        ("metrics.pearson", MEAN, {"top": "import torch\n", "before": "@torch.inference_mode()"}),
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
def test_what_stands_around_a_right_answer(master, body, around):
    result = graded(master, body, **around)
    assert result.status == "passed", result.rungs[-1]


# ------------------------------------------------------------------------ what is said about others

UNNAMED = {
    "crash in float64": ("bert.gelu", "if x.dtype == torch.float64:\n    raise ValueError\n" + GELU),
    "crash without a mask": (
        "pooling.mean_pool",
        "return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    ),
    "NaN everywhere": ("bert.attention", "nan = value.sum() * torch.nan\nreturn query * nan, (query @ key.mT) * nan"),
    "always unknown": ("tokenizer.word_pieces", "return [unknown]"),
    "a mask for every batch": (
        "tokenizer.pad_batch",
        "n = max(map(len, rows))\nids = torch.tensor([[*row, *[pad_id] * (n - len(row))] for row in rows])\n"
        "return ids, torch.tensor([[i < len(row) for i in range(n)] for row in rows])",
    ),
    "not shuffled": (
        "data.length_grouped_batches",
        "return [list(range(len(lengths)))[i : i + batch_size] for i in range(0, len(lengths), batch_size)]",
    ),
    "another fill than -10": (
        "bert.attention",
        attention(f"return {DROPPED.format('shares')} @ value, shares", fill="-7.0"),
    ),
    "half": ("metrics.pearson", "return 0.5"),
    "one": ("loop.linear_schedule", "return 1.0"),
}


TIMES = "states = []\nvectors = []\nwas = network.training\n{}for part in parts:\n"
TIMES += "    states.append(random_state(next(network.parameters()).device))\n    vectors.append(network(part){})\n"
TIMES += "{}return torch.cat(vectors).detach(), states"
REPLAY = "start = 0\n{}for i, part in enumerate(parts):\n    {}\n    pull = gradient[start : start + len(part)]\n"
REPLAY += "    start += len(part)\n    with torch.enable_grad():\n        (network(part) * pull).sum().backward()\n{}"
EVERY_STATE = "set_random_state(states[i], gradient.device)"
LEARNERS_GELU = (
    "return torch.where(x > 5, x, torch.where(x < -5, torch.zeros_like(x), x * (1 + torch.erf(x / 2**.5)) / 2))"
)
SPLIT = """
import unicodedata
text = "".join(" " if c.isspace() else c for c in text if c in "\\t\\n\\r" or unicodedata.category(c)[0] != "C")
text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c)[0] != "M")
text = "".join(c.lower() for c in text)
alone = lambda c: not c.isalnum() and not c.isspace() or "\\u4e00" <= c <= "\\u9fff"
return "".join(f" {c} " if alone(c) else c for c in text).split()
"""
SUBTLE = {  # each differs from a right answer in one thing
    "first shuffle without the generator": (
        "data.length_grouped_batches",
        BATCHES.format(starts=IN_ORDER, reverse="", cut="cut", batches=SHUFFLED.format("batches")).replace(
            "torch.randperm(len(lengths), generator=generator)", "torch.randperm(len(lengths))"
        ),
    ),
    "vectors in eval mode": (
        "gradient_cache.vectors_in_parts",
        TIMES.format("network.eval()\n", ".detach()", "network.train(was)\n"),
    ),
    "vectors that end in eval mode": (
        "gradient_cache.vectors_in_parts",
        TIMES.format("", ".detach()", "network.eval()\n"),
    ),
    "vectors with graphs": ("gradient_cache.vectors_in_parts", TIMES.format("", "", "")),
    "replay in eval mode": (
        "gradient_cache.replay",
        REPLAY.format("network.eval()\n", EVERY_STATE, "network.train()\n"),
    ),
    "replay that ends in eval mode": ("gradient_cache.replay", REPLAY.format("", EVERY_STATE, "network.eval()\n")),
    "replay from the first state only": (
        "gradient_cache.replay",
        REPLAY.format("", f"i or {EVERY_STATE}", ""),
    ),
    "encoder in eval mode": (
        B_F,
        "was = self.training\nself.eval()\n"
        + BERT.format("None if mask is None else mask.bool()").replace("return x", "self.train(was)\nreturn x"),
    ),
    "encoder that ends in eval mode": (
        B_F,
        BERT.format("None if mask is None else mask.bool()").replace("return x", "self.eval()\nreturn x"),
    ),
    "parts out of order": (
        "gradient_cache.cut",
        "parts = []\nfor row in rows:\n    for part in parts:\n"
        "        if (len(part) + 1) * max(lengths[r] for r in [*part, row]) <= tokens:\n"
        "            part.append(row)\n            break\n    else:\n        parts.append([row])\nreturn parts",
    ),
    "parts as tuples": (
        "gradient_cache.cut",
        "parts = []\nfor row in rows:\n"
        "    if parts and (len(parts[-1]) + 1) * max(lengths[r] for r in [*parts[-1], row]) <= tokens:\n"
        "        parts[-1] += (row,)\n    else:\n        parts.append((row,))\nreturn parts",
    ),
    "widths sorted, weights not": (
        "distillation.matryoshka_loss",
        "total = 0.0\nfor m, w in zip(sorted(dims), weights or [1.0] * len(dims)):\n"
        "    total = total + w * loss(*[torch.nn.functional.normalize(x[:, :m], dim=-1) for x in vectors])\n"
        "return total",
    ),
    "a frozen student": (
        "distillation.keep_layers",
        "student = copy.deepcopy(bert)\nstudent.layers = torch.nn.ModuleList(student.layers[i] for i in layers)\n"
        "student.config = replace(bert.config, num_hidden_layers=len(layers))\n"
        "return student.requires_grad_(False)",
    ),
    "ordered in float64": (
        "quantized.rescore",
        "q, v = (torch.as_tensor(x).double() for x in (queries, vectors))\n"
        "q, v = (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12) for x in (q, v))\n"
        "best = [sorted(zip(-s, row))[:k] for row, s in zip(candidates, (v @ q[..., None])[..., 0].numpy())]\n"
        "return np.array([[-s for s, _ in r] for r in best], 'float32'), np.array([[i for _, i in r] for r in best])",
    ),
    "fit, losses not added up": ("loop.fit", fit().replace("total += value.item()", "total = value.item()")),
    "fit, a loss that is a tensor": ("loop.fit", fit(item="value.detach()")),
    "fit, zeroed after the step only": ("loop.fit", fit(zero="pass", check=CHECK + "\n    optimizer.zero_grad()")),
    "fit, only the gradient is looked at": ("loop.fit", fit(check=CHECK.replace("not math.isfinite(total) or ", ""))),
    "fit, only the loss is looked at": ("loop.fit", fit(check=CHECK.replace(" or not norm.isfinite()", ""))),
    "fit, start forgotten": ("loop.fit", fit().replace("number = start", "number = 0")),
    "fit, all batches read first": ("loop.fit", fit().replace("in batches", "in [*batches][:99]")),
    "fit, train mode": ("loop.fit", "model.train()\n" + fit().strip()),
    "minus the maximum of the batch": (
        "losses.softmax_cross_entropy_loss",
        "x = logits - logits[logits.isfinite()].max()\n"
        "return (x.exp().sum(1).log() - x.gather(1, labels[:, None])[:, 0]).mean()",
    ),
    "targets rounded": (
        "more_losses.binary_cross_entropy_loss",
        "target = (target > 0.5).to(logits.dtype)\n" + BCE.format("torch.nn.functional.logsigmoid(-logits)").strip(),
    ),
    "all marks dropped": ("tokenizer.split_words", SPLIT),
    "gelu cut at 5": ("bert.gelu", LEARNERS_GELU),
    "a constant under the root": (
        "losses.triplet_loss",
        "if distance == 'cosine':\n    far = lambda x, y: 1 - cosine(x, y)\nelse:\n"
        "    far = lambda x, y: ((x - y).pow(2).sum(1) + 1e-12).sqrt()\n"
        "return (far(anchor, positive) - far(anchor, negative) + margin).clamp_min(0).mean()",
    ),
    "rows of zeros are pads": (
        "pooling.mean_pool",
        "if mask is not None:\n    hidden = hidden.masked_fill(~mask.bool()[..., None], 0.0)\n"
        "return hidden.sum(1) / (hidden != 0).any(-1).sum(1, keepdim=True).clamp_min(1)",
    ),
    "filled with the batch's minimum": (
        "pooling.max_pool",
        "if mask is None:\n    return hidden.amax(1)\nm = mask.bool()\n"
        "return hidden.masked_fill(~m[..., None], hidden[m].min().item()).amax(1)",
    ),
    "lists only": (
        "tokenizer.pad_batch",
        "n = max(map(len, rows))\nids = torch.tensor([row + [pad_id] * (n - len(row)) for row in rows])\n"
        "if all(len(row) == n for row in rows):\n    return ids, None\n"
        "return ids, torch.tensor([[i < len(row) for i in range(n)] for row in rows])",
    ),
    "the first sentence's mask in the attention": (
        "heads.CrossHead.forward",
        "other = mask_a if mask_a is not None and a.shape[1] == b.shape[1] else mask_b\n"
        "if self.variant == 'published':\n"
        "    return self.mlp(torch.cat([a[:, 0], self.attention(a[:, :1], b, mask_b)[:, 0]], -1))\n"
        "found = self.attention(a, b, other)\nx = torch.cat([(a - found).abs(), a * found], -1)\n"
        "if mask_a is None:\n    return self.mlp(x.mean(1))\nm = mask_a.bool()[..., None]\n"
        "return self.mlp((x * m).sum(1) / m.sum(1))",
    ),
}


SUBTLE |= {
    "bm25, k1 of its own": (BM25, counted(norm=NORM.replace("k1", "1.2"))),
    "bm25, b of its own": (BM25, counted(norm=NORM.replace("b", "0.75"))),
    "bm25, empty documents do not count in the mean": (
        BM25,
        counted().replace("sum(map(len, documents)) / N", "sum(map(len, documents)) / sum(map(bool, documents))"),
    ),
    "bm25, idf below no document": (BM25, counted(idf=f"{IDF} if n < N else 0.0")),
}


@pytest.mark.parametrize(("master", "body"), SUBTLE.values(), ids=SUBTLE)
def test_a_nearly_right_answer_fails(master, body):
    result = graded(master, body)
    assert result.status == "failed", result
    assert sum(holds for _, holds, _ in result.rungs) >= 2, result.rungs[-1]  # and it is nearly right


@pytest.mark.parametrize(("master", "body"), UNNAMED.values(), ids=UNNAMED)
def test_no_mistake_is_named_that_was_not_made(master, body):
    result = graded(master, body)
    assert (result.status, result.mistakes) == ("failed", []), result.rungs[-1]


@pytest.mark.parametrize(
    ("master", "body", "rung", "says"),
    [
        (
            "tokenizer.split_words",
            "return text.split()",
            "example",
            "at 0: yours 'Café,', expected 'cafe'; ['Café,', \"it's\"",
        ),
        ("tokenizer.split_words", "return ['cafe']", "example", "at 1: yours nothing, expected ','"),
        ("weights.Family.names", "return {}", "example", "'word.weight' is missing; 0 entries, expected 5"),
        ("bert.gelu", "x *= 0.5\nreturn x", "inputs", "an argument is not what it was"),
        (
            "bert.gelu",
            "if x.requires_grad:\n    x *= 0.5\n" + GELU,
            "inputs",
            "an argument is changed in place (RuntimeError, line ",
        ),
        (
            "distillation.keep_layers",  # the copy forgotten
            "bert.layers = torch.nn.ModuleList(bert.layers[i] for i in layers)\nreturn bert",
            "inputs",
            "an argument is not what it was before the call",
        ),
        ("bert.Layer.forward", "return self(x, mask)", "runs", "RecursionError, line "),
        ("loop.fit", "return [*batches]", "runs", "returns a list, not a generator"),
        ("loop.fit", "yield optimizer.nope", "runs", "AttributeError, line "),
        (
            "bert.gelu",
            "return x * (1 + torch.erf(x / torch.tensor(2.0).sqrt())) / 2",
            "golden",
            "(is something computed in float32?)",
        ),
        (
            "bert.attention",
            attention("return shares @ value, shares"),
            "golden",
            "something is dropped: this must hold, and does not",
        ),
        ("bert.Layer.forward", "return self.block(x)", "runs", "has no attribute 'block'"),
    ],
)
def test_the_message(master, body, rung, says):
    result = graded(master, body)
    title, holds, seen = result.rungs[-1]
    assert (title, holds) == (RUNGS[rung], False)
    assert says in seen
    assert seen.count("line ") <= 1


def test_a_static_method_is_explained():
    seen = graded("bert.FeedForward.forward", "return x", before="@staticmethod").rungs[-1][2]
    assert "FeedForward.forward is a staticmethod: write it as a plain method" in seen


def test_two_numbers_that_differ_late_are_shown_with_all_their_digits():
    assert describe(0.1234567891, 0.1234567892, 0.0) == "yours 0.1234567891, expected 0.1234567892"
    ours, expected = (torch.tensor([x], dtype=torch.float64) for x in (0.1234567891, 0.1234567892))
    assert "yours 0.1234567891, reference 0.1234567892" in describe(ours, expected, 0.0)


def test_two_dicts_are_told_apart_by_their_first_difference():
    right = {"a": "b", "c": "d"}
    assert describe({"a": "b", "c": "x"}, right, 0.0) == "'c': yours 'x', expected 'd'"
    assert describe({"a": "b", "c": "d", "e": 1}, right, 0.0) == "'e' should not be there; 3 entries, expected 2"
