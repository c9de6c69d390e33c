"""The book's encoder once more, in fused operations and without pads: the same numbers sooner.

``core/bert.py`` says what is computed; the tests compare the two. Four things save most of the time on a CPU, in
float32 without a copy of the weights (``engine.py`` decides when a copy pays):

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
from minisbert.fast.kernels import has_hooks, hooks_everywhere, laid_out, linear

LONG = 64  # tokens: beyond this the scores no longer fit the cache, and attention takes another route
TILE = 32  # tokens: see ``in_few_shapes``
MATRICES = ("attention.query", "attention.key", "attention.value", "attention.output")
MATRICES += ("feed_forward.up", "feed_forward.down")
NORMS = ("attention_norm", "feed_forward_norm")


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


# subtle: for products in bfloat16 oneDNN compiles a kernel for each new shape and keeps it, about a megabyte for each
# length. For sentences float32, which takes another route, is just as fast. For long texts bfloat16 is twice as fast,
# so there the number of lengths is kept small.


def in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """bfloat16 (B, H, T, K) each -> float32 (B, H, T, K)."""
    return by_columns(*(x.to(torch.float32, memory_format=torch.contiguous_format) for x in (query, key, value)))


def in_few_shapes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K), computed for T rounded up to a multiple of ``TILE``."""
    tokens = query.shape[-2]
    if not (pads := -tokens % TILE):
        return scaled_dot_product_attention(query, key, value)
    # pads are added to (B, T, H, K), which is how the numbers lie in memory
    query, key, value = (pad(x.transpose(1, 2), (0, 0, 0, 0, 0, pads)).transpose(1, 2) for x in (query, key, value))
    mask = query.new_zeros(tokens + pads)
    mask[tokens:] = -torch.inf
    mask = mask.expand(1, 1, len(mask), -1)  # (1, 1, T, T)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask)[..., :tokens, :]


def by_columns(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K)."""
    scores = key @ (query * query.shape[-1] ** -0.5).mT  # (B, H, S, T), the transpose of the book's
    # subtle: down the columns, which a CPU takes many at a time; the 14 numbers of a row it would take one by one
    return scores.softmax(dim=-2).mT @ value


# what each name in a book's encoder stands for; layers are numbered
SLOTS = dict.fromkeys(("query", "key", "value", "output", "up", "down", "pooler"), (nn.Linear,))
SLOTS |= dict.fromkeys(("norm", *NORMS), (LayerNorm,))
SLOTS |= dict.fromkeys(("word", "position", "token_type"), (nn.Embedding,))
SLOTS |= dict.fromkeys(("dropout", "attention_dropout"), (nn.Dropout, nn.Identity))
SLOTS |= {"": (Bert,), "embeddings": (Embeddings,), "layers": (nn.ModuleList,)}
SLOTS |= {"attention": (Attention,), "feed_forward": (FeedForward,)}
PARAMETERS = {nn.Linear: 2, LayerNorm: 2, nn.Embedding: 1}


def is_plain(model: Bert) -> bool:
    """Is every module the book's own, without hooks? ``FusedBert`` reads the weights and would ignore any other."""
    return not hooks_everywhere() and all(
        is_books(name.rpartition(".")[2], module) for name, module in model.named_modules(remove_duplicate=False)
    )


def is_books(name: str, module: nn.Module) -> bool:
    """Is this the kind of module that the book has by that name, with all its parameters and methods?"""
    kind = type(module)
    if kind not in ((Layer,) if name.isdigit() else SLOTS.get(name, ())) or has_hooks(module):
        return False
    found = sum(1 for _ in module.parameters(recurse=False))  # a weight may be gone, or a tensor in its place
    return found == PARAMETERS.get(kind, 0) and not vars(module).keys() & {*vars(kind), "weight", "bias"}


def rounded(tokens: int) -> int:
    """The number of rows that ``tokens`` tokens take."""
    # subtle: oneDNN compiles and keeps a kernel for each new M, a quarter of a megabyte; rounding keeps them few
    step = 8 if tokens < 64 else 16 if tokens < 256 else 64
    return tokens + -tokens % step


