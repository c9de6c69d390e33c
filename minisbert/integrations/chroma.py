"""Chroma: an embedding function, by which a collection stores and searches texts.

Example:

    client.create_collection("texts", embedding_function=MinisbertEmbeddingFunction())
"""

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from minisbert.core.checks import check_texts
from minisbert.loading import load_dense


@register_embedding_function
class MinisbertEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's embedding function.

    A collection stores its name, the model's and the options, and opens with them. ``options`` are
    those of ``load``: device, truncate_dim, prompts, max_seq_length.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", **options: Any):
        self.model = model
        self.options = options
        self.encoder = load_dense(model, **options)

    def __call__(self, input: Documents) -> Embeddings:
        """N documents -> N arrays (D,)."""
        return list(self.encoder.encode_document(check_texts(input)))

    def embed_query(self, input: Documents) -> Embeddings:
        """N queries -> N arrays (D,)."""
        return list(self.encoder.encode_query(check_texts(input)))

    @staticmethod
    def name() -> str:
        return "minisbert"

    def default_space(self) -> str:
        """Return Chroma's name of the model's similarity.

        Chroma has no Manhattan distance, and the Euclidean one is the nearest to it.
        """
        names = {"cosine": "cosine", "dot": "ip", "euclidean": "l2", "manhattan": "l2"}
        return names[self.encoder.similarity_fn_name]

    def get_config(self) -> dict[str, Any]:
        return {"model": self.model, "options": self.options}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> "MinisbertEmbeddingFunction":
        return MinisbertEmbeddingFunction(config["model"], **config.get("options", {}))
