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
    x, angles = normal(2, 3, 5, 8), normal(2, 1, 5, 4, seed=1, scale=3.0).detach()
    cos, sin = (torch.cat([y, y], dim=-1) for y in (angles.cos(), angles.sin()))

    def reference(x: Tensor) -> Tensor:
        turned = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], dim=-1)

    yield from with_gradients("rotate", lambda x: modern.rotate(x, cos, sin), reference, x)


def rms_norm() -> Iterator[Comparison]:
    x, weight = normal(3, 5, 8), normal(8, seed=1)
    reference = lambda x, weight: functional.rms_norm(x, (8,), weight, 0.3)  # noqa: E731
    yield from with_gradients(
        "rms_norm", lambda x, weight: qwen3.rms_norm(x, weight, 0.3), reference, x, weight
    )


def swiglu() -> Iterator[Comparison]:
    gate, up = normal(3, 7, scale=3.0), normal(3, 7, seed=1)
    yield from with_gradients(
        "swiglu", qwen3.swiglu, lambda gate, up: gate * up / (1 + (-gate).exp()), gate, up
    )


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
