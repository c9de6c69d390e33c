"""Static vectors: one per token, in any context; a text's vector is their mean. No layer, no attention.

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
from typing import Any, Self

import torch
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from minisbert.core import reading, tokenizer
from minisbert.core.checks import check
from minisbert.core.tokenizer import Encoded
from minisbert.folder.model_folder import ModelFolder, find_model
from minisbert.folder.overwrite import model_folder
from minisbert.folder.settings import CONFIG, WEIGHTS, EncoderSettings
from minisbert.folder.tokenizer_classes import check_vocabulary
from minisbert.folder.weights import read_weights, write_safetensors
from minisbert.models.batching import ID_BYTES, budgeted_batches
from minisbert.models.layout import write_modules, write_settings
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.tokenizer import Tokenizer
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
    """A batch: the numbers of its texts in the call, and of its tokens."""

    texts: list[int]
    tokens: int


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
    ) -> Self:
        """A folder, or a name on the hub, as for ``SentenceEncoder``. Raises ``InputError`` for what does not fit."""
        choose_device(device)  # a table is fastest where the texts are: on the CPU
        return cls.from_folder(ModelFolder(find_model(model)), pooling, limit)

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        """With ``modules.json`` what sentence-transformers computes, without it what Model2Vec does."""
        with reading(f"{folder.path}, a table of static vectors"):
            check("pooling mean", pooling)
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
        self, keys: list[bytes], batch_tokens: int, skip: int, output: str, _: dict[bytes, str]
    ) -> Iterator[tuple[Bag, Any]]:
        counts = torch.tensor([len(key) // ID_BYTES for key in keys])  # tokens
        for texts in budgeted_batches((counts + 1).tolist(), max(batch_tokens, BAG_TOKENS)):
            lengths, data = counts[texts], b"".join(keys[text] for text in texts)
            ids = torch.frombuffer(bytearray(data + bytes(ID_BYTES)), dtype=torch.int32)[:-1].long()  # never empty
            if output == "token":
                rows = nn.functional.embedding(ids, self.embedding.weight)  # (all tokens, D)
                yield Bag(texts, len(ids)), list(rows.split(lengths.tolist()))
            else:
                yield Bag(texts, len(ids)), self(ids, lengths.cumsum(0) - lengths)

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
    known = {name} if name == "embedding.weight" else {name, "mapping", "weights"}
    with reading(path):
        table, mapping, weights = tensors[name], tensors.get("mapping"), tensors.get("weights")
        if tensors.keys() - known or not table.is_floating_point():
            found = {key: str(tensor.dtype) for key, tensor in tensors.items()}
            raise ValueError(f"a table of floating point numbers is needed ({', '.join(sorted(known))}), not {found}")
        # subtle: index_select refuses an index below 0, which table[mapping] would count from the end
        table = table if mapping is None else table.index_select(0, mapping.long())
        table = table.float() if weights is None else table.float() * weights.float()[:, None]
        check("table (V, D) finite", table)
    return table.contiguous()
