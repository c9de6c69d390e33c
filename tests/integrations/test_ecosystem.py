"""The adapters in the real libraries give the vectors of ``encode``, in each's first example."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from minisbert.core import InputError
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


# --------------------------------------------------------------- nothing is swallowed


@pytest.mark.parametrize(
    ("library", "adapter", "fields"),
    [
        ("langchain", "MinisbertEmbeddings", {}),
        ("langchain", "MinisbertReranker", {"model": "m"}),
        ("llama_index", "MinisbertEmbedding", {}),
        ("llama_index", "MinisbertRerank", {"model_name": "m"}),
        ("haystack", "MinisbertTextEmbedder", {}),
        ("haystack", "MinisbertDocumentEmbedder", {}),
        ("haystack", "MinisbertRanker", {}),
        ("chroma", "MinisbertEmbeddingFunction", {}),
        ("sklearn", "MinisbertVectorizer", {}),
        ("mteb", "MinisbertEncoder", {}),
    ],
)
def test_an_adapter_refuses_an_argument_that_it_does_not_have(library, adapter, fields):
    """Before any model is opened: a pipeline is built long before it runs."""
    module = importlib.import_module(f"minisbert.integrations.{library}")
    with pytest.raises(TypeError, match=f"{adapter} has no argument devise: .*device"):
        getattr(module, adapter)(**fields, devise="cpu")


DEVICE = {"device": "no-such-device"}


def test_rerankers_refuse_a_device_that_there_is_not(ranker):
    """Every one of them was accepted."""
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertRanker
    from minisbert.integrations.langchain import MinisbertReranker
    from minisbert.integrations.llama_index import MinisbertRerank

    with pytest.raises(ValueError, match="no-such-device"):  # pydantic's, with our message
        MinisbertReranker(model=str(ranker), options=DEVICE)
    with pytest.raises(ValueError, match="no-such-device"):
        MinisbertRerank(model_name=str(ranker), options=DEVICE)
    with pytest.raises(InputError, match="no-such-device"):
        MinisbertRanker(str(ranker), **DEVICE).run("a cat?", [haystack.Document(content="a")])


@pytest.mark.parametrize(
    ("library", "adapter", "fields"),
    [
        ("langchain", "MinisbertReranker", {"model": "m"}),
        ("llama_index", "MinisbertEmbedding", {}),
        ("llama_index", "MinisbertRerank", {"model_name": "m"}),
    ],
)
def test_a_pydantic_class_says_where_its_options_go(library, adapter, fields):
    module = importlib.import_module(f"minisbert.integrations.{library}")
    with pytest.raises(TypeError, match="options="):
        getattr(module, adapter)(**fields, device="cpu")


def test_another_model_of_an_open_llama_index_embedding_is_refused(model):
    """The vectors would still be the first model's."""
    pytest.importorskip("llama_index.core")
    from minisbert.integrations.llama_index import MinisbertEmbedding

    embedding = MinisbertEmbedding(model_name=str(model))
    with pytest.raises(ValueError, match="frozen"):
        embedding.model_name = "another"


LENGTH_1 = {"truncate_dim": 8, "normalize_embeddings": True, "batch_size": 2}


@pytest.fixture
def of_length_1(expected) -> np.ndarray:
    """Eight columns of the texts as documents, scaled to length 1."""
    columns = expected["document"][:, :8]
    return columns / np.linalg.norm(columns, axis=1, keepdims=True)


def test_normalize_embeddings_in_every_library(model, of_length_1):
    """It is an option of encode, not of load."""
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.chroma import MinisbertEmbeddingFunction
    from minisbert.integrations.haystack import MinisbertDocumentEmbedder
    from minisbert.integrations.langchain import MinisbertEmbeddings
    from minisbert.integrations.llama_index import MinisbertEmbedding
    from minisbert.integrations.mteb import MinisbertEncoder
    from minisbert.integrations.sklearn import MinisbertVectorizer

    name = str(model)
    assert_close(MinisbertEmbeddings(name, **LENGTH_1).embed_documents(TEXTS), of_length_1)
    embedding = MinisbertEmbedding(model_name=name, options=LENGTH_1)
    assert_close(embedding.get_text_embedding_batch(TEXTS), of_length_1)
    assert_close(MinisbertEmbeddingFunction(name, **LENGTH_1)(TEXTS), of_length_1)
    documents = [haystack.Document(content=text) for text in TEXTS]
    embedded = MinisbertDocumentEmbedder(name, **LENGTH_1).run(documents)["documents"]
    assert_close([document.embedding for document in embedded], of_length_1)
    vectorizer = MinisbertVectorizer(name, prompt_name="document", **LENGTH_1)
    assert_close(vectorizer.transform(TEXTS), of_length_1)
    encoder = MinisbertEncoder(name, **LENGTH_1)
    assert_close(encoder.encode([{"text": TEXTS}], prompt_type="document"), of_length_1)


