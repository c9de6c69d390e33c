"""Compare with the reference number by number, and report where and by how much they differ.

``comparison.py`` has what the checks share, ``checks.py`` lists them.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests" / "reference"

# absolute bounds, relative 0 (the smallest known mistake shows at 3e-4)
PIECE = 1e-10  # a piece or the whole tiny model, float64
GRADIENT = 1e-9  # gradients, float64
TRACE = 1e-9  # 10-step loss trace, float64
MINILM_HIDDEN = 2e-5  # real MiniLM hidden states, float32
# real unit embeddings, float32; also the same text in another batch (docs/parity.md, Bits)
MINILM_VECTOR = 2e-6


@dataclass(frozen=True)
class Comparison:
    """The comparison of one tensor with its reference."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    largest: float  # of the absolute differences; NaN if either side has a NaN
    mean: float
    worst: tuple[int, ...]  # index of the largest difference
    tolerance: float
    # the two tensors, or what they stand for, for messages
    ours: object = field(default=None, repr=False, compare=False)
    reference: object = field(default=None, repr=False, compare=False)

    @property
    def used(self) -> float:
        """Share of the tolerance that the largest difference uses; above 1 is a failure."""
        return self.largest / self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.name} {self.shape} {self.dtype}: "
            f"max difference {self.largest:.3g} at {self.worst}, mean {self.mean:.3g}, "
            f"{100 * self.used:.3g} % of the tolerance {self.tolerance:g}"
        )


def compare(name: str, ours: Tensor, reference: Tensor, tolerance: float) -> Comparison:
    """Compare two tensors; ``AssertionError`` if shape or dtype differ."""
    shape = tuple(ours.shape)
    assert shape == tuple(reference.shape), (
        f"{name}: shape {shape}, reference {tuple(reference.shape)}"
    )
    assert ours.dtype == reference.dtype, f"{name}: {ours.dtype}, reference {reference.dtype}"

    difference = (ours.detach().double() - reference.detach().double()).abs()
    at = int(difference.nan_to_num(nan=torch.inf).argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), shape))
    return Comparison(
        name=name,
        shape=shape,
        dtype=ours.dtype,
        largest=float(difference.flatten()[at]),
        mean=float(difference.mean()),
        worst=worst,
        tolerance=tolerance,
        ours=ours.detach(),
        reference=reference.detach(),
    )


def assert_parity(name: str, ours: Tensor, reference: Tensor, tolerance: float) -> None:
    """Pass only if every number is within ``tolerance`` of the reference."""
    result = compare(name, ours, reference, tolerance)
    assert result.largest <= tolerance, str(result)  # False for NaN


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    """Pass only if both have the same parameters and buffers, to the bit."""
    tensors = other.state_dict()
    assert one.state_dict().keys() == tensors.keys()
    for name, tensor in one.state_dict().items():
        assert tensor.dtype == tensors[name].dtype, name
        assert torch.equal(tensor, tensors[name]), name


def golden(name: str) -> dict[str, Tensor]:
    """The tensors of a golden file, made by ``python -m tests.reference.make_reference``."""
    return load_file(REFERENCE / f"{name}.safetensors")
