"""The settings in a folder's JSON files, checked. A setting that changes vectors is honoured or refused by name.

config_sentence_transformers.json   ``Settings``: how vectors are cut and compared, and the prompts
sentence_bert_config.json           ``TextSettings``: the length limit, lower-casing, arguments for the tokenizer
config.json                         ``check_config``: only the types; ``core/weights.py`` reads it

docs/models.md lists every setting.
"""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line, read_json
from minisbert.core.encoder import cosine_matrix
from minisbert.core.weights import BertConfig
from minisbert.models.families import FAMILIES
from minisbert.system.files import write_json

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "an object"}
LARGEST = 2**31 - 1  # no size or id is larger

SENTENCE_FILE = "config_sentence_transformers.json"
NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TEXT_FILES = tuple(f"sentence_{name}_config.json" for name in NAMES)  # the first one there is read

# what the encoder module of sentence-transformers may state about itself, and the only value supported
TEXT_MODALITY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
ONLY = {
    "transformer_task": "feature-extraction",
    "modality_config": TEXT_MODALITY,
    "module_output_name": "token_embeddings",
    "tokenizer_name_or_path": None,
}
KEPT = ("query_length", "document_length", "query_expansion")  # for encode_query and encode_document, not for encode
HARMLESS = {  # arguments that change no vector: where files come from, and how the work is done
    "model_kwargs": {"add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "torch_dtype"},
    "config_kwargs": set(),
    "processing_kwargs": {"padding", "pad_to_multiple_of", "return_attention_mask", "return_tensors", "verbose"},
}
HUB = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code", "use_auth_token"}


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


def refuse(path: Path, key: str, value: Any, reason: str) -> InputError:
    """The error for a setting that would change the vectors."""
    return InputError(f"{path}: {key} {one_line(value)} is not supported: {reason}")


def check_config(folder: Path) -> None:
    """Raise ``InputError`` for a value in ``config.json`` that is not of the type that its key needs."""
    path = folder / "config.json"
    raw = read_json(path)
    family = FAMILIES.get(stated(raw, "model_type", str, path))
    if family is None:
        return  # the reader of the weights says which there are
    for setting in fields(BertConfig):
        key = family.settings.get(setting.name, setting.name)
        if setting.name in family.constants or key not in raw:
            continue
        if raw[key] is None and (key != "pad_token_id" or family.model_type == "roberta"):
            raise InputError(f"{path}: {key} must be {KINDS[setting.type]}, not null")
        value = stated(raw, key, setting.type, path, 0)
        if not isinstance(value, str) and not abs(value) <= LARGEST:  # NaN is not, either
            raise InputError(f"{path}: {key} must be {KINDS[setting.type]} of a usable size, not {value}")
    if family.model_type == "roberta" and raw.get("pad_token_id", 1) < 0:
        raise refuse(path, "pad_token_id", raw["pad_token_id"], "RoBERTa's positions start after it")


# -------------------------------------------------------------------------- config_sentence_transformers.json


@dataclass(frozen=True)
class Settings:
    """How vectors are cut and compared, and the prompts, which only callers use: ``settings.prompts["query"] + text``.

    ``encode`` keeps the first ``truncate_dim`` columns unless it is told otherwise; None keeps all.
    """

    similarity: str = "cosine"
    truncate_dim: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None  # that of an empty prompt, or None
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
    if default is not None and prompts[default]:
        reason = "set it to null, and put the prompt before each text yourself"
        raise refuse(path, "default_prompt_name", default, reason)
    similarity = stated(raw, "similarity_fn_name", str, path, "cosine")
    if similarity not in SIMILARITIES:
        raise refuse(path, "similarity_fn_name", similarity, f"{', '.join(SIMILARITIES)} are")
    columns = stated(raw, "truncate_dim", int, path)
    if columns is not None and columns < 1:
        raise InputError(f"{path}: truncate_dim must be at least 1, not {columns}")
    kind = stated(raw, "model_type", str, path, "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise refuse(path, "model_type", kind, "only SentenceTransformer is")
    known = {"prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "__version__"}
    others = {key: value for key, value in raw.items() if key not in known}
    return Settings(similarity, columns, prompts, default, others)


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


# ---------------------------------------------------------------------------------- sentence_bert_config.json


@dataclass(frozen=True)
class TextSettings:
    """What the encoder's module states about its texts."""

    limit: int | None = None  # tokens
    lowercase: bool = False  # before the tokenizer's own normalizer
    tokenizer: dict[str, Any] = field(default_factory=dict)  # over those of tokenizer_config.json
    kept: dict[str, Any] = field(default_factory=dict)  # for ``save``
    path: Path | None = None


def read_text_settings(folder: Path) -> TextSettings:
    """The first of ``TEXT_FILES`` in an encoder's folder. Raises ``InputError`` for what is not supported."""
    contents = ((folder / name, read_json(folder / name)) for name in TEXT_FILES if (folder / name).is_file())
    path, raw = next((pair for pair in contents if pair[1]), (None, {}))
    if path is None:
        return TextSettings()
    for key, supported in ONLY.items():
        if raw.get(key, supported) != supported:
            raise refuse(path, key, raw[key], f"only {one_line(supported)} is")
    tokenizer = arguments(raw, "processor_kwargs", "tokenizer_args", path)
    for new, old in (("model_kwargs", "model_args"), ("config_kwargs", "config_args")):
        for key, value in arguments(raw, new, old, path).items():
            if key not in HARMLESS[new] | HUB:
                raise refuse(path, f"{key} in {new}", value, "it may change the vectors")
    limits = [stated(call, "max_length", int, path) for call in call_arguments(raw, path)]
    limits += [stated(tokenizer, "model_max_length", int, path), stated(raw, "max_seq_length", int, path)]
    lowercase = stated(raw, "do_lower_case", bool, path, False)
    kept = {"do_lower_case": True} if lowercase else {}
    kept |= {key: raw[key] for key in KEPT if raw.get(key) is not None}
    tokenizer = {key: value for key, value in tokenizer.items() if key not in HUB | {"model_max_length"}}
    return TextSettings(next((n for n in limits if n is not None), None), lowercase, tokenizer, kept, path)


def arguments(raw: dict[str, Any], new: str, old: str, path: Path) -> dict[str, Any]:
    """The arguments under one of two names, of which the older one wins, as in sentence-transformers."""
    return stated(raw, old if old in raw else new, dict, path, {})


def call_arguments(raw: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """What ``processing_kwargs`` adds to every call of the tokenizer, without what changes no vector."""
    groups = stated(raw, "processing_kwargs", dict, path, {})
    calls = [stated(groups, name, dict, path, {}) for name in ("text", "common")]
    for key, value in ((key, value) for call in calls for key, value in call.items()):
        usual = key == "truncation" and value in (True, "longest_first", "only_first")
        if not usual and key not in HARMLESS["processing_kwargs"] | {"max_length"}:
            raise refuse(path, f"{key} in processing_kwargs", value, "it may change the vectors")
    return calls
