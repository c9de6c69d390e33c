"""Haystack: components for queries and for documents of a pipeline, and a ranker."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from haystack import Document, component, default_to_dict

from minisbert.core import InputError, one_line
from minisbert.integrations.opening import (
    EMBEDDER_OPTIONS,
    RANKER_OPTIONS,
    check_named,
    open_dense,
    open_ranker,
    split_options,
)

# The arguments of the components that are no options of a model.
DOCUMENT_ARGUMENTS = ("model", "meta_fields_to_embed", "embedding_separator")
RANKER_ARGUMENTS = ("model", "top_k", "meta_fields_to_embed", "embedding_separator")


def field_names(fields: Sequence[str] | None) -> list[str]:
    """Return the meta fields that are embedded, as a list; None for none."""
    if isinstance(fields, str):  # its letters would be the names
        raise InputError(f"meta_fields_to_embed is a list of names, such as [{fields!r}]")
    return list(fields or [])


def texts_of(documents: Sequence[Document], fields: Sequence[str], separator: str) -> list[str]:
    """Return each document's content, after those of the meta ``fields`` that it has."""
    texts = []
    for document in documents:
        if not isinstance(document, Document):
            raise InputError(f"documents are Haystack's Documents, not {one_line(document)}")
        parts = []
        for field in fields:
            if document.meta.get(field):
                parts.append(str(document.meta[field]))
        parts.append(document.content or "")
        texts.append(separator.join(parts))
    return texts


@component
class MinisbertTextEmbedder:
    """Embed a query.

    ``model``, a name or a folder, is opened in ``warm_up`` or at the first run. ``options`` are
    those of ``load`` and ``encode``: device, truncate_dim, prompts, max_seq_length, batch_size,
    normalize_embeddings.
    """

    def __init__(self, model: str = "all-MiniLM-L6-v2", **options: Any):
        check_named("MinisbertTextEmbedder", model)
        # Refuses wrong names now, and not at the first run.
        split_options("MinisbertTextEmbedder", model, options, EMBEDDER_OPTIONS, ("model",))
        self.model = model
        self.options = options
        self.encoder: Any = None
        self.encode_options: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, model=self.model, **self.options)

    def warm_up(self) -> None:
        if self.encoder is None:
            self.encoder, self.encode_options = open_dense(
                "MinisbertTextEmbedder", self.model, self.options, EMBEDDER_OPTIONS
            )

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Embed a text: D numbers."""
        self.warm_up()
        vectors = self.encoder.encode_query([text], **self.encode_options)  # (1, D)
        return {"embedding": vectors[0].tolist()}


@component
class MinisbertDocumentEmbedder:
    """Embed documents.

    The text of a document is its content, after its meta values called ``meta_fields_to_embed``
    and ``embedding_separator``. ``model`` and ``options`` are those of ``MinisbertTextEmbedder``.
    """

    def __init__(
        self,
        model: str = "all-MiniLM-L6-v2",
        meta_fields_to_embed: Sequence[str] | None = None,
        embedding_separator: str = "\n",
        **options: Any,
    ):
        check_named("MinisbertDocumentEmbedder", model)
        # Refuses wrong names now, and not at the first run.
        split_options(
            "MinisbertDocumentEmbedder", model, options, EMBEDDER_OPTIONS, DOCUMENT_ARGUMENTS
        )
        self.model = model
        self.meta_fields_to_embed = field_names(meta_fields_to_embed)
        self.embedding_separator = embedding_separator
        self.options = options
        self.encoder: Any = None
        self.encode_options: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(
            self,
            model=self.model,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
            **self.options,
        )

    def warm_up(self) -> None:
        if self.encoder is None:
            self.encoder, self.encode_options = open_dense(
                "MinisbertDocumentEmbedder", self.model, self.options, EMBEDDER_OPTIONS
            )

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return copies of N documents with an embedding of D numbers each."""
        self.warm_up()
        texts = texts_of(documents, self.meta_fields_to_embed, self.embedding_separator)
        vectors = self.encoder.encode_document(texts, **self.encode_options)  # (N, D)
        embedded = []
        for document, vector in zip(documents, vectors.tolist(), strict=True):
            embedded.append(replace(document, embedding=vector))
        return {"documents": embedded}


@component
class MinisbertRanker:
    """Sort documents by a cross-encoder, a name or a folder, and keep the ``top_k`` best.

    ``meta_fields_to_embed`` and ``embedding_separator`` as in ``MinisbertDocumentEmbedder``.
    ``options`` are those of ``load`` and ``rank``: device, max_seq_length, batch_size.
    """

    def __init__(
        self,
        model: str = "cross-encoder/ms-marco-MiniLM-L6-v2",
        top_k: int = 10,
        meta_fields_to_embed: Sequence[str] | None = None,
        embedding_separator: str = "\n",
        **options: Any,
    ):
        check_named("MinisbertRanker", model)
        # Refuses wrong names now, and not at the first run.
        split_options("MinisbertRanker", model, options, RANKER_OPTIONS, RANKER_ARGUMENTS)
        self.model = model
        self.top_k = top_k
        self.meta_fields_to_embed = field_names(meta_fields_to_embed)
        self.embedding_separator = embedding_separator
        self.options = options
        self.ranker: Any = None
        self.rank_options: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(
            self,
            model=self.model,
            top_k=self.top_k,
            meta_fields_to_embed=self.meta_fields_to_embed,
            embedding_separator=self.embedding_separator,
            **self.options,
        )

    def warm_up(self) -> None:
        if self.ranker is None:
            self.ranker, self.rank_options = open_ranker(
                "MinisbertRanker", self.model, self.options
            )

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return copies of the best documents with their scores, best first."""
        self.warm_up()
        if top_k is None:
            top_k = self.top_k
        texts = texts_of(documents, self.meta_fields_to_embed, self.embedding_separator)
        best = []
        for hit in self.ranker.rank(query, texts, top_k=top_k, **self.rank_options):
            document = documents[hit["corpus_id"]]
            best.append(replace(document, score=hit["score"]))
        return {"documents": best}
