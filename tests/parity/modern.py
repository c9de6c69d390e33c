"""What came after BERT: rotation, RMSNorm, SwiGLU, and hidden states of three newer encoders."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

import minisbert
from minisbert.architectures import modern, qwen3
from tests.parity import PIECE, REFERENCE, Comparison, compare, golden
from tests.parity.comparison import normal, with_gradients


def rotation() -> Iterator[Comparison]:
    """As complex numbers, first half plus i times the second half, times e^(i angle)."""
    angles = normal(2, 1, 5, 4, seed=1, scale=3.0).detach()
    cos = torch.cat([angles.cos(), angles.cos()], dim=-1)
    sin = torch.cat([angles.sin(), angles.sin()], dim=-1)

    def ours(x: Tensor) -> Tensor:
        return modern.rotate(x, cos, sin)

    def reference(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)

    yield from with_gradients("rotate", ours, reference, normal(2, 3, 5, 8))


def rms_norm() -> Iterator[Comparison]:
    def ours(x: Tensor, weight: Tensor) -> Tensor:
        return qwen3.rms_norm(x, weight, 0.3)

    def reference(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (8,), weight, 0.3)

    yield from with_gradients("rms_norm", ours, reference, normal(3, 5, 8), normal(8, seed=1))


def swiglu() -> Iterator[Comparison]:
    def reference(gate: Tensor, up: Tensor) -> Tensor:
        return gate * up / (1 + (-gate).exp())

    inputs = normal(3, 7, scale=3.0), normal(3, 7, seed=1)
    yield from with_gradients("swiglu", qwen3.swiglu, reference, *inputs)


def newer_encoders() -> Iterator[Comparison]:
    """Hidden states of Qwen3, EmbeddingGemma and ModernBERT."""
    for name in ("qwen3", "gemma", "modernbert"):
        expected = golden(f"architectures/tiny-{name}")
        encoder = minisbert.SentenceEncoder.load(REFERENCE / "architectures" / f"tiny-{name}")
        mask = expected["mask"]
        with torch.no_grad():
            states = encoder.double().bert.hidden_states(expected["ids"], mask)
        for key in expected:
            if key.startswith("layers."):
                layer = int(key.removeprefix("layers."))
                ours = states[layer + 1][mask]
                yield compare(f"{name} layer {layer}", ours, expected[key][mask], PIECE)
