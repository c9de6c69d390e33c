"""Texts to vectors: tokenizer, encoder, pooling and (for most models) normalising in one object.

    encoder = SentenceEncoder.load("weights/all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
    encoder.similarity(vectors, vectors)  # (2, 2) cosines

What the library runs: ``normalize``, ``cosine`` and ``cosine_matrix``. For the rest it has
other code:

- ``SentenceEncoder``: the class of this name in ``minisbert/models/sentence_encoder.py``, which is
  made of the same parts, but forms its batches in another way and has options. Equal by
  ``test_vectors_equal_those_of_the_fast_encoder``.
- ``read_modules``, ``read_pooling``, ``token_limit``, ``load_bert``: ``minisbert/checkpoints``,
  which reads the folders of all kinds of models. Equal by the same
  ``test_vectors_equal_those_of_the_fast_encoder``.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .bert import Bert
from .checks import InputError, check_shape, read_json, reading
from .pooling import Pooling
from .tokenizer import Tokenizer, pad_batch
from .weights import fill, read_config, read_tensors, tensor_names


def normalize(x: Tensor, eps: float = 1e-12) -> Tensor:
    """Each vector scaled to length 1: x (..., D) -> (..., D). ``normalize([3, 4]) = [0.6, 0.8]``.

    A zero vector stays zero.
    """
    # As in PyTorch, a length below eps is taken for eps. A length whose square overflows, such as
    # 1e20 in float32, is infinite, and its vector becomes zero.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1)
    return x / length.clamp_min(eps)


def cosine(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of the angle between matching rows: u and v (B, D) -> (B,).

    ``cosine([1, 0], [1, 1]) = 0.70711``.
    """
    return (normalize(u) * normalize(v)).sum(dim=-1)  # (B,)


def cosine_matrix(u: Tensor, v: Tensor) -> Tensor:
    """Cosine of each row of u (B, D) with each row of v (N, D) -> (B, N)."""
    return normalize(u) @ normalize(v).T


# --------------------------------------------------------------------------------- from a folder

# Older files of sentence-transformers have a flag for each pooling. These are the flags of the
# three that the book has. The library knows more.
POOLING_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module of a model.

    For all-MiniLM-L6-v2 they are ``("Transformer", folder)``, ``("Pooling", folder / "1_Pooling")``
    and ``("Normalize", folder / "2_Normalize")``.
    """
    path = folder / "modules.json"
    with reading(path):
        modules = []
        for module in read_json(path, kind=list):
            if not isinstance(module, dict) or not isinstance(module["type"], str):
                raise ValueError("each module must be an object with a type and a path")
            kind = module["type"]
            # The last part of sentence_transformers.models.Transformer is the kind; the parts
            # before it differ from version to version. Somebody else's class keeps its whole name,
            # so that it is not taken for one of these.
            if kind.startswith("sentence_transformers."):
                kind = kind.rpartition(".")[-1]
            modules.append((kind, folder / str(module["path"])))
        return modules


def read_pooling(folder: Path) -> str:
    """The pooling in ``1_Pooling/config.json``: ``mean``, ``cls`` or ``max``.

    Raises ``InputError`` for another one, and for several at once.
    """
    path = folder / "config.json"
    content = read_json(path)
    if "pooling_mode" in content:
        # Files since 2025 name the pooling.
        modes = content["pooling_mode"]
        if not isinstance(modes, list):
            modes = [modes]
    else:
        # Older files have a flag for each pooling. If the book does not have the pooling, the
        # flag's own name goes into ``modes`` and is refused below.
        modes = []
        for flag, value in content.items():
            if flag.startswith("pooling_mode_") and value:
                modes.append(POOLING_MODES.get(flag, flag))

    if len(modes) != 1 or modes[0] not in POOLING_MODES.values():
        listed = "none"
        if modes:
            listed = " and ".join(str(mode) for mode in modes)
        raise InputError(
            f"{path}: minisbert.core does not support the pooling {listed}, only one of "
            f"{', '.join(POOLING_MODES.values())}; minisbert.SentenceEncoder may"
        )
    return modes[0]


def token_limit(folder: Path, positions: int) -> int:
    """The largest number of tokens of a text: the folder's limit, but at most ``positions``."""
    # The first file that has a limit counts.
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        path = folder / name
        if not path.is_file():
            continue
        limit = read_json(path).get(key)
        if limit:
            with reading(path):
                # "No limit" is written as 1e30 in some files, a float.
                return min(int(limit), positions)
    return positions


