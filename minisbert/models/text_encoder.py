"""What every encoder does with texts: ``SentenceEncoder``, a compiled package, a table of static vectors."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.folder.settings import EncoderSettings
from minisbert.models.batching import ID_BYTES, Batch, chunks, packed_batches, tokenize
from minisbert.models.guards import PerThread, check_choice, check_count
from minisbert.models.prompts import role_prompt, with_prompt
from minisbert.models.similarity import as_array, similarity
from minisbert.models.tokenizer import Tokenizer, valid_texts
from minisbert.search.dense import top_k
from minisbert.system.console import Progress

BATCH_TOKENS = 2048  # per batch; on two cores no other size is faster, and larger ones need more memory


def as_progress(progress: bool | Progress, total: int) -> AbstractContextManager[Progress]:
    """The progress line of an ``encode``: a new one, or the caller's, which stays open."""
    if isinstance(progress, Progress):
        return nullcontext(progress)
    return Progress(total, progress)


class TextEncoder:
    """Texts to vectors, in batches. A subclass computes the vectors of a batch (``vectors``, ``states``)."""

    tokenizer: Tokenizer
    settings: EncoderSettings
    width: int  # columns of a vector, before ``settings.truncate_dim``
    pooling_mode: str
    hidden_size: int  # columns of a token's hidden state
    normalize: bool  # scale each vector to length 1
    dtype: torch.dtype
    truncated = PerThread()  # texts that the last ``encode`` had to cut
    # Hooks for encoders whose output is not a dense array: options of ``encode`` for vectors to search, the search
    # (queries, corpus, k, progress) -> scores and rows, (Q, k) each, and the tensors in a file
    search_options: ClassVar[dict[str, Any]] = {}
    top_k = staticmethod(top_k)
    to_tensors = staticmethod(lambda vectors: {"vectors": torch.from_numpy(vectors)})
    from_tensors = staticmethod(lambda tensors: tensors["vectors"].numpy())

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """The context in which ``encode`` computes. Raises ``InputError`` for a dtype that is not supported."""
        raise NotImplementedError

    def vectors(self, batch: Batch, skip: int) -> Tensor:
        """The vectors (N, ``width``) of a batch, before any scaling; pooling leaves out the first ``skip`` tokens."""
        raise NotImplementedError

    def states(self, batch: Batch) -> list[Tensor]:
        """The hidden states (T, D) of each text of a batch."""
        raise InputError("a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled")

    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | Progress = False,
        *,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        output: str = "sentence",
        dtype: str | None = None,
        convert: str = "array",
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray | Tensor | list:
        """Texts -> (N, D) array, row i for text i; float32 (float64 for a model that was made ``double()``).

        An empty text is [CLS] [SEP] and has a vector, as in the reference. Texts beyond the length limit are cut
        and counted in ``self.truncated``. Texts with the same tokens are computed once.

        batch_tokens  the largest number of tokens in a batch; texts of several lengths share it without pads
        progress      True for a live line with rate and time left
        normalize     True for vectors of length 1, False for those before any scaling, None for the model's default
        truncate_dim  keep the first n columns; None for the model's default, usually all. As in sentence-transformers
                      the model's own scaling comes before the cut, so vectors are shorter than 1; ``normalize=True``
                      scales after it
        output        "sentence", or "token" for a list with the hidden states (T, D) of every text's real tokens
        dtype     "float32", "bfloat16" if the hardware has it, or "auto"; None for float32, or what a compiled
                      encoder was compiled for
        convert       "array" for numpy, "tensor" for torch, both on the CPU
        prompt        put before each text, "" for nothing; prompt_name for one of the model's ``settings.prompts``.
                      Without either, the model's default prompt, if it has one

        Raises ``InputError`` for anything but a list of valid strings, for options out of range, and for NaN.
        """
        texts, skip = with_prompt(check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name)
        check_count("batch_tokens", batch_tokens)
        check_choice("normalize", normalize, (None, True, False))
        check_choice("output", output, ("sentence", "token"))
        check_choice("convert", convert, ("array", "tensor"))
        check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16"))
        if output == "token" and (normalize is not None or truncate_dim is not None):
            raise InputError("normalize and truncate_dim are for sentence vectors, not for output='token'")
        columns = self._columns(truncate_dim)
        keys, self.truncated = tokenize(self.tokenizer, texts)
        distinct = dict(zip(keys, texts, strict=True))  # a text for each sequence of tokens
        with as_progress(progress, len(texts)) as line:
            line.expect(len(texts), sum(map(len, distinct)) // ID_BYTES)
            batches = self._finite(distinct, batch_tokens, skip, output, line)
            if output == "token":
                states = self._gather_states(batches, keys, dtype)
                return [as_array(matrix) for matrix in states] if convert == "array" else states
            vectors = self._gather(batches, keys, columns, normalize, dtype)
        return as_array(vectors) if convert == "array" else vectors

    def encode_tokens(self, rows: Sequence[Sequence[int]], skip: int = 0) -> np.ndarray:
        """Texts that are token ids already, special tokens included -> (N, D), scaled as ``encode`` does.

        ``skip`` tokens at the start of each row are left out of the pooling.
        """
        keys = [array("i", ids).tobytes() for ids in rows]
        names = {key: f"with the tokens {list(ids)[:8]} ..." for key, ids in zip(keys, rows, strict=True)}
        with Progress(None, shown=False) as line:
            batches = self._finite(names, BATCH_TOKENS, skip, "sentence", line)
            return as_array(self._gather(batches, keys, self._columns(None)))

    def _gather(
        self,
        batches: Iterator[tuple[Batch, Tensor]],
        keys: list[bytes],
        columns: int,
        normalize: bool | None = None,
        dtype: str | None = None,
    ) -> Tensor:
        """The vectors (N, ``columns``) of N texts, given by their tokens, from batches of the distinct ones."""
        rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        # created here, not in inference mode: a caller may compute gradients with it
        vectors = torch.empty(len(rows), columns, dtype=self.dtype)
        with self.computing(dtype):
            for batch, result in batches:
                vectors[batch.texts] = self._scaled(result, normalize, columns).cpu()
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
        self, distinct: dict[bytes, str], batch_tokens: int, skip: int, output: str, line: Progress
    ) -> Iterator[tuple[Batch, Any]]:
        """``_computed`` of the distinct tokens; ``InputError`` names a text whose numbers are not finite."""
        keys = list(distinct)
        for batch, result in self._computed(keys, batch_tokens, skip, output):
            if not all_finite(result):
                name = one_line(distinct[self._culprit([keys[text] for text in batch.texts], output)])
                raise InputError(f"the vector of {name} holds NaN or infinity: the model's weights are too large")
            yield batch, result
            line.update(batch.tokens)

    def _culprit(self, keys: list[bytes], output: str) -> bytes:
        """The first of some texts whose numbers are not finite. NaN reaches all texts that share a row with it."""
        for key in keys:
            for _, result in self._computed([key], 1, 0, output):
                if not all_finite(result):
                    return key
        return keys[0]

    def _computed(self, keys: list[bytes], batch_tokens: int, skip: int, output: str) -> Iterator[tuple[Batch, Any]]:
        """Each batch of texts, given by their tokens, with its vectors (N, ``width``) or the states of its texts."""
        for batch in packed_batches(keys, batch_tokens):
            if skip and not (batch.places[:, skip:] >= 0).any(dim=1).all():
                raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
            yield batch, self.states(batch) if output == "token" else self.vectors(batch, skip)

    def _columns(self, truncate_dim: int | None) -> int:
        """How many columns ``encode`` returns."""
        if truncate_dim is None:
            return min(self.settings.truncate_dim or self.width, self.width)
        check_count("truncate_dim", truncate_dim)
        if truncate_dim > self.width:
            raise InputError(f"truncate_dim {truncate_dim} is above {self.width}, the number of columns")
        return int(truncate_dim)

    def _scaled(self, vectors: Tensor, normalize: bool | None, columns: int) -> Tensor:
        """Vectors (N, ``width``) cut and scaled as ``encode`` returns them, (N, ``columns``)."""
        if normalize is None and self.normalize:
            vectors = unit(vectors)
        vectors = vectors[:, :columns]
        if normalize:
            vectors = unit(vectors)
        return vectors

    def encode_stream(
        self, texts: Iterable[str], progress: bool = False, *, total: int | None = None, **options: Any
    ) -> Iterator[np.ndarray | Tensor | list]:
        """``encode`` for more texts than fit in memory: yields the results of a few thousand texts at a time, in order.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left; ``options`` are those of
        ``encode``. ``self.truncated`` keeps counting. Raises ``InputError`` as ``encode`` does, at the first bad text.
        """
        truncated = self.truncated = 0
        with Progress(total, progress) as line:
            for chunk in chunks(valid_texts(texts)):
                result = self.encode(chunk, progress=line, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

        ``settings.similarity`` says how: "cosine", "dot", or minus the "euclidean" or "manhattan" distance.
        """
        return similarity(a, b, self.settings.similarity)

    def encode_query(self, texts: Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries; without one if it has none."""
        return self.encode(texts, prompt=role_prompt(self.settings, "query"), **options)

    def encode_document(self, texts: Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents; without one if it has none."""
        return self.encode(texts, prompt=role_prompt(self.settings, "document"), **options)


def all_finite(result: Tensor | list[Tensor]) -> bool:
    tensor = torch.cat(result) if isinstance(result, list) else result
    return bool(tensor.isfinite().all())
