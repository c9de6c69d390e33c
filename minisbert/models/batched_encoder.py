"""From the tokens of many texts to vectors or states, in batches; every encoder's ``encode`` builds on it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.encoder import normalize as unit
from minisbert.models.batching import Batch, packed_batches
from minisbert.models.encoder_properties import EncoderProperties
from minisbert.system.progress import Progress


class BatchedEncoder(EncoderProperties):
    """A subclass computes the vectors of one batch (``vectors``, ``states``)."""

    normalize: bool  # scale each vector to length 1
    dtype: torch.dtype

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """The context in which ``encode`` computes. Raises ``InputError`` for a dtype that is not supported."""
        raise NotImplementedError

    def vectors(self, batch: Batch, skip: int) -> Tensor:
        """The vectors (N, ``width``) of a batch, before any scaling; pooling leaves out the first ``skip`` tokens."""
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
        if self.normalize and not normalize_embeddings:  # scaling twice could change a last bit
            vectors = unit(vectors)
        vectors = vectors[:, :columns]
        if normalize_embeddings:
            vectors = unit(vectors)
        return vectors


def all_finite(result: Tensor | list[Tensor]) -> bool:
    tensor = torch.cat(result) if isinstance(result, list) else result
    return bool(tensor.isfinite().all())
