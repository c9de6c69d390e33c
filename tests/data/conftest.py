"""A file for a reader."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """``write(name, content)``: the path of a file, compressed if its name ends in .gz."""

    def write_file(name: str, content: str | bytes) -> Path:
        content = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file
