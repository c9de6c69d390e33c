"""Texts to vectors: tokenizer, encoder, pooling and (for most models) normalising in one object.

    encoder = SentenceEncoder.load("weights/all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
    encoder.similarity(vectors, vectors)  # (2, 2) cosines

``encode`` pads each batch to its longest text: easy to follow. ``minisbert.SentenceEncoder`` gives the same vectors
several times as fast, and opens more kinds of models.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .bert import Bert
from .checks import InputError, check, read_json, reading
from .pooling import POOLINGS, Pooling
from .tokenizer import Tokenizer, pad_batch
from .weights import fill, read_config, read_tensors


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Each vector scaled to length 1: x (..., D) -> (..., D). A zero vector stays zero. ``[3, 4] -> [0.6, 0.8]``."""
    # as in PyTorch, a length below eps counts as eps, and one whose square overflows (1e20 in float32) as infinite
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(eps)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of the angle between matching rows: u and v (B, D) -> (B,). ``cosine([1, 0], [1, 1]) = 0.70711``."""
    return (normalize(u) * normalize(v)).sum(dim=-1)  # (B,)


def cosine_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of each row of u (B, D) with each row of v (N, D) -> (B, N)."""
    return normalize(u) @ normalize(v).T


# sentence-transformers' flags for the poolings, in the order in which it concatenates their results
POOLING_FLAGS = {f"pooling_mode_{mode}_token{s}": mode for mode, s in (("cls", ""), ("max", "s"), ("mean", "s"))}

OWN = re.compile(r"^sentence_transformers\.(.*\.)?")  # in the names of modules; another package's class may be anything
LIMITS = (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length"))


def pooling_modes(raw: dict[str, Any]) -> list[str]:
    """The poolings in ``1_Pooling/config.json``: ``pooling_mode`` (new files), or one flag per mode (old files)."""
    if "pooling_mode" in raw:
        return list(map(str, raw["pooling_mode"] if isinstance(raw["pooling_mode"], list) else [raw["pooling_mode"]]))
    others = [flag for flag in raw if flag.startswith("pooling_mode_") and flag not in POOLING_FLAGS]
    return [POOLING_FLAGS.get(flag, flag) for flag in (*POOLING_FLAGS, *others) if raw.get(flag)]


def load_bert(folder: Path) -> Bert:
    """The encoder of a folder, float32, in eval mode. Raises ``InputError`` as ``read_config`` and ``fill`` do."""
    family, config = read_config(folder)
    found = read_tensors(folder / "model.safetensors", family)
    pooler = any(name.startswith(f"{theirs}.") for theirs in family.pooler.values() for name in found)
    bert = Bert(config, pooler)
    fill(bert, found, folder / "model.safetensors", family.names(config.num_hidden_layers, pooler))
    return bert.eval()


class SentenceEncoder(nn.Module):
    """``load`` a folder, ``encode`` texts, compare them by ``similarity``; training calls ``forward``."""

    def __init__(self, tokenizer: Tokenizer, bert: Bert, pooling: Pooling, normalize: bool):
        super().__init__()
        self.tokenizer = tokenizer
        self.bert = bert
        self.pooling = pooling
        self.normalize = normalize  # scale each vector to length 1

    @classmethod
    def load(cls, folder: str | Path) -> "SentenceEncoder":
        """A folder in sentence-transformers' layout, in eval mode.

        Raises ``InputError`` for anything missing, damaged, or beyond BERT, one pooling and normalising.
        """
        path = Path(folder, "modules.json")
        with reading(path):
            modules = [(OWN.sub("", each["type"]), path.parent / each["path"]) for each in read_json(path, kind=list)]
        kinds = [kind for kind, _ in modules]
        pooled = kinds[:2] == ["Transformer", "Pooling"]
        modes = pooling_modes(read_json(modules[1][1] / "config.json")) if pooled else []
        if kinds[2:] not in ([], ["Normalize"]) or modes not in [[mode] for mode in POOLINGS]:
            found = ", ".join([*kinds, *(f"{mode} pooling" for mode in modes)])
            raise InputError(f"{folder}: minisbert.core does not support {found}; minisbert.SentenceEncoder may")
        encoder = modules[0][1]
        bert = load_bert(encoder)
        limit = bert.config.positions
        with reading(encoder):
            stated = [read_json(encoder / name).get(key) for name, key in LIMITS if (encoder / name).is_file()]
            limit = min(int(next(filter(None, stated), limit)), limit)
        tokenizer = Tokenizer.load(encoder, limit, bert.config.pad_token_id)
        return cls(tokenizer, bert, Pooling(modes[0]), "Normalize" in kinds).eval()

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D)."""
        vectors = self.unscaled(ids, mask)
        return normalize(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads read them."""
        return self.pooling(self.bert(ids, mask), mask)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Texts -> vectors (N, D), row i for text i; longer texts are cut to the tokenizer's limit.

        An empty text is [CLS] [SEP] and has a vector, as in the reference. Call it in eval mode: dropout is noise here.
        """
        ids = self.tokenizer.encode(texts).ids
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))  # texts of like length: few pads
        vectors = torch.empty(len(ids), self.bert.config.hidden_size, dtype=self.bert.embeddings.word.weight.dtype)
        for start in range(0, len(ids), batch_size):
            rows = order[start : start + batch_size]
            vectors[rows] = self(*pad_batch([ids[row] for row in rows], self.tokenizer.pad_id))
        return vectors.numpy()

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine of every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two."""
        dtype = np.result_type(a, b, np.float32)
        a, b = (torch.tensor(np.atleast_2d(x).astype(dtype, copy=False)) for x in (a, b))
        check("a (N, D) of finite length, b (M, D) of finite length", a, b)
        return cosine_matrix(a, b).numpy()
