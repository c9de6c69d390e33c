"""Speak HTTP with FastAPI: embeddings as OpenAI has them, reranking as Cohere and Jina have it.

``messages.py`` says what requests and answers hold, ``batcher.py`` queues what they ask for, and
``engine.py`` computes it. Errors have OpenAI's form.
"""

import asyncio
import base64
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as AnyHTTPException

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.serving.batcher import Batcher, Busy
from minisbert.serving.engine import Engine, Result
from minisbert.serving.messages import (
    Document,
    EmbeddingAnswer,
    EmbeddingRequest,
    ErrorAnswer,
    ModelCard,
    ModelList,
    RerankAnswer,
    RerankRequest,
)

# An ASGI application, and what it is called with (https://asgi.readthedocs.io).
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# OpenAI's names of errors by status. All others, 404 too, are "invalid_request_error".
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
# A larger body is refused.
MOST_BODY_BYTES = 2**22
# A body with more values in its JSON is refused, too: while Python makes objects of them all other
# requests wait, some 20 ms for so many, half a second for as many as fit into the bytes.
MOST_VALUES = 50_000
OTHER_VALUES = 20  # of a body beside its texts: the fields of a request
# A token has about so many characters in English. Longer texts are cut to the model's limit.
TOKEN_CHARACTERS = 5
# A string of JSON, or one that does not end. The ``+`` of ``*+`` forbids to try a match again with
# fewer characters, which would take a time that is quadratic in the body's length.
JSON_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# These paths need no key: a probe has none, nor has a browser.
OPEN_PATHS = ("/health", "/docs", "/openapi.json")


class Metrics:
    """What Prometheus reads of one server. ``waiting_texts`` counts the texts in the queues."""

    def __init__(self, waiting_texts: Callable[[], float]):
        # This is not the process's registry, in which a second server's names would clash.
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter(
            "requests", "Requests by path and status.", ("path", "status"), **options
        )
        self.seconds = Histogram(
            "request_seconds", "Seconds from request to answer.", ("path",), **options
        )
        self.tokens = Counter("tokens", "Tokens read, special ones included.", **options)
        self.batch_texts = Histogram(
            "batch_texts",
            "Texts computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            **options,
        )
        waiting = Gauge("waiting_texts", "Texts that wait.", **options)
        waiting.set_function(waiting_texts)


