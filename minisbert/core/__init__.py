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
from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used. The message says what, where, what was expected and what to do."""


def one_line(text: object, most: int = 80) -> str:
    """A value for a message: quoted, cut at ``most`` characters, safe for any terminal."""
    shown = repr(text) if len(str(text)) <= most else repr(str(text)[:most]) + "..."
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


def read_json(path: str | Path, kind: type = dict) -> Any:
    """The object (or list) in a JSON file; ``InputError`` says what is wrong with it, and in which line."""
    if not Path(path).is_file():
        raise InputError(f"{path} {'is not a file' if Path(path).exists() else 'does not exist'}")
    try:
        content = json.loads(Path(path).read_bytes())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason}); save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep brackets
        raise InputError(f"{path}: not usable JSON: {error}") from error
    if not isinstance(content, kind):
        raise InputError(f"{path} must hold a JSON {kind.__name__}, not a {type(content).__name__}")
    return content
