"""The types of ``encode``, ``encode_query`` and ``encode_document``, for editors and type checkers.

What is returned depends on four arguments. These overloads say how, once for all three methods.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, overload

import numpy as np
from torch import Tensor

from minisbert.system.progress import Progress

Texts = str | Sequence[str]
Yes = Literal[True]
No = Literal[False]


class Options(TypedDict, total=False):
    """The options of ``encode`` that do not change the type of what it returns."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | Progress | None
    precision: str | None
    normalize_embeddings: bool | None
    truncate_dim: int | None
    dtype: str | None


class TextOptions(Options, total=False):
    output_value: Literal["sentence_embedding"]


class TokenOptions(Options, total=False):
    convert_to_tensor: bool


class EncodeCall(Protocol):
    """A method with the arguments of ``TextEncoder.encode``, which documents them."""

    # one text, then several: every string is a sequence of strings, too
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, texts: str, *, output_value: Literal["token_embeddings"], **options: Unpack[TokenOptions]
    ) -> Tensor: ...
    @overload
    def __call__(
        self, texts: Sequence[str], *, output_value: Literal["token_embeddings"], **options: Unpack[TokenOptions]
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self, texts: Texts, *, convert_to_tensor: Yes, convert_to_numpy: bool = ..., **options: Unpack[TextOptions]
    ) -> Tensor: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, texts: str, *, convert_to_numpy: No, convert_to_tensor: No = ..., **options: Unpack[Options]
    ) -> Tensor: ...
    @overload
    def __call__(
        self, texts: Sequence[str], *, convert_to_numpy: No, convert_to_tensor: No = ..., **options: Unpack[Options]
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self, texts: Texts, *, convert_to_numpy: Yes = ..., convert_to_tensor: No = ..., **options: Unpack[TextOptions]
    ) -> np.ndarray: ...
    # a flag that the checker cannot see, and arguments by position
    @overload
    def __call__(
        self,
        texts: Texts,
        *more: Any,
        output_value: str = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        **options: Unpack[Options],
    ) -> Any: ...


def typed_encode(method: Callable[..., Any]) -> EncodeCall:
    """Give a method the types of ``EncodeCall``."""
    return cast(EncodeCall, method)
