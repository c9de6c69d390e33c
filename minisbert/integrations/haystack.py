"""Haystack: a component for queries and one for documents of a pipeline."""

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_to_dict

from minisbert.loading import load_dense


class Embedder:
    """Base of both components: loads ``model``, a name or a folder, in ``warm_up`` or at the first run."""

    def __init__(self, model: str = "all-MiniLM-L6-v2"):
        self.model = model
        self.encoder: Any = None

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model)

    def warm_up(self) -> None:
        if self.encoder is None:
            self.encoder = load_dense(self.model)


@component
class MinisbertTextEmbedder(Embedder):
    """Embed a query."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a text: D numbers."""
        self.warm_up()
        return {"embedding": self.encoder.encode_query([text])[0].tolist()}


@component
class MinisbertDocumentEmbedder(Embedder):
    """Embed documents."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of N documents with an embedding of D numbers each."""
        self.warm_up()
        texts = [document.content or "" for document in documents]
        vectors = self.encoder.encode_document(texts).tolist()
        embedded = zip(documents, vectors, strict=True)
        return {"documents": [replace(document, embedding=vector) for document, vector in embedded]}
