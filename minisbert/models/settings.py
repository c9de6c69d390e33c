"""The settings in a folder's JSON files, checked. A setting that changes vectors is honoured or refused by name.

config_sentence_transformers.json   ``Settings``: how vectors are cut and compared, and the prompts
config.json                         ``check_config``: only the types; ``core/weights.py`` reads it

``text_settings.py`` has those for texts, ``backends.py`` those of the tokenizer. docs/models.md lists every setting.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line, read_json
from minisbert.core.encoder import cosine_matrix
from minisbert.core.weights import BertConfig, Family
from minisbert.models.families import FAMILIES, RobertaFamily
from minisbert.system.files import write_json

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "an object"}
LARGEST = 2**31 - 1  # no size or id is larger
WIDEST = 2**24  # no layer beside the encoder is wider; two such sizes still make a tensor that torch can describe

SENTENCE_FILE = "config_sentence_transformers.json"


def stated(raw: dict[str, Any], key: str, kind: type, path: Path, default: Any = None) -> Any:
    """The value under ``key``, ``default`` if it is missing or null; ``InputError`` if it is not of the type ``kind``.

    A number without a fraction counts as whole: some authors write the limit as ``1e30``.
    """
    value = raw.get(key)
    if value is None:
        return default
    accepted = (int, float) if kind is float else kind
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{path}: {key} must be {KINDS[kind]}, not {one_line(value)}")
    return value


def unsupported(path: Path, key: str, value: Any, reason: str) -> InputError:
    """The error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


def architecture(folder: Path) -> str:
    """The class of transformers that ``config.json`` names first; an empty string if it names none."""
    path = folder / "config.json"
    names = read_json(path).get("architectures") if path.is_file() else None
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def check_config(folder: Path) -> Family | None:
    """The family that ``config.json`` states, if it is known.

    Raises ``InputError`` for a value that is not of the type that its key needs.
    """
    path = folder / "config.json"
    raw = read_json(path)
    family = FAMILIES.get(stated(raw, "model_type", str, path))
    if family is None:
        return None  # the reader of the weights says which there are
    for name, kind in get_type_hints(BertConfig).items():
        key = family.settings.get(name, name)
        if name in family.constants or key not in raw:
            continue
        if raw[key] is None and (key != "pad_token_id" or isinstance(family, RobertaFamily)):
            raise InputError(f"{path}: {key} must be {KINDS[kind]}, not null")
        value = stated(raw, key, kind, path, 0)
        if not isinstance(value, str) and not abs(value) <= LARGEST:  # NaN is not, either
            raise InputError(f"{path}: {key} must be {KINDS[kind]} of a usable size, not {value}")
    if (raw.get("pad_token_id") or 0) >= raw.get("vocab_size", LARGEST):
        raise InputError(f"{path}: pad_token_id {raw['pad_token_id']} is not in the vocabulary of {raw['vocab_size']}")
    if isinstance(family, RobertaFamily) and raw.get("pad_token_id", 1) < 0:
        raise unsupported(path, "pad_token_id", raw["pad_token_id"], "RoBERTa's positions start after it")
    return family


@dataclass(frozen=True)
class Settings:
    """How vectors are cut and compared, and the prompts that ``encode`` can put before each text.

    ``encode`` keeps the first ``truncate_dim`` columns and takes the prompt ``default_prompt_name`` unless it is told
    otherwise; None keeps all, and takes none.
    """

    similarity: str = "cosine"
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    include_prompt: bool = True  # pool over a prompt's tokens too
    others: dict[str, Any] = field(default_factory=dict)  # as read, for ``save``


def read_settings(folder: Path) -> Settings:
    """The settings of a folder, the defaults if it states none. Raises ``InputError`` for what is not supported."""
    path = folder / SENTENCE_FILE
    if not path.is_file():
        return Settings()
    raw = read_json(path)
    prompts = stated(raw, "prompts", dict, path, {})
    prompts = {name: stated(prompts, name, str, path, "") for name in prompts}
    default = stated(raw, "default_prompt_name", str, path)
    if default is not None and default not in prompts:
        raise InputError(f"{path}: default_prompt_name {one_line(default)} is not one of the prompts, {[*prompts]}")
    similarity = stated(raw, "similarity_fn_name", str, path, "cosine")
    if similarity not in SIMILARITIES:
        raise unsupported(path, "similarity_fn_name", similarity, f"{', '.join(SIMILARITIES)} are")
    columns = stated(raw, "truncate_dim", int, path)
    if columns is not None and columns < 1:
        raise InputError(f"{path}: truncate_dim must be at least 1, not {columns}")
    kind = stated(raw, "model_type", str, path, "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise unsupported(path, "model_type", kind, "only SentenceTransformer is")
    known = {"prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__"}
    others = {key: value for key, value in raw.items() if key not in known}
    return Settings(similarity, columns, prompts, default, others=others)


def write_settings(settings: Settings, folder: Path) -> None:
    """Write ``config_sentence_transformers.json``."""
    content = {"prompts": settings.prompts, "default_prompt_name": settings.default_prompt_name}
    content |= {"similarity_fn_name": settings.similarity}
    if settings.truncate_dim is not None:
        content["truncate_dim"] = settings.truncate_dim
    write_json(folder / SENTENCE_FILE, settings.others | content)


def dot_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Dot product of each row of u (B, D) with each row of v (N, D) -> (B, N)."""
    return u @ v.T


def euclidean_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Minus the distance of each row of u (B, D) to each row of v (N, D) -> (B, N). ``[3, 4], [0, 0] -> -5``."""
    # subtle: by products of matrices, the default for many rows, a small distance would be rounding error
    return -torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist")


def manhattan_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Minus the sum of absolute differences, u (B, D) and v (N, D) -> (B, N). ``[3, 4], [0, 0] -> -7``."""
    return -torch.cdist(u, v, p=1)


SIMILARITIES = {
    "cosine": cosine_matrix,
    "dot": dot_matrix,
    "euclidean": euclidean_matrix,
    "manhattan": manhattan_matrix,
}


def similarity_matrix(name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The similarity called ``name`` of every row of a (N, D) with every row of b (M, D) -> (N, M)."""
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    return SIMILARITIES[name](*(torch.tensor(x.astype(dtype, copy=False)) for x in (a, b))).numpy()
