"""The HTTP application, in the process: answers, refusals, and what it counts."""

import asyncio
import base64
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the serve extra: pip install '.[serve]'")
try:
    from fastapi.testclient import TestClient
except RuntimeError as error:  # it needs httpx
    pytest.skip(str(error), allow_module_level=True)

from prometheus_client import generate_latest

import minisbert
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.serving.application import Server, has_more_values
from minisbert.serving.engine import Engine
from minisbert.serving.messages import (
    EmbeddingAnswer,
    ErrorAnswer,
    ModelCard,
    ModelList,
    RerankAnswer,
)
from tests.conftest import ROOT

TEXTS = ["the cat sits on the mat", "", "a dog"]
LONG = "cat " * 200
DOCUMENTS = ["a cat", "the dog runs", "moon"]


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


@pytest.fixture
def strict_client(engine):
    """A server that refuses what it would have to cut."""
    with TestClient(Server(engine, truncate="error").application()) as client:
        yield client


def post(client, path="/v1/embeddings", **content):
    return client.post(path, json=content)


def assert_close(numbers, expected):
    np.testing.assert_allclose(numbers, expected, atol=2e-6, rtol=0)


# -------------------------------------------------------------------------------------- embeddings


def test_vectors_are_those_of_encode(client, encoder):
    answer = post(client, input=TEXTS, model="tiny").json()
    assert answer["object"] == "list"
    assert answer["model"] == "tiny"
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    assert_close([row["embedding"] for row in answer["data"]], encoder.encode(TEXTS))


def test_vectors_as_base64(client, encoder):
    """OpenAI's client asks for it: it is shorter, and quicker to read."""
    answer = post(client, input=TEXTS, encoding_format="base64").json()
    vectors = []
    for row in answer["data"]:
        vectors.append(np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4"))
    assert_close(vectors, encoder.encode(TEXTS))


def test_tokens_are_counted(client, encoder):
    lengths = [len(ids) for ids in encoder.tokenizer.encode(TEXTS).ids]
    usage = post(client, input=TEXTS).json()["usage"]
    assert usage == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}


def test_one_text(client):
    assert post(client, input="a dog").json() == post(client, input=["a dog"]).json()


def test_a_shortened_vector_has_length_one(client, encoder):
    """As OpenAI's own: a user takes products for cosines."""
    vector = post(client, input="a dog", dimensions=8).json()["data"][0]["embedding"]
    prefix = encoder.encode(["a dog"])[0, :8]
    assert_close(vector, prefix / np.linalg.norm(prefix))


@pytest.mark.parametrize(
    ("input_type", "prompt"), [("query", "query: "), ("document", "a "), (None, "the ")]
)
def test_prompts_by_input_type(input_type, prompt, tiny):
    prompts = {"query": "query: ", "document": "a ", "other": "the "}
    encoder = SentenceEncoder.load(tiny, prompts=prompts, default_prompt_name="other")
    with TestClient(Server(Engine("tiny", encoder)).application()) as client:
        answer = post(client, input="a dog", input_type=input_type).json()
    expected = encoder.encode(["a dog"], prompt=prompt)[0]
    assert_close(answer["data"][0]["embedding"], expected)


def test_a_cut_text_is_told(client):
    assert post(client, input=["a dog", LONG]).json()["truncated"] == [1]
    assert "truncated" not in post(client, input=["a dog"]).json()


def test_a_text_that_would_be_cut_is_refused_if_the_server_says_so(strict_client):
    answer = post(strict_client, input=["a dog", LONG])
    assert answer.status_code == 400
    assert "input 1" in answer.json()["error"]["message"]


# --------------------------------------------------------------------------------------- reranking

