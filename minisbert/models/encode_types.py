"""The types of ``encode``, for editors: which options give an array, and which a tensor."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, overload

import numpy as np
from torch import Tensor

from minisbert.system.progress import Bar

Texts = str | Sequence[str]
Yes = Literal[True]
No = Literal[False]
OutputValue = Literal["sentence_embedding", "token_embeddings"]
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Dtype = Literal["auto", "float32", "bfloat16", "int8"]
LoadDtype = Literal["auto", "float32", "bfloat16", "float16", "int8"]  # of a compiled model


class Options(TypedDict, total=False):
    """The options of ``encode`` that do not change the type of what it returns."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | Bar | None
    precision: Precision | None
    normalize_embeddings: bool | None
    truncate_dim: int | None
    dtype: Dtype | None


class TextOptions(Options, total=False):
    """The options of a call that returns vectors of texts."""

    output_value: Literal["sentence_embedding"]


class TokenOptions(Options, total=False):
    """The options of a call that returns the states of tokens, which are always tensors."""

    convert_to_tensor: bool


class EncodeCall(Protocol):
    """A method with the arguments of ``DenseEncoder.encode``, which documents them."""

    # Each overload for one text is above that for several, because a string is also a sequence of
    # strings.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        output_value: Literal["token_embeddings"],
        **options: Unpack[TokenOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        *,
        output_value: Literal["token_embeddings"],
        **options: Unpack[TokenOptions],
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self,
        texts: Texts,
        *,
        convert_to_tensor: Yes,
        convert_to_numpy: bool = ...,
        **options: Unpack[TextOptions],
    ) -> Tensor: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        convert_to_numpy: No,
        convert_to_tensor: No = ...,
        **options: Unpack[Options],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        *,
        convert_to_numpy: No,
        convert_to_tensor: No = ...,
        **options: Unpack[Options],
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self,
        texts: Texts,
        *,
        convert_to_numpy: Yes = ...,
        convert_to_tensor: No = ...,
        **options: Unpack[TextOptions],
    ) -> np.ndarray: ...
    # This is for flags whose values a type checker does not know, and for arguments by position.
    @overload
    def __call__(
        self,
        texts: Texts,
        *more: Any,
        output_value: OutputValue = ...,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        **options: Unpack[Options],
    ) -> Any: ...


def typed_encode(method: Callable[..., Any]) -> EncodeCall:
    """Give a method the types of ``EncodeCall``: three methods share its overloads."""
    return cast(EncodeCall, method)


# --------------------------------------------------------------------------- the types of predict

# A pair may be a tuple or a list. A list of two texts is one pair, so several pairs are no
# ``Sequence[Sequence[str]]``.
Pair = tuple[str, str] | list[str]
Pairs = Sequence[tuple[str, ...] | list[str]]


class PredictOptions(TypedDict, total=False):
    """The options of ``predict`` that do not change the type of what it returns."""

    batch_size: int
    show_progress_bar: bool | None
    activation_fn: Callable[[Tensor], Tensor] | None
    apply_softmax: bool | None
    num_workers: int | None


class PredictCall(Protocol):
    """A method with the arguments of ``PairScorer.predict``, which documents them."""

    @overload
    def __call__(
        self,
        pairs: Pairs,
        *,
        convert_to_tensor: Yes,
        convert_to_numpy: bool = ...,
        **options: Unpack[PredictOptions],
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        pairs: Pairs,
        *,
        convert_to_numpy: No,
        convert_to_tensor: No = ...,
        **options: Unpack[PredictOptions],
    ) -> list[Tensor]: ...
    @overload
    def __call__(
        self,
        pairs: Pairs,
        *,
        convert_to_numpy: Yes = ...,
        convert_to_tensor: No = ...,
        **options: Unpack[PredictOptions],
    ) -> np.ndarray: ...
    # One pair has a number, or a number for each label; and flags may have any value.
    @overload
    def __call__(
        self,
        pairs: Pair | Pairs,
        *,
        convert_to_numpy: bool = ...,
        convert_to_tensor: bool = ...,
        **options: Unpack[PredictOptions],
    ) -> Any: ...


def typed_predict(method: Callable[..., Any]) -> PredictCall:
    """Give a method the types of ``PredictCall``."""
    return cast(PredictCall, method)
