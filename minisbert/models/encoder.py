"""Texts to vectors, the same for every encoder: ``load``, ``encode`` and its relatives, and the settings behind them.

    texts ── with_prompt ── tokenize ──> token ids as bytes ── encode_batches ──> vectors (N, D) ── quantize ──> result

A subclass computes one batch (``vectors``, ``states``): ``SentenceEncoder``, a compiled package, a static table.
Imports ``search`` for the hooks by which a command searches vectors of any kind.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor

from minisbert.checkpoints.encoder_settings import EncoderSettings
from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.models.batching import ID_BYTES, Batch, chunks, packed_batches, tokenize
from minisbert.models.encode_types import typed_encode
from minisbert.models.guards import NotFinite, check_choice, check_count
from minisbert.models.prompts import PROMPT_NAMES, role_prompt, role_prompt_name, with_prompt
from minisbert.models.similarity import as_array, similarity, similarity_pairwise
from minisbert.models.tokenizer import Tokenizer, valid_texts
from minisbert.search.dense import top_k
from minisbert.search.quantized import CALIBRATED, PRECISIONS, quantize
from minisbert.system.console import say
from minisbert.system.devices import choose_device, naming_batch_size
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
        tokenizer = copy.copy(self.tokenizer)  # other encoders may share it
        tokenizer.limit = int(tokens)
        self.tokenizer = tokenizer

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


class TextEncoder(EncoderProperties):
    """``load``, ``encode`` and its relatives. A subclass defines ``from_folder``, ``computing`` and ``vectors``."""

    folder_class: ClassVar[str]  # class whose folders ``load`` accepts, a user's subclass too
    normalize: bool  # scale each vector to length 1
    scales_itself = False  # ``vectors`` has done so already
    dtype: torch.dtype
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
        folder = ModelFolder(find_model(model)).opened_by(cls.folder_class)
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

    def batches(self, keys: Sequence[bytes], batch_tokens: int) -> Iterator[Batch]:
        """Split texts, given by their token ids, into batches for ``vectors`` and ``states``."""
        return packed_batches(keys, batch_tokens)

    def results(self, keys: Sequence[bytes], batch_tokens: int, skip: int) -> Iterable[tuple[Any, Tensor]]:
        """Compute each of ``batches``: its vectors are (n, ``width``)."""
        return ((batch, self.vectors(batch, skip)) for batch in self.batches(keys, batch_tokens))

    def vectors(self, batch: Any, skip: int = 0) -> Tensor:
        """Compute the vectors (N, ``width``) of a batch, pooled without the first ``skip`` tokens of each text."""
        raise NotImplementedError

    def states(self, batch: Any) -> list[Tensor]:
        """Compute the hidden states (T, D) of each text of a batch."""
        raise InputError("a compiled encoder gives vectors, not the hidden states of tokens: load it uncompiled")

    @typed_encode
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = BATCH_SIZE,
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
        batch_size            a batch has as many tokens as this many texts of 64 tokens; short texts share rows
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
        texts = check_texts([texts] if single else texts)
        texts, skip = with_prompt(texts, self.settings, self.tokenizer, prompt, prompt_name)
        check_count("batch_size", batch_size)
        check_choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
        precision = "float32" if precision is None else precision
        check_choice("precision", precision, PRECISIONS)
        check_choice("normalize_embeddings", normalize_embeddings, (None, True, False))
        check_choice("dtype", dtype, (None, "auto", "float32", "bfloat16", "int8"))
        keys, self.truncated = tokenize(self.tokenizer, texts)
        with as_progress(show_progress_bar, len(texts)) as line:
            line.expect(len(texts), sum(map(len, set(keys))) // ID_BYTES)
            if output_value == "token_embeddings":
                if normalize_embeddings or truncate_dim is not None or precision != "float32":
                    raise InputError("normalize_embeddings, truncate_dim, precision: for vectors of texts only")
                states = self._encode_states(keys, TEXT_TOKENS * batch_size, dtype, line)
                return states[0] if single else states
            vectors = self.encode_batches(
                keys, TEXT_TOKENS * batch_size, skip, truncate_dim, normalize_embeddings, dtype, line
            )
        if precision != "float32":
            vectors = codes_of(vectors, precision)
        if single:
            vectors = vectors[0]
        if convert_to_tensor or (single and not convert_to_numpy):
            return vectors
        return as_array(vectors) if convert_to_numpy else list(vectors)

    def encode_batches(
        self,
        keys: Sequence[bytes],
        batch_tokens: int = BATCH_TOKENS,
        skip: int = 0,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
        line: Progress | None = None,
    ) -> Tensor:
        """Encode texts given by their token ids (``batching.as_key``) -> (N, D) on the CPU, row i for ``keys[i]``.

        This is ``encode`` after tokenizing, with the same options; a server that receives token ids calls it directly.
        The ids include special tokens; ``skip`` of them at the start of each text are not pooled.
        """
        columns = self.get_embedding_dimension()
        if truncate_dim is not None:
            self.check_columns(truncate_dim)
            columns = int(truncate_dim)
        # Texts of the same tokens are computed once: repeated rows are common, and so are texts cut to the same start.
        row_of = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        distinct = list(row_of)
        if skip and min(map(len, distinct), default=math.inf) <= skip * ID_BYTES:
            raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
        # With ``normalize_embeddings`` the vectors are scaled once, at the end: scaling twice could change a last bit.
        model_scales = self.normalize and not self.scales_itself and not normalize_embeddings
        # Not in inference mode: the caller may compute gradients with it. NumPy, which stores, wakes no threads.
        vectors = torch.empty(len(distinct), columns, dtype=torch.promote_types(self.dtype, torch.float32))
        with self.computing(dtype), naming_batch_size(self.device, batch_tokens, self.hidden_size, TEXT_TOKENS):
            for batch, result in self.results(distinct, batch_tokens, skip):  # (n, width)
                if model_scales:
                    result = unit(result)
                result = result[:, :columns]
                if normalize_embeddings:
                    result = unit(result)
                vectors.numpy()[batch.texts] = result.to(vectors.dtype).cpu().numpy()
                if line is not None:
                    line.update(batch.tokens)
        self._check_finite(distinct, vectors)
        if len(distinct) < len(keys):
            vectors = torch.from_numpy(vectors.numpy()[[row_of[key] for key in keys]])
        return vectors.to(self.dtype)

    def _encode_states(
        self, keys: Sequence[bytes], batch_tokens: int, dtype: str | None, line: Progress
    ) -> list[Tensor]:
        """Return the hidden states (T, D) of each text, as ``encode_batches`` returns vectors."""
        distinct = list(dict.fromkeys(keys))
        states: dict[bytes, Tensor] = {}
        with self.computing(dtype):
            for batch in self.batches(distinct, batch_tokens):
                for text, matrix in zip(batch.texts, self.states(batch), strict=True):
                    states[distinct[text]] = matrix.cpu()
                line.update(batch.tokens)
        # Copies, outside of inference mode: equal texts must not share memory, and gradients may be computed.
        result = [states[key].clone() for key in keys]
        self._check_finite(keys, result)
        return result

    def _check_finite(self, keys: Sequence[bytes], results: Tensor | list[Tensor]) -> None:
        """Raise ``InputError`` with the first text whose numbers, a row or a matrix of ``results``, are not finite."""
        if isinstance(results, Tensor) and np.isfinite(results.numpy()).all():
            return
        damaged = [number for number, result in enumerate(results) if not result.isfinite().all()]
        if not damaged:
            return
        # The first one may only have shared a row with the text at fault: the cause is the weights, not the text.
        ids = np.frombuffer(keys[damaged[0]], dtype=np.intc).tolist()
        name, others = one_line(self.tokenizer.backend.decode(ids)), ""
        if len(damaged) > 1:
            others = f", like those of {len(damaged) - 1:,} more texts"
        raise NotFinite(f"the vector of {name} holds NaN or infinity{others}: the model's weights are too large")

    def _remind_of_prompts(self) -> None:
        """Say once that the model has prompts for queries and for documents, if it takes neither by default."""
        both = all(role_prompt(self.settings, role) for role in PROMPT_NAMES)
        if both and self.default_prompt_name is None and not self._reminded:
            self._reminded = True
            say("encoding without a prompt, though the model has some: encode_query and encode_document use them")

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
        """``encode`` with the model's prompt for queries; with its default prompt if it has none."""
        return self._encode_role("query", texts, options)

    @typed_encode
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for documents; with its default prompt if it has none."""
        return self._encode_role("document", texts, options)

    def _encode_role(self, role: str, texts: str | Sequence[str], options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = role_prompt_name(self.settings, role)
        return self.encode(texts, **options)


def codes_of(vectors: Tensor, precision: str) -> Tensor:
    """Quantise vectors (N, D) to (N, D) or (N, D / 8) codes of a ``precision``; none if there are none."""
    if precision in ("int8", "uint8") and len(vectors) == 1:
        raise InputError(f"precision {precision} divides the range of each column, and one text has none")
    rows = as_array(vectors)
    if not len(rows):  # rows of zeros have the dtype and the width that none should have
        rows = np.zeros((CALIBRATED, vectors.shape[1]), np.float32)
    return torch.from_numpy(quantize(rows, precision)[: len(vectors)])
