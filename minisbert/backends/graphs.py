"""Turn a model into a graph, to be compiled or written as ONNX.

A graph is the model's own forward pass without Python around it; torch exports it with example
inputs. Some layers of a compiled graph are replaced first: int8 products, attention by the length
of the rows, layers for one library. ``package.py`` compiles it, in a process of its own that runs
``python -m minisbert.backends.graphs FOLDER DTYPE POOLING OUT [few]``, and loads the result. ONNX
is for programs without PyTorch, with the names and the layout of sentence-transformers. Imports the
rooms up to ``models``.
"""

import logging
import sys
import warnings
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.architectures.packing import packed_states
from minisbert.backends.package import (
    FEW,
    SIGNED,
    UNSIGNED,
    compile_package,
    package_dtype,
    package_identity,
)
from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError
from minisbert.core.bert import Attention
from minisbert.models.batching import SHORT, Tokens, packed_batches, same_text, unpack
from minisbert.models.pair_model import PairModel, outputs_of_task
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.transformer_encoder import evaluating
from minisbert.system.console import run_command
from minisbert.system.devices import (
    bfloat16_hardware,
    cpu_flags,
    mkl_multiplies,
    products_attend,
)
from minisbert.system.torch_internals import int8_products, unsigned_products

# Attention by two products holds the scores of all pairs of tokens. So many, 32 MiB in bfloat16,
# are those of 2,048 tokens in rows of 512 with 16 heads. A row of 8,192 tokens with 12 heads would
# have 1.6 GB.
MOST_SCORES = 2**24
# Up to so many scores, those of a row of 36 tokens with 12 heads, products in float32 are faster
# than in bfloat16: a call of oneDNN takes 20 us whatever its size, and MKL's 4 us. One text of 12
# tokens takes 1.19 times as long with bfloat16 (the graph of all-MiniLM-L6-v2 in int8; a Zen 4, two
# cores), one of 24 1.09 and of 60 tokens 1.0 times.
FEW_SCORES = 2**14
# The largest code of a weight. AVX2 adds two products in 16 bits before it adds in 32: 2 * 255 * 64
# < 2^15 < 2 * 255 * 65.
WIDE = 127
NARROW = 64
# The smallest scale: of a token whose activations are all the same, and of a weight's row of zeros.
SMALLEST = 1e-12
CLIPS = 16  # ranges of a weight's row to choose from: 70 to 100 % of its largest number
# Lengths of texts in the example batch: its sizes differ from each other, 0 and 1.
EXAMPLE = (3, 5, 4, 6, 7)
OPSET = 18
# Poolings that take the first token or number the tokens.
COUNT_FROM_THE_LEFT = ("cls", "pooler", "weightedmean")
# Texts by which ONNX Runtime's vectors are compared with ours.
SAMPLE_TEXTS = (
    "A cat sits.",
    "An older man with a grey hat plays the guitar in front of a house.",
    "",
)


def stored(x: Tensor) -> Tensor:
    """Return ``x`` behind a view with explicit strides: the compiler stores it.

    Otherwise it fuses a cheap computation into each of its users and repeats it there. A view with
    strides needs a real buffer.
    """
    strides = [1]
    # From the last size back to the second. numel() would make the example's sizes constants.
    for size in x.shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return x.contiguous().as_strided(x.shape, strides)


def replace_linear(bert: Encoder, kind: Callable[[nn.Linear], nn.Module]) -> None:
    """Replace all linear layers of an encoder's layers in place, and nothing else."""
    for module in list(bert.layers.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))


# -------------------------------------------------------------------------------- layers for int8


def quantize_weight(weight: Tensor, most: int = WIDE) -> tuple[Tensor, Tensor]:
    """Quantise a weight (C, D) to codes (C, D) int8 and a scale (C,): it is scale * codes.

    Codes are from -most to most. Of several ranges each row takes the one with the smallest squared
    error: larger numbers are clipped, the others get finer steps.
    ``quantize_weight([[1.27, -0.01]]) = [[127, -1]], [0.01]``.
    """
    # All candidates at once: a weight is quantised once, when the package is compiled.
    shares = torch.linspace(1.0, 0.7, CLIPS)[:, None, None]
    largest = weight.abs().amax(dim=1, keepdim=True)  # (C, 1)
    scale = (shares * largest / most).clamp_min(SMALLEST)  # (CLIPS, C, 1)
    codes = (weight / scale).round().clamp(-most, most)  # (CLIPS, C, D)
    error = (scale * codes - weight).pow(2).sum(dim=2)  # (CLIPS, C)
    best = error.argmin(dim=0)  # (C,)
    rows = torch.arange(len(weight))
    return codes[best, rows].to(torch.int8), scale[best, rows, 0]


