"""Load, run and save a sentence encoder: the book's class for more kinds of models, and at full speed.

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
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core import encoder
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize as unit
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import Batch, same_text, unpack
from minisbert.models.encoder import TextEncoder
from minisbert.models.guards import check_ids, check_inputs, evaluating
from minisbert.models.pooling import Dense, Pooling, load_dense_layer, load_pooling, sentence_width
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.devices import choose_dtype
from minisbert.system.files import atomic_folder
from minisbert.system.torch_internals import fastest_linear


class SentenceEncoder(TextEncoder, encoder.SentenceEncoder):
    """``load`` a model, ``encode`` texts, compare them by ``similarity``, ``save`` what was trained.

    ``forward`` is what training calls: ids (B, T) and mask (B, T) -> vectors (B, D).
    """

    folder_class = "SentenceEncoder"

    def __init__(
        self,
        tokenizer: Tokenizer,
        bert: Bert | None = None,
        pooling: Pooling | None = None,
        normalize: bool = False,
        dense: Sequence[Dense] = (),
        settings: EncoderSettings | None = None,
    ):
        if bert is None or pooling is None:  # as sentence-transformers' class is called, with a name alone
            raise TypeError(f"use {type(self).__name__}.load({str(tokenizer)!r})")
        super().__init__(tokenizer, bert, pooling, normalize)
        self.dense = nn.Sequential(*dense)  # empty in most models
        self.width, self.hidden_size = sentence_width(pooling, dense, bert), bert.config.hidden_size
        self.settings = settings or EncoderSettings()

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        bert = load_transformer(folder.encoder)
        module = load_pooling(folder, pooling, bert.config.hidden_size)
        dense = [load_dense_layer(folder, place) for place in folder.places("Dense")]
        tokenizer = Tokenizer.load(folder.encoder, limit)
        return cls(tokenizer, bert, module, folder.normalize, dense, folder.settings).eval()

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Texts -> ``input_ids``, ``attention_mask`` and, if the encoder has any, ``token_type_ids``, (N, T) each.

        As sentence-transformers names them; ``encoder(features["input_ids"], features["attention_mask"])``. No texts
        have no features.
        """
        if not len(check_texts(texts)):
            return {}
        encoded = self.tokenizer.encode(texts)
        ids, mask = pad_batch(encoded.ids, self.tokenizer.pad_id)
        if mask is None:
            mask = torch.ones_like(ids)
        features = {"input_ids": ids, "attention_mask": mask.long()}
        if self.bert.config.type_vocab_size > 1:
            features["token_type_ids"], _ = pad_batch(encoded.token_types, 0)
        return features

    def forward(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, D). ``dtype`` as in ``hidden``."""
        vectors = self.unscaled(ids, mask, dtype)
        if self.normalize:
            vectors = unit(vectors)
        return vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the vectors (B, D) before they are scaled to length 1, as the heads read them."""
        trace = self.empty_trace()
        hidden, first = self.hidden(ids, mask, None, dtype, trace), None  # (B, T, D)
        if trace is not None:
            first = trace["layers.0"]  # (B, T, D)
        return self.dense(self.pool(hidden, mask, first))

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        trace: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the hidden states (B, T, D) of ``Bert.forward``, its matrix products computed in ``dtype``.

        In bfloat16 only the encoder computes in it: pooling, heads and losses keep their precision, since sums over
        many numbers belong in float32 (Micikevicius et al. 2018, section 3).
        """
        check_inputs(self.bert.config, ids, mask, token_types)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return self.bert(ids, mask, token_types, trace).to(self.dtype)

    def pool(self, hidden: Tensor, mask: Tensor | None = None, first: Tensor | None = None, skip: int = 0) -> Tensor:
        """Pool hidden states (B, T, D), and for ``first-last`` the first layer's, without ``skip`` tokens -> (B, D)."""
        pooler = None
        if "pooler" in self.pooling.names:
            pooler = self.bert.pool(hidden)  # (B, D): of [CLS], also if [CLS] is skipped below
        if skip:
            hidden = hidden[:, skip:]
            if mask is not None:
                mask = mask[:, skip:]
            if first is not None:
                first = first[:, skip:]
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
        """Enter eval mode without gradients, and compute matrix products in ``dtype``."""
        # Autocast is set in any case, on or off, so that a caller's autocast around ``encode`` does not reach in.
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
        """Run the encoder with the smallest mask that the batch allows; returns what ``unpacked`` does."""
        check_ids(self.bert.config, batch.ids, batch.places.shape[1])
        ids, positions, text_index, places = batch.inputs(self.device)
        # Texts share rows: each token attends to those of its own text, a mask (R, 1, T, T).
        if len(places) > len(ids):
            return self.unpacked(ids, positions, same_text(text_index), places)
        # Each text has a row to itself: a mask (R, T) hides the pads.
        if batch.tokens < ids.numel():
            return self.unpacked(ids, positions, text_index >= 0, places)
        # No pads: without a mask and positions, attention takes its fastest kernel.
        return self.unpacked(ids, None, None, places)

    def unpacked(
        self, ids: Tensor, positions: Tensor | None, mask: Tensor | None, places: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run a packed batch -> hidden states (N, S, D), mask (N, S), first layer's states if the pooling needs them.

        ``mask`` as in ``Bert.forward``.
        """
        trace = self.empty_trace()
        hidden, real = unpack(self.bert(ids, mask, None, trace, positions).to(self.dtype), places)
        first = None
        if trace is not None:
            first, _ = unpack(trace["layers.0"].to(self.dtype), places)
        return hidden, real, first

    def empty_trace(self) -> dict[str, Tensor] | None:
        """Return a dictionary for ``Bert.forward`` to fill if the pooling needs the first layer's states, else None."""
        if "first-last" in self.pooling.names:
            return {}
        return None

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too, complete or not at all.

        A model there is replaced; ``InputError`` if that would lose another file.
        """
        with atomic_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_bert(self.bert, folder)
        self.tokenizer.save(folder)
        modules = ["Transformer", "Pooling"] + ["Dense"] * len(self.dense)
        if self.normalize:
            modules.append("Normalize")
        places = write_modules(folder, modules)
        self.pooling.write(folder / places[1], self.hidden_size, self.settings.include_prompt)
        for number, dense in enumerate(self.dense, start=2):
            dense.write(folder / places[number])
        write_settings(folder, self.settings, self.tokenizer.text_settings)
