"""Calls as users write them, for ``mypy --strict`` and pyright in CI; nothing runs this file."""

from typing import Any, assert_type

import numpy as np
from torch import Tensor

import minisbert
from minisbert import (
    CrossEncoder,
    MultiVectorEncoder,
    PairModel,
    SentenceEncoder,
    SparseEncoder,
    StaticEncoder,
    util,
)
from minisbert.train import train

texts = ["A cat sits.", "A kitten is sitting."]

# An encoder: what encode returns depends on its options.
encoder = SentenceEncoder.load(
    "all-MiniLM-L6-v2", device="cpu", max_seq_length=128, truncate_dim=64
)
assert_type(encoder, SentenceEncoder)
vectors = encoder.encode(texts)
assert_type(vectors, np.ndarray)
one = encoder.encode(
    "A cat sits.", normalize_embeddings=True, batch_size=8, show_progress_bar=False
)
assert_type(one, np.ndarray)
tensor = encoder.encode(texts, convert_to_tensor=True, convert_to_numpy=False)
assert_type(tensor, Tensor)
assert_type(encoder.encode("A cat sits.", convert_to_numpy=False), Tensor)
for row in encoder.encode(texts, convert_to_numpy=False):
    assert_type(row, Tensor)
for states in encoder.encode(texts, output_value="token_embeddings"):
    assert_type(states, Tensor)
assert_type(encoder.encode("A cat sits.", output_value="token_embeddings"), Tensor)


def either(as_tensor: bool) -> Any:
    return encoder.encode(texts, convert_to_tensor=as_tensor)


print(encoder.encode(texts, None, "query: ", 8))
codes = encoder.encode(texts, precision="int8")
print(codes.dtype)

# Queries, documents and similarities.
queries = encoder.encode_query(texts)
documents = encoder.encode_document(texts, normalize_embeddings=True)
assert_type(queries, np.ndarray)
assert_type(documents, np.ndarray)
assert_type(encoder.encode_query("A cat?", convert_to_tensor=True), Tensor)
assert_type(encoder.encode_document(texts, convert_to_tensor=True), Tensor)
print(encoder.similarity(queries, documents).round(2))
print(encoder.similarity_pairwise(queries, documents).tolist())

# Properties that may be set.
encoder.max_seq_length = 16
encoder.truncate_dim = None
encoder.prompts = {"query": "query: "}
encoder.default_prompt_name = "query"
encoder.similarity_fn_name = "dot"
assert_type(encoder.get_embedding_dimension(), int)
for block in encoder.encode_stream(iter(texts)):
    print(len(block))
encoder.save("my-model")
print(encoder.tokenize(texts)["input_ids"].shape)

# Searches under sentence-transformers' names.
assert_type(util.cos_sim(queries, documents), Tensor)
print(util.semantic_search(queries, documents, top_k=1)[0][0]["corpus_id"])
print(util.paraphrase_mining(encoder, texts)[0][0])
print(util.community_detection(vectors, threshold=0.8, min_community_size=1))

# Models of other kinds.
reranker = CrossEncoder.load("cross-encoder/ms-marco-MiniLM-L6-v2", device="cpu", max_length=256)
assert_type(reranker, CrossEncoder)
assert_type(reranker.predict([("a query", "a document")]), np.ndarray)
assert_type(reranker.predict([["a query", "a document"]], batch_size=8), np.ndarray)
assert_type(reranker.predict(list(zip(texts, texts, strict=True)), convert_to_tensor=True), Tensor)
for score in reranker.predict([("a query", "a document")], convert_to_numpy=False):
    assert_type(score, Tensor)
print(reranker.predict(["a query", "a document"]) > 0.5)
print(reranker.predict(("a query", "a document"), activation_fn=abs, convert_to_numpy=False))
print(reranker.max_length)
print(reranker.rank("a query", texts, top_k=1)[0]["score"])
assert_type(PairModel.load("runs/siamese/model"), PairModel)
assert_type(StaticEncoder.load("minishlab/potion-base-8M"), StaticEncoder)
sparse = SparseEncoder.load("naver/splade-v3")
assert_type(sparse, SparseEncoder)
print(sparse.encode(texts, convert_to_sparse_tensor=True, max_active_dims=64))
late = MultiVectorEncoder.load("path/to/colbert", device=None)
assert_type(late, MultiVectorEncoder)
print(late.similarity(late.encode_query(["a cat?"]), late.encode_document(texts)))
anything = minisbert.load("all-MiniLM-L6-v2", compiled=True, dtype="bfloat16")
print(anything.encode("A cat sits."))

# Wrong calls are noticed: mypy --strict refuses an ignore that ignores nothing.
encoder.encode(texts, batch_sise=3)  # type: ignore[call-overload]
encoder.encode(texts, dtype=3)  # type: ignore[call-overload]
encoder.encode(texts, output_value="tokens")  # type: ignore[call-overload]
encoder.encode(texts, precision="int9")  # type: ignore[call-overload]
encoder.encode(texts, dtype="float8")  # type: ignore[call-overload]
encoder.encoed(texts)  # type: ignore[attr-defined]
encoder.max_seq_lenght = 16  # type: ignore[assignment]
reranker.predict([("a query", "a document")], batch_sise=3)  # type: ignore[call-overload]
reranker.predict([("a query", "a document")]).to("cpu")  # type: ignore[attr-defined]
train(encoder, [("a", "b")], loss="rankin")  # type: ignore[arg-type]
SentenceEncoder.load(3)  # type: ignore[arg-type]
SentenceEncoder.load("all-MiniLM-L6-v2", similarity_fn_name="cosinus")  # type: ignore[arg-type]
minisbert.load("all-MiniLM-L6-v2", compiled=True, dtype="float8")  # type: ignore[arg-type]
encoder.similarity_fn_name = "cosinus"  # type: ignore[assignment]
print(minisbert.SentenceTransformer)  # type: ignore[attr-defined]
print(util.pairwise_cos_sim)  # type: ignore[attr-defined]