def test_haystack_embeds_meta_fields_before_the_content(model):
    """A title or a date often decides which document is meant."""
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertDocumentEmbedder

    embedder = MinisbertDocumentEmbedder(
        str(model), meta_fields_to_embed=["title", "year"], embedding_separator=" / "
    )
    embedder = MinisbertDocumentEmbedder(**embedder.to_dict()["init_parameters"])
    documents = [
        haystack.Document(content="the cat sits", meta={"title": "cats", "year": 1999}),
        haystack.Document(content="a dog runs", meta={"title": None}),
    ]
    embedded = embedder.run(documents)["documents"]
    expected = SentenceEncoder.load(model).encode(
        ["passage: cats / 1999 / the cat sits", "passage: a dog runs"], prompt=""
    )
    assert_close([document.embedding for document in embedded], expected)
    with pytest.raises(InputError, match="list"):
        MinisbertDocumentEmbedder(str(model), meta_fields_to_embed="title")


def test_haystacks_ranker_refuses_to_keep_no_document(ranker):
    """A top_k of 0 counted as none given."""
    haystack = pytest.importorskip("haystack")
    from minisbert.integrations.haystack import MinisbertRanker

    with pytest.raises(InputError, match="top_k"):
        MinisbertRanker(str(ranker)).run("a cat?", [haystack.Document(content="a")], top_k=0)


def test_mteb_evaluates_the_columns_that_were_asked_for(model, expected):
    """And keeps the results apart from those of all columns."""
    pytest.importorskip("mteb")
    from minisbert.integrations.mteb import MinisbertEncoder

    encoder = MinisbertEncoder(str(model), truncate_dim=8)
    assert_close(encoder.encode([{"text": TEXTS}]), expected["plain"][:, :8])
    assert encoder.mteb_model_meta.embed_dim == 8
    assert "truncate_dim" in encoder.mteb_model_meta.experiment_name
    assert MinisbertEncoder(str(model), batch_size=8).mteb_model_meta.experiment_name is None


def test_mtebs_encode_kwargs_are_obeyed(model):
    """They were dropped; precision would make each call's own codes, which do not compare."""
    pytest.importorskip("mteb")
    from minisbert.integrations.mteb import MinisbertEncoder

    encoder = MinisbertEncoder(str(model))
    with pytest.raises(InputError, match="batch_size"):
        encoder.encode([{"text": TEXTS}], batch_size=0)
    with pytest.raises(TypeError, match="precision"):
        encoder.encode([{"text": TEXTS}], precision="int8")
    with pytest.raises(InputError, match="qery"):
        encoder.encode([{"text": TEXTS}], prompt_type="qery")


def test_the_vectorizer_names_as_many_columns_as_it_gives(model):
    """set_output died of the difference."""
    pytest.importorskip("sklearn")
    from minisbert.integrations.sklearn import MinisbertVectorizer

    vectorizer = MinisbertVectorizer(str(model), truncate_dim=8)
    assert len(vectorizer.get_feature_names_out()) == vectorizer.transform(TEXTS).shape[1] == 8


def test_the_vectorizer_opens_a_model_that_was_saved_anew(model, tmp_path):
    pytest.importorskip("sklearn")
    from minisbert.integrations.sklearn import MinisbertVectorizer

    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    vectorizer = MinisbertVectorizer(str(folder))
    old = vectorizer.transform(TEXTS)
    changed = SentenceEncoder.load(folder)
    with torch.no_grad():
        changed.bert.embeddings.word.weight.mul_(1.5)
    changed.save(folder)
    assert_close(vectorizer.transform(TEXTS), changed.encode(TEXTS, prompt=""))
    assert np.abs(vectorizer.transform(TEXTS) - old).max() > 1e-3


# ------------------------------------------------------------ the bridge to sentence-transformers


