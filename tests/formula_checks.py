"""Parity checks of single formulas without a golden file: against torch's own functions and slow
loops.

Importing this module adds them to ``checks.CHECKS``.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from minisbert.architectures import modern, qwen3
from minisbert.core import bert, encoder, metrics, pooling
from minisbert.core.bert import BertConfig
from minisbert.search import by_tokens
from tests.checks import check, normal, with_gradients
from tests.parity import GRADIENT, PIECE, Comparison, compare

# width 12, heads 3, feed-forward 20; one text with pads in front and between, one of 2 tokens and 4
# pads
CONFIG = BertConfig(17, 12, 1, 3, 20, 9, type_vocab_size=2, layer_norm_eps=1e-3)
MASK = torch.tensor([[False, True, True, False, True, True], [True] * 2 + [False] * 4])
DROPOUT = 0.3  # in training


def randomised(module: nn.Module, seed: int = 5) -> nn.Module:
    """The module in float64 and eval mode, with random parameters."""
    for i, parameter in enumerate(module.double().parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i, scale=0.5).detach()
    return module.eval()


def whole(
    name: str,
    module: nn.Module,
    piece: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    *inputs: Tensor,
) -> Iterator[Comparison]:
    """The value, and the gradient of inputs and parameters; both sides use the module's
    parameters.
    """
    n, parameters = len(inputs), list(module.parameters())
    yield from with_gradients(
        name, lambda *x: piece(*x[:n]), lambda *x: reference(*x[:n]), *inputs, *parameters
    )


def torch_attention(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """torch's multi-head attention with the module's weights: (B, T, D), and probabilities (B, H,
    T, S).
    """
    linears = module.query, module.key, module.value
    value, probabilities = functional.multi_head_attention_forward(
        *(x.transpose(0, 1) for x in (query, key, key)),
        query.shape[-1],
        module.heads,
        torch.cat([linear.weight for linear in linears]),
        torch.cat([linear.bias for linear in linears]),
        *(None, None, False, 0.0),  # no extra biases, no row of zeros, no dropout
        *module.output.parameters(),
        training=False,
        key_padding_mask=None if mask is None else ~mask,
        average_attn_weights=False,
    )
    return value.transpose(0, 1), probabilities


def masked_and_not(
    name: str, module: nn.Module, reference: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
) -> Iterator[Comparison]:
    """The first result of a module that takes x and a mask, without and with one."""
    for title, mask in ((name, None), (f"{name}, masked", MASK)):
        hidden = None if mask is None else mask[:, None, None, :]
        ours = lambda x, hidden=hidden: module(x, hidden)[0]  # noqa: E731
        theirs = lambda x, mask=mask: reference(module, x, mask)  # noqa: E731
        yield from whole(title, module, ours, theirs, normal(2, 6, 12))


def torch_layer(layer: bert.Layer, x: Tensor, mask: Tensor | None) -> Tensor:
    """One encoder layer with torch's functions."""
    x = torch_layer_norm(layer.attention_norm, x + torch_attention(layer.attention, x, x, mask)[0])
    return torch_layer_norm(layer.feed_forward_norm, x + torch_feed_forward(layer.feed_forward, x))


def torch_layer_norm(norm: bert.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def torch_feed_forward(block: bert.FeedForward, x: Tensor) -> Tensor:
    inner = functional.gelu(functional.linear(x, block.up.weight, block.up.bias))
    return functional.linear(inner, block.down.weight, block.down.bias)


# -------------------------------------------------------------------------------------- the encoder


@check
def embeddings() -> Iterator[Comparison]:
    """With both token types, and without token types."""
    module = randomised(bert.Embeddings(CONFIG))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(17, (2, 6), generator=generator)
    types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]])

    def reference(types: Tensor) -> Tensor:
        rows = [
            module.word.weight[ids],
            module.position.weight[:6][None],
            module.token_type.weight[types],
        ]
        return functional.layer_norm(
            sum(rows), (12,), module.norm.weight, module.norm.bias, CONFIG.layer_norm_eps
        )

    yield from whole("embeddings", module, lambda: module(ids, types), lambda: reference(types))
    none = torch.zeros_like(ids)
    yield from whole(
        "embeddings, no token types", module, lambda: module(ids, None), lambda: reference(none)
    )