def quantized_linear(
    x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None, unsigned: bool = False
) -> Tensor:
    """Compute ``x @ (scale * codes).T + bias`` by integers -> (N, C).

    x (N, D), codes (C, D), scale and bias (C,). Each token x is written as step * c + middle, with
    integers c from -128 to 127. Then

        x . w  =  step * (c . codes) * scale  +  middle * sum(codes) * scale

    For x = [-1, 0, 1.55], codes = [1, 2, 3] and scale 0.5: step 0.01, c = [-128, -28, 127], middle
    0.28, so 0.01 * 197 * 0.5 + 0.28 * 6 * 0.5 = 1.825, which is (-1 + 0 + 4.65) * 0.5.
    ``unsigned``: c from 0 to 255, so that middle is the smallest number of the token, and codes
    from -64 to 64.
    """
    low = x.amin(dim=-1, keepdim=True)  # (N, 1)
    high = x.amax(dim=-1, keepdim=True)
    step = ((high - low) / 255).clamp_min(SMALLEST)  # (N, 1)
    c = ((x - low) * (1 / step)).round()  # (N, D), 0 to 255
    if unsigned:
        middle = low
        sums = unsigned_products(c.to(torch.uint8), codes, scale)  # (N, C)
    else:
        middle = low + 128 * step  # (N, 1)
        sums = int8_products((c - 128).to(torch.int8), codes) * scale
    # subtle: ``sums * step`` would match a pattern of torch's compiler, whose product of signed
    # numbers is 2,000 times slower on a Zen 4 (docs/results.md)
    y = step * sums + middle * (codes.sum(dim=1) * scale)  # (N, C)
    if bias is not None:
        y = y + bias
    return y


class QuantizedLinear(nn.Module):
    """``quantized_linear`` with the weights of an ``nn.Linear``.

    The activations are the integers that this CPU multiplies fastest.
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.unsigned = UNSIGNED in cpu_flags() and SIGNED not in cpu_flags()
        most = NARROW if self.unsigned else WIDE
        codes, scale = quantize_weight(linear.weight.detach(), most)
        self.register_buffer("codes", codes)  # (C, D) int8
        self.register_buffer("scale", scale)  # (C,)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        x_2d = stored(x.flatten(0, -2))  # (N, D)
        y = quantized_linear(x_2d, self.codes, self.scale, self.bias, self.unsigned)  # (N, C)
        return y.unflatten(0, x.shape[:-1])  # (..., C)


def quantize_layers(bert: Encoder) -> None:
    """Replace the linear layers of an encoder's layers in place by ``QuantizedLinear``."""
    replace_linear(bert, QuantizedLinear)


# -------------------------------------------------------------------------- attention by kernels


def written_attention(qkv: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) v -> (R, T, H, K).

    The products are of ``dtype``, the softmax is in float32. qkv (R, T, 3, H, K) is query, key and
    value, ``bias`` (R, 1, 1 or T, T) 0, or minus infinity where the mask is False.
    """
    rows, tokens, _, heads, width = qkv.shape
    query, key, value = qkv.unbind(2)  # (R, T, H, K) each
    q = matrices(query, dtype)  # (R H, T, K)
    k = matrices(key, dtype)
    v = matrices(value, dtype)
    scores = torch.bmm(q, k.transpose(1, 2)).view(rows, heads, tokens, tokens)
    # The scale is not in the product, so that it is in one loop with the softmax.
    scores = scores.float() * width**-0.5 + bias.float()
    probabilities = scores.softmax(dim=-1).to(dtype).view(-1, tokens, tokens)  # (R H, T, T)
    return torch.bmm(probabilities, v).view(rows, heads, tokens, width).to(qkv.dtype)


def matrices(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Give each head of each row a matrix: (R, T, H, K) -> (R H, T, K)."""
    return x.transpose(1, 2).to(dtype).reshape(-1, x.shape[1], x.shape[3])


def float32_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    return written_attention(qkv, bias, torch.float32)


def bfloat16_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    return written_attention(qkv, bias, torch.bfloat16)


def fused_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """Compute the same by torch's operation, which never holds the scores of all pairs."""
    query, key, value = qkv.unbind(2)  # (R, T, H, K) each
    context = nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), bias.to(qkv.dtype)
    )
    return context.contiguous()


