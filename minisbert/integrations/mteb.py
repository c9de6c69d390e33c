"""MTEB: ``mteb.evaluate(MinisbertEncoder("all-MiniLM-L6-v2"), tasks)``."""

from typing import Any

import numpy as np
from mteb.models.model_meta import ModelMeta

from minisbert.loading import load_dense


class MinisbertEncoder:
    """MTEB's encoder protocol, with the model's prompts for queries and documents."""

    def __init__(
        self, model_name: str, revision: str | None = None, *, device: str | None = None, **_: Any
    ):
        self.encoder = load_dense(model_name, device=device or "auto")
        name = model_name
        if "/" not in name:  # MTEB wants an organisation before it
            name = f"minisbert/{name}"
        description = {
            "name": name,
            "revision": revision or "local",
            "loader": type(self),
            "framework": ["PyTorch"],
            "embed_dim": self.encoder.width,
            "max_tokens": self.encoder.tokenizer.limit,
        }
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=description)

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Encode the texts of a data loader's batches: (N, D)."""
        texts: list[str] = []
        for batch in inputs:
            texts += batch["text"]
        role = getattr(prompt_type, "value", prompt_type)  # an enumeration's member, a text or None
        if role == "query":
            return self.encoder.encode_query(texts)
        if role is None:
            return self.encoder.encode(texts)
        return self.encoder.encode_document(texts)

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Compare every vector (N, D) with every other one (M, D): (N, M)."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Compare the vectors of each row, (N, D) twice: (N,)."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)
