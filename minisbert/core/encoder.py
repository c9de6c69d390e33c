"""Texts to vectors: tokenizer, encoder, pooling and (for most models) normalising in one object.

    encoder = SentenceEncoder.load("weights/all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
    encoder.similarity(vectors, vectors)  # (2, 2) cosines

``minisbert.SentenceEncoder`` runs ``encode_tokens`` too, with other batches, for more kinds of
models.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .bert import Bert
from .checks import InputError, check_shape, read_json, reading
from .pooling import Pooling
from .tokenizer import Encoded, Tokenizer, pad_batch
from .weights import fill, read_config, read_tensors


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Each vector scaled to length 1: x (..., D) -> (..., D). A zero vector stays zero. ``[3, 4] ->
    [0.6, 0.8]``.
    """
    # as in PyTorch, a length below eps counts as eps, and one whose square overflows (1e20 in
    # float32) as infinite
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(eps)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of the angle between matching rows: u and v (B, D) -> (B,). ``cosine([1, 0], [1, 1]) =
    0.70711``.
    """
    return (normalize(u) * normalize(v)).sum(dim=-1)  # (B,)


def cosine_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of each row of u (B, D) with each row of v (N, D) -> (B, N)."""
    return normalize(u) @ normalize(v).T


# sentence-transformers' flags for the poolings, in the order in which it concatenates their results
FLAGS = [
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
]
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLING_FLAGS = {f"pooling_mode_{flag}": mode for flag, mode in zip(FLAGS, MODES, strict=True)}

