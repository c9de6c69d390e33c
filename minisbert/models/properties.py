"""What every encoder has beside its vectors: settings that may be changed, prompts, similarities,
and types.

A prompt is a text that some models need before each input, such as "query: " for E5. It changes the
states of all tokens. With ``include_prompt: false`` its own tokens are not pooled. Imports
``search`` for the names of distances.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from numbers import Integral
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.layout import EncoderSettings
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine, cosine_matrix
from minisbert.models.batching import with_limit
from minisbert.search.dense import DISTANCES
from minisbert.system.console import say
from minisbert.system.progress import Bar

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


def check_count(name: str, value: object) -> None:
    """Raise ``InputError`` unless an argument is an integer from 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be an integer from 1, not {one_line(value)}")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ``InputError`` unless an argument is one of the choices."""
    # A tensor is hashable, but ``in`` would compare it element by element.
    if not isinstance(value, Hashable) or isinstance(value, Tensor) or value not in choices:
        allowed = ", ".join(str(choice) for choice in choices if choice is not None)
        raise InputError(f"{name} must be one of {allowed}, not {one_line(value)}")


class EncoderProperties:
    """Length limit, columns, prompts and similarity of an encoder; each may be set at any time."""

    tokenizer: ModelTokenizer
    settings: EncoderSettings
    width: int  # columns of a vector before ``truncate_dim``
    most_tokens: int  # the longest text that the encoder can read

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of a text, special tokens included; longer texts are cut."""
        return self.tokenizer.limit

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        check_count("max_seq_length", tokens)
        if tokens > self.most_tokens:
            raise InputError(
                f"max_seq_length {tokens} is above {self.most_tokens}, the encoder's positions"
            )
        self.tokenizer = with_limit(self.tokenizer, int(tokens))

    @property
    def truncate_dim(self) -> int | None:
        """The number of columns that ``encode`` returns; None for all."""
        return self.settings.truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, columns: int | None) -> None:
        if columns is not None:
            self.check_columns(columns)
        self.settings = replace(self.settings, truncate_dim=columns)

    def check_columns(self, columns: int) -> None:
        """Raise ``InputError`` unless vectors can be cut to so many columns."""
        check_count("truncate_dim", columns)
        if columns > self.width:
            raise InputError(f"truncate_dim {columns} is above {self.width}, the number of columns")

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return self.settings.prompts

    @prompts.setter
    def prompts(self, prompts: Mapping[str, str]) -> None:
        strings = isinstance(prompts, Mapping)
        strings = strings and all(
            isinstance(text, str) for text in [*prompts.keys(), *prompts.values()]
        )
        if not strings:
            raise InputError(
                f"prompts must be a dictionary of names and texts, not {one_line(prompts)}"
            )
        default = self.settings.default_prompt_name
        if default not in prompts:
            default = None
        self.settings = replace(self.settings, prompts=dict(prompts), default_prompt_name=default)

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt that ``encode`` uses if it is given none; None for no prompt."""
        return self.settings.default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        if name is not None and name not in self.settings.prompts:
            names = ", ".join(map(one_line, self.settings.prompts)) or "none"
            raise InputError(
                f"default_prompt_name {one_line(name)} is not one of the prompts; there are {names}"
            )
        self.settings = replace(self.settings, default_prompt_name=name)

    @property
    def similarity_fn_name(self) -> str:
        """How ``similarity`` compares: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.settings.similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        check_choice("similarity_fn_name", name, SIMILARITIES)
        self.settings = replace(self.settings, similarity_fn_name=name)

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector as ``encode`` returns it."""
        return min(self.truncate_dim or self.width, self.width)

    get_sentence_embedding_dimension = get_embedding_dimension

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of
        the two.

        By ``similarity_fn_name`` the cosine, the dot product, or minus a distance. Returns a tensor
        if one of the two is a tensor, else an array.
        """
        return similarity(a, b, self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
        return similarity_pairwise(a, b, self.similarity_fn_name)


# ----------------------------------------------------------------------------------------------
# prompts

# the names of prompts for queries and documents: the first that the model has counts, as in
# sentence-transformers
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


def role_prompt(settings: EncoderSettings, role: str) -> str:
    """Return the model's prompt for a "query" or a "document", or its default; an empty string for
    none.

    Every model that was loaded has both, empty where its folder states none. So neither its default
    prompt nor one that it calls "passage" is used, unless ``prompts`` was assigned:
    sentence-transformers does the same when it runs.
    """
    for name in PROMPT_NAMES[role]:
        if name in settings.prompts:
            return choose_prompt(settings, name=name)
    return choose_prompt(settings)


def choose_prompt(
    settings: EncoderSettings, prompt: str | None = None, name: str | None = None
) -> str:
    """Return ``prompt``, or the model's prompt called ``name``, or its default; an empty string for
    none.

    Raises ``InputError`` for both at once, and for a name that the model lacks.
    """
    for given in (prompt, name):
        if given is not None and not isinstance(given, str):
            raise InputError(f"a prompt and its name are strings, not {one_line(given)}")
    if prompt is not None and name is not None:
        raise InputError(
            f"prompt {one_line(prompt)} and prompt_name {one_line(name)}: give one of them"
        )
    if prompt is not None:
        return prompt
    if name is None:
        name = settings.default_prompt_name
    if name is None:
        return ""
    if name not in settings.prompts:
        names = ", ".join(map(one_line, settings.prompts))
        raise InputError(f"the model has no prompt {one_line(name)}; it has {names}")
    if name == "document" and not settings.prompts[name]:
        for other in PROMPT_NAMES[name]:
            if settings.prompts.get(other):
                say_unused(other)
    return settings.prompts[name]


@cache  # says it once
def say_unused(name: str) -> None:
    say(
        f"documents get no prompt: the model's is called {name}, which sentence-transformers does "
        f"not use for them "
        f'either; give prompt_name="{name}", or rename it "document" in '
        f"config_sentence_transformers.json"
    )


def with_prompt(
    texts: Sequence[str],
    settings: EncoderSettings,
    tokenizer: ModelTokenizer,
    prompt: str | None,
    name: str | None,
) -> tuple[list[str], int]:
    """Put the prompt before each text; also return how many tokens at the start of each are not
    pooled.
    """
    prompt = choose_prompt(settings, prompt, name)
    skip = 0
    if prompt and not settings.include_prompt:
        skip = prompt_tokens(tokenizer, prompt)
    return [prompt + text for text in texts], skip


def prompt_tokens(tokenizer: ModelTokenizer, prompt: str) -> int:
    """Count the tokens at the start of a text that belong to its prompt: [CLS] and the prompt,
    without [SEP].

    As in sentence-transformers, counted in the prompt alone: at its end the text may change a
    token.
    """
    ids = tokenizer.encode([prompt]).ids[0]
    last = tokenizer.backend.get_added_tokens_decoder().get(ids[-1])
    if last is not None and last.special:
        return len(ids) - 1
    return len(ids)


# ------------------------------------------------------------------------------------------
# similarities

Rows = np.ndarray | Tensor | Sequence  # vectors (N, D), or one (D,)


def as_array(x: Tensor) -> np.ndarray:
    """Convert a tensor on the CPU to an array; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        x = x.float()
    return x.numpy()


