"""What every encoder does with texts: ``SentenceEncoder``, a compiled package, a table of static vectors."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import index
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, encoder, one_line, reading
from minisbert.core.checks import check, check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.folder.settings import EncoderSettings
from minisbert.models.batching import ID_BYTES, Batch, chunks, packed_batches, tokenize
from minisbert.models.guards import PerThread
from minisbert.models.prompts import DOCUMENT_PROMPTS, QUERY_PROMPTS, with_prompt
from minisbert.models.tokenizer import Tokenizer, valid_texts
from minisbert.search.dense import top_k
from minisbert.system.console import Progress

BATCH_TOKENS = 2048  # per batch; on two cores no other size is faster, and larger ones need more memory


def as_array(x: Tensor) -> np.ndarray:
    """A tensor on the CPU as an array; NumPy has no bfloat16."""
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


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
    # overridden if vectors are not arrays (N, D): the options of ``encode`` for vectors to search, the search (queries,
    # corpus, k, progress) -> scores and rows, (Q, k) each, and the tensors in a file
    searched: ClassVar[dict[str, Any]] = {}
    top_k = staticmethod(top_k)
    to_tensors = staticmethod(lambda vectors: {"vectors": torch.from_numpy(vectors)})
    from_tensors = staticmethod(lambda tensors: tensors["vectors"].numpy())

    def computing(self, precision: str | None) -> AbstractContextManager:
        """The context in which ``encode`` computes. Raises ``InputError`` for a precision that is not supported."""
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
        precision: str | None = None,
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
        precision     "float32", "bfloat16" if the hardware has it, or "auto"; None for float32, or what a compiled
                      encoder was compiled for
        convert       "array" for numpy, "tensor" for torch, both on the CPU
        prompt        put before each text, "" for nothing; prompt_name for one of the model's ``settings.prompts``.
                      Without either, the model's default prompt, if it has one

        Raises ``InputError`` for anything but a list of valid strings, for options out of range, and for NaN.
        """
        texts, skip = with_prompt(check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name)
        with reading("encode"):
            rules = "batch_tokens an integer from 1, output sentence|token, convert array|tensor"
            check(rules, index(batch_tokens), output, convert)
        if output == "token" and (normalize is not None or truncate_dim is not None):
            raise InputError("normalize and truncate_dim are for sentence vectors, not for output='token'")
        shown = nullcontext(progress) if isinstance(progress, Progress) else Progress(len(texts), progress)
        tokens, self.truncated = tokenize(self.tokenizer, texts)
        keys = list(dict.fromkeys(tokens))  # of the distinct texts
        places = {key: place for place, key in enumerate(keys)}
        # created here, not in inference mode: a caller may compute gradients with it
        vectors = torch.empty(len(keys), self._columns(truncate_dim), dtype=self.dtype)
        states: dict[int, Tensor] = {}
        with self.computing(precision), shown as line:
            line.expect(len(texts), sum(map(len, keys)) // ID_BYTES)
            for batch, found in self._computed(keys, batch_tokens, skip, output, dict(zip(tokens, texts, strict=True))):
                if output == "token":
                    states |= {text: matrix.cpu() for text, matrix in zip(batch.texts, found, strict=True)}
                else:
                    vectors[batch.texts] = self._scaled(found, normalize, vectors.shape[1]).cpu()
                line.update(batch.tokens)
        if output == "token":  # copies, outside of inference mode
            matrices = [states[places[key]].clone() for key in tokens]
            return matrices if convert == "tensor" else [as_array(matrix) for matrix in matrices]
        result = vectors if len(keys) == len(tokens) else vectors[[places[key] for key in tokens]]
        return result if convert == "tensor" else as_array(result)

    def encode_tokens(self, rows: Sequence[Sequence[int]], skip: int = 0) -> np.ndarray:
        """Texts that are token ids already, special tokens included -> (N, D), scaled as ``encode`` does.

        ``skip`` tokens at the start of each row are left out of the pooling.
        """
        keys = [array("i", ids).tobytes() for ids in rows]
        vectors = torch.empty(len(keys), self._columns(None), dtype=self.dtype)
        names = {key: f"with the tokens {list(ids)[:8]} ..." for key, ids in zip(keys, rows, strict=True)}
        with self.computing(None):
            for batch, found in self._computed(keys, BATCH_TOKENS, skip, "sentence", names):
                vectors[batch.texts] = self._scaled(found, None, vectors.shape[1]).cpu()
        return as_array(vectors)

    def _columns(self, truncate_dim: int | None) -> int:
        """How many columns ``encode`` returns."""
        if truncate_dim is not None and truncate_dim not in range(1, self.width + 1):
            raise InputError(f"truncate_dim {truncate_dim} is not in 1 to {self.width}, the number of columns")
        return int(min(truncate_dim or self.settings.truncate_dim or self.width, self.width))

    def _computed(
        self, keys: list[bytes], batch_tokens: int, skip: int, output: str, texts: dict[bytes, str]
    ) -> Iterator[tuple[Batch, Any]]:
        """Each batch with its vectors or states, all finite. ``keys`` are tokens, ``texts`` what they came from."""
        for batch in packed_batches(keys, batch_tokens):
            if skip and not (batch.places[:, skip:] >= 0).any(dim=1).all():
                raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
            found = self.states(batch) if output == "token" else self.vectors(batch, skip)
            if not (torch.cat(found) if isinstance(found, list) else found).isfinite().all():
                # alone, one after the other: NaN reaches all texts that share a row
                alone = ((text, self.vectors(next(packed_batches([keys[text]], 1)), 0)) for text in batch.texts)
                bad = next((text for text, vector in alone if not vector.isfinite().all()), batch.texts[0])
                name = one_line(texts[keys[bad]])
                raise InputError(f"the vector of {name} holds NaN or infinity: the model's weights are too large")
            yield batch, found

    def _scaled(self, vectors: Tensor, normalize: bool | None, columns: int) -> Tensor:
        """Vectors (N, ``width``) cut and scaled as ``encode`` returns them, (N, ``columns``)."""
        if normalize is None:
            return (unit(vectors) if self.normalize else vectors)[:, :columns]
        return unit(vectors[:, :columns]) if normalize else vectors[:, :columns]

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
        a, b = np.atleast_2d(a), np.atleast_2d(b)
        if a.shape[1] != b.shape[1]:
            raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
        if self.settings.similarity == "cosine":
            return encoder.SentenceEncoder.similarity(self, a, b)
        u, v = (torch.tensor(x.astype(np.result_type(a, b, np.float32), copy=False)) for x in (a, b))
        if self.settings.similarity == "dot":
            return (u @ v.T).numpy()
        # subtle: by products of matrices, the default for many rows, a small distance would be rounding error
        p = 1 if self.settings.similarity == "manhattan" else 2
        return -torch.cdist(u, v, p, compute_mode="donot_use_mm_for_euclid_dist").numpy()

    def encode_query(self, texts: Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries; without one if it has none."""
        return self.encode(texts, prompt=self._role_prompt(QUERY_PROMPTS), **options)

    def encode_document(self, texts: Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents; without one if it has none."""
        return self.encode(texts, prompt=self._role_prompt(DOCUMENT_PROMPTS), **options)

    def _role_prompt(self, names: Sequence[str]) -> str:
        prompts = self.settings.prompts
        return next((prompts[name] for name in names if name in prompts), "")
