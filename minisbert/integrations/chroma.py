"""Chroma: an embedding function, by which a collection stores and searches texts.

Example:

    client.create_collection("texts", embedding_function=MinisbertEmbeddingFunction())
"""

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

from minisbert.core.checks import check_texts
from minisbert.integrations.opening import EMBEDDER_OPTIONS, check_named, check_names, open_dense

# The model's similarity decides how a collection compares.
CHROMA_OPTIONS = (*EMBEDDER_OPTIONS, "similarity_fn_name")


@register_embedding_function
class MinisbertEmbeddingFunction(EmbeddingFunction[Documents]):
    """Chroma's embedding function.

    A collection stores its name, the model's and the options, and opens with them. ``options`` are
    those of ``load`` and ``encode``: device, truncate_dim, prompts, max_seq_length, batch_size,
    normalize_embeddings.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", **options: Any):
        check_named("MinisbertEmbeddingFunction", model)
        self.model = model
        self.options = options
        self.encoder, self.encode_options = open_dense(
            "MinisbertEmbeddingFunction", model, options, CHROMA_OPTIONS
        )

    def __call__(self, input: Documents) -> Embeddings:
        """N documents -> N arrays (D,)."""
        return list(self.encoder.encode_document(check_texts(input), **self.encode_options))

    def embed_query(self, input: Documents) -> Embeddings:
        """N queries -> N arrays (D,)."""
        return list(self.encoder.encode_query(check_texts(input), **self.encode_options))

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
        check_names("the configuration of MinisbertEmbeddingFunction", config, ("model", "options"))
        return MinisbertEmbeddingFunction(config["model"], **config.get("options", {}))
