"""Finding a model's folder, and replacing one atomically."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.core import InputError, one_line
from minisbert.system.assets import assets, ensure
from minisbert.system.files import atomic_folder


def find_model(model: str | Path) -> Path:
    """The folder of a model, given by name (fetched if it is missing) or by path.

    Raises ``InputError`` with the known names for anything else.
    """
    weights = [name for name, entry in assets().items() if entry.kind == "weights"]
    if str(model) in weights:
        return ensure(str(model))
    if Path(model).is_dir():
        return Path(model)
    raise InputError(f"no model {one_line(model)}: neither a folder nor one of {', '.join(weights)}")


@contextmanager
def model_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to write a model to; on success it replaces ``folder`` (new, empty or a model) atomically."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds something that is not a model (no config.json) and is not replaced")
    with atomic_folder(folder) as partial:
        yield partial
