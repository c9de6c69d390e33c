"""Golden values of heads and learned pooling: each value in float64, and the gradients of inputs
and parameters.

They come from torch's layers (``Linear``, ``MultiheadAttention``) and transformers' encoder, which
gets one sentence or pair at a time, so there is no padding. This file imports nothing of minisbert;
only the names of the parameters are minisbert's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softmax

from tests.reference.texts import SENTENCES

# the combinations of SBERT's table 6, and that of the siamese head
CONCATS = (
    "u,v",
    "|u-v|",
    "u*v",
    "|u-v|,u*v",
    "u,v,u*v",
    "u,v,|u-v|",
    "u,v,|u-v|,u*v",
    "|u-v|,u*v,u",
)
SECONDS = (*SENTENCES[1:], SENTENCES[0])  # second sentences of the pairs; SENTENCES are the first
BATCH, WIDTH, HEADS, HIDDEN = 5, 16, 8, 11
LENGTHS_A, LENGTHS_B = (7, 3, 1, 6, 2), (4, 9, 2, 1, 5)

NAMES = {
    "in_proj_weight": ("query.weight", "key.weight", "value.weight"),
    "in_proj_bias": ("query.bias", "key.bias", "value.bias"),
    "out_proj.weight": ("output.weight",),
    "out_proj.bias": ("output.bias",),
}


def renamed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One of torch's parameters, or its gradient, under minisbert's name or names."""
    for ending, names in NAMES.items():
        if name.endswith(ending):
            chunks = tensor.chunk(len(names))
            return {
                name.removesuffix(ending) + key: chunk
                for key, chunk in zip(names, chunks, strict=True)
            }
    return {name: tensor}


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomised(module: nn.Module, seed: int) -> nn.Module:
    """The module with random parameters, biases included, rounded to float32 and then float64."""
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(0.4 * normal(*parameter.shape, seed=100 * seed + i))
    return module.double()


def mlp(width: int, hidden: int = HIDDEN, outputs: int = 1) -> nn.Sequential:
    if not hidden:
        return nn.Sequential(nn.Linear(width, outputs))
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, outputs)
    )


def cross(width: int) -> nn.ModuleDict:
    attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
    return nn.ModuleDict({"attention": attention, "mlp": mlp(2 * width)})


def recorded(
    name: str, value: Tensor, inputs: dict[str, Tensor], module: nn.Module
) -> dict[str, Tensor]:
    """The value, a random output gradient ("pull"), and the resulting gradient of each input and
    parameter.
    """
    pull = normal(*value.shape, seed=77)
    parameters = dict(
        module.named_parameters(prefix="mlp" if isinstance(module, nn.Sequential) else "")
    )
    gradients = torch.autograd.grad(
        value, [*inputs.values(), *parameters.values()], pull, retain_graph=True
    )
    golden = {f"{name}.value": value, f"{name}.pull": pull}
    for key, parameter in parameters.items():
        golden |= {f"{name}.param.{ours}": chunk for ours, chunk in renamed(key, parameter).items()}
    for key, gradient in zip([*inputs, *parameters], gradients, strict=True):
        golden |= {f"{name}.grad.{ours}": chunk for ours, chunk in renamed(key, gradient).items()}
    return golden


def concatenated(u: Tensor, v: Tensor, concat: str) -> Tensor:
    features = {"u": u, "v": v, "|u-v|": torch.abs(u - v), "u*v": u * v}
    return torch.cat([features[name] for name in concat.split(",")], dim=-1)


def published(module: nn.ModuleDict, a: Tensor, b: Tensor, pads: Tensor | None = None) -> Tensor:
    found = module["attention"](a, b, b, key_padding_mask=pads)[0]
    return module["mlp"](torch.cat([a[:, 0], found[:, 0]], dim=-1))


def compare(
    module: nn.ModuleDict, a: Tensor, b: Tensor, pads: Tensor | None, lengths: tuple[int, ...]
) -> Tensor:
    found = module["attention"](a, b, b, key_padding_mask=pads)[0]
    rows = [
        torch.cat([torch.abs(x[:n] - y[:n]), x[:n] * y[:n]], dim=-1).mean(dim=0)
        for x, y, n in zip(a, found, lengths, strict=True)
    ]
    return module["mlp"](torch.stack(rows))


