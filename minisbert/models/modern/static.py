"""Static vectors: one per token, whatever stands beside it; a text's vector is their mean. No layer, no attention.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or what ``minisbert distill-static`` has written
    encoder.encode(["A cat sits."])  # far faster than a BERT: there is nothing to compute

Opens the folders of sentence-transformers' ``StaticEmbedding`` and of Model2Vec (its code, MinishLab/model2vec).
``distillation.py`` makes such a table from any encoder.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from minisbert.core import InputError, reading, tokenizer
from minisbert.core.checks import check
from minisbert.core.tokenizer import Encoded
from minisbert.fast.batching import ID_BYTES, budgeted_batches
from minisbert.models.checkpoint import read_weights, write_safetensors
from minisbert.models.encoding import TextEncoder
from minisbert.models.folders import ModelFolder, find_model
from minisbert.models.layout import write_modules, write_settings
from minisbert.models.replacing import model_folder
from minisbert.models.settings import CONFIG, WEIGHTS, EncoderSettings
from minisbert.models.tokenizer import Tokenizer
from minisbert.models.tokenizer_classes import check_vocabulary
from minisbert.system.devices import choose_device

MODEL2VEC = 512  # tokens of a text that Model2Vec reads
UNLIMITED = 2**31 - 1
BAG_TOKENS = 2**16  # per batch


def bag_mean(table: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """The mean of each text's rows of a table (V, D): ids of all texts in a row, and where each begins -> (N, D).

    The table [[1], [3], [8]] with ids [0, 1, 2] and starts [0, 2, 3] gives [[2], [8], [0]]: the third text is empty.
    """
    return nn.functional.embedding_bag(ids, table, starts, mode="mean")


class BareTokenizer(Tokenizer):
    """Tokens without any special ones around them; a text may have none. Model2Vec drops the unknown token."""

    def __init__(self, backend: Backend, limit: int = UNLIMITED, drop: int | None = None):
        backend.post_processor = None
        super().__init__(backend, limit)
        self.drop, self.characters = drop, UNLIMITED
        if drop is not None:  # Model2Vec cuts characters before it cuts tokens
            self.characters = limit * int(median(map(len, backend.get_vocab())))

    def encode(self, texts: Sequence[str]) -> Encoded:
        return tokenizer.Tokenizer.encode(self, texts)

    def _pieces(self, texts: Sequence[str]) -> list[list[int]]:
        pieces = super()._pieces([text[: self.characters] for text in texts])
        return pieces if self.drop is None else [[i for i in ids if i != self.drop] for ids in pieces]


@dataclass(frozen=True)
class Bag:
    """A batch: the numbers of its texts in the call, their tokens in a row, and where each begins."""

    texts: list[int]
    ids: Tensor
    starts: Tensor

    @property
    def tokens(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, keys: Sequence[bytes], texts: list[int]) -> "Bag":
        lengths = torch.tensor([len(keys[text]) // ID_BYTES for text in texts])
        ids = torch.frombuffer(bytearray(b"".join(keys[text] for text in texts)) or bytearray(4), dtype=torch.int32)
        return cls(texts, ids[: lengths.sum()].long(), lengths.cumsum(0) - lengths)


class StaticEncoder(TextEncoder, nn.Module):
    """``load`` or ``distill`` a table of vectors, ``encode`` texts by it, ``save`` it for sentence-transformers."""

    pooling_mode = "mean"

    def __init__(
        self, table: Tensor, words: BareTokenizer, normalize: bool, settings: EncoderSettings = EncoderSettings()
    ):
        super().__init__()
        self.embedding = nn.EmbeddingBag(*table.shape, mode="mean", _weight=table)
        self.tokenizer, self.normalize, self.settings = words, normalize, settings
        self.width = self.hidden_size = table.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @classmethod
    def load(
        cls,
        model: str | Path,
        pooling: str | None = None,
        device: str | torch.device = "cpu",
        limit: int | None = None,
        compiled: bool | str | Path = False,
        precision: str | None = None,
    ) -> "StaticEncoder":
        """A folder, or a name on the hub, as for ``SentenceEncoder``. Raises ``InputError`` for what does not fit."""
        if compiled:
            raise InputError(f"{model} is a table of static vectors: there is nothing to compile")
        choose_device(device)  # a table is fastest where the texts are: on the CPU
        return cls.from_folder(ModelFolder(find_model(model)), pooling, limit)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> "StaticEncoder":
        """With ``modules.json`` what sentence-transformers computes, without it what Model2Vec does."""
        if pooling not in (None, "mean"):
            raise InputError(f"{folder.path} is a table of static vectors: its pooling is the mean, not {pooling}")
        place = next(iter(folder.places("StaticEmbedding")), ".")
        inner = folder if place == "." else ModelFolder(folder.path / place)
        path, alone = inner.path / WEIGHTS, not folder.classes
        table = read_table(path, read_weights(path))
        with reading(inner.path / "tokenizer.json"):
            backend = Backend.from_buffer(inner.read("tokenizer.json"))
        check_vocabulary(backend, len(table), inner)
        unknown = backend.token_to_id(getattr(backend.model, "unk_token", None) or "") if alone else None
        words = BareTokenizer(backend, limit or (MODEL2VEC if alone else UNLIMITED), unknown)
        words.files = {"tokenizer.json": inner.read("tokenizer.json")}
        normalize = bool(folder.json(CONFIG).get("normalize")) if alone else folder.normalize
        return cls(table, words, normalize, folder.settings).eval()

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
        """As ``bag_mean`` takes them -> (N, D), before any scaling."""
        return bag_mean(self.embedding.weight, ids, starts)

    @contextmanager
    def computing(self, precision: str | None) -> Iterator[None]:
        with reading("encode"):
            check("precision float32|auto", precision or "float32")
        with torch.inference_mode():
            yield

    def _computed(
        self, keys: list[bytes], batch_tokens: int, skip: int, output: str, texts: dict[bytes, str]
    ) -> Iterator[tuple[Bag, Any]]:
        lengths = [len(key) // ID_BYTES for key in keys]
        for batch in budgeted_batches([length + 1 for length in lengths], max(batch_tokens, BAG_TOKENS)):
            bag = Bag.of(keys, batch)
            if output == "token":
                rows = nn.functional.embedding(bag.ids, self.embedding.weight)  # (all tokens, D)
                yield bag, list(rows.split([lengths[text] for text in batch]))
            else:
                yield bag, self(bag.ids, bag.starts)

    def save(self, folder: str | Path) -> None:
        """Write the table as a folder that sentence-transformers opens; atomically replaces a model there."""
        with model_folder(folder) as partial:
            write_modules(partial, ["StaticEmbedding"] + ["Normalize"] * self.normalize)
            write_safetensors({"embedding.weight": self.embedding.weight}, partial / WEIGHTS)
            self.tokenizer.save(partial)
            write_settings(self, partial)


def read_table(path: Path, tensors: dict[str, Tensor]) -> Tensor:
    """The row of every token (V, D), float32: sentence-transformers' ``embedding.weight``, or of Model2Vec's parts.

    ``embeddings`` may be fewer rows than tokens, ``mapping`` (V,) then says which, and ``weights`` (V,) scale them.
    """
    name = "embedding.weight" if "embedding.weight" in tensors else "embeddings"
    known = {name} | ({"mapping", "weights"} if name == "embeddings" else set())
    with reading(path):
        if missing := {name} - tensors.keys() or tensors.keys() - known:
            raise ValueError(f"a table of static vectors is needed ({', '.join(sorted(known))}), not {sorted(missing)}")
        table, mapping, weights = (tensors.get(key) for key in (name, "mapping", "weights"))
        if table.ndim != 2 or not table.is_floating_point():
            raise ValueError(f"{name} must be (V, D) floating point numbers, not {tuple(table.shape)} {table.dtype}")
        if mapping is not None and mapping.min() < 0:  # subtle: it would count from the end
            raise ValueError(f"mapping holds {int(mapping.min())}")
        table = table if mapping is None else table[mapping.long()]
        table = table.float() if weights is None else table.float() * weights.float()[:, None]
        if not table.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")
    return table.contiguous()
