"""Parity checks of single formulas without a golden file: against torch's own functions and slow loops.

Importing this module adds them to ``checks.CHECKS``.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from minisbert.core import bert, encoder, metrics, pooling
from minisbert.core.bert import BertConfig
from tests.checks import check, normal, with_gradients
from tests.parity import PIECE, Comparison, compare

# width 12, heads 3, feed-forward 20; one text of 6 tokens, one of 2 tokens and 4 pads
CONFIG = BertConfig(17, 12, 1, 3, 20, 9, type_vocab_size=2, layer_norm_eps=1e-3)
MASK = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])


def randomised(module: nn.Module, seed: int = 5) -> nn.Module:
    """The module in float64 and eval mode, with random parameters."""
    for i, parameter in enumerate(module.double().parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + i, scale=0.5).detach()
    return module.eval()


def whole(
    name: str, module: nn.Module, piece: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor
) -> Iterator[Comparison]:
    """The value, and the gradient of inputs and parameters; both sides use the module's parameters."""
    n, parameters = len(inputs), list(module.parameters())
    yield from with_gradients(name, lambda *x: piece(*x[:n]), lambda *x: reference(*x[:n]), *inputs, *parameters)


def torch_attention(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """torch's multi-head attention with the module's weights: (B, T, D), and probabilities (B, H, T, S)."""
    linears = module.query, module.key, module.value
    value, probabilities = functional.multi_head_attention_forward(
        query.transpose(0, 1),
        key.transpose(0, 1),
        key.transpose(0, 1),
        query.shape[-1],
        module.heads,
        torch.cat([linear.weight for linear in linears]),
        torch.cat([linear.bias for linear in linears]),
        None,
        None,
        False,
        0.0,
        module.output.weight,
        module.output.bias,
        training=False,
        key_padding_mask=None if mask is None else ~mask,
        average_attn_weights=False,
    )
    return value.transpose(0, 1), probabilities


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
        rows = [module.word.weight[ids], module.position.weight[:6][None], module.token_type.weight[types]]
        return functional.layer_norm(sum(rows), (12,), module.norm.weight, module.norm.bias, CONFIG.layer_norm_eps)

    yield from whole("embeddings", module, lambda: module(ids, types), lambda: reference(types))
    none = torch.zeros_like(ids)
    yield from whole("embeddings, no token types", module, lambda: module(ids, None), lambda: reference(none))


@check
def attention_probabilities() -> Iterator[Comparison]:
    """The second result of ``attention``, from scores computed by loops."""
    query, key, value = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 5, seed=2)
    rows = []
    for b, h, t in torch.cartesian_prod(*map(torch.arange, (2, 3, 4))).tolist():
        scores = [query[b, h, t].dot(key[b, h, s]) / 5**0.5 for s in range(6) if MASK[b, s]]
        shares = torch.stack(scores).exp()
        rows.append(functional.pad(shares / shares.sum(), (0, 6 - len(shares))))
    expected = torch.stack(rows).view(2, 3, 4, 6)
    found = bert.attention(query, key, value, MASK[:, None, None, :])[1]
    yield compare("attention probabilities", found, expected, PIECE)


@check
def heads_apart_and_together() -> Iterator[Comparison]:
    """``split`` and ``merge``: head h gets columns h * K to (h + 1) * K."""
    module = bert.Attention(12, 3, dropout=0.1)
    yield from with_gradients("split", module.split, lambda x: torch.stack(x.chunk(3, -1), 1), normal(2, 6, 12))
    yield from with_gradients("merge", module.merge, lambda x: torch.cat(x.unbind(1), -1), normal(2, 3, 6, 4))


@check
def attention_module() -> Iterator[Comparison]:
    """Multi-head attention and its probabilities, without and with a mask."""
    module, x = randomised(bert.Attention(12, 3, dropout=0.1)), normal(2, 6, 12)
    for name, mask in (("attention module", None), ("attention module, masked", MASK)):
        hidden = None if mask is None else mask[:, None, None, :]
        yield from whole(
            name,
            module,
            lambda x, hidden=hidden: module(x, hidden)[0],
            lambda x, mask=mask: torch_attention(module, x, x, mask)[0],
            x,
        )
        expected = torch_attention(module, x, x, mask)[1]
        yield compare(f"{name}, probabilities", module(x, hidden)[1], expected, PIECE)


@check
def feed_forward() -> Iterator[Comparison]:
    module = randomised(bert.FeedForward(CONFIG))
    yield from whole("feed-forward", module, module, lambda x: torch_feed_forward(module, x), normal(2, 6, 12))


@check
def layer() -> Iterator[Comparison]:
    """One encoder layer, without and with a mask."""
    module, x = randomised(bert.Layer(CONFIG)), normal(2, 6, 12)
    for name, mask in (("layer", None), ("layer, masked", MASK)):
        hidden = None if mask is None else mask[:, None, None, :]
        yield from whole(
            name,
            module,
            lambda x, hidden=hidden: module(x, hidden)[0],
            lambda x, mask=mask: torch_layer(module, x, mask),
            x,
        )


# -------------------------------------------------------------------------------- vectors and ranks


@check
def pools() -> Iterator[Comparison]:
    """Mean, max and attention pooling against one text at a time, without pads."""
    hidden, weight, bias = normal(2, 6, 7), normal(1, 7, seed=1), normal(1, seed=2)
    lengths = MASK.sum(1).tolist()

    def by_text(pool: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda hidden: torch.stack([pool(row[:n]) for row, n in zip(hidden, lengths, strict=True)])

    def weighted(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return by_text(lambda row: functional.linear(row, weight, bias).softmax(0).T.mm(row)[0])(hidden)

    mean, largest = by_text(lambda row: row.mean(0)), by_text(lambda row: row.max(0).values)
    yield from with_gradients("mean_pool", lambda x: pooling.mean_pool(x, MASK), mean, hidden)
    yield from with_gradients("max_pool", lambda x: pooling.max_pool(x, MASK), largest, hidden)
    learned = lambda x, w, b: pooling.attention_pool(x, MASK, w, b)  # noqa: E731
    yield from with_gradients("attention_pool", learned, weighted, hidden, weight, bias)


@check
def cosine_matrix() -> Iterator[Comparison]:
    def reference(u: Tensor, v: Tensor) -> Tensor:
        return functional.cosine_similarity(u[:, None], v[None], dim=-1)

    yield from with_gradients("cosine_matrix", encoder.cosine_matrix, reference, normal(4, 7), normal(3, 7, seed=1))


@check
def ranks() -> Iterator[Comparison]:
    """1 plus the number of smaller values, plus half a rank for each other equal value."""
    for name, x in (("ties", normal(40, scale=2.0).detach().round()), ("no ties", normal(9, seed=1).detach())):
        smaller, equal = (x < x[:, None]).sum(1), (x == x[:, None]).sum(1)
        expected = 1 + smaller + (equal - 1) / 2
        found = torch.from_numpy(metrics.ranks(x.numpy()))
        yield compare(f"ranks, {name}", found, expected.double(), PIECE)
