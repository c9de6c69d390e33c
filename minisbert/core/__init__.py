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
from pathlib import Path
from typing import IO, Any


class InputError(ValueError):
    """Something the user gave cannot be used. The message says what, where, what was expected and what to do."""


def one_line(text: object, most: int = 80) -> str:
    """A value for a message: quoted, cut at ``most`` characters, safe for any terminal."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


def decode(content: bytes, where: str, line: int = 1) -> str:
    """UTF-8 bytes that begin in ``line`` to text; ``InputError`` names the line that is not UTF-8."""
    try:
        return content.decode("utf-8-sig" if line == 1 else "utf-8")  # a byte order mark at the start is not text
    except UnicodeDecodeError as error:
        read = error.object  # without the byte order mark: the error counts from there
        line += read[: error.start].count(b"\n")
        byte = f"0x{read[error.start]:02x}"
        raise InputError(f"{where}, line {line}: not UTF-8 (byte {byte}); save it as UTF-8") from error


def open_bytes(path: str | Path) -> IO[bytes]:
    """A file to read from; ``InputError`` if it is missing or a folder."""
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ``InputError`` if it is missing, a folder, or not UTF-8 (with the line)."""
    with open_bytes(path) as file:
        return decode(file.read(), str(path))


def read_json(path: str | Path, kind: type = dict) -> Any:
    """The object (or list) in a JSON file; ``InputError`` says what is wrong with it and in which line."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise InputError(f"{path}: not usable JSON: {error}") from error
    if not isinstance(content, kind):
        raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
    return content
