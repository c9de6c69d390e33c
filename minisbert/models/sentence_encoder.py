"""The book's sentence encoder for every day: more kinds of models, encoding at full speed, and saving.

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
encoder.similarity(vectors, vectors)  # (2, 2) cosines
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minisbert.core import InputError, encoder
from minisbert.core.bert import Bert
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import check_texts
from minisbert.fast.batching import ID_BYTES, chunks, packed_batches, to_ids, tokenize
from minisbert.fast.engine import Engine
from minisbert.fast.fused import FusedBert, evaluating
from minisbert.fast.fused_training import hidden_states
from minisbert.models.checkpoint import load_bert, save_bert
from minisbert.models.folders import find_model, model_folder
from minisbert.models.layout import SentenceConfig, make_pooling, read_sentence_config, write_sentence_config
from minisbert.models.outputs import check_options, empty, filled, store
from minisbert.models.poolings import Dense, Pooling, sentence_width
from minisbert.models.prompts import with_prompt
from minisbert.models.settings import Settings, read_settings, similarity_matrix, write_settings
from minisbert.models.tokenizer import Tokenizer, valid_texts
from minisbert.system.console import Progress
from minisbert.system.devices import choose_precision

BATCH_TOKENS = 2048  # per batch; on two cores no other size is faster, and larger ones need more memory


class SentenceEncoder(encoder.SentenceEncoder):
    """``load`` a model, ``encode`` texts, compare them by ``similarity``, ``save`` what was trained.

    ``forward`` is what training calls: ids (B, T) and mask (B, T) -> vectors (B, D).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        bert: Bert,
        pooling: Pooling,
        normalize: bool,
        dense: Sequence[Dense] = (),
        settings: Settings = Settings(),  # noqa: B008 (frozen)
    ):
        super().__init__(tokenizer, bert, pooling, normalize)
        self.dense = nn.Sequential(*dense)  # empty in most models
        self.width = sentence_width(pooling, dense, bert)  # columns of a vector, before ``settings.truncate_dim``
        self.settings = settings
        self.truncated = 0  # texts that the last ``encode`` had to cut
        self.engine = Engine()

    @classmethod
    def load(
        cls, model: str | Path, pooling: str | None = None, device: str | torch.device = "cpu", limit: int | None = None
    ) -> "SentenceEncoder":
        """A name from the manifest (fetched if it is missing) or a folder in sentence-transformers' layout.

        ``pooling`` and ``limit``, in tokens, override the folder's; a plain BERT states no pooling. In eval mode.
        Raises ``InputError`` for anything missing, damaged or not supported.
        """
        folder = find_model(model)
        encoder_folder, config = read_sentence_config(folder)
        chosen = config.pooling if pooling is None else pooling
        bert = load_bert(encoder_folder)
        pooling_module = make_pooling(chosen, bert.config.hidden_size, config.learned, folder)
        tokenizer = Tokenizer.load(encoder_folder, limit)
        settings = replace(read_settings(folder), include_prompt=config.include_prompt)
        model = cls(tokenizer, bert, pooling_module, config.normalize, config.dense, settings)
        model.engine.loaded(bert)
        return model.to(device).eval()

    def forward(self, ids: Tensor, mask: Tensor | None = None, precision: torch.dtype = torch.float32) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D). ``precision`` as in ``hidden``."""
        vectors = self.unscaled(ids, mask, precision)
        return unit(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None, precision: torch.dtype = torch.float32) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads read them."""
        trace: dict[str, Tensor] | None = {} if "first-last" in self.pooling.names else None
        hidden = self.hidden(ids, mask, None, precision, trace)  # (B, T, D)
        return self.dense(self.pool(hidden, mask, trace and trace["layers.0"]))

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        precision: torch.dtype = torch.float32,
        trace: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D) as ``Bert.forward`` gives them, its matrix products in ``precision``.

        In bfloat16 only the encoder computes in it: pooling, heads and losses keep their precision, since sums over
        many numbers belong in float32 (Micikevicius et al. 2018, section 3).
        """
        return hidden_states(self.bert, ids, mask, token_types, precision, trace)

    def pool(self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None, skip: int = 0) -> Tensor:
        """Hidden states (B, T, D), and for ``first-last`` the first layer's, without ``skip`` tokens, to (B, D)."""
        pooler = self.bert.pool(hidden) if "pooler" in self.pooling.names else None  # (B, D)
        hidden, mask, first = (x if x is None else x[:, skip:] for x in (hidden, mask, first))
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
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray | Tensor | list:
        """Texts -> (N, D) array, row i for text i; float32 (float64 for a model that was made ``double()``).

        An empty text is [CLS] [SEP] and has a vector, as in the reference. Texts beyond the length limit are cut
        and counted in ``self.truncated``. Texts with the same tokens are computed once.

        batch_tokens  the largest number of tokens in a batch; texts of several lengths share it without pads
        progress      True for a live line with rate and time left
        normalize     True for vectors of length 1, False for those before any scaling, None for the model's own choice
        truncate_dim  keep the first n columns, None for the model's own choice, mostly all. As in sentence-transformers
                      they are cut after the model's own scaling and are then shorter than 1; ``normalize=True`` scales
                      what is left
        output        "sentence", or "token" for a list with the hidden states (T, D) of every text's real tokens
        precision     "float32" (what the weights have), "bfloat16" if the hardware has it, "auto"
        convert       "array" for numpy, "tensor" for torch, both on the CPU
        prompt        put before each text, "" for nothing; prompt_name for one of the model's ``settings.prompts``.
                      Without either the model's default prompt, mostly none

        Raises ``InputError`` for anything but a list of valid strings, for options out of range, and for NaN.
        """
        texts, skip = with_prompt(check_texts(texts), self.settings, self.tokenizer, prompt, prompt_name)
        check_options(self.width, batch_tokens, normalize, truncate_dim, output, convert)
        columns = min(truncate_dim or self.settings.truncate_dim or self.width, self.width)
        dtype = self._layers_dtype(precision)
        line = progress if isinstance(progress, Progress) else Progress(len(texts), progress)
        tokens, self.truncated = tokenize(self.tokenizer, texts)
        rows = {tokens[row]: row for row in reversed(range(len(tokens)))}  # tokens -> the first row that has them
        total = sum(map(len, rows)) // ID_BYTES
        # created here, not in inference mode: a caller may compute gradients with it
        result = empty(tokens, columns if output == "sentence" else self.bert.config.hidden_size, self.dtype, output)
        with (
            self.engine.fused(self.bert, dtype, total) as fused,
            evaluating(*((self.pooling, self.dense) if fused else (self,))),  # the fused encoder has no dropout
            torch.autocast(self.device.type, enabled=False),
            line,
        ):
            line.expect(len(texts), total)
            for batch in packed_batches(rows, batch_tokens):
                for group, hidden, first in self._states(fused, batch):
                    found = hidden if output == "token" else self._finish(hidden, first, skip, normalize, columns)
                    store(result, [rows[key] for key in group], found, texts)
                line.done(sum(len(key) for group in batch for key in group) // ID_BYTES)
        return filled(result, tokens, rows, convert)

    def prepare(self, precision: str = "float32") -> None:
        """Copy the weights as ``encode`` reads them fastest; its second call does so by itself (``fast/engine.py``).

        84 MB for MiniLM-L6, 63 in bfloat16. ``InputError`` for foreign modules, hooks, and shared or busy weights.
        """
        self.engine.prepare(self.bert, self._layers_dtype(precision))

    def _layers_dtype(self, precision: str) -> torch.dtype:
        """The dtype that the layers compute in. Raises ``InputError`` as ``choose_precision``."""
        dtype, _ = choose_precision(precision, self.device)
        return dtype if dtype == torch.bfloat16 else self.dtype

    def _states(self, fused: FusedBert | None, batch: list[list[bytes]]) -> Iterator[tuple]:
        """Each group of a batch with its hidden states (B, T, D), and the first layer's if the pooling needs them."""
        first = "first-last" in self.pooling.names
        groups = [to_ids(group, self.device) for group in batch]
        if fused is not None:
            trace: dict[str, list[Tensor]] = {}
            hidden = fused(groups, trace if first else None)
            yield from zip(batch, hidden, trace["layers.0"] if first else [None] * len(hidden), strict=True)
            return
        for group, ids in zip(batch, groups, strict=True):
            states: dict[str, Tensor] = {}
            yield group, self.bert(ids, trace=states), states["layers.0"] if first else None

    def _finish(self, hidden: Tensor, first: Tensor | None, skip: int, normalize: bool | None, columns: int) -> Tensor:
        """What ``encode`` makes of hidden states (B, T, D): vectors (B, ``columns``)."""
        if hidden.shape[1] <= skip:
            raise InputError("a text has no token of its own after its prompt, and include_prompt is false")
        vectors = self.dense(self.pool(hidden, None, first, skip))  # (B, D)
        if normalize is None:
            return (unit(vectors) if self.normalize else vectors)[:, :columns]
        return unit(vectors[:, :columns]) if normalize else vectors[:, :columns]

    def encode_stream(
        self, texts: Iterable[str], progress: bool = False, *, total: int | None = None, **options: Any
    ) -> Iterator[np.ndarray | Tensor | list]:
        """``encode`` for more texts than fit in memory: yields the results of a few thousand texts at a time, in order.

        ``texts`` may be a generator. ``total`` is their number, if known, for the time left; ``options`` are those of
        ``encode``. ``self.truncated`` keeps counting. Raises ``InputError`` as ``encode`` does, on the way.
        """
        truncated = self.truncated = 0
        with Progress(total, progress) as line:
            for chunk in chunks(valid_texts(texts)):
                result = self.encode(chunk, progress=line, **options)
                truncated = self.truncated = truncated + self.truncated
                yield result

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Every row of a (N, D) with every row of b (M, D) -> (N, M), in the finer dtype of the two.

        ``settings.similarity`` says how: "cosine", "dot", or minus the "euclidean" or "manhattan" distance.
        """
        name = self.settings.similarity
        return super().similarity(a, b) if name == "cosine" else similarity_matrix(name, a, b)

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too; atomically replaces a model there.

        Raises ``InputError`` for a folder that holds anything but a model: replacing it would lose its contents.
        """
        with model_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: Path) -> None:
        """The model's files into an empty folder."""
        save_bert(self.bert, folder)
        self.tokenizer.save(folder)
        learned, prompt = self.pooling.state_dict(), self.settings.include_prompt
        config = SentenceConfig(self.pooling.mode, self.normalize, tuple(self.dense), learned, prompt)
        write_sentence_config(config, self.bert.config.hidden_size, self.tokenizer.limit, folder, self.tokenizer.kept)
        write_settings(self.settings, folder)
