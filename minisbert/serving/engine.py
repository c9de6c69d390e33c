"""What the server computes: vectors of texts or token ids, and scores of documents for a query."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_text
from minisbert.core.encoder import normalize
from minisbert.loading import Encoder, load_dense
from minisbert.models.batching import as_key
from minisbert.models.pair_model import SEVERAL, PairScorer
from minisbert.models.prompts import choose_prompt, prompt_tokens, role_prompt_name
from minisbert.models.similarity import as_array


class Embedded(NamedTuple):
    """A text's vector (D,) float32, its tokens, special ones included, and whether it was cut at the limit."""

    vector: np.ndarray
    tokens: int
    cut: bool


@dataclass
class Engine:
    """An encoder, and perhaps a reranker, behind names and limits."""

    name: str
    encoder: Encoder
    reranker: PairScorer | None = None
    reranker_name: str = ""

    def __post_init__(self) -> None:
        load_dense(self.encoder)
        if self.reranker is not None and self.reranker.task in SEVERAL:
            raise InputError(f"{self.reranker_name} gives several numbers; a reranker gives one score for each pair")

    @property
    def width(self) -> int:
        """The columns of a vector."""
        return self.encoder.settings.truncate_dim or self.encoder.width

    def shortened(self, vector: np.ndarray, columns: int) -> np.ndarray:
        """The first columns, scaled to length 1 again as OpenAI does (Matryoshka embeddings); or all, as they are."""
        if columns == len(vector):
            return vector
        return normalize(torch.from_numpy(vector[None, :columns]))[0].numpy()

    def prompt(self, role: str | None) -> str:
        """The prompt for ``input_type`` query or document; for None the model's default. A model may have none."""
        settings = self.encoder.settings
        if role is None:
            return choose_prompt(settings)
        return choose_prompt(settings, name=role_prompt_name(settings, role))

    def embed(self, prompt: str, inputs: Sequence[str | list[int]]) -> list[Embedded]:
        """Embed texts, or rows of token ids, in one call. Raises ``InputError``."""
        rows = [self.row(prompt, given) for given in inputs]
        keys = [as_key(ids) for ids, _ in rows]
        vectors = as_array(self.encoder.encode_batches(keys, skip=self.skipped(prompt)))  # (N, D)
        embedded = []
        for (ids, cut), vector in zip(rows, vectors, strict=True):
            embedded.append(Embedded(np.asarray(vector, dtype=np.float32), len(ids), cut))
        return embedded

    def skipped(self, prompt: str) -> int:
        """How many tokens of a prompt the pooling leaves out: those of all of it, or none."""
        if not prompt or self.encoder.settings.include_prompt:
            return 0
        return prompt_tokens(self.encoder.tokenizer, prompt)

    def row(self, prompt: str, given: str | list[int]) -> tuple[list[int], bool]:
        """The token ids of one input, and whether it was cut."""
        tokenizer = self.encoder.tokenizer
        if isinstance(given, str):
            encoded = tokenizer.encode([prompt + given])
            return encoded.ids[0], encoded.truncated > 0
        return tokenizer.frame(given)

    def check(self, number: int, given: str | list[int]) -> None:
        """Raise ``InputError``, with the input's number, for one that cannot be embedded."""
        if isinstance(given, str):
            check_text(number, given)
            return
        size = self.encoder.tokenizer.backend.get_vocab_size()
        outside = next((token for token in given if token not in range(size)), None)
        if outside is not None:
            raise InputError(
                f"token id {one_line(str(outside))} is not one of this model's {size:,}: send texts, or ids of its own "
                "tokenizer without special tokens (LangChain: check_embedding_ctx_length=False)"
            )

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """The score of each document for a query, by the reranker."""
        if self.reranker is None:
            raise InputError("there is no reranker: start the server with --reranker MODEL")
        scores = self.reranker.predict([(query, document) for document in documents])
        return [float(score) for score in scores]


