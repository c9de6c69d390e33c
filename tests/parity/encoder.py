"""The encoder: BERT's formulas and modules beside torch's own, and whole models beside golden files."""

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
from minisbert.core.weights import BERT
from tests.parity import GRADIENT, PIECE, REFERENCE, ROOT, Comparison, compare, golden
from tests.parity.comparison import normal, randomised, whole, with_gradients

# width 12, heads 3, feed-forward 20; one text with pads in front and between, one of 2 tokens and 4
# pads
CONFIG = BertConfig(17, 12, 1, 3, 20, 9, type_vocab_size=2, layer_norm_eps=1e-3)

MASK = torch.tensor([[False, True, True, False, True, True], [True] * 2 + [False] * 4])


# ---------------------------------------------------------------------------------------- formulas


def gelu() -> Iterator[Comparison]:
    yield from with_gradients("gelu", bert.gelu, functional.gelu, normal(3, 7, scale=3.0))


def layer_norm() -> Iterator[Comparison]:
    ours, theirs = (
        lambda *x: bert.layer_norm(*x, 1e-3),
        lambda x, *affine: functional.layer_norm(x, (8,), *affine, 1e-3),
    )
    yield from with_gradients(
        "layer_norm", ours, theirs, normal(3, 5, 8), normal(8, seed=1), normal(8, seed=2)
    )


def attention() -> Iterator[Comparison]:
    # batch 2, heads 3, queries 4, keys 6, width 16 (its root is exact in float32 too); pads in
    # front and between
    inputs = normal(2, 3, 4, 16), normal(2, 3, 6, 16, seed=1), normal(2, 3, 6, 16, seed=2)
    mask = torch.tensor([[False, True, True, False, True, True], [True] * 2 + [False] * 4])[
        :, None, None, :
    ]
    for name, hidden in (("attention", None), ("attention, masked", mask)):
        ours = lambda *qkv, hidden=hidden: bert.attention(*qkv, hidden)[0]  # noqa: E731
        theirs = lambda *qkv, hidden=hidden: functional.scaled_dot_product_attention(*qkv, hidden)  # noqa: E731
        yield from with_gradients(name, ours, theirs, *inputs)


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


# ------------------------------------------------------------ torch's modules, with our parameters


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


def torch_layer_norm(norm: bert.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def torch_feed_forward(block: bert.FeedForward, x: Tensor) -> Tensor:
    inner = functional.gelu(functional.linear(x, block.up.weight, block.up.bias))
    return functional.linear(inner, block.down.weight, block.down.bias)


def torch_layer(layer: bert.Layer, x: Tensor, mask: Tensor | None) -> Tensor:
    """One encoder layer with torch's functions."""
    x = torch_layer_norm(layer.attention_norm, x + torch_attention(layer.attention, x, x, mask)[0])
    return torch_layer_norm(layer.feed_forward_norm, x + torch_feed_forward(layer.feed_forward, x))


def masked_and_not(
    name: str, module: nn.Module, reference: Callable[[nn.Module, Tensor, Tensor | None], Tensor]
) -> Iterator[Comparison]:
    """The first result of a module that takes x and a mask, without and with one."""
    for title, mask in ((name, None), (f"{name}, masked", MASK)):
        hidden = None if mask is None else mask[:, None, None, :]
        ours = lambda x, hidden=hidden: module(x, hidden)[0]  # noqa: E731
        theirs = lambda x, mask=mask: reference(module, x, mask)  # noqa: E731
        yield from whole(title, module, ours, theirs, normal(2, 6, 12))


# ----------------------------------------------------------------------------------------- modules


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


def heads_apart_and_together() -> Iterator[Comparison]:
    """``split`` and ``merge``: head h gets columns h * K to (h + 1) * K."""
    module = bert.Attention(12, 3, dropout=0.1)
    yield from with_gradients(
        "split", module.split, lambda x: torch.stack(x.chunk(3, -1), 1), normal(2, 6, 12)
    )
    yield from with_gradients(
        "merge", module.merge, lambda x: torch.cat(x.unbind(1), -1), normal(2, 3, 6, 4)
    )


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


def feed_forward() -> Iterator[Comparison]:
    module = randomised(bert.FeedForward(CONFIG))
    yield from whole(
        "feed-forward", module, module, lambda x: torch_feed_forward(module, x), normal(2, 6, 12)
    )


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


# ------------------------------------------------------------------------------------ whole models

NAMES = BERT.names(2, pooler=True)  # of the tiny checkpoint's parameters: ours -> Hugging Face's


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
    """Embeddings, every layer's probabilities and output, pooler, on a ragged batch with both token
    types.
    """
    model, reference = tiny().bert, golden("bert")
    trace: dict[str, Tensor] = {}
    hidden = model(reference["ids"], reference["mask"], reference["token_types"], trace)
    trace["pooler"] = model.pool(hidden)
    for name, value in real_entries(trace):
        yield compare(f"bert {name}", value, reference[name], PIECE)


def bert_gradients() -> Iterator[Comparison]:
    """The gradient of every parameter and of the embeddings' output."""
    encoder, reference = tiny(), golden("bert")
    trace: dict[str, Tensor] = {}
    hidden = encoder.bert(reference["ids"], reference["mask"], reference["token_types"], trace)
    trace["embeddings"].retain_grad()
    pooled = encoder.bert.pool(hidden)
    (
        (hidden * reference["pull.hidden"]).sum() + (pooled * reference["pull.pooler"]).sum()
    ).backward()
    yield compare(
        "gradient of embeddings", trace["embeddings"].grad, reference["grad.embeddings"], GRADIENT
    )
    for name, parameter in encoder.bert.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        yield compare(f"gradient of {name}", gradient, reference[f"grad.{NAMES[name]}"], GRADIENT)


def real_entries(trace: dict[str, Tensor | None]) -> list[tuple[str, Tensor]]:
    """The trace without attention's probabilities where they are None, as fused operations keep
    none.
    """
    return [(name, value) for name, value in trace.items() if value is not None or not bert.FUSED]


def other_family(folder: str) -> Iterator[Comparison]:
    """A whole sentence model of another family: every layer, the sentence vectors, every
    gradient.
    """
    encoder, reference = minisbert.SentenceEncoder.load(REFERENCE / folder).double(), golden(folder)
    mask, trace = reference["mask"], {}
    encoder.bert(reference["ids"], mask, trace=trace)
    for name, value in real_entries(trace):
        sides = value, reference[name]
        if name.endswith("attention"):  # (B, H, T, T): one row of probabilities for each token
            sides = (side.transpose(1, 2) for side in sides)
        yield compare(f"{folder} {name}", *(side[mask] for side in sides), PIECE)
    vectors = encoder(reference["ids"], mask)
    yield compare(f"{folder} vectors", vectors, reference["vectors"], PIECE)
    (vectors * reference["pull"]).sum().backward()
    config = encoder.bert.config
    names = ENCODER_FAMILIES[config.model_type].names(
        config.num_hidden_layers, encoder.bert.pooler is not None
    )
    for name, parameter in encoder.bert.named_parameters():
        if parameter.grad is not None:
            yield compare(
                f"{folder} gradient of {name}",
                parameter.grad,
                reference[f"grad.{names[name]}"],
                GRADIENT,
            )


def distilbert() -> Iterator[Comparison]:
    """DistilBERT with two poolings, a dense layer and normalising, as in distiluse."""
    yield from other_family("tiny-distiluse")


def roberta() -> Iterator[Comparison]:
    """RoBERTa with max pooling."""
    yield from other_family("tiny-roberta")
