"""What every encoder does, whatever it computes vectors with.

    texts ── prompts, tokenize ──> Tokens ── batches ── embed ──> vectors (N, D) ──> result

``TextEncoder`` is the way from texts to numbers, and knows nothing of networks: a kind of encoder
says in ``computing``, ``batches`` and ``embed`` what it computes a batch with. ``DenseEncoder``
adds the ``encode`` of the kinds with one dense vector for each text. Imports ``search``, which
knows how vectors of any kind are compared.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.models.batching import (
    BATCH_TOKENS,
    TEXT_TOKENS,
    Tokens,
    check_tokens,
    chunks,
    distinct_rows,
    tokenize,
    valid_texts,
)
from minisbert.models.encode_types import Dtype, OutputValue, Precision, typed_encode
from minisbert.models.properties import (
    PROMPT_NAMES,
    EncoderProperties,
    ExplainedModule,
    as_array,
    check_choice,
    check_count,
    role_prompt,
    similarity,
    similarity_pairwise,
    with_prompt,
)
from minisbert.replacements import ENCODE, explained
from minisbert.search.kinds import KINDS
from minisbert.search.quantized import CALIBRATED, PRECISIONS, quantize
from minisbert.system.console import warn
from minisbert.system.devices import too_little_memory
from minisbert.system.progress import Bar, bar_of


class NotFinite(InputError):
    """A model's output holds NaN or infinity."""


