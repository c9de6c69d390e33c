"""Haystack: components for queries and for documents of a pipeline, and a ranker."""

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_to_dict

from minisbert.loading import load_dense, load_ranker


class Embedder:
    """The base of both embedders, which load ``model``, a name or a folder, when they need it.

    That is in ``warm_up`` or at the first run. ``options`` are those of ``load``: device,
    truncate_dim, prompts, max_seq_length.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", **options: Any):
        self.model = model
        self.options = options
        self.encoder: Any = None

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model, **self.options)

    def warm_up(self) -> None:
        if self.encoder is None:
            self.encoder = load_dense(self.model, **self.options)


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
        embedded = []
        for document, vector in zip(documents, vectors, strict=True):
            embedded.append(replace(document, embedding=vector))
        return {"documents": embedded}


@component
class MinisbertRanker:
    """Sort documents by a cross-encoder, a name or a folder, and keep the ``top_k`` best."""

    def __init__(self, model: str, top_k: int = 10):
        self.model = model
        self.top_k = top_k
        self.ranker: Any = None

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model, top_k=self.top_k)

    def warm_up(self) -> None:
        if self.ranker is None:
            self.ranker = load_ranker(self.model)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return copies of the best documents with their scores, best first."""
        self.warm_up()
        texts = [document.content or "" for document in documents]
        best = []
        for hit in self.ranker.rank(query, texts, top_k=top_k or self.top_k):
            document = documents[hit["corpus_id"]]
            best.append(replace(document, score=hit["score"]))
        return {"documents": best}
