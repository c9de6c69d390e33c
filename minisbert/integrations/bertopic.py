"""BERTopic: ``BERTopic(embedding_model=BERTopicBackend("all-MiniLM-L6-v2"))``."""

from typing import Any

import numpy as np
from bertopic.backend import BaseEmbedder

from minisbert.core.checks import check_texts
from minisbert.loading import Encoder, load_dense


class BERTopicBackend(BaseEmbedder):
    """Embed documents and words. BERTopic silently falls back to its default model for an object that is no backend."""

    def __init__(self, model: str | Encoder, **options: Any):
        super().__init__()
        self.embedding_model = load_dense(model, **options)  # the options of ``load``

    def embed(self, documents: list[str], verbose: bool = False) -> np.ndarray:
        """N texts -> (N, D)."""
        return self.embedding_model.encode(check_texts(documents), show_progress_bar=verbose)