class TextEncoder(EncoderProperties, ExplainedModule):
    """From texts to numbers, for all kinds of encoders.

    A kind defines ``encode``, ``encode_query``, ``encode_document`` and ``similarity`` for users,
    and what they compute with: ``computing``, ``batches``, and ``embed`` or ``token_states``.
    """

    vectors_are: ClassVar[Literal["dense", "sparse", "per token"]] = "dense"
    reads_empty_texts = False  # whether a text may have no token at all
    normalize: bool = False  # scale each vector to length 1
    hidden_size: int  # columns of a token's hidden state
    # Whether a user was reminded that the model has prompts. Two threads may both do it.
    _reminded = False

    # ------------------------------------------------------------------------- what a kind defines

    @property
    def device(self) -> torch.device:
        """Where the encoder computes."""
        raise NotImplementedError

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the vectors."""
        raise NotImplementedError

    @property
    def pooling_mode(self) -> str:
        """How one vector is made of those of the tokens."""
        raise NotImplementedError

    def computing(self, dtype: str | None) -> AbstractContextManager[torch.dtype]:
        """Return the context in which batches are computed; it gives the matrix products' dtype.

        Raises ``InputError`` for a ``dtype`` that the encoder cannot compute in.
        """
        raise NotImplementedError

    def batches(self, tokens: Any, batch_tokens: int | None = None) -> Iterator[Any]:
        """Divide the texts of a call into batches of at most so many tokens, for ``embed``.

        ``batch.texts`` are their numbers in the call. None stands for ``usual_batch_tokens``.
        """
        raise NotImplementedError

    def usual_batch_tokens(self, tokens: Any) -> int:
        """Return how many tokens a batch has if the caller does not say: as many as are fastest."""
        return BATCH_TOKENS

    def embed(self, batch: Any) -> Tensor:
        """Compute the vectors (B, D) of a batch."""
        raise NotImplementedError

    def token_states(self, batch: Any) -> list[Tensor]:
        """Compute the hidden states (T, D) of each text of a batch."""
        raise InputError(
            "a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled"
        )

    def encode(self, *texts: Any, **options: Any) -> Any:
        """Texts -> what this kind of encoder gives for them."""
        raise NotImplementedError

    def encode_query(self, *texts: Any, **options: Any) -> Any:
        """``encode`` for queries."""
        raise NotImplementedError

    def encode_document(self, *texts: Any, **options: Any) -> Any:
        """``encode`` for documents."""
        raise NotImplementedError

    def similarity(self, a: Any, b: Any) -> Any:
        """Compare all of a with all of b, as ``encode`` gives them: (N, M)."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------- what users call

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        show_progress_bar: bool = False,
        total: int | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Encode more texts than fit in memory: yield the results of a few thousand at a time.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left;
        ``options`` are those of ``encode``. ``self.truncated`` keeps counting. Raises
        ``InputError`` as ``encode`` does, at the first bad text.
        """
        parts = chunks(valid_texts(texts))
        return self.encode_chunks(parts, show_progress_bar, total, options)

    def encode_chunks(
        self,
        parts: Iterable[list[str]],
        show_progress_bar: bool,
        total: int | None,
        options: dict[str, Any],
    ) -> Iterator[Any]:
        """Yield the results of one list of texts after the other, with one bar for all."""
        truncated = 0
        self.truncated = 0
        with bar_of(show_progress_bar, total) as bar:
            for texts in parts:
                result = self.encode(texts, show_progress_bar=bar, **options)
                truncated += self.truncated
                self.truncated = truncated
                yield result

    def top_k(
        self, queries: Any, corpus: Any, k: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search by the model's own similarity: queries (Q, D), corpus (N, D) -> scores and rows.

        Both are (Q, k), the best first.
        """
        search = KINDS[self.vectors_are].top_k
        return search(queries, corpus, k, progress, self.similarity_fn_name)

    # ------------------------------------------------------------------ the steps of every encode

    def remind_of_prompts(self) -> None:
        """Say once that a model with prompts for queries and documents is used without one."""
        settings = self.settings
        if self._reminded or settings.default_prompt_name is not None:
            return
        if not settings.prompts.get("query"):
            return
        names = ["query"]
        for name in PROMPT_NAMES["document"]:
            if settings.prompts.get(name):
                names.append(name)
        if len(names) > 1:
            self._reminded = True
            warn(
                f"encoding without a prompt: call encode_query, or give prompt_name, one of "
                f"{', '.join(names)}"
            )

    def tokens_of(
        self, texts: Sequence[str], prompt: str | None = None, prompt_name: str | None = None
    ) -> Tokens:
        """Put the prompt before each text, by default the model's, and tokenize them."""
        texts = check_texts(texts)
        unpooled = 0
        default = self.settings.default_prompt_name
        if prompt is not None or prompt_name is not None or default is not None:
            texts, unpooled = with_prompt(texts, self.settings, self.tokenizer, prompt, prompt_name)
        tokens = tokenize(self.tokenizer, texts)
        tokens.unpooled = unpooled
        if not self.reads_empty_texts:
            check_tokens(tokens, texts)
        return tokens

    def vectors_of(
        self,
        tokens: Tokens,
        batch_tokens: int | None = None,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
        progress: Bar | None = None,
    ) -> Tensor:
        """Tokens of N texts -> vectors (N, D) on the CPU; options as for ``encode``."""
        columns = self.columns(truncate_dim)
        if tokens.unpooled and min(map(len, tokens.ids), default=math.inf) <= tokens.unpooled:
            raise InputError(
                "a text has no token of its own after its prompt, and include_prompt is false"
            )

        # Texts of the same tokens are computed once: repeated rows are common, and so are texts
        # that were cut to the same start.
        distinct, places = distinct_rows(tokens.ids)
        if progress is not None:
            progress.update(len(places) - len(distinct))  # the repeated ones are done
        try:
            with self.computing(dtype) as product_dtype:
                distinct_tokens = replace(tokens, ids=distinct, dtype=product_dtype)
                array_of_vectors = self.encode_tokens(distinct_tokens, batch_tokens, progress)
        except torch.OutOfMemoryError as error:
            batch_tokens = batch_tokens or self.usual_batch_tokens(distinct_tokens)
            raise too_little_memory(
                self.device, batch_tokens, self.hidden_size, TEXT_TOKENS
            ) from error
        # This tensor is made outside of inference mode, so gradients may be computed with it.
        vectors = torch.from_numpy(array_of_vectors)  # (n, width)
        if not np.isfinite(array_of_vectors).all():
            raise not_finite(self.tokenizer, distinct_tokens, vectors)

        if columns < self.width:
            vectors = vectors[:, :columns]
        # A model that scales its vectors has done so already, unless columns were cut.
        scaled = self.normalize and columns == self.width
        if normalize_embeddings and not scaled:
            vectors = normalize(vectors)
        if len(distinct) < len(places):
            vectors = vectors[places]
        return vectors.to(self.dtype)

    def encode_tokens(
        self, tokens: Tokens, batch_tokens: int | None = None, progress: Bar | None = None
    ) -> np.ndarray:
        """Tokens of N texts -> vectors (N, width), within ``computing``."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        vectors = torch.empty(len(tokens.ids), self.width, dtype=dtype).numpy()
        for batch in self.batches(tokens, batch_tokens):
            # The batch's vectors (B, width) go to the rows that their texts have in the call.
            vectors[batch.texts] = self.embed(batch).to("cpu", dtype).numpy()
            if progress is not None:
                progress.update(len(batch.texts))
        return vectors

    def states_of(
        self,
        tokens: Tokens,
        batch_tokens: int | None = None,
        dtype: str | None = None,
        progress: Bar | None = None,
    ) -> list[Tensor]:
        """Tokens of N texts -> the hidden states (T, D) of each; options as for ``encode``."""
        states: list[Tensor] = [torch.empty(0)] * len(tokens.ids)
        with self.computing(dtype) as product_dtype:
            tokens = replace(tokens, dtype=product_dtype)
            for batch in self.batches(tokens, batch_tokens):
                for text, matrix in zip(batch.texts, self.token_states(batch), strict=True):
                    states[text] = matrix.cpu()
                if progress is not None:
                    progress.update(len(batch.texts))
        if not all(matrix.isfinite().all() for matrix in states):
            raise not_finite(self.tokenizer, tokens, states)
        # The copies are made outside of inference mode, so gradients may be computed with them.
        return [matrix.clone() for matrix in states]

    def columns(self, truncate_dim: int | None) -> int:
        """Return how many columns of a vector are kept: these, or as many as the settings say."""
        if truncate_dim is not None:
            self.check_columns(truncate_dim)
            return int(truncate_dim)
        return self.get_embedding_dimension()


class DenseEncoder(TextEncoder):
    """A kind of encoder with one dense vector for each text."""

    @typed_encode
    @explained(ENCODE)
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | Bar | None = False,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        dtype: Dtype | None = None,
    ) -> Any:
        """Texts -> (N, D) array, row i for text i; one text -> (D,).

        The array is float32 (float64 after ``double()``). Texts longer than ``max_seq_length`` are
        cut and counted in ``self.truncated``. An empty text has a vector, that of [CLS] [SEP].
        Raises ``InputError`` for anything but valid strings, for options out of range, and for NaN.

        prompt                before each text; ``prompt_name`` for one of ``prompts``; otherwise
                              the model's default
        batch_size            a batch has as many tokens as this many texts of 64 tokens (None: 32;
                              on a GPU up to 512, compiled 2,048, if they fit)
        show_progress_bar     True for a live line with rate and time left
        output_value          "sentence_embedding", or "token_embeddings": each text's hidden states
                              (T, D), tensors
        precision             of what is returned: "float32", or codes in "int8", "uint8", "binary"
                              or "ubinary"
        convert_to_tensor     True for a tensor on the CPU; ``convert_to_numpy=False`` for a list of
                              them
        normalize_embeddings  True scales to length 1 at the end, after ``truncate_dim``; a model's
                              own scaling is before it, as in sentence-transformers
        truncate_dim          keep the first n columns; None for the model's default, usually all
        dtype                 of the arithmetic: "float32", "bfloat16" or "auto"; None for the
                              model's, usually float32
        """
        check_encode_options(output_value, precision, normalize_embeddings, truncate_dim, dtype)
        batch_tokens = tokens_per_batch(batch_size)
        if prompt is None and prompt_name is None:
            self.remind_of_prompts()

        single = isinstance(texts, str)
        if isinstance(texts, str):
            texts = [texts]
        tokens = self.tokens_of(texts, prompt, prompt_name)
        self.truncated = sum(tokens.truncated)

        with bar_of(show_progress_bar, len(tokens)) as bar:
            if output_value == "token_embeddings":
                states = self.states_of(tokens, batch_tokens, dtype, bar)
                return states[0] if single else states
            vectors = self.vectors_of(
                tokens, batch_tokens, truncate_dim, normalize_embeddings, dtype, bar
            )
        if precision not in (None, "float32"):
            vectors = codes_of(vectors, precision)
        return as_asked(vectors, single, convert_to_numpy, convert_to_tensor)

    @typed_encode
    @explained(ENCODE, encode)
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries, called "query", not its default one."""
        return self.encode(texts, **with_role_prompt(self, "query", options))

    @typed_encode
    @explained(ENCODE, encode)
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the prompt for documents, called "document", not the default one."""
        return self.encode(texts, **with_role_prompt(self, "document", options))

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare every row of a (N, D) with every row of b (M, D) -> (N, M).

        By ``similarity_fn_name`` the cosine, the dot product, or minus a distance, in the finer
        dtype of the two. Returns a tensor if one of the two is a tensor, else an array.
        """
        return similarity(a, b, self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
        return similarity_pairwise(a, b, self.similarity_fn_name)


# ------------------------------------------------------------------------ the options of ``encode``


def check_encode_options(
    output_value: object,
    precision: object,
    normalize_embeddings: object,
    truncate_dim: object,
    dtype: object,
) -> None:
    """Raise ``InputError`` for an option of ``encode`` that has no such value."""
    check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
    check_choice("precision", precision, (None, *PRECISIONS))
    check_choice("normalize_embeddings", normalize_embeddings, (None, True, False))
    check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))
    if output_value == "sentence_embedding":
        return
    if normalize_embeddings or truncate_dim is not None or precision not in (None, "float32"):
        raise InputError("normalize_embeddings, truncate_dim, precision: for vectors of texts only")


