"""The book's sentence encoder for every day: more kinds of models, encoding at full speed, and saving.

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
encoder.similarity(vectors, vectors)  # (2, 2) cosines
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from minisbert.checkpoints.encoder_settings import EncoderSettings, write_settings
from minisbert.checkpoints.layout import ModelFolder, write_modules
from minisbert.checkpoints.save import model_folder
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core import encoder
from minisbert.core.bert import Bert
from minisbert.core.encoder import normalize as unit
from minisbert.models.batching import Batch, same_text, unpack
from minisbert.models.encoder import TextEncoder
from minisbert.models.guards import check_ids, check_inputs, evaluating
from minisbert.models.pooling import Dense, Pooling, load_dense, load_pooling, sentence_width
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.devices import choose_dtype
from minisbert.system.torch_internals import fastest_linear


class SentenceEncoder(TextEncoder, encoder.SentenceEncoder):
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
        settings: EncoderSettings | None = None,
    ):
        super().__init__(tokenizer, bert, pooling, normalize)
        self.dense = nn.Sequential(*dense)  # empty in most models
        self.width, self.hidden_size = sentence_width(pooling, dense, bert), bert.config.hidden_size
        self.settings = settings or EncoderSettings()

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        bert = load_transformer(folder.encoder)
        module = load_pooling(folder, pooling, bert.config.hidden_size)
        dense = [load_dense(folder, place) for place in folder.places("Dense")]
        tokenizer = Tokenizer.load(folder.encoder, limit)
        return cls(tokenizer, bert, module, folder.normalize, dense, folder.settings).eval()

    def forward(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D). ``dtype`` as in ``hidden``."""
        vectors = self.unscaled(ids, mask, dtype)
        return unit(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """The vectors (B, D) before they are scaled to length 1, as the heads read them."""
        trace = self.empty_trace()
        hidden = self.hidden(ids, mask, None, dtype, trace)  # (B, T, D)
        first = None if trace is None else trace["layers.0"]  # (B, T, D)
        return self.dense(self.pool(hidden, mask, first))

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        trace: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D) as ``Bert.forward`` gives them, its matrix products in ``dtype``.

        In bfloat16 only the encoder computes in it: pooling, heads and losses keep their precision, since sums over
        many numbers belong in float32 (Micikevicius et al. 2018, section 3).
        """
        check_inputs(self.bert.config, ids, mask, token_types)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.bert(ids, mask, token_types, trace).to(self.dtype)

    def pool(self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None, skip: int = 0) -> Tensor:
        """Hidden states (B, T, D), and for ``first-last`` the first layer's, without ``skip`` tokens -> (B, D)."""
        pooler = None
        if "pooler" in self.pooling.names:
            pooler = self.bert.pool(hidden)  # (B, D)
        if skip:
            hidden = hidden[:, skip:]
            mask = None if mask is None else mask[:, skip:]
            first = None if first is None else first[:, skip:]
        return self.pooling(hidden, mask, first, pooler)

    @property
    def device(self) -> torch.device:
        return self.bert.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.bert.embeddings.word.weight.dtype

    @property
    def most_tokens(self) -> int:
        return self.bert.config.positions

    @property
    def pooling_mode(self) -> str:
        return self.pooling.mode

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[None]:
        """Eval mode without gradients, and matrix products in ``dtype``."""
        dtype, _ = choose_dtype(dtype or "float32", self.device)
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
        with evaluating(self), fastest_linear(), autocast:
            yield

    def vectors(self, batch: Batch, skip: int = 0) -> Tensor:
        hidden, mask, first = self._encoded(batch)
        with torch.autocast(self.device.type, enabled=False):  # pooling, like the losses, is never in bfloat16
            return self.dense(self.pool(hidden, mask, first, skip))

    def states(self, batch: Batch) -> list[Tensor]:
        hidden, mask, _ = self._encoded(batch)
        return [states[real] for states, real in zip(hidden, mask, strict=True)]

    def _encoded(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        check_ids(self.bert.config, batch.ids, batch.places.shape[1])
        ids, positions, text_index, places = batch.inputs(self.device)
        if len(places) > len(ids):
            return self.unpacked(ids, positions, same_text(text_index), places)
        if batch.tokens < ids.numel():  # a text has a row to itself: a mask of pads (R, T) is smaller than (R, 1, T, T)
            return self.unpacked(ids, positions, text_index >= 0, places)
        return self.unpacked(ids, None, None, places)

    def unpacked(
        self, ids: Tensor, positions: Tensor | None, mask: Tensor | None, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """A packed batch -> hidden states (N, S, D), mask (N, S), and the first layer's states if pooling needs them.

        ``mask`` as in ``Bert.forward``.
        """
        trace = self.empty_trace()
        hidden, real = unpack(self.bert(ids, mask, None, trace, positions).to(self.dtype), places)
        first = None
        if trace is not None:
            first, _ = unpack(trace["layers.0"].to(self.dtype), places)
        return hidden, real, first

    def empty_trace(self) -> dict[str, Tensor] | None:
        """What ``Bert.forward`` fills if the pooling needs the first layer's states."""
        return {} if "first-last" in self.pooling.names else None

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
        kinds = ["Transformer", "Pooling"] + ["Dense"] * len(self.dense)
        if self.normalize:
            kinds.append("Normalize")
        places = write_modules(folder, kinds)
        self.pooling.write(folder / places[1], self.hidden_size, self.settings.include_prompt)
        for dense, place in zip(self.dense, places[2:], strict=False):
            dense.write(folder / place)
        write_settings(folder, self.settings, self.tokenizer.text_settings)
