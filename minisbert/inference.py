"""What makes encoding fast: batches of one length, and the encoder once more in fused operations.

``bert.py`` is the master: it says what is computed. Here the same numbers come from one call per step, where the
master writes every formula out. Three things save most of the time on a CPU, without a second copy of the weights:

    linear layers   through oneDNN, which is twice as fast as torch's own way to them, GELU in the same pass
    layer norm      in one pass over the numbers, not in six
    attention       no masks where no row has pads, and the softmax down the columns
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from minisbert import bert
from minisbert.bert import Bert, BertConfig
from minisbert.console import InputError
from minisbert.data import pad_batch
from minisbert.tokenizer import Tokenizer

LONG = 80  # tokens from which torch's attention in tiles is faster in float32: the scores no longer fit the cache
CHUNK = 2**20  # characters that are tokenized at once
ID_BYTES = array("i").itemsize  # of a token in the form in which many texts are kept
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


# ----------------------------------------------------------------------------------------- batches


def chunks(texts: Iterable[str], characters: int = CHUNK) -> Iterator[list[str]]:
    """The texts in order, in lists of about so many characters: what is held at once stays bounded."""
    chunk, size = [], 0
    for text in texts:
        chunk.append(text)
        size += len(text) + 1
        if size >= characters:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def budgeted_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Row numbers in batches, longest first, of at most ``batch_tokens`` tokens with padding.

    Rows of one length stand together, so that most batches need neither pads nor a mask. A batch takes rows of
    another length only where it would be less than an eighth full without them.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    longest = 0  # tokens of the longest row of the current batch: every row is padded to it
    for row in order:
        tokens = longest * len(batches[-1]) if batches else 0
        worth_its_while = tokens * 8 >= batch_tokens
        if not batches or tokens + longest > batch_tokens or (worth_its_while and lengths[row] < longest):
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return batches


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[bytes], int]:
    """Every text's ids as bytes, and how many texts had to be cut.

    Bytes are keys of a dict, which finds texts of the same tokens, and take a tenth of the room that lists take.
    """
    keys: list[bytes] = []
    truncated = 0
    for chunk in chunks(texts):
        encoded = tokenizer.encode(chunk)
        keys += [array("i", ids).tobytes() for ids in encoded.ids]
        truncated += encoded.truncated
    return keys, truncated


def batches(
    keys: Sequence[bytes], batch_tokens: int, pad_id: int, device: torch.device
) -> Iterator[tuple[list[bytes], Tensor, Tensor | None]]:
    """Batch after batch, longest first: its keys, ids (B, T), and mask (B, T) or None where nothing was padded."""
    for rows in budgeted_batches([len(key) // ID_BYTES for key in keys], batch_tokens):
        chosen = [keys[row] for row in rows]
        ids, mask = pad_batch([memoryview(key).cast("i") for key in chosen], pad_id)
        yield chosen, ids.to(device), None if mask is None else mask.to(device)


# ----------------------------------------------------------------------------- the fused operations


def linear(x: Tensor, weight: Tensor, bias: Tensor, with_gelu: bool = False) -> Tensor:
    """x W^T + b, and GELU of it where asked: x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    if ONEDNN and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
        # the operation that torch.compile chooses for the same layer; the weights stay as they lie
        post, algorithm = ("gelu", "none") if with_gelu else ("none", "")  # "none": the exact GELU, not tanh's
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, post, [], algorithm)
    x = nn.functional.linear(x, weight, bias)
    return gelu(x) if with_gelu else x


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """``bert.attention`` without its probabilities: query, key and value (B, H, T, K), mask (B, T) -> (B, H, T, K)."""
    long = query.shape[-2] > LONG and query.dtype != torch.bfloat16
    if long or query.device.type != "cpu":
        return scaled_dot_product_attention(query, key, value, None if mask is None else mask[:, None, None, :])
    scores = key @ query.mT  # (B, H, S, T), the transpose of the master's
    scores *= query.shape[-1] ** -0.5
    if mask is not None:
        scores.masked_fill_(~mask[:, None, :, None], float("-inf"))
    # subtle: down the columns, where a CPU takes many of them at a time; a row of 14 numbers it would take one by one
    return scores.softmax(dim=-2).mT @ value  # (B, H, T, K)


# ------------------------------------------------------------------------------ the encoder of them


class FastBert:
    """Hidden states as ``Bert`` gives them, without gradients and dropout, computed in ``dtype``.

    In the weights' own dtype nothing is copied, so what training changes is seen at once. In bfloat16 the layers'
    weights are rounded here, and only what they compute is in it: embeddings and result are as in the weights.
    """

    def __init__(self, model: Bert, dtype: torch.dtype):
        self.model = model
        self.dtype = dtype
        self.layers = [
            {name: parameter.detach().to(dtype) for name, parameter in layer.named_parameters()}
            for layer in model.layers
        ]

    def __call__(self, ids: Tensor, mask: Tensor | None = None, trace: dict[str, Tensor] | None = None) -> Tensor:
        """ids (B, T), mask (B, T) -> (B, T, D); ``trace`` gets every layer's output, as in ``Bert.forward``."""
        self.model._check(ids, mask, None)
        trace = {} if trace is None else trace
        states = self.model.embeddings(ids, None)  # (B, T, D)
        x = states.to(self.dtype)
        for i, weights in enumerate(self.layers):
            x = self.layer(x, mask, weights)
            trace[f"layers.{i}"] = x.to(states.dtype)
        return x.to(states.dtype)

    def layer(self, x: Tensor, mask: Tensor | None, weights: dict[str, Tensor]) -> Tensor:
        """One ``bert.Layer``: x (B, T, D), mask (B, T) -> (B, T, D)."""

        def project(name: str, x: Tensor, with_gelu: bool = False) -> Tensor:
            return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"], with_gelu)

        def norm(name: str, x: Tensor) -> Tensor:
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            return layer_norm(x, weight.shape, weight, bias, self.model.config.layer_norm_eps)

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.model.config.num_attention_heads, -1)).transpose(1, 2)  # (B, H, T, K)

        query, key, value = (heads(project(f"attention.{name}", x)) for name in ("query", "key", "value"))
        context = attention(query, key, value, mask).transpose(1, 2).flatten(-2)  # (B, T, D)
        x = norm("attention_norm", x + project("attention.output", context))
        up = project("feed_forward.up", x, with_gelu=True)  # (B, T, F)
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
    with torch.device("meta"):  # neither memory nor numbers of the caller's random generator
        model = Bert(config, pooler=False)
    generator = torch.Generator().manual_seed(0)
    random = {
        name: torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(random, assign=True)
    model.eval()
    fast = FastBert(model, torch.float64)
    with torch.no_grad():
        for tokens in (5, LONG + 1):
            ids = torch.randint(config.vocab_size, (3, tokens), generator=generator)  # (3, T)
            mask = torch.arange(tokens) < torch.tensor([[tokens], [2], [tokens - 2]])  # (3, T)
            for given, real in ((None, torch.ones_like(mask)), (mask, mask)):
                try:
                    expected = model(ids, given)
                except Exception:  # a piece rewritten for the real sizes alone
                    return False
                if not (fast(ids, given) - expected)[real].abs().max() <= 1e-10:  # also for NaN
                    return False
    return True
