"""SPLADE: represent a text by weights of words, those in it and related ones; most weights are 0
(Formal et al. 2021).

BERT's masked-language head says for each token which words could stand in its place; a word's
weight is the highest over the tokens, damped by a logarithm: one number for each of the V words of
the vocabulary. Texts are compared by dot products, so an inverted index searches them. Models are
``SparseEncoder`` folders of sentence-transformers.

Legend as in ``core/bert.py``: B batch, T tokens, D width, V vocabulary, N texts.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

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
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import load_transformer
from minisbert.core import InputError, one_line
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Tokenizer
from minisbert.models.masked_language_model import MaskedHead, load_head, save_masked
from minisbert.models.pooling import Pooling
from minisbert.models.properties import as_rows, check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.by_tokens import (
    InvertedIndex,
    from_sparse_tensors,
    no_beta_warning,
    sparse_rows,
    sparse_tensors,
)
from minisbert.system.files import write_json
from minisbert.system.progress import Bar, bar_of

DENSE_ROWS = 256  # vectors whose zeros are in memory at the same time: 30 MB for BERT's vocabulary


def splade_pool(logits: Tensor, mask: Tensor | None = None, mode: str = "max") -> Tensor:
    """log(1 + relu(logit)) of every word at every token, the largest or the sum over tokens: (B, T,
    V) -> (B, V).

    Formal et al. 2021, arXiv 2109.10086 (max) and 2107.05720 (sum), sections unverified. mask (B,
    T), True for real tokens. Two tokens with logits [e - 1, -3] and [e^2 - 1, 0] give [2, 0] by max
    and [3, 0] by sum.
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

    names = ("splade",)
    score = None

    def __init__(self, head: MaskedHead, strategy: str = "max"):
        super().__init__()
        self.head, self.strategy, self.mode = head, strategy, f"splade-{strategy}"

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D), mask (B, T) -> weights of words (B, V), text by text, because (B, T, V)
        is large.
        """
        rows = []
        for i, states in enumerate(hidden):
            if mask is not None:
                states = states[mask[i].bool()]  # (T, D), the real tokens
            rows.append(splade_pool(self.head(states).unsqueeze(0), None, self.strategy))
        return torch.cat(rows)


class SparseEncoder(SentenceEncoder):
    """A ``SentenceEncoder`` whose vectors have one column for each word of the vocabulary, most of
    them 0.

    ``encode`` returns arrays (N, V), or with ``convert_to_sparse_tensor=True`` a CSR tensor.
    """

    folder_class = "SparseEncoder"
    vectors_are = "sparse"
    search_options: ClassVar[dict[str, Any]] = {"convert_to_sparse_tensor": True}
    to_tensors, from_tensors = staticmethod(sparse_tensors), staticmethod(from_sparse_tensors)  # type: ignore[assignment]

    def __init__(
        self, tokenizer: Tokenizer, bert: Bert, pooling: SpladePooling, settings: EncoderSettings
    ):
        super().__init__(tokenizer, bert, cast(Pooling, pooling), False, (), settings)
        self.width = len(pooling.head.bias)

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        strategy = "max"
        for place in folder.places["SpladePooling"]:  # a plain masked-language model has none
            # Without a task, sentence-transformers pools hidden states and not the head's logits.
            stated = folder.encoder.json(TEXT_SETTINGS).get("transformer_task")
            if not stated and not folder.json(MODULES_FILE, list)[0]["type"].endswith(
                "MLMTransformer"
            ):
                path = folder.encoder.path / TEXT_SETTINGS
                raise InputError(
                    f"{path} must state transformer_task fill-mask: without it hidden states are "
                    f"pooled"
                )
            settings = folder.json_settings(f"{place}/{CONFIG}")
            settings.choice("activation_function", "relu")
            strategy = settings.choice("pooling_strategy", "max", "sum")
        mode = f"splade-{strategy}"
        if pooling not in (None, mode):
            raise InputError(f"{folder.path}: pooling must be {mode}, not {one_line(pooling)}")
        bert = load_transformer(folder.encoder)
        pooled = SpladePooling(load_head(folder.encoder, bert), strategy)
        # Not the settings of the folder, whose default is the cosine of dense vectors.
        similarity = folder.json(SENTENCE).get("similarity_fn_name") or "dot"
        # truncate_dim is ignored, as in sentence-transformers: no column is less important than
        # those before it
        own = replace(
            EncoderSettings.read(folder), similarity_fn_name=similarity, truncate_dim=None
        )
        if own.others.get("max_active_dims") is not None:
            check_count(f"{folder.path / SENTENCE}: max_active_dims", own.others["max_active_dims"])
        tokenizer = read_tokenizer(folder.encoder, limit)
        return cls(tokenizer, bert, pooled, own).eval()

    @classmethod
    def load(  # type: ignore[override]  # the book's has fewer arguments
        cls, model: str | Path, *, max_active_dims: int | None = None, **options: Any
    ) -> Self:
        """Open a model as ``SentenceEncoder.load`` does. ``max_active_dims`` overrides the
        folder's.
        """
        encoder = super().load(model, **options)
        if max_active_dims is not None:
            check_count("max_active_dims", max_active_dims)
            others = encoder.settings.others | {"max_active_dims": max_active_dims}
            encoder.settings = replace(encoder.settings, others=others)
        return encoder

    @property
    def max_active_dims(self) -> int | None:
        """How many weights of each text ``encode`` keeps unless it is told otherwise; None keeps
        all.
        """
        return self.settings.others.get("max_active_dims")

    def encode(  # type: ignore[override]  # with options of its own
        self,
        texts: str | Sequence[str],
        *,
        convert_to_sparse_tensor: bool = False,
        max_active_dims: int | None = None,
        show_progress_bar: bool | Bar | None = False,
        **options: Any,
    ) -> Any:
        """As ``SentenceEncoder.encode``; with ``convert_to_sparse_tensor`` a CSR tensor (N, V), in
        little memory.

        ``max_active_dims``, by default the model's own, keeps the largest weights of each text.
        Raises ``InputError`` as ``SentenceEncoder.encode``.
        """
        if options.get("truncate_dim") is not None:
            raise InputError(
                "truncate_dim keeps the first words of the vocabulary: max_active_dims keeps the "
                "heaviest"
            )
        if max_active_dims is None:
            max_active_dims = self.max_active_dims
        of_texts = options.get("output_value", "sentence_embedding") == "sentence_embedding"
        if not convert_to_sparse_tensor:
            if max_active_dims is None or not of_texts:
                return super().encode(texts, show_progress_bar=show_progress_bar, **options)
            as_tensor = options.pop("convert_to_tensor", False)
            options |= {"max_active_dims": max_active_dims, "show_progress_bar": show_progress_bar}
            vectors = self.encode(
                texts, convert_to_sparse_tensor=True, **options
            ).to_dense()  # (N, V)
            if isinstance(texts, str):
                vectors = vectors[0]
            return vectors if as_tensor else vectors.numpy()
        if not of_texts:
            raise InputError(
                "convert_to_sparse_tensor is for the vectors of texts, not for those of tokens"
            )
        if max_active_dims is not None:
            check_count("max_active_dims", max_active_dims)
        return self.sparse(texts, max_active_dims, show_progress_bar, options)

    def sparse(
        self,
        texts: str | Sequence[str],
        most: int | None,
        progress: bool | Bar | None,
        options: dict[str, Any],
    ) -> Tensor:
        """Encode to a CSR tensor (N, V), a few texts at a time: their vectors are dense until zeros
        are left out.
        """
        if isinstance(texts, str):
            texts = [texts]
        texts = check_texts(texts)
        rows = [torch.empty(0, self.width, dtype=self.dtype).to_sparse()]
        truncated = 0
        with bar_of(progress, len(texts)) as options["show_progress_bar"]:
            for start in range(0, len(texts), DENSE_ROWS):
                some = texts[start : start + DENSE_ROWS]
                dense = super().encode(some, convert_to_tensor=True, **options)  # (DENSE_ROWS, V)
                rows.append(sparse_rows(dense, most).to_sparse_coo())
                truncated += self.truncated
        self.truncated = truncated
        with no_beta_warning():
            return torch.cat(rows).to_sparse_csr()

    def decode(self, vectors: np.ndarray | Tensor, top_k: int | None = None) -> list:
        """List the words of each vector (N, V) by weight: ``[[("cat", 1.9), ("kitten", 0.7)]]``; of
        one (V,), its list.

        ``top_k`` keeps the heaviest. Raises ``InputError``.
        """
        if top_k is not None:
            check_count("top_k", top_k)
        dense = dense_rows(vectors)
        if dense.shape[1] != self.width:
            raise InputError(
                f"vectors of width {dense.shape[1]}, but the vocabulary has {self.width} words"
            )
        rows = torch.from_numpy(dense)  # (N, V)
        # Not topk: of equal weights the word that comes first in the vocabulary is first here too.
        weights, ids = rows.sort(dim=1, descending=True, stable=True)
        lists = []
        for row, columns in zip(weights[:, :top_k].tolist(), ids[:, :top_k].tolist(), strict=True):
            count = sum(weight > 0 for weight in row)
            lists.append(
                list(zip(self.tokenizer.tokens(columns[:count]), row[:count], strict=True))
            )
        return lists[0] if vectors.ndim == 1 else lists

    def top_k(
        self, queries: Any, corpus: Any, k: int, progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search CSR rows by the dot product or the cosine. Raises ``InputError`` for a
        distance.
        """
        return InvertedIndex(corpus, self.similarity_fn_name).top_k(queries, k, progress)

    def similarity(self, a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> np.ndarray:
        """Compare as ``SentenceEncoder.similarity`` does, sparse tensors too; by default by the dot
        product.
        """
        return super().similarity(dense_rows(a), dense_rows(b))

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        pooling = cast(SpladePooling, self.pooling)
        save_masked(self.bert, pooling.head, folder)
        write_tokenizer(self.tokenizer, folder)
        _, place = write_modules(
            folder, ["MLMTransformer", "SpladePooling"], "sparse_encoder.models"
        )
        about = {"pooling_strategy": pooling.strategy, "activation_function": "relu"}
        write_json(folder / place / CONFIG, about | {"embedding_dimension": self.width})
        write_settings(
            folder, self.settings, text_settings(self.tokenizer), model_type="SparseEncoder"
        )


def dense_rows(vectors: np.ndarray | Tensor) -> np.ndarray:
    """Convert vectors (N, V) to an array with all zeros."""
    if isinstance(vectors, Tensor):
        vectors = vectors.to_dense()
    return as_rows(vectors)
