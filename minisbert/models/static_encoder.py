"""Static vectors: one per token, in any context; a text's vector is their mean. No layer, no attention.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or what ``minisbert distill-static`` has written
    encoder.encode(["A cat sits."])  # far faster than a BERT: there is nothing to compute

Opens the folders of sentence-transformers' ``StaticEmbedding`` and of Model2Vec (its code, MinishLab/model2vec).
``static_distillation.py`` makes such a table from any encoder.
"""

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from numbers import Real
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from minisbert.checkpoints.encoder_settings import CONFIG, WEIGHTS, EncoderSettings, unsupported, write_settings
from minisbert.checkpoints.layout import ModelFolder, write_modules
from minisbert.checkpoints.save import model_folder
from minisbert.checkpoints.tokenizer_files import check_vocabulary
from minisbert.checkpoints.weights import read_weights, write_safetensors
from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Encoded, assemble
from minisbert.models.batching import ID_BYTES, packed_batches
from minisbert.models.encoder import BATCH_TOKENS, TextEncoder
from minisbert.models.guards import check_count
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.files import write_json
from minisbert.system.progress import Progress

TABLE, MODEL2VEC_TABLE = "embedding.weight", "embeddings"  # names of the tensor in the two layouts
UNLIMITED = 2**31 - 1
BAG_TEXTS = 2048  # per batch


