"""Load, run, train and save a sentence encoder: a transformer with pooling.

    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
    encoder.similarity(vectors, vectors)  # (2, 2) cosines

    ids (B, T) ── bert ──> hidden (B, T, D) ── pooling ── dense ──> (B, W) ── normalize ──> vectors

``encode`` is that of ``text_encoder.py``; this file says what a batch is embedded with.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from minisbert.architectures.modern import Encoder
from minisbert.checkpoints.layout import (
    WEIGHTS,
    EncoderSettings,
    ModelFolder,
    write_modules,
    write_settings,
)
from minisbert.checkpoints.model_tokenizer import ModelTokenizer
from minisbert.checkpoints.tokenizer_files import read_tokenizer, text_settings, write_tokenizer
from minisbert.checkpoints.weights import fill, load_transformer, read_weights, save_bert
from minisbert.core import InputError
from minisbert.core.encoder import normalize
from minisbert.models.batching import (
    BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    LONG_TEXT,
    PackedBatch,
    Tokens,
    packed_batches,
)
from minisbert.models.pooling import (
    Dense,
    ModelPooling,
    dense_width,
    load_dense_layer,
    write_pooling,
)
from minisbert.models.text_encoder import DenseEncoder
from minisbert.models.transformer_encoder import TransformerEncoder, text_states, token_states
from minisbert.replacements import takes_parts
from minisbert.system.devices import fitting_tokens


class SentenceEncoder(TransformerEncoder, DenseEncoder):
    """``load`` a model, ``encode`` texts, compare them by ``similarity``, ``save`` the model.

    ``forward`` is what training calls: ids (B, T) and mask (B, T) -> vectors (B, D).
    """

    folder_class = "SentenceEncoder"

    @takes_parts
    def __init__(
        self,
        tokenizer: ModelTokenizer,
        bert: Encoder,
        pooling: ModelPooling,
        normalize: bool = False,
        dense: Sequence[Dense] = (),
        settings: EncoderSettings | None = None,
    ):
        super().__init__(tokenizer, bert, settings)
        self.pooling = pooling
        self.dense = nn.Sequential(*dense)  # no layer in most models
        self.normalize = normalize  # scale each vector to length 1
        # A vector has as many columns as the last dense layer, or the poolings side by side.
        self.width = dense_width(dense, bert.config.hidden_size * len(pooling.names))
        if "pooler" in pooling.names:
            # BERT's pooler is a dense layer on [CLS], which ``include_prompt: false`` leaves out.
            alone = pooling.names == ["pooler"]
            has_dense_layer = len(dense) > 0
            if not alone or not has_dense_layer or not self.settings.include_prompt:
                raise InputError(
                    f"pooling {pooling.mode}: 'pooler' needs its dense layer, no other beside it, "
                    f"and [CLS]"
                )

    @classmethod
    def from_folder(
        cls, folder: ModelFolder, pooling: str | None = None, limit: int | None = None
    ) -> Self:
        bert = load_transformer(folder.encoder)
        module = ModelPooling(folder.choose_pooling(pooling), bert.config.hidden_size)
        # If the caller chose attention for a folder that has another pooling, it has no weights to
        # read: it starts untrained, as the mean.
        folder_poolings = (folder.pooling or "").split("+")
        if module.score is not None and "attention" in folder_poolings:
            path = folder.path / folder.places["Pooling"][0] / WEIGHTS
            fill(module, read_weights(path), path)

        dense = [load_dense_layer(folder, place) for place in folder.places["Dense"]]
        if module.mode == "pooler":
            if bert.pooler is None:
                raise InputError(
                    "this checkpoint has no pooler weights: choose another pooling than 'pooler'"
                )
            dense.insert(0, Dense(bert.pooler))
            bert.pooler = None  # it is trained and saved where it is read

        tokenizer = read_tokenizer(folder.encoder, limit)
        settings = EncoderSettings.read(folder)
        return cls(tokenizer, bert, module, folder.normalize, dense, settings).eval()

    @property
    def pooling_mode(self) -> str:
        return self.pooling.mode

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """ids (B, T), mask (B, T) True for real tokens -> vectors (B, W).

        ``dtype`` as in ``hidden``.
        """
        return self.vectors(self.hidden(ids, mask, None, dtype), mask)

    def unscaled(
        self, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the vectors (B, W) before they are scaled to length 1, as the heads read them."""
        return self.pool(self.hidden(ids, mask, None, dtype), mask)

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> one vector for each text (B, W), not scaled yet."""
        return self.dense(self.pooling(hidden, mask))

    def vectors(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) -> vectors (B, W), scaled to length 1 if the model says so."""
        pooled = self.pool(hidden, mask)
        if self.normalize:
            return normalize(pooled)
        return pooled

    def batches(self, tokens: Tokens, batch_tokens: int | None = None) -> Iterator[PackedBatch]:
        return packed_batches(tokens, batch_tokens or self.usual_batch_tokens(tokens))

    def usual_batch_tokens(self, tokens: Tokens) -> int:
        if self.device.type != "cuda":
            return BATCH_TOKENS
        lengths = list(map(len, tokens.ids))
        # To ask for the GPU's free memory takes longer than to encode one small batch. Batches with
        # a long text stay small, since a mask has a number for each pair of tokens.
        if sum(lengths) <= BATCH_TOKENS or max(lengths) > LONG_TEXT:
            return BATCH_TOKENS
        fitting = fitting_tokens(self.device, self.hidden_size)
        return max(BATCH_TOKENS, min(GPU_BATCH_TOKENS, fitting))

    def embed(self, batch: PackedBatch) -> Tensor:
        """Compute the vectors (N, W) of a batch."""
        hidden, mask = text_states(self.bert, batch)  # (N, S, D), (N, S)
        return self.vectors(hidden, mask)

    def token_states(self, batch: PackedBatch) -> list[Tensor]:
        return token_states(self.bert, batch)

    def write(self, folder: Path) -> None:
        """Write the model's files into an empty folder."""
        save_bert(self.bert, folder)
        write_tokenizer(self.tokenizer, folder)
        modules = ["Transformer", "Pooling"] + ["Dense"] * len(self.dense)
        if self.normalize:
            modules.append("Normalize")
        places = write_modules(folder, modules)
        include_prompt = self.settings.include_prompt
        write_pooling(self.pooling, folder / places[1], self.hidden_size, include_prompt)
        # A Normalize comes after the dense layers; it has no file.
        dense_places = places[2 : 2 + len(self.dense)]
        for dense, place in zip(self.dense, dense_places, strict=True):
            cast(Dense, dense).write(folder / place)
        write_settings(folder, self.settings, text_settings(self.tokenizer))