@check
def attention_probabilities() -> Iterator[Comparison]:
    """The second result of ``attention``, from scores computed by loops."""
    query, key, value = (
        normal(2, 3, 4, 16),
        normal(2, 3, 6, 16, seed=1),
        normal(2, 3, 6, 16, seed=2),
    )
    expected = torch.zeros(2, 3, 4, 6, dtype=torch.float64)
    for b, h, t in torch.cartesian_prod(*map(torch.arange, (2, 3, 4))).tolist():
        real = MASK[b].nonzero().squeeze(1)
        shares = torch.stack([query[b, h, t].dot(key[b, h, s]) / 4 for s in real]).detach().exp()
        expected[b, h, t, real] = shares / shares.sum()
    found = bert.attention(query, key, value, MASK[:, None, None, :])[1]
    yield compare("attention probabilities", found, expected, PIECE)


@check
def low_scores() -> Iterator[Comparison]:
    """Two real keys with scores of -2e15 beside a pad: any finite score for the pad would win."""
    query, key = torch.full((1, 1, 1, 4), -1e15).double(), torch.ones(1, 1, 3, 4).double()
    value = normal(1, 1, 3, 4).detach()
    context, probabilities = bert.attention(
        query, key, value, torch.tensor([True, False, True])[None, None, None]
    )
    expected = (value[..., 0, :] + value[..., 2, :])[:, :, None] / 2
    yield compare("attention, scores of -2e15 beside a pad", context, expected, PIECE)
    shares = torch.tensor([[[[0.5, 0.0, 0.5]]]]).double()
    yield compare(
        "attention, scores of -2e15 beside a pad, probabilities", probabilities, shares, PIECE
    )


@check
def heads_apart_and_together() -> Iterator[Comparison]:
    """``split`` and ``merge``: head h gets columns h * K to (h + 1) * K."""
    module = bert.Attention(12, 3, dropout=0.1)
    yield from with_gradients(
        "split", module.split, lambda x: torch.stack(x.chunk(3, -1), 1), normal(2, 6, 12)
    )
    yield from with_gradients(
        "merge", module.merge, lambda x: torch.cat(x.unbind(1), -1), normal(2, 3, 6, 4)
    )


@check
def attention_module() -> Iterator[Comparison]:
    """Multi-head attention and its probabilities, without and with a mask."""
    name, module, x = (
        "attention module",
        randomised(bert.Attention(12, 3, dropout=0.1)),
        normal(2, 6, 12),
    )
    yield from masked_and_not(
        name, module, lambda module, x, mask: torch_attention(module, x, x, mask)[0]
    )
    for title, hidden, mask in (
        (name, None, None),
        (f"{name}, masked", MASK[:, None, None, :], MASK),
    ):
        expected = torch_attention(module, x, x, mask)[1]
        yield compare(f"{title}, probabilities", module(x, hidden)[1], expected, PIECE)


@check
def feed_forward() -> Iterator[Comparison]:
    module = randomised(bert.FeedForward(CONFIG))
    yield from whole(
        "feed-forward", module, module, lambda x: torch_feed_forward(module, x), normal(2, 6, 12)
    )


@check
def layer() -> Iterator[Comparison]:
    """One encoder layer, without and with a mask."""
    yield from masked_and_not("layer", randomised(bert.Layer(CONFIG)), torch_layer)


@check
def masks_and_ids() -> Iterator[Comparison]:
    """A real token may have the pad's id 0, a pad any other; pads may be in front or between."""
    model = randomised(bert.Bert(replace(CONFIG, num_hidden_layers=2), pooler=False))
    ids = torch.tensor([[5, 0, 3, 8, 1, 0], [2, 0, 4, 0, 6, 0]])
    for name, mask in (("no mask", None), ("pads in front", MASK)):
        expected = model.embeddings(ids, None)
        for block in model.layers:
            expected = torch_layer(block, expected, mask)
        yield compare(f"real tokens of id 0, {name}", model(ids, mask), expected, PIECE)


# ------------------------------------------------------------------------------- dropout in
# training


def fact(name: str, holds: bool | Tensor) -> Comparison:
    """Something that is true or false: a property that holds for any random numbers."""
    return compare(name, torch.as_tensor(holds), torch.tensor(True), PIECE)


