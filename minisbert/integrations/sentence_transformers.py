"""Wrap an encoder in a real ``SentenceTransformer``, for libraries that accept nothing else.

``sentence_states`` computes what ``minisbert trace`` compares with.
"""

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from minisbert.loading import Encoder, load_dense


class EncoderModule(nn.Module):
    """The only module of the ``SentenceTransformer``; its features are the texts themselves."""

    encoder: Encoder

    def __init__(self, encoder: Encoder):
        super().__init__()
        # Set past ``nn.Module``, so that the encoder is no submodule: ``to`` and ``half`` would
        # change the caller's model.
        object.__setattr__(self, "encoder", encoder)
        self.max_seq_length = encoder.tokenizer.limit

    def preprocess(self, inputs: list[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        return {"texts": [(prompt or "") + text for text in inputs]}

    tokenize = preprocess

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        vectors = torch.from_numpy(self.encoder.encode(features["texts"], prompt=""))
        return features | {"sentence_embedding": vectors}

    def get_embedding_dimension(self) -> int:
        return self.encoder.width


class MinisbertTransformer(SentenceTransformer):
    """A ``SentenceTransformer`` that saves the encoder in it, as a folder that both libraries open.

    BERTopic and KeyBERT know a model by "sentence_transformers" in its class's full name, which
    this file's name gives.
    """

    def save(self, path: str, *_: Any, **__: Any) -> None:
        encoder: Any = self[0].encoder
        if not hasattr(encoder, "save"):
            raise TypeError(
                f"a {type(encoder).__name__} is not saved: copy the folder that it was made from"
            )
        encoder.save(path)

    save_pretrained = save


def as_sentence_transformer(model: str | Encoder, **options: Any) -> SentenceTransformer:
    """Return a ``SentenceTransformer`` that computes with minisbert: same vectors and prompts.

    It cannot train. ``options`` are those of ``load``.
    """
    encoder = load_dense(model, **options)
    settings = encoder.settings
    # A ``str`` to us. Their signature wants a ``Literal`` of the names, which are the same.
    similarity: Any = settings.similarity_fn_name
    return MinisbertTransformer(
        modules=[EncoderModule(encoder)],
        device="cpu",
        prompts=dict(settings.prompts) or None,
        default_prompt_name=settings.default_prompt_name,
        similarity_fn_name=similarity,
        truncate_dim=settings.truncate_dim,
    )


def sentence_states(folder: Path, inputs: dict[str, Tensor], hidden: Tensor) -> dict[str, Tensor]:
    """Compute what sentence-transformers makes of the last hidden state.

    The states are ``pooled``, after the pooling, and ``vector``, after all modules.
    """
    model = SentenceTransformer(str(folder), device="cpu")
    model = model.to(hidden.dtype).eval()
    features = {"token_embeddings": hidden, "attention_mask": inputs["mask"].long()}
    states = {}
    for module in list(model)[1:]:  # the first is the encoder
        features = module(features)
        if type(module).__name__ == "Pooling":
            states["pooled"] = features["sentence_embedding"]
    states["vector"] = features["sentence_embedding"]
    return states
