"""What every encoder builds on: settings that a user may change, and tokens to vectors or states, in batches."""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import normalize as unit
from minisbert.folder.settings import EncoderSettings
from minisbert.models.batching import Batch, packed_batches
from minisbert.models.guards import check_choice, check_count
from minisbert.models.similarity import similarity, similarity_pairwise
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.progress import Progress

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


class BatchedEncoder(EncoderProperties):
    """Tokens to vectors or states; a subclass computes those of one batch (``vectors``, ``states``)."""

    normalize: bool  # scale each vector to length 1
    scales_itself = False  # whether ``vectors`` does so already
    dtype: torch.dtype

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """The context in which ``encode`` computes. Raises ``InputError`` for a dtype that is not supported."""
        raise NotImplementedError

    def vectors(self, batch: Batch, skip: int) -> Tensor:
        """The vectors (N, ``width``) of a batch without its first ``skip`` tokens, scaled if it ``scales_itself``."""
        raise NotImplementedError

    def states(self, batch: Batch) -> list[Tensor]:
        """The hidden states (T, D) of each text of a batch."""
        raise InputError("a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled")

    def _gather(
        self,
        batches: Iterator[tuple[Batch, Tensor]],
        keys: list[bytes],
        columns: int,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
    ) -> Tensor:
        """The vectors (N, ``columns``) of N texts, given by their tokens, from batches of the distinct ones."""
        rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        # created here, not in inference mode: a caller may compute gradients with it
        vectors = torch.empty(len(rows), columns, dtype=self.dtype)
        with self.computing(dtype):
            for batch, result in batches:
                vectors[batch.texts] = self._scaled(result, normalize_embeddings, columns).cpu()
        if len(rows) < len(keys):
            vectors = vectors[[rows[key] for key in keys]]
        return vectors

    def _gather_states(
        self, batches: Iterator[tuple[Batch, list[Tensor]]], keys: list[bytes], dtype: str | None
    ) -> list[Tensor]:
        """The hidden states (T, D) of each of N texts."""
        distinct = list(dict.fromkeys(keys))
        states: dict[bytes, Tensor] = {}
        with self.computing(dtype):
            for batch, result in batches:
                for text, matrix in zip(batch.texts, result, strict=True):
                    states[distinct[text]] = matrix.cpu()
        return [states[key].clone() for key in keys]  # copies, outside of inference mode

    def _finite(
        self, distinct: dict[bytes, str], batch_tokens: int, skip: int, by_token: bool, line: Progress
    ) -> Iterator[tuple[Batch, Any]]:
        """``_computed`` of the distinct tokens; ``InputError`` names a text whose numbers are not finite."""
        keys = list(distinct)
        for batch, result in self._computed(keys, batch_tokens, skip, by_token):
            if not all_finite(result):
                name = one_line(distinct[self._culprit([keys[text] for text in batch.texts], by_token)])
                raise InputError(f"the vector of {name} holds NaN or infinity: the model's weights are too large")
            yield batch, result
            line.update(batch.tokens)

    def _culprit(self, keys: list[bytes], by_token: bool) -> bytes:
        """The first of some texts whose numbers are not finite. NaN reaches all texts that share a row with it."""
        for key in keys:
            for _, result in self._computed([key], 1, 0, by_token):
                if not all_finite(result):
                    return key
        return keys[0]

    def _computed(self, keys: list[bytes], batch_tokens: int, skip: int, by_token: bool) -> Iterator[tuple[Batch, Any]]:
        """Each batch of texts, given by their tokens, with its vectors (N, ``width``) or the states of its texts."""
        for batch in packed_batches(keys, batch_tokens):
            if skip and not (batch.places[:, skip:] >= 0).any(dim=1).all():
                raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
            if by_token:
                yield batch, self.states(batch)
            else:
                yield batch, self.vectors(batch, skip)

    def _columns(self, truncate_dim: int | None) -> int:
        """How many columns ``encode`` returns."""
        if truncate_dim is None:
            return self.get_embedding_dimension()
        self.check_columns(truncate_dim)
        return int(truncate_dim)

    def _scaled(self, vectors: Tensor, normalize_embeddings: bool, columns: int) -> Tensor:
        """Vectors (N, ``width``) cut and scaled as ``encode`` returns them, (N, ``columns``)."""
        if self.normalize and not self.scales_itself and not normalize_embeddings:  # twice could change a last bit
            vectors = unit(vectors)
        vectors = vectors[:, :columns]
        if normalize_embeddings:
            vectors = unit(vectors)
        return vectors


def all_finite(result: Tensor | list[Tensor]) -> bool:
    tensor = torch.cat(result) if isinstance(result, list) else result
    # first the sum, one operation instead of several: NaN and infinity reach it, but finite numbers may overflow in it
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
