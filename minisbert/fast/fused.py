"""What makes encoding fast: texts side by side without pads, and the encoder once more in fused operations.

``bert.py`` is the master: it says what is computed. Here the same numbers come from one call per step, where the
master writes every formula out. Four things save most of the time on a CPU, in float32 without a copy of the weights:

    no pads         all but attention looks at one token at a time: texts of any lengths lie in one long row of tokens
    linear layers   through oneDNN, which is twice as fast as torch's own way to them, GELU in the same pass
    layer norm      in one pass over the numbers, not in six
    attention       text by text of one length, without a mask, the softmax down the columns
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, pad, scaled_dot_product_attention

from minisbert.core import InputError, bert
from minisbert.core.bert import Bert, BertConfig
from minisbert.models.checkpoint import Unfilled

LONG = 64  # tokens: beyond it attention goes another way, as the scores no longer fit the cache
TILE, TOGETHER = 32, 4  # tokens, texts: see ``in_few_shapes``
ROWS = 64  # tokens: their number in a batch is rounded up to a multiple of it
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def check_options(width: int, normalize: bool | None, truncate_dim: int | None, output: str, convert: str) -> None:
    """Raise ``InputError`` for what ``SentenceEncoder.encode`` does not take; vectors have ``width`` columns."""
    if output not in ("sentence", "token"):
        raise InputError(f"output {output!r} is not one of sentence, token")
    if convert not in ("array", "tensor"):
        raise InputError(f"convert {convert!r} is not one of array, tensor")
    if output == "token" and (normalize is not None or truncate_dim is not None):
        raise InputError("normalize and truncate_dim are for sentence vectors, not for output='token'")
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise InputError(f"truncate_dim {truncate_dim} is not in 1 to {width}, the columns that there are")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every module has its own mode again (a caller may have frozen some)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


# ----------------------------------------------------------------------------- the fused operations


def linear(x: Tensor, weight: Tensor, bias: Tensor, with_gelu: bool = False) -> Tensor:
    """x W^T + b, and GELU of it where asked: x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    if ONEDNN and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
        # the operation that torch.compile chooses for the same layer
        post, algorithm = ("gelu", "none") if with_gelu else ("none", "")  # "none": the exact GELU, not tanh's
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, post, [], algorithm)
    x = nn.functional.linear(x, weight, bias)
    return gelu(x) if with_gelu else x


