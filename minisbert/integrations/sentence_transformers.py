"""Wrap an encoder in a real ``SentenceTransformer``, for libraries that accept nothing else.

``sentence_states`` computes what ``minisbert trace`` compares with.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from minisbert.core import InputError
from minisbert.integrations.opening import open_dense
from minisbert.models.text_encoder import DenseEncoder, TextEncoder

# The options of ``encode`` are arguments of the SentenceTransformer's own ``encode``.
BRIDGE_OPTIONS = (
    "device",
    "truncate_dim",
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
    "max_seq_length",
    "pooling",
    "compiled",
    "dtype",
)


class Features(dict):
    """The features of a batch of texts; one that is not there is an error that says what to do."""

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"minisbert gives sentence-transformers one vector for each text, not {name}: call "
            f"encode of the minisbert encoder"
        )


class EncoderModule(nn.Module):
    """The only module of the ``SentenceTransformer``; its features are the texts themselves."""

    encoder: DenseEncoder

    def __init__(self, encoder: DenseEncoder, encode_options: dict[str, Any]):
        super().__init__()
        # Set past ``nn.Module``, so that the encoder is no submodule: ``to`` and ``half`` would
        # change the caller's model. A copy, with the same weights, because settings are changed.
        object.__setattr__(self, "encoder", copy.copy(encoder))
        self.encode_options = encode_options

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of a text; longer ones are cut."""
        return self.encoder.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, tokens: int) -> None:
        self.encoder.max_seq_length = tokens

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise InputError(
                "as_sentence_transformer gives a model that cannot train: save the encoder and "
                "open its folder with SentenceTransformer"
            )
        return super().train(mode)

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        return Features(texts=list(inputs), prompt=prompt or "")

    tokenize = preprocess

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        # All columns: the SentenceTransformer cuts them itself. The prompt goes along, because its
        # tokens may not be pooled.
        vectors = self.encoder.encode(
            features["texts"],
            prompt=features["prompt"],
            truncate_dim=self.encoder.width,
            **self.encode_options,
        )
        return Features(features, sentence_embedding=torch.from_numpy(vectors))

    def get_embedding_dimension(self) -> int:
        return self.encoder.width


class MinisbertTransformer(SentenceTransformer):
    """A ``SentenceTransformer`` that saves the encoder in it, as a folder that both libraries open.

    BERTopic and KeyBERT know a model by "sentence_transformers" in its class's full name, which
    this file's name gives.
    """

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        encoder: Any = self[0].encoder
        encoder.settings = replace(encoder.settings, include_prompt=include_prompt)

    def save(
        self,
        path: str,
        model_name: str | None = None,
        create_model_card: bool = True,
        train_datasets: list[str] | None = None,
        safe_serialization: bool = True,
    ) -> None:
        """Save the encoder with the settings that this model has now.

        The card is minisbert's, so it has no ``model_name`` and no ``train_datasets``.
        """
        if not safe_serialization:
            raise InputError("minisbert saves safetensors only: leave out safe_serialization=False")
        encoder: Any = copy.copy(self[0].encoder)
        if not hasattr(encoder, "save"):
            raise TypeError(
                f"a {type(encoder).__name__} is not saved: copy the folder that it was made from"
            )
        prompts = {}
        for name, prompt in self.prompts.items():
            prompts[name] = prompt or ""  # theirs may be None
        encoder.prompts = prompts
        encoder.default_prompt_name = self.default_prompt_name
        encoder.similarity_fn_name = self.similarity_fn_name
        encoder.truncate_dim = self.truncate_dim

        # ``encoder.save`` writes a card unless there is one. One that nobody wanted is removed.
        card = Path(path) / "README.md"
        had_card = card.exists()
        encoder.save(path)
        if not create_model_card and not had_card:
            card.unlink()

    save_pretrained = save


def as_sentence_transformer(model: str | TextEncoder, **options: Any) -> SentenceTransformer:
    """Return a ``SentenceTransformer`` that computes with minisbert: same vectors and prompts.

    It cannot train. ``options`` are those of ``load``.
    """
    encoder, encode_options = open_dense("as_sentence_transformer", model, options, BRIDGE_OPTIONS)
    settings = encoder.settings
    # A ``str`` to us. Their signature wants a ``Literal`` of the names, which are the same.
    similarity: Any = settings.similarity_fn_name
    theirs = MinisbertTransformer(
        modules=[EncoderModule(encoder, encode_options)],
        device="cpu",
        prompts=dict(settings.prompts) or None,
        default_prompt_name=settings.default_prompt_name,
        similarity_fn_name=similarity,
        truncate_dim=settings.truncate_dim,
    )
    theirs.eval()
    return theirs


def sentence_states(folder: Path, inputs: dict[str, Tensor], hidden: Tensor) -> dict[str, Tensor]:
    """Compute what sentence-transformers makes of the last hidden state.

    The states are ``pooled``, after the pooling, and ``vector``, after all modules.
    """
    model = SentenceTransformer(str(folder), device="cpu")
    model = model.to(hidden.dtype).eval()
    features = {"token_embeddings": hidden, "attention_mask": inputs["mask"].long()}
    states = {}
    modules_after_encoder = list(model)[1:]
    for module in modules_after_encoder:
        features = module(features)
        if type(module).__name__ == "Pooling":
            states["pooled"] = features["sentence_embedding"]
    states["vector"] = features["sentence_embedding"]
    return states
