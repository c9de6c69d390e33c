"""What every encoder has beside its vectors: settings, prompts and similarities.

A prompt is a text that some models need before each input, such as "query: " for E5. It changes the
states of all tokens. With ``include_prompt: false`` its own tokens are not pooled. Imports
``search`` for the names of distances.
"""

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from inspect import get_annotations
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from minisbert import replacements
from minisbert.checkpoints.layout import EncoderSettings
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.core.encoder import cosine, cosine_matrix
from minisbert.models.batching import with_limit
from minisbert.search.dense import DISTANCES
from minisbert.system.console import warn

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
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


class LastCalls(threading.local):
    """How many texts the last call of each model has cut, in a table for each thread."""

    def __init__(self) -> None:
        self.truncated: WeakKeyDictionary[object, int] = WeakKeyDictionary()


_last_calls = LastCalls()


# What a user may set on a model. A model has some of them.
SETTINGS = (
    "activation_fn",
    "default_prompt_name",
    "max_active_dims",
    "max_length",
    "max_seq_length",
    "normalize",
    "prompts",
    "similarity_fn_name",
    "truncate_dim",
)


class ExplainedNames:
    """A model that says what to use for a name that it does not have, and refuses such a setting.

    Names that nobody mistakes for a setting may be set. So may any name of a user's own subclass,
    and any name that begins with an underscore.
    """

    if not TYPE_CHECKING:
        # Hidden from type checkers, which would take every name for one that a model has.
        def __getattr__(self, name: str) -> Any:
            if isinstance(self, nn.Module):  # a compiled model for pairs is none
                try:
                    return super().__getattr__(name)  # a parameter, a buffer or a module
                except AttributeError:
                    pass
            kind = type(self)
            message = f"{kind.__name__!r} object has no attribute {name!r}"
            instead = replacements.advice(replacements.MODEL, name, names_like(kind, name))
            if instead is not None:
                message += f": {instead}"
            raise AttributeError(message)

        def __setattr__(self, name: str, value: Any) -> None:
            if not isinstance(value, nn.Module | Tensor):
                check_setting(self, name)
            super().__setattr__(name, value)

        def __getitem__(self, number: Any) -> Any:
            raise TypeError(
                f"a {type(self).__name__} is no list of modules: use encoder.bert, encoder.pooling "
                f"and encoder.dense"
            )


class ExplainedModule(ExplainedNames, nn.Module):
    """An ``nn.Module`` that explains names."""

    if TYPE_CHECKING:
        # ``nn.Module`` finds its parameters in ``__getattr__``, so that a type checker lets every
        # name pass. The models declare their parts: without it a misspelt name is found.
        __getattr__: None  # type: ignore[assignment, misc]


def names_like(kind: type, name: str) -> list[str]:
    """List the public names of a class of which a name may be a slip."""
    # A property may raise an AttributeError of its own: then its name is no slip.
    if name.startswith("_") or hasattr(kind, name):
        return []
    return [other for other in dir(kind) if not other.startswith("_")]


def check_setting(model: object, name: str) -> None:
    """Raise ``AttributeError`` for a name that is no setting of a model, but looks like one."""
    kind = type(model)
    if not kind.__module__.startswith("minisbert.") or name.startswith("_"):
        return
    if name in replacements.ASSIGNMENTS:
        instead = replacements.advice(replacements.ASSIGNMENTS, name)
        raise AttributeError(f"{name} is no setting of a {kind.__name__}: {instead}")
    if name in vars(model) or declares(kind, name):
        return
    of_model = [setting for setting in SETTINGS if declares(kind, setting)]
    instead = replacements.advice({}, name, of_model)
    if instead is None and name in SETTINGS:
        instead = f"it has {', '.join(of_model)}"
    if instead is not None:
        raise AttributeError(f"a {kind.__name__} has no setting {name}: {instead}")


def declares(kind: type, name: str) -> bool:
    """Return whether a class has an attribute, or says that its instances have one."""
    if hasattr(kind, name):
        return True
    return any(name in get_annotations(base) for base in kind.__mro__)


