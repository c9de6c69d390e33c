"""SPLADE: represent a text by weights of words, those in it and related ones.

Most weights are 0 (Formal et al. 2021). BERT's masked-language head says for each token which words
could stand in its place; a word's weight is the highest over the tokens, damped by a logarithm: one
number for each of the V words of the vocabulary. Texts are compared by dot products, so an inverted
index searches them. Models are ``SparseEncoder`` folders of sentence-transformers.

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary, N texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.checkpoints.layout import (
    CONFIG,
    MODULES_FILE,
    SENTENCE,
    TEXT_SETTINGS,
    EncoderSettings,
    ModelFolder,
    write_modules,
    write_settings,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import load_transformer
from minisbert.core import InputError, one_line
from minisbert.models.batching import BATCH_TOKENS, PackedBatch, Tokens, packed_batches
from minisbert.models.encode_types import Dtype, OutputValue, Precision
from minisbert.models.masked_language_model import MaskedHead, load_head, save_masked
from minisbert.models.properties import check_count, similarity, similarity_pairwise, vector_rows
from minisbert.models.text_encoder import (
    as_asked,
    check_encode_options,
    codes_of,
    tokens_per_batch,
    with_role_prompt,
)
from minisbert.models.transformer_encoder import TransformerEncoder, text_states, token_states
from minisbert.replacements import ENCODE, explained, takes_parts
from minisbert.search.by_tokens import sparse_rows
from minisbert.system.files import write_json
from minisbert.system.progress import Bar, bar_of

# So many vectors are in memory with all their zeros at a time: 30 MB for BERT's vocabulary.
DENSE_ROWS = 256


def splade_pool(logits: Tensor, mask: Tensor | None = None, mode: str = "max") -> Tensor:
    """log(1 + relu(logit)) of every word, the largest or the sum over tokens: (B, T, V) -> (B, V).

    Formal et al. 2021, arXiv 2109.10086, sections 3.2 (max) and 3.1 (sum, as in 2107.05720). mask
    (B, T), True for real tokens. Two tokens with logits [e - 1, -3] and [e^2 - 1, 0] give [2, 0] by
    max and [3, 0] by sum.
    """
    if mode == "sum":
        weights = logits.relu().log1p()  # (B, T, V)
        if mask is not None:
            weights = weights * mask.unsqueeze(-1)
        return weights.sum(dim=1)
    if mask is not None:
        logits = logits.masked_fill(~mask.bool().unsqueeze(-1), -torch.inf)
    # subtle: log and relu never decrease, so they may follow the maximum: V numbers a text, not T V
    return logits.max(dim=1).values.relu().log1p()


class SpladePooling(nn.Module):
    """The masked-language head and ``splade_pool``, where other models have a pooling."""

    def __init__(self, head: MaskedHead, strategy: str = "max"):
        super().__init__()
        self.head = head
        self.strategy = strategy
        self.mode = f"splade-{strategy}"

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> weights of words (B, V).

        Text by text, because (B, T, V) is large.
        """
        rows = []
        for i, states in enumerate(hidden):
            if mask is not None:
                states = states[mask[i].bool()]  # (T, D), the real tokens
            rows.append(splade_pool(self.head(states).unsqueeze(0), None, self.strategy))
        return torch.cat(rows)


