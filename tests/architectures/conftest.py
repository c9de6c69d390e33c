"""Fixtures of the newer architectures."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architectures.tiny import folder_of


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """A function from the name of a tiny model to a copy of its folder."""
    return lambda name: shutil.copytree(folder_of(name), tmp_path / "model")


@pytest.fixture(params=["fused", "written out"])
def formulas(request: pytest.FixtureRequest) -> None:
    """The formulas as PyTorch's fused operations, then as the book writes them out."""
    if request.param == "written out":
        request.getfixturevalue("written_out")