def attention_by_length(qkv: Tensor, bias: Tensor) -> Tensor:
    """Choose the faster kernel for the rows at hand, when the graph runs.

    ``bfloat16_attention`` makes a package of all-MiniLM-L6-v2 in bfloat16 so many times as fast, by
    rows x tokens, on two cores: on a Zen 4 .99 (1 x 40), 1.08 (4 x 60), 1.12 (34 x 60), 1.08 (20 x
    100), 1.04 (8 x 256), 1.09 (4 x 512); on a Zen 5, in CPU time, 1.15 (8 x 256; 1.23 by the
    clock), 1.23 (4 x 512). So AMD's CPUs take it while it holds at most ``MOST_SCORES``. On a Xeon
    with AMX it is slower from some 160 tokens on, so only rows up to ``SHORT`` take it there; these
    share no batch with longer ones. Up to ``FEW_SCORES`` both compute in float32.
    """
    attention_of_many = attention_by_tokens
    if products_attend():
        attention_of_many = attention_by_scores
    few = at_most(number_of_scores(qkv), FEW_SCORES)
    return torch.cond(few, float32_attention, attention_of_many, (qkv, bias))


def attention_by_scores(qkv: Tensor, bias: Tensor) -> Tensor:
    """Choose by the scores that ``bfloat16_attention`` holds: what is faster on AMD's CPUs."""
    fit = at_most(number_of_scores(qkv), MOST_SCORES)
    return torch.cond(fit, bfloat16_attention, fused_attention, (qkv, bias))


def attention_by_tokens(qkv: Tensor, bias: Tensor) -> Tensor:
    """Choose by the length of the rows: what is faster with AMX."""
    short = at_most(qkv.shape[1], SHORT)
    return torch.cond(short, bfloat16_attention, fused_attention, (qkv, bias))


def number_of_scores(qkv: Tensor) -> int:
    """Return R H T T for qkv (R, T, 3, H, K)."""
    rows, tokens, _, heads, _ = qkv.shape
    return rows * heads * tokens**2


def at_most(size: int, limit: int) -> Tensor:
    """Return whether a size is within a limit, as a tensor: otherwise the example decides."""
    return torch.scalar_tensor(size, dtype=torch.int64) <= limit


class RowAttention(nn.Module):
    """``bert.Attention`` by a kernel such as ``attention_by_length``."""

    def __init__(self, attention: Attention, kernel: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.kernel = kernel
        self.heads = attention.heads
        self.output = attention.output
        self.merge = attention.merge
        self.qkv = joined_projections(attention)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, None]:
        """x (R, T, D), mask (R, 1, 1 or T, T) boolean -> (R, T, D), and no probabilities."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (R, T, 3, H, K)
        bias = torch.zeros_like(mask, dtype=torch.bfloat16).masked_fill(~mask, float("-inf"))
        # Stored, because otherwise every head computes it again from the mask.
        return self.output(self.merge(self.kernel(qkv, stored(bias)))), None


def joined_projections(attention: Attention) -> nn.Linear:
    """Make one product of those of query, key and value: (..., D) -> (..., 3 D)."""
    linears = [attention.query, attention.key, attention.value]
    qkv = nn.Linear(linears[0].in_features, sum(linear.out_features for linear in linears))
    qkv.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]))
    qkv.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]))
    return qkv


def attend_by_length(
    bert: Encoder, kernel: Callable[[Tensor, Tensor], Tensor] = attention_by_length
) -> bool:
    """Replace the attention of an encoder's layers in place; False if they keep their own.

    Newer architectures do.
    """
    for layer in bert.layers:
        attention = getattr(layer, "attention", None)
        if type(attention) is not Attention:
            return False
        layer.attention = RowAttention(attention, kernel)
    return True


# ------------------------------------------------------------- layers for a library or for bfloat16


class TransposedLinear(nn.Module):
    """``nn.Linear`` for MKL: the weight lies as it multiplies few rows fastest.

    The bias is added by the loop that follows.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().mT.contiguous())  # (D, C)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight  # (..., D) -> (..., C)
        if self.bias is not None:
            y = y + self.bias
        return y


class BFloat16Linear(nn.Module):
    """``nn.Linear`` in bfloat16."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.linear = linear.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.bfloat16())


# ----------------------------------------------------------------------------- graphs to compile


def in_bfloat16(autocast: bool) -> AbstractContextManager:
    """Return torch's autocast, or no context: a graph would contain a disabled one, too."""
    if autocast:
        return torch.autocast("cpu", torch.bfloat16)
    return nullcontext()


