"""Static vectors: one per token, in any context; a text's vector is their mean. No layer, no attention.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or what ``minisbert distill-static`` has written
    encoder.encode(["A cat sits."])  # far faster than a BERT: there is nothing to compute

Opens the folders of sentence-transformers' ``StaticEmbedding`` and of Model2Vec (its code, MinishLab/model2vec).
``static_distillation.py`` makes such a table from any encoder.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from minisbert.core import InputError, one_line, reading
from minisbert.core.checks import check_texts
from minisbert.core.tokenizer import Encoded
from minisbert.folder.model_folder import ModelFolder
from minisbert.folder.modules import write_modules
from minisbert.folder.overwrite import model_folder
from minisbert.folder.settings import CONFIG, WEIGHTS, EncoderSettings, unsupported, write_settings
from minisbert.folder.tokenizer import check_vocabulary
from minisbert.folder.weights import read_weights, write_safetensors
from minisbert.models.batching import ID_BYTES
from minisbert.models.guards import check_count
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.files import write_json

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
