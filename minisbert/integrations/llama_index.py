"""LlamaIndex: ``Settings.embed_model = MinisbertEmbedding(model_name="all-MiniLM-L6-v2")``."""

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from minisbert.core.checks import check_texts
from minisbert.loading import load_dense


class MinisbertEmbedding(BaseEmbedding):
    """LlamaIndex' embedding model, by the name or the folder of a model; batches are computed as a whole."""

    model_name: str = "all-MiniLM-L6-v2"
    embed_batch_size: int = 256
    _encoder: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._encoder = load_dense(self.model_name)

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