def dropped(name: str, value: Tensor, plain: Tensor, kept: Tensor) -> Iterator[Comparison]:
    """Is each number of ``value`` (N, W) dropped 3 times of 10, and divided by 0.7 otherwise?

    ``plain`` (N, W) is the value without dropout; ``kept`` (2^W, N, W) are those with dropout, for
    each of the 2^W choices of the columns that are kept, in binary order.
    """
    yield fact(f"{name}: something is dropped", (value - plain).abs().amax() > PIECE)
    distance = (value - kept).detach().abs().amax(-1)  # (2^W, N)
    is_one = distance.amin(0) < PIECE  # (N,)
    yield fact(f"{name}: each number is either dropped or divided by 1 - dropout", is_one.all())
    lost = value.shape[1] - distance.argmin(0).double().remainder(len(kept)).to(torch.int64).apply_(
        int.bit_count
    )
    share = (lost * is_one).double().mean() / value.shape[1]
    yield compare(
        f"{name}: share of the numbers that is dropped", share.round(decimals=1), d(DROPOUT), PIECE
    )


def d(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def dropped_weights(
    name: str, context: Tensor, probabilities: Tensor, returned: Tensor
) -> Iterator[Comparison]:
    """``context`` (..., T, 2, S) is of two values that are the identity: twice the weights (..., T,
    S).
    """
    yield fact(
        f"{name}: one weight for all columns of a value",
        torch.equal(context[..., 0, :], context[..., 1, :]),
    )
    weights = probabilities.reshape(-1, 1)
    kept = torch.stack([0 * weights, weights / (1 - DROPOUT)])
    yield from dropped(name, context[..., 0, :].reshape(-1, 1), weights, kept)
    same = (returned - probabilities).abs().amax() < PIECE
    yield fact(f"{name}: the probabilities that are returned are those before dropout", same)


@check
def attention_dropout() -> Iterator[Comparison]:
    """Values are twice the identity, so that the context shows the weights."""
    query, key = normal(4, 2, 32, 64).detach(), normal(4, 2, 32, 64, seed=1).detach()
    value = torch.eye(32).double().repeat(4, 2, 1, 2)  # (4, 2, 32, 64)
    torch.manual_seed(0)
    context, returned = bert.attention(query, key, value, None, DROPOUT)
    probabilities = (query @ key.transpose(2, 3) / 8).softmax(-1)
    yield from dropped_weights(
        "attention in training", context.unflatten(-1, (2, 32)), probabilities, returned
    )


@check
def attention_module_dropout() -> Iterator[Comparison]:
    """The same for the module: both halves of each head's values are the first 16 columns of x, the
    identity.
    """
    module = randomised(bert.Attention(64, 2, dropout=DROPOUT)).train()
    x = normal(16, 16, 64, scale=0.3).detach()
    x[:, :, :16] = torch.eye(16)
    module.value.weight.data = torch.eye(64).double()[:16].repeat(4, 1)
    module.output.weight.data = torch.eye(64).double()
    module.value.bias.data, module.output.bias.data = torch.zeros(2, 64).double()
    torch.manual_seed(0)
    output, returned = module(x, None)
    probabilities = torch_attention(module, x, x, None)[1]
    context = output.unflatten(-1, (2, 2, 16)).transpose(1, 2)  # (B, H, T, 2, S)
    yield from dropped_weights("attention module in training", context, probabilities, returned)


@check
def layer_dropout() -> Iterator[Comparison]:
    """What attention adds, and what feed-forward adds, while the other adds nothing."""
    config = BertConfig(3, 4, 1, 2, 6, 9, layer_norm_eps=1e-3, hidden_dropout_prob=DROPOUT)
    block, x = randomised(bert.Layer(config)).train(), normal(64, 8, 4).detach()
    block.attention.eval()
    norm = torch_layer_norm
    choices = torch.cartesian_prod(*[d(0.0).new_tensor([0.0, 1.0])] * 4)[:, None, None] / (
        1 - DROPOUT
    )
    silent = bert.FeedForward(config).double()
    for parameter in silent.parameters():
        nn.init.zeros_(parameter)
    loud, block.feed_forward = block.feed_forward, silent
    attended = torch_attention(block.attention, x, x, None)[0]  # (64, 8, 4)
    torch.manual_seed(0)
    output = block(x, None)[0]
    kept = norm(
        block.feed_forward_norm, norm(block.attention_norm, x + attended * choices)
    )  # (16, 64, 8, 4)
    plain = norm(block.feed_forward_norm, norm(block.attention_norm, x + attended))
    name = "layer in training, attention's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))
    block.feed_forward = loud
    nn.init.zeros_(block.attention.output.weight)
    nn.init.zeros_(block.attention.output.bias)
    first = norm(block.attention_norm, x)
    plain = norm(block.feed_forward_norm, first + torch_feed_forward(loud, first))
    kept = norm(block.feed_forward_norm, first + torch_feed_forward(loud, first) * choices)
    torch.manual_seed(0)
    output = block(x, None)[0]
    name = "layer in training, feed-forward's output"
    yield from dropped(name, output.flatten(0, 1), plain.flatten(0, 1), kept.flatten(1, 2))


@check
def embeddings_dropout() -> Iterator[Comparison]:
    module = randomised(bert.Embeddings(replace(CONFIG, hidden_dropout_prob=DROPOUT))).train()
    ids = torch.randint(17, (80, 9), generator=torch.Generator().manual_seed(0))
    rows = module.word.weight[ids] + module.position.weight + module.token_type.weight[0]
    whole = torch_layer_norm(module.norm, rows).reshape(-1, 1)
    torch.manual_seed(0)
    output = module(ids, None).reshape(-1, 1)
    yield from dropped(
        "embeddings in training", output, whole, torch.stack([0 * whole, whole / (1 - DROPOUT)])
    )


# -------------------------------------------------------------------------------- vectors and ranks


@check
def pools() -> Iterator[Comparison]:
    """Mean, max and attention pooling against one text at a time, without pads."""
    hidden, weight, bias = normal(2, 6, 7), normal(1, 7, seed=1), normal(1, seed=2)

    def by_text(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda hidden: torch.stack(
            [pool(row[real]) for row, real in zip(hidden, MASK, strict=True)]
        )

    def weighted(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return by_text(lambda row: functional.linear(row, weight, bias).softmax(0).T.mm(row)[0])(
            hidden
        )

    mean, largest = by_text(lambda row: row.mean(0)), by_text(lambda row: row.max(0).values)
    yield from with_gradients("mean_pool", lambda x: pooling.mean_pool(x, MASK), mean, hidden)
    yield from with_gradients("max_pool", lambda x: pooling.max_pool(x, MASK), largest, hidden)
    learned = lambda x, w, b: pooling.attention_pool(x, MASK, w, b)  # noqa: E731
    yield from with_gradients("attention_pool", learned, weighted, hidden, weight, bias)


@check
def pools_of_low_numbers() -> Iterator[Comparison]:
    """Real tokens of -1e20, or with a score of -1e15: any finite fill at a pad would win. In units
    of the number.
    """
    hidden = torch.tensor([[[-1.0, -2.0], [0.0, 0.0], [-3.0, -1.5]]]).double()
    mask = torch.tensor([[True, False, True]])
    expected = torch.tensor([[-1.0, -1.5]]).double()
    yield compare(
        "max_pool of -1e20 beside a pad",
        pooling.max_pool(1e20 * hidden, mask) / 1e20,
        expected,
        PIECE,
    )
    found = pooling.attention_pool(
        hidden, mask, torch.zeros(1, 2).double(), torch.tensor([-1e15]).double()
    )
    expected = torch.tensor([[-2.0, -1.75]]).double()
    yield compare("attention_pool, scores of -1e15 beside a pad", found, expected, PIECE)


@check
def pools_of_nan() -> Iterator[Comparison]:
    """A real token that is NaN says that something is broken; a pad that is NaN says nothing."""
    hidden = torch.tensor([[1.0, 2.0, torch.nan], [1.0, torch.nan, 2.0]]).double()[..., None]
    mask, weight, bias = torch.tensor([[True, True, False]] * 2), d(0.0)[None, None], d(0.0)[None]
    for name, found in (
        ("mean_pool", pooling.mean_pool(hidden, mask)),
        ("max_pool", pooling.max_pool(hidden, mask)),
        ("attention_pool", pooling.attention_pool(hidden, mask, weight, bias)),
    ):
        yield fact(f"{name}: NaN at a real token is not hidden", found[1].isnan().all())


@check
def cosine_matrix_of_no_cosine() -> Iterator[Comparison]:
    """A zero vector has cosine 0 with everything and no share in the others' gradient; an infinite
    one has none.
    """
    u, v = normal(4, 7), normal(3, 7, seed=1)
    pull = normal(4, 3, seed=2).detach()
    with_zero = (
        u.detach()
        .clone()
        .masked_fill_(torch.tensor([1, 0, 0, 0]).bool()[:, None], 0.0)
        .requires_grad_()
    )
    of_u, of_v = torch.autograd.grad(encoder.cosine_matrix(with_zero, v), (with_zero, v), pull)
    cosines = functional.cosine_similarity(u[1:, None], v[None], dim=-1)
    expected_u, expected_v = torch.autograd.grad(cosines, (u, v), pull[1:])
    yield compare("cosine_matrix beside a zero vector, gradient of v", of_v, expected_v, GRADIENT)
    yield compare(
        "cosine_matrix beside a zero vector, gradient of the other rows",
        of_u[1:],
        expected_u[1:],
        GRADIENT,
    )
    infinite = u.detach().clone()
    infinite[0, 0] = torch.inf
    found = encoder.cosine_matrix(infinite, v)[0]
    yield fact("cosine_matrix: an infinite vector's NaN is not hidden", found.isnan().all())


@check
def cosine_matrix() -> Iterator[Comparison]:
    reference = lambda u, v: functional.cosine_similarity(u[:, None], v[None], dim=-1)  # noqa: E731
    yield from with_gradients(
        "cosine_matrix", encoder.cosine_matrix, reference, normal(4, 7), normal(3, 7, seed=1)
    )


@check
def ranks() -> Iterator[Comparison]:
    """1 plus the number of smaller values, plus half a rank for each other equal value.

    The ranks in order, and the mean rank of equal values: together they are right only if every
    rank is, and neither depends on how a sort orders equal values.
    """
    for name, x in (
        ("ties", normal(40, scale=2.0).detach().round()),
        ("no ties", normal(9, seed=1).detach()),
    ):
        smaller, equal = (x < x[:, None]).sum(1), (x == x[:, None]).double()
        expected = 1 + smaller + (equal.sum(1) - 1) / 2
        found = torch.tensor(np.array(metrics.ranks(x.numpy())))
        yield compare(f"ranks, {name}, sorted", found.sort().values, expected.sort().values, PIECE)
        mean = equal.to(found.dtype) @ found / equal.sum(1).to(found.dtype)
        yield compare(f"ranks, {name}, mean of equal values", mean, expected, PIECE)


# ------------------------------------------------------------------------------- newer models'
# formulas


@check
def rotation() -> Iterator[Comparison]:
    """As complex numbers, first half plus i times the second half, times e^(i angle)."""
    x, angles = normal(2, 3, 5, 8), normal(2, 1, 5, 4, seed=1, scale=3.0).detach()
    cos, sin = (torch.cat([y, y], dim=-1) for y in (angles.cos(), angles.sin()))

    def reference(x: Tensor) -> Tensor:
        turned = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)

    yield from with_gradients("rotate", lambda x: modern.rotate(x, cos, sin), reference, x)


@check
def rms_norm() -> Iterator[Comparison]:
    x, weight = normal(3, 5, 8), normal(8, seed=1)
    reference = lambda x, weight: functional.rms_norm(x, (8,), weight, 0.3)  # noqa: E731
    yield from with_gradients(
        "rms_norm", lambda x, weight: qwen3.rms_norm(x, weight, 0.3), reference, x, weight
    )


@check
def swiglu() -> Iterator[Comparison]:
    gate, up = normal(3, 7, scale=3.0), normal(3, 7, seed=1)
    yield from with_gradients(
        "swiglu", qwen3.swiglu, lambda gate, up: gate * up / (1 + (-gate).exp()), gate, up
    )


@check
def max_sim() -> Iterator[Comparison]:
    """One token after the other, in Python's own max and sum."""
    query, document = normal(5, 4), normal(2, 4, seed=1)  # two partners: the best may be below 0
    reference = lambda query, document: sum(max((x * y).sum() for y in document) for x in query)  # noqa: E731
    yield from with_gradients("max_sim", by_tokens.max_sim, reference, query, document)