def bag_mean(table: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """The mean of each text's rows of a table (V, D): ids of all texts in a row, and where each begins -> (N, D).

    The table [[1], [3], [8]] with ids [0, 1, 2] and starts [0, 2, 3] gives [[2], [8], [0]]: the third text is empty.
    """
    return nn.functional.embedding_bag(ids, table, starts, mode="mean")


class BareTokenizer(Tokenizer):
    """Tokens without any special ones around them; a text may have none. Long texts lose their end, or their start."""

    def __init__(self, backend: Backend, limit: int = UNLIMITED, cut_start: bool = False):
        backend.post_processor = None
        super().__init__(backend, limit)
        self.cut_start = cut_start

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The tokens of each text; unlike in other tokenizers there may be none."""
        pieces = self._pieces(check_texts(texts))
        rows = [ids[: self.limit] for ids in pieces]
        if self.cut_start:  # the pieces are in reverse order
            rows = [ids[::-1] for ids in rows]
        return Encoded(rows, [[0] * len(ids) for ids in rows], sum(len(ids) > self.limit for ids in pieces))

    def save(self, folder: str | Path) -> None:
        """``tokenizer.json``, with the limit in it, which sentence-transformers obeys."""
        backend = Backend.from_str(self.backend.to_str())
        if self.limit < UNLIMITED:
            backend.enable_truncation(self.limit, direction="left" if self.cut_start else "right")
        backend.save(str(Path(folder) / "tokenizer.json"))


class Model2VecTokenizer(BareTokenizer):
    """As Model2Vec 0.10 has it: cut to a number of characters, then to ``limit`` tokens; unknown ones are dropped."""

    def __init__(self, backend: Backend, limit: int):
        super().__init__(backend, limit)
        self.characters = limit * int(median(len(token) for token in backend.get_vocab()))
        model = json.loads(backend.to_str())["model"]
        self.unknown = model.get("unk_id")  # of Unigram
        if model.get("unk_token") is not None:
            self.unknown = backend.token_to_id(model["unk_token"])

    def encode(self, texts: Sequence[str]) -> Encoded:
        encoded = super().encode([text[: self.characters] for text in check_texts(texts)])
        rows = [[i for i in ids if i != self.unknown] for ids in encoded.ids]
        return Encoded(rows, [[0] * len(ids) for ids in rows], encoded.truncated)


@dataclass(frozen=True)
class Bag:
    """A batch: the numbers of its texts in the call, and of its tokens."""

    texts: range
    tokens: int


class StaticEncoder(TextEncoder, nn.Module):
    """``load`` or ``distill`` a table of vectors, ``encode`` texts by it, ``save`` it for sentence-transformers."""

    pooling_mode, most_tokens = "mean", UNLIMITED

    def __init__(
        self, table: Tensor, tokenizer: BareTokenizer, normalize: bool, settings: EncoderSettings | None = None
    ):
        super().__init__()
        self.embedding = nn.EmbeddingBag(*table.shape, mode="mean", _weight=table)
        self.tokenizer, self.normalize, self.settings = tokenizer, normalize, settings or EncoderSettings()
        self.width = self.hidden_size = table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def on(self, device: torch.device) -> Self:
        """A table is fastest where the texts are: on the CPU."""
        return self

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        """With ``modules.json`` what sentence-transformers computes, without it what Model2Vec does."""
        if pooling not in (None, "mean"):
            raise InputError(f"{folder.path}, a table of static vectors: pooling must be mean, not {one_line(pooling)}")
        if limit is not None:
            check_count("max_seq_length", limit)
        inner, model2vec = folder, not folder.classes
        for place in folder.places("StaticEmbedding"):
            inner = ModelFolder(folder.path / place)
        table = read_table(inner.path / WEIGHTS, read_weights(inner.path / WEIGHTS))
        with reading(inner.path / "tokenizer.json"):
            backend = Backend.from_buffer(inner.read("tokenizer.json"))
            check_vocabulary(backend, len(table), inner)
            if model2vec:
                tokenizer = Model2VecTokenizer(backend, limit or model2vec_limit(folder))
                return cls(table, tokenizer, bool(folder.json(CONFIG).get("normalize"))).eval()
            stored = backend.truncation or {"max_length": UNLIMITED, "direction": "right"}
            tokenizer = BareTokenizer(backend, limit or stored["max_length"], stored["direction"] == "left")
        return cls(table, tokenizer, folder.normalize, folder.settings).eval()

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
        """As ``bag_mean`` takes them -> (N, D), before any scaling."""
        return bag_mean(self.embedding.weight, ids, starts)

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[None]:
        if dtype not in (None, "float32", "auto"):
            raise InputError(f"dtype must be float32 or auto for a table of vectors, not {one_line(dtype)}")
        with torch.inference_mode():
            yield

    def _computed(self, keys: list[bytes], batch_tokens: int, skip: int, by_token: bool) -> Iterator[tuple[Bag, Any]]:
        for start in range(0, len(keys), BAG_TEXTS):
            bags = keys[start : start + BAG_TEXTS]
            lengths = torch.tensor([len(key) // ID_BYTES for key in bags])
            ids = torch.from_numpy(np.frombuffer(b"".join(bags), dtype=np.intc).astype(np.int64))  # of all tokens
            batch = Bag(range(start, start + len(bags)), len(ids))
            if by_token:
                rows = nn.functional.embedding(ids, self.embedding.weight)  # (all tokens, D)
                yield batch, list(rows.split(lengths.tolist()))
            else:
                yield batch, self(ids, lengths.cumsum(0) - lengths)  # (N, D)

    def save(self, folder: str | Path) -> None:
        """Write the table as a folder that sentence-transformers opens, or Model2Vec if it was made by its rules.

        Atomically replaces a model there.
        """
        with model_folder(folder) as partial:
            self.tokenizer.save(partial)
            if isinstance(self.tokenizer, Model2VecTokenizer):
                limit = None if self.tokenizer.limit == UNLIMITED else self.tokenizer.limit
                about = {"model_type": "model2vec", "normalize": self.normalize, "max_length": limit}
                write_json(partial / CONFIG, about)
                write_safetensors({MODEL2VEC_TABLE: self.embedding.weight}, partial / WEIGHTS)
                return
            kinds = ["StaticEmbedding"]
            if self.normalize:
                kinds.append("Normalize")
            write_modules(partial, kinds)
            write_safetensors({TABLE: self.embedding.weight}, partial / WEIGHTS)
            write_settings(partial, self.settings, self.tokenizer.text_settings)


def model2vec_limit(folder: ModelFolder) -> int:
    """``max_length`` of a Model2Vec folder's config.json, in tokens; null is no limit."""
    limit = folder.json(CONFIG).get("max_length", 512)
    if limit is None:
        return UNLIMITED
    if type(limit) is not int or limit < 1:
        raise unsupported(folder.path / CONFIG, "max_length", limit, "an integer from 1, or null, is")
    return limit


def read_table(path: Path, tensors: dict[str, Tensor]) -> Tensor:
    """The row of every token (V, D), float32: sentence-transformers' ``embedding.weight``, or of Model2Vec's parts.

    ``embeddings`` may be fewer rows than tokens, ``mapping`` (V,) then says which, and ``weights`` (V,) scale them.
    """
    names = [TABLE] if TABLE in tensors else [MODEL2VEC_TABLE, "mapping", "weights"]
    with reading(path):
        table, mapping, weights = tensors[names[0]], tensors.get("mapping"), tensors.get("weights")
        if tensors.keys() - {*names} or not table.is_floating_point():
            found = {key: str(tensor.dtype) for key, tensor in tensors.items()}
            raise ValueError(f"a table of floating point numbers is needed ({', '.join(names)}), not {found}")
        if mapping is not None:
            # subtle: index_select refuses an index below 0, which table[mapping] would count from the end
            table = table.index_select(0, mapping.long())
        table = table.float()
        if weights is not None:
            table = table * weights.float()[:, None]
        if table.ndim != 2 or 0 in table.shape:
            raise ValueError(f"table must be (V, D), not {tuple(table.shape)}")
        if not table.isfinite().all():
            raise ValueError("table must be finite")
    return table.contiguous()


def sif_weights(tokens: int, coefficient: float = 1e-4) -> Tensor:
    """Weights that count frequent tokens less, a / (a + p): (V,) for a vocabulary that is sorted by frequency.

    Smooth inverse frequency (Arora et al. 2017, unverified), with Zipf's law in place of counts: p of the token of rank
    r, from 0, is 1 / (r + 2) over the sum of all. ``sif_weights(2, 0.4) = [0.4, 0.5]``.
    """
    inverse = 1 / torch.arange(2, tokens + 2, dtype=torch.float64)  # (V,)
    return coefficient / (coefficient + inverse / inverse.sum())


def principal_components(x: Tensor, count: int) -> Tensor:
    """x (V, D), centred, on the ``count`` directions in which it varies most -> (V, ``count``), the first one most.

    Signs are arbitrary, and change no distance. [[1, 0], [3, 0]] and one direction give [[-1], [1]] or [[1], [-1]].
    """
    centred = x - x.mean(dim=0)  # (V, D)
    directions = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)  # (D, D), by falling variance
    return centred @ directions[:, :count]


