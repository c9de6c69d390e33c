"""Static vectors: one for each token, in any context; a text's vector is their mean.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or a folder of distill-static
    encoder.encode(["A cat sits."])  # far faster than a BERT: there is nothing to compute

Opens the folders of sentence-transformers' ``StaticEmbedding``, which Model2Vec writes too (its
code, MinishLab/model2vec), and distills such a table from any encoder: ``distill``, the last part.
"""

import copy
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from numbers import Real
from pathlib import Path
from typing import Self

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from minisbert.checkpoints.layout import (
    MODULES_FILE,
    WEIGHTS,
    EncoderSettings,
    ModelFolder,
    has_file,
    write_modules,
    write_settings,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.tokenizer_files import TOKENIZER, check_vocabulary, text_settings
from minisbert.checkpoints.tokenizer_limits import check_added_tokens, check_stages
from minisbert.checkpoints.weights import read_weights, write_safetensors
from minisbert.core import InputError, one_line
from minisbert.core.encoder import normalize
from minisbert.models.batching import Tokens
from minisbert.models.properties import check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.stored_encoder import StoredEncoder
from minisbert.models.text_encoder import DenseEncoder
from minisbert.replacements import takes_parts
from minisbert.system.progress import Bar
from minisbert.system.reading import reading

# The table's name in a file of sentence-transformers, and in one of Model2Vec.
TABLE = "embedding.weight"
MODEL2VEC_TABLE = "embeddings"
UNLIMITED = 2**31 - 1
BAG_TEXTS = 2048  # per batch


def bag_mean(table: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Average each text's rows of a table (V, D) -> (N, D).

    ``ids`` are those of all texts in a row, ``starts`` (N,) where each text begins. The table
    [[1], [3], [8]] with ids [0, 1, 2] and starts [0, 2, 3] gives [[2], [8], [0]]: the third text is
    empty.
    """
    return nn.functional.embedding_bag(ids, table, starts, mode="mean")


def bare_tokenizer(
    backend: Backend, limit: int = UNLIMITED, cut_start: bool = False
) -> ModelTokenizer:
    """Make a tokenizer without special tokens, which are the same in every text's mean."""
    backend.post_processor = None
    return ModelTokenizer(backend, limit, cut_start=cut_start)


def write_bare_tokenizer(tokenizer: ModelTokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` with the limit in it, which sentence-transformers obeys."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    if tokenizer.limit < UNLIMITED:
        direction = "left" if tokenizer.cut_start else "right"
        backend.enable_truncation(tokenizer.limit, direction=direction)
    (folder / TOKENIZER).write_text(backend.to_str(pretty=True), encoding="utf-8")


@dataclass(frozen=True)
class Bags:
    """A batch of N texts: the ids of all their tokens in a row, and ``lengths`` (N,).

    ``texts`` are the texts' numbers in the call.
    """

    ids: Tensor
    lengths: Tensor
    texts: range


class StaticEncoder(StoredEncoder, DenseEncoder):
    """``load`` or ``distill`` a table of vectors, ``encode`` texts by it, ``save`` it.

    It stays on the CPU whatever device is asked for: where the texts are, a table is fastest.
    """

    folder_class = "StaticEncoder"
    pooling_mode = "mean"
    most_tokens = UNLIMITED
    reads_empty_texts = True

    @takes_parts
    def __init__(
        self,
        table: Tensor,
        tokenizer: ModelTokenizer,
        normalize: bool,
        settings: EncoderSettings | None = None,
    ):
        super().__init__()
        self.embedding = nn.EmbeddingBag(len(table), table.shape[1], mode="mean", _weight=table)
        self.tokenizer = tokenizer
        self.normalize = normalize
        self.settings = settings or EncoderSettings()
        self.width = table.shape[1]
        self.hidden_size = table.shape[1]

    # These are the table's, which may be moved.
    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        """Open a table of ``StaticEmbedding`` or of Model2Vec, which writes ``modules.json``."""
        if pooling not in (None, "mean"):
            raise InputError(
                f"{folder.path}, a table of static vectors: pooling must be mean, not "
                f"{one_line(pooling)}"
            )
        if limit is not None:
            check_count("max_seq_length", limit)
        if not folder.modules:
            advice = "save the model again with Model2Vec, which writes it"
            raise InputError(
                f"{folder.path}, a table of static vectors, has no {MODULES_FILE}: {advice}"
            )
        inner = folder.path / folder.places["StaticEmbedding"][0]
        table = read_table(inner / WEIGHTS, read_weights(inner / WEIGHTS))

        path = inner / TOKENIZER
        has_file(path)  # called for what it refuses: a device, a link to nowhere
        with reading(path):
            content = path.read_bytes()
            check_added_tokens(content, path)
            backend = Backend.from_buffer(content)
            check_stages(backend, path)
            check_vocabulary(backend, len(table), inner)
            cut_start = False
            if backend.truncation:
                limit = limit or backend.truncation["max_length"]
                cut_start = backend.truncation["direction"] == "left"
            tokenizer = bare_tokenizer(backend, limit or UNLIMITED, cut_start)
        return cls(table, tokenizer, folder.normalize, EncoderSettings.read(folder)).eval()

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
        """ids and starts as in ``bag_mean`` -> (N, D), before any scaling."""
        return bag_mean(self.embedding.weight, ids, starts)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        if dtype not in (None, "float32", "auto"):
            raise InputError(
                f"dtype must be float32 or auto for a table of vectors, not {one_line(dtype)}"
            )
        with torch.inference_mode():
            yield torch.float32

    def batches(self, tokens: Tokens, batch_tokens: int | None = None) -> Iterator[Bags]:
        """Make batches of a number of texts: nothing but ids grows with the length of a text."""
        for start in range(0, len(tokens.ids), BAG_TEXTS):
            rows = tokens.ids[start : start + BAG_TEXTS]
            ids = np.frombuffer(b"".join(rows), dtype=np.intc).astype(np.int64)
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            texts = range(start, start + len(rows))
            yield Bags(torch.from_numpy(ids), torch.from_numpy(lengths), texts)

    def embed(self, batch: Bags) -> Tensor:
        starts = batch.lengths.cumsum(0) - batch.lengths  # (N,)
        means = self(batch.ids, starts)  # (N, D)
        if self.normalize:
            return normalize(means)
        return means

    def token_states(self, batch: Bags) -> list[Tensor]:
        rows = nn.functional.embedding(batch.ids, self.embedding.weight)  # (all tokens, D)
        return list(rows.split(batch.lengths.tolist()))

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        write_bare_tokenizer(self.tokenizer, folder)
        modules = ["StaticEmbedding"]
        if self.normalize:
            modules.append("Normalize")
        write_modules(folder, modules)
        write_safetensors({TABLE: self.embedding.weight}, folder / WEIGHTS)
        write_settings(folder, self.settings, text_settings(self.tokenizer))


def read_table(path: Path, tensors: dict[str, Tensor]) -> Tensor:
    """Return the row of every token (V, D), float32.

    sentence-transformers stores ``embedding.weight``. Model2Vec's ``embeddings`` may have fewer
    rows than there are tokens: ``mapping`` (V,) then says which row each token has, and ``weights``
    (V,) scale the rows.
    """
    table_name = MODEL2VEC_TABLE
    known = [MODEL2VEC_TABLE, "mapping", "weights"]
    if TABLE in tensors:
        table_name = TABLE
        known = [TABLE]
    with reading(path):
        table = tensors[table_name]
        if not tensors.keys() <= set(known) or not table.is_floating_point():
            stored = {key: str(tensor.dtype) for key, tensor in tensors.items()}
            raise ValueError(
                f"a table of floating point numbers is needed ({', '.join(known)}), not {stored}"
            )

        if "mapping" in tensors:
            mapping = tensors["mapping"]
            rows = mapping.long()
            if mapping.ndim != 1 or not ((rows >= 0) & (rows < len(table))).all():
                raise ValueError(
                    f"mapping must name one of the table's {len(table)} rows for each token"
                )
            table = table[rows]
        table = table.float()
        if "weights" in tensors:
            weights = tensors["weights"]
            if weights.shape != table.shape[:1]:
                raise ValueError(
                    f"weights must be a number for each of {len(table)} tokens, not "
                    f"{tuple(weights.shape)}"
                )
            table = table * weights.float()[:, None]

        if table.ndim != 2 or 0 in table.shape:
            raise ValueError(f"table must be (V, D), not {tuple(table.shape)}")
        if not table.isfinite().all():
            raise ValueError("table must be finite")
    return table.contiguous()


# ------------------------------------------------------------------------------------ distillation


def sif_weights(tokens: int, coefficient: float = 1e-4) -> Tensor:
    """Weight frequent tokens less, by a / (a + p): (V,) for a vocabulary sorted by frequency.

    Smooth inverse frequency (Arora et al. 2017), with Zipf's law instead of counts: p of the token
    of rank r, from 0, is 1 / (r + 2) over the sum of all. ``sif_weights(2, 0.4) = [0.4, 0.5]``.
    """
    inverse = 1 / torch.arange(2, tokens + 2, dtype=torch.float64)  # (V,)
    return coefficient / (coefficient + inverse / inverse.sum())


def principal_components(x: Tensor, count: int) -> Tensor:
    """Project x (V, D), centred, on the directions in which it varies most -> (V, ``count``).

    Signs are arbitrary, and change no distance. [[1, 0], [3, 0]] and one direction give [[-1], [1]]
    or [[1], [-1]].
    """
    centred = x - x.mean(dim=0)  # (V, D)
    # By the eigenvectors of (D, D), not a singular value decomposition of (V, D): V is 30,000, D a
    # few hundred.
    eigenvectors = torch.linalg.eigh(centred.T @ centred).eigenvectors  # (D, D)
    directions = eigenvectors.flip(1)  # by falling variance
    return centred @ directions[:, :count]


def token_vectors(encoder: SentenceEncoder, progress: bool = False) -> Tensor:
    """Encode every token of the vocabulary alone between the special tokens, unscaled: (V, D)."""
    tokenizer = encoder.tokenizer
    total = tokenizer.backend.get_vocab_size()
    tokens = Tokens([array("i", tokenizer.frame([token])) for token in range(total)])
    # A token's length is part of what it says, so its vector is not scaled.
    unscaled = copy.copy(encoder)
    unscaled.normalize = False
    bar = Bar(total=total, unit=" tokens", unit_scale=True, shown=progress)
    with unscaled.computing(None), bar:
        return torch.from_numpy(unscaled.encode_tokens(tokens, progress=bar)).float()


def distill(
    encoder: SentenceEncoder, dim: int = 256, coefficient: float = 1e-4, progress: bool = False
) -> StaticEncoder:
    """Make a table of ``dim`` columns with the encoder's tokenizer.

    An encoder with fewer columns gives as many as it has. ``coefficient`` is that of
    ``sif_weights``; a large one weights all tokens alike.
    """
    check_count("dim", dim)
    if not isinstance(coefficient, Real) or not 0 < coefficient < inf:
        raise InputError(f"coefficient must be above 0 and finite, not {one_line(coefficient)}")
    table = principal_components(token_vectors(encoder, progress).double(), dim)  # (V, dim)
    table = (table * sif_weights(len(table), coefficient)[:, None]).float().contiguous()
    tokenizer = bare_tokenizer(Backend.from_str(encoder.tokenizer.backend.to_str()))
    return StaticEncoder(table, tokenizer, normalize=True).eval()