class CutTexts(ExplainedNames):
    """A model that says how many texts it has cut, to each thread of its own call."""

    @property
    def truncated(self) -> int:
        """How many texts the last call of this thread had to cut."""
        return _last_calls.truncated.get(self, 0)

    @truncated.setter
    def truncated(self, count: int) -> None:
        _last_calls.truncated[self] = count


class EncoderProperties(CutTexts):
    """Length limit, columns, prompts and similarity of an encoder; each may be set at any time."""

    tokenizer: ModelTokenizer
    settings: EncoderSettings
    width: int  # columns of a vector before ``truncate_dim``

    @property
    def most_tokens(self) -> int:
        """The largest number of tokens of a text that the encoder can read."""
        raise NotImplementedError

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
        wrong = f"prompts must be a dictionary of names and texts, not {one_line(prompts)}"
        if not isinstance(prompts, Mapping):
            raise InputError(wrong)
        for name, text in prompts.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise InputError(wrong)
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
            names = "none"
            if self.settings.prompts:
                names = ", ".join(map(one_line, self.settings.prompts))
            raise InputError(
                f"default_prompt_name {one_line(name)} is not one of the prompts; there are {names}"
            )
        self.settings = replace(self.settings, default_prompt_name=name)

    @property
    def similarity_fn_name(self) -> str:
        """How ``similarity`` compares: "cosine", "dot", "euclidean" or "manhattan"."""
        return self.settings.similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: SimilarityName) -> None:
        check_choice("similarity_fn_name", name, SIMILARITIES)
        self.settings = replace(self.settings, similarity_fn_name=name)

    def configured(
        self,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: SimilarityName | None = None,
    ) -> Self:
        """Override the folder's settings with the arguments that are not None."""
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim
        if prompts is not None:
            self.prompts = self.prompts | dict(prompts)
        if default_prompt_name is not None:
            self.default_prompt_name = default_prompt_name
        if similarity_fn_name is not None:
            self.similarity_fn_name = similarity_fn_name
        return self

    def get_embedding_dimension(self) -> int:
        """The number of columns of a vector as ``encode`` returns it."""
        return min(self.truncate_dim or self.width, self.width)

    get_sentence_embedding_dimension = get_embedding_dimension


# ----------------------------------------------------------------------------------------- prompts

# The names of prompts for queries and for documents. The first that the model has counts, as in
# sentence-transformers.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


def role_prompt(settings: EncoderSettings, role: str) -> str:
    """Return the model's prompt for a "query" or a "document", or its default; "" for none.

    A loaded model has a prompt called "query" and one called "document", empty ones where its
    folder states none. These count, as in sentence-transformers. The default prompt, or one that is
    called "passage", counts only for a model whose ``prompts`` were assigned without them.
    """
    for name in PROMPT_NAMES[role]:
        if name in settings.prompts:
            return choose_prompt(settings, name=name)
    return choose_prompt(settings)


def choose_prompt(
    settings: EncoderSettings, prompt: str | None = None, name: str | None = None
) -> str:
    """Return ``prompt``, or the model's prompt called ``name``, or its default; "" for none.

    Raises ``InputError`` for both at once, and for a name that the model lacks.
    """
    for argument in (prompt, name):
        if argument is not None and not isinstance(argument, str):
            raise InputError(f"a prompt and its name are strings, not {one_line(argument)}")
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
    return named_prompt(settings, name)


def named_prompt(settings: EncoderSettings, name: str) -> str:
    """Return the model's prompt called ``name``; ``InputError`` if it has none."""
    if name not in settings.prompts:
        names = ", ".join(map(one_line, settings.prompts))
        raise InputError(f"the model has no prompt {one_line(name)}; it has {names}")
    prompt = settings.prompts[name]
    # Perhaps the model has a prompt for documents, under a name by which nobody asks for it.
    if name == "document" and not prompt:
        for other in PROMPT_NAMES["document"]:
            if settings.prompts.get(other):
                say_unused(other)
    return prompt


@cache  # so it is said once
def say_unused(name: str) -> None:
    """Say that a model's prompt for documents has a name that nobody looks for."""
    warn(
        f"documents get no prompt: the model's is called {name}, which sentence-transformers does "
        f'not use for them either; give prompt_name="{name}", or rename it "document" in '
        f"config_sentence_transformers.json"
    )


