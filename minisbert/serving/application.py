"""Speak HTTP with FastAPI: embeddings as OpenAI has them, reranking as Cohere and Jina have it.

The models below say what a request may hold: FastAPI checks requests against them, and shows them
at /docs. ``engine.py`` computes. Errors have OpenAI's form.
"""

import base64
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import orjson
import torch
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.exceptions import HTTPException as NoSuchPath

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.serving.engine import Batcher, Busy, Engine, Result

# status -> OpenAI's name of the error; all others, 404 too, are "invalid_request_error"
ERRORS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
MOST_BYTES = (
    2**22
)  # of a body: reading and checking its JSON keeps all others waiting, about a second for so many
OPEN_PATHS = (
    "/health",
    "/docs",
    "/openapi.json",
)  # they need no key: a probe has none, nor has a browser


class Form(BaseModel):
    """A request. A field that it does not have is refused, not ignored, and nothing is converted:
    "8" is no number.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None, description="a name of GET /v1/models; if absent, the model that is served"
    )


# each stops at the first wrong item: a million of them would be a million errors, and minutes
Texts = Annotated[list[str], Field(fail_fast=True)]


class EmbeddingRequest(Form):
    input: str | Texts = Field(description="a text or texts, not token ids")
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(
        None, ge=1, description="the first columns, scaled to length 1 again"
    )
    input_type: Literal["query", "document"] | None = Field(
        None, description="chooses the model's prompt"
    )
    user: str | None = Field(None, description="OpenAI's; without effect")

    @field_validator("input", mode="before")
    @classmethod
    def refuse_ids(cls, given: Any) -> Any:
        """Refuse token ids: clients send those of OpenAI's vocabulary, which are other words
        here.
        """
        if isinstance(given, list) and given and isinstance(given[0], int | list):
            raise ValueError(
                "send texts, not token ids (LangChain: check_embedding_ctx_length=False)"
            )
        return given


class Document(BaseModel):
    text: str


class RerankRequest(Form):
    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True)]
    top_n: int | None = Field(None, ge=0, description="how many come back; all if 0 or absent")
    return_documents: bool | None = False
    max_tokens_per_doc: int | None = Field(
        None, description="Cohere's; without effect: the model has its own limit"
    )


@dataclass
class Server:
    """The routes, and what they share."""

    engine: Engine
    # the bearer token that every request but those of ``OPEN_PATHS`` must carry; "" for none
    api_key: str = ""
    # a text beyond the model's limit is "cut", and the answer says so, or it is an "error"
    truncate: str = "cut"
    any_model: bool = False  # whether a request may name another model than the one that answers
    origins: Sequence[
        str
    ] = ()  # of web pages whose scripts may read answers, "https://example.org", or "*" for all
    max_texts: int = 2048  # in a request
    # of a text: the tokenizer holds Python's lock for all of it, .1 to .4 s for so many
    max_characters: int = 100_000
    max_waiting: int = 4096  # texts in the queue

    def __post_init__(self) -> None:
        # one thread for both: beside each other, encoder and reranker would fight for the same
        # cores
        thread = ThreadPoolExecutor(1)
        self.embeddings = Batcher(self.engine.embed, thread, most_items=self.max_waiting)
        self.scores = Batcher(self.engine.score, thread, most_items=self.max_waiting)

        names = filter(None, (self.engine.name, self.engine.reranker_name))
        # as OpenAI's clients expect it
        self.cards = [
            {"id": name, "object": "model", "created": 0, "owned_by": "minisbert"} for name in names
        ]

        self.registry = (
            CollectorRegistry()
        )  # not the process's, in which a second server's names would clash
        own: dict[str, Any] = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter(
            "requests", "Requests by path and status.", ("path", "status"), **own
        )
        self.seconds = Histogram(
            "request_seconds", "Seconds from request to answer.", ("path",), **own
        )
        self.tokens = Counter("tokens", "Tokens read, special ones included.", **own)
        batches = Histogram(
            "batch_texts", "Texts computed together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **own
        )
        waiting = Gauge("waiting_texts", "Texts that wait.", **own)
        waiting.set_function(lambda: self.embeddings.waiting_items + self.scores.waiting_items)
        self.embeddings.on_batch = self.scores.on_batch = batches.observe

    def application(self) -> FastAPI:
        """Build the ASGI application."""
        # the dependency refuses nothing: it gives the page of /docs its field for the key
        bearer = [Depends(HTTPBearer(auto_error=False))]
        app = FastAPI(
            title="minisbert serve", version=__version__, redoc_url=None, dependencies=bearer
        )
        app.add_api_route("/v1/embeddings", self.embed, methods=["POST"])
        for path in (
            "/v1/rerank",
            "/v2/rerank",
            "/rerank",
        ):  # Cohere's first API and Jina's; its second; vLLM's
            app.add_api_route(path, self.rerank, methods=["POST"])
        app.add_api_route("/v1/models", self.models)
        app.add_api_route("/health", health, response_class=PlainTextResponse)
        app.add_api_route("/metrics", self.metrics, response_class=PlainTextResponse)
        app.add_middleware(limited)
        app.middleware("http")(self.counted)
        if (
            self.origins
        ):  # last, so that it is first: a browser asks without the key whether it may send one
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        app.add_exception_handler(NoSuchPath, http_error)
        app.add_exception_handler(RequestValidationError, invalid)
        app.add_exception_handler(InputError, lambda request, error: refusal(400, str(error)))
        full = "the queue is full: try again in {} s"
        app.add_exception_handler(
            Busy, lambda _, busy: refusal(429, full.format(busy), {"Retry-After": str(busy)})
        )
        # a bug: the log has the traceback, the answer has none
        app.add_exception_handler(Exception, lambda request, error: refusal(500, "internal error"))
        return app

    async def counted(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Check the key, before the body is read; answer; count the answer."""
        start = time.perf_counter()
        status = 500  # of a bug, which leaves ``answer`` as an exception
        try:
            if self.may_ask(request):
                response = await answer(request)
            else:
                response = refusal(
                    401, "the API key is missing or wrong: send Authorization: Bearer KEY"
                )
            status = response.status_code
            return response
        finally:
            # the route's path, not the request's: clients could make up paths without end
            path = getattr(request.scope.get("route"), "path", "")
            self.requests.labels(path, status).inc()
            self.seconds.labels(path).observe(time.perf_counter() - start)

    def may_ask(self, request: Request) -> bool:
        """Say whether the request carries the key as a bearer token, or needs none."""
        if not self.api_key or request.url.path in OPEN_PATHS:
            return True
        header = request.headers.get("authorization", "").encode(
            "latin-1"
        )  # bytes, which Starlette reads as Latin-1
        scheme, _, token = header.partition(b" ")
        # schemes ignore case (RFC 9110, 11.1); the comparison takes equally long for every wrong
        # token
        return scheme.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self.api_key.encode()
        )

    # ---------------------------------------------------------------------------------------------
    # answers

    async def embed(self, request: EmbeddingRequest) -> Response:
        """A text or texts -> vectors."""
        self.check_model(request.model, self.engine.name)
        inputs = [request.input] if isinstance(request.input, str) else request.input
        self.check_texts("input", inputs)
        width = self.engine.encoder.get_embedding_dimension()
        columns = request.dimensions or width
        if columns > width:
            raise HTTPException(400, f"dimensions: the model's vectors have {width}")

        # the prompt is the batch's key: texts with different prompts are not computed together
        results = await self.embeddings.submit(self.engine.prompt(request.input_type), inputs)
        more = self.usage_and_cut(results, "input {}", self.engine.encoder.tokenizer.limit)
        vectors = np.stack([each.value for each in results])  # (N, D)
        if columns < width:  # of length 1 again, as OpenAI does (Matryoshka embeddings)
            vectors = normalize(torch.from_numpy(vectors[:, :columns])).numpy()
        data = []
        for i, vector in enumerate(vectors):
            coded = request.encoding_format == "base64"
            embedding = (
                base64.b64encode(vector.astype("<f4").tobytes()).decode() if coded else vector
            )
            data.append({"object": "embedding", "index": i, "embedding": embedding})
        return json_response({"object": "list", "data": data, "model": self.engine.name, **more})

    async def rerank(self, request: RerankRequest) -> Response:
        """A query and documents -> their numbers and scores, best first."""
        if self.engine.reranker is None:
            raise HTTPException(404, "there is no reranker: start the server with --reranker MODEL")
        self.check_model(request.model, self.engine.reranker_name)
        documents = [each if isinstance(each, str) else each.text for each in request.documents]
        self.check_texts("query", [request.query])
        self.check_texts("documents", documents)

        scored = await self.scores.submit(request.query, documents)
        more = self.usage_and_cut(
            scored, "document {} with the query", self.engine.reranker.tokenizer.limit
        )
        results = []
        # stable: of equal scores, the first document comes first
        for row in sorted(range(len(scored)), key=lambda row: -scored[row].value)[
            : request.top_n or None
        ]:
            result: dict[str, Any] = {"index": row, "relevance_score": scored[row].value}
            if request.return_documents:
                result["document"] = {"text": documents[row]}
            results.append(result)
        # usage is where Jina's clients look, meta where Cohere's do
        more["meta"] = {"tokens": {"input_tokens": more["usage"]["prompt_tokens"]}}
        about = {"id": str(uuid.uuid4()), "object": "list", "model": self.engine.reranker_name}
        return json_response({**about, "results": results, **more})

    def check_model(self, asked: str | None, name: str) -> None:
        """Raise ``HTTPException`` if a request names another model, as OpenAI's own server does."""
        if asked not in (None, name) and not self.any_model:
            raise HTTPException(
                404,
                f"the model {one_line(asked)} does not exist, this is {name}: see GET /v1/models",
            )

    def check_texts(self, name: str, texts: Sequence[str]) -> None:
        """Refuse no texts, too many of them, and one that is too long or not valid Unicode."""
        if not texts:
            raise HTTPException(400, f"{name} is empty")
        if len(texts) > self.max_texts:
            raise HTTPException(
                413, f"{name} has {len(texts):,} texts, at most {self.max_texts:,} are accepted"
            )
        for i, text in enumerate(texts):
            if len(text) > self.max_characters:
                most = f"at most {self.max_characters:,} are accepted: split it"
                raise HTTPException(413, f"{name}[{i}] has {len(text):,} characters, {most}")
            check_texts([text], i)  # here, not in a batch that others share

    def usage_and_cut(self, results: Sequence[Result], name: str, limit: int) -> dict[str, Any]:
        """Count the tokens of a request, and name the texts that were cut. ``HTTPException`` if
        none may be.

        After they were computed: only the tokenizer, which runs in the other thread, knows what it
        cuts.
        """
        tokens = sum(each.tokens for each in results)
        self.tokens.inc(tokens)
        answer: dict[str, Any] = {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        cut = [i for i, each in enumerate(results) if each.cut]
        if cut and self.truncate == "error":
            raise HTTPException(400, f"{name.format(cut[0])} has more than {limit} tokens")
        if cut:
            answer["truncated"] = cut
        return answer

    async def models(self) -> Response:
        """The encoder and the reranker."""
        return json_response({"object": "list", "data": self.cards})

    async def metrics(self) -> Response:
        """What was counted, in Prometheus' format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


async def health() -> str:
    return "ok\n"


def limited(app: Callable) -> Callable:
    """Wrap an application: a body of more than ``MOST_BYTES`` is refused while it arrives, chunked
    or not.
    """

    async def answer(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        left = MOST_BYTES

        async def counted() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(
                    413, f"a body has at most {MOST_BYTES:,} bytes: send fewer texts at a time"
                )
            return message

        await app(scope, counted, send)

    return answer


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer in JSON: a number of an array has as many digits as float32 needs, and is not made a
    Python object.
    """
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers, media_type="application/json")


# ---------------------------------------------------------------------------------- errors


def refusal(
    status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None
) -> Response:
    """Answer an error in OpenAI's form."""
    error = {
        "message": message,
        "type": ERRORS.get(status, "invalid_request_error"),
        "param": None,
        "code": code,
    }
    return json_response({"error": error}, status, headers)


async def http_error(request: Request, error: Any) -> Response:
    """Answer what the routes refuse; also 404 for an unknown path, 405 for another method of a
    known one.
    """
    code = None
    if error.status_code == 404 and "route" in request.scope:
        code = "model_not_found"
    return refusal(
        error.status_code,
        f"{request.method} {request.url.path}: {error.detail}",
        error.headers,
        code,
    )


async def invalid(request: Request, error: Any) -> Response:
    """Answer what the models of requests refuse: where it is, and what was expected."""
    problems = []
    for each in error.errors()[
        :4
    ]:  # "input" may be a text or texts, and each says why it is neither
        where = (
            ".".join(map(str, each["loc"][1:]))
            or "the body, a JSON object sent as application/json"
        )
        problems.append(f"{where}: {each['msg']}")
    return refusal(400, "; ".join(problems))
