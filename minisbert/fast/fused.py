"""The book's encoder once more, in fused operations and without pads: the same numbers sooner.

``core/bert.py`` says what is computed; the tests compare the two. Four things save most of the time on a CPU, in
float32 without a copy of the weights:

    no pads         everything but attention looks at one token at a time: texts of any lengths form one row of tokens
    linear layers   through oneDNN, twice as fast as torch's own, with GELU in the same pass (``kernels.py``)
    layer norm      one pass over the numbers instead of six
    attention       per group of texts of one length, without a mask, softmax down the columns
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, pad, scaled_dot_product_attention

from minisbert.core.bert import Attention, Bert, Embeddings, FeedForward, Layer, LayerNorm
from minisbert.fast.kernels import has_hooks, linear, prepared

LONG = 64  # tokens: beyond this the scores no longer fit the cache, and attention takes another route
TILE, TOGETHER = 32, 4  # tokens, texts: see ``in_few_shapes``
ROWS = 64  # the number of tokens in a batch is rounded up to a multiple of this


_lock = threading.Lock()
_held: dict[nn.Module, tuple[int, bool]] = {}  # modules in ``evaluating``: by how many callers, and their own mode


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each module gets its own mode back (a caller may have frozen some).

    Several threads may evaluate one model: a module gets its mode back from the last of them.
    """
    modules = [module for model in models for module in model.modules()]
    with _lock:
        for module in modules:
            callers, mode = _held.get(module, (0, module.training))
            _held[module] = callers + 1, mode
            module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        with _lock:
            for module in modules:
                _release(module)


def _release(module: nn.Module) -> None:
    callers, mode = _held.pop(module)
    if callers > 1:
        _held[module] = callers - 1, mode
    else:
        module.training = mode


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``core.bert.attention`` without a mask and without its probabilities: all (B, H, T, K) -> (B, H, T, K).

    On a CPU the result of bfloat16 is float32 for texts of at most ``LONG`` tokens.
    """
    cpu, long = query.device.type == "cpu", query.shape[-2] > LONG
    if cpu and query.dtype == torch.bfloat16:
        return in_few_shapes(query, key, value) if long else in_float32(query, key, value)
    return by_columns(query, key, value) if cpu and not long else scaled_dot_product_attention(query, key, value)


# subtle: for products in bfloat16 oneDNN compiles a kernel for each new shape and keeps it, more than half a megabyte
# each, without end in a long stream. For sentences float32, which takes another route, is just as fast. For long texts
# bfloat16 is twice as fast, so there the number of shapes is kept small.


def in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """bfloat16 (B, H, T, K) each -> float32 (B, H, T, K)."""
    return by_columns(*(x.to(torch.float32, memory_format=torch.contiguous_format) for x in (query, key, value)))


def in_few_shapes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K), ``TOGETHER`` texts at once, T rounded up to a multiple of ``TILE``."""
    tokens = query.shape[-2]
    padded = (pad(x, (0, 0, 0, -tokens % TILE)).split(TOGETHER) for x in (query, key, value))
    return torch.cat([by_columns(*parts, tokens) for parts in zip(*padded, strict=True)])[..., :tokens, :]


def by_columns(query: Tensor, key: Tensor, value: Tensor, tokens: int | None = None) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K). The first ``tokens`` of each text are real, by default all."""
    scores = key @ (query * query.shape[-1] ** -0.5).mT  # (B, H, S, T), the transpose of the book's
    if tokens is not None:
        scores[..., tokens:, :] = -torch.inf
    # subtle: down the columns, which a CPU takes many at a time; the 14 numbers of a row it would take one by one
    return scores.softmax(dim=-2).mT @ value


BOOK = {Bert, Embeddings, Layer, Attention, FeedForward, LayerNorm}
PLAIN = BOOK | {nn.ModuleList, nn.Linear, nn.Embedding, nn.Dropout, nn.Identity}


def is_plain(model: Bert) -> bool:
    """Is every module the book's own, without hooks? ``FusedBert`` reads the weights and would ignore any other."""
    return all(type(module) in PLAIN and not has_hooks(module) for module in model.modules())


class FusedBert:
    """Hidden states as ``Bert`` gives them, without gradients and dropout, computed in ``dtype``.

    In the weights' own dtype nothing is copied, so later changes of the weights are seen. For bfloat16 the layers'
    weights are rounded here, and only the layers compute in it: embeddings and result have the weights' dtype, and on
    a CPU attention is in float32 for texts of at most ``LONG`` tokens.
    """

    def __init__(self, model: Bert, dtype: torch.dtype):
        self.model = model
        self.dtype = dtype
        self.layers = [
            {name: prepared(parameter.detach(), dtype) for name, parameter in layer.named_parameters()}
            for layer in model.layers
        ]

    def __call__(self, groups: Sequence[Tensor], trace: dict[str, list[Tensor]] | None = None) -> list[Tensor]:
        """Groups of texts of one length, ids (B, T) each -> hidden states (B, T, D) each.

        The M tokens of all groups go through the layers together. ``trace`` gets every layer's output.
        """
        for ids in groups:
            self.model._check(ids, None, None)
        states = torch.cat([self.embed(ids).flatten(0, 1) for ids in groups])  # (M, D)

        def apart(x: Tensor) -> list[Tensor]:
            parts = x[: len(states)].to(states.dtype).split([ids.numel() for ids in groups])
            return [part.view(*ids.shape, -1) for part, ids in zip(parts, groups, strict=True)]

        # subtle: oneDNN compiles and keeps a kernel for each new M, a quarter of a megabyte; rounding keeps them few
        x = pad(states.to(self.dtype), (0, 0, 0, -len(states) % (8 if len(states) < ROWS else ROWS)))
        for i, weights in enumerate(self.layers):
            x = self.layer(x, [ids.shape for ids in groups], weights)
            if trace is not None:
                trace[f"layers.{i}"] = apart(x)
        return apart(x)

    def embed(self, ids: Tensor) -> Tensor:
        """``core.bert.Embeddings`` without token types, and without dropout in any mode: ids (B, T) -> (B, T, D)."""
        tables = self.model.embeddings
        x = tables.word(ids) + tables.position.weight[tables.offset : tables.offset + ids.shape[1]]  # (B, T, D)
        return tables.norm(x if tables.token_type is None else x + tables.token_type.weight[0])

    def layer(self, x: Tensor, shapes: Sequence[tuple[int, int]], weights: dict[str, Tensor]) -> Tensor:
        """One ``core.bert.Layer``: x (M, D), the tokens of groups of shapes (B, T) one after the other -> (M, D)."""

        def project(name: str, x: Tensor, with_gelu: bool = False) -> Tensor:
            return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"], with_gelu)

        def norm(name: str, x: Tensor) -> Tensor:
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            return layer_norm(x, weight.shape, weight, bias, self.model.config.layer_norm_eps)

        query, key, value = (project(f"attention.{name}", x) for name in ("query", "key", "value"))  # (M, D)
        context = torch.empty_like(x)  # (M, D); the rows added by rounding are never read
        start = 0
        for texts, tokens in shapes:

            def heads(x: Tensor, rows: slice = slice(start, start + texts * tokens), shape=(texts, tokens)) -> Tensor:
                return x[rows].view(*shape, self.model.config.num_attention_heads, -1).transpose(1, 2)  # (B, H, T, K)

            heads(context).copy_(attention(heads(query), heads(key), heads(value)))
            start += texts * tokens
        x = norm("attention_norm", x + project("attention.output", context))
        up = project("feed_forward.up", x, with_gelu=True)  # (M, F)
        return norm("feed_forward_norm", x + project("feed_forward.down", up))
