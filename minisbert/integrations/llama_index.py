"""LlamaIndex: an embedding model and a reranker.

Example:

    Settings.embed_model = MinisbertEmbedding(model_name="all-MiniLM-L6-v2")
"""

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from pydantic import Field, PrivateAttr

from minisbert.core.checks import check_texts
from minisbert.loading import load_dense, load_ranker


class MinisbertEmbedding(BaseEmbedding):
    """LlamaIndex' embedding model, by the name or the folder of a model.

    Batches are computed as a whole. ``options`` are those of ``load``: device, truncate_dim,
    prompts, max_seq_length.
    """

    model_name: str = "all-MiniLM-L6-v2"
    embed_batch_size: int = 256
    options: dict[str, Any] = Field(default_factory=dict)
    _encoder: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._encoder = load_dense(self.model_name, **self.options)

    @classmethod
    def class_name(cls) -> str:
        return "MinisbertEmbedding"

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._encoder.encode_document(check_texts(texts)).tolist()

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._encoder.encode_query([query])[0].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)


class MinisbertRerank(BaseNodePostprocessor):
    """Keep the ``top_n`` nodes with the highest scores of a cross-encoder, a name or a folder."""

    model_name: str
    top_n: int = 3
    _ranker: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._ranker = load_ranker(self.model_name)

    @classmethod
    def class_name(cls) -> str:
        return "MinisbertRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("nodes are sorted by a query: give query_str or query_bundle")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        best = []
        for hit in self._ranker.rank(query_bundle.query_str, texts, top_k=self.top_n):
            node = nodes[hit["corpus_id"]].node
            best.append(NodeWithScore(node=node, score=hit["score"]))
        return best
