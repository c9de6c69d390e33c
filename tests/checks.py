"""The parity checks: one piece of minisbert against its reference, forward and backward.

A check is a generator of ``Comparison``. ``test_parity.py`` runs each check and requires every
number to agree; ``test_mistakes.py`` runs them with one mistake planted and requires some number to
differ. They compute with the book, ``minisbert.core``; only models that it does not open go through
``minisbert.models``.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

import minisbert
from minisbert.architectures.relatives import ENCODER_FAMILIES
from minisbert.core import bert, loop, losses, metrics
from minisbert.core.encoder import SentenceEncoder
from minisbert.core.pooling import Pooling
from minisbert.core.weights import tensor_names
from tests.parity import GRADIENT, PIECE, REFERENCE, ROOT, TRACE, Comparison, compare, golden

Check = Callable[[], Iterator[Comparison]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random float64 numbers that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()


def compare_gradients(
    name: str,
    value: Tensor,
    expected: Tensor,
    inputs: dict[str, Tensor],
    gradients: Sequence[Tensor],
    pull: Tensor | None = None,
) -> Iterator[Comparison]:
    """A value with the expected one, then the gradient of each named input with the expected one of
    ``gradients``.
    """
    yield compare(name, value, expected, PIECE)
    found = torch.autograd.grad(value, list(inputs.values()), pull, allow_unused=True)
    for key, gradient, reference in zip(inputs, found, gradients, strict=True):
        # a piece that ignores an input has no gradient there, which is wrong: the right one is not
        # 0
        gradient = torch.zeros_like(reference) if gradient is None else gradient
        yield compare(f"{name}, gradient of {key}", gradient, reference, GRADIENT)


def with_gradients(
    name: str, piece: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor
) -> Iterator[Comparison]:
    """The values of two functions, then the gradient of every input for one random output
    gradient.
    """
    value, expected = piece(*inputs), reference(*inputs)
    pull = normal(*expected.shape, seed=99).detach()
    named = {f"input {i}": x for i, x in enumerate(inputs)}
    yield from compare_gradients(
        name, value, expected, named, torch.autograd.grad(expected, inputs, pull), pull
    )


@check
def gelu() -> Iterator[Comparison]:
    yield from with_gradients("gelu", bert.gelu, functional.gelu, normal(3, 7, scale=3.0))


@check
def layer_norm() -> Iterator[Comparison]:
    ours, theirs = (
        lambda *x: bert.layer_norm(*x, 1e-3),
        lambda x, *affine: functional.layer_norm(x, (8,), *affine, 1e-3),
    )
    yield from with_gradients(
        "layer_norm", ours, theirs, normal(3, 5, 8), normal(8, seed=1), normal(8, seed=2)
    )


@check
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


def tiny() -> SentenceEncoder:
    """The tiny checkpoint, float64, in eval mode."""
    return SentenceEncoder.load(ROOT / "weights" / "tiny").double()


NAMES = tensor_names(2, pooler=True)  # of the tiny checkpoint's parameters: ours -> Hugging Face's


@check
def pooling() -> Iterator[Comparison]:
    """Every pooling of the reference's hidden states, pads included."""
    reference = golden("bert")
    for mode in ("mean", "cls", "max"):
        value = Pooling(mode)(reference["layers.1"], reference["mask"])
        yield compare(f"{mode} pooling", value, reference[f"pooled.{mode}"], PIECE)


@check
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


@check
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


@check
def distilbert() -> Iterator[Comparison]:
    """DistilBERT with two poolings, a dense layer and normalising, as in distiluse."""
    yield from other_family("tiny-distiluse")


@check
def roberta() -> Iterator[Comparison]:
    """RoBERTa with max pooling."""
    yield from other_family("tiny-roberta")


@check
def newer_encoders() -> Iterator[Comparison]:
    """Hidden states of Qwen3, EmbeddingGemma and ModernBERT."""
    for name in ("qwen3", "gemma", "modernbert"):
        expected, folder = (
            golden(f"architectures/tiny-{name}"),
            REFERENCE / "architectures" / f"tiny-{name}",
        )
        encoder, mask = minisbert.SentenceEncoder.load(folder), expected["mask"]
        with torch.no_grad():
            states = encoder.double().bert.hidden_states(expected["ids"], mask)
        for layer in (
            int(key.removeprefix("layers.")) for key in expected if key.startswith("layers.")
        ):
            yield compare(
                f"{name} layer {layer}",
                states[layer + 1][mask],
                expected[f"layers.{layer}"][mask],
                PIECE,
            )


@check
def cosine_mse_loss() -> Iterator[Comparison]:
    u, v, target = (
        normal(5, 7),
        normal(5, 7, seed=1),
        torch.linspace(-0.5, 1, 5, dtype=torch.float64),
    )
    ours = lambda u, v: losses.cosine_mse_loss(u, v, target)  # noqa: E731
    theirs = lambda u, v: functional.mse_loss(functional.cosine_similarity(u, v), target)  # noqa: E731
    yield from with_gradients("cosine_mse_loss", ours, theirs, u, v)


@check
def correlations() -> Iterator[Comparison]:
    """Pearson and Spearman with many ties, few ties and none."""
    reference = golden("metrics")
    for name in ("ties", "few_ties", "no_ties"):
        x, y = (reference[f"{name}.{side}"].numpy() for side in ("x", "y"))
        for kind, metric in (("pearson", metrics.pearson), ("spearman", metrics.spearman)):
            value = torch.tensor([metric(x, y)], dtype=torch.float64)
            yield compare(f"{kind}, {name}", value, reference[f"{name}.{kind}"], PIECE)


@check
def training_trace() -> Iterator[Comparison]:
    """Ten steps of ``fit``: the loss and learning rate of each step, and every parameter after the
    last.
    """
    encoder, reference = tiny(), golden("trace")
    parameters = [
        parameter for name, parameter in encoder.named_parameters() if "pooler" not in name
    ]
    optimizer = loop.adamw(parameters, lr=1e-2, weight_decay=0.01)

    def loss(encoder: nn.Module, rows: list[int]) -> Tensor:
        u, v = (
            encoder(reference[f"{side}.ids"][rows], reference[f"{side}.mask"][rows])
            for side in ("first", "second")
        )
        return losses.cosine_mse_loss(u, v, reference["targets"][rows])

    batches = [list(range(len(reference["targets"])))] * 10
    steps = list(
        loop.fit(encoder, loss, batches, optimizer, lambda step: loop.linear_schedule(step, 3, 12))
    )
    rates = torch.tensor([1e-2 * step.multiplier for step in steps], dtype=torch.float64)
    yield compare("10 learning rates", rates, reference["rates"], TRACE)
    values = torch.tensor([step.loss for step in steps], dtype=torch.float64)
    yield compare("10 losses", values, reference["losses"], TRACE)
    for name, parameter in encoder.bert.named_parameters():
        if "pooler" not in name:
            yield compare(
                f"after 10 steps {name}", parameter, reference[f"after.{NAMES[name]}"], TRACE
            )