class VectorGraph(nn.Module):
    """An encoder's graph: a packed batch to vectors (N, W).

    Pooling, dense layers and scaling are in it, too: one call from Python does all. With
    ``autocast`` the transformer computes in bfloat16.
    """

    def __init__(self, encoder: SentenceEncoder, autocast: bool = False):
        super().__init__()
        self.encoder = encoder
        self.autocast = autocast

    def forward(self, ids: Tensor, positions: Tensor, text_index: Tensor, places: Tensor) -> Tensor:
        """The tensors of a ``PackedBatch``: (R, T) three times and (N, S)."""
        mask = same_text(text_index)  # (R, 1, T, T)
        with in_bfloat16(self.autocast):
            rows = packed_states(self.encoder.bert, ids, mask, positions)  # (R, T, D)
        hidden, real = unpack(rows.to(self.encoder.dtype), places)  # (N, S, D), (N, S)
        return self.encoder.vectors(stored(hidden), real)


class ScoreGraph(nn.Module):
    """A cross-encoder's graph: joined pairs to its outputs, (B,) or (B, C)."""

    def __init__(self, model: PairModel, autocast: bool = False):
        super().__init__()
        self.model = model
        self.autocast = autocast

    def forward(self, ids: Tensor, mask: Tensor, token_types: Tensor) -> Tensor:
        """ids, mask (1 for real tokens) and token types, (B, T) each."""
        types = token_types if self.model.types else None  # RoBERTa has only one type
        with in_bfloat16(self.autocast):
            hidden = self.model.encoder.bert(ids, mask, types)  # (B, T, D)
        outputs = self.model.head(hidden.float())  # (B, C)
        return outputs_of_task(outputs, self.model.task)


