"""Static vectors: one per token, in any context; a text's vector is their mean. No layer, no attention.

    encoder = StaticEncoder.load("minishlab/potion-base-8M")  # or what ``minisbert distill-static`` has written
    encoder.encode(["A cat sits."])  # far faster than a BERT: there is nothing to compute

Opens the folders of sentence-transformers' ``StaticEmbedding`` and of Model2Vec (its code, MinishLab/model2vec).
``static_distillation.py`` makes such a table from any encoder.
"""

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
from minisbert.folder.model_folder import ModelFolder, find_model
from minisbert.folder.overwrite import model_folder
from minisbert.folder.settings import CONFIG, WEIGHTS, EncoderSettings
from minisbert.folder.tokenizer_classes import check_vocabulary
from minisbert.folder.weights import read_weights, write_safetensors
from minisbert.models.batching import ID_BYTES
from minisbert.models.layout import write_modules, write_settings
from minisbert.models.text_encoder import TextEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.devices import choose_device

TABLE, MODEL2VEC_TABLE = "embedding.weight", "embeddings"  # names of the tensor in the two layouts
UNLIMITED = 2**31 - 1
BAG_TEXTS = 2048  # per batch


def bag_mean(table: Tensor, ids: Tensor, starts: Tensor) -> Tensor:
    """The mean of each text's rows of a table (V, D): ids of all texts in a row, and where each begins -> (N, D).

    The table [[1], [3], [8]] with ids [0, 1, 2] and starts [0, 2, 3] gives [[2], [8], [0]]: the third text is empty.
    """
    return nn.functional.embedding_bag(ids, table, starts, mode="mean")


class BareTokenizer(Tokenizer):
    """Tokens without any special ones around them; a text may have none.

    Model2Vec drops the unknown token (``drop``), and cuts characters before it cuts tokens.
    """

    def __init__(self, backend: Backend, limit: int = UNLIMITED, drop: int | None = None):
        backend.post_processor = None
        super().__init__(backend, limit)
        self.drop, self.characters = drop, UNLIMITED
        if drop is not None:
            self.characters = limit * int(median(len(token) for token in backend.get_vocab()))

    def encode(self, texts: Sequence[str]) -> Encoded:
        """The tokens of each text; unlike in other tokenizers it may have none."""
        pieces = self._pieces([text[: self.characters] for text in check_texts(texts)])
        if self.drop is not None:
            pieces = [[i for i in ids if i != self.drop] for ids in pieces]
        rows = [ids[: self.limit] for ids in pieces]
        return Encoded(rows, [[0] * len(ids) for ids in rows], sum(len(ids) > self.limit for ids in pieces))


@dataclass(frozen=True)
class Bag:
    """A batch: the numbers of its texts in the call, and of its tokens."""

    texts: range
    tokens: int


class StaticEncoder(TextEncoder, nn.Module):
    """``load`` or ``distill`` a table of vectors, ``encode`` texts by it, ``save`` it for sentence-transformers."""

    pooling_mode = "mean"

    def __init__(
        self, table: Tensor, tokenizer: BareTokenizer, normalize: bool, settings: EncoderSettings = EncoderSettings()
    ):
        super().__init__()
        self.embedding = nn.EmbeddingBag(*table.shape, mode="mean", _weight=table)
        self.tokenizer, self.normalize, self.settings = tokenizer, normalize, settings
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
        if pooling not in (None, "mean"):
            raise InputError(f"{folder.path}, a table of static vectors: pooling must be mean, not {one_line(pooling)}")
        inner, model2vec = folder, not folder.classes
        for place in folder.places("StaticEmbedding"):
            inner = ModelFolder(folder.path / place)
        table = read_table(inner.path / WEIGHTS, read_weights(inner.path / WEIGHTS))
        with reading(inner.path / "tokenizer.json"):
            backend = Backend.from_buffer(inner.read("tokenizer.json"))
        check_vocabulary(backend, len(table), inner)
        if model2vec:
            unknown = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
            tokenizer = BareTokenizer(backend, limit or 512, unknown)
            normalize = bool(folder.json(CONFIG).get("normalize"))
        else:
            tokenizer, normalize = BareTokenizer(backend, limit or UNLIMITED), folder.normalize
        tokenizer.files = {"tokenizer.json": inner.read("tokenizer.json")}
        return cls(table, tokenizer, normalize, folder.settings).eval()

    def forward(self, ids: Tensor, starts: Tensor) -> Tensor:
        """As ``bag_mean`` takes them -> (N, D), before any scaling."""
        return bag_mean(self.embedding.weight, ids, starts)

    @contextmanager
    def computing(self, precision: str | None) -> Iterator[None]:
        if precision not in (None, "float32", "auto"):
            raise InputError(f"precision must be float32 or auto for a table of vectors, not {one_line(precision)}")
        with torch.inference_mode():
            yield

    def _computed(
        self, keys: list[bytes], batch_tokens: int, skip: int, output: str, _: dict[bytes, str]
    ) -> Iterator[tuple[Bag, Any]]:
        for start in range(0, len(keys), BAG_TEXTS):
            bags = keys[start : start + BAG_TEXTS]
            lengths = torch.tensor([len(key) // ID_BYTES for key in bags])
            ids = torch.from_numpy(np.frombuffer(b"".join(bags), dtype=np.intc).astype(np.int64))  # of all tokens
            batch = Bag(range(start, start + len(bags)), len(ids))
            if output == "token":
                rows = nn.functional.embedding(ids, self.embedding.weight)  # (all tokens, D)
                yield batch, list(rows.split(lengths.tolist()))
            else:
                yield batch, self(ids, lengths.cumsum(0) - lengths)

    def save(self, folder: str | Path) -> None:
        """Write the table as a folder that sentence-transformers opens; atomically replaces a model there."""
        kinds = ["StaticEmbedding"]
        if self.normalize:
            kinds.append("Normalize")
        with model_folder(folder) as partial:
            write_modules(partial, kinds)
            write_safetensors({TABLE: self.embedding.weight}, partial / WEIGHTS)
            self.tokenizer.save(partial)
            write_settings(self, partial)


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
