"""What a user may read and change on every encoder, under sentence-transformers' names."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Self

import numpy as np
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.folder.settings import EncoderSettings
from minisbert.models.guards import check_choice, check_count
from minisbert.models.similarity import similarity, similarity_pairwise
from minisbert.models.tokenizer import Tokenizer

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
PROPERTIES = ("max_seq_length", "truncate_dim", "prompts", "default_prompt_name", "similarity_fn_name")


class EncoderProperties:
    """Length limit, columns, prompts and similarity of an encoder; each may be set at any time."""

    tokenizer: Tokenizer
    settings: EncoderSettings
    width: int  # columns of a vector, before ``truncate_dim``
    most_tokens: int  # that the encoder can read

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in PROPERTIES and not name.startswith("_") and not hasattr(self, name):
            similar = get_close_matches(name, PROPERTIES, 1, cutoff=0.75)
            if similar:  # such an attribute would change nothing, silently
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}: did you mean {similar[0]!r}?")
        super().__setattr__(name, value)

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of a text, special tokens included; longer texts are cut."""
        return self.tokenizer.limit

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        check_count("max_seq_length", tokens)
        if tokens > self.most_tokens:
            raise InputError(f"max_seq_length {tokens} is above {self.most_tokens}, the encoder's positions")
        tokenizer = copy.copy(self.tokenizer)  # another encoder may have the same one
        tokenizer.limit = int(tokens)
        self.tokenizer = tokenizer

    @property
    def truncate_dim(self) -> int | None:
        """The number of columns that ``encode`` keeps; None for all."""
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
        strings = isinstance(prompts, Mapping) and all(
            isinstance(text, str) for pair in prompts.items() for text in pair
        )
        if not strings:
            raise InputError(f"prompts must be a dictionary of names and texts, not {one_line(prompts)}")
        default = self.settings.default_prompt_name
        if default not in prompts:
            default = None
        self.settings = replace(self.settings, prompts=dict(prompts), default_prompt_name=default)

    @property
    def default_prompt_name(self) -> str | None:
        """The prompt of ``encode`` if none is given; None for no prompt."""
        return self.settings.default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        if name is not None and name not in self.settings.prompts:
            names = ", ".join(map(one_line, self.settings.prompts)) or "none"
            raise InputError(f"default_prompt_name {one_line(name)} is not one of the prompts; there are {names}")
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
        """The columns of a vector as ``encode`` returns it."""
        return min(self.truncate_dim or self.width, self.width)

    get_sentence_embedding_dimension = get_embedding_dimension

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

        By ``similarity_fn_name`` the cosine, the dot product, or minus a distance. A tensor if one of the two is a
        tensor, else an array.
        """
        return similarity(a, b, self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` compares them."""
        return similarity_pairwise(a, b, self.similarity_fn_name)

    def configured(
        self,
        truncate_dim: int | None,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
    ) -> Self:
        """This encoder with the settings that are not None in the place of the folder's."""
        if truncate_dim is not None:
            self.truncate_dim = truncate_dim
        if prompts is not None:
            self.prompts = self.prompts | dict(prompts)
        if default_prompt_name is not None:
            self.default_prompt_name = default_prompt_name
        if similarity_fn_name is not None:
            self.similarity_fn_name = similarity_fn_name
        return self
