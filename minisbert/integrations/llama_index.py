"""LlamaIndex: an embedding model and a reranker.

Example:

    Settings.embed_model = MinisbertEmbedding(model_name="all-MiniLM-L6-v2")
"""

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from pydantic import ConfigDict, Field, PrivateAttr

from minisbert.core.checks import check_texts
from minisbert.integrations.opening import (
    EMBEDDER_OPTIONS,
    RANKER_OPTIONS,
    check_fields,
    open_dense,
    open_ranker,
)


class MinisbertEmbedding(BaseEmbedding):
    """LlamaIndex' embedding model, by the name or the folder of a model.

    Batches are computed as a whole. ``options`` are those of ``load`` and ``encode``: device,
    truncate_dim, prompts, max_seq_length, batch_size, normalize_embeddings.
    """

    model_config = ConfigDict(extra="forbid")
    # Frozen, because another model would not be opened.
    model_name: str = Field(default="all-MiniLM-L6-v2", frozen=True)
    embed_batch_size: int = Field(default=256, gt=0, le=2048)
    options: dict[str, Any] = Field(default_factory=dict, frozen=True)
    _encoder: Any = PrivateAttr()
    _encode_options: dict[str, Any] = PrivateAttr()

    def __init__(self, **fields: Any):
        check_fields("MinisbertEmbedding", fields, type(self).model_fields, EMBEDDER_OPTIONS)
        super().__init__(**fields)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._encoder, self._encode_options = open_dense(
            "MinisbertEmbedding", self.model_name, self.options, EMBEDDER_OPTIONS
        )

    @classmethod
    def class_name(cls) -> str:
        return "MinisbertEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.encode_document(check_texts(texts), **self._encode_options).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        vectors = self._encoder.encode_query([query], **self._encode_options)  # (1, D)
        return vectors[0].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class MinisbertRerank(BaseNodePostprocessor):
    """Keep the ``top_n`` nodes with the highest scores of a cross-encoder, a name or a folder.

    ``options`` are those of ``load`` and ``rank``: device, max_seq_length, batch_size.
    """

    model_config = ConfigDict(extra="forbid")
    model_name: str = Field(frozen=True)
    top_n: int = 3
    options: dict[str, Any] = Field(default_factory=dict, frozen=True)
    _ranker: Any = PrivateAttr()
    _rank_options: dict[str, Any] = PrivateAttr()

    def __init__(self, **fields: Any):
        check_fields("MinisbertRerank", fields, type(self).model_fields, RANKER_OPTIONS)
        super().__init__(**fields)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._ranker, self._rank_options = open_ranker(
            "MinisbertRerank", self.model_name, self.options
        )

    @classmethod
    def class_name(cls) -> str:
        return "MinisbertRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("nodes are sorted by a query: give query_str or query_bundle")
        query = query_bundle.query_str
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        best = []
        for hit in self._ranker.rank(query, texts, top_k=self.top_n, **self._rank_options):
            node = nodes[hit["corpus_id"]].node
            best.append(NodeWithScore(node=node, score=hit["score"]))
        return best