@dataclass
class Server:
    """The routes, and what they share.

    engine          what computes
    api_key         the bearer token that every request must carry, but for ``OPEN_PATHS``; "" for
                    none
    truncate        "cut": a text beyond the model's limit is cut, and the answer says so; "error":
                    it is refused
    any_model       whether a request may name another model than the one that answers
    origins         web pages whose scripts may read answers, "https://example.org", or "*" for all
    max_texts       in a request
    max_characters  in a text: a tokenizer that reads a text whole takes .1 to .4 s for so many, in
                    which all others wait
    max_waiting     texts in each queue
    """

    engine: Engine
    api_key: str = ""
    truncate: str = "cut"
    any_model: bool = False
    origins: Sequence[str] = ()
    max_texts: int = 2048
    max_characters: int = 100_000
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        self.counts = Metrics(self.waiting_texts)
        # One thread for both queues: at the same time, encoder and reranker would fight for the
        # same cores.
        thread = ThreadPoolExecutor(1)
        self.embedding_queue = Batcher(
            self.engine.embed,
            thread,
            read_characters=TOKEN_CHARACTERS * self.engine.encoder.tokenizer.limit,
            most_items=self.max_waiting,
            on_batch=self.counts.batch_texts.observe,
        )
        # The reranker's tokenizer reads documents whole before it cuts them, so that their length
        # counts in full.
        self.score_queue = Batcher(
            self.engine.score,
            thread,
            most_items=self.max_waiting,
            on_batch=self.counts.batch_texts.observe,
        )

    def waiting_texts(self) -> int:
        """Count the texts and documents in both queues."""
        return self.embedding_queue.waiting_items + self.score_queue.waiting_items

    def application(self) -> FastAPI:
        """Build the ASGI application."""
        # The dependency refuses nothing: it gives the page of /docs its field for the key.
        bearer = [Depends(HTTPBearer(auto_error=False))]
        app = FastAPI(
            title="minisbert serve",
            version=__version__,
            redoc_url=None,
            # Starlette would send a client that adds a slash to the address in its Host header.
            redirect_slashes=False,
            dependencies=bearer,
            responses={"default": {"model": ErrorAnswer, "description": "an error"}},
        )

        app.add_api_route(
            "/v1/embeddings", self.embed, methods=["POST"], response_model=EmbeddingAnswer
        )
        # The paths are those of Cohere's first API and Jina's, of Cohere's second, and of vLLM.
        for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
            app.add_api_route(path, self.rerank, methods=["POST"], response_model=RerankAnswer)
        app.add_api_route("/v1/models", self.models, response_model=ModelList)
        # A name may have a slash: owner/model.
        app.add_api_route("/v1/models/{name:path}", self.model, response_model=ModelCard)
        app.add_api_route("/health", health, response_class=PlainTextResponse)
        # Some probes ask without wanting the body. (FastAPI's description cannot have both.)
        app.add_api_route("/health", health, methods=["HEAD"], include_in_schema=False)
        app.add_api_route("/metrics", self.metrics, response_class=PlainTextResponse)

        # What is added last sees a request first. CORS must come before the key: a browser asks,
        # without the key, whether it may send one.
        app.add_middleware(self.read_body)
        app.add_middleware(self.check_key_and_count)
        if self.origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )

        # Starlette's own error of unknown paths and methods is the parent of FastAPI's.
        app.add_exception_handler(AnyHTTPException, http_error)
        app.add_exception_handler(RequestValidationError, invalid_request)
        app.add_exception_handler(InputError, bad_input)
        app.add_exception_handler(Busy, full_queue)
        app.add_exception_handler(Exception, internal_error)
        return app

    def check_key_and_count(self, app: Application) -> Application:
        """Wrap an application: check the key before the body is read, and count the answers."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)

            start = time.perf_counter()
            status = 499  # as nginx counts a client that hung up before its answer

            async def send_and_note(message: MutableMapping[str, Any]) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            try:
                if self.may_ask(scope):
                    await app(scope, receive, send_and_note)
                else:
                    response = refusal(
                        401, "the API key is missing or wrong: send Authorization: Bearer KEY"
                    )
                    await response(scope, receive, send_and_note)
            except Exception:
                status = 500  # a bug, which Starlette answers outside of this function
                raise
            finally:
                # The route's path, not the request's: clients could make up paths without end.
                path = getattr(scope.get("route"), "path", "")
                self.counts.requests.labels(path, status).inc()
                self.counts.seconds.labels(path).observe(time.perf_counter() - start)

        return answer

    def may_ask(self, scope: Scope) -> bool:
        """Say whether a request carries the key as a bearer token, or needs none."""
        # subtle: not ``request.url.path``. The URL begins with the Host header, so a client could
        # write that path: "Host: x/health?".
        if not self.api_key or scope["path"] in OPEN_PATHS:
            return True
        # The header's bytes, which Starlette reads as Latin-1.
        header = Headers(scope=scope).get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer":  # schemes ignore case (RFC 9110, 11.1)
            return False
        # This comparison takes equally long for every wrong token.
        return hmac.compare_digest(token.strip(), self.api_key.encode())

    def read_body(self, app: Application) -> Application:
        """Wrap an application: it gets bodies whole, and is cancelled if the client hangs up."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            try:
                body = await whole_body(receive)
                if body is None:
                    return None
                self.check_body(body)
            except HTTPException as error:
                return await refusal(error.status_code, error.detail)(scope, receive, send)
            return await answer_unless_hung_up(app, scope, body, receive, send)

        return answer

    def check_body(self, body: bytes) -> None:
        """Refuse, before it is parsed, a body that would keep all others waiting meanwhile."""
        # subtle: UTF-16, which Python would read too, has commas where its bytes have none
        if b"\0" in body:
            raise HTTPException(400, "the body is not JSON in UTF-8")
        # A document may be an object that holds a text; a few values more are the other fields.
        most_values = max(MOST_VALUES, 2 * self.max_texts + OTHER_VALUES)
        if has_more_values(body, most_values):
            raise HTTPException(413, f"a body has at most {most_values:,} values in its JSON")

    async def embed(self, request: EmbeddingRequest) -> Response:
        """A text or texts -> vectors."""
        self.check_model(request.model, self.engine.name)
        inputs = request.input
        if isinstance(inputs, str):
            inputs = [inputs]
        self.check_request_texts("input", inputs)
        width = self.engine.encoder.get_embedding_dimension()
        columns = request.dimensions or width
        if columns > width:
            raise HTTPException(400, f"dimensions: the model's vectors have {width}")

        # The prompt is the batch's key: texts with different prompts are not computed together.
        prompt = self.engine.prompt(request.input_type)
        results = await self.embedding_queue.submit(prompt, inputs)
        usage = self.count_tokens(results)
        cut = cut_texts(results)
        if cut and self.truncate == "error":
            raise too_long(f"input {cut[0]}", self.engine.encoder.tokenizer.limit)

        vectors = np.stack([result.value for result in results])  # (N, D)
        if columns < width:  # scaled to length 1 again, as OpenAI does (Matryoshka embeddings)
            vectors = normalize(torch.from_numpy(vectors[:, :columns])).numpy()
        as_base64 = request.encoding_format == "base64"
        content = {
            "object": "list",
            "data": await embedding_rows(vectors, as_base64),
            "model": self.engine.name,
            "usage": usage,
        }
        if cut:
            content["truncated"] = cut
        return json_response(content)

    async def rerank(self, request: RerankRequest) -> Response:
        """A query and documents -> their numbers and scores, best first."""
        if self.engine.reranker is None:
            raise HTTPException(404, "there is no reranker: start the server with --reranker MODEL")
        self.check_model(request.model, self.engine.reranker_name)
        documents = []
        for document in request.documents:
            if isinstance(document, Document):
                document = document.text
            documents.append(document)
        self.check_request_texts("query", [request.query])
        self.check_request_texts("documents", documents)

        scored = await self.score_queue.submit(request.query, documents)
        usage = self.count_tokens(scored)
        cut = cut_texts(scored)
        if cut and self.truncate == "error":
            limit = self.engine.reranker.tokenizer.limit
            raise too_long(f"document {cut[0]} with the query", limit)

        # The sort is stable: of equal scores, the first document comes first.
        order = sorted(range(len(scored)), key=lambda row: -scored[row].value)
        if request.top_n:
            order = order[: request.top_n]
        results = []
        for row in order:
            result: dict[str, Any] = {"index": row, "relevance_score": scored[row].value}
            if request.return_documents:
                result["document"] = {"text": documents[row]}
            results.append(result)
        content: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "object": "list",
            "model": self.engine.reranker_name,
            "results": results,
            # Jina's clients look for the tokens in usage, Cohere's in meta.
            "usage": usage,
            "meta": {"tokens": {"input_tokens": usage["prompt_tokens"]}},
        }
        if cut:
            content["truncated"] = cut
        return json_response(content)

    def check_model(self, requested: str | None, name: str) -> None:
        """Raise ``HTTPException`` if a request names another model, as OpenAI's own server does."""
        if requested is None or self.any_model:
            return
        if not is_called(requested, name):
            raise HTTPException(
                404,
                f"the model {one_line(requested)} does not exist, this is {name}: see GET "
                f"/v1/models",
            )

    def check_request_texts(self, name: str, texts: Sequence[str]) -> None:
        """Refuse no texts, too many of them, and one that is too long or not valid Unicode."""
        if not texts:
            raise HTTPException(400, f"{name} is empty")
        if len(texts) > self.max_texts:
            raise HTTPException(
                413, f"{name} has {len(texts):,} texts, at most {self.max_texts:,} are accepted"
            )
        for i, text in enumerate(texts):
            if len(text) > self.max_characters:
                raise HTTPException(
                    413,
                    f"{name}[{i}] has {len(text):,} characters, at most {self.max_characters:,} "
                    f"are accepted: split it",
                )
            check_texts([text], i)  # here, where a bad text is in no batch that others share

    def count_tokens(self, results: Sequence[Result]) -> dict[str, int]:
        """Return the number of tokens as an answer's ``usage``, and note it for Prometheus."""
        tokens = sum(result.tokens for result in results)
        self.counts.tokens.inc(tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    async def models(self) -> Response:
        """The encoder and the reranker, as OpenAI's clients expect them."""
        return json_response({"object": "list", "data": self.model_cards()})

    async def model(self, name: str) -> Response:
        """One of the two."""
        for card in self.model_cards():
            if is_called(name, card["id"]):
                return json_response(card)
        raise HTTPException(404, f"the model {one_line(name)} does not exist: see GET /v1/models")

    def model_cards(self) -> list[dict[str, Any]]:
        """Describe the models that answer."""
        cards = []
        for name in (self.engine.name, self.engine.reranker_name):
            if name:
                cards.append({"id": name, "object": "model", "created": 0, "owned_by": "minisbert"})
        return cards

    async def metrics(self) -> Response:
        """What was counted, in Prometheus' format."""
        return Response(
            generate_latest(self.counts.registry), media_type="text/plain; version=0.0.4"
        )


def is_called(requested: str, name: str) -> bool:
    """Whether a client means the model of this name: it may leave out folders and the owner.

    "runs/faq/model" is also called "model".
    """
    return requested in (name, Path(name).name)


def cut_texts(results: Sequence[Result]) -> list[int]:
    """Return the numbers of the texts that were longer than the model's limit."""
    return [i for i, result in enumerate(results) if result.cut]


def too_long(text: str, limit: int) -> HTTPException:
    """Make the error for a text that may not be cut; ``text`` says which one.

    That is known only after it was computed: the tokenizer, which runs in the other thread, cuts.
    """
    return HTTPException(400, f"{text} has more than {limit} tokens")


async def health() -> str:
    return "ok\n"


async def whole_body(receive: Receive) -> bytes | None:
    """Return a request's body, or None if the client hung up before its end.

    One of more than ``MOST_BODY_BYTES`` is refused while it arrives, chunked or not.
    """
    body = bytearray()
    unread = True
    while unread:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        unread = message.get("more_body", False)
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(
                413, f"a body has at most {MOST_BODY_BYTES:,} bytes: send fewer texts at a time"
            )
    return bytes(body)


def has_more_values(body: bytes, limit: int) -> bool:
    """Say, without parsing it, whether a body in JSON has more values than ``limit``.

    A value has a comma or an opening bracket before it; the first of all is not counted. Those in
    strings do not count: ``has_more_values(b'["a, b, c"]', 2)`` is False.
    """
    if count_separators(body) <= limit:  # even with those in strings; most requests end here
        return False
    without_strings, strings = JSON_STRING.subn(b"", body, count=2 * limit + 1)
    if strings > 2 * limit:  # a value may have a key
        return True
    return count_separators(without_strings) > limit


def count_separators(body: bytes) -> int:
    """Count the commas and the opening brackets."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


async def answer_unless_hung_up(
    app: Application, scope: Scope, body: bytes, receive: Receive, send: Send
) -> None:
    """Run an application on a request that was read, and cancel it if the client hangs up.

    FastAPI would go on, and compute what nobody reads.
    """
    was_received = False
    hung_up = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    async def receive_body() -> MutableMapping[str, Any]:
        nonlocal was_received
        if not was_received:
            was_received = True
            return {"type": "http.request", "body": body, "more_body": False}
        await hung_up.wait()
        return {"type": "http.disconnect"}

    async def cancel_if_hung_up() -> None:
        await receive()  # after the body, nothing else can arrive
        hung_up.set()
        task.cancel()

    watcher = asyncio.create_task(cancel_if_hung_up())
    try:
        await app(scope, receive_body, send)
    except asyncio.CancelledError:
        if not hung_up.is_set():  # the server is stopping, and has waited long enough
            await refusal(503, "the server was stopped")(scope, receive, send)
    finally:
        watcher.cancel()


async def embedding_rows(vectors: np.ndarray, as_base64: bool) -> orjson.Fragment:
    """The vectors (N, D) as OpenAI's list, in JSON.

    A large answer has millions of digits. They are written 64 vectors at a time, so that other
    requests have their turn.
    """
    parts = []
    for start in range(0, len(vectors), 64):
        rows = []
        for i, vector in enumerate(vectors[start : start + 64], start):
            embedding: Any = vector
            if as_base64:
                embedding = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            rows.append({"object": "embedding", "index": i, "embedding": embedding})
        part = orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)
        parts.append(part[1:-1])  # without the brackets
        await asyncio.sleep(0)
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer in JSON.

    A number of an array has as many digits as float32 needs, and does not become a Python object.
    """
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


# ------------------------------------------------------------------------------------------ errors


def refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> Response:
    """Answer an error in OpenAI's form."""
    error = {
        "message": message,
        "type": ERROR_TYPES.get(status, "invalid_request_error"),
        "param": None,
        "code": code,
    }
    return json_response({"error": error}, status, headers)


async def http_error(request: Request, error: Any) -> Response:
    """Answer what the routes refuse.

    Also 404 for an unknown path, and 405 for another method of a known one.
    """
    code = None
    # There is a route, so it is not the path that was not found.
    if error.status_code == 404 and "route" in request.scope:
        code = "model_not_found"
    message = f"{request.method} {shortened(request.scope['path'])}: {error.detail}"
    return refusal(error.status_code, message, error.headers, code)


def shortened(text: str) -> str:
    """A client's text for a message: as it is, or quoted and cut if it is long or odd."""
    if len(text) <= 80 and text.isprintable():
        return text
    return one_line(text)


async def invalid_request(request: Request, error: Any) -> Response:
    """Answer what the models of requests refuse: where it is, and what was expected."""
    problems = []
    # A few tell enough. "input" may be a text or texts: a wrong one has an error for either.
    for problem in error.errors()[:4]:
        parts = [shortened(str(part)) for part in problem["loc"][1:]]
        place = ".".join(parts)
        expected = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "json_invalid":
            place = f"the body is not JSON at character {place}"
            expected = problem["ctx"]["error"]
        elif not place:
            place = "the body, a JSON object sent as application/json"
        problems.append(f"{place}: {expected}")
    return refusal(400, "; ".join(problems))


async def bad_input(request: Request, error: Any) -> Response:
    """Answer what the engine refuses."""
    return refusal(400, str(error))


async def full_queue(request: Request, error: Any) -> Response:
    """Answer when to come back."""
    return refusal(429, str(error), {"Retry-After": str(error.seconds)})


async def internal_error(request: Request, error: Any) -> Response:
    """Answer after a bug: the log has the traceback, the answer has none."""
    return refusal(500, "internal error")
