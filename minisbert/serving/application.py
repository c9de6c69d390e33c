"""Speak HTTP: embeddings as OpenAI and Cohere have them, reranking as Cohere, Jina and TEI do, over Starlette.

Checks what clients send, by the table in ``forms.py``; ``engine.py`` computes. Errors are one line in OpenAI's form.
TEI: text-embeddings-inference.
"""

import asyncio
import hmac
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_text
from minisbert.core.encoder import normalize
from minisbert.models.encoder import BATCH_TOKENS
from minisbert.serving.connections import Limits
from minisbert.serving.engine import Batcher, Busy, Embedded, Engine, Scored
from minisbert.serving.forms import (
    EMBED,
    EMBEDDINGS,
    RERANK,
    as_type,
    check_form,
    openapi,
    page,
    ranking,
    read_documents,
    read_embed_texts,
    read_inputs,
    read_types,
)

# status -> OpenAI's name of the error; all others, 404 too, are "invalid_request_error"
ERRORS = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class Server:
    """The routes, and what they share.

    engine     computes
    api_key    the bearer token that every request but /health must carry; "" for none
    truncate   what happens to a text beyond the model's limit: "cut" says so in the answer, "error" refuses
    any_model  whether a request may name another model than the one that answers
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits | None = None,
        api_key: str = "",
        truncate: str = "cut",
        any_model: bool = False,
    ):
        self.engine = engine
        self.limits = limits or Limits()
        self.api_key = api_key.encode()
        self.may_cut = truncate == "cut"
        self.any_model = any_model
        self.operations: list[tuple[str, str, str, dict[str, Any] | None]] = []  # for ``openapi``
        # one thread for both: beside each other, encoder and reranker would fight for the same cores
        thread = ThreadPoolExecutor(1)
        sizes = (self.limits.batch_texts, self.limits.waiting_texts)
        self.embeddings = Batcher(engine.embed, thread, *sizes)
        self.scores = Batcher(engine.score, thread, *sizes)

        self.registry = CollectorRegistry()  # not the process's, in which a second server's names would clash
        own = {"registry": self.registry, "namespace": "minisbert"}
        self.requests = Counter("requests", "Requests by path and status.", ("path", "status"), **own)
        self.seconds = Histogram("request_seconds", "Seconds from request to answer.", ("path",), **own)
        self.tokens = Counter("tokens", "Tokens read, special ones included.", **own)
        batches = Histogram("batch_texts", "Texts computed together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **own)
        waiting = Gauge("waiting_texts", "Texts that wait.", **own)
        waiting.set_function(lambda: self.embeddings.waiting_items + self.scores.waiting_items)
        self.embeddings.on_batch = self.scores.on_batch = batches.observe

    def application(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            self.route("POST", "/v1/embeddings", self.embed, EMBEDDINGS),
            self.route("POST", "/v1/embed", self.embed_for_cohere, EMBED),  # Cohere's first API
            self.route("POST", "/v2/embed", self.embed_for_cohere, EMBED),  # its second
            self.route("POST", "/v1/rerank", self.rerank, RERANK),  # Cohere's first API, and Jina's
            self.route("POST", "/v2/rerank", self.rerank, RERANK),  # Cohere's second
            self.route("POST", "/rerank", self.rerank, RERANK),  # TEI's and vLLM's
            self.route("POST", "/infinity/rerank", self.rerank, RERANK),  # vLLM's request, but another answer
            self.route("GET", "/v1/models", self.models),
            self.route("GET", "/v1/models/{name:path}", self.models),  # names of the Hub have a slash
            self.route("GET", "/info", self.info),
            self.route("GET", "/metrics", self.metrics),
            self.route("GET", "/openapi.json", self.description),
            self.route("GET", "/docs", self.docs),
            Route("/health", health),
        ]
        return Starlette(routes=routes, exception_handlers={404: not_found, 405: not_found, 500: failed})

    def route(
        self,
        method: str,
        path: str,
        answer: Callable[[Request], Awaitable[Response]],
        form: dict[str, Any] | None = None,
    ) -> Route:
        """Return a route that checks the key, turns errors into answers, and is counted. ``form`` is its request's."""
        about = (answer.__doc__ or "").partition("\n")[0]
        self.operations.append((method, path, about.partition(": ")[2] or about, form))

        async def endpoint(request: Request) -> Response:
            with self.seconds.labels(path).time():
                try:
                    self.check_key(request)
                    response = await answer(request)
                except HTTPException as error:
                    code = None
                    if error.status_code == 404:  # of a path that there is
                        code = "model_not_found"
                    response = refusal(error.status_code, error.detail, error.headers, code)
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

    def check_model(self, content: dict[str, Any], name: str) -> None:
        """Raise ``HTTPException`` if the request names another model, as OpenAI's own server does."""
        asked = content.get("model")
        # no name is no other name: TEI's and most rerankers' clients send none
        if asked not in (None, name) and not self.any_model:
            raise HTTPException(404, f"the model {one_line(asked)} does not exist, this is {name}: see GET /v1/models")

    # ----------------------------------------------------------------------------------- what clients send

    async def content(self, request: Request, form: dict[str, Any]) -> dict[str, Any]:
        """Read the JSON object of a request, with all fields of its form.

        Raises ``HTTPException`` if it is too large, too slow, or none, and ``InputError`` as ``check_form``.
        """
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
        return check_form(content, form)

    def check_texts(self, name: str, given: Sequence[str | list[int]]) -> None:
        """Raise ``HTTPException`` or ``InputError`` for too many texts, too long ones, and ids that are no tokens."""
        limits = self.limits
        if len(given) > limits.texts:
            raise HTTPException(413, f"{name} has {len(given):,} texts, at most {limits.texts:,} are accepted")
        for i, each in enumerate(given):
            if not isinstance(each, str):
                self.engine.check_ids(each)
                continue
            if len(each) > limits.characters:
                most = f"at most {limits.characters:,} are accepted: split it"
                raise HTTPException(413, f"{name}[{i}] has {len(each):,} characters, {most}")
            check_text(i, each)

    # --------------------------------------------------------------------------------------------- answers

    async def embed(self, request: Request) -> Response:
        """Answer POST /v1/embeddings: a text, texts, token ids or lists of them -> vectors, as OpenAI has it."""
        content = await self.content(request, EMBEDDINGS)
        self.check_model(content, self.engine.name)
        inputs = read_inputs(content["input"])
        self.check_texts("input", inputs)
        vectors, usage, cut = await self.vectors(inputs, content["input_type"], content["dimensions"], self.may_cut)
        coded = as_type(vectors, content["encoding_format"])
        data = []
        for i, vector in enumerate(coded):
            data.append({"object": "embedding", "index": i, "embedding": vector})
        return with_cut({"object": "list", "data": data, "model": self.engine.name, "usage": usage}, cut)

    async def embed_for_cohere(self, request: Request) -> Response:
        """Answer POST /v1/embed and /v2/embed: texts -> vectors, of several types at once, as Cohere has it."""
        content = await self.content(request, EMBED)
        self.check_model(content, self.engine.name)
        texts, types = read_embed_texts(content), read_types(content["embedding_types"])
        self.check_texts("texts", texts)
        may_cut = self.may_cut
        if content["truncate"] is not None:  # the request has the last word, as in TEI's rerankings
            may_cut = content["truncate"] == "END"
        role = content["input_type"] and content["input_type"].removeprefix("search_")
        vectors, usage, cut = await self.vectors(texts, role, content["output_dimension"], may_cut)

        answer = {"id": str(uuid.uuid4()), "response_type": "embeddings_by_type", "texts": texts}
        if types or request.url.path.endswith("/v2/embed"):
            answer["embeddings"] = {name: as_type(vectors, name) for name in types or ["float"]}
        else:  # the first API's answer before there were types
            answer |= {"response_type": "embeddings_floats", "embeddings": as_type(vectors, "float")}
        answer["meta"] = {"billed_units": {"input_tokens": usage["prompt_tokens"]}}
        return with_cut(answer, cut)

    async def vectors(
        self, inputs: Sequence[Any], role: str | None, columns: int | None, may_cut: bool
    ) -> tuple[np.ndarray, dict[str, int], list[int]]:
        """Embed texts or token ids; return the vectors (N, D) or their columns, the usage, and which texts were cut."""
        # the model's prompt belongs to the batch: texts with different prompts are not computed together
        prompt = self.engine.prompt(role)
        width = self.engine.encoder.get_embedding_dimension()
        if columns is not None and columns > width:
            raise HTTPException(400, f"the model's vectors have {width} dimensions, not {columns}")
        # a request that times out here frees its place in the queue
        async with asyncio.timeout(self.limits.seconds):
            embedded: list[Embedded] = await self.embeddings.submit(prompt, inputs)

        cut = check_cut(embedded, "input {}", self.engine.encoder.tokenizer.limit, may_cut)
        vectors = np.stack([each.vector for each in embedded])  # (N, D)
        if columns is not None and columns < width:  # of length 1 again, as OpenAI does (Matryoshka embeddings)
            vectors = normalize(torch.from_numpy(vectors[:, :columns])).numpy()
        return vectors, self.usage(embedded), cut

    async def rerank(self, request: Request) -> Response:
        """Answer POST /v1/rerank and its likes: a query and documents -> their numbers and scores, best first.

        The request's form decides the answer's: ``documents`` are Cohere's and Jina's, ``texts`` TEI's.
        """
        content = await self.content(request, RERANK)
        if self.engine.reranker is None:
            raise HTTPException(404, "there is no reranker: start the server with --reranker MODEL")
        self.check_model(content, self.engine.reranker_name)
        query, documents, is_tei = read_documents(content)
        self.check_texts("query", [query])
        self.check_texts("texts" if is_tei else "documents", documents)
        # 0 is all of them, as absent; more than there are is all of them, too
        most = content["top_n"] or content["top_k"] or len(documents)
        shown: list[Any] | None = None
        if content["return_documents"] or content["return_text"]:
            shown = documents
            if not is_tei and not request.url.path.endswith("/infinity/rerank"):
                shown = [{"text": text} for text in documents]
        raw = content["raw_scores"]
        if is_tei and raw is None:  # TEI's default is a sigmoid of every model's output
            raw = False
        # TEI's, too: the request has the last word on whether a text is cut, and the model on where
        may_cut = self.may_cut
        if content["truncate"] is not None:
            may_cut = content["truncate"]
        async with asyncio.timeout(self.limits.seconds):
            scored: list[Scored] = await self.scores.submit(query, documents)

        cut = check_cut(scored, "document {} with the query", self.engine.reranker.tokenizer.limit, may_cut)
        usage = self.usage(scored)
        outputs = [each.output for each in scored]
        # by the outputs: two of them may have the same sigmoid. Stable: of equal ones, the first document comes first
        order = sorted(range(len(outputs)), key=lambda row: -outputs[row])[:most]
        results = ranking(order, self.engine.scaled(outputs, raw), shown, is_tei)
        if is_tei:
            return with_cut(results, cut)
        # usage is where Jina's clients look, meta where Cohere's do
        answer = {"id": str(uuid.uuid4()), "object": "list", "model": self.engine.reranker_name, "results": results}
        answer |= {"usage": usage, "meta": {"tokens": {"input_tokens": usage["prompt_tokens"]}}}
        return with_cut(answer, cut)

    def usage(self, results: Sequence[Embedded | Scored]) -> dict[str, int]:
        """Sum the tokens of a request, and count them."""
        tokens = sum(each.tokens for each in results)
        self.tokens.inc(tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    async def models(self, request: Request) -> Response:
        """Answer GET /v1/models: the encoder and the reranker, and for /v1/models/NAME one of them."""
        cards = {}
        for name in (self.engine.name, self.engine.reranker_name):
            if name:
                cards[name] = {"id": name, "object": "model", "created": 0, "owned_by": "minisbert"}
        asked = request.path_params.get("name")
        if asked is None:
            return JSONResponse({"object": "list", "data": list(cards.values())})
        if asked not in cards:
            raise HTTPException(404, f"the model {one_line(asked)} does not exist, only {' and '.join(cards)}")
        return JSONResponse(cards[asked])

    async def info(self, request: Request) -> Response:
        """Answer GET /info: model, dtype and limits, by TEI's keys and two of our own, compiled and max_characters."""
        engine, limits = self.engine, self.limits
        kinds: dict[str, Any] = {"embedding": {"pooling": engine.encoder.pooling_mode}}
        if engine.reranker is not None:
            kinds["reranker"] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        about = {
            "model_id": engine.name,
            "model_sha": None,
            "model_dtype": engine.used_dtype,
            "model_type": kinds,
            "compiled": engine.compiled,
            "max_concurrent_requests": limits.waiting_texts,  # of one text each
            "max_input_length": engine.encoder.tokenizer.limit,
            "max_batch_tokens": BATCH_TOKENS,
            "max_client_batch_size": limits.texts,
            "max_characters": limits.characters,
            "auto_truncate": self.may_cut,
            "tokenization_workers": 1,
            "version": __version__,
        }
        return JSONResponse(about)

    async def description(self, request: Request) -> Response:
        """Answer GET /openapi.json: paths and fields, as an OpenAPI 3.1 document."""
        return JSONResponse(openapi(self.operations))

    async def docs(self, request: Request) -> Response:
        """Answer GET /docs: paths and fields, as a page."""
        return HTMLResponse(page(openapi(self.operations)))

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics: what was counted, in Prometheus' format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


def check_cut(results: Sequence[Embedded | Scored], name: str, limit: int, allowed: bool | None) -> list[int]:
    """Return the numbers of the texts that were cut. Raises ``HTTPException`` if they must not be.

    After they were computed: only the tokenizer, which runs in the other thread, knows what it cuts.
    """
    cut = [i for i, each in enumerate(results) if each.cut]
    if cut and not allowed:
        raise HTTPException(400, f"{name.format(cut[0])} has more than {limit} tokens")
    return cut


def with_cut(answer: Any, cut: list[int]) -> Response:
    """Answer, and name the texts that were cut."""
    headers = {}
    if cut:
        headers["X-Truncated"] = ",".join(map(str, cut[:100]))  # proxies refuse long headers
        if isinstance(answer, dict):  # in TEI's array it has no place
            answer["truncated"] = cut
    return JSONResponse(answer, headers=headers)


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None) -> Response:
    """Answer an error in OpenAI's form."""
    error = {"message": message, "type": ERRORS.get(status, "invalid_request_error"), "param": None, "code": code}
    return JSONResponse({"error": error}, status, headers)


async def health(request: Request) -> Response:
    return PlainTextResponse("ok\n")  # without a key: whoever asks is a probe


async def not_found(request: Request, error: HTTPException) -> Response:
    """Answer 404 for an unknown path, and 405 for another method of a known one, whose header Allow Starlette makes."""
    message = f"there is no {request.method} {request.url.path}"
    if error.headers:
        message += f": use {error.headers['Allow']}"
    return refusal(error.status_code, message, error.headers)


async def failed(request: Request, error: Exception) -> Response:
    return refusal(500, "internal error")  # a bug: the log has the traceback, the answer has none
