"""A file to read, and what a loss needs of it."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """``write(name, content)``: the path of a file, compressed if its name ends in .gz."""

    def write_file(name: str, content: str | bytes) -> Path:
        if isinstance(content, str):
            content = content.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_file
