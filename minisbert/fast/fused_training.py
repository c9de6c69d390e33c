"""The book's encoder in fused operations, with pads, gradients and dropout: what training steps compute.

``core/bert.py`` says what is computed; the tests compare the two, gradients included. Half of a step's time on a CPU is
not matrix products but passes over numbers, and here there are fewer of them:

    layer norm, GELU   one operation each, forward and backward, instead of six and four
    bfloat16           an input is rounded once for query, key and value; the softmax is in float32, where it takes a
                       third of the time and loses nothing; for each new shape of a product oneDNN compiles kernels,
                       so the number of rows is rounded up, and attention in short texts is in float32

Dropout draws the same random numbers as the book's modules do, in the same order.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear, pad

from minisbert.core.bert import Attention, Bert, Layer, LayerNorm
from minisbert.fast.fused import LONG, is_plain, rounded


def hidden_states(
    model: Bert,
    ids: Tensor,
    mask: Tensor | None = None,
    token_types: Tensor | None = None,
    precision: torch.dtype = torch.float32,
    trace: dict[str, Tensor] | None = None,
) -> Tensor:
    """``Bert.forward`` with the layers' matrix products in ``precision``: float32, or bfloat16 on hardware with it.

    float32 stands for the weights' own dtype. It is the book's own forward, in bfloat16 by autocast, on other devices
    than a CPU, with a ``trace``, and with modules or hooks of somebody else's. Raises ``ValueError`` as that does.
    """
    own = model.embeddings.word.weight.dtype
    if trace is None and ids.device.type == "cpu" and is_plain(model):
        return fused_forward(model, ids, mask, token_types, own if precision == torch.float32 else precision)
    if precision == torch.float32:
        return model(ids, mask, token_types, trace)
    with torch.autocast(ids.device.type, precision):
        return model(ids, mask, token_types, trace).to(own)


def fused_forward(
    model: Bert, ids: Tensor, mask: Tensor | None, token_types: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """ids, mask and token_types (B, T) as in ``Bert.forward`` -> hidden states (B, T, D), in the weights' own dtype."""
    model._check(ids, mask, token_types)
    tables = model.embeddings
    x = tables.word(ids) + tables.position.weight[tables.offset : tables.offset + ids.shape[1]]  # (B, T, D)
    if tables.token_type is not None:
        x = x + (tables.token_type.weight[0] if token_types is None else tables.token_type(token_types))
    x = tables.dropout(norm(tables.norm, x))
    hidden_pads = None
    if mask is not None:
        hidden_pads = torch.zeros(mask.shape, dtype=x.dtype).masked_fill_(~mask.bool(), -math.inf)[:, None, None, :]
    for layer in model.layers:
        x = fused_layer(layer, x, hidden_pads, dtype)
    return x


def fused_layer(layer: Layer, x: Tensor, hidden_pads: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x (B, T, D), hidden_pads (B, 1, 1, T) with 0 for real tokens and -inf for pads -> (B, T, D)."""
    attended = project(layer.attention.output, attend(layer.attention, x, hidden_pads, dtype), dtype)  # (B, T, D)
    x = norm(layer.attention_norm, x + layer.attention_dropout(attended))
    up = gelu(project(layer.feed_forward.up, x, dtype))  # (B, T, F)
    return norm(layer.feed_forward_norm, x + layer.dropout(project(layer.feed_forward.down, up, dtype)))


def attend(module: Attention, x: Tensor, hidden_pads: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``core.bert.Attention`` without its last projection: x (B, T, D) -> context (B, T, D)."""
    once = x.to(dtype)  # for all three
    inner = dtype if x.shape[1] > LONG else x.dtype
    parts = (module.query, module.key, module.value)
    query, key, value = (module.split(project(part, once, dtype)).to(inner) for part in parts)  # (B, H, T, K) each
    scores = ((query * query.shape[-1] ** -0.5) @ key.mT).to(x.dtype)  # (B, H, T, T)
    if hidden_pads is not None:
        scores = scores.add_(hidden_pads)
    weights = dropout(scores.softmax(dim=-1), module.dropout, module.training)
    return module.merge(weights.to(inner) @ value)  # (B, T, D)


def project(module: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """A linear layer computed in ``dtype``: x (B, T, in) -> (B, T, out). The weight's gradient has the weight's."""
    rows = x.to(dtype).flatten(0, 1)  # (B T, in)
    # subtle: compiling kernels for a new number of rows takes longer than the products themselves
    added = rounded(len(rows)) - len(rows) if dtype == torch.bfloat16 else 0
    rows = pad(rows, (0, 0, 0, added)) if added else rows
    y = linear(rows, module.weight.to(dtype), module.bias.to(dtype))
    return y[: len(y) - added].view(*x.shape[:2], -1)


def norm(module: LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, module.weight.shape, module.weight, module.bias, module.eps)
