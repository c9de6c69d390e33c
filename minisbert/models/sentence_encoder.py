"""Texts to vectors: tokenizer, encoder, pooling and (for most models) normalising in one object.

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
encoder.similarity(vectors, vectors)  # (2, 2) cosines
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, one_line
from minisbert.core.bert import Bert
from minisbert.core.losses import normalize as unit
from minisbert.core.pooling import Dense, Pooling
from minisbert.core.tokenizer import Tokenizer, check_texts, checked
from minisbert.fast.batching import ID_BYTES, chunks, packed_batches, to_ids, tokenize
from minisbert.fast.fused import FastBert, check_options, evaluating, same_as_master
from minisbert.models.checkpoint import load_bert, save_bert
from minisbert.models.layout import SentenceConfig, make_pooling, read_sentence_config, write_sentence_config
from minisbert.system.assets import assets, ensure
from minisbert.system.console import Progress
from minisbert.system.devices import choose_precision
from minisbert.system.files import atomic_folder

BATCH_TOKENS = 2048  # of a batch; on two cores no size is faster, and more takes more memory


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
        return unit(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads of ``heads.py`` read them."""
        hidden, first = self._states(ids, mask)
        return self.dense(self.pool(hidden, mask, first))

    def _states(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Hidden states (B, T, D), and those of the first layer (B, T, D) where the pooling asks for them."""
        trace: dict[str, Tensor] | None = {} if "first-last" in self.pooling.names else None
        hidden = self.bert(ids, mask, trace=trace)  # (B, T, D)
        return hidden, trace and trace["layers.0"]

    def pool(self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D), and for ``first-last`` those of the first layer (B, T, D), to vectors (B, D)."""
        pooler = self.bert.pool(hidden) if "pooler" in self.pooling.names else None  # (B, D)
        return self.pooling(hidden, mask, first, pooler)

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.bert.embeddings.word.weight.dtype

    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | Progress = False,
        *,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        output: str = "sentence",
        precision: str = "float32",
        convert: str = "array",
    ) -> np.ndarray | Tensor | list:
        """Texts -> (N, D) array, row i for text i; float32 (float64 for a model that was made ``double()``).

        An empty text is [CLS] [SEP] and has a vector, as in the reference. Texts beyond the length limit are cut
        and counted in ``self.truncated``. Texts of the same tokens are computed once.

        batch_tokens  the most tokens of a batch; texts of several lengths stand in it without pads
        progress      True for a live line with rate and time left
        normalize     True for vectors of length 1, False for those before any scaling, None as the model has it
        truncate_dim  keep so many columns. As in sentence-transformers they are cut behind the model's own scaling,
                      and are shorter than 1 then; ``normalize=True`` scales what is left
        output        "sentence", or "token" for a list with the hidden states (T, D) of every text's real tokens
        precision     "float32" (what the weights have), "bfloat16" where the hardware has it, "auto"
        convert       "array" for numpy, "tensor" for torch, both on the CPU

        Raises ``InputError`` for what is not a list of valid strings, and for an option that cannot be.
        """
        check_texts(texts)
        check_options(self.width, normalize, truncate_dim, output, convert)
        fast = self._fast(precision)
        line = progress if isinstance(progress, Progress) else Progress(len(texts), progress)
        tokens, self.truncated = tokenize(self.tokenizer, texts)
        rows = {tokens[row]: row for row in reversed(range(len(tokens)))}  # tokens -> the first row that has them
        # made here, not in inference mode: a caller may compute gradients with what comes back
        result = torch.empty(len(texts), truncate_dim or self.width, dtype=self.dtype)
        if output == "token":
            result = [
                torch.empty(len(key) // ID_BYTES, self.bert.config.hidden_size, dtype=self.dtype) for key in tokens
            ]
        with evaluating(self), torch.autocast(self.device.type, enabled=False), line:
            line.expect(len(texts), sum(map(len, rows)) // ID_BYTES)
            for batch in packed_batches(rows, batch_tokens):
                computed = self._hidden(fast, [to_ids(group, self.device) for group in batch])
                for group, (hidden, first) in zip(batch, computed, strict=True):  # (B, T, D) each
                    places = [rows[key] for key in group]
                    if output == "sentence":
                        result[places] = self._finish(hidden, first, normalize, truncate_dim).cpu()
                    else:
                        for place, states in zip(places, hidden, strict=True):
                            result[place].copy_(states)  # (T, D)
                line.done(sum(map(len, itertools.chain(*batch))) // ID_BYTES)
        for row, key in enumerate(tokens):
            if rows[key] != row:
                result[row] = result[rows[key]].clone()
        if convert == "tensor":
            return result
        return result.numpy() if output == "sentence" else [states.numpy() for states in result]

    def _hidden(self, fast: FastBert | None, groups: list[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Each group's hidden states (B, T, D), and those of the first layer where the pooling asks for them."""
        if fast is None:
            return map(self._states, groups)
        trace: dict[str, list[Tensor]] | None = {} if "first-last" in self.pooling.names else None
        hidden = fast(groups, trace)
        return zip(hidden, trace["layers.0"] if trace else [None] * len(hidden), strict=True)

    def _finish(self, hidden: Tensor, first: Tensor | None, normalize: bool | None, columns: int | None) -> Tensor:
        """What ``encode`` makes of hidden states (B, T, D): vectors (B, ``columns``)."""
        vectors = self.dense(self.pool(hidden, None, first))  # (B, D)
        if normalize is None:
            return (unit(vectors) if self.normalize else vectors)[:, :columns]
        return unit(vectors[:, :columns]) if normalize else vectors[:, :columns]

    def encode_stream(
        self, texts: Iterable[str], progress: bool = False, *, total: int | None = None, **options: Any
    ) -> Iterator[np.ndarray | Tensor | list]:
        """``encode`` for more texts than memory holds: the results of some thousand texts after the other, in order.

        ``texts`` may be a generator. ``total`` says, where known, how many there are, for the time left; ``options``
        are those of ``encode``. ``self.truncated`` counts on. Raises ``InputError`` as ``encode``, on the way.
        """
        truncated = self.truncated = 0
        with Progress(total, progress) as line:
            for chunk in chunks(checked(texts)):
                result = self.encode(chunk, progress=line, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    def _fast(self, precision: str) -> FastBert | None:
        """The encoder in fused operations; None where it may not stand in for this one."""
        dtype, _ = choose_precision(precision, self.device)
        if same_as_master(self.bert):
            return FastBert(self.bert, dtype if dtype == torch.bfloat16 else self.dtype)
        if dtype == torch.bfloat16:
            raise InputError("bfloat16 needs the encoder as bert.py has it; this one has been changed: use float32")
        return None

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine of every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two."""
        a, b = np.atleast_2d(a), np.atleast_2d(b)
        if a.shape[1] != b.shape[1]:
            raise InputError(f"vectors of width {a.shape[1]} and {b.shape[1]} cannot be compared")
        dtype = np.result_type(a, b, np.float32)
        a, b = (unit(torch.tensor(x.astype(dtype, copy=False))) for x in (a, b))
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
def model_folder(folder: str | Path) -> Iterator[Path]:
    """A new folder to write a model to, which replaces the model at ``folder``, and nothing but a model, atomically."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds something that is not a model (no config.json) and is not replaced")
    with atomic_folder(folder) as partial:
        yield partial


def find_model(model: str | Path) -> Path:
    """The folder of a model given by manifest name or path; ``InputError`` lists the names for anything else."""
    weights = [name for name, entry in assets().items() if entry.kind == "weights"]
    if str(model) in weights:
        return ensure(str(model))
    if Path(model).is_dir():
        return Path(model)
    raise InputError(f"no model {one_line(model)}: neither a folder nor one of {', '.join(weights)}")
