"""The book: from a folder of weights to a trained sentence encoder in ten chapters, to be read in this order.

    tokenizer   text to ids                       metrics   how well scores agree with people's
    weights     a folder to named tensors         heads     two sentences to one score
    bert        ids to hidden states              losses    what training minimises
    pooling     hidden states to one vector       data      rows to batches
    encoder     the four above in one object      loop      the schedule, AdamW, and the training loop

Each chapter imports torch, numpy, tokenizers, safetensors, and chapters before it; the folder works on its own. It
knows nothing of command lines, progress, downloads, processes or speed: those live in the rooms around it.
"""

import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

# what a damaged or foreign file makes Python, torch, json, safetensors and numpy raise
DAMAGE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RuntimeError, MemoryError)
DAMAGE += (SafetensorError, zipfile.BadZipFile, zlib.error)


class InputError(ValueError):
    """Something the user gave cannot be used. The message says what, where, what was expected and what to do."""


def one_line(text: object, most: int = 80) -> str:
    """A value for a message: quoted, cut at ``most`` characters, safe for any terminal."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


class Place:
    """Where a reader is, for its errors: the file, and the line if the reader sets it."""

    def __init__(self, path: str | Path):
        self.path, self.line = path, 0

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}" if self.line else str(self.path)


@contextmanager
def reading(path: str | Path) -> Iterator[Place]:
    """The border between a file and the package: whatever reading it raises becomes one ``InputError`` that names it.

        with reading(path) as at:
            for at.line, line in enumerate(open(path), start=1):
                rows.append(json.loads(line)["text"])  # InputError: rows.jsonl, line 3: no key 'text'

    An ``InputError`` from inside passes through: it names its own place.
    """
    at = Place(path)
    try:
        yield at
    except InputError:
        raise
    except json.JSONDecodeError as error:
        at.line = at.line or error.lineno
        raise InputError(f"{at}: not valid JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{at}: not UTF-8 ({error.reason}); save it as UTF-8") from error
    except KeyError as error:
        raise InputError(f"{at}: no key {one_line(error.args[0])}") from error
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or path} does not exist") from error
    except (OSError, *DAMAGE) as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(f"{at}: {one_line(said, 200)[1:-1]}") from error


def read_json(path: str | Path, kind: type = dict) -> Any:
    """The object (or list) in a JSON file; ``InputError`` says what is wrong with it, and in which line."""
    with reading(path):
        content = json.loads(Path(path).read_bytes())
        if not isinstance(content, kind):
            raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
        return content
