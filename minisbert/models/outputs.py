"""What ``SentenceEncoder.encode`` returns: the options for it, checked, and the rows, stored."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.fast.batching import ID_BYTES


def check_options(
    width: int, batch_tokens: int, normalize: bool | None, truncate_dim: int | None, output: str, convert: str
) -> None:
    """Raise ``InputError`` for options that ``encode`` cannot take; its vectors have ``width`` columns."""
    if batch_tokens < 1:
        raise InputError(f"batch_tokens {batch_tokens}: at least 1 is needed")
    if output not in ("sentence", "token"):
        raise InputError(f"output {output!r} is not one of sentence, token")
    if convert not in ("array", "tensor"):
        raise InputError(f"convert {convert!r} is not one of array, tensor")
    if output == "token" and (normalize is not None or truncate_dim is not None):
        raise InputError("normalize and truncate_dim are for sentence vectors, not for output='token'")
    if truncate_dim is not None and not 1 <= truncate_dim <= width:
        raise InputError(f"truncate_dim {truncate_dim} is not in 1 to {width}, the number of columns")


def empty(tokens: Sequence[bytes], columns: int, dtype: torch.dtype, output: str) -> Tensor | list[Tensor]:
    """Memory for the result, on the CPU: (N, ``columns``), or for "token" a (T, ``columns``) for each of the texts."""
    if output == "sentence":
        return torch.empty(len(tokens), columns, dtype=dtype)
    return [torch.empty(len(key) // ID_BYTES, columns, dtype=dtype) for key in tokens]


def store(result: Tensor | list[Tensor], rows: list[int], computed: Tensor | list[Tensor]) -> None:
    """Copy what was computed for some rows into a matrix (N, D), or into a list of matrices (T, D)."""
    if isinstance(result, Tensor):
        result[rows] = computed.cpu()
        return
    for row, states in zip(rows, computed, strict=True):
        result[row].copy_(states)


def filled(result: Tensor | list[Tensor], tokens: list[bytes], rows: dict[bytes, int], convert: str) -> Any:
    """What ``encode`` returns: texts with the same tokens get copies of the row that was computed, ``rows[tokens]``."""
    for row, key in enumerate(tokens):
        if rows[key] != row:
            result[row] = result[rows[key]].clone()
    if convert == "tensor":
        return result
    return result.numpy() if isinstance(result, Tensor) else [states.numpy() for states in result]
