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
from starlette.exceptions import HTTPException as AnyHTTPException

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.core.encoder import normalize
from minisbert.serving.engine import Batcher, Busy, Engine, Result

# OpenAI's names of errors by status. All others, 404 too, are "invalid_request_error".
ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
# A larger body is refused: while its JSON is read and checked all other requests wait, about a
# second for so many bytes.
MOST_BODY_BYTES = 2**22
# These paths need no key: a probe has none, nor has a browser.
OPEN_PATHS = ("/health", "/docs", "/openapi.json")


class StrictRequest(BaseModel):
    """A request whose unknown fields are refused, not ignored, and whose values are not converted.

    So "8" is refused where a number is needed.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = Field(
        None, description="a name of GET /v1/models; if absent, the model that is served"
    )


# Checking stops at the first wrong item: a million of them would be a million errors, and minutes.
TextList = Annotated[list[str], Field(fail_fast=True)]


# The fields are OpenAI's, and ``input_type``. (A docstring would be shown at /docs.)
class EmbeddingRequest(StrictRequest):
    input: str | TextList = Field(description="a text or texts, not token ids")
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
    def refuse_ids(cls, value: Any) -> Any:
        """Refuse token ids: clients send those of OpenAI's vocabulary, which are other words."""
        if isinstance(value, list) and value and isinstance(value[0], int | list):
            raise ValueError(
                "send texts, not token ids (LangChain: check_embedding_ctx_length=False)"
            )
        return value


# Cohere's clients send rows of a table as they are: fields other than the text are ignored.
class Document(BaseModel):
    text: str


# The fields that clients of Cohere, Jina and vLLM send.
class RerankRequest(StrictRequest):
    query: str
    documents: Annotated[list[str | Document], Field(fail_fast=True)]
    top_n: int | None = Field(None, ge=0, description="how many come back; all if 0 or absent")
    return_documents: bool | None = False
    max_tokens_per_doc: int | None = Field(
        None, description="Cohere's; without effect: the model has its own limit"
    )


