"""Static vectors: one per token, in any context; a text's vector is their mean. No layer, no
attention.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or what ``minisbert distill-static`` has written
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
from typing import Self, cast

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
from minisbert.checkpoints.weights import read_weights, write_safetensors
from minisbert.core import InputError, one_line
from minisbert.models.batching import Tokens
from minisbert.models.properties import check_count
from minisbert.models.sentence_encoder import SentenceEncoder, TextEncoder
from minisbert.system.files import atomic_folder
from minisbert.system.progress import Bar
from minisbert.system.reading import reading

TABLE, MODEL2VEC_TABLE = (
    "embedding.weight",
    "embeddings",
)  # the tensor's name, by who wrote the file
UNLIMITED = 2**31 - 1
BAG_TEXTS = 2048  # per batch


def bag_mean(table: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """Average each text's rows of a table (V, D): ids of all texts in a row, and where each begins
    -> (N, D).

    The table [[1], [3], [8]] with ids [0, 1, 2] and starts [0, 2, 3] gives [[2], [8], [0]]: the
    third text is empty.
    """
    return nn.functional.embedding_bag(ids, table, starts, mode="mean")


def bare_tokenizer(
    backend: Backend, limit: int = UNLIMITED, cut_start: bool = False
) -> ModelTokenizer:
    """Make a tokenizer without special tokens: the mean must not hold [CLS] and [SEP], the same in
    every text.
    """
    backend.post_processor = None
    return ModelTokenizer(backend, limit, cut_start=cut_start)


def write_bare_tokenizer(tokenizer: ModelTokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` with the limit in it, which sentence-transformers obeys."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    if tokenizer.limit < UNLIMITED:
        backend.enable_truncation(
            tokenizer.limit, direction="left" if tokenizer.cut_start else "right"
        )
    (folder / TOKENIZER).write_text(backend.to_str(pretty=True), encoding="utf-8")


@dataclass(frozen=True)
class Bags:
    """A batch of N texts: ``ids`` of all tokens in a row, ``lengths`` (N,), and the texts' numbers
    in the call.
    """

    ids: Tensor
    lengths: Tensor
    texts: range


class StaticEncoder(TextEncoder):
    """``load`` or ``distill`` a table of vectors, ``encode`` texts by it, ``save`` it for
    sentence-transformers.
    """

    folder_class = "StaticEncoder"
    pooling_mode, most_tokens = "mean", UNLIMITED
    reads_empty_texts = True
    stays_on_cpu = True  # where the texts are: a table is fastest there

    def __init__(
        self,
        table: Tensor,
        tokenizer: ModelTokenizer,
        normalize: bool,
        settings: EncoderSettings | None = None,
    ):
        nn.Module.__init__(self)  # not the book's constructor: there is no BERT
        self.embedding = nn.EmbeddingBag(len(table), table.shape[1], mode="mean", _weight=table)
        self.tokenizer, self.normalize, self.settings = (
            tokenizer,
            normalize,
            settings or EncoderSettings(),
        )
        self.width = self.hidden_size = table.shape[1]

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]  # of the table, which may be moved
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.embedding.weight.device

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        """Open a table of sentence-transformers' ``StaticEmbedding`` or of Model2Vec, which writes
        ``modules.json``.
        """
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
        has_file(inner / TOKENIZER)  # refuses a device or a link to nowhere
        with reading(inner / TOKENIZER):
            backend = Backend.from_buffer((inner / TOKENIZER).read_bytes())
            check_vocabulary(backend, len(table), inner)
            stored = backend.truncation or {"max_length": UNLIMITED, "direction": "right"}
            tokenizer = bare_tokenizer(
                backend, limit or stored["max_length"], stored["direction"] == "left"
            )
        return cls(table, tokenizer, folder.normalize, EncoderSettings.read(folder)).eval()

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:  # type: ignore[override]  # no mask, but where texts begin
        """ids and starts as in ``bag_mean`` -> (N, D), before any scaling."""
        return bag_mean(self.embedding.weight, ids, starts)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[None]:
        if dtype not in (None, "float32", "auto"):
            raise InputError(
                f"dtype must be float32 or auto for a table of vectors, not {one_line(dtype)}"
            )
        with torch.inference_mode():
            yield

    def batches(  # type: ignore[override]  # a batch of its own kind
        self, tokens: Tokens, batch_size: int | None = None
    ) -> Iterator[Bags]:
        """Make batches of a number of texts, not of tokens: nothing grows with the length of a text
        but its ids.
        """
        for start in range(0, len(tokens.ids), BAG_TEXTS):
            some = tokens.ids[start : start + BAG_TEXTS]
            ids = np.frombuffer(b"".join(cast(list[array], some)), dtype=np.intc).astype(np.int64)
            lengths = torch.from_numpy(np.fromiter(map(len, some), np.int64, len(some)))
            yield Bags(torch.from_numpy(ids), lengths, range(start, start + len(some)))
            if tokens.progress is not None:
                tokens.progress.update(len(some))

    def states(self, batch: Bags) -> tuple[Tensor]:  # type: ignore[override]  # the same
        return (
            self(batch.ids, batch.lengths.cumsum(0) - batch.lengths),
        )  # (N, D): the means, already

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        return hidden

    def token_states(self, batch: Bags) -> list[Tensor]:
        rows = nn.functional.embedding(batch.ids, self.embedding.weight)  # (all tokens, D)
        return list(rows.split(batch.lengths.tolist()))

    def save(self, folder: str | Path) -> None:
        """Write a folder that sentence-transformers opens.

        A model there is replaced; ``InputError`` if that would lose another file.
        """
        with atomic_folder(folder) as partial:
            self.write_card(partial, former=Path(folder))
            write_bare_tokenizer(self.tokenizer, partial)
            modules = ["StaticEmbedding"]
            if self.normalize:
                modules.append("Normalize")
            write_modules(partial, modules)
            write_safetensors({TABLE: self.embedding.weight}, partial / WEIGHTS)
            write_settings(partial, self.settings, text_settings(self.tokenizer))


def read_table(path: Path, tensors: dict[str, Tensor]) -> Tensor:
    """Return the row of every token (V, D), float32: sentence-transformers' ``embedding.weight``,
    or Model2Vec's parts.

    ``embeddings`` may have fewer rows than there are tokens, ``mapping`` (V,) then says which;
    ``weights`` (V,) scale.
    """
    expected = [MODEL2VEC_TABLE, "mapping", "weights"]
    if TABLE in tensors:
        expected = [TABLE]
    with reading(path):
        table, mapping, weights = (
            tensors[expected[0]],
            tensors.get("mapping"),
            tensors.get("weights"),
        )
        if not tensors.keys() <= set(expected) or not table.is_floating_point():
            stored = {key: str(tensor.dtype) for key, tensor in tensors.items()}
            raise ValueError(
                f"a table of floating point numbers is needed ({', '.join(expected)}), not {stored}"
            )
        if mapping is not None:
            rows = mapping.long()
            if mapping.ndim != 1 or not ((rows >= 0) & (rows < len(table))).all():
                raise ValueError(
                    f"mapping must name one of the table's {len(table)} rows for each token"
                )
            table = table[rows]
        table = table.float()
        if weights is not None:
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


# ------------------------------------------------------------------------------------------
# distillation


def sif_weights(tokens: int, coefficient: float = 1e-4) -> Tensor:
    """Weight frequent tokens less, by a / (a + p): (V,) for a vocabulary that is sorted by
    frequency.

    Smooth inverse frequency (Arora et al. 2017, unverified), with Zipf's law instead of counts: p
    of the token of rank r, from 0, is 1 / (r + 2) over the sum of all. ``sif_weights(2, 0.4) =
    [0.4, 0.5]``.
    """
    inverse = 1 / torch.arange(2, tokens + 2, dtype=torch.float64)  # (V,)
    return coefficient / (coefficient + inverse / inverse.sum())


def principal_components(x: Tensor, count: int) -> Tensor:
    """Project x (V, D), centred, on the ``count`` directions in which it varies most -> (V,
    ``count``).

    Signs are arbitrary, and change no distance. [[1, 0], [3, 0]] and one direction give [[-1], [1]]
    or [[1], [-1]].
    """
    centred = x - x.mean(dim=0)  # (V, D)
    # By the eigenvectors of (D, D), not a singular value decomposition of (V, D): V is 30,000, D a
    # few hundred.
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(
        1
    )  # (D, D), by falling variance
    return centred @ directions[:, :count]


def token_vectors(encoder: SentenceEncoder, progress: bool = False) -> Tensor:
    """Encode every token of the vocabulary alone between the special tokens, unscaled: (V, D)."""
    tokenizer = encoder.tokenizer
    total = tokenizer.backend.get_vocab_size()
    tokens = Tokens([array("i", tokenizer.frame([token])) for token in range(total)], [], [])
    # A token's length is part of what it says, so its vector is not scaled.
    unscaled = copy.copy(encoder)
    unscaled.normalize = False
    with (
        unscaled.computing(None),
        Bar(total=total, unit=" tokens", shown=progress) as tokens.progress,
    ):
        return torch.from_numpy(unscaled.encode_tokens(tokens)).float()


def distill(
    encoder: SentenceEncoder, dim: int = 256, coefficient: float = 1e-4, progress: bool = False
) -> StaticEncoder:
    """Make a table of ``dim`` columns, or as many as the encoder has if those are fewer, with the
    encoder's tokenizer.

    ``coefficient`` is that of ``sif_weights``; a large one weights all tokens alike.
    """
    check_count("dim", dim)
    if not isinstance(coefficient, Real) or not 0 < coefficient < inf:
        raise InputError(f"coefficient must be above 0 and finite, not {one_line(coefficient)}")
    table = principal_components(token_vectors(encoder, progress).double(), dim)  # (V, dim)
    table = (table * sif_weights(len(table), coefficient)[:, None]).float().contiguous()
    words = bare_tokenizer(Backend.from_str(encoder.tokenizer.backend.to_str()))
    return StaticEncoder(table, words, normalize=True).eval()
