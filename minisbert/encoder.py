"""Texts to vectors: tokenizer, encoder, pooling and (for most models) normalising in one object.

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
encoder.similarity(vectors, vectors)  # (2, 2) cosines
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.assets import assets, ensure
from minisbert.bert import Bert
from minisbert.checkpoint import load_bert, save_bert
from minisbert.console import InputError, LiveLine, duration, one_line
from minisbert.data import pad_batch
from minisbert.files import atomic_folder
from minisbert.layout import SentenceConfig, make_pooling, read_sentence_config, write_sentence_config
from minisbert.losses import normalize
from minisbert.pooling import Dense, Pooling
from minisbert.tokenizer import Tokenizer

BATCH_TOKENS = 4096  # pads included; the sweet spot of two cores lies at 1,000 to 4,000


class SentenceEncoder(nn.Module):
    """``load`` a model, ``encode`` texts, compare them by ``similarity``, ``save`` what was trained.

    ``forward`` is what training calls: ids (B, T) and mask (B, T) -> vectors (B, D).
    """

    def __init__(
        self, tokenizer: Tokenizer, bert: Bert, pooling: Pooling, normalize: bool, dense: Sequence[Dense] = ()
    ):
        super().__init__()
        self.tokenizer = tokenizer
        self.bert = bert
        self.pooling = pooling
        self.dense = nn.Sequential(*dense)  # nothing at all, in most models
        self.normalize = normalize
        widths = [pooling.width(bert.config.hidden_size), *(layer.linear.out_features for layer in dense)]
        for layer, width in zip(dense, widths[:-1], strict=True):
            if layer.linear.in_features != width:
                raise InputError(f"a dense layer for {layer.linear.in_features} columns gets {width} (other pooling?)")
        if "pooler" in pooling.names and bert.pooler is None:
            raise InputError("this checkpoint has no pooler weights: choose another pooling than 'pooler'")
        self.width = widths[-1]  # columns of a sentence vector
        self.truncated = 0  # texts that the last ``encode`` had to cut

    @classmethod
    def load(
        cls, model: str | Path, pooling: str | None = None, device: str | torch.device = "cpu"
    ) -> "SentenceEncoder":
        """A name from the manifest (fetched where it is missing) or a folder in sentence-transformers' layout.

        ``pooling`` overrides the folder's, and is needed where it states none (a plain BERT). In eval mode.
        Raises ``InputError`` for anything missing, damaged or not supported.
        """
        folder = find_model(model)
        encoder_folder, config = read_sentence_config(folder)
        chosen = config.pooling if pooling is None else pooling
        if chosen is None:
            raise InputError(
                f"{folder} has no pooling config (1_Pooling/config.json): choose one, for a plain BERT mostly 'mean'"
            )
        bert = load_bert(encoder_folder)
        pooling_module = make_pooling(chosen, bert.config.hidden_size, config.learned)
        tokenizer = Tokenizer.load(encoder_folder)
        return cls(tokenizer, bert, pooling_module, config.normalize, config.dense).to(device).eval()

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D)."""
        vectors = self.unscaled(ids, mask)
        return normalize(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads of ``heads.py`` read them."""
        trace: dict[str, Tensor] | None = {} if "first-last" in self.pooling.names else None
        hidden = self.bert(ids, mask, trace=trace)  # (B, T, D)
        return self.dense(self.pool(hidden, mask, trace and trace["layers.0"]))

    def pool(self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D), and for ``first-last`` those of the first layer (B, T, D), to vectors (B, D)."""
        pooler = self.bert.pool(hidden) if "pooler" in self.pooling.names else None  # (B, D)
        return self.pooling(hidden, mask, first, pooler)

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word.weight.device

    def encode(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS, progress: bool = False) -> np.ndarray:
        """Texts -> (N, D) array, row i for text i; float32 (float64 for a model that was made ``double()``).

        An empty text is [CLS] [SEP] and has a vector, as in the reference. Texts beyond the length limit are cut
        and counted in ``self.truncated``. ``progress`` shows a live line with rate and time left.
        Raises ``InputError`` for what is not a list of valid strings.
        """
        encoded = self.tokenizer.encode(texts)
        self.truncated = encoded.truncated
        vectors = torch.empty(len(encoded), self.width, dtype=self.bert.embeddings.word.weight.dtype)  # (N, D)
        batches = budgeted_batches([len(ids) for ids in encoded.ids], batch_tokens)
        with evaluating(self):
            for rows in announced(batches, len(encoded), "texts", progress):
                ids, mask = pad_batch([encoded.ids[row] for row in rows], self.tokenizer.pad_id)
                mask = None if mask is None else mask.to(self.device)
                vectors[rows] = self(ids.to(self.device), mask).cpu()  # (B, D)
        return vectors.numpy()

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine of every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two."""
        a, b = np.atleast_2d(a), np.atleast_2d(b)
        if a.shape[1] != b.shape[1]:
            raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
        dtype = np.result_type(a, b, np.float32)
        a, b = (normalize(torch.tensor(x.astype(dtype, copy=False))) for x in (a, b))
        return (a @ b.T).numpy()

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too; replaces a model there, atomically.

        Raises ``InputError`` for a folder that holds anything but a model: replacing it would lose what is in it.
        """
        with model_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        save_bert(self.bert, folder)
        self.tokenizer.save(folder)
        config = SentenceConfig(self.pooling.mode, self.normalize, tuple(self.dense), self.pooling.state_dict())
        write_sentence_config(config, self.bert.config.hidden_size, self.tokenizer.limit, folder)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every module has its own mode again (a caller may have frozen some)."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def model_folder(folder: str | Path) -> Iterator[Path]:
    """A new folder to write a model to, which replaces the model at ``folder``, and nothing but a model, atomically."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds something that is not a model (no config.json) and is not replaced")
    with atomic_folder(folder) as partial:
        yield partial


def budgeted_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Row numbers in batches of like length, longest first, of at most ``batch_tokens`` tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    longest = 0  # tokens of the longest row of the current batch: every row is padded to it
    for row in order:
        if not batches or longest * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
            longest = lengths[row]
        batches[-1].append(row)
    return batches


def announced(batches: list[list[int]], total: int, noun: str, progress: bool) -> Iterator[list[int]]:
    """The batches, one after the other; with ``progress`` a live line says how far it is and how long it will take."""
    with LiveLine() as line:
        started, done = time.monotonic(), 0
        for rows in batches:
            yield rows
            done += len(rows)
            if progress:
                rate = done / (time.monotonic() - started)
                left = duration((total - done) / rate)
                line.show(f"{done:,} of {total:,} {noun}, {rate:,.0f} a second, {left} left")


def find_model(model: str | Path) -> Path:
    """The folder of a model given by manifest name or path; ``InputError`` lists the names for anything else."""
    weights = [name for name, entry in assets().items() if entry.kind == "weights"]
    if str(model) in weights:
        return ensure(str(model))
    if Path(model).is_dir():
        return Path(model)
    raise InputError(f"no model {one_line(model)}: neither a folder nor one of {', '.join(weights)}")