def load_bert(folder: Path) -> Bert:
    """The encoder of a folder, float32, in eval mode.

    Raises ``InputError`` as ``read_config``, ``read_tensors`` and ``fill`` do.
    """
    path = folder / "model.safetensors"
    config = read_config(folder)
    tensors = read_tensors(path)
    pooler = "pooler.dense.weight" in tensors  # no setting says whether a file has one
    bert = Bert(config, pooler)
    fill(bert, tensors, path, tensor_names(config.num_hidden_layers, pooler))
    return bert.eval()


class SentenceEncoder(nn.Module):
    """A model that one can load from a folder, that turns texts into vectors and compares them.

    Training calls ``forward``; everybody else ``load``, ``encode`` and ``similarity``.
    """

    def __init__(self, tokenizer: Tokenizer, bert: Bert, pooling: Pooling, normalize: bool):
        super().__init__()
        self.tokenizer = tokenizer
        self.bert = bert
        self.pooling = pooling
        self.normalize = normalize  # scale each vector to length 1
        self.width = bert.config.hidden_size  # columns of a vector

    @classmethod
    def load(cls, folder: str | Path) -> "SentenceEncoder":
        """A folder in sentence-transformers' layout, in eval mode.

        Raises ``InputError`` for anything missing, damaged, or beyond BERT, one pooling and
        normalising.
        """
        modules = read_modules(Path(folder))
        kinds = [kind for kind, _ in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise InputError(
                f"{folder}: minisbert.core does not support the modules {', '.join(kinds)}, only "
                f"Transformer, Pooling and Normalize; minisbert.SentenceEncoder may"
            )
        _, transformer_folder = modules[0]
        _, pooling_folder = modules[1]

        pooling = Pooling(read_pooling(pooling_folder))
        bert = load_bert(transformer_folder)
        limit = token_limit(transformer_folder, bert.config.positions)
        tokenizer = Tokenizer.load(transformer_folder, limit, bert.config.pad_token_id)
        encoder = cls(tokenizer, bert, pooling, normalize="Normalize" in kinds)
        return encoder.eval()

    @torch.no_grad()
    def encode(self, texts: Sequence[str], batch_size: int = 32) -> np.ndarray:
        """Texts -> vectors (N, D), row i for text i; longer texts are cut to the tokenizer's limit.

        An empty text is [CLS] [SEP] and has a vector, as in sentence-transformers. Call it in eval
        mode: dropout is noise here.
        """
        tokens = self.tokenizer.encode(texts)
        # Texts of similar length share a batch, so that few pads are computed. A text is known here
        # by its number in ``texts``.
        order = sorted(range(len(tokens)), key=lambda number: len(tokens.ids[number]))

        dtype = self.bert.embeddings.word.weight.dtype  # float32, or float64 after ``double()``
        vectors = torch.empty(len(tokens), self.width, dtype=dtype)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]  # the numbers of B texts
            rows = [tokens.ids[number] for number in batch]
            ids, mask = pad_batch(rows, self.tokenizer.pad_id)  # (B, T)
            vectors[batch] = self(ids, mask)  # (B, D): each vector goes to its text's row
        return vectors.numpy()

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D). Training calls it too."""
        if mask is not None and not mask.bool().any(dim=1).all():
            raise ValueError("each row of the mask must have a real token")
        hidden = self.bert(ids, mask)  # (B, T, D)
        vectors = self.pooling(hidden, mask)  # (B, D)
        if self.normalize:
            vectors = normalize(vectors)
        return vectors

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine of every row of a (N, D) with every row of b (M, D) -> (N, M).

        One vector (D,) counts as one row. The result has the finer dtype of the two, at least
        float32.
        """
        a = np.atleast_2d(a)
        b = np.atleast_2d(b)
        # None stands for any number of rows but 0. b must have as many columns as a.
        for name, x in (("a", a), ("b", b)):
            check_shape(name, x, None, a.shape[1])

        dtype = np.result_type(a, b, np.float32)
        first = torch.tensor(a.astype(dtype, copy=False))
        second = torch.tensor(b.astype(dtype, copy=False))
        for name, x in (("a", first), ("b", second)):
            if not x.norm(dim=1).isfinite().all():
                raise ValueError(f"{name} has a vector whose length is not finite")
        return cosine_matrix(first, second).numpy()