class FusedBert:
    """Hidden states as ``Bert`` gives them, without gradients and dropout, computed in ``dtype``.

    In the weights' own dtype nothing is copied unless ``copy`` is set, so later changes of the weights are seen. Copies
    are laid out for oneDNN, query, key and value as one matrix. For bfloat16 the layers' weights are always copied, and
    only the layers compute in it: embeddings and result have the weights' dtype, and on a CPU attention is in float32
    for texts of at most ``LONG`` tokens.
    """

    def __init__(self, model: Bert, dtype: torch.dtype, copy: bool = False):
        self.model = model
        self.dtype = dtype
        self.copied = copy or dtype != model.embeddings.word.weight.dtype
        self.layers = [copied_weights(layer, dtype) if self.copied else live_weights(layer) for layer in model.layers]

    @torch.no_grad()
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

        x = pad(states.to(self.dtype), (0, 0, 0, rounded(len(states)) - len(states)))
        for i, (layer, weights) in enumerate(zip(self.model.layers, self.layers, strict=True)):
            x = self.layer(x, [ids.shape for ids in groups], layer, weights)
            if trace is not None:
                trace[f"layers.{i}"] = apart(x)
        return apart(x)

    def embed(self, ids: Tensor) -> Tensor:
        """``core.bert.Embeddings`` without token types, and without dropout in any mode: ids (B, T) -> (B, T, D)."""
        tables = self.model.embeddings
        x = tables.word(ids) + tables.position.weight[tables.offset : tables.offset + ids.shape[1]]  # (B, T, D)
        x = x if tables.token_type is None else x + tables.token_type.weight[0]
        return layer_norm(x, x.shape[-1:], tables.norm.weight, tables.norm.bias, tables.norm.eps)

    def layer(self, x: Tensor, shapes: Sequence[tuple[int, int]], layer: Layer, weights: "Weights") -> Tensor:
        """One ``core.bert.Layer``: x (M, D), the tokens of groups of shapes (B, T) one after the other -> (M, D)."""

        def norm(name: str, x: Tensor) -> Tensor:
            return layer_norm(x, x.shape[-1:], *weights[name], getattr(layer, name).eps)

        if "attention.all" in weights:
            projected = linear(x, *weights["attention.all"]).chunk(3, dim=-1)  # query, key, value: (M, D) each
        else:
            projected = tuple(linear(x, *weights[name]) for name in MATRICES[:3])
        context = torch.empty_like(x)  # (M, D); the rows added by rounding are never read
        start = 0
        for texts, tokens in shapes:

            def heads(x: Tensor, rows: slice = slice(start, start + texts * tokens), shape=(texts, tokens)) -> Tensor:
                return x[rows].view(*shape, layer.attention.heads, -1).transpose(1, 2)  # (B, H, T, K)

            heads(context).copy_(attention(*map(heads, projected)))
            start += texts * tokens
        x = norm("attention_norm", linear(context, *weights["attention.output"]).add_(x))
        up = linear(x, *weights["feed_forward.up"], with_gelu=True)  # (M, F)
        return norm("feed_forward_norm", linear(up, *weights["feed_forward.down"]).add_(x))


Weights = dict[str, tuple[Tensor, Tensor]]  # of one layer: a module's name -> its weight and bias


def live_weights(layer: Layer) -> Weights:
    """A layer's parameters themselves."""
    modules = {name: layer.get_submodule(name) for name in (*MATRICES, *NORMS)}
    return {name: (module.weight, module.bias) for name, module in modules.items()}


def copied_weights(layer: Layer, dtype: torch.dtype) -> Weights:
    """Copies in ``dtype``, matrices laid out for oneDNN; query, key and value are one matrix, ``attention.all``."""
    # subtle: oneDNN gets copies even in the same dtype, because its reading looks to ``kernels.watch`` like writing
    live = live_weights(layer)
    copies = {name: tuple(x.detach().to(dtype, copy=True) for x in pair) for name, pair in live.items()}
    weights, biases = zip(*(copies.pop(name) for name in MATRICES[:3]), strict=True)
    copies["attention.all"] = torch.cat(weights), torch.cat(biases)
    return {name: (laid_out(weight) if weight.ndim == 2 else weight, bias) for name, (weight, bias) in copies.items()}