def layers_golden() -> dict[str, Tensor]:
    """Each head on random inputs."""
    u, v, a, b = (
        normal(*shape, seed=seed).requires_grad_()
        for seed, shape in enumerate(
            [
                (BATCH, WIDTH),
                (BATCH, WIDTH),
                (BATCH, max(LENGTHS_A), WIDTH),
                (BATCH, max(LENGTHS_B), WIDTH),
            ]
        )
    )
    real_a, real_b = (
        torch.arange(max(n)) < torch.tensor(n)[:, None] for n in (LENGTHS_A, LENGTHS_B)
    )
    golden = {"u": u, "v": v, "a": a, "b": b, "mask_a": real_a, "mask_b": real_b}
    for i, concat in enumerate(CONCATS):
        width = len(concat.split(",")) * WIDTH
        # alternately without and with a hidden layer, and 1 or 3 outputs
        module = randomised(mlp(width, hidden=HIDDEN * (i % 2), outputs=3 if i % 3 else 1), seed=i)
        golden |= recorded(
            f"concat.{i}", module(concatenated(u, v, concat)), {"u": u, "v": v}, module
        )
    module = randomised(mlp(WIDTH), seed=20)
    golden |= recorded("joint", module(a[:, 0]), {"a": a}, module)
    module, inputs = randomised(cross(WIDTH), seed=21), {"a": a, "b": b}
    golden |= recorded("published", published(module, a, b, ~real_b), inputs, module)
    module = randomised(cross(WIDTH), seed=22)
    golden |= recorded("compare", compare(module, a, b, ~real_b, LENGTHS_A), inputs, module)
    return golden


def pairs_golden(model: Any, tokenizer: Callable) -> dict[str, Tensor]:
    """Each head on an encoder, pair by pair; learned pooling, text by text."""

    def encode(*texts: str) -> Any:
        batch = tokenizer(*([text] for text in texts), truncation=True, return_tensors="pt")
        return model(**batch, output_hidden_states=True)

    firsts, seconds = ([encode(text) for text in texts] for texts in (SENTENCES, SECONDS))
    width = model.config.hidden_size
    u, v = (
        torch.cat([out.last_hidden_state.mean(dim=1) for out in outs]) for outs in (firsts, seconds)
    )
    inputs = {
        "embeddings": model.embeddings.LayerNorm.weight
    }  # its gradient passes through every layer

    module = randomised(mlp(3 * width), seed=30)
    golden = recorded("pair.siamese", module(concatenated(u, v, CONCATS[-1])), inputs, module)
    module = randomised(mlp(3 * width, hidden=0, outputs=3), seed=31)
    golden |= recorded("pair.concat", module(concatenated(u, v, "u,v,|u-v|")), inputs, module)
    module = randomised(mlp(width), seed=32)
    joined = [
        encode(*pair).last_hidden_state[:, 0] for pair in zip(SENTENCES, SECONDS, strict=True)
    ]
    golden |= recorded("pair.joint", module(torch.cat(joined)), inputs, module)
    module = randomised(cross(width), seed=33)
    states = [
        (a.last_hidden_state, b.last_hidden_state) for a, b in zip(firsts, seconds, strict=True)
    ]
    golden |= recorded(
        "pair.published", torch.cat([published(module, a, b) for a, b in states]), inputs, module
    )
    module = randomised(cross(width), seed=35)
    values = [compare(module, a, b, None, (a.shape[1],)) for a, b in states]
    golden |= recorded("pair.compare", torch.cat(values), inputs, module)

    module = randomised(nn.ModuleDict({"score": nn.Linear(width, 1)}), seed=34)
    rows = []
    for out in firsts:
        hidden = out.last_hidden_state[0]  # (T, D)
        rows.append(softmax(module["score"](hidden)[:, 0], dim=0) @ hidden)
    golden |= recorded("pool.attention", torch.stack(rows), inputs, module)
    none = nn.Module()
    layers = [(out.hidden_states[1] + out.hidden_states[-1]).mean(dim=1) / 2 for out in firsts]
    golden |= recorded("pool.first-last", torch.cat(layers), inputs, none)
    golden |= recorded(
        "pool.pooler", torch.cat([out.pooler_output for out in firsts]), inputs, none
    )
    return golden


def heads_golden(model: Any, tokenizer: Callable) -> dict[str, Tensor]:
    """All values; ``model`` is a transformers encoder in float64 and eval mode, ``tokenizer`` its
    tokenizer.
    """
    return layers_golden() | pairs_golden(model, tokenizer)
