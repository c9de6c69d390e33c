"""The HTTP application: OpenAI's embeddings, reranking, health and metrics, over Starlette."""

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from minisbert.core import InputError
from minisbert.serving.engine import (
    Batcher,
    Busy,
    Embedded,
    Engine,
    Refusal,
    read_choice,
    read_count,
    read_documents,
    read_inputs,
)


@dataclass(frozen=True)
class Limits:
    """What the server accepts. ``seconds`` bounds the arrival of a body, and again the wait for its answer."""

    body_bytes: int = 4 * 2**20
    texts: int = 2048
    waiting_texts: int = 4096
    batch_texts: int = 64
    seconds: float = 60.0


class Server:
    """The routes, and what they share.

    engine    computes
    api_key   the bearer token that every request but /health must carry; "" for none
    truncate  what happens to a text beyond the model's limit: "cut" says so in the answer, "error" refuses
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

        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "Seconds from request to answer.", ("path",), **own)
        self.tokens = Counter("tokens", "Tokens embedded, special ones included.", **own)
        batches = Histogram("batch_texts", "Texts computed together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **own)
        waiting = Gauge("waiting_texts", "Texts that wait.", **own)
        waiting.set_function(lambda: self.embeddings.waiting_items + self.scores.waiting_items)
        self.embeddings.on_batch = self.scores.on_batch = batches.observe

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            self.route("POST", "/v1/embeddings", self.embed),
            self.route("POST", "/v1/rerank", self.rerank),
            self.route("GET", "/v1/models", self.models),
            self.route("GET", "/metrics", self.metrics),
            Route("/health", health),
        ]
        return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found, 500: failed})

    def route(self, method: str, path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        """A route that checks the key, turns errors into answers, and is counted."""

        async def endpoint(request: Request) -> Response:
            with self.seconds.labels(path).time():
                try:
                    self.check_key(request)
                    response = await answer(request)
                except Refusal as refusal:
                    response = refused(refusal)
                except InputError as error:
                    response = refused(Refusal(400, str(error)))
                except Busy as busy:
                    retry = {"Retry-After": str(busy.seconds)}
                    response = refused(Refusal(429, str(busy), "rate_limit_error", **retry))
                except TimeoutError:
                    response = refused(Refusal(503, f"no answer in {self.limits.seconds:g} s", "server_error"))
            self.requests.labels(path, response.status_code).inc()
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
        inputs = read_inputs(self.engine, content.get("input"), self.limits.texts)
        encoding = read_choice(content, "encoding_format", ("float", "base64"))
        prompt = self.engine.prompt(read_choice(content, "input_type", (None, "query", "document")))
        columns = read_count(content, "dimensions", self.engine.width)
        async with asyncio.timeout(self.limits.seconds):
            embedded: list[Embedded] = await self.embeddings.submit(prompt, inputs)
        cut = [i for i, each in enumerate(embedded) if each.cut]
        if cut and self.truncate == "error":
            raise Refusal(400, f"input {cut[0]} has more than {self.engine.encoder.tokenizer.limit} tokens")
        data = []
        for i, each in enumerate(embedded):
            vector = self.engine.shortened(each.vector, columns)
            data.append({"object": "embedding", "index": i, "embedding": encoded(vector, encoding)})
        tokens = sum(each.tokens for each in embedded)
        self.tokens.inc(tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": data, "model": self.engine.name, "usage": usage}
        if not cut:
            return JSONResponse(answer)
        return JSONResponse(answer | {"truncated": cut}, headers={"X-Truncated": ",".join(map(str, cut[:100]))})

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: a query and documents -> the documents' numbers and scores, best first."""
        content = await self.body(request)
        if self.engine.reranker is None:
            raise Refusal(404, "there is no reranker: start the server with --reranker MODEL", "not_found_error")
        query, documents = read_documents(self.engine, content, self.limits.texts)
        most = read_count(content, "top_n", len(documents))
        async with asyncio.timeout(self.limits.seconds):
            scores = await self.scores.submit(query, documents)
        results = []
        for row in sorted(range(len(scores)), key=lambda row: -scores[row])[:most]:
            result: dict[str, Any] = {"index": row, "relevance_score": scores[row]}
            if content.get("return_documents") is True:
                result["document"] = {"text": documents[row]}
            results.append(result)
        return JSONResponse({"model": self.engine.reranker_name, "results": results})

    async def models(self, request: Request) -> Response:
        """GET /v1/models: what this server has."""
        names = [name for name in (self.engine.name, self.engine.reranker_name) if name]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "minisbert"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, in Prometheus' format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


def encoded(vector: np.ndarray, encoding: str) -> str | list[float]:
    """A vector as JSON: numbers, or base64 of little-endian float32."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


def refused(refusal: Refusal) -> Response:
    return JSONResponse(refusal.body, refusal.status, refusal.headers)


async def health(request: Request) -> Response:
    """GET /health, without a key."""
    return PlainTextResponse("ok\n")


async def not_found(request: Request, error: Exception) -> Response:
    return refused(Refusal(404, f"there is no {request.method} {request.url.path}", "not_found_error"))


async def failed(request: Request, error: Exception) -> Response:
    """A bug: the log has the traceback, the answer has none."""
    return refused(Refusal(500, "internal error", "server_error"))


MOST_FILES = 32_768  # half of them connections: 10,000 that wait need 45 MiB
BACKLOG = 1024  # connections that are accepted at once


class BoundedConnection(H11Protocol):
    """A connection that is closed at once beyond ``most``, and after ``seconds`` without the head of a request."""

    most = MOST_FILES // 2
    seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self.loop.call_later(self.seconds, self.close_if_silent)

    def close_if_silent(self) -> None:
        if self.cycle is None:  # of a request and its answer
            self.transport.close()


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows, at most ``MOST_FILES``; how many that is.

    Without room asyncio would log each connection that it cannot accept, hundreds of times a second.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
