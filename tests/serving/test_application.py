"""The HTTP application, in the process: answers, refusals, and what it counts."""

import base64
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the serve extra: pip install '.[serve]'")
try:
    from starlette.testclient import TestClient
except RuntimeError as error:  # it needs httpx
    pytest.skip(str(error), allow_module_level=True)

import minisbert
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.serving.application import Server
from minisbert.serving.connections import Limits
from minisbert.serving.engine import Engine
from tests.conftest import ROOT

TEXTS = ["the cat sits on the mat", "", "a dog"]
LONG = "cat " * 200


@pytest.fixture(scope="module")
def encoder(tiny):
    return SentenceEncoder.load(tiny)


@pytest.fixture(scope="module")
def engine(encoder, tiny):
    own = SentenceEncoder.load(tiny)
    reranker = PairModel(own, JointHead(own.width), "regression")
    return Engine("tiny", encoder, reranker.eval(), "judge")


@pytest.fixture(scope="module")
def client(engine):
    with TestClient(Server(engine).application()) as client:
        yield client


def post(client, path="/v1/embeddings", **content):
    return client.post(path, json=content)


def test_vectors_are_those_of_encode_as_numbers_and_as_base64(client, encoder):
    expected = encoder.encode(TEXTS)
    numbers = post(client, input=TEXTS, model="tiny").json()
    coded = post(client, input=TEXTS, encoding_format="base64").json()
    assert numbers["object"] == "list"
    assert numbers["model"] == "tiny"
    assert [row["index"] for row in numbers["data"]] == [0, 1, 2]
    lengths = [len(ids) for ids in encoder.tokenizer.encode(TEXTS).ids]
    assert numbers["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
    for row, code, vector in zip(numbers["data"], coded["data"], expected, strict=True):
        np.testing.assert_allclose(row["embedding"], vector, atol=2e-6, rtol=0)
        decoded = np.frombuffer(base64.b64decode(code["embedding"]), dtype="<f4")
        np.testing.assert_allclose(decoded, vector, atol=2e-6, rtol=0)


def test_one_text_and_token_ids(client, encoder):
    one = post(client, input="a dog").json()["data"]
    ids = encoder.tokenizer.encode(["a dog"]).ids[0][1:-1]
    for given in (ids, [ids]):
        assert post(client, input=given).json()["data"] == one


@pytest.mark.parametrize("side", ["left", "right"])
def test_token_ids_of_a_model_that_cuts_this_end(tiny, tmp_path, side):
    """[CLS] comes first, [SEP] last, and the same tokens are left out as of the text."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": side}))
    engine = Engine("tiny", SentenceEncoder.load(folder))
    text = "the cat sits on the mat and a dog runs to the small boy in the park"
    ids = engine.encoder.tokenizer.backend.encode(text, add_special_tokens=False).ids
    assert len(ids) + 2 > engine.encoder.tokenizer.limit
    for given, tokens, cut in ((text, ids, True), ("the cat", ids[:2], False)):
        from_text, from_ids = engine.embed("", [given, tokens])
        np.testing.assert_allclose(from_ids.vector, from_text.vector, atol=2e-6, rtol=0)
        assert (from_ids.cut, from_text.cut) == (cut, cut)


def test_a_shortened_vector_has_length_one(client, encoder):
    found = post(client, input="a dog", dimensions=8).json()["data"][0]["embedding"]
    prefix = encoder.encode(["a dog"])[0, :8]
    np.testing.assert_allclose(found, prefix / np.linalg.norm(prefix), atol=2e-6, rtol=0)


def test_prompts_by_input_type(tiny):
    encoder = SentenceEncoder.load(tiny)
    del encoder.settings.prompts["document"]
    encoder.settings.prompts.update({"query": "query: ", "passage": "passage: "})
    with TestClient(Server(Engine("tiny", encoder)).application()) as client:
        for kind, prompt in (("query", "query: "), ("document", "passage: "), (None, None)):
            found = post(client, input="a dog", input_type=kind).json()["data"][0]["embedding"]
            np.testing.assert_allclose(found, encoder.encode(["a dog"], prompt=prompt)[0], atol=2e-6, rtol=0)


def test_token_ids_of_a_model_that_cuts_the_start_are_those_of_the_text(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "left")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"truncation_side": "left"}))
    encoder = SentenceEncoder.load(folder)
    for text in ("a dog", LONG):
        ids = encoder.tokenizer.backend.encode(text, add_special_tokens=False).ids
        of_text, of_ids = Engine("tiny", encoder).embed("", [text, ids])
        np.testing.assert_allclose(of_ids.vector, of_text.vector, atol=2e-6, rtol=0)  # float32
        assert (of_ids.tokens, of_ids.cut) == (of_text.tokens, of_text.cut) == (min(len(ids) + 2, 16), len(ids) > 14)


def test_a_cut_text_is_told_or_refused(client, engine):
    answer = post(client, input=["a dog", LONG])
    assert answer.json()["truncated"] == [1]
    assert answer.headers["x-truncated"] == "1"
    assert "truncated" not in post(client, input=["a dog"]).json()
    with TestClient(Server(engine, truncate="error").application()) as strict:
        refused = post(strict, input=["a dog", LONG])
    assert refused.status_code == 400
    assert "input 1 has more than" in refused.json()["error"]["message"]


DOCUMENTS = ["a cat", "the dog runs", "moon"]
RERANK_PATHS = ["/v1/rerank", "/v2/rerank", "/rerank"]


def sigmoid(scores):
    return 1 / (1 + np.exp(-np.asarray(scores, dtype=np.float64)))


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_reranking_as_cohere_and_jina_have_it(client, engine, path):
    expected = engine.reranker.predict([("a dog", text) for text in DOCUMENTS])
    answer = post(client, path, model="judge", query="a dog", documents=DOCUMENTS, return_documents=True).json()
    found = answer["results"]
    order = [row["index"] for row in found]
    assert order == list(np.argsort(-expected))
    np.testing.assert_allclose([row["relevance_score"] for row in found], -np.sort(-expected), atol=2e-6, rtol=0)
    assert [row["document"] for row in found] == [{"text": DOCUMENTS[i]} for i in order]
    objects = [{"text": text} for text in DOCUMENTS]
    plain = post(client, path, query="a dog", documents=objects).json()["results"]
    assert [set(row) for row in plain] == [{"index", "relevance_score"}] * 3
    assert [row["index"] for row in plain] == order
    # [CLS] a dog [SEP] DOCUMENT [SEP]
    lengths = [len(ids) for ids in engine.reranker.tokenizer.encode_pairs(["a dog"] * 3, DOCUMENTS).ids]
    assert answer["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
    assert answer["meta"] == {"tokens": {"input_tokens": sum(lengths)}}
    assert answer["model"] == "judge"
    assert answer["id"] != post(client, path, query="a dog", documents=DOCUMENTS).json()["id"]


@pytest.mark.parametrize("path", RERANK_PATHS)
def test_reranking_as_tei_has_it(client, engine, path):
    found = post(client, path, query="a dog", texts=DOCUMENTS, return_text=True, truncate=True).json()
    expected = engine.reranker.predict([("a dog", text) for text in DOCUMENTS])
    order = list(np.argsort(-expected))
    assert [row["index"] for row in found] == order
    assert [row["text"] for row in found] == [DOCUMENTS[i] for i in order]
    np.testing.assert_allclose([row["score"] for row in found], expected[order], atol=2e-6, rtol=0)
    plain = post(client, path, query="a dog", texts=DOCUMENTS).json()
    assert [set(row) for row in plain] == [{"index", "score"}] * 3


@pytest.mark.parametrize(
    ("task", "field", "raw", "scale"),
    [
        ("logit", "documents", None, "output"),  # as predict
        ("logit", "documents", False, "sigmoid"),
        ("logit", "texts", None, "sigmoid"),  # as TEI
        ("logit", "texts", True, "output"),
        ("binary", "documents", None, "sigmoid"),  # as predict
        ("binary", "documents", True, "output"),
        ("binary", "texts", False, "sigmoid"),
        ("regression", "texts", None, "output"),  # is 0 to 1 without one
    ],
)
def test_the_scale_of_scores(engine, task, field, raw, scale):
    own = engine.reranker
    reranker = PairModel(own.encoder, own.head, task).eval()
    outputs = reranker.outputs(["a dog"] * 3, DOCUMENTS).tolist()
    expected = sigmoid(outputs) if scale == "sigmoid" else outputs
    with TestClient(Server(Engine("tiny", engine.encoder, reranker, "judge")).application()) as client:
        found = post(client, "/rerank", query="a dog", raw_scores=raw, **{field: DOCUMENTS}).json()
    key = "score"
    if field == "documents":
        found, key = found["results"], "relevance_score"
    for row in found:
        assert row[key] == pytest.approx(expected[row["index"]], abs=2e-6)
    if raw is None and field == "documents":
        predicted = reranker.predict([("a dog", text) for text in DOCUMENTS])
        np.testing.assert_allclose(predicted, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ["top_n", "top_k"])
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2, 2), (3, 3), (9, 3), (0, 3), (None, 3)])
def test_how_many_documents_come_back(client, name, count, rows):
    for field in ("documents", "texts"):
        answer = post(client, "/rerank", query="a dog", **{field: DOCUMENTS, name: count}).json()
        found = answer if field == "texts" else answer["results"]
        whole = post(client, "/rerank", query="a dog", **{field: DOCUMENTS}).json()
        assert found == (whole if field == "texts" else whole["results"])[:rows]


CUT_RERANKING = [
    ("a dog", ["a cat", LONG, "moon"], [1]),
    (LONG, ["a cat", "moon"], [0, 1]),  # the query is the longer one
    # 16 tokens of [CLS] a dog [SEP] cat ... [SEP] are whole, 17 are not
    ("a dog", ["cat " * 11, "cat " * 12], [1]),
]


@pytest.mark.parametrize(("query", "documents", "cut"), CUT_RERANKING, ids=range(3))
def test_a_cut_document_is_told_or_refused(client, engine, query, documents, cut):
    answer = post(client, "/v1/rerank", query=query, documents=documents)
    assert answer.json()["truncated"] == cut
    assert answer.headers["x-truncated"] == ",".join(map(str, cut))
    assert post(client, "/rerank", query=query, texts=documents).headers["x-truncated"] == ",".join(map(str, cut))
    # TEI's word for it counts before the server's
    refused = [post(client, "/rerank", query=query, texts=documents, truncate=False)]
    with TestClient(Server(engine, truncate="error").application()) as strict:
        refused.append(post(strict, "/v1/rerank", query=query, documents=documents))
        assert post(strict, "/rerank", query=query, texts=documents, truncate=True).status_code == 200
        assert post(strict, "/v1/rerank", query="a dog", documents=["a cat"]).status_code == 200
    for each in refused:
        assert each.status_code == 400
        assert f"document {cut[0]}" in each.json()["error"]["message"]


# as their source has them: what each client sends beside query and texts, and what it reads of the answer
CLIENTS = {
    "cohere, ClientV2 and langchain_cohere": ("/v2/rerank", "documents", {"top_n": 2, "max_tokens_per_doc": 4096}),
    "cohere, Client": ("/v1/rerank", "documents", {"top_n": 2, "return_documents": True}),
    "litellm, infinity": ("/infinity/rerank", "documents", {"return_documents": True}),
    "litellm, hosted_vllm": ("/rerank", "documents", {"return_documents": True}),
    "litellm, huggingface": (
        "/rerank",
        "texts",
        {"raw_scores": False, "truncate": False, "truncation_direction": "Right", "return_text": True, "top_n": 2},
    ),
    "LlamaIndex, TextEmbeddingInference": ("/rerank", "texts", {"truncate": True}),
    "Haystack, HuggingFaceTEIRanker": ("/rerank", "texts", {"raw_scores": False}),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_requests_of_clients(client, engine, name):
    path, field, options = CLIENTS[name]
    answer = post(client, path, query="a dog", **{field: DOCUMENTS}, **options)
    assert answer.status_code == 200
    expected = engine.reranker.predict([("a dog", text) for text in DOCUMENTS])
    rows, key = answer.json(), "score"
    if field == "documents":
        rows, key = answer.json()["results"], "relevance_score"
    assert [row["index"] for row in rows] == list(np.argsort(-expected))[: options.get("top_n", 3)]
    assert [row[key] for row in rows] == pytest.approx([expected[row["index"]] for row in rows], abs=2e-6)


@pytest.mark.parametrize("path", ["/rerank", "/infinity/rerank"])
def test_infinitys_answer_has_documents_as_strings_and_vllms_as_objects(client, path):
    """litellm sends both the same request, and reads ``document["text"]`` of vLLM, ``document`` of infinity."""
    rows = post(client, path, query="a dog", documents=DOCUMENTS, return_documents=True).json()["results"]
    texts = [DOCUMENTS[row["index"]] for row in rows]
    if path == "/rerank":
        texts = [{"text": text} for text in texts]
    assert [row["document"] for row in rows] == texts


def test_a_short_reranking_names_no_cut(client):
    answer = post(client, "/v1/rerank", query="a dog", documents=["a cat"])
    assert "truncated" not in answer.json()
    assert "x-truncated" not in answer.headers


def test_a_head_that_reads_two_rows(tiny, encoder):
    own = SentenceEncoder.load(tiny)
    reranker = PairModel(own, siamese(own.width), "regression").eval()
    scored = Engine("tiny", encoder, reranker, "judge").score("a dog", ["a cat", LONG])
    np.testing.assert_allclose(
        [each.output for each in scored], reranker.predict([("a dog", "a cat"), ("a dog", LONG)]), atol=2e-6, rtol=0
    )
    assert [each.cut for each in scored] == [False, True]
    assert [each.tokens for each in scored] == [4 + 4, 4 + 16]  # [CLS] a dog [SEP], [CLS] a cat [SEP], the limit


# what the client sends, cohere 5 and 7, beside texts, and what it reads of the answer: the kind of answer by its
# response_type, then embeddings, texts and meta
COHERE = {
    "Client": ("/v1/embed", {"input_type": "search_document"}),
    "Client with types": ("/v1/embed", {"input_type": "search_query", "embedding_types": ["float", "ubinary"]}),
    "ClientV2": ("/v2/embed", {"input_type": "clustering", "truncate": "END"}),
    "ClientV2 with types": ("/v2/embed", {"input_type": "classification", "embedding_types": ["binary", "base64"]}),
}


@pytest.mark.parametrize("name", COHERE)
def test_embeddings_as_cohere_has_them(client, encoder, name):
    path, options = COHERE[name]
    answer = post(client, path, model="tiny", texts=TEXTS, **options).json()
    expected = encoder.encode(TEXTS)
    bits = np.packbits(expected > 0, axis=1).astype(int)
    forms = {"float": expected, "ubinary": bits, "binary": bits - 128}
    found = answer["embeddings"]
    if name == "Client":
        assert answer["response_type"] == "embeddings_floats"
        found = {"float": found}
    else:
        assert answer["response_type"] == "embeddings_by_type"
    assert list(found) == options.get("embedding_types", ["float"])
    if "base64" in found:
        bytes_ = [base64.b64decode(code) for code in found.pop("base64")]
        np.testing.assert_allclose([np.frombuffer(code, "<f4") for code in bytes_], expected, atol=2e-6, rtol=0)
    for form, vectors in found.items():
        np.testing.assert_allclose(vectors, forms[form], atol=2e-6, rtol=0)
    assert answer["texts"] == TEXTS
    tokens = sum(len(ids) for ids in encoder.tokenizer.encode(TEXTS).ids)
    assert answer["meta"] == {"billed_units": {"input_tokens": tokens}}


def test_texts_in_coheres_longer_form_and_the_first_columns(client, encoder):
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    found = post(client, "/v2/embed", inputs=inputs, output_dimension=8).json()["embeddings"]["float"]
    prefix = encoder.encode(TEXTS)[:, :8]
    np.testing.assert_allclose(found, prefix / np.linalg.norm(prefix, axis=1, keepdims=True), atol=2e-6, rtol=0)


def test_prompts_by_coheres_input_type(tiny):
    encoder = SentenceEncoder.load(tiny)
    del encoder.settings.prompts["document"]
    encoder.settings.prompts.update({"query": "query: ", "passage": "passage: ", "clustering": "cluster: "})
    kinds = {"search_query": "query: ", "search_document": "passage: ", "clustering": "cluster: ", "classification": ""}
    with TestClient(Server(Engine("tiny", encoder)).application()) as client:
        for kind, prompt in kinds.items():
            found = post(client, "/v2/embed", texts=["a dog"], input_type=kind).json()["embeddings"]["float"]
            np.testing.assert_allclose(found, encoder.encode(["a dog"], prompt=prompt), atol=2e-6, rtol=0)


EMBED_REFUSED = [
    ({}, 400, "texts"),
    ({"texts": "a"}, 400, "texts"),
    ({"texts": []}, 400, "texts"),
    ({"texts": ["a", ["b"]]}, 400, "texts[1]"),
    ({"texts": ["a"], "images": ["data:"]}, 400, "images"),
    ({"texts": ["a"], "max_tokens": 5}, 400, "max_tokens"),
    ({"texts": ["a"], "embedding_types": ["int8"]}, 400, "embedding_types"),
    ({"texts": ["a"], "embedding_types": "float"}, 400, "embedding_types"),
    ({"texts": ["a"], "embedding_types": [["float"]]}, 400, "embedding_types"),
    ({"texts": ["a"], "input_type": "image"}, 400, "input_type"),
    ({"texts": ["a"], "output_dimension": 25}, 400, "24 dimensions"),
    ({"texts": ["a"], "truncate": "START"}, 400, "truncate"),
    ({"texts": [LONG], "truncate": "NONE"}, 400, "16 tokens"),
    ({"texts": ["\ud800"]}, 400, "lone surrogate"),
    ({"texts": ["a"], "model": "other"}, 404, "other"),
    ({"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "inputs[0]"),
    ({"inputs": [{"content": [{"type": "text", "text": "a"}] * 2}]}, 400, "inputs[0]"),
    ({"texts": ["a"] * 2049}, 413, "2,048"),
]


@pytest.mark.parametrize(("content", "status", "message"), EMBED_REFUSED, ids=range(len(EMBED_REFUSED)))
def test_what_cannot_be_embedded_for_cohere_is_refused(client, content, status, message):
    answer = client.post("/v2/embed", content=json.dumps(content))
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_a_request_of_coheres_says_itself_whether_a_text_is_cut(client, engine):
    assert post(client, "/v1/embed", texts=["a", LONG]).json()["truncated"] == [1]
    with TestClient(Server(engine, truncate="error").application()) as strict:
        assert post(strict, "/v1/embed", texts=[LONG]).status_code == 400
        assert post(strict, "/v1/embed", texts=[LONG], truncate="END").status_code == 200


def test_the_description_names_every_path_and_what_it_says_is_checked(client, engine):
    found = client.get("/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            # no path is described that does not answer
            assert client.request(method, path.format(name="tiny")).status_code in (200, 400)
            form = operation.get("requestBody", {"content": {"application/json": {"schema": {"properties": {}}}}})
            for name, schema in form["content"]["application/json"]["schema"]["properties"].items():
                if "enum" in schema or schema.get("type") in ("integer", "boolean"):
                    refused = post(client, path, **{name: "a fish"})
                    assert refused.status_code == 400
                    assert name in refused.json()["error"]["message"]
    paths = {route.path for route in Server(engine).application().routes} - {"/health"}
    assert set(found["paths"]) == {path.replace(":path", "") for path in paths}


def test_the_page_shows_every_path_and_field(client):
    answer = client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for shown in ("POST /v1/embeddings", "POST /v2/embed", "GET /v1/models/{name}", "raw_scores", "float or base64"):
        assert shown in answer.text
    assert "<script" not in answer.text


REFUSED = [
    ({}, 400, "input"),
    ({"input": []}, 400, "input"),
    ({"input": ["a", 1]}, 400, "input[1]"),
    ({"input": [True]}, 400, "input[0]"),
    ({"input": [[1, "x"]]}, 400, "input[0]"),
    ({"input": [10**9]}, 400, "token id 1000000000"),
    ({"input": [-1]}, 400, "token id -1"),
    ({"input": "\ud800"}, 400, "lone surrogate"),
    ({"input": "a", "dimensions": 0}, 400, "dimensions"),
    ({"input": "a", "dimensions": 25}, 400, "dimensions"),
    ({"input": "a", "dimensions": "8"}, 400, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, 400, "float, base64"),
    ({"input": "a", "input_type": []}, 400, "query, document"),
    ({"input": ["a"] * 2049}, 413, "2,048"),
    ({"input": ["a", "b" * 100_001]}, 413, "input[1]"),
]


@pytest.mark.parametrize(("content", "status", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_embedded_is_refused_in_openais_form(client, content, status, message):
    answer = client.post("/v1/embeddings", content=json.dumps(content))
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff\xfe", b"[" * 10**5], ids=range(4))
def test_a_body_that_is_no_object_is_refused(client, body):
    for path in ("/v1/embeddings", "/v1/rerank"):
        assert client.post(path, content=body).status_code == 400


RERANK_REFUSED = [
    ({"query": "a"}, 400),
    ({"query": 1, "documents": ["a"]}, 400),
    ({"query": "a", "documents": []}, 400),
    ({"query": "a", "documents": [{"title": "b"}]}, 400),
    ({"query": "a", "documents": ["b"], "top_n": -1}, 400),
    ({"query": "a", "documents": ["b"], "top_k": "1"}, 400),
    ({"query": "a", "documents": None, "texts": []}, 400),
    ({"query": "a", "documents": "b"}, 400),
    ({"query": "a", "documents": ["b"], "texts": ["b"]}, 400),
    ({"query": None, "documents": ["b"]}, 400),
    ({"query": "a", "texts": ["b"], "raw_scores": "yes"}, 400),
    ({"query": "a", "texts": ["b"], "truncation_direction": "Left"}, 400),
    ({"query": "a", "documents": ["b"], "return_documents": 1}, 400),
    ({"query": "a", "documents": ["b"], "model": "other"}, 404),
    ({"query": "a" * 100_001, "documents": ["b"]}, 413),
    ({"query": "a", "documents": [{"text": "b" * 100_001}]}, 413),
]


@pytest.mark.parametrize(("content", "status"), RERANK_REFUSED, ids=range(len(RERANK_REFUSED)))
def test_what_cannot_be_reranked_is_refused(client, content, status):
    assert client.post("/v1/rerank", json=content).status_code == status


def test_null_is_as_good_as_absent(client):
    plain = post(client, input="a dog").json()
    nothing = dict.fromkeys(["encoding_format", "dimensions", "input_type", "user", "model"])
    assert post(client, input="a dog", **nothing).json() == plain
    given = {"query": "a", "documents": ["b", "c"]}
    names = ["top_n", "top_k", "return_documents", "return_text", "raw_scores", "texts", "model", "truncate"]
    found = post(client, "/v1/rerank", **given, **dict.fromkeys(names)).json()["results"]
    assert found == post(client, "/v1/rerank", **given).json()["results"]


def test_a_path_that_there_is_not_and_a_method_that_it_does_not_have(client):
    assert client.get("/").status_code == 404
    assert client.get("/").json()["error"]["message"] == "there is no GET /"
    for method, path, allowed in (
        ("GET", "/v1/embeddings", {"POST"}),
        ("GET", "/v2/rerank", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", "/health", {"GET", "HEAD"}),
    ):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed  # RFC 9110, 15.5.6
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_models_and_a_server_without_a_reranker(client, encoder):
    rows = client.get("/v1/models").json()["data"]
    assert [row["id"] for row in rows] == ["tiny", "judge"]
    for row in rows:
        assert client.get(f"/v1/models/{row['id']}").json() == row
    with TestClient(Server(Engine("owner/tiny", encoder)).application()) as plain:
        assert post(plain, "/v1/rerank", query="a", documents=["b"]).status_code == 404
        for path in ("/v1/models/owner/tiny", "/v1/models/owner%2Ftiny"):
            assert plain.get(path).json()["id"] == "owner/tiny"


def test_another_models_name_is_refused_as_openai_does_unless_any_will_do(client, engine):
    with TestClient(Server(engine, any_model=True).application()) as any_model:
        for path, content in (
            ("/v1/embeddings", {"input": "a", "model": "text-embedding-3-small"}),
            ("/v1/embeddings", {"input": "a", "model": "judge"}),  # which makes no vectors
            ("/v1/rerank", {"query": "a", "documents": ["b"], "model": "tiny"}),
        ):
            answer = client.post(path, json=content)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["code"]) == (
                404,
                "invalid_request_error",
                "model_not_found",
            )
            assert content["model"] in error["message"]
            assert any_model.post(path, json=content).status_code == 200
    unknown = client.get("/v1/models/other")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_info_has_teis_keys(client, engine):
    found = client.get("/info").json()
    assert found["model_id"] == "tiny"
    assert found["model_dtype"] == "float32"
    assert found["model_type"]["embedding"] == {"pooling": "mean"}
    assert "reranker" in found["model_type"]
    assert (found["max_input_length"], found["max_client_batch_size"], found["auto_truncate"]) == (16, 2048, True)
    assert found["compiled"] is False
    with TestClient(Server(Engine("t", engine.encoder), Limits(texts=7), truncate="error").application()) as other:
        found = other.get("/info").json()
    assert "reranker" not in found["model_type"]
    assert (found["max_client_batch_size"], found["auto_truncate"]) == (7, False)


def test_the_dtype_of_the_encoder(encoder):
    with pytest.raises(InputError, match="float16"):
        Engine("tiny", encoder, dtype="float16")
    engine = Engine("tiny", encoder, dtype="float32")
    engine.dtype = "bfloat16"  # afterwards: hardware without it refuses
    try:
        expected = encoder.encode(["a dog"], dtype="bfloat16")
    except InputError:
        pytest.skip("this CPU has no bfloat16")
    np.testing.assert_array_equal(engine.embed("", ["a dog"])[0].vector, expected[0])


AUTHORIZATIONS = [
    (None, 401),
    ("Bearer secret2", 401),
    ("secret", 401),  # without a scheme
    ("Basic secret", 401),
    ("Bearer", 401),
    ("Bearer secret", 200),
    ("bearer  secret", 200),  # RFC 9110, 11.1 and 11.4
]


@pytest.mark.parametrize(("header", "status"), AUTHORIZATIONS)
def test_every_path_but_health_wants_the_key(engine, header, status):
    headers = {"Authorization": header} if header else {}
    with TestClient(Server(engine, api_key="secret").application()) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/metrics", headers=headers).status_code == status
        assert client.post("/v1/embeddings", json={"input": "a"}, headers=headers).status_code == status


def test_a_key_beyond_ascii(engine):
    with TestClient(Server(engine, api_key="schlüssel").application()) as client:
        assert client.get("/metrics", headers={"Authorization": "Bearer schlüssel".encode()}).status_code == 200


def test_limits_of_the_body_and_of_time(engine):
    with TestClient(Server(engine, Limits(body_bytes=100)).application()) as client:
        assert post(client, input="a" * 200).status_code == 413
    with TestClient(Server(engine, Limits(seconds=1e-4)).application()) as client:
        late = post(client, input=["a dog"] * 2000)
        assert late.status_code in (408, 503)


def test_what_is_counted(engine):
    with TestClient(Server(engine).application()) as client:
        post(client, input=TEXTS)
        post(client, input=3)
        shown = client.get("/metrics").text
    assert 'minisbert_requests_total{path="/v1/embeddings",status="200"} 1.0' in shown
    assert 'minisbert_requests_total{path="/v1/embeddings",status="400"} 1.0' in shown
    assert "minisbert_batch_texts_sum 3.0" in shown


@pytest.mark.parametrize("name", ["tiny-splade", "tiny-colbert"])
def test_models_without_one_dense_vector_for_each_text_are_refused(name):
    encoder = minisbert.load(ROOT / "tests" / "reference" / "architectures" / name)
    with pytest.raises(InputError, match="dense"):
        Engine(name, encoder)


def test_a_classifier_is_no_reranker(encoder):
    classifier = SimpleNamespace(task="classes")
    with pytest.raises(InputError, match="nli"):
        Engine("tiny", encoder, classifier, "nli")