@pytest.fixture(scope="module")
def unpooled(model, tmp_path_factory) -> Path:
    """The model with prompts, whose tokens are not pooled."""
    folder = tmp_path_factory.mktemp("models") / "unpooled"
    shutil.copytree(model, folder)
    pooling = folder / "1_Pooling" / "config.json"
    config = json.loads(pooling.read_text())
    pooling.write_text(json.dumps(config | {"include_prompt": False}))
    return folder


def test_the_bridge_leaves_the_prompt_out_of_the_pooling(unpooled, expected):
    """As sentence-transformers does for such a folder."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    theirs = SentenceTransformer(str(unpooled), device="cpu")
    bridge = as_sentence_transformer(str(unpooled))
    assert_close(bridge.encode_query(TEXTS), theirs.encode_query(TEXTS))
    assert np.abs(bridge.encode_query(TEXTS) - expected["query"]).max() > 1e-3
    bridge.set_pooling_include_prompt(True)
    assert_close(bridge.encode_query(TEXTS), expected["query"])


def test_the_bridge_obeys_the_settings_of_a_sentence_transformer(model):
    """They are set after it was made; the encoder that it was made from keeps its own."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    encoder = SentenceEncoder.load(model)
    limit = encoder.max_seq_length
    bridge = as_sentence_transformer(encoder)
    theirs = SentenceTransformer(str(model), device="cpu")
    for transformer in (bridge, theirs):
        transformer.max_seq_length = 5
        transformer.truncate_dim = 7
    assert bridge.max_seq_length == 5
    assert_close(bridge.encode(TEXTS), theirs.encode(TEXTS))
    for transformer in (bridge, theirs):
        transformer.truncate_dim = None
    assert_close(bridge.encode(TEXTS), theirs.encode(TEXTS))
    assert encoder.max_seq_length == limit


def test_the_bridge_saves_its_settings(model, tmp_path):
    """A prompt that was set on it would be lost."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    bridge = as_sentence_transformer(str(model))
    bridge.prompts = {"query": "q: ", "document": ""}
    bridge.max_seq_length = 6
    bridge.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    theirs = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert theirs.prompts["query"] == "q: "
    assert theirs.max_seq_length == 6
    assert not (tmp_path / "saved" / "README.md").exists()


def test_sentence_transformers_evaluators_run_on_the_bridge(model):
    """With the scores of the real library for the same folder."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import (
        BinaryClassificationEvaluator,
        EmbeddingSimilarityEvaluator,
        InformationRetrievalEvaluator,
        MSEEvaluator,
        ParaphraseMiningEvaluator,
        RerankingEvaluator,
        SequentialEvaluator,
        TranslationEvaluator,
        TripletEvaluator,
    )

    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    theirs = SentenceTransformer(str(model), device="cpu")
    by_id = {str(number): text for number, text in enumerate(TEXTS)}
    others = TEXTS[1:] + TEXTS[:1]
    evaluator = SequentialEvaluator(
        [
            EmbeddingSimilarityEvaluator(TEXTS, others, [0.1, 0.9, 0.4, 0.5], name="sts"),
            BinaryClassificationEvaluator(TEXTS, others, [0, 1, 0, 1], name="pairs"),
            TripletEvaluator(TEXTS, others, TEXTS[2:] + TEXTS[:2], name="triplets"),
            InformationRetrievalEvaluator(
                {"q": "a cat"}, by_id, {"q": {"0"}}, corpus_chunk_size=2, name="search"
            ),
            RerankingEvaluator(
                [{"query": "a cat", "positive": TEXTS[:1], "negative": TEXTS[1:]}], name="ranking"
            ),
            ParaphraseMiningEvaluator(by_id, [("0", "1")], name="mining"),
            TranslationEvaluator(TEXTS, others, name="translation"),
            MSEEvaluator(TEXTS, others, teacher_model=theirs, name="mse"),
        ]
    )
    expected = evaluator(theirs)
    scores = evaluator(as_sentence_transformer(str(model)))
    assert scores.keys() == expected.keys()
    for name, score in expected.items():
        assert scores[name] == pytest.approx(score, abs=1e-4), name


def test_what_the_bridge_cannot_do_is_said(model):
    """Training ended in an error of autograd, tokens' states in a KeyError."""
    pytest.importorskip("sentence_transformers")
    from minisbert.integrations.sentence_transformers import as_sentence_transformer

    bridge = as_sentence_transformer(str(model))
    with pytest.raises(InputError, match="token_embeddings"):
        bridge.encode(TEXTS, output_value="token_embeddings")
    with pytest.raises(InputError, match="train"):
        bridge.train()


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
