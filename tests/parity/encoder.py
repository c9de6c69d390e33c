"""The encoder: BERT's formulas and modules beside torch's, and whole models beside golden files."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

import minisbert
from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.core import bert
from minisbert.core.bert import BertConfig
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.pooling import Pooling
from minisbert.core.weights import tensor_names
from tests.parity import GRADIENT, PIECE, REFERENCE, ROOT, Comparison, compare, golden
from tests.parity.comparison import double, normal, randomised, with_gradients, with_parameters

# width 12, heads 3, feed-forward 20
CONFIG = BertConfig(17, 12, 1, 3, 20, 9, type_vocab_size=2, layer_norm_eps=1e-3)
# one text with pads in front and between, one of 2 tokens and 4 pads
MASK = torch.tensor(
    [
        [False, True, True, False, True, True],
        [True, True, False, False, False, False],
    ]
)

# ----------------------------------------------------------------------------------------- formulas


def gelu() -> Iterator[Comparison]:
    yield from with_gradients("gelu", bert.gelu, functional.gelu, normal(3, 7, scale=3.0))


def layer_norm() -> Iterator[Comparison]:
    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return bert.layer_norm(x, weight, bias, 1e-3)

    def theirs(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (8,), weight, bias, 1e-3)

    inputs = normal(3, 5, 8), normal(8, seed=1), normal(8, seed=2)
    yield from with_gradients("layer_norm", ours, theirs, *inputs)


def query_key_value() -> tuple[Tensor, Tensor, Tensor]:
    """Batch 2, heads 3, queries 4, keys 6, width 16, whose root is exact in float32 too."""
    return normal(2, 3, 4, 16), normal(2, 3, 6, 16, seed=1), normal(2, 3, 6, 16, seed=2)


def attention() -> Iterator[Comparison]:
    """The first result of ``attention``, without and with a mask."""
    for name, mask in (("attention", None), ("attention, masked", MASK[:, None, None, :])):

        def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = mask) -> Tensor:
            return bert.attention(q, k, v, mask)[0]

        def theirs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = mask) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, mask)

        yield from with_gradients(name, ours, theirs, *query_key_value())


def attention_probabilities() -> Iterator[Comparison]:
    """The second result of ``attention``, from scores computed by loops."""
    query, key, value = query_key_value()
    expected = torch.zeros(2, 3, 4, 6, dtype=torch.float64)
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        real = MASK[b].nonzero().squeeze(1)
        scores = torch.stack([query[b, h, t].dot(key[b, h, s]) / 4 for s in real])
        shares = scores.detach().exp()
        expected[b, h, t, real] = shares / shares.sum()
    _, probabilities = bert.attention(query, key, value, MASK[:, None, None, :])
    yield compare("attention probabilities", probabilities, expected, PIECE)


def low_scores() -> Iterator[Comparison]:
    """Two real keys with scores of -2e15 beside a pad: any finite score for the pad would win."""
    query = torch.full((1, 1, 1, 4), -1e15).double()
    key = torch.ones(1, 1, 3, 4).double()
    value = normal(1, 1, 3, 4).detach()
    mask = torch.tensor([True, False, True])[None, None, None]
    context, probabilities = bert.attention(query, key, value, mask)

    name = "attention, scores of -2e15 beside a pad"
    expected = (value[..., 0, :] + value[..., 2, :])[:, :, None] / 2
    yield compare(name, context, expected, PIECE)
    shares = double([[[[0.5, 0.0, 0.5]]]])
    yield compare(f"{name}, probabilities", probabilities, shares, PIECE)


# -------------------------------------------------------------- torch's functions on our parameters


def torch_attention(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """torch's multi-head attention: (B, T, D), and probabilities (B, H, T, S)."""
    linears = module.query, module.key, module.value
    value, probabilities = functional.multi_head_attention_forward(
        query=query.transpose(0, 1),  # (T, B, D)
        key=key.transpose(0, 1),
        value=key.transpose(0, 1),
        embed_dim_to_check=query.shape[-1],
        num_heads=module.heads,
        in_proj_weight=torch.cat([linear.weight for linear in linears]),
        in_proj_bias=torch.cat([linear.bias for linear in linears]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=0.0,
        out_proj_weight=module.output.weight,
        out_proj_bias=module.output.bias,
        training=False,
        key_padding_mask=None if mask is None else ~mask,
        average_attn_weights=False,
    )
    return value.transpose(0, 1), probabilities


def torch_layer_norm(norm: bert.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def torch_feed_forward(block: bert.FeedForward, x: Tensor) -> Tensor:
    inner = functional.gelu(functional.linear(x, block.up.weight, block.up.bias))
    return functional.linear(inner, block.down.weight, block.down.bias)


def torch_layer(layer: bert.Layer, x: Tensor, mask: Tensor | None) -> Tensor:
    """One encoder layer with torch's functions."""
    attended, _ = torch_attention(layer.attention, x, x, mask)
    x = torch_layer_norm(layer.attention_norm, x + attended)
    return torch_layer_norm(layer.feed_forward_norm, x + torch_feed_forward(layer.feed_forward, x))


# ------------------------------------------------------------------------------------------ modules


def embeddings() -> Iterator[Comparison]:
    """With both token types, and without token types."""
    module = randomised(bert.Embeddings(CONFIG))
    ids = torch.randint(17, (2, 6), generator=torch.Generator().manual_seed(0))
    types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]])

    def reference(types: Tensor) -> Tensor:
        rows = module.word.weight[ids]  # (2, 6, 12)
        rows = rows + module.position.weight[:6]
        rows = rows + module.token_type.weight[types]
        return torch_layer_norm(module.norm, rows)

    yield from with_parameters(
        "embeddings", module, lambda: module(ids, types), lambda: reference(types)
    )
    name = "embeddings, no token types"
    zeros = torch.zeros_like(ids)
    yield from with_parameters(name, module, lambda: module(ids, None), lambda: reference(zeros))


