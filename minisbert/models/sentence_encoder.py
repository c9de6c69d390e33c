"""Load, run and save a sentence encoder: steps of the book's class for more kinds of models, and at full speed.

encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
encoder.similarity(vectors, vectors)  # (2, 2) cosines
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from minisbert.checkpoints.layout import EncoderSettings, ModelFolder, write_modules, write_settings
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import load_transformer, save_bert
from minisbert.core.bert import Bert
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.core.pooling import Pooling
from minisbert.core.tokenizer import Tokenizer, pad_batch
from minisbert.models.batching import PackedBatch, same_text, unpack
from minisbert.models.encoder import TextEncoder
from minisbert.models.guards import check_ids, check_inputs, evaluating
from minisbert.models.pooling import (
    Dense,
    first_last_pool,
    load_dense_layer,
    load_pooling,
    sentence_width,
    write_pooling,
)
from minisbert.system.devices import choose_dtype
from minisbert.system.files import atomic_folder
from minisbert.system.torch_internals import fastest_linear


class SentenceEncoder(TextEncoder):
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
        self.pools_more = bool({"first-last", "pooler"} & {*pooling.names})  # than the last hidden states

    @classmethod
    def from_folder(cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None) -> Self:
        bert = load_transformer(folder.encoder)
        module = load_pooling(folder, pooling, bert.config.hidden_size)
        dense = [load_dense_layer(folder, place) for place in folder.places["Dense"]]
        tokenizer = read_tokenizer(folder.encoder, limit)
        return cls(tokenizer, bert, module, folder.normalize, dense, EncoderSettings.read(folder)).eval()

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
        return normalize(vectors) if self.normalize else vectors

    def unscaled(self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the vectors (B, D) before they are scaled to length 1, as the heads read them."""
        trace: dict[str, Tensor] | None = {} if self.pools_more else None
        hidden = self.hidden(ids, mask, None, dtype, trace)  # (B, T, D)
        given = None if trace is None else self.given(hidden, mask, trace["layers.0"])
        return self.pool(hidden, mask, given)

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

    def pool(self, hidden: Tensor, mask: Tensor | None = None, given: dict[str, Tensor] | None = None) -> Tensor:
        """Hidden states (B, T, D) -> one vector per text (B, W), not scaled yet, after the dense layers if any."""
        return self.dense(self.pooling(hidden, mask, given))

    def given(self, hidden: Tensor, mask: Tensor | None, first: Tensor, prompt: int = 0) -> dict[str, Tensor]:
        """Pool (B, D) in the ways that read more than the last hidden states, without ``prompt`` tokens of each text.

        ``first`` are the first layer's states (B, T, D).
        """
        given = {}
        if "pooler" in self.pooling.names:
            given["pooler"] = self.bert.pool(hidden)  # of [CLS], although it is left out of other poolings
        if "first-last" in self.pooling.names:
            real = None if mask is None else mask[:, prompt:]
            given["first-last"] = first_last_pool(hidden[:, prompt:], real, first[:, prompt:].to(self.dtype))
        return given

    # what a compiled encoder stores is read from the parts here, which may be moved or exchanged
    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.bert.embeddings.word.weight.device

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.bert.embeddings.word.weight.dtype

    @property
    def most_tokens(self) -> int:  # type: ignore[override]
        return self.bert.config.positions

    @property
    def pooling_mode(self) -> str:  # type: ignore[override]
        return self.pooling.mode

    @contextmanager
    def computing(self, dtype: str | None) -> Iterator[torch.dtype]:
        """Enter eval mode without gradients; return the dtype of matrix products."""
        products = torch.float32
        if dtype is not None:
            products, _ = choose_dtype(dtype, self.device)
        # pooling, like the losses, is never in bfloat16, not even if the caller has switched autocast on
        with evaluating(self), fastest_linear(), torch.autocast(self.device.type, enabled=False):
            yield products

    def states(  # type: ignore[override]  # each kind of encoder makes its own batches
        self, batch: PackedBatch
    ) -> tuple[Tensor, Tensor, dict[str, Tensor] | None]:
        """Run the encoder with the smallest mask that the batch allows."""
        check_ids(self.bert.config, batch.ids, batch.places.shape[1])
        ids, positions, text_index, places = (
            x.to(self.device) for x in (batch.ids, batch.positions, batch.text_index, batch.places)
        )
        mask = None
        if len(places) > len(ids):
            mask = same_text(text_index)  # texts share rows: each token attends to those of its own text, (R, 1, T, T)
        elif batch.tokens < ids.numel():
            mask = text_index >= 0  # a row for each text, and pads: (R, T)
        else:
            positions = None  # without a mask and positions, attention takes its fastest kernel
        with torch.autocast(self.device.type, torch.bfloat16, enabled=batch.dtype == torch.bfloat16):
            return self.unpacked(ids, positions, mask, places, batch.prompt)

    def unpacked(
        self, ids: Tensor, positions: Tensor | None, mask: Tensor | None, places: Tensor, prompt: int = 0
    ) -> tuple[Tensor, Tensor, dict[str, Tensor] | None]:
        """Run a packed batch, and take its rows apart: what ``vectors`` takes, without the prompts' tokens.

        ``mask`` as in ``Bert.forward``, ``places`` as in ``PackedBatch``.
        """
        trace: dict[str, Tensor] | None = {} if self.pools_more else None
        hidden, real = unpack(self.bert(ids, mask, None, trace, positions).to(self.dtype), places)
        given = None
        if trace is not None:
            first, _ = unpack(trace["layers.0"], places)
            with torch.autocast(self.device.type, enabled=False):
                given = self.given(hidden, real, first, prompt)
        return hidden[:, prompt:], real[:, prompt:], given

    def token_states(self, batch: PackedBatch) -> list[Tensor]:
        hidden, mask, _ = self.states(replace(batch, prompt=0))
        return [states[real] for states, real in zip(hidden, mask, strict=True)]

    def save(self, folder: str | Path) -> None:
        """Write the model as a folder that sentence-transformers opens too, complete or not at all.

        A model there is replaced; ``InputError`` if that would lose another file.
        """
        with atomic_folder(folder) as partial:
            self.write(partial)

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_bert(self.bert, folder)
        write_tokenizer(self.tokenizer, folder)
        modules = ["Transformer", "Pooling"] + ["Dense"] * len(self.dense)
        if self.normalize:
            modules.append("Normalize")
        places = write_modules(folder, modules)
        write_pooling(self.pooling, folder / places[1], self.hidden_size, self.settings.include_prompt)
        for dense, place in zip(self.dense, places[2:], strict=False):
            cast(Dense, dense).write(folder / place)
        write_settings(folder, self.settings, text_settings(self.tokenizer))