class SparseEncoder(TransformerEncoder):
    """An encoder whose vectors have one column for each word, most of them 0.

    ``encode`` returns arrays (N, V), or with ``convert_to_sparse_tensor=True`` a COO tensor.
    """

    folder_class = "SparseEncoder"
    vectors_are = "sparse"

    @takes_parts
    def __init__(
        self,
        tokenizer: ModelTokenizer,
        bert: Encoder,
        pooling: SpladePooling,
        settings: EncoderSettings,
    ):
        super().__init__(tokenizer, bert, settings)
        self.pooling = pooling
        self.width = len(pooling.head.bias)

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        strategy = "max"
        places = folder.places["SpladePooling"]
        if places:  # a plain masked-language model has none
            check_fills_masks(folder)
            pooling_settings = folder.json_settings(f"{places[0]}/{CONFIG}")
            pooling_settings.choice("activation_function", "relu")
            strategy = pooling_settings.choice("pooling_strategy", "max", "sum")
        mode = f"splade-{strategy}"
        if pooling not in (None, mode):
            raise InputError(f"{folder.path}: pooling must be {mode}, not {one_line(pooling)}")
        bert = load_transformer(folder.encoder)
        module = SpladePooling(load_head(folder.encoder, bert), strategy)

        # ``EncoderSettings.read`` has the default of dense vectors, the cosine; that of sparse ones
        # is the dot product. truncate_dim is ignored, as in sentence-transformers: no column is
        # less important than those before it.
        similarity_name = folder.json(SENTENCE).get("similarity_fn_name") or "dot"
        settings = replace(
            EncoderSettings.read(folder), similarity_fn_name=similarity_name, truncate_dim=None
        )
        max_active_dims = settings.others.get("max_active_dims")
        if max_active_dims is not None:
            check_count(f"{folder.path / SENTENCE}: max_active_dims", max_active_dims)
        tokenizer = read_tokenizer(folder.encoder, limit)
        return cls(tokenizer, bert, module, settings).eval()

    @classmethod
    def load(cls, model: str | Path, *, max_active_dims: int | None = None, **options: Any) -> Self:
        """Open a model as ``SentenceEncoder.load`` does.

        ``max_active_dims`` overrides the folder's.
        """
        encoder = super().load(model, **options)
        if max_active_dims is not None:
            encoder.max_active_dims = max_active_dims
        return encoder

    @property
    def max_active_dims(self) -> int | None:
        """How many weights of each text ``encode`` keeps by default; None keeps all."""
        return self.settings.others.get("max_active_dims")

    @max_active_dims.setter
    def max_active_dims(self, count: int | None) -> None:
        if count is not None:
            check_count("max_active_dims", count)
        others = self.settings.others | {"max_active_dims": count}
        self.settings = replace(self.settings, others=others)

    def kept_weights(self, max_active_dims: int | None) -> int | None:
        """Return how many weights of each text are kept: these, or as many as the model keeps."""
        if max_active_dims is None:
            return self.max_active_dims
        check_count("max_active_dims", max_active_dims)
        return max_active_dims

    @property
    def pooling_mode(self) -> str:
        return self.pooling.mode

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> weights of words (B, V)."""
        return self.pooling(self.hidden(ids, mask, None, dtype), mask)

    def batches(self, tokens: Tokens, batch_tokens: int | None = None) -> Iterator[PackedBatch]:
        return packed_batches(tokens, batch_tokens or BATCH_TOKENS)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Compute the weights of words (N, V) of a batch."""
        hidden, mask = text_states(self.bert, batch)  # (N, S, D), (N, S)
        return self.pooling(hidden, mask)

    def token_states(self, batch: PackedBatch) -> list[Tensor]:
        return token_states(self.bert, batch)

    @explained(ENCODE)
    def encode(
        self,
        texts: str | Sequence[str],
        *,
        convert_to_sparse_tensor: bool = False,
        max_active_dims: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | Bar | None = False,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        dtype: Dtype | None = None,
    ) -> Any:
        """As ``SentenceEncoder.encode``; with ``convert_to_sparse_tensor`` a COO tensor (N, V).

        That tensor takes little memory; one text has (V,). ``max_active_dims``, by default the
        model's own, keeps the largest weights of each text. Raises ``InputError`` as
        ``SentenceEncoder.encode``, and for ``truncate_dim``.
        """
        if truncate_dim is not None:
            raise InputError(
                "truncate_dim keeps the first words of the vocabulary: max_active_dims keeps the "
                "heaviest"
            )
        check_encode_options(output_value, precision, normalize_embeddings, truncate_dim, dtype)
        if convert_to_sparse_tensor:
            check_sparse_options(output_value, precision)
        max_active_dims = self.kept_weights(max_active_dims)
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
            if convert_to_sparse_tensor or max_active_dims is not None:
                vectors = self.sparse_vectors_of(
                    tokens, max_active_dims, batch_tokens, normalize_embeddings, dtype, bar
                )
                if convert_to_sparse_tensor:
                    return vectors[0].coalesce() if single else vectors
                vectors = vectors.to_dense()  # (N, V)
            else:
                vectors = self.vectors_of(
                    tokens, batch_tokens, None, normalize_embeddings, dtype, bar
                )
        if precision not in (None, "float32"):
            vectors = codes_of(vectors, precision)
        return as_asked(vectors, single, convert_to_numpy, convert_to_tensor)

    @explained(ENCODE, encode)
    def encode_query(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the model's prompt for queries, called "query", not its default one."""
        return self.encode(texts, **with_role_prompt(self, "query", options))

    @explained(ENCODE, encode)
    def encode_document(self, texts: str | Sequence[str], **options: Any) -> Any:
        """``encode`` with the prompt for documents, called "document", not the default one."""
        return self.encode(texts, **with_role_prompt(self, "document", options))

    def sparse_vectors_of(
        self,
        tokens: Tokens,
        max_active_dims: int | None = None,
        batch_tokens: int | None = None,
        normalize_embeddings: bool = False,
        dtype: str | None = None,
        progress: Bar | None = None,
        rows: int = DENSE_ROWS,
    ) -> Tensor:
        """Tokens of N texts -> a COO tensor (N, V); options as for ``encode``.

        So many ``rows`` are computed at a time, because they are dense until zeros are left out.
        """
        # Without texts the result has no rows, but all columns.
        parts = [torch.empty(0, self.width, dtype=self.dtype).to_sparse()]
        for start in range(0, len(tokens), rows):
            part = replace(tokens, ids=tokens.ids[start : start + rows])
            dense = self.vectors_of(part, batch_tokens, None, normalize_embeddings, dtype, progress)
            parts.append(sparse_rows(dense, max_active_dims).to_sparse_coo())
        return torch.cat(parts).coalesce()

    def decode(self, vectors: np.ndarray | Tensor, top_k: int | None = None) -> list:
        """List the words of each vector (N, V) by weight: ``[[("cat", 1.9), ("kitten", 0.7)]]``.

        One vector (V,) has one list. ``top_k`` keeps the heaviest. Raises ``InputError``.
        """
        if top_k is not None:
            check_count("top_k", top_k)
        dense = vector_rows(with_zeros(vectors))
        if dense.shape[1] != self.width:
            raise InputError(
                f"vectors of width {dense.shape[1]}, but the vocabulary has {self.width} words"
            )
        # A stable sort, and not topk: of equal weights, the word that comes first in the vocabulary
        # is first here, too.
        weights, ids = torch.from_numpy(dense).sort(dim=1, descending=True, stable=True)  # (N, V)
        lists = []
        for row, columns in zip(weights[:, :top_k].tolist(), ids[:, :top_k].tolist(), strict=True):
            count = sum(weight > 0 for weight in row)
            words = self.tokenizer.tokens(columns[:count])
            lists.append(list(zip(words, row[:count], strict=True)))
        return lists[0] if vectors.ndim == 1 else lists

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare as ``SentenceEncoder.similarity`` does, sparse tensors too -> (N, M).

        By default the dot product. Returns a tensor if one of the two is a tensor, else an array.
        """
        return similarity(with_zeros(a), with_zeros(b), self.similarity_fn_name)

    def similarity_pairwise(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> Any:
        """Compare row i of a (N, V) with row i of b (N, V) -> (N,), sparse tensors too.

        Returns a tensor if one of the two is a tensor, else an array.
        """
        return similarity_pairwise(with_zeros(a), with_zeros(b), self.similarity_fn_name)

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_masked(self.bert, self.pooling.head, folder)
        write_tokenizer(self.tokenizer, folder)
        modules = ["MLMTransformer", "SpladePooling"]
        _, place = write_modules(folder, modules, "sparse_encoder.models")
        content = {
            "pooling_strategy": self.pooling.strategy,
            "activation_function": "relu",
            "embedding_dimension": self.width,
        }
        write_json(folder / place / CONFIG, content)
        limit = text_settings(self.tokenizer)
        write_settings(folder, self.settings, limit, model_type="SparseEncoder")


def check_sparse_options(output_value: str, precision: str | None) -> None:
    """Raise ``InputError`` for an option that a sparse tensor cannot have."""
    if output_value == "token_embeddings":
        raise InputError(
            "convert_to_sparse_tensor is for the vectors of texts, not for those of tokens"
        )
    if precision not in (None, "float32"):
        raise InputError(
            f"precision {precision} makes codes of arrays: omit convert_to_sparse_tensor"
        )


def check_fills_masks(folder: ModelFolder) -> None:
    """Raise ``InputError`` for a folder whose SpladePooling would get hidden states, not logits.

    Without a task, that is what sentence-transformers pools.
    """
    task = folder.encoder.json(TEXT_SETTINGS).get("transformer_task")
    transformer = folder.json(MODULES_FILE, list)[0]["type"]
    if not task and not transformer.endswith("MLMTransformer"):
        path = folder.encoder.path / TEXT_SETTINGS
        raise InputError(
            f"{path} must state transformer_task fill-mask: without it hidden states are pooled"
        )


def with_zeros(vectors: np.ndarray | Tensor) -> np.ndarray | Tensor:
    """Put the zeros into a sparse tensor; other vectors (N, V) have them."""
    if isinstance(vectors, Tensor):
        return vectors.to_dense()
    return vectors
