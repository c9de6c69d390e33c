"""The HTTP application, in the process: answers, refusals, and what it counts."""

import base64
import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the serve extra: pip install '.[serve]'")
try:
    from fastapi.testclient import TestClient
except RuntimeError as error:  # it needs httpx
    pytest.skip(str(error), allow_module_level=True)

import minisbert
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.serving.application import Server
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


def test_one_text(client):
    assert post(client, input="a dog").json() == post(client, input=["a dog"]).json()


def test_a_shortened_vector_has_length_one(client, encoder):
    found = post(client, input="a dog", dimensions=8).json()["data"][0]["embedding"]
    prefix = encoder.encode(["a dog"])[0, :8]
    np.testing.assert_allclose(found, prefix / np.linalg.norm(prefix), atol=2e-6, rtol=0)


def test_prompts_by_input_type(tiny):
    encoder = SentenceEncoder.load(
        tiny, prompts={"query": "query: ", "document": "a ", "other": "the "}
    )
    encoder.default_prompt_name = "other"
    with TestClient(Server(Engine("tiny", encoder)).application()) as client:
        for kind, prompt in (("query", "query: "), ("document", "a "), (None, "the ")):
            found = post(client, input="a dog", input_type=kind).json()["data"][0]["embedding"]
            np.testing.assert_allclose(
                found, encoder.encode(["a dog"], prompt=prompt)[0], atol=2e-6, rtol=0
            )


def test_a_cut_text_is_told_or_refused(client, engine):
    assert post(client, input=["a dog", LONG]).json()["truncated"] == [1]
    assert "truncated" not in post(client, input=["a dog"]).json()
    with TestClient(Server(engine, truncate="error").application()) as strict:
        refused = post(strict, input=["a dog", LONG])
    assert refused.status_code == 400
    assert "input 1" in refused.json()["error"]["message"]


DOCUMENTS = ["a cat", "the dog runs", "moon"]


# as their source has them: what each client sends beside query and documents
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
    found = answer["results"]
    assert [row["index"] for row in found] == order
    np.testing.assert_allclose(
        [row["relevance_score"] for row in found], expected[order], atol=2e-6, rtol=0
    )
    shown = [{"text": DOCUMENTS[i]} if options.get("return_documents") else None for i in order]
    assert [row.get("document") for row in found] == shown
    # [CLS] a dog [SEP] DOCUMENT [SEP]
    tokens = sum(
        len(ids) for ids in engine.reranker.tokenizer.encode_pairs(["a dog"] * 3, DOCUMENTS).ids
    )
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert answer["meta"] == {"tokens": {"input_tokens": tokens}}
    assert answer["model"] == "judge"


def test_documents_may_be_objects_with_a_text(client):
    objects = [{"text": text, "id": i} for i, text in enumerate(DOCUMENTS)]
    found = [
        post(client, "/v1/rerank", query="a dog", documents=given).json()["results"]
        for given in (DOCUMENTS, objects)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("task", ["logit", "binary"])
def test_scores_are_those_of_predict(engine, task):
    reranker = PairModel(engine.reranker.encoder, engine.reranker.head, task).eval()
    expected = reranker.predict([("a dog", text) for text in DOCUMENTS])
    results = Engine("tiny", engine.encoder, reranker, "judge").score("a dog", DOCUMENTS)
    np.testing.assert_allclose([each.value for each in results], expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (3, 3), (9, 3), (0, 3)])
def test_how_many_documents_come_back(client, count, rows):
    whole = post(client, "/rerank", query="a dog", documents=DOCUMENTS).json()["results"]
    found = post(client, "/rerank", query="a dog", documents=DOCUMENTS, top_n=count).json()[
        "results"
    ]
    assert found == whole[:rows]


CUT_RERANKING = [
    ("a dog", ["a cat", LONG, "moon"], [1]),
    (LONG, ["a cat", "moon"], [0, 1]),  # the query is the longer one
    # 16 tokens of [CLS] a dog [SEP] cat ... [SEP] are whole, 17 are not
    ("a dog", ["cat " * 11, "cat " * 12], [1]),
]


@pytest.mark.parametrize(("query", "documents", "cut"), CUT_RERANKING, ids=range(3))
def test_a_cut_document_is_told_or_refused(client, engine, query, documents, cut):
    assert post(client, "/v1/rerank", query=query, documents=documents).json()["truncated"] == cut
    assert "truncated" not in post(client, "/v1/rerank", query="a dog", documents=["a cat"]).json()
    with TestClient(Server(engine, truncate="error").application()) as strict:
        refused = post(strict, "/v1/rerank", query=query, documents=documents)
        assert post(strict, "/v1/rerank", query="a dog", documents=["a cat"]).status_code == 200
    assert refused.status_code == 400
    assert f"document {cut[0]}" in refused.json()["error"]["message"]


