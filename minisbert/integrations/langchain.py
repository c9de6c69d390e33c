"""LangChain: ``InMemoryVectorStore(MinisbertEmbeddings("all-MiniLM-L6-v2"))``."""

from langchain_core.embeddings import Embeddings

from minisbert.core.checks import check_texts
from minisbert.loading import Encoder, load_dense


class MinisbertEmbeddings(Embeddings):
    """LangChain's embeddings, with the model's prompts for queries and documents."""

    def __init__(self, model: str | Encoder):
        self.encoder = load_dense(model)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """N texts -> N lists of D numbers."""
        return self.encoder.encode_document(check_texts(texts)).tolist()

    def embed_query(self, text: str) -> list[float]:
        """A text -> D numbers."""
        return self.encoder.encode_query([text])[0].tolist()
