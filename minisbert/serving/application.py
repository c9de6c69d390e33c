"""Speak HTTP: OpenAI's embeddings, reranking as Cohere, Jina and TEI have it, health and metrics, over Starlette.

Checks what clients send; ``engine.py`` computes. Errors are one line in OpenAI's form. TEI: text-embeddings-inference.
"""

import asyncio
import base64
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
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.core.checks import check_text
from minisbert.core.encoder import normalize
from minisbert.models.encoder import BATCH_TOKENS
from minisbert.serving.connections import Limits
from minisbert.serving.engine import Batcher, Busy, Embedded, Engine, Scored

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
            self.route("POST", "/v1/embeddings", self.embed),
            self.route("POST", "/v1/rerank", self.rerank),  # Cohere's first API, and Jina's
            self.route("POST", "/v2/rerank", self.rerank),  # Cohere's second
            self.route("POST", "/rerank", self.rerank),  # TEI's
            self.route("GET", "/v1/models", self.models),
            self.route("GET", "/v1/models/{name:path}", self.models),  # names of the Hub have a slash
            self.route("GET", "/info", self.info),
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

    def documents(self, content: dict[str, Any]) -> tuple[str, list[str], bool]:
        """Read the query and the documents of a reranking request, and whether it has TEI's form.

        Raises ``HTTPException`` or ``InputError``.
        """
        name = "documents"
        if content.get("texts") is not None:
            name = "texts"
            if content.get("documents") is not None:
                raise HTTPException(400, "documents and texts are two names of one list: send one of them")
        query, given = content.get("query"), content.get(name)
        if not isinstance(query, str) or not isinstance(given, list) or not given:
            raise HTTPException(400, "send a query, which is a text, and documents (TEI: texts), a list of texts")
        self.check_number(name, given)
        self.check_text("query", 0, query)
        documents: list[str] = []
        for i, text in enumerate(given):
            if isinstance(text, dict):  # as Cohere's clients may send them
                text = text.get("text")
            if not isinstance(text, str):
                raise HTTPException(400, f"{name}[{i}] is neither a text nor an object with a text")
            self.check_text(f"{name}[{i}]", i, text)
            documents.append(text)
        return query, documents, name == "texts"

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
        self.check_model(content, self.engine.name)
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

        cut = check_cut(embedded, "input {}", self.engine.encoder.tokenizer.limit, self.may_cut)
        data = []
        for i, each in enumerate(embedded):
            vector = shortened(each.vector, columns)
            shown: str | list[float] = vector.tolist()
            if encoding == "base64":  # of little-endian float32
                shown = base64.b64encode(vector.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": i, "embedding": shown})
        answer: dict[str, Any] = {"object": "list", "data": data, "model": self.engine.name}
        answer["usage"] = self.usage(embedded)
        return with_cut(answer, cut)

    async def rerank(self, request: Request) -> Response:
        """Answer POST /v1/rerank and its likes: a query and documents -> their numbers and scores, best first.

        The request's form decides the answer's: ``documents`` are Cohere's and Jina's, ``texts`` TEI's.
        """
        content = await self.content(request)
        if self.engine.reranker is None:
            raise HTTPException(404, "there is no reranker: start the server with --reranker MODEL")
        self.check_model(content, self.engine.reranker_name)
        query, documents, is_tei = self.documents(content)
        # 0 is all of them, as absent; more than there are is all of them, too
        most = read_count(content, "top_n", 0, least=0) or read_count(content, "top_k", 0, least=0) or len(documents)
        shown = None
        if read_flag(content, "return_documents") or read_flag(content, "return_text"):
            shown = documents
        raw = read_flag(content, "raw_scores")
        if is_tei and raw is None:  # TEI's default is a sigmoid of every model's output
            raw = False
        # TEI's, too: the request has the last word on whether a text is cut, and the model on where
        may_cut = read_flag(content, "truncate", self.may_cut)
        read_choice(content, "truncation_direction", ("Right",))
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
        """Answer GET /v1/models, the encoder and the reranker, and GET /v1/models/NAME, one of them."""
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
        """Answer GET /info, with TEI's keys, and two that it does not have: compiled and max_characters."""
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

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics, in Prometheus' format."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(x) is int for x in given)  # True and False are no ids


def read_count(content: dict[str, Any], name: str, default: int, least: int = 1) -> int:
    """Read an integer of at least ``least``. Raises ``HTTPException`` for anything else."""
    value = content.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise HTTPException(400, f"{name} must be an integer from {least}")
    return value


def read_flag(content: dict[str, Any], name: str, default: bool | None = None) -> bool | None:
    """Read true or false. Raises ``HTTPException`` for anything else."""
    value = content.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise HTTPException(400, f"{name} must be true or false")
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


def ranking(order: list[int], scores: list[float], shown: list[str] | None, is_tei: bool) -> list[dict[str, Any]]:
    """Return the rows of a reranking under TEI's names, or Cohere's and Jina's, with the texts ``shown``."""
    results = []
    for row in order:
        result: dict[str, Any] = {"index": row}
        result["score" if is_tei else "relevance_score"] = scores[row]
        if shown is not None and is_tei:
            result["text"] = shown[row]
        elif shown is not None:
            result["document"] = {"text": shown[row]}
        results.append(result)
    return results


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