# What each client sends beside query and documents, as its source has it.
CLIENTS = {
    "cohere, ClientV2 and langchain_cohere": (
        "/v2/rerank",
        {"top_n": 2, "max_tokens_per_doc": 4096},
    ),
    "cohere, Client": ("/v1/rerank", {"top_n": 2, "return_documents": True}),
    "litellm, hosted_vllm": ("/rerank", {"return_documents": True}),
    "jina, nothing but null": (
        "/v1/rerank",
        {"model": None, "top_n": None, "return_documents": None},
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_reranking_as_its_clients_ask_for_it(client, engine, name):
    path, options = CLIENTS[name]
    answer = post(client, path, query="a dog", documents=DOCUMENTS, **options).json()
    expected = engine.reranker.predict([("a dog", text) for text in DOCUMENTS])
    order = list(np.argsort(-expected))[: options.get("top_n")]
    results = answer["results"]
    assert [row["index"] for row in results] == order
    assert_close([row["relevance_score"] for row in results], expected[order])
    documents = [row.get("document") for row in results]
    if options.get("return_documents"):
        assert documents == [{"text": DOCUMENTS[i]} for i in order]
    else:
        assert documents == [None] * len(order)
    assert answer["model"] == "judge"


def test_tokens_of_reranking_are_counted(client, engine):
    """They are those of [CLS] a dog [SEP] DOCUMENT [SEP], for Jina's clients and for Cohere's."""
    answer = post(client, "/rerank", query="a dog", documents=DOCUMENTS).json()
    pairs = engine.reranker.tokenizer.encode_pairs(["a dog"] * 3, DOCUMENTS)
    tokens = sum(len(ids) for ids in pairs.ids)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"tokens": {"input_tokens": tokens}}


def test_documents_may_be_objects_with_a_text(client):
    """Cohere's clients send rows of a table as they are."""
    objects = [{"text": text, "id": i} for i, text in enumerate(DOCUMENTS)]
    from_texts = post(client, "/v1/rerank", query="a dog", documents=DOCUMENTS).json()
    from_objects = post(client, "/v1/rerank", query="a dog", documents=objects).json()
    assert from_texts["results"] == from_objects["results"]


@pytest.mark.parametrize("task", ["logit", "binary"])
def test_scores_are_those_of_predict(engine, task):
    reranker = PairModel(engine.reranker.encoder, engine.reranker.head, task).eval()
    expected = reranker.predict([("a dog", text) for text in DOCUMENTS])
    results = Engine("tiny", engine.encoder, reranker, "judge").score("a dog", DOCUMENTS)
    assert_close([result.value for result in results], expected)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (3, 3), (9, 3), (0, 3)])
def test_how_many_documents_come_back(client, count, rows):
    whole = post(client, "/rerank", query="a dog", documents=DOCUMENTS).json()
    answer = post(client, "/rerank", query="a dog", documents=DOCUMENTS, top_n=count).json()
    assert answer["results"] == whole["results"][:rows]


CUT_RERANKING = [
    ("a dog", ["a cat", LONG, "moon"], [1]),
    (LONG, ["a cat", "moon"], [0, 1]),  # the query is the longer one
    # 16 tokens of [CLS] a dog [SEP] cat ... [SEP] are not cut, 17 are.
    ("a dog", ["cat " * 11, "cat " * 12], [1]),
]


@pytest.mark.parametrize(("query", "documents", "cut"), CUT_RERANKING, ids=range(3))
def test_a_cut_document_is_told(client, query, documents, cut):
    answer = post(client, "/v1/rerank", query=query, documents=documents)
    assert answer.json()["truncated"] == cut


@pytest.mark.parametrize(("query", "documents", "cut"), CUT_RERANKING, ids=range(3))
def test_a_document_that_would_be_cut_is_refused_if_the_server_says_so(
    strict_client, query, documents, cut
):
    answer = post(strict_client, "/v1/rerank", query=query, documents=documents)
    assert answer.status_code == 400
    assert f"document {cut[0]}" in answer.json()["error"]["message"]


def test_a_document_that_is_not_cut(strict_client):
    answer = post(strict_client, "/v1/rerank", query="a dog", documents=["a cat"])
    assert answer.status_code == 200
    assert "truncated" not in answer.json()


def test_a_head_that_reads_two_rows(tiny, encoder):
    own = SentenceEncoder.load(tiny)
    reranker = PairModel(own, siamese(own.width), "regression").eval()
    scored = Engine("tiny", encoder, reranker, "judge").score("a dog", ["a cat", LONG])
    expected = reranker.predict([("a dog", "a cat"), ("a dog", LONG)])
    assert_close([result.value for result in scored], expected)
    assert [result.cut for result in scored] == [False, True]
    # [CLS] a dog [SEP] with [CLS] a cat [SEP], and with as many tokens as the limit allows.
    assert [result.tokens for result in scored] == [4 + 4, 4 + 16]


# ----------------------------------------------------------------------------------------- refused