def test_a_head_that_reads_two_rows(tiny, encoder):
    own = SentenceEncoder.load(tiny)
    reranker = PairModel(own, siamese(own.width), "regression").eval()
    scored = Engine("tiny", encoder, reranker, "judge").score("a dog", ["a cat", LONG])
    expected = reranker.predict([("a dog", "a cat"), ("a dog", LONG)])
    np.testing.assert_allclose([each.value for each in scored], expected, atol=2e-6, rtol=0)
    assert [each.cut for each in scored] == [False, True]
    assert [each.tokens for each in scored] == [
        4 + 4,
        4 + 16,
    ]  # [CLS] a dog [SEP], [CLS] a cat [SEP], the limit


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


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [("/v1/embeddings", *case) for case in REFUSED]
    + [("/v1/rerank", *case) for case in RERANK_REFUSED],
    ids=range(len(REFUSED) + len(RERANK_REFUSED)),
)
def test_what_makes_no_sense_is_refused_in_openais_form(client, path, content, status, message):
    answer = client.post(
        path, content=json.dumps(content), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"[1]", b"\xff\xfe", b"[" * 10**5], ids=range(4))
def test_a_body_that_is_no_object_is_refused(client, body):
    answer = client.post(
        "/v1/embeddings", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400


def test_null_is_as_good_as_absent(client):
    nothing = dict.fromkeys(["encoding_format", "dimensions", "input_type", "user", "model"])
    assert post(client, input="a dog", **nothing).json() == post(client, input="a dog").json()


def test_a_path_that_there_is_not_and_a_method_that_it_does_not_have(client):
    answer = client.get("/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, None)
    for method, path, allowed in (("GET", "/v2/rerank", "POST"), ("DELETE", "/health", "GET")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)  # RFC 9110, 15.5.6
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_description_has_every_path_and_the_fields(client):
    found = client.get("/openapi.json").json()
    assert {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/models"} <= set(
        found["paths"]
    )
    assert "input_type" in found["components"]["schemas"]["EmbeddingRequest"]["properties"]
    assert client.get("/docs").headers["content-type"].startswith("text/html")


def test_models_and_a_server_without_a_reranker(client, encoder):
    rows = client.get("/v1/models").json()["data"]
    assert [row["id"] for row in rows] == ["tiny", "judge"]
    with TestClient(Server(Engine("owner/tiny", encoder)).application()) as plain:
        assert post(plain, "/v1/rerank", query="a", documents=["b"]).status_code == 404


def test_another_models_name_is_refused_as_openai_does_unless_any_will_do(client, engine):
    with TestClient(Server(engine, any_model=True).application()) as any_model:
        for path, content in (
            ("/v1/embeddings", {"input": "a", "model": "judge"}),  # which makes no vectors
            ("/v1/rerank", {"query": "a", "documents": ["b"], "model": "tiny"}),
        ):
            answer = client.post(path, json=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
            assert any_model.post(path, json=content).status_code == 200


def test_the_dtype_of_the_encoder(encoder):
    with pytest.raises(InputError, match="float16"):
        Engine("tiny", encoder, dtype="float16")
    engine = Engine("tiny", encoder, dtype="float32")
    engine.dtype = "bfloat16"  # afterwards: hardware without it refuses
    try:
        expected = encoder.encode(["a dog"], dtype="bfloat16")
    except InputError:
        pytest.skip("this CPU has no bfloat16")
    np.testing.assert_array_equal(engine.embed("", ["a dog"])[0].value, expected[0])


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
def test_every_path_but_health_and_docs_wants_the_key(engine, header, status):
    headers = {"Authorization": header.encode()} if header else {}
    with TestClient(Server(engine, api_key="schlüssel").application()) as client:
        for path in ("/health", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == status
        assert (
            client.post("/v1/embeddings", json={"input": "a"}, headers=headers).status_code
            == status
        )


def test_a_page_of_another_origin_may_ask_and_read_if_it_is_named(engine):
    page = {"Origin": "https://example.org"}
    asks = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for origins in ((), ("https://example.org",)):
        with TestClient(Server(engine, api_key="k", origins=origins).application()) as client:
            assert client.options("/v1/embeddings", headers=asks).is_success == bool(
                origins
            )  # without the key
            answer = client.post(
                "/v1/embeddings", json={"input": "a"}, headers=page | {"Authorization": "Bearer k"}
            )
            assert answer.headers.get("access-control-allow-origin") == (
                page["Origin"] if origins else None
            )


def test_only_the_first_wrong_item_is_an_error(client):
    """A million of them, 4 MB, would keep everybody waiting for minutes."""
    message = post(client, input=[{}] * 10).json()["error"]["message"]
    assert message.count("list[str]") == 1


def test_what_is_counted(engine, monkeypatch):
    """Also an answer that a bug prevents: status 500 is what one is alerted by."""
    server = Server(engine)
    with TestClient(server.application(), raise_server_exceptions=False) as client:
        post(client, input=TEXTS)
        post(client, input=3)
        monkeypatch.setattr(server, "check_texts", lambda *_: {}["a bug"])
        failed = post(client, input=TEXTS)
        shown = client.get("/metrics").text
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "server_error"
    for status in (200, 400, 500):
        assert f'minisbert_requests_total{{path="/v1/embeddings",status="{status}"}} 1.0' in shown
    assert 'minisbert_request_seconds_count{path="/v1/embeddings"} 3.0' in shown
    assert "minisbert_batch_texts_sum 3.0" in shown


def test_a_full_queue_says_when_to_come_back(engine):
    server = Server(engine, max_waiting=2)
    server.embeddings.waiting_items = 1
    with TestClient(server.application()) as client:
        answer = post(client, input=["a", "b"])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
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