def prepared(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A layer's parameter in ``dtype``: itself, where it is so already. bfloat16 is a copy anyway, and a matrix is then
    laid out as oneDNN reads it fastest."""
    copied = weight.to(dtype)
    if ONEDNN and dtype == torch.bfloat16 and weight.ndim == 2 and weight.device.type == "cpu":
        return torch.ops.mkldnn._reorder_linear_weight(copied)
    return copied


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """``bert.attention`` without a mask, and without its probabilities: all (B, H, T, K) -> (B, H, T, K).

    On a CPU the result of bfloat16 is float32 for texts of at most ``LONG`` tokens.
    """
    cpu, long = query.device.type == "cpu", query.shape[-2] > LONG
    if cpu and query.dtype == torch.bfloat16:
        return in_few_shapes(query, key, value) if long else in_float32(query, key, value)
    return by_columns(query, key, value) if cpu and not long else scaled_dot_product_attention(query, key, value)


# subtle: for products in bfloat16 oneDNN writes a program for every shape that it meets and keeps it, more than half a
# megabyte each, without end in a long stream. Sentences do as well in float32, which goes another way. For long texts
# bfloat16 is twice as fast, so there the shapes are made few.


def in_float32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """bfloat16 (B, H, T, K) each -> float32 (B, H, T, K)."""
    return by_columns(*(x.to(torch.float32, memory_format=torch.contiguous_format) for x in (query, key, value)))


def in_few_shapes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K), ``TOGETHER`` texts at once, T rounded up to a multiple of ``TILE``."""
    tokens = query.shape[-2]
    padded = (pad(x, (0, 0, 0, -tokens % TILE)).split(TOGETHER) for x in (query, key, value))
    return torch.cat([by_columns(*parts, tokens) for parts in zip(*padded, strict=True)])[..., :tokens, :]


def by_columns(query: Tensor, key: Tensor, value: Tensor, tokens: int | None = None) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K). Of every text the first ``tokens`` are real, by default all."""
    scores = key @ (query * query.shape[-1] ** -0.5).mT  # (B, H, S, T), the transpose of the master's
    if tokens is not None:
        scores[..., tokens:, :] = -torch.inf
    # subtle: down the columns, where a CPU takes many of them at a time; a row of 14 numbers it would take one by one
    return scores.softmax(dim=-2).mT @ value


# ------------------------------------------------------------------------------ the encoder of them


class FastBert:
    """Hidden states as ``Bert`` gives them, without gradients and dropout, computed in ``dtype``.

    In the weights' own dtype nothing is copied, so what training changes is seen at once. In bfloat16 the layers'
    weights are rounded here, and only what they compute is in it: embeddings and result are as in the weights, and on
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

        All tokens of all groups go through the layers together, M of them. ``trace`` gets every layer's output.
        """
        for ids in groups:
            self.model._check(ids, None, None)
        states = torch.cat([self.model.embeddings(ids, None).flatten(0, 1) for ids in groups])  # (M, D)

        def apart(x: Tensor) -> list[Tensor]:
            parts = x[: len(states)].to(states.dtype).split([ids.numel() for ids in groups])
            return [part.view(*ids.shape, -1) for part, ids in zip(parts, groups, strict=True)]

        # subtle: oneDNN writes and keeps a program for every M that it meets, a quarter of a megabyte; so few are met
        x = pad(states.to(self.dtype), (0, 0, 0, -len(states) % (8 if len(states) < ROWS else ROWS)))
        for i, weights in enumerate(self.layers):
            x = self.layer(x, [ids.shape for ids in groups], weights)
            if trace is not None:
                trace[f"layers.{i}"] = apart(x)
        return apart(x)

    def layer(self, x: Tensor, shapes: Sequence[tuple[int, int]], weights: dict[str, Tensor]) -> Tensor:
        """One ``bert.Layer``: x (M, D), the tokens of groups of the shapes (B, T) one behind the other -> (M, D)."""

        def project(name: str, x: Tensor, with_gelu: bool = False) -> Tensor:
            return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"], with_gelu)

        def norm(name: str, x: Tensor) -> Tensor:
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            return layer_norm(x, weight.shape, weight, bias, self.model.config.layer_norm_eps)

        query, key, value = (project(f"attention.{name}", x) for name in ("query", "key", "value"))  # (M, D)
        context = torch.empty_like(x)  # (M, D); the pads' rows stay as they are: nobody reads them
        start = 0
        for texts, tokens in shapes:

            def heads(x: Tensor, rows: slice = slice(start, start + texts * tokens), shape=(texts, tokens)) -> Tensor:
                return x[rows].view(*shape, self.model.config.num_attention_heads, -1).transpose(1, 2)  # (B, H, T, K)

            heads(context).copy_(attention(heads(query), heads(key), heads(value)))
            start += texts * tokens
        x = norm("attention_norm", x + project("attention.output", context))
        up = project("feed_forward.up", x, with_gelu=True)  # (M, F)
        return norm("feed_forward_norm", x + project("feed_forward.down", up))


# ---------------------------------------------------------------------------- is it still the same?

KINDS = (Bert, bert.Embeddings, bert.Layer, bert.Attention, bert.FeedForward, bert.LayerNorm)
READ = {*KINDS, nn.ModuleList, nn.Linear, nn.Embedding, nn.Dropout, nn.Identity}


def same_as_master(model: Bert) -> bool:
    """May ``FastBert`` stand in for this encoder?

    Not where a module has been exchanged or has hooks, which it would pass by. And not where somebody has rewritten
    a piece of ``bert.py`` so that it gives other numbers, to see what happens: then that is what must be seen.
    """
    if any(type(part) not in READ or part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return False
    formulas = (bert.gelu, bert.layer_norm, bert.attention)
    return _same_numbers(formulas + tuple(piece for kind in KINDS for piece in vars(kind).values() if callable(piece)))


@cache
def _same_numbers(pieces: tuple[Callable, ...]) -> bool:
    """Do both encoders agree in float64, on a tiny one with random weights? Asked once for each set of ``pieces``."""
    config = BertConfig(13, 12, 2, 3, 20, max_position_embeddings=2 * LONG)
    with torch.device("meta"), Unfilled():  # neither memory nor numbers of the caller's random generator
        model = Bert(config, pooler=False)
    generator = torch.Generator().manual_seed(0)
    random = {
        name: torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(random, assign=True)
    model.eval()
    groups = [torch.randint(config.vocab_size, shape, generator=generator) for shape in ((3, 5), (2, LONG + 1))]
    with torch.no_grad():
        try:
            expected = [model(ids) for ids in groups]
        except Exception:  # a piece rewritten for the real sizes alone
            return False
        found = FastBert(model, torch.float64)(groups)
    return all((a - b).abs().max() <= 1e-10 for a, b in zip(found, expected, strict=True))  # False for NaN too
