"""The types of ``encode``, ``encode_query`` and ``encode_document``, for editors and type checkers.

What is returned depends on four arguments. These overloads say how, once for all three methods.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, overload

import numpy as np
from torch import Tensor

Sentence = Literal["sentence_embedding"]
Tokens = Literal["token_embeddings"]


class EncodeOptions(TypedDict, total=False):
    """The options of ``encode`` that do not change the type of what it returns."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int
    show_progress_bar: bool | None
    precision: str | None
    normalize_embeddings: bool | None
    truncate_dim: int | None
    dtype: str | None


class EncodeCall(Protocol):
    """A method with the arguments of ``TextEncoder.encode``, which documents them."""

    # one text, then several: every string is a sequence of strings, too
    @overload
    def __call__(
        self, texts: str, *, output_value: Tokens, convert_to_tensor: bool = ..., **options: Unpack[EncodeOptions]
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        *,
        output_value: Tokens,
        convert_to_tensor: bool = ...,
        **options: Unpack[EncodeOptions],
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        convert_to_tensor: Literal[True],
        convert_to_numpy: bool = ...,
        output_value: Sentence = ...,
        **options: Unpack[EncodeOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        texts: str,
        *,
        convert_to_numpy: Literal[False],
        convert_to_tensor: Literal[False] = ...,
        **options: Unpack[EncodeOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        *,
        convert_to_numpy: Literal[False],
        convert_to_tensor: Literal[False] = ...,
        **options: Unpack[EncodeOptions],
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        output_value: Sentence = ...,
        **options: Unpack[EncodeOptions],
    ) -> np.ndarray: ...
    # a flag that the checker cannot see, and arguments by position
    @overload
    def __call__(
        self,
        texts: str | Sequence[str],
        *more: Any,
        output_value: str = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        **options: Unpack[EncodeOptions],
    ) -> Any: ...


def typed_encode(method: Callable[..., Any]) -> EncodeCall:
    """Give a method the types of ``EncodeCall``."""
    return cast(EncodeCall, method)