REFUSED = [
    ({}, 400, "input"),
    ({"input": []}, 400, "empty"),
    ({"input": ["a", 1]}, 400, "1"),
    ({"input": [True]}, 400, "input"),
    ({"input": [5, 6], "model": "tiny"}, 400, "send texts"),
    ({"input": [[5, 6]], "model": "tiny"}, 400, "send texts"),
    ({"input": "\ud800"}, 400, "surrogate"),
    ({"input": "a", "dimensions": 0}, 400, "dimensions"),
    ({"input": "a", "dimensions": 25}, 400, "dimensions"),
    ({"input": "a", "dimensions": "8"}, 400, "dimensions"),
    ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
    ({"input": "a", "input_type": []}, 400, "input_type"),
    ({"input": "a", "truncate": "END"}, 400, "truncate"),
    ({"input": ["a"] * 2049}, 413, "2,048"),
    ({"input": ["a", "b" * 100_001]}, 413, "input[1]"),
    ({"input": ["a" * 2**16] * 2**6}, 413, "bytes"),
]
RERANK_REFUSED = [
    ({"query": "a"}, 400, "documents"),
    ({"query": 1, "documents": ["a"]}, 400, "query"),
    ({"query": "a", "documents": []}, 400, "documents"),
    ({"query": "a", "documents": "b"}, 400, "documents"),
    ({"query": "a", "documents": [{"title": "b"}]}, 400, "text"),
    ({"query": "a", "texts": ["b"]}, 400, "texts"),
    ({"query": "a", "documents": ["b"], "top_n": -1}, 400, "top_n"),
    ({"query": "a", "documents": ["b"], "raw_scores": True}, 400, "raw_scores"),
    ({"query": "a", "documents": ["b"], "return_documents": 1}, 400, "return_documents"),
    ({"query": "a" * 100_001, "documents": ["b"]}, 413, "query"),
    ({"query": "a", "documents": [{"text": "b" * 100_001}]}, 413, "documents[0]"),
]


JSON = {"Content-Type": "application/json"}
# Bodies of 4 MB that took seconds to parse or to check, while everybody else waited.
COSTLY = {
    "300,000 unknown keys": b'{"input": "a", %s}'
    % b", ".join(b'"%d":0' % i for i in range(300_000)),
    "a million lists": b'{"input": [%s]}' % b",".join([b"[]"] * 1_000_000),
    "a million objects": b'{"input": [%s]}' % b",".join([b"{}"] * 1_000_000),
    "600,000 keys of one object": b'{"a": {%s}}' % b",".join([b'"a":0'] * 600_000),
}


def assert_refused(answer, status, message):
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("content", "status", "message"), REFUSED, ids=range(len(REFUSED)))
def test_texts_that_make_no_sense_are_refused_in_openais_form(client, content, status, message):
    """Its clients show the message."""
    answer = client.post("/v1/embeddings", content=json.dumps(content), headers=JSON)
    assert_refused(answer, status, message)


@pytest.mark.parametrize(
    ("content", "status", "message"), RERANK_REFUSED, ids=range(len(RERANK_REFUSED))
)
def test_documents_that_make_no_sense_are_refused_in_openais_form(client, content, status, message):
    answer = client.post("/v1/rerank", content=json.dumps(content), headers=JSON)
    assert_refused(answer, status, message)


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff\xfe", b"[" * 10**4], ids=range(4))
def test_a_body_that_is_no_object_is_refused(client, body):
    answer = client.post("/v1/embeddings", content=body, headers=JSON)
    assert answer.status_code == 400


@pytest.mark.parametrize("name", COSTLY)
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(client, monkeypatch, name):
    """Parsing is what takes the time."""

    def parse(*_: object, **__: object) -> None:
        raise AssertionError("the body was parsed")

    body = COSTLY[name]
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", parse)
        answer = client.post("/v1/embeddings", content=body, headers=JSON)
    assert answer.status_code == 413
    assert "values" in answer.text


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'{"input": "a"}', 1),
        (b'{"input": ["a", "b", "c"]}', 4),
        (b'{"input": "a, b, [c], {d}"}', 1),
        (b'{"input": ["a \\" , \\\\", "b"]}', 3),
        (b'{"input": "never closed, ,', 1),
    ],
)
def test_values_are_counted_outside_of_strings(body, values):
    """A text full of commas is one value."""
    assert has_more_values(body, values - 1)
    assert not has_more_values(body, values)


def test_a_text_of_many_commas_is_accepted(client):
    """A table or a program as a text has more commas than a body may have values."""
    assert post(client, input=[", " * 40_000, ", " * 40_000]).status_code == 200


