"""LangChain: embeddings for its vector stores, and a reranker of what these find.

Example:

    InMemoryVectorStore(MinisbertEmbeddings("all-MiniLM-L6-v2"))
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict, Field, PrivateAttr

from minisbert.core.checks import check_texts
from minisbert.integrations.opening import (
    EMBEDDER_OPTIONS,
    RANKER_OPTIONS,
    check_fields,
    open_dense,
    open_ranker,
)
from minisbert.models.text_encoder import TextEncoder


class MinisbertEmbeddings(Embeddings):
    """LangChain's embeddings, with the model's prompts for queries and documents.

    ``options`` are those of ``load`` and ``encode``: device, truncate_dim, prompts,
    max_seq_length, batch_size, normalize_embeddings.
    """

    def __init__(self, model: str | TextEncoder = "all-MiniLM-L6-v2", **options: Any):
        self.encoder, self.encode_options = open_dense(
            "MinisbertEmbeddings", model, options, EMBEDDER_OPTIONS
        )

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """N texts -> N lists of D numbers."""
        return self.encoder.encode_document(check_texts(texts), **self.encode_options).tolist()

    def embed_query(self, text: str) -> list[float]:
        """A text -> D numbers."""
        vectors = self.encoder.encode_query([text], **self.encode_options)  # (1, D)
        return vectors[0].tolist()


class MinisbertReranker(BaseDocumentCompressor):
    """Keep the ``top_n`` documents with the highest scores of a cross-encoder.

    ``model`` is a name, a folder or a model; ``options`` are those of ``load`` and ``rank``:
    device, max_seq_length, batch_size.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    # Frozen, because another model would not be opened.
    model: Any = Field(frozen=True)
    top_n: int = 3
    options: dict[str, Any] = Field(default_factory=dict, frozen=True)
    _ranker: Any = PrivateAttr()
    _rank_options: dict[str, Any] = PrivateAttr()

    def __init__(self, **fields: Any):
        check_fields("MinisbertReranker", fields, type(self).model_fields, RANKER_OPTIONS)
        super().__init__(**fields)

    def model_post_init(self, context: Any) -> None:
        self._ranker, self._rank_options = open_ranker(
            "MinisbertReranker", self.model, self.options
        )

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return copies of the best documents, best first.

        Their metadata have a ``relevance_score``.
        """
        texts = [document.page_content for document in documents]
        kept = []
        for hit in self._ranker.rank(query, texts, top_k=self.top_n, **self._rank_options):
            document = documents[hit["corpus_id"]]
            metadata = document.metadata | {"relevance_score": hit["score"]}
            kept.append(document.model_copy(update={"metadata": metadata}))
        return kept