def heads_apart_and_together() -> Iterator[Comparison]:
    """``split`` and ``merge``: head h gets columns h * K to (h + 1) * K."""
    module = bert.Attention(12, 3, dropout=0.1)

    def split(x: Tensor) -> Tensor:
        return torch.stack(x.chunk(3, -1), 1)

    def merge(x: Tensor) -> Tensor:
        return torch.cat(x.unbind(1), -1)

    yield from with_gradients("split", module.split, split, normal(2, 6, 12))
    yield from with_gradients("merge", module.merge, merge, normal(2, 3, 6, 4))


def masked_and_not(
    name: str, module: nn.Module, reference: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
) -> Iterator[Comparison]:
    """The first result of a module that takes x and a mask, without and with one."""
    for title, mask in ((name, None), (f"{name}, masked", MASK)):

        def ours(x: Tensor, mask: Tensor | None = mask) -> Tensor:
            if mask is not None:
                mask = mask[:, None, None, :]
            return module(x, mask)[0]

        def theirs(x: Tensor, mask: Tensor | None = mask) -> Tensor:
            return reference(module, x, mask)

        yield from with_parameters(title, module, ours, theirs, normal(2, 6, 12))


def attention_module() -> Iterator[Comparison]:
    """Multi-head attention and its probabilities, without and with a mask."""
    module = randomised(bert.Attention(12, 3, dropout=0.1))

    def reference(module: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        return torch_attention(module, x, x, mask)[0]

    yield from masked_and_not("attention module", module, reference)

    x = normal(2, 6, 12)
    _, expected = torch_attention(module, x, x, None)
    _, probabilities = module(x, None)
    yield compare("attention module, probabilities", probabilities, expected, PIECE)
    _, expected = torch_attention(module, x, x, MASK)
    _, probabilities = module(x, MASK[:, None, None, :])
    yield compare("attention module, masked, probabilities", probabilities, expected, PIECE)


def feed_forward() -> Iterator[Comparison]:
    module = randomised(bert.FeedForward(CONFIG))

    def reference(x: Tensor) -> Tensor:
        return torch_feed_forward(module, x)

    yield from with_parameters("feed-forward", module, module, reference, normal(2, 6, 12))


def layer() -> Iterator[Comparison]:
    """One encoder layer, without and with a mask."""
    yield from masked_and_not("layer", randomised(bert.Layer(CONFIG)), torch_layer)


def masks_and_ids() -> Iterator[Comparison]:
    """A real token may have the pad's id 0, a pad any other; pads may be in front or between."""
    model = randomised(bert.Bert(replace(CONFIG, num_hidden_layers=2), pooler=False))
    ids = torch.tensor([[5, 0, 3, 8, 1, 0], [2, 0, 4, 0, 6, 0]])
    for name, mask in (("no mask", None), ("pads in front", MASK)):
        expected = model.embeddings(ids, None)
        for block in model.layers:
            expected = torch_layer(block, expected, mask)
        yield compare(f"real tokens of id 0, {name}", model(ids, mask), expected, PIECE)


# ------------------------------------------------------------------------------------- whole models

NAMES = tensor_names(2, pooler=True)  # of the tiny checkpoint's parameters: ours -> Hugging Face's


def tiny() -> SentenceEncoder:
    """The tiny checkpoint, float64, in eval mode."""
    return SentenceEncoder.load(ROOT / "weights" / "tiny").double()


def pooling() -> Iterator[Comparison]:
    """Every pooling of the reference's hidden states, pads included."""
    reference = golden("bert")
    for mode in ("mean", "cls", "max"):
        value = Pooling(mode)(reference["layers.1"], reference["mask"])
        yield compare(f"{mode} pooling", value, reference[f"pooled.{mode}"], PIECE)


def bert_forward() -> Iterator[Comparison]:
    """Embeddings, every layer's probabilities and output, and the pooler, with both token types."""
    model = tiny().bert
    reference = golden("bert")
    trace: dict[str, Tensor] = {}
    hidden = model(reference["ids"], reference["mask"], reference["token_types"], trace)
    trace["pooler"] = model.pool(hidden)
    for name, value in real_entries(trace):
        yield compare(f"bert {name}", value, reference[name], PIECE)


def bert_gradients() -> Iterator[Comparison]:
    """The gradient of every parameter and of the embeddings' output."""
    model = tiny().bert
    reference = golden("bert")
    trace: dict[str, Tensor] = {}
    hidden = model(reference["ids"], reference["mask"], reference["token_types"], trace)
    trace["embeddings"].retain_grad()
    pulled = (hidden * reference["pull.hidden"]).sum()
    pulled = pulled + (model.pool(hidden) * reference["pull.pooler"]).sum()
    pulled.backward()

    gradient = trace["embeddings"].grad
    yield compare("gradient of embeddings", gradient, reference["grad.embeddings"], GRADIENT)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        yield compare(f"gradient of {name}", gradient, reference[f"grad.{NAMES[name]}"], GRADIENT)


def real_entries(trace: dict[str, Tensor | None]) -> list[tuple[str, Tensor]]:
    """The entries of a trace, but for attention's probabilities if fused operations keep none."""
    return [(name, value) for name, value in trace.items() if value is not None or not bert.FUSED]


def other_family(folder: str) -> Iterator[Comparison]:
    """A whole model of another family: every layer, the sentence vectors, every gradient."""
    encoder = minisbert.SentenceEncoder.load(REFERENCE / folder).double()
    reference = golden(folder)
    ids = reference["ids"]
    mask = reference["mask"]
    trace: dict[str, Tensor] = {}
    encoder.bert(ids, mask, trace=trace)
    for name, value in real_entries(trace):
        expected = reference[name]
        if name.endswith("attention"):  # (B, H, T, T) -> one row of probabilities for each token
            value = value.transpose(1, 2)
            expected = expected.transpose(1, 2)
        yield compare(f"{folder} {name}", value[mask], expected[mask], PIECE)

    vectors = encoder(ids, mask)
    yield compare(f"{folder} vectors", vectors, reference["vectors"], PIECE)

    (vectors * reference["pull"]).sum().backward()
    config = encoder.bert.config
    family = ENCODER_FAMILIES[config.model_type]
    names = family.names(config.num_hidden_layers, encoder.bert.pooler is not None)
    for name, parameter in encoder.bert.named_parameters():
        if parameter.grad is not None:
            title = f"{folder} gradient of {name}"
            yield compare(title, parameter.grad, reference[f"grad.{names[name]}"], GRADIENT)


def distilbert() -> Iterator[Comparison]:
    """DistilBERT with two poolings, a dense layer and normalising, as in distiluse."""
    yield from other_family("tiny-distiluse")


def roberta() -> Iterator[Comparison]:
    """RoBERTa with max pooling."""
    yield from other_family("tiny-roberta")