def test_a_body_in_utf_16_is_refused(client):
    """Its commas cannot be counted by bytes, and JSON is UTF-8 (RFC 8259, 8.1)."""
    body = json.dumps({"input": "a"}).encode("utf-16")
    assert_refused(client.post("/v1/embeddings", content=body, headers=JSON), 400, "UTF-8")


def test_many_unknown_fields_are_one_error(client):
    content = {"input": "a"}
    for i in range(60):
        content[f"field{i}"] = 0
    assert_refused(post(client, **content), 400, "61 fields")


def test_a_long_name_is_not_sent_back(client):
    """A client's log would be filled with what it sent."""
    answer = post(client, input="a", **{"k" * 100_000: 1})
    assert_refused(answer, 400, "kkk")
    assert len(answer.content) < 1000


def test_a_body_that_is_not_json_says_where(client):
    answer = client.post("/v1/embeddings", content=b'{"input": tru}', headers=JSON)
    assert_refused(answer, 400, "character 10")


def test_only_the_first_wrong_item_is_an_error(client):
    """A million of them, 4 MB, would keep everybody waiting for minutes."""
    message = post(client, input=[{}] * 10).json()["error"]["message"]
    assert message.count("list[str]") == 1


def test_null_is_as_good_as_absent(client):
    """Clients send null for what their user has not chosen."""
    answer = post(
        client,
        input="a dog",
        encoding_format=None,
        dimensions=None,
        input_type=None,
        user=None,
        model=None,
    )
    assert answer.json() == post(client, input="a dog").json()


# ------------------------------------------------------------------------------- paths and models


def test_a_path_that_there_is_not(client):
    """It has another code than a model that there is not."""
    answer = client.get("/")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] is None


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", "/v2/rerank", "POST"), ("DELETE", "/health", "GET")]
)
def test_a_method_that_a_path_does_not_have(client, method, path, allowed):
    """The answer says which it has (RFC 9110, 15.5.6)."""
    answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_description_has_every_path_and_the_fields(client):
    description = client.get("/openapi.json").json()
    paths = {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/models"}
    assert paths <= set(description["paths"])
    fields = description["components"]["schemas"]["EmbeddingRequest"]["properties"]
    assert "input_type" in fields


ANSWERS = [
    ("/v1/embeddings", {"input": ["a dog", LONG]}, EmbeddingAnswer),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}, EmbeddingAnswer),
    (
        "/v1/rerank",
        {"query": "a", "documents": ["b", LONG], "return_documents": True},
        RerankAnswer,
    ),
    ("/v2/rerank", {"query": "a", "documents": ["b"]}, RerankAnswer),
    ("/v1/models", None, ModelList),
    ("/v1/models/tiny", None, ModelCard),
    ("/v1/embeddings", {"input": 1}, ErrorAnswer),
]


@pytest.mark.parametrize(("path", "content", "model"), ANSWERS, ids=range(len(ANSWERS)))
def test_answers_are_as_described(client, path, content, model):
    """Clients are generated from the description."""
    description = client.get("/openapi.json").json()
    if content is None:
        answer = client.get(path)
        operation = description["paths"].get(path, description["paths"]["/v1/models/{name}"])["get"]
    else:
        answer = client.post(path, json=content)
        operation = description["paths"][path]["post"]
    status = "200" if answer.status_code == 200 else "default"
    schema = operation["responses"][status]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith(model.__name__)
    model.model_validate(answer.json())


def test_the_description_has_no_other_error(client):
    """FastAPI's own, 422, is never sent."""
    for path in client.get("/openapi.json").json()["paths"].values():
        for operation in path.values():
            assert set(operation["responses"]) == {"200", "default"}


def test_health_may_be_asked_for_without_its_body(client):
    """As some load balancers do."""
    answer = client.head("/health")
    assert answer.status_code == 200
    assert answer.content == b""


def test_the_page_of_the_description(client):
    assert client.get("/docs").headers["content-type"].startswith("text/html")


def test_the_models_are_listed(client):
    """OpenAI's clients choose from them."""
    rows = client.get("/v1/models").json()["data"]
    assert [row["id"] for row in rows] == ["tiny", "judge"]


@pytest.mark.parametrize("name", ["tiny", "judge"])
def test_one_model(client, name):
    """OpenAI's clients: ``models.retrieve``."""
    answer = client.get(f"/v1/models/{name}").json()
    assert answer == {"id": name, "object": "model", "created": 0, "owned_by": "minisbert"}