OWN = re.compile(r"^sentence_transformers\.(.*\.)?")  # before the name of a class
LIMITS = (
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
)


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module of a model: ``[("Transformer", ...), ("Pooling",
    ...)]``.
    """
    path = folder / "modules.json"
    with reading(path):
        modules = read_json(path, kind=list)
        if not all(
            isinstance(module, dict) and isinstance(module["type"], str) for module in modules
        ):
            raise ValueError("each module must be an object with a type and a path")
        return [(OWN.sub("", module["type"]), folder / str(module["path"])) for module in modules]


def pooling_modes(raw: dict[str, Any]) -> list[str]:
    """The poolings in ``1_Pooling/config.json``: ``pooling_mode`` (new files), or one flag per mode
    (old files).
    """
    if "pooling_mode" in raw:
        modes = raw["pooling_mode"]
        return [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    others = [
        flag for flag in raw if flag.startswith("pooling_mode_") and flag not in POOLING_FLAGS
    ]
    return [POOLING_FLAGS.get(flag, flag) for flag in (*POOLING_FLAGS, *others) if raw.get(flag)]


def token_limit(folder: Path, positions: int) -> int:
    """The largest number of tokens of a text: what the first file that states one says, at most
    ``positions``.
    """
    for name, key in LIMITS:
        path = folder / name
        stated = read_json(path).get(key) if path.is_file() else None
        if stated:
            with reading(path):
                return min(int(stated), positions)
    return positions


def load_bert(folder: Path) -> Bert:
    """The encoder of a folder, float32, in eval mode. Raises ``InputError`` as ``read_config`` and
    ``fill`` do.
    """
    family, config = read_config(folder)
    found = read_tensors(folder / "model.safetensors", family)
    pooler = any(
        name.startswith(f"{theirs}.") for theirs in family.pooler.values() for name in found
    )
    bert = Bert(config, pooler)
    fill(bert, found, folder / "model.safetensors", family.names(config.num_hidden_layers, pooler))
    return bert.eval()


@dataclass
class Batch:
    """The texts of a call that are computed together: their numbers, ids (B, T) and mask (B, T),
    None without pads.
    """

    texts: list[int]
    ids: Tensor
    mask: Tensor | None


class SentenceEncoder(nn.Module):
    """``load`` a folder, ``encode`` texts, compare them by ``similarity``; training calls
    ``forward``.
    """

    def __init__(self, tokenizer: Tokenizer, bert: Bert, pooling: Pooling, normalize: bool):
        super().__init__()
        self.tokenizer, self.bert = tokenizer, bert
        self.pooling = pooling
        self.normalize = normalize  # scale each vector to length 1
        self.width = bert.config.hidden_size  # columns of a vector

    @classmethod
    def load(cls, folder: str | Path) -> "SentenceEncoder":
        """A folder of sentence-transformers, in eval mode; ``InputError`` beyond BERT, one pooling
        and normalising.
        """
        modules = read_modules(Path(folder))
        kinds = [kind for kind, _ in modules]
        pooled = kinds[:2] == ["Transformer", "Pooling"]
        modes = pooling_modes(read_json(modules[1][1] / "config.json")) if pooled else []
        if kinds[2:] not in ([], ["Normalize"]) or modes not in (["mean"], ["cls"], ["max"]):
            found = ", ".join([*kinds, *(f"{mode} pooling" for mode in modes)])
            raise InputError(
                f"{folder}: minisbert.core does not support {found}; minisbert.SentenceEncoder may"
            )
        transformer = modules[0][1]
        bert = load_bert(transformer)
        limit = token_limit(transformer, bert.config.positions)
        tokenizer = Tokenizer.load(transformer, limit, bert.config.pad_token_id)
        return cls(tokenizer, bert, Pooling(modes[0]), "Normalize" in kinds).eval()

    def encode(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Texts (an empty one is [CLS] [SEP]) -> vectors (N, D), row i for text i. In eval mode:
        dropout is noise.
        """
        return self.encode_tokens(self.tokenizer.encode(texts), batch_size)

    @torch.no_grad()
    def encode_tokens(self, tokens: Encoded, batch_size: int = 32) -> np.ndarray:
        """The tokens of N texts -> vectors (N, D)."""
        dtype = torch.promote_types(self.dtype, torch.float32)
        vectors = torch.empty(len(tokens.ids), self.width, dtype=dtype).numpy()
        for batch in self.batches(tokens, batch_size):
            states = self.states(batch)  # hidden (B, T, D), mask (B, T)
            vectors[batch.texts] = (
                self.vectors(*states).to("cpu", dtype).numpy()
            )  # (B, D), in the caller's order
        return vectors

    def batches(self, tokens: Encoded, batch_size: int = 32) -> Iterator[Batch]:
        """Texts of like length side by side, so that few pads are computed."""
        order = sorted(range(len(tokens)), key=lambda text: len(tokens.ids[text]))
        for start in range(0, len(order), batch_size):
            texts = order[start : start + batch_size]
            yield Batch(
                texts, *pad_batch([tokens.ids[text] for text in texts], self.tokenizer.pad_id)
            )

    def states(self, batch: Batch) -> tuple:
        """What ``vectors`` takes: the hidden states (B, T, D) of a batch, and its mask (B, T)."""
        return self.bert(batch.ids, batch.mask), batch.mask

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> one vector per text (B, D), not scaled yet."""
        return self.pooling(hidden, mask)

    def vectors(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> the vectors of the texts (B, D), scaled to length 1 if the
        model says so.
        """
        pooled = self.pool(hidden, mask)
        return normalize(pooled) if self.normalize else pooled

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """What training calls: ids (B, T), mask (B, T) True for real tokens -> vectors (B, D)."""
        if mask is not None and not mask.bool().any(dim=1).all():
            raise ValueError("each row of the mask must have a real token")
        return self.vectors(self.bert(ids, mask), mask)

    def unscaled(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads read them."""
        return self.pool(self.bert(ids, mask), mask)

    @property
    def dtype(self) -> torch.dtype:
        return self.bert.embeddings.word.weight.dtype

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine of every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype
        of the two.
        """
        dtype = np.result_type(a, b, np.float32)
        a, b = (torch.tensor(np.atleast_2d(x).astype(dtype, copy=False)) for x in (a, b))
        for name, x in (("a", a), ("b", b)):
            check_shape(name, x, None, a.shape[1])
            if not x.norm(dim=1).isfinite().all():
                raise ValueError(f"{name} has a vector whose length is not finite")
        return cosine_matrix(a, b).numpy()
