"""Compute what the server answers: vectors of texts, and scores of documents for a query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minisbert.backends.cuda import CudaEncoder
from minisbert.backends.package import CompiledEncoder
from minisbert.core import InputError
from minisbert.loading import load_dense
from minisbert.models.pair_model import TASKS_WITH_LABELS, PairScorer
from minisbert.models.properties import as_array, choose_prompt, role_prompt
from minisbert.models.text_encoder import TextEncoder
from minisbert.system.devices import choose_dtype


class Result(NamedTuple):
    """What was computed for a text or a document."""

    value: Any  # a vector (D,) float32, or a score
    tokens: int  # how many were read, special ones included
    cut: bool  # whether the text was longer than the model's limit


@dataclass
class Engine:
    """An encoder and, optionally, a reranker, with the names by which clients know them.

    ``dtype`` is an option of ``encode``. The reranker computes in float32. All is computed in the
    calling thread.
    """

    name: str
    encoder: TextEncoder
    reranker: PairScorer | None = None
    reranker_name: str = ""
    dtype: str | None = None

    def __post_init__(self) -> None:
        load_dense(self.encoder)  # refuses SPLADE and ColBERT
        if self.reranker is not None and self.reranker.task in TASKS_WITH_LABELS:
            raise InputError(
                f"{self.reranker_name} gives several numbers; a reranker gives one score for each "
                f"pair"
            )
        self.description = self.describe()

    def describe(self) -> str:
        """Say which models answer, how they compute, and how long a text may be."""
        if isinstance(self.encoder, CompiledEncoder | CudaEncoder):
            arithmetic = f"{self.encoder.compiled_dtype}, compiled"
        else:
            dtype, _ = choose_dtype(self.dtype or "float32", self.encoder.device)
            arithmetic = f"{str(dtype).removeprefix('torch.')}, not compiled"
        text = f"{self.name} ({arithmetic}, {self.encoder.tokenizer.limit:,} tokens)"
        if self.reranker is not None:
            limit = self.reranker.tokenizer.limit
            text += f" and {self.reranker_name} (float32, not compiled, {limit:,} tokens)"
        return text

    def prompt(self, role: str | None) -> str:
        """Return the model's prompt for a "query" or a "document", or for None its default.

        It is "" if the model has none.
        """
        settings = self.encoder.settings
        if role is None:
            return choose_prompt(settings)
        return role_prompt(settings, role)

    def embed(self, prompt: str, texts: Sequence[str]) -> list[Result]:
        """Embed texts in one call. Raises ``InputError``."""
        tokens = self.encoder.tokens_of(texts, prompt)
        vectors = as_array(self.encoder.vectors_of(tokens, dtype=self.dtype))  # (N, D)
        vectors = np.asarray(vectors, dtype=np.float32)
        results = []
        for vector, ids, cut in zip(vectors, tokens.ids, tokens.truncated, strict=True):
            results.append(Result(vector, len(ids), cut))
        return results

    def score(self, query: str, documents: Sequence[str]) -> list[Result]:
        """Score each document for a query with the reranker, as its ``predict`` does.

        Raises ``InputError``.
        """
        assert self.reranker is not None, "the application answers 404"
        pairs = [(query, document) for document in documents]
        scores = self.reranker.predict(pairs).tolist()

        # The reranker does not keep what it has read: tokenizing a second time costs little beside
        # the forward.
        count = len(documents)
        encoded = self.reranker.tokenize([query] * count, documents)

        # A head over two vectors reads 2 N rows: N times the query, then the N documents. Rows i
        # and N + i are those of document i. Other heads read N rows, and row i is that of both.
        results: list[Result] = []
        for i, score in enumerate(scores):
            tokens = sum(len(ids) for ids in encoded.ids[i::count])
            cut = any(encoded.truncated[i::count])
            results.append(Result(score, tokens, cut))
        return results