class Refusal(Exception):
    """An answer other than 200: its status, a message, its type in OpenAI's terms, and headers."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", **headers: str):
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": None}}


def read_inputs(engine: Engine, given: Any, most: int) -> list[str | list[int]]:
    """``input`` as a list of texts or rows of token ids. Raises ``Refusal`` or ``InputError``."""
    if isinstance(given, str) or (isinstance(given, list) and given and is_ids(given)):
        given = [given]
    if not isinstance(given, list) or not given:
        raise Refusal(400, "input is not a text, a list of texts, token ids, or a list of lists of token ids")
    check_count("input", given, most)
    for i, each in enumerate(given):
        if not isinstance(each, str) and not is_ids(each):
            raise Refusal(400, f"input[{i}] is neither a text nor a list of token ids")
        engine.check(i, each)
    return given


def is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(type(x) is int for x in given)


def check_count(name: str, given: list[Any], most: int) -> None:
    """Raise ``Refusal`` for more texts than a request may have."""
    if len(given) > most:
        raise Refusal(413, f"{name} has {len(given):,} texts, at most {most:,} are accepted")


def read_count(content: dict[str, Any], name: str, most: int) -> int:
    """An integer from 1 to ``most``, which is the default. Raises ``Refusal``."""
    value = content.get(name)
    if value is None:
        return most
    if type(value) is not int or value not in range(1, most + 1):
        raise Refusal(400, f"{name} is not an integer from 1 to {most}")
    return value


def read_choice(content: dict[str, Any], name: str, choices: tuple[str | None, ...]) -> Any:
    """One of a few values, the first of which is the default. Raises ``Refusal`` for any other."""
    value = content.get(name, choices[0])
    if value not in choices:
        raise Refusal(400, f"{name} is not one of {', '.join(filter(None, choices))}")
    return value


def read_documents(engine: Engine, content: dict[str, Any], most: int) -> tuple[str, list[str]]:
    """The query and the documents of a reranking request. Raises ``Refusal`` or ``InputError``."""
    query, given = content.get("query"), content.get("documents")
    if not isinstance(query, str) or not isinstance(given, list) or not given:
        raise Refusal(400, "a reranking request has a query, which is a text, and documents, a list of texts")
    check_count("documents", given, most)
    engine.check(0, query)
    documents = [each.get("text") if isinstance(each, dict) else each for each in given]
    for i, text in enumerate(documents):
        if not isinstance(text, str):
            raise Refusal(400, f"documents[{i}] is neither a text nor an object with a text")
        engine.check(i, text)
    return query, documents


class Busy(Exception):
    """The queue is full. ``seconds`` is about how long the items that wait will take."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full: try again in {seconds} s")
        self.seconds = seconds


@dataclass
class Piece:
    """Items of one request that are computed together. ``key`` says which pieces may share a batch."""

    key: Any
    items: Sequence[Any]
    result: asyncio.Future


class Batcher:
    """A queue in front of ``compute(key, items) -> results``, which runs in one thread.

    One text computed alone leaves the processor half idle, and sixteen take little longer than four. So nothing is
    delayed to wait for company: what has arrived when the thread is free is computed at once, together.

    compute      a function of a key (a prompt) and a list of items (texts) that returns one result per item
    executor     with one thread: OpenMP makes a set of threads for each thread that computes
    batch_items  the most items in one call of ``compute``; a larger request is cut into pieces, so that a small one
                 that comes later waits for a piece, not for the whole
    most_items   the most items that may wait; beyond them ``submit`` raises ``Busy``
    """

    def __init__(self, compute: Callable, executor: Executor, batch_items: int = 64, most_items: int = 4096):
        self.compute = compute
        self.executor = executor
        self.batch_items = batch_items
        self.most_items = most_items
        self.waiting: deque[Piece] = deque()
        self.waiting_items = 0
        self.seconds_per_item = 0.01  # a running mean, for ``Busy``
        self.arrived = asyncio.Event()
        self.task: asyncio.Task | None = None
        self.on_batch: Callable[[int], None] = lambda items: None

    async def submit(self, key: Any, items: Sequence[Any]) -> list[Any]:
        """The results of all items, in order. Raises ``Busy``, or what ``compute`` raises for these items alone."""
        if self.waiting_items and self.waiting_items + len(items) > self.most_items:
            raise Busy(1 + int(self.waiting_items * self.seconds_per_item))
        if self.task is None:
            self.task = asyncio.create_task(self.run())
        loop = asyncio.get_running_loop()
        starts = range(0, len(items), self.batch_items)
        pieces = [Piece(key, items[start : start + self.batch_items], loop.create_future()) for start in starts]
        self.waiting.extend(pieces)
        self.waiting_items += len(items)
        self.arrived.set()
        results: list[Any] = []
        try:
            for piece in pieces:
                results += await piece.result
        finally:  # a client that has gone, or a piece that failed: the others need not be computed
            for piece in pieces:
                piece.result.cancel()
        return results

    async def run(self) -> None:
        """Compute what waits, for ever."""
        while True:
            await self.arrived.wait()
            batch = self.next_batch()
            if not batch:
                self.arrived.clear()
                continue
            await self.compute_batch(batch)

    def next_batch(self) -> list[Piece]:
        """The piece that has waited longest, and those after it that fit beside it. Pieces given up are left out."""
        batch: list[Piece] = []
        items = 0
        while self.waiting:
            piece = self.waiting[0]
            if piece.result.done():
                self.waiting_items -= len(self.waiting.popleft().items)
                continue
            if batch and (piece.key != batch[0].key or items + len(piece.items) > self.batch_items):
                break
            batch.append(self.waiting.popleft())
            items += len(piece.items)
        self.waiting_items -= items
        return batch

    async def compute_batch(self, batch: list[Piece]) -> None:
        """Compute pieces together; if that fails, one by one, so that a bad text fails its own request only."""
        items = [item for piece in batch for item in piece.items]
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            results = await loop.run_in_executor(self.executor, self.compute, batch[0].key, items)
        except Exception as error:
            if len(batch) > 1:
                for piece in batch:
                    await self.compute_batch([piece])
            elif not batch[0].result.done():
                batch[0].result.set_exception(error)
            return
        self.seconds_per_item = 0.9 * self.seconds_per_item + 0.1 * (loop.time() - start) / len(items)
        self.on_batch(len(items))
        for piece in batch:
            own, results = results[: len(piece.items)], results[len(piece.items) :]
            if not piece.result.done():
                piece.result.set_result(own)
