"""What several tests of a model's folder need."""

from pathlib import Path

TEXTS = ["the cat", "a small dog is in the park"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path there."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files
