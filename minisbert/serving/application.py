"""Speak HTTP: OpenAI's embeddings, reranking, health and metrics, over Starlette and uvicorn.

Checks what clients send; ``engine.py`` computes. Every error is one line in OpenAI's form.
"""

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from minisbert.core import InputError
from minisbert.core.checks import check_text
from minisbert.core.encoder import normalize
from minisbert.serving.engine import Batcher, Busy, Embedded, Engine

# status -> OpenAI's name of the error; all others are "invalid_request_error"
ERRORS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


@dataclass(frozen=True)
class Limits:
    """What the server accepts. ``seconds`` bounds the arrival of a request, and again the wait for its answer."""

    body_bytes: int = 4 * 2**20
    texts: int = 2048
    # the tokenizer holds Python's lock for a whole text, 0.1 to 0.4 s for this many characters: nobody is answered then
    characters: int = 100_000
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
        # one thread for both: beside each other, encoder and reranker would fight for the same cores
        thread = ThreadPoolExecutor(1)
        sizes = (self.limits.batch_texts, self.limits.waiting_texts)
        self.embeddings = Batcher(engine.embed, thread, *sizes)
        self.scores = Batcher(engine.score, thread, *sizes)

        self.registry = CollectorRegistry()  # not the process's, in which a second server's names would clash
        own = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "Seconds from request to answer.", ("path",), **own)
        self.tokens = Counter("tokens", "Tokens embedded, special ones included.", **own)
        batches = Histogram("batch_texts", "Texts computed together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **own)
        waiting = Gauge("waiting_texts", "Texts that wait.", **own)
        waiting.set_function(lambda: self.embeddings.waiting_items + self.scores.waiting_items)
        self.embeddings.on_batch = self.scores.on_batch = batches.observe

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            self.route("POST", "/v1/embeddings", self.embed),
            self.route("POST", "/v1/rerank", self.rerank),
            self.route("GET", "/v1/models", self.models),
            self.route("GET", "/metrics", self.metrics),
            Route("/health", health),
        ]
        return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found, 500: failed})

    def route(self, method: str, path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        """Return a route that checks the key, turns errors into answers, and is counted."""

        async def endpoint(request: Request) -> Response:
            with self.seconds.labels(path).time():
                try:
                    self.check_key(request)
                    response = await answer(request)
                except HTTPException as error:
                    response = refusal(error.status_code, error.detail, error.headers)
                except InputError as error:
                    response = refusal(400, str(error))
                except Busy as busy:
                    response = refusal(429, str(busy), {"Retry-After": str(busy.seconds)})
                except TimeoutError:
                    response = refusal(503, f"no answer in {self.limits.seconds:g} s")
            self.requests.labels(path, response.status_code).inc()
            return response

        return Route(path, endpoint, methods=[method])

    def check_key(self, request: Request) -> None:
        """Raise ``HTTPException`` unless the request carries the key as a bearer token."""
        if not self.api_key:
            return
        header = request.headers.get("authorization", "").encode("latin-1")  # bytes, which Starlette reads as Latin-1
        scheme, _, token = header.partition(b" ")
        # schemes ignore case (RFC 9110, 11.1); the comparison takes equally long for every wrong token
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self.api_key):
            raise HTTPException(401, "the API key is missing or wrong: send Authorization: Bearer KEY")

    # ----------------------------------------------------------------------------------- what clients send

    async def content(self, request: Request) -> dict[str, Any]:
        """Read the JSON object of a request. Raises ``HTTPException`` if it is too large, too slow, or none."""
        limits = self.limits
        close = {"Connection": "close"}  # or the rest of the body would have to be read before the next request
        received = bytearray()
        try:
            async with asyncio.timeout(limits.seconds):
                async for chunk in request.stream():
                    received += chunk
                    if len(received) > limits.body_bytes:
                        raise HTTPException(413, f"the body is larger than {limits.body_bytes:,} bytes", close)
            content = json.loads(received)
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive in {limits.seconds:g} s", close) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client has gone") from None
        except (ValueError, RecursionError):
            raise HTTPException(400, "the body is not JSON") from None
        if not isinstance(content, dict):
            raise HTTPException(400, "the body is not a JSON object")
        return content

    def inputs(self, content: dict[str, Any]) -> list[str | list[int]]:
        """Read ``input`` as a list of texts or rows of token ids. Raises ``HTTPException`` or ``InputError``."""
        given = content.get("input")
        if isinstance(given, str) or (given and is_ids(given)):
            given = [given]
        if not isinstance(given, list) or not given:
            raise HTTPException(400, "input is not a text, a list of texts, token ids, or a list of lists of token ids")
        self.check_number("input", given)
        for i, each in enumerate(given):
            if isinstance(each, str):
                self.check_text(f"input[{i}]", i, each)
            elif is_ids(each):
                self.engine.check_ids(each)
            else:
                raise HTTPException(400, f"input[{i}] is neither a text nor a list of token ids")
        return given

    def documents(self, content: dict[str, Any]) -> tuple[str, list[str]]:
        """Read the query and the documents of a reranking request. Raises ``HTTPException`` or ``InputError``."""
        query, given = content.get("query"), content.get("documents")
        if not isinstance(query, str) or not isinstance(given, list) or not given:
            raise HTTPException(400, "a reranking request has a query, which is a text, and documents, a list of texts")
        self.check_number("documents", given)
        self.check_text("query", 0, query)
        documents: list[str] = []
        for i, text in enumerate(given):
            if isinstance(text, dict):  # as Cohere's clients may send them
                text = text.get("text")
            if not isinstance(text, str):
                raise HTTPException(400, f"documents[{i}] is neither a text nor an object with a text")
            self.check_text(f"documents[{i}]", i, text)
            documents.append(text)
        return query, documents

    def check_number(self, name: str, given: list[Any]) -> None:
        if len(given) > self.limits.texts:
            raise HTTPException(413, f"{name} has {len(given):,} texts, at most {self.limits.texts:,} are accepted")

    def check_text(self, name: str, i: int, text: str) -> None:
        most = self.limits.characters
        if len(text) > most:
            raise HTTPException(413, f"{name} has {len(text):,} characters, at most {most:,} are accepted: split it")
        check_text(i, text)

    # --------------------------------------------------------------------------------------------- answers

    async def embed(self, request: Request) -> Response:
        """Answer POST /v1/embeddings: a text, texts, token ids or lists of them -> vectors."""
        content = await self.content(request)
        inputs = self.inputs(content)
        encoding = read_choice(content, "encoding_format", ("float", "base64"))
        # the model's prompt belongs to the batch: texts with different prompts are not computed together
        prompt = self.engine.prompt(read_choice(content, "input_type", (None, "query", "document")))
        width = self.engine.encoder.get_embedding_dimension()
        columns = read_count(content, "dimensions", width)
        if columns > width:
            raise HTTPException(400, f"dimensions is {columns}, and the model's vectors have {width}")
        # a request that times out here frees its place in the queue
        async with asyncio.timeout(self.limits.seconds):
            embedded: list[Embedded] = await self.embeddings.submit(prompt, inputs)

        # not before: only the tokenizer, which runs in the other thread, knows what it cuts
        cut = [i for i, each in enumerate(embedded) if each.cut]
        if cut and self.truncate == "error":
            raise HTTPException(400, f"input {cut[0]} has more than {self.engine.encoder.tokenizer.limit} tokens")
        data = []
        for i, each in enumerate(embedded):
            vector = shortened(each.vector, columns)
            shown: str | list[float] = vector.tolist()
            if encoding == "base64":  # of little-endian float32
                shown = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": i, "embedding": shown})
        tokens = sum(each.tokens for each in embedded)
        self.tokens.inc(tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer: dict[str, Any] = {"object": "list", "data": data, "model": self.engine.name, "usage": usage}
        headers = {}
        if cut:
            answer["truncated"] = cut
            headers["X-Truncated"] = ",".join(map(str, cut[:100]))  # proxies refuse long headers
        return JSONResponse(answer, headers=headers)

    async def rerank(self, request: Request) -> Response:
        """Answer POST /v1/rerank: a query and documents -> the documents' numbers and scores, best first."""
        content = await self.content(request)
        if self.engine.reranker is None:
            raise HTTPException(404, "there is no reranker: start the server with --reranker MODEL")
        query, documents = self.documents(content)
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
        """Answer GET /v1/models: the names of the encoder and of the reranker."""
        data = []
        for name in (self.engine.name, self.engine.reranker_name):
            if name:
                data.append({"id": name, "object": "model", "created": 0, "owned_by": "minisbert"})
        return JSONResponse({"object": "list", "data": data})

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics, in Prometheus' format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(x) is int for x in given)  # True and False are no ids


def read_count(content: dict[str, Any], name: str, default: int) -> int:
    """Read an integer from 1. Raises ``HTTPException`` for anything else."""
    value = content.get(name)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise HTTPException(400, f"{name} must be an integer from 1")
    return value


def read_choice(content: dict[str, Any], name: str, choices: tuple[str | None, ...]) -> Any:
    """Read one of a few values, of which the first is the default. Raises ``HTTPException`` for any other."""
    value = content.get(name)
    if value is None:
        return choices[0]
    if value not in choices:
        raise HTTPException(400, f"{name} is not one of {', '.join(filter(None, choices))}")
    return value


def shortened(vector: np.ndarray, columns: int) -> np.ndarray:
    """Keep the first columns and scale them to length 1 again, as OpenAI does (Matryoshka embeddings)."""
    if columns == len(vector):
        return vector
    return normalize(torch.from_numpy(vector[None, :columns]))[0].numpy()


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answer an error in OpenAI's form."""
    error = {"message": message, "type": ERRORS.get(status, "invalid_request_error"), "param": None, "code": None}
    return JSONResponse({"error": error}, status, headers)


async def health(request: Request) -> Response:
    return PlainTextResponse("ok\n")  # without a key: whoever asks is a probe


async def not_found(request: Request, error: Exception) -> Response:
    return refusal(404, f"there is no {request.method} {request.url.path}")


async def failed(request: Request, error: Exception) -> Response:
    return refusal(500, "internal error")  # a bug: the log has the traceback, the answer has none


class TimedConnection(H11Protocol):
    """uvicorn's connection, dropped if a request's head takes longer than ``seconds`` or its answer is not read.

    uvicorn's own time-out (``timeout_keep_alive``) begins after an answer, and ends with the next byte: a client that
    sends one byte and stops would keep its connection forever.
    """

    seconds = 60.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.set_timer(self.seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.set_timer(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.set_timer(None)  # it would keep the connection in memory until it rings

    def set_timer(self, seconds: float | None) -> None:
        """Drop the connection in so many seconds, if it is idle then; None for never."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if seconds is not None:
            self.timer = self.loop.call_later(seconds, self.drop_if_idle)

    def drop_if_idle(self) -> None:
        """Drop the connection unless a request is being answered; ``Server.content`` bounds the arrival of its body."""
        if self.cycle is None or self.cycle.response_complete or self.flow.write_paused:
            self.transport.abort()  # not close(), which would wait until the client has read everything
