"""LangChain: embeddings for its vector stores, and a reranker of what these find.

Example:

    InMemoryVectorStore(MinisbertEmbeddings("all-MiniLM-L6-v2"))
"""

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from pydantic import ConfigDict, PrivateAttr

from minisbert.core.checks import check_texts
from minisbert.loading import Encoder, load_dense, load_ranker


class MinisbertEmbeddings(Embeddings):
    """LangChain's embeddings, with the model's prompts for queries and documents.

    ``options`` are those of ``load``.
    """

    def __init__(self, model: str | Encoder, **options: Any):
        self.encoder = load_dense(model, **options)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """N texts -> N lists of D numbers."""
        return self.encoder.encode_document(check_texts(texts)).tolist()

    def embed_query(self, text: str) -> list[float]:
        """A text -> D numbers."""
        return self.encoder.encode_query([text])[0].tolist()


class MinisbertReranker(BaseDocumentCompressor):
    """Keep the ``top_n`` documents with the highest scores of a cross-encoder.

    ``model`` is a name, a folder or a model.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    model: Any
    top_n: int = 3
    _ranker: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        self._ranker = load_ranker(self.model)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return copies of the best documents, best first.

        Their metadata have a ``relevance_score``.
        """
        texts = [document.page_content for document in documents]
        kept = []
        for hit in self._ranker.rank(query, texts, top_k=self.top_n):
            document = documents[hit["corpus_id"]]
            metadata = document.metadata | {"relevance_score": hit["score"]}
            kept.append(document.model_copy(update={"metadata": metadata}))
        return kept
