"""Texts to vectors, the same for every encoder: ``load``, ``encode`` and its relatives, and the settings behind them.

    texts ── with_prompt ── tokenize ──> Tokens ── the book's encode_tokens ──> vectors (N, D) ── quantize ──> result

A subclass overrides steps of ``encode_tokens``: ``batches``, ``states``, ``vectors``.
Imports ``search`` for the hooks by which a command searches vectors of any kind.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.layout import EncoderSettings, ModelFolder, find_model
from minisbert.core import InputError, encoder, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import Tokenizer
from minisbert.models.batching import Tokens, chunks, packed_batches, reporting, tokenize, with_limit
from minisbert.models.encode_types import typed_encode
from minisbert.models.guards import NotFinite, check_choice, check_count, check_tokens, valid_texts
from minisbert.models.prompts import PROMPT_NAMES, role_prompt, with_prompt
from minisbert.models.similarity import as_array, similarity, similarity_pairwise
from minisbert.search.dense import top_k
from minisbert.search.quantized import CALIBRATED, PRECISIONS, quantize
from minisbert.system.console import say
from minisbert.system.devices import choose_device, too_little_memory
from minisbert.system.progress import Progress, as_progress

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
BATCH_SIZE, TEXT_TOKENS = 32, 64  # texts of a batch, and the tokens that one of them stands for
BATCH_TOKENS = BATCH_SIZE * TEXT_TOKENS  # on two cores no other size is faster, and larger ones need more memory


class EncoderProperties:
    """Length limit, columns, prompts and similarity of an encoder; each may be set at any time."""

    tokenizer: Tokenizer
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
            raise InputError(f"max_seq_length {tokens} is above {self.most_tokens}, the encoder's positions")
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
        strings = strings and all(isinstance(text, str) for text in [*prompts.keys(), *prompts.values()])
        if not strings:
            raise InputError(f"prompts must be a dictionary of names and texts, not {one_line(prompts)}")
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

    def configured(
        self,
        truncate_dim: int | None,
        prompts: Mapping[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
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

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

        By ``similarity_fn_name`` the cosine, the dot product, or minus a distance. Returns a tensor if one of the two
        is a tensor, else an array.
        """
        return similarity(a, b, self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare row i of a (N, D) with row i of b (N, D) -> (N,), as ``similarity`` does."""
        return similarity_pairwise(a, b, self.similarity_fn_name)


class TextEncoder(EncoderProperties, encoder.SentenceEncoder):
    """``load``, ``encode`` and its relatives. A subclass defines ``from_folder``, ``computing`` and ``vectors``."""

    folder_class: ClassVar[str]  # class whose folders ``load`` accepts, a user's subclass too
    normalize: bool  # scale each vector to length 1
    reads_empty_texts = False  # texts without a single token
    dtype: torch.dtype
    device: torch.device
    pooling_mode: str
    hidden_size: int  # columns of a token's hidden state
    truncated = 0  # texts that the last ``encode`` had to cut
    _reminded = False
    # How a command searches and stores what ``encode`` returns: the options of ``encode`` for searching, ``top_k``, and
    # the tensors of a file. Sparse vectors and vectors per token override all five.
    vectors_are: ClassVar[Literal["dense", "sparse", "per token"]] = "dense"
    search_options: ClassVar[dict[str, Any]] = {}

    def top_k(self, queries: Any, corpus: Any, k: int, progress: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Search by the model's own similarity: vectors of queries (Q, D), corpus (N, D) -> scores and rows, (Q, k)."""
        return top_k(queries, corpus, k, progress, self.similarity_fn_name)

    @staticmethod
    def to_tensors(vectors: Any) -> dict[str, Tensor]:
        return {"vectors": torch.from_numpy(vectors)}

    @staticmethod
    def from_tensors(tensors: dict[str, Tensor]) -> Any:
        return tensors["vectors"].numpy()

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        pooling: str | None = None,
        device: str | torch.device = "auto",
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
    ) -> Self:
        """Open a model in eval mode: a name (downloaded if it is missing) or a folder in sentence-transformers' layout.

        Arguments that are not None override the folder's settings: ``pooling``; ``max_seq_length`` in tokens;
        ``truncate_dim`` columns; ``prompts``, added to the folder's; ``default_prompt_name``; ``similarity_fn_name``. A
        plain BERT states no pooling and gets the mean. ``device`` is "auto" (CUDA if there is one, else the CPU),
        "cpu", "cuda" or "mps". ``minisbert.load`` opens models of any class, and compiled ones. Raises ``InputError``
        for anything missing, damaged or not supported.
        """
        place = choose_device(device)
        folder = ModelFolder(find_model(model), cls.folder_class)
        encoder = cls.from_folder(folder, pooling, max_seq_length)
        return encoder.configured(truncate_dim, prompts, default_prompt_name, similarity_fn_name).on(place)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        """Open the encoder in a folder, on the CPU."""
        raise NotImplementedError

    def on(self, device: torch.device) -> Self:
        """Move the encoder to a device."""
        return self.to(device)

    def computing(self, dtype: str | None) -> AbstractContextManager:
        """Return the context in which batches are computed. Raises ``InputError`` for an unsupported dtype."""
        raise NotImplementedError

    def batches(  # type: ignore[override]  # tokens with more fields than the book's
        self, tokens: Tokens, batch_size: int | None = None
    ) -> Iterator[Any]:
        """Split a call's texts into batches of as many tokens as ``batch_size`` texts of 64 tokens have."""
        batches = packed_batches(tokens, TEXT_TOKENS * (batch_size or BATCH_SIZE))
        return batches if tokens.progress is None else reporting(batches, tokens.progress)

    def token_states(self, batch: Any) -> list[Tensor]:
        """Compute the hidden states (T, D) of each text of a batch."""
        raise InputError("a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled")

    @typed_encode
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | Progress | None = False,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Texts -> (N, D) array, row i for text i; one text -> (D,). float32 (float64 after ``double()``).

        Texts longer than ``max_seq_length`` are cut and counted in ``self.truncated``. An empty text has a vector, that
        of [CLS] [SEP]. Raises ``InputError`` for anything but valid strings, for options out of range, and for NaN.

        prompt                before each text; ``prompt_name`` for one of ``prompts``; otherwise the model's default
        batch_size            a batch has as many tokens as this many texts of 64 tokens (None: 32; on a GPU, what fits)
        show_progress_bar     True for a live line with rate and time left
        output_value          "sentence_embedding", or "token_embeddings": each text's hidden states (T, D), tensors
        precision             of what is returned: "float32", or codes in "int8", "uint8", "binary" or "ubinary"
        convert_to_tensor     True for a tensor on the CPU; ``convert_to_numpy=False`` for a list of them
        normalize_embeddings  True scales to length 1 at the end, after ``truncate_dim``; a model's own scaling is
                              before it, as in sentence-transformers
        truncate_dim          keep the first n columns; None for the model's default, usually all
        dtype                 of the arithmetic: "float32", "bfloat16" or "auto"; None for the model's, usually float32
        """
        if prompt is None and prompt_name is None:
            self._remind_of_prompts()
        single = isinstance(texts, str)
        texts = check_texts(cast(Sequence[str], [texts] if single else texts))
        skip = 0
        if prompt is not None or prompt_name is not None or self.settings.default_prompt_name is not None:
            texts, skip = with_prompt(texts, self.settings, self.tokenizer, prompt, prompt_name)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
        check_choice("precision", precision, (None, *PRECISIONS))
        check_choice("normalize_embeddings", normalize_embeddings, (None, True, False))
        check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))
        is_float = precision in (None, "float32")
        tokens = tokenize(self.tokenizer, texts)
        tokens.prompt = skip
        if not self.reads_empty_texts and not all(map(len, tokens.ids)):
            check_tokens(tokens, texts)
        self.truncated = sum(tokens.truncated)
        with ExitStack() as stack:
            if show_progress_bar:
                tokens.progress = stack.enter_context(as_progress(show_progress_bar, len(texts)))
            if output_value == "token_embeddings":
                if normalize_embeddings or truncate_dim is not None or not is_float:
                    raise InputError("normalize_embeddings, truncate_dim, precision: for vectors of texts only")
                states = self._states_of(tokens, batch_size, dtype)
                return states[0] if single else states
            vectors = self.vectors_of(tokens, batch_size, truncate_dim, bool(normalize_embeddings), dtype)
        if not is_float:
            vectors = codes_of(vectors, cast(str, precision))
        if single:
            vectors = vectors[0]
        if convert_to_tensor or (single and not convert_to_numpy):
            return vectors
        if not convert_to_numpy:
            return list(vectors)
        return as_array(vectors) if vectors.dtype == torch.bfloat16 else vectors.numpy()

    def vectors_of(
        self,
        tokens: Tokens,
        batch_size: int | None = None,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
    ) -> Tensor:
        """Encode texts that are tokenized -> (N, D) on the CPU. A server that receives token ids calls it directly."""
        columns = self.settings.truncate_dim or self.width
        if truncate_dim is not None:
            self.check_columns(truncate_dim)
            columns = int(truncate_dim)
        columns = min(columns, self.width)
        # texts of the same tokens are computed once: repeated rows are common, and so are texts cut to the same start
        keys = [ids.tobytes() for ids in cast(list[array], tokens.ids)]
        distinct = dict(zip(keys, tokens.ids, strict=True))
        row_of = {key: row for row, key in enumerate(distinct)}
        if tokens.prompt and min(map(len, tokens.ids), default=math.inf) <= tokens.prompt:
            raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
        computed = replace(tokens, ids=list(distinct.values()))
        if tokens.progress is not None:
            tokens.progress.expect(len(keys), sum(map(len, computed.ids)))
        try:
            with self.computing(dtype) as computed.dtype:
                # None, for which the book has no case, is the default of ``batches`` below
                found = self.encode_tokens(computed, batch_size)  # type: ignore[arg-type]  # (n, width)
        except torch.OutOfMemoryError as error:
            batch_tokens = TEXT_TOKENS * (batch_size or BATCH_SIZE)
            raise too_little_memory(self.device, batch_tokens, self.hidden_size, TEXT_TOKENS) from error
        vectors = torch.from_numpy(found)  # outside of inference mode: gradients may be computed with it
        check_finite(self.tokenizer, computed, vectors)
        if columns < self.width:
            vectors = vectors[:, :columns]
        # a model that scales its vectors has done so already, unless columns were cut
        if normalize_embeddings and not (self.normalize and columns == self.width):
            vectors = normalize(vectors)
        if len(distinct) < len(keys):
            vectors = vectors[[row_of[key] for key in keys]]
        return vectors.to(self.dtype)

    def _states_of(self, tokens: Tokens, batch_size: int | None, dtype: str | None) -> list[Tensor]:
        """Return the hidden states (T, D) of each text, as ``vectors_of`` returns vectors."""
        states: list[Tensor] = [torch.empty(0)] * len(tokens.ids)
        with self.computing(dtype) as tokens.dtype:
            for batch in self.batches(tokens, batch_size):
                for text, matrix in zip(batch.texts, self.token_states(batch), strict=True):
                    states[text] = matrix.cpu()
        check_finite(self.tokenizer, tokens, states)
        return [matrix.clone() for matrix in states]  # outside of inference mode: gradients may be computed

    def _remind_of_prompts(self) -> None:
        """Say once that the model has prompts for queries and for documents, if it takes neither by default."""
        named = [name for name in sum(PROMPT_NAMES.values(), ()) if self.settings.prompts.get(name)]
        if named[:1] == ["query"] and len(named) > 1 and self.default_prompt_name is None and not self._reminded:
            self._reminded = True
            say(f"encoding without a prompt: call encode_query, or give prompt_name, one of {', '.join(named)}")

    def encode_stream(
        self, texts: Iterable[str], *, show_progress_bar: bool = False, total: int | None = None, **options: Any
    ) -> Iterator[Any]:
        """Encode more texts than fit in memory: yield the results of a few thousand texts at a time, in order.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left; ``options`` are those of
        ``encode``. ``self.truncated`` keeps counting. Raises ``InputError`` as ``encode`` does, at the first bad text.
        """
        truncated = self.truncated = 0
        with Progress(total, show_progress_bar) as line:
            for chunk in chunks(valid_texts(texts)):
                result = self.encode(chunk, show_progress_bar=line, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    @typed_encode
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries, called "query", and without its default prompt."""
        return self._encode_role("query", texts, options)

    @typed_encode
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents, called "document", and without its default prompt."""
        return self._encode_role("document", texts, options)

    def _encode_role(self, role: str, texts: str | Sequence[str], options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt"] = role_prompt(self.settings, role)
        return self.encode(texts, **options)


def check_finite(tokenizer: Tokenizer, tokens: Tokens, results: Tensor | list[Tensor]) -> None:
    """Raise ``NotFinite`` with the first text whose numbers, a row or a matrix of ``results``, are not finite."""
    if isinstance(results, Tensor) and np.isfinite(results.numpy()).all():
        return
    damaged = [number for number, result in enumerate(results) if not result.isfinite().all()]
    if not damaged:
        return
    # The first one may only have shared a row with the text at fault: the cause is the weights, not the text.
    name, others = one_line(tokenizer.backend.decode(list(tokens.ids[damaged[0]]))), ""
    if len(damaged) > 1:
        others = f", like those of {len(damaged) - 1:,} more texts"
    raise NotFinite(f"the vector of {name} holds NaN or infinity{others}: the model's weights are too large")


def codes_of(vectors: Tensor, precision: str) -> Tensor:
    """Quantise vectors (N, D) to (N, D) or (N, D / 8) codes of a ``precision``; none if there are none."""
    if precision in ("int8", "uint8") and len(vectors) == 1:
        raise InputError(f"precision {precision} divides the range of each column, and one text has none")
    rows = as_array(vectors)
    if not len(rows):  # an empty input gives an empty array of the right dtype and width
        rows = np.zeros((CALIBRATED, vectors.shape[1]), np.float32)
    return torch.from_numpy(quantize(rows, precision)[: len(vectors)])