class Metrics:
    """What Prometheus is told of one server."""

    def __init__(self, waiting_texts: Callable[[], float]):
        # Not the process's registry, in which a second server's names would clash.
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
    max_characters  in a text: the tokenizer holds Python's lock for all of it, .1 to .4 s for so
                    many
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
        # One thread for both queues: at the same time, encoder and reranker would fight for the
        # same cores.
        thread = ThreadPoolExecutor(1)
        self.embeddings = Batcher(self.engine.embed, thread, most_items=self.max_waiting)
        self.scores = Batcher(self.engine.score, thread, most_items=self.max_waiting)
        self.counts = Metrics(self.waiting_texts)
        self.embeddings.on_batch = self.counts.batch_texts.observe
        self.scores.on_batch = self.counts.batch_texts.observe

    def waiting_texts(self) -> int:
        """Count the texts and documents in both queues."""
        return self.embeddings.waiting_items + self.scores.waiting_items

    def application(self) -> FastAPI:
        """Build the ASGI application."""
        # The dependency refuses nothing: it gives the page of /docs its field for the key.
        bearer = [Depends(HTTPBearer(auto_error=False))]
        app = FastAPI(
            title="minisbert serve", version=__version__, redoc_url=None, dependencies=bearer
        )

        app.add_api_route("/v1/embeddings", self.embed, methods=["POST"])
        app.add_api_route("/v1/rerank", self.rerank, methods=["POST"])  # Cohere's first API, Jina's
        app.add_api_route("/v2/rerank", self.rerank, methods=["POST"])  # Cohere's second
        app.add_api_route("/rerank", self.rerank, methods=["POST"])  # vLLM's
        app.add_api_route("/v1/models", self.models)
        app.add_api_route("/health", health, response_class=PlainTextResponse)
        app.add_api_route("/metrics", self.metrics, response_class=PlainTextResponse)

        # What is added last sees a request first. CORS must come before the key: a browser asks,
        # without the key, whether it may send one.
        app.add_middleware(limit_body)
        app.middleware("http")(self.check_key_and_count)
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

    async def check_key_and_count(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Check the key, before the body is read; answer; count the answer."""
        start = time.perf_counter()
        status = 500  # a bug leaves ``answer`` as an exception
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
            # The route's path, not the request's: clients could make up paths without end.
            path = getattr(request.scope.get("route"), "path", "")
            self.counts.requests.labels(path, status).inc()
            self.counts.seconds.labels(path).observe(time.perf_counter() - start)

    def may_ask(self, request: Request) -> bool:
        """Say whether the request carries the key as a bearer token, or needs none."""
        if not self.api_key or request.url.path in OPEN_PATHS:
            return True
        # The header's bytes, which Starlette reads as Latin-1.
        header = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer":  # schemes ignore case (RFC 9110, 11.1)
            return False
        # This comparison takes equally long for every wrong token.
        return hmac.compare_digest(token.strip(), self.api_key.encode())

    async def embed(self, request: EmbeddingRequest) -> Response:
        """A text or texts -> vectors."""
        self.check_model(request.model, self.engine.name)
        inputs = request.input
        if isinstance(inputs, str):
            inputs = [inputs]
        self.check_texts("input", inputs)
        width = self.engine.encoder.get_embedding_dimension()
        columns = request.dimensions or width
        if columns > width:
            raise HTTPException(400, f"dimensions: the model's vectors have {width}")

        # The prompt is the batch's key: texts with different prompts are not computed together.
        prompt = self.engine.prompt(request.input_type)
        results = await self.embeddings.submit(prompt, inputs)
        limit = self.engine.encoder.tokenizer.limit
        usage_and_cut = self.usage_and_cut(results, "input {}", limit)

        vectors = np.stack([result.value for result in results])  # (N, D)
        if columns < width:  # scaled to length 1 again, as OpenAI does (Matryoshka embeddings)
            vectors = normalize(torch.from_numpy(vectors[:, :columns])).numpy()
        data = []
        for i, embedding in enumerate(vectors):
            if request.encoding_format == "base64":
                little_endian = embedding.astype("<f4").tobytes()
                embedding = base64.b64encode(little_endian).decode()
            data.append({"object": "embedding", "index": i, "embedding": embedding})
        content = {"object": "list", "data": data, "model": self.engine.name}
        return json_response(content | usage_and_cut)

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
        self.check_texts("query", [request.query])
        self.check_texts("documents", documents)

        scored = await self.scores.submit(request.query, documents)
        limit = self.engine.reranker.tokenizer.limit
        usage_and_cut = self.usage_and_cut(scored, "document {} with the query", limit)

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
        }
        content |= usage_and_cut
        # Jina's clients look for the tokens in usage, Cohere's in meta.
        content["meta"] = {"tokens": {"input_tokens": content["usage"]["prompt_tokens"]}}
        return json_response(content)

    def check_model(self, requested: str | None, name: str) -> None:
        """Raise ``HTTPException`` if a request names another model, as OpenAI's own server does."""
        if requested not in (None, name) and not self.any_model:
            raise HTTPException(
                404,
                f"the model {one_line(requested)} does not exist, this is {name}: see GET "
                f"/v1/models",
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
            check_texts([text], i)  # here, where a bad text is in no batch that others share

    def usage_and_cut(self, results: Sequence[Result], name: str, limit: int) -> dict[str, Any]:
        """Return what an answer says about its tokens: how many they are, and which texts were cut.

        Raises ``HTTPException`` if none may be cut; ``name`` is for its message, "input {}" with
        the place of the text. That is known only after they were computed: it is the tokenizer,
        which runs in the other thread, that cuts them.
        """
        tokens = sum(result.tokens for result in results)
        self.counts.tokens.inc(tokens)
        content: dict[str, Any] = {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
        cut = [i for i, result in enumerate(results) if result.cut]
        if cut and self.truncate == "error":
            raise HTTPException(400, f"{name.format(cut[0])} has more than {limit} tokens")
        if cut:
            content["truncated"] = cut
        return content

    async def models(self) -> Response:
        """The encoder and the reranker, as OpenAI's clients expect them."""
        cards = []
        for name in (self.engine.name, self.engine.reranker_name):
            if name:
                cards.append({"id": name, "object": "model", "created": 0, "owned_by": "minisbert"})
        return json_response({"object": "list", "data": cards})

    async def metrics(self) -> Response:
        """What was counted, in Prometheus' format."""
        return Response(
            generate_latest(self.counts.registry), media_type="text/plain; version=0.0.4"
        )


async def health() -> str:
    return "ok\n"


def limit_body(app: Callable) -> Callable:
    """Wrap an application so that a body of more than ``MOST_BODY_BYTES`` is refused.

    It is refused while it arrives, chunked or not.
    """

    async def answer(scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        left = MOST_BODY_BYTES

        async def receive_counted() -> Any:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(
                    413, f"a body has at most {MOST_BODY_BYTES:,} bytes: send fewer texts at a time"
                )
            return message

        await app(scope, receive_counted, send)

    return answer


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
    message = f"{request.method} {request.url.path}: {error.detail}"
    return refusal(error.status_code, message, error.headers, code)


async def invalid_request(request: Request, error: Any) -> Response:
    """Answer what the models of requests refuse: where it is, and what was expected."""
    problems = []
    # A few tell enough. "input" may be a text or texts: a wrong one has an error for either.
    for problem in error.errors()[:4]:
        place = ".".join(str(part) for part in problem["loc"][1:])
        if not place:
            place = "the body, a JSON object sent as application/json"
        problems.append(f"{place}: {problem['msg']}")
    return refusal(400, "; ".join(problems))


async def bad_input(request: Request, error: Any) -> Response:
    """Answer what the engine refuses."""
    return refusal(400, str(error))


async def full_queue(request: Request, error: Any) -> Response:
    """Answer when to come back."""
    message = f"the queue is full: try again in {error} s"
    return refusal(429, message, {"Retry-After": str(error)})


async def internal_error(request: Request, error: Any) -> Response:
    """Answer after a bug: the log has the traceback, the answer has none."""
    return refusal(500, "internal error")
