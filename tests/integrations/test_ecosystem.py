"""The adapters in the real libraries give the vectors of ``encode``, in each's first example."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder

pytestmark = pytest.mark.ecosystem
TEXTS = [
    "the cat sits on the mat",
    "a dog runs in the park",
    "rain falls on the roof",
    "the moon is bright",
]


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory) -> Path:
    """The tiny model with prompts for queries and documents."""
    folder = tmp_path_factory.mktemp("models") / "prompted"
    encoder = SentenceEncoder.load(tiny)
    encoder.settings.prompts.update({"query": "query: ", "document": "passage: "})
    encoder.save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model) -> dict[str, np.ndarray]:
    """Vectors of the texts as queries, as documents, and as neither."""
    encoder = SentenceEncoder.load(model)
    prompts = {"query": "query: ", "document": "passage: ", "plain": ""}
    return {role: encoder.encode(TEXTS, prompt=prompt) for role, prompt in prompts.items()}


def assert_close(numbers, expected) -> None:
    """A number of a vector may differ by 2e-6."""
    numbers = np.asarray(numbers, dtype=np.float32)
    np.testing.assert_allclose(numbers, expected, atol=2e-6, rtol=0)


def test_langchain_searches_a_store(model, expected):
    pytest.importorskip("langchain_core")
    from langchain_core.vectorstores import InMemoryVectorStore

    from minisbert.integrations.langchain import MinisbertEmbeddings

    embeddings = MinisbertEmbeddings(str(model))
    assert_close(embeddings.embed_documents(TEXTS), expected["document"])
    assert_close(embeddings.embed_query(TEXTS[0]), expected["query"][0])
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    ((document, score),) = store.similarity_search_with_score(TEXTS[1], k=1)
    cosines = expected["query"][1] @ expected["document"].T
    assert document.page_content == TEXTS[int(cosines.argmax())]
    assert score == pytest.approx(cosines.max(), abs=1e-5)


@pytest.fixture(scope="module")
def ranker(tiny, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "ranker"
    PairModel(SentenceEncoder.load(tiny), JointHead(24)).save(folder)
    return folder


@pytest.fixture(scope="module")
def best(ranker) -> list[tuple[str, float]]:
    """The two texts with the highest scores for a query, from the scores of all."""
    scores = PairModel.load(ranker).predict([("a cat?", text) for text in TEXTS])
    order = np.argsort(-scores)
    assert (np.diff(scores[order]) < -1e-4).all()  # no near tie decides
    return [(TEXTS[i], float(scores[i])) for i in order[:2]]


@pytest.mark.parametrize("opened", [False, True])
def test_langchains_reranker_keeps_the_best(opened, ranker, best):
    """By a name or by a model; what LangChain knows of a document stays."""
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from minisbert.integrations.langchain import MinisbertReranker

    model = PairModel.load(ranker) if opened else str(ranker)
    documents = [Document(page_content=text, metadata={"i": i}) for i, text in enumerate(TEXTS)]
    kept = MinisbertReranker(model=model, top_n=2).compress_documents(documents, "a cat?")
    assert [document.page_content for document in kept] == [text for text, _ in best]
    scores = [document.metadata["relevance_score"] for document in kept]
    assert_close(scores, [score for _, score in best])
    text, _ = best[0]
    assert kept[0].metadata["i"] == TEXTS.index(text)


def test_llama_index_reranker_keeps_the_best(ranker, best):
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import NodeWithScore, TextNode

    from minisbert.integrations.llama_index import MinisbertRerank

    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    reranker = MinisbertRerank(model_name=str(ranker), top_n=2)
    kept = reranker.postprocess_nodes(nodes, query_str="a cat?")
    assert [node.node.text for node in kept] == [text for text, _ in best]
    assert_close([node.score for node in kept], [score for _, score in best])


def test_haystacks_ranker_keeps_the_best(ranker, best):
    """Also in a pipeline that was written and read again."""
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertRanker

    pipeline = haystack.Pipeline()
    pipeline.add_component("ranker", MinisbertRanker(str(ranker), top_k=2))
    pipeline = haystack.Pipeline.from_dict(
        pipeline.to_dict(), allowed_modules=["minisbert.integrations.haystack"]
    )
    documents = [haystack.Document(content=text) for text in TEXTS]
    results = pipeline.run({"ranker": {"query": "a cat?", "documents": documents}})
    kept = results["ranker"]["documents"]
    assert [document.content for document in kept] == [text for text, _ in best]
    assert_close([document.score for document in kept], [score for _, score in best])


def test_an_encoder_is_no_ranker(model):
    pytest.importorskip("langchain_core")
    from minisbert.integrations.langchain import MinisbertReranker

    with pytest.raises(ValueError, match="load a cross-encoder"):
        MinisbertReranker(model=str(model))


OPTIONS = {"truncate_dim": 8, "device": "cpu"}


def test_options_of_load_in_langchain(model, expected):
    pytest.importorskip("langchain_core")
    from minisbert.integrations.langchain import MinisbertEmbeddings

    embeddings = MinisbertEmbeddings(str(model), **OPTIONS)
    assert_close(embeddings.embed_documents(TEXTS), expected["document"][:, :8])


def test_options_of_load_in_llama_index(model, expected):
    pytest.importorskip("llama_index.core")
    from minisbert.integrations.llama_index import MinisbertEmbedding

    embedding = MinisbertEmbedding(model_name=str(model), options=OPTIONS)
    assert_close(embedding.get_query_embedding(TEXTS[0]), expected["query"][0, :8])


def test_options_of_load_in_haystack(model, expected):
    """They are part of what a pipeline writes."""
    pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertTextEmbedder

    content = MinisbertTextEmbedder(str(model), **OPTIONS).to_dict()
    embedder = MinisbertTextEmbedder(**content["init_parameters"])
    assert_close(embedder.run(TEXTS[0])["embedding"], expected["query"][0, :8])


def test_options_of_load_in_chroma(model, expected):
    """They are part of what a collection stores."""
    pytest.importorskip("chromadb")
    from minisbert.integrations.chroma import MinisbertEmbeddingFunction

    function = MinisbertEmbeddingFunction(str(model), **OPTIONS)
    again = function.build_from_config(function.get_config())
    assert_close(again(TEXTS), expected["document"][:, :8])


def test_options_of_load_in_scikit_learn(model, expected):
    pytest.importorskip("sklearn")
    from minisbert.integrations.sklearn import MinisbertVectorizer

    vectorizer = MinisbertVectorizer(str(model), **OPTIONS)
    assert_close(vectorizer.transform(TEXTS), expected["plain"][:, :8])


def test_llama_index_embeds_queries_and_batches(model, expected):
    pytest.importorskip("llama_index.core")
    from minisbert.integrations.llama_index import MinisbertEmbedding

    embedding = MinisbertEmbedding(model_name=str(model), embed_batch_size=3)
    assert_close(embedding.get_text_embedding_batch(TEXTS), expected["document"])
    assert_close(embedding.get_query_embedding(TEXTS[0]), expected["query"][0])


def test_haystack_runs_in_a_pipeline(model, expected):
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertDocumentEmbedder, MinisbertTextEmbedder

    pipeline = haystack.Pipeline()
    pipeline.add_component("query", MinisbertTextEmbedder(str(model)))
    pipeline.add_component("documents", MinisbertDocumentEmbedder(str(model)))
    pipeline = haystack.Pipeline.from_dict(
        pipeline.to_dict(), allowed_modules=["minisbert.integrations.haystack"]
    )
    documents = [haystack.Document(content=text) for text in TEXTS]
    results = pipeline.run({"query": {"text": TEXTS[0]}, "documents": {"documents": documents}})
    assert_close(results["query"]["embedding"], expected["query"][0])
    embedded = results["documents"]["documents"]
    assert_close([document.embedding for document in embedded], expected["document"])
    # The caller's own documents are not changed.
    assert [document.embedding for document in documents] == [None] * len(documents)


def test_chroma_remembers_the_model(model, expected, tmp_path):
    chromadb = pytest.importorskip("chromadb")
    from minisbert.integrations.chroma import MinisbertEmbeddingFunction

    client = chromadb.PersistentClient(str(tmp_path / "store"))
    collection = client.create_collection(
        "texts", embedding_function=MinisbertEmbeddingFunction(str(model))
    )
    collection.add(documents=TEXTS, ids=[str(i) for i in range(len(TEXTS))])
    assert_close(collection.get(include=["embeddings"])["embeddings"], expected["document"])
    opened = client.get_collection("texts")  # builds the function from what the collection keeps
    results = opened.query(query_texts=[TEXTS[2]], n_results=1)
    cosines = expected["query"][2] @ expected["document"].T
    assert results["documents"][0][0] == TEXTS[int(cosines.argmax())]


def test_scikit_learn_clones_and_works_in_parallel(model, expected):
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    from minisbert.integrations.sklearn import MinisbertVectorizer

    vectorizer = MinisbertVectorizer(str(model))
    assert_close(clone(vectorizer).fit_transform(TEXTS), expected["plain"])
    assert len(vectorizer.get_feature_names_out()) == expected["plain"].shape[1]
    pipeline = make_pipeline(vectorizer, LogisticRegression())
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1]}, cv=2, n_jobs=2)
    search.fit(TEXTS * 4, [0, 1, 0, 1] * 4)
    assert search.predict(TEXTS).shape == (4,)


def test_a_sentence_transformer_with_the_same_vectors_and_prompts(model, expected):
    pytest.importorskip("sentence_transformers")
    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    theirs = as_sentence_transformer(str(model))
    # BERTopic and KeyBERT recognise it by this name.
    assert "sentence_transformers" in str(type(theirs))
    assert_close(theirs.encode(TEXTS, batch_size=3), expected["plain"])
    assert_close(theirs.encode_query(TEXTS), expected["query"])
    assert_close(theirs.encode_document(TEXTS, convert_to_tensor=True), expected["document"])
    assert theirs.get_embedding_dimension() == expected["plain"].shape[1]
    cosines = expected["query"] @ expected["document"].T
    assert_close(theirs.similarity(expected["query"], expected["document"]), cosines)


def test_a_sentence_transformer_is_saved_as_a_folder_that_it_opens(model, expected, tmp_path):
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    as_sentence_transformer(str(model)).save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert_close(again.encode_query(TEXTS), expected["query"])


# --------------------------------- clients of OpenAI's interface, in front of ``minisbert serve``


@pytest.fixture(scope="module")
def address(model) -> Iterator[str]:
    pytest.importorskip("fastapi")
    command = [sys.executable, "-m", "minisbert", "serve", str(model), "--port", "0"]
    command += ["--threads", "1", "--served-model-name", "prompted"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    yield re.search(r"http://\S+/v1", server.stderr.readline())[0]
    server.terminate()
    assert server.wait(20) == 0


def test_langchains_openai_embeddings_call_the_server(address, expected):
    langchain_openai = pytest.importorskip("langchain_openai")
    settings = {
        "base_url": address,
        "api_key": "any",
        "model": "prompted",
        "check_embedding_ctx_length": False,
    }
    client = langchain_openai.OpenAIEmbeddings(**settings)
    assert_close(client.embed_documents(TEXTS), expected["plain"])
    assert_close(client.embed_query(TEXTS[0]), expected["plain"][0])


def test_mtebs_wrapper_of_openai_calls_the_server(address, expected, monkeypatch):
    pytest.importorskip("mteb")
    import tiktoken
    from mteb.models.model_implementations.openai_models import OpenAIModel
    from openai import OpenAI

    # It counts tokens of OpenAI's own models, whose vocabulary would be downloaded.
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: SimpleNamespace(encode=str.split))
    client = OpenAI(base_url=address, api_key="any", max_retries=0)
    width = expected["plain"].shape[1]
    wrapper = OpenAIModel("prompted", max_tokens=512, embed_dim=width, client=client)
    batches = [{"text": TEXTS[:3]}, {"text": [*TEXTS[3:], " "]}]
    vectors = wrapper.encode(batches, task_metadata=None, hf_split="test", hf_subset="default")
    assert_close(vectors, [*expected["plain"], np.zeros(width)])


@pytest.mark.weights
def test_mteb_scores_sts_benchmark_as_published(minilm, stsb, tmp_path, monkeypatch):
    mteb = pytest.importorskip("mteb")
    import datasets

    from minisbert.data.rows import load_scored_pairs
    from minisbert.integrations.mteb import MinisbertEncoder

    pairs = load_scored_pairs("stsb", "test")
    task = mteb.get_task("STSBenchmark")
    columns = {
        "sentence1": [pair.sentence1 for pair in pairs],
        "sentence2": [pair.sentence2 for pair in pairs],
        "score": [pair.score for pair in pairs],
    }
    task.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(columns)})
    task.data_loaded = True
    result = mteb.evaluate(MinisbertEncoder(str(minilm)), [task], cache=None)
    assert 100 * result.task_results[0].get_score() == pytest.approx(82.0325, abs=1e-3)