def test_one_model_that_there_is_not(client):
    answer = client.get("/v1/models/other")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_one_model_whose_name_has_a_slash(encoder):
    with TestClient(Server(Engine("owner/tiny", encoder)).application()) as client:
        assert client.get("/v1/models/owner/tiny").json()["id"] == "owner/tiny"
        assert client.get("/v1/models/owner%2Ftiny").json()["id"] == "owner/tiny"


@pytest.mark.parametrize(
    ("requested", "status"),
    [("runs/faq/tiny", 200), ("tiny", 200), ("faq/tiny", 404), ("runs/other/tiny", 404)],
)
def test_a_model_in_a_folder_is_also_called_by_the_folders_name(encoder, requested, status):
    """Whoever serves runs/faq/tiny guesses either; a path to elsewhere may be another model."""
    with TestClient(Server(Engine("runs/faq/tiny", encoder)).application()) as client:
        assert post(client, input="a", model=requested).status_code == status
        assert client.get(f"/v1/models/{requested}").status_code == status


def test_a_path_with_a_slash_too_many_leads_nowhere(client):
    """A redirect would go to the host that the client names, with the key."""
    answer = client.post("/v1/embeddings/", json={"input": "a"}, follow_redirects=False)
    assert answer.status_code == 404


def test_a_server_without_a_reranker(encoder):
    with TestClient(Server(Engine("owner/tiny", encoder)).application()) as client:
        assert post(client, "/v1/rerank", query="a", documents=["b"]).status_code == 404
        assert [row["id"] for row in client.get("/v1/models").json()["data"]] == ["owner/tiny"]


# Requests that name the other of the two models.
OTHER_MODELS = [
    ("/v1/embeddings", {"input": "a", "model": "judge"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"], "model": "tiny"}),
]


@pytest.mark.parametrize(("path", "content"), OTHER_MODELS)
def test_another_models_name_is_refused_as_openai_does(client, path, content):
    """Vectors of another model than the one that was asked for would go unnoticed."""
    answer = client.post(path, json=content)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "content"), OTHER_MODELS)
def test_any_models_name_will_do_if_the_server_says_so(engine, path, content):
    """Some programs have OpenAI's names built in."""
    with TestClient(Server(engine, any_model=True).application()) as client:
        assert client.post(path, json=content).status_code == 200


def test_a_dtype_that_no_encoder_has(encoder):
    with pytest.raises(InputError, match="float16"):
        Engine("tiny", encoder, dtype="float16")


def test_the_dtype_of_the_encoder(encoder):
    engine = Engine("tiny", encoder, dtype="float32")
    engine.dtype = "bfloat16"  # set afterwards, since hardware without it refuses
    try:
        expected = encoder.encode(["a dog"], dtype="bfloat16")
    except InputError:
        pytest.skip("this CPU has no bfloat16")
    np.testing.assert_array_equal(engine.embed("", ["a dog"])[0].value, expected[0])


# ---------------------------------------------------------------------------- keys and web pages

AUTHORIZATIONS = [
    (None, 401),
    ("Bearer secret", 401),
    ("schlüssel", 401),  # without a scheme
    ("Basic schlüssel", 401),
    ("Bearer", 401),
    ("Bearer schlüssel", 200),
    ("bearer  schlüssel", 200),  # RFC 9110, 11.1 and 11.4
]


@pytest.mark.parametrize(("header", "status"), AUTHORIZATIONS)
def test_every_other_path_wants_the_key(engine, header, status):
    headers = {}
    if header is not None:
        headers["Authorization"] = header.encode()
    with TestClient(Server(engine, api_key="schlüssel").application()) as client:
        assert client.get("/metrics", headers=headers).status_code == status
        answer = client.post("/v1/embeddings", json={"input": "a"}, headers=headers)
        assert answer.status_code == status


@pytest.mark.parametrize("host", ["x/health?", "x/docs", "x#", "[::1]/..", "x:80/health?a="])
def test_a_host_does_not_open_a_path(engine, host):
    """The URL begins with the client's Host header; the path that is asked for is not in it."""
    with TestClient(Server(engine, api_key="k").application()) as client:
        assert client.get("/metrics", headers={"Host": host}).status_code == 401


def test_the_key_is_asked_for_by_the_path_that_is_routed(engine, monkeypatch):
    """With older releases of Starlette the URL's path is another one."""
    monkeypatch.setattr("starlette.requests.HTTPConnection.url", SimpleNamespace(path="/health"))
    with TestClient(Server(engine, api_key="k").application()) as client:
        assert client.get("/metrics").status_code == 401