def pads_to_the_right(hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate each text, so that its real tokens come first: hidden (B, T, D), mask (B, T)."""
    tokens = mask.shape[1]
    first = mask.int().argmax(dim=1, keepdim=True)  # (B, 1), each text's first real token
    places = torch.arange(tokens) + first  # (B, T)
    # The remainder of a division by ``tokens``; that operation has no export.
    places = torch.where(places < tokens, places, places - tokens)
    rotated = hidden.gather(1, places.unsqueeze(-1).expand_as(hidden))
    return rotated, mask.gather(1, places)


class OnnxGraph(nn.Module):
    """Padded token ids to hidden states and vectors."""

    def __init__(self, encoder: SentenceEncoder):
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Ids, mask (1 for real tokens) and token types, (B, T) int64 -> (B, T, D) and (B, W)."""
        mask = attention_mask != 0  # (B, T)
        hidden = self.encoder.bert(input_ids, mask, token_type_ids)  # (B, T, D)
        states = hidden
        # Another program's tokenizer may have put the pads to the left.
        if any(name in COUNT_FROM_THE_LEFT for name in self.encoder.pooling.names):
            states, mask = pads_to_the_right(hidden, mask)
        vectors = self.encoder.vectors(states, mask)  # (B, W)
        return hidden, vectors[:, : self.encoder.settings.truncate_dim]


@dataclass
class Preparation:
    """How a graph whose layers have been prepared is computed."""

    prepack: bool = True  # oneDNN multiplies; otherwise MKL does
    autocast: bool = False  # the transformer computes in bfloat16 by torch's autocast


def prepare_layers(bert: Encoder, dtype: str, for_few_tokens: bool = False) -> Preparation:
    """Replace in place the layers that a package of this dtype computes in another way.

    A graph for few tokens multiplies by oneDNN even where MKL is faster with many: oneDNN's weights
    are laid out when the graph is compiled, and MKL packs them at each product.
    """
    bfloat16, _ = bfloat16_hardware(torch.device("cpu"))
    if dtype == "int8":
        # Attention computes in bfloat16 if the CPU has it: the scores are rounded anyway.
        kernel = attention_by_length
        if not bfloat16:
            # Torch's operation would need no replaced layer, but one product for query, key and
            # value saves 8 % of the time of a single text.
            kernel = fused_attention
        attend_by_length(bert, kernel)
        quantize_layers(bert)
        return Preparation()
    if dtype == "bfloat16":
        if bfloat16 and attend_by_length(bert):
            # Not by autocast, under which torch cannot export a choice within a choice.
            replace_linear(bert, BFloat16Linear)
            return Preparation()
        return Preparation(autocast=True)
    if mkl_multiplies() and not for_few_tokens:
        replace_linear(bert, TransposedLinear)
        return Preparation(prepack=False)
    return Preparation()


def compile_model(
    folder: Path, dtype: str, pooling: str | None, path: Path, for_few_tokens: bool = False
) -> None:
    """Compile the encoder or the cross-encoder in a folder to the package ``path``."""
    package_dtype(dtype)  # raises for what the CPU has no hardware for
    description = read_folder(folder)
    identity = package_identity(description, dtype, pooling)
    about: dict[str, Any] = {"model": folder.name} | identity
    graph: nn.Module
    if description.holds_pair_model:
        model = PairModel.load(folder, device="cpu")
        if not model.joint:
            raise InputError(
                "only cross-encoders (joint heads) compile; for another head compile its encoder"
            )
        about |= {"task": model.task, "labels": model.labels, "types": model.types}
        preparation = prepare_layers(model.encoder.bert, dtype, for_few_tokens)
        graph = ScoreGraph(model, preparation.autocast)
        examples = example_pairs()
    else:
        encoder = SentenceEncoder.load(folder, pooling=pooling, device="cpu")
        about |= {"width": encoder.width, "hidden_size": encoder.hidden_size}
        preparation = prepare_layers(encoder.bert, dtype, for_few_tokens)
        graph = VectorGraph(encoder, preparation.autocast)
        examples = example_texts()
    with evaluating(graph):
        compile_package(graph, examples, path, about, preparation.prepack)


def example_pairs() -> list[Tensor]:
    """Make inputs of a ``ScoreGraph``: ids, mask and token types, (3, 5) each.

    The compiler keeps sizes of 0 and 1, and equal ones, as constants, so these differ.
    """
    ids = torch.ones(3, 5, dtype=torch.long)
    return [ids, ids.clone(), torch.zeros_like(ids)]


def example_texts() -> list[Tensor]:
    """Make inputs of a ``VectorGraph``: two rows, and texts of five other lengths.

    The sizes differ, as those of ``example_pairs``.
    """
    texts = Tokens([array("i", [0] * length) for length in EXAMPLE])
    batch = next(packed_batches(texts, sum(EXAMPLE)))
    return [
        batch.ids.repeat(2, 1),  # (2, T)
        batch.positions.repeat(2, 1),
        batch.text_index.repeat(2, 1),
        batch.places,
    ]


# ------------------------------------------------------------------------------------------- ONNX


def export_onnx(encoder: SentenceEncoder, path: Path) -> None:
    """Write the graph of an encoder to ``path``, for batches and lengths of any size.

    Raises ``InputError`` for a model that the graph cannot express.
    """
    if not encoder.settings.include_prompt:
        raise InputError(
            "include_prompt false cannot be exported: the graph does not know where a prompt ends"
        )
    # Sizes of 0 and 1 would be exported as constants.
    ids = torch.ones(2, 5, dtype=torch.int64)
    sizes = {
        0: torch.export.Dim("batch"),
        1: torch.export.Dim("tokens", max=encoder.tokenizer.limit),
    }
    graph = OnnxGraph(encoder)
    # It warns about every package that it does not find.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with evaluating(graph), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            (ids, ids.clone(), torch.zeros_like(ids)),
            path,
            input_names=("input_ids", "attention_mask", "token_type_ids"),
            output_names=("last_hidden_state", "sentence_embedding"),
            dynamic_shapes=(sizes, sizes, sizes),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )


def onnx_vectors(
    encoder: SentenceEncoder, path: Path, texts: tuple[str, ...] = SAMPLE_TEXTS
) -> np.ndarray:
    """Compute vectors (N, W) by ONNX Runtime with a file, from texts that our tokenizer encodes."""
    from onnxruntime import InferenceSession

    try:
        session = InferenceSession(path, providers=["CPUExecutionProvider"])
    # The runtime's own exception classes are private. Most often it lacks the opset.
    except Exception as error:
        raise InputError(f"{path}: ONNX Runtime cannot load it: {error}") from None
    features = encoder.tokenize(list(texts))
    features.setdefault("token_type_ids", torch.zeros_like(features["input_ids"]))
    feed = {}
    for graph_input in session.get_inputs():  # a graph of RoBERTa has no token types
        feed[graph_input.name] = features[graph_input.name].numpy()
    return session.run(["sentence_embedding"], feed)[0]


def main() -> None:
    """Compile what ``compile_graph`` names: a folder, a dtype, a pooling or "", and the package."""
    folder, dtype, pooling, path, *more = sys.argv[1:]
    compile_model(Path(folder), dtype, pooling or None, Path(path), for_few_tokens=more == [FEW])


if __name__ == "__main__":
    run_command(main)