def token_vectors(encoder: SentenceEncoder, progress: bool = False) -> Tensor:
    """The encoder's vector of every token of its vocabulary alone between the special tokens, unscaled: (V, D)."""
    slots, total = encoder.tokenizer.single_template, encoder.tokenizer.backend.get_vocab_size()
    keys = [array("i", assemble(slots, [[token]])[0]).tobytes() for token in range(total)]
    found = torch.empty(total, encoder.width)
    with encoder.computing(None), Progress(total, progress) as line:
        line.expect(total, total * len(slots))
        for batch in packed_batches(keys, BATCH_TOKENS):
            found[batch.texts] = encoder.vectors(batch).float().cpu()
            line.update(batch.tokens)
    return found


def distill(
    encoder: SentenceEncoder, dim: int = 256, coefficient: float = 1e-4, progress: bool = False
) -> StaticEncoder:
    """A table of ``dim`` columns, or as many as the encoder has if those are fewer, with the encoder's tokenizer.

    ``coefficient`` is that of ``sif_weights``; a large one weights all tokens alike.
    """
    check_count("dim", dim)
    if not isinstance(coefficient, Real) or not 0 < coefficient < inf:
        raise InputError(f"coefficient must be above 0 and finite, not {one_line(coefficient)}")
    table = principal_components(token_vectors(encoder, progress).double(), dim)  # (V, dim)
    table = (table * sif_weights(len(table), coefficient)[:, None]).float().contiguous()
    words = BareTokenizer(Backend.from_str(encoder.tokenizer.backend.to_str()))
    return StaticEncoder(table, words, normalize=True).eval()