def as_rows(vectors: Rows) -> np.ndarray:
    """Convert vectors to an array (N, D); a single vector is one row. Raises ``InputError`` for
    anything else.
    """
    if isinstance(vectors, Tensor):
        vectors = as_array(vectors.detach().cpu())
    try:
        rows = np.atleast_2d(vectors)
    except ValueError:  # lists of several lengths
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise InputError(f"vectors must be numbers (N, D), not {one_line(vectors)}")
    return rows


def similarity(a: Rows, b: Rows, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the
    two.

    By ``name`` the cosine, the "dot" product, or minus the "euclidean" or "manhattan" distance.
    Returns a tensor on the CPU if one of the two is a tensor, else an array.
    """
    u, v = comparable(a, b)
    if name == "dot":
        result = u @ v.T
    elif name == "cosine":
        result = cosine_matrix(u, v)
    else:
        # subtle: by products of matrices, the default for many rows, a small distance would be
        # rounding error
        result = -torch.cdist(u, v, DISTANCES[name], compute_mode="donot_use_mm_for_euclid_dist")
    return as_given(result, a, b)


def similarity_pairwise(a: Rows, b: Rows, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
    u, v = comparable(a, b)
    if len(u) != len(v):
        raise InputError(f"{len(u)} and {len(v)} vectors do not make pairs")
    if name == "dot":
        result = (u * v).sum(dim=1)
    elif name == "cosine":
        result = cosine(u, v)
    else:
        result = -torch.linalg.vector_norm(u - v, DISTANCES[name], dim=1)
    return as_given(result, a, b)


def comparable(a: Rows, b: Rows) -> tuple[Tensor, Tensor]:
    """Convert both to tensors (N, D), (M, D) in their finer dtype; ``InputError`` unless they can
    be compared.
    """
    a, b = as_rows(a), as_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    # Copies: torch warns about arrays that cannot be written to, as ``np.load(mmap_mode="r")``
    # gives them.
    u, v = torch.tensor(a.astype(dtype)), torch.tensor(b.astype(dtype))
    for x in (u, v):
        if not x.norm(dim=1).isfinite().all():
            raise InputError("a vector's length is not finite, so it cannot be compared")
    return u, v


def as_given(result: Tensor, a: Rows, b: Rows) -> np.ndarray | Tensor:
    """Return the result as a tensor if one of the vectors came as a tensor, else as an array."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return result
    return result.numpy()


# ----------------------------------------------------------------------------------- the types of
# ``encode``

Texts = str | Sequence[str]
Yes = Literal[True]
No = Literal[False]


class Options(TypedDict, total=False):
    """The options of ``encode`` that do not change the type of what it returns."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | Bar | None
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