def tokens_per_batch(batch_size: int | None) -> int | None:
    """Return how many tokens a batch of this ``batch_size`` has; None for the fastest."""
    if batch_size is None:
        return None
    check_count("batch_size", batch_size)
    return TEXT_TOKENS * batch_size


def with_role_prompt(encoder: TextEncoder, role: str, options: dict[str, Any]) -> dict[str, Any]:
    """Add the model's prompt for a "query" or a "document", unless the options name one."""
    if options.get("prompt") is None and options.get("prompt_name") is None:
        options["prompt"] = role_prompt(encoder.settings, role)
    return options


# ------------------------------------------------------------------------- the result of ``encode``


def not_finite(
    tokenizer: ModelTokenizer, tokens: Tokens, results: Tensor | list[Tensor]
) -> NotFinite:
    """Make the error that names the first text whose numbers are not finite.

    ``results`` are a row or a matrix for each text.
    """
    damaged = [number for number, result in enumerate(results) if not result.isfinite().all()]
    # The message blames the weights, not this text, which may only have shared a row with another.
    name = one_line(tokenizer.backend.decode(list(tokens.ids[damaged[0]])))
    more_texts = ""
    if len(damaged) > 1:
        more_texts = f", like those of {len(damaged) - 1:,} more texts"
    return NotFinite(
        f"the vector of {name} holds NaN or infinity{more_texts}: the model's weights are too large"
    )


def codes_of(vectors: Tensor, precision: str) -> Tensor:
    """Quantise vectors (N, D) to codes of a ``precision``, (N, D) or (N, D / 8)."""
    if precision in ("int8", "uint8") and len(vectors) == 1:
        raise InputError(
            f"precision {precision} divides the range of each column, and one text has none"
        )
    if len(vectors) == 0:
        # Without texts there are no codes, but still an array of their dtype and width.
        zeros = np.zeros((CALIBRATED, vectors.shape[1]), np.float32)
        return torch.from_numpy(quantize(zeros, precision)[:0])
    return torch.from_numpy(quantize(as_array(vectors), precision))


def as_asked(vectors: Tensor, single: bool, to_numpy: bool, to_tensor: bool) -> Any:
    """Return vectors (N, D) as an array, a tensor or a list of tensors; of a single text (D,)."""
    if single:
        vectors = vectors[0]
    if to_tensor or (single and not to_numpy):
        return vectors
    if not to_numpy:
        return list(vectors)
    return as_array(vectors)
