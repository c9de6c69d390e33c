"""The HTTP application: OpenAI's embeddings, reranking, health and metrics, over Starlette."""

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from minisbert.core import InputError
from minisbert.serving.batcher import Batcher, Busy
from minisbert.serving.engine import Embedded, Engine

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # the histogram's bounds, in texts


@dataclass(frozen=True)
class Limits:
    """What the server accepts. ``seconds`` bounds the arrival of a body, and again the wait for its answer."""

    body_bytes: int = 4 * 2**20
    texts: int = 2048
    waiting_texts: int = 4096
    batch_texts: int = 64
    seconds: float = 60.0


class Refusal(Exception):
    """An answer other than 200: its status, a message, and headers."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", **headers: str):
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers

    def response(self) -> JSONResponse:
        """The error in OpenAI's form."""
        error = {"message": str(self), "type": self.kind, "param": None, "code": None}
        return JSONResponse({"error": error}, self.status, self.headers)


class Server:
    """The routes, and what they share.

    engine       computes
    api_key      the bearer token that every request but /health must carry; "" for none
    truncate     what happens to a text beyond the model's limit: "cut" says so in the answer, "error" refuses
    """

    def __init__(self, engine: Engine, limits: Limits | None = None, api_key: str = "", truncate: str = "cut"):
        self.engine = engine
        self.limits = limits or Limits()
        self.api_key = api_key.encode()
        self.truncate = truncate
        thread = ThreadPoolExecutor(1)
        sizes = (self.limits.batch_texts, self.limits.waiting_texts)
        self.embeddings = Batcher(engine.embed, thread, *sizes)
        self.scores = Batcher(engine.score, thread, *sizes)
        self.metrics = Metrics(self)

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self.route("POST", "/v1/embeddings", self.embed),
            self.route("POST", "/v1/rerank", self.rerank),
            self.route("GET", "/v1/models", self.models),
            self.route("GET", "/metrics", self.measurements),
            Route("/health", self.health),
        ]
        return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found, 500: failed})

    def route(self, method: str, path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        """A route that checks the key, turns errors into answers, and is counted."""

        async def endpoint(request: Request) -> Response:
            with self.metrics.seconds.labels(path).time():
                try:
                    self.check_key(request)
                    response = await answer(request)
                except Refusal as refusal:
                    response = refusal.response()
                except InputError as error:
                    response = Refusal(400, str(error)).response()
                except Busy as busy:
                    retry = {"Retry-After": str(busy.seconds)}
                    response = Refusal(429, str(busy), "rate_limit_error", **retry).response()
                except TimeoutError:
                    response = Refusal(503, f"no answer in {self.limits.seconds:g} s", "server_error").response()
            self.metrics.requests.labels(path, response.status_code).inc()
            return response

        return Route(path, endpoint, methods=[method])

    def check_key(self, request: Request) -> None:
        """Raise ``Refusal`` without the right bearer token; the comparison takes the same time for any wrong one."""
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self.api_key and not hmac.compare_digest(given, self.api_key):
            raise Refusal(401, "the API key is missing or wrong", "authentication_error")

    async def body(self, request: Request) -> dict[str, Any]:
        """The JSON object of a request. Raises ``Refusal`` if it is too large, too slow, or not an object."""
        received = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for chunk in request.stream():
                    received += chunk
                    if len(received) > self.limits.body_bytes:
                        raise Refusal(413, f"the body is larger than {self.limits.body_bytes:,} bytes")
        except ClientDisconnect:
            raise Refusal(400, "the client has gone") from None
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive in {self.limits.seconds:g} s") from None
        try:
            content = json.loads(received)
        except (ValueError, RecursionError):
            raise Refusal(400, "the body is not JSON") from None
        if not isinstance(content, dict):
            raise Refusal(400, "the body is not a JSON object")
        return content

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings: a text, texts, token ids or lists of them -> vectors."""
        content = await self.body(request)
        inputs = self.inputs(content.get("input"))
        encoding = one_of(content, "encoding_format", ("float", "base64"))
        prompt = self.engine.prompt(one_of(content, "input_type", (None, "query", "document")))
        columns = self.columns(content.get("dimensions"))
        async with asyncio.timeout(self.limits.seconds):
            embedded: list[Embedded] = await self.embeddings.submit(prompt, inputs)
        cut = [i for i, each in enumerate(embedded) if each.cut]
        if cut and self.truncate == "error":
            raise Refusal(400, f"input {cut[0]} has more than {self.engine.encoder.tokenizer.limit} tokens")
        tokens = sum(each.tokens for each in embedded)
        self.metrics.tokens.inc(tokens)
        data = []
        for i, each in enumerate(embedded):
            data.append({"object": "embedding", "index": i, "embedding": self.encoded(each, columns, encoding)})
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": data, "model": self.engine.name, "usage": usage}
        if not cut:
            return JSONResponse(answer)
        return JSONResponse(answer | {"truncated": cut}, headers={"X-Truncated": ",".join(map(str, cut[:100]))})

    def inputs(self, given: Any) -> list[str | list[int]]:
        """The ``input`` of a request as a list. Raises ``Refusal`` or ``InputError``."""
        if isinstance(given, str) or (isinstance(given, list) and given and all(type(x) is int for x in given)):
            given = [given]
        if not isinstance(given, list) or not given:
            raise Refusal(400, "input is not a text, a list of texts, token ids, or a list of lists of token ids")
        self.check_count("input", given)
        for i, each in enumerate(given):
            ids = isinstance(each, list) and all(type(x) is int for x in each)
            if not isinstance(each, str) and not ids:
                raise Refusal(400, f"input[{i}] is neither a text nor a list of token ids")
            self.engine.check(i, each)
        return given

    def check_count(self, name: str, given: list[Any]) -> None:
        """Raise ``Refusal`` for more texts than a request may have."""
        if len(given) > self.limits.texts:
            raise Refusal(413, f"{name} has {len(given):,} texts, at most {self.limits.texts:,} are accepted")

    def columns(self, given: Any) -> int:
        """``dimensions`` of a request: how many columns of each vector to return."""
        width = self.engine.width
        if given is None:
            return width
        if type(given) is not int or given not in range(1, width + 1):
            raise Refusal(400, f"dimensions is not an integer from 1 to {width}")
        return given

    def encoded(self, embedded: Embedded, columns: int, encoding: str) -> str | list[float]:
        """A vector as JSON: numbers, or base64 of little-endian float32. A shortened one has length 1 again."""
        vector = embedded.vector
        if columns < len(vector):
            vector = self.engine.shortened(vector, columns)
        if encoding == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: a query and documents -> the documents' numbers and scores, best first."""
        content = await self.body(request)
        query, given = content.get("query"), content.get("documents")
        if self.engine.reranker is None:
            raise Refusal(404, "there is no reranker: start the server with --reranker MODEL", "not_found_error")
        if not isinstance(query, str) or not isinstance(given, list) or not given:
            raise Refusal(400, "a reranking request has a query, which is a text, and documents, a list of texts")
        self.check_count("documents", given)
        documents = [each.get("text") if isinstance(each, dict) else each for each in given]
        self.engine.check(0, query)
        for i, text in enumerate(documents):
            if not isinstance(text, str):
                raise Refusal(400, f"documents[{i}] is neither a text nor an object with a text")
            self.engine.check(i, text)
        most = content.get("top_n")
        if most is not None and (type(most) is not int or most < 1):
            raise Refusal(400, "top_n is not an integer from 1")
        async with asyncio.timeout(self.limits.seconds):
            scores = await self.scores.submit(query, documents)
        order = sorted(range(len(scores)), key=lambda row: -scores[row])[:most]
        results = []
        for row in order:
            result = {"index": row, "relevance_score": scores[row]}
            if content.get("return_documents") is True:
                result["document"] = {"text": documents[row]}
            results.append(result)
        return JSONResponse({"model": self.engine.reranker_name, "results": results})

    async def models(self, request: Request) -> Response:
        """GET /v1/models: what this server has."""
        names = [name for name in (self.engine.name, self.engine.reranker_name) if name]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "minisbert"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def measurements(self, request: Request) -> Response:
        """GET /metrics, in Prometheus' format."""
        return Response(generate_latest(self.metrics.registry), media_type="text/plain; version=0.0.4")

    async def health(self, request: Request) -> Response:
        """GET /health, without a key."""
        return PlainTextResponse("ok\n")


class Metrics:
    """What /metrics shows."""

    def __init__(self, server: Server):
        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "Seconds from request to answer.", ("path",), **own)
        self.tokens = Counter("tokens", "Tokens embedded, special ones included.", **own)
        self.batches = Histogram("batch_texts", "Texts computed together.", buckets=BATCH_SIZES, **own)
        waiting = Gauge("waiting_texts", "Texts that wait.", **own)
        waiting.set_function(lambda: server.embeddings.waiting_items + server.scores.waiting_items)
        server.embeddings.on_batch = self.batches.observe
        server.scores.on_batch = self.batches.observe


def one_of(content: dict[str, Any], name: str, choices: tuple[str | None, ...]) -> Any:
    """A field with a few possible values, the first of which is the default. Raises ``Refusal`` for any other."""
    value = content.get(name, choices[0])
    if value not in choices:
        raise Refusal(400, f"{name} is not one of {', '.join(filter(None, choices))}")
    return value


async def not_found(request: Request, error: Exception) -> Response:
    """A path or method that does not exist, in OpenAI's form."""
    return Refusal(404, f"there is no {request.method} {request.url.path}", "not_found_error").response()


async def failed(request: Request, error: Exception) -> Response:
    """A bug: the log has the traceback, the answer has none."""
    return Refusal(500, "internal error", "server_error").response()