def with_prompt(
    texts: Sequence[str],
    settings: EncoderSettings,
    tokenizer: ModelTokenizer,
    prompt: str | None,
    name: str | None,
) -> tuple[list[str], int]:
    """Put the prompt before each text; also return how many tokens of it are not pooled."""
    prompt = choose_prompt(settings, prompt, name)
    unpooled = 0
    if prompt and not settings.include_prompt:
        unpooled = prompt_tokens(tokenizer, prompt)
    return [prompt + text for text in texts], unpooled


def prompt_tokens(tokenizer: ModelTokenizer, prompt: str) -> int:
    """Count the tokens at the start of a text that belong to its prompt.

    [CLS] is one of them. The [SEP] that ends the prompt alone is not.
    They are counted in the prompt alone, as in sentence-transformers. At its end the text may
    change a token.
    """
    ids = tokenizer.encode([prompt]).ids[0]
    last = tokenizer.backend.get_added_tokens_decoder().get(ids[-1])
    if last is not None and last.special:
        return len(ids) - 1
    return len(ids)


# ------------------------------------------------------------------------------------ similarities

AnyVectors = np.ndarray | Tensor | Sequence  # (N, D), or one (D,)


def as_array(x: Tensor) -> np.ndarray:
    """Convert a tensor on the CPU to an array; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        x = x.float()
    return x.numpy()


def vector_rows(vectors: AnyVectors) -> np.ndarray:
    """Convert vectors to an array (N, D), a single one to one row; ``InputError`` for others."""
    if isinstance(vectors, Tensor):
        vectors = as_array(vectors.detach().cpu())
    try:
        rows = np.atleast_2d(vectors)
    except ValueError:  # lists of several lengths
        raise not_vectors(vectors) from None
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise not_vectors(vectors)
    return rows


def not_vectors(vectors: object) -> InputError:
    """Make the error for what is no array of vectors."""
    return InputError(f"vectors must be numbers (N, D), not {one_line(vectors)}")


def similarity(a: AnyVectors, b: AnyVectors, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare every row of a (N, D) with every row of b (M, D) -> (N, M).

    The result has the finer dtype of the two. By ``name`` the cosine, the "dot" product, or minus
    the "euclidean" or "manhattan" distance. Returns a tensor on the CPU if one of the two is a
    tensor, else an array.
    """
    u, v = comparable_tensors(a, b)
    if name == "dot":
        result = u @ v.T
    elif name == "cosine":
        result = cosine_matrix(u, v)
    else:
        # subtle: by products of matrices, torch's default for many rows, a small distance would be
        # a rounding error
        result = -torch.cdist(u, v, DISTANCES[name], compute_mode="donot_use_mm_for_euclid_dist")
    return in_callers_type(result, a, b)


def similarity_pairwise(a: AnyVectors, b: AnyVectors, name: str = "cosine") -> np.ndarray | Tensor:
    """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
    u, v = comparable_tensors(a, b)
    if len(u) != len(v):
        raise InputError(f"{len(u)} and {len(v)} vectors do not make pairs")
    if name == "dot":
        result = (u * v).sum(dim=1)
    elif name == "cosine":
        result = cosine(u, v)
    else:
        result = -torch.linalg.vector_norm(u - v, DISTANCES[name], dim=1)
    return in_callers_type(result, a, b)


def comparable_tensors(a: AnyVectors, b: AnyVectors) -> tuple[Tensor, Tensor]:
    """Convert both to tensors of one dtype, the finer; ``InputError`` for different widths."""
    a = vector_rows(a)
    b = vector_rows(b)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
    dtype = np.result_type(a, b, np.float32)
    # Copies: torch warns about arrays that cannot be written to, as ``np.load(mmap_mode="r")``
    # gives them.
    u = torch.tensor(a.astype(dtype))
    v = torch.tensor(b.astype(dtype))
    for x in (u, v):
        if not x.norm(dim=1).isfinite().all():
            raise InputError("a vector's length is not finite, so it cannot be compared")
    return u, v


def in_callers_type(result: Tensor, a: AnyVectors, b: AnyVectors) -> np.ndarray | Tensor:
    """Return the result as a tensor if one of the vectors came as a tensor, else as an array."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return result
    return result.numpy()