@pytest.mark.parametrize("path", ["/health", "/docs", "/openapi.json"])
def test_health_and_docs_want_no_key(engine, path):
    """A probe has none, nor has a browser."""
    with TestClient(Server(engine, api_key="schlüssel").application()) as client:
        assert client.get(path).status_code == 200


PAGE = "https://example.org"


@pytest.mark.parametrize(("origins", "allowed"), [((), False), ((PAGE,), True)])
def test_a_page_of_another_origin_may_ask_if_it_is_named(engine, origins, allowed):
    """A browser asks without the key whether it may send one."""
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    with TestClient(Server(engine, api_key="k", origins=origins).application()) as client:
        assert client.options("/v1/embeddings", headers=headers).is_success == allowed


@pytest.mark.parametrize(("origins", "header"), [((), None), ((PAGE,), PAGE)])
def test_a_page_of_another_origin_may_read_if_it_is_named(engine, origins, header):
    headers = {"Origin": PAGE, "Authorization": "Bearer k"}
    with TestClient(Server(engine, api_key="k", origins=origins).application()) as client:
        answer = client.post("/v1/embeddings", json={"input": "a"}, headers=headers)
    assert answer.headers.get("access-control-allow-origin") == header


# ------------------------------------------------------------- metrics, the queue, models refused


def test_what_is_counted(engine):
    server = Server(engine)
    with TestClient(server.application()) as client:
        post(client, input=TEXTS)
        post(client, input=3)
        metrics = client.get("/metrics").text
    for status in (200, 400):
        assert f'minisbert_requests_total{{path="/v1/embeddings",status="{status}"}} 1.0' in metrics
    assert 'minisbert_request_seconds_count{path="/v1/embeddings"} 2.0' in metrics
    assert "minisbert_batch_texts_sum 3.0" in metrics


def test_an_answer_that_a_bug_prevents_is_counted(engine, monkeypatch):
    """Status 500 is what one is alerted by."""

    def bug(*_: object) -> None:
        raise KeyError("a bug")

    server = Server(engine)
    monkeypatch.setattr(server, "check_request_texts", bug)
    with TestClient(server.application(), raise_server_exceptions=False) as client:
        answer = post(client, input=TEXTS)
        metrics = client.get("/metrics").text
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert 'minisbert_requests_total{path="/v1/embeddings",status="500"} 1.0' in metrics


def request_scope(body: bytes) -> dict:
    """A request as ASGI has it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/embeddings",
        "raw_path": b"/v1/embeddings",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
    }


def test_a_client_that_hung_up_is_not_computed_for(engine, monkeypatch):
    """It has left after its first texts were computed; the others would be for nobody."""
    computed = []
    gone = asyncio.Event()
    body = json.dumps({"input": [f"text {i}" for i in range(1000)]}).encode()
    sent = []

    async def scenario():
        loop = asyncio.get_running_loop()
        embed = engine.embed

        def embed_and_hang_up(prompt, texts):
            computed.extend(texts)
            loop.call_soon_threadsafe(gone.set)
            time.sleep(0.05)
            return embed(prompt, texts)

        monkeypatch.setattr(engine, "embed", embed_and_hang_up)
        server = Server(engine)
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await server.application()(request_scope(body), receive, send)
        await asyncio.sleep(0.3)
        return server.waiting_texts(), generate_latest(server.counts.registry).decode()

    waiting, metrics = asyncio.run(scenario())
    assert 0 < len(computed) < 200
    assert sent == []
    assert waiting == 0
    assert 'status="499"' in metrics


def test_a_full_queue_says_when_to_come_back(engine):
    server = Server(engine, max_waiting=2)
    server.embedding_queue.waiting_items = 1
    with TestClient(server.application()) as client:
        answer = post(client, input=["a", "b"])
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("name", ["tiny-splade", "tiny-colbert"])
def test_models_without_one_dense_vector_for_each_text_are_refused(name):
    encoder = minisbert.load(ROOT / "tests" / "reference" / "architectures" / name)
    with pytest.raises(InputError, match="dense"):
        Engine(name, encoder)


def test_a_classifier_is_no_reranker(encoder):
    classifier = SimpleNamespace(task="classes")
    with pytest.raises(InputError, match="nli"):
        Engine("tiny", encoder, classifier, "nli")
