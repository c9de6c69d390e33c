"""Fixtures: the tiny committed checkpoint, and the real weights where they can be had."""

import os
from pathlib import Path

import pytest

from minisbert.assets import ensure
from minisbert.console import InputError

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The tiny random checkpoint in git: 2 layers, width 24, as sentence-transformers saved it."""
    return ROOT / "weights" / "tiny"


def fetched(name: str) -> Path:
    """An asset's folder; where it cannot be had the test is skipped with the reason, and under CI=true fails."""
    try:
        return ensure(name)
    except InputError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI needs {name}: {error}")
        pytest.skip(f"{name} cannot be had: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real all-MiniLM-L6-v2."""
    return fetched("all-MiniLM-L6-v2")


@pytest.fixture(scope="session")
def stsb() -> Path:
    """The STS Benchmark's files."""
    return fetched("stsb")
