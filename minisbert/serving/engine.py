"""Compute what the server answers: vectors of texts, and scores of documents for a query.

``Engine`` computes in the calling thread. ``Batcher`` puts a queue in front of it, so that requests
share batches.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minisbert.backends.cuda import CudaEncoder
from minisbert.backends.package import CompiledEncoder
from minisbert.core import InputError
from minisbert.loading import Encoder, load_dense
from minisbert.models.pair_model import TASKS_WITH_LABELS, PairScorer
from minisbert.models.properties import as_array, choose_prompt, role_prompt
from minisbert.system.devices import choose_dtype


class Result(NamedTuple):
    """What was computed for a text or a document."""

    value: Any  # a vector (D,) float32, or a score
    tokens: int  # how many were read, special ones included
    cut: bool  # whether the text was longer than the model's limit


@dataclass
class Engine:
    """An encoder and, optionally, a reranker, with the names by which clients know them.

    ``dtype`` is an option of ``encode``. The reranker computes in float32.
    """

    name: str
    encoder: Encoder
    reranker: PairScorer | None = None
    reranker_name: str = ""
    dtype: str | None = None

    def __post_init__(self) -> None:
        load_dense(self.encoder)  # refuses SPLADE and ColBERT
        if self.reranker is not None and self.reranker.task in TASKS_WITH_LABELS:
            raise InputError(
                f"{self.reranker_name} gives several numbers; a reranker gives one score for each "
                f"pair"
            )
        self.about = self.describe()

    def describe(self) -> str:
        """Say which models answer, how they compute, and how long a text may be."""
        if isinstance(self.encoder, CompiledEncoder | CudaEncoder):
            arithmetic = f"{self.encoder.compiled_dtype}, compiled"
        else:
            dtype, _ = choose_dtype(self.dtype or "float32", self.encoder.device)
            arithmetic = f"{str(dtype).removeprefix('torch.')}, not compiled"
        text = f"{self.name} ({arithmetic}, {self.encoder.tokenizer.limit:,} tokens)"
        if self.reranker is not None:
            limit = self.reranker.tokenizer.limit
            text += f" and {self.reranker_name} (float32, not compiled, {limit:,} tokens)"
        return text

    def prompt(self, role: str | None) -> str:
        """Return the model's prompt for a "query" or a "document", or for None its default.

        It is "" if the model has none.
        """
        settings = self.encoder.settings
        if role is None:
            return choose_prompt(settings)
        return role_prompt(settings, role)

    def embed(self, prompt: str, texts: Sequence[str]) -> list[Result]:
        """Embed texts in one call. Raises ``InputError``."""
        tokens = self.encoder.tokens_of(texts, prompt)
        vectors = as_array(self.encoder.vectors_of(tokens, dtype=self.dtype))  # (N, D)
        vectors = np.asarray(vectors, dtype=np.float32)
        results = []
        for vector, ids, cut in zip(vectors, tokens.ids, tokens.truncated, strict=True):
            results.append(Result(vector, len(ids), cut))
        return results

    def score(self, query: str, documents: Sequence[str]) -> list[Result]:
        """Score each document for a query with the reranker, as its ``predict`` does.

        Raises ``InputError``.
        """
        assert self.reranker is not None, "the application answers 404"
        count = len(documents)
        scores = self.reranker.predict([(query, document) for document in documents]).tolist()
        # The reranker does not keep what it has read: tokenizing a second time costs little beside
        # the forward.
        encoded = self.reranker.tokenize([query] * count, documents)
        results: list[Result] = []
        for i, score in enumerate(scores):
            # A head over two vectors reads 2 N rows: N times the query, then the N documents. Rows
            # i and N + i are those of document i. Other heads read N rows.
            tokens = sum(len(ids) for ids in encoded.ids[i::count])
            cut = any(encoded.truncated[i::count])
            results.append(Result(score, tokens, cut))
        return results


# A batch of so many characters tells how long a character takes.
MEASURED_CHARACTERS = 1000


class Busy(Exception):
    """The queue is full. The argument estimates the seconds until what waits has been answered."""


@dataclass
class Piece:
    """Items of one request that are computed together.

    Pieces with the same ``key`` may share a batch.
    """

    key: str
    items: Sequence[str]
    result: asyncio.Future

    def characters(self) -> int:
        """Count the characters that are read: the key stands beside each item."""
        return sum(len(self.key) + len(item) for item in self.items)


@dataclass
class Batcher:
    """A queue in front of ``compute``, which runs in one thread.

    One text computed alone leaves the processor half idle, and sixteen take little longer than
    four. So nothing is delayed to wait for company: what has arrived when the thread is free is
    computed at once, together.
    """

    # ``compute(key, items)`` returns a list with a result for each item. Key and items are a prompt
    # and texts, or a query and documents.
    compute: Callable[[str, Sequence[str]], list]
    executor: Executor  # has one thread: OpenMP makes a set of threads for each that computes
    batch_items: int = 64  # in one call of ``compute``
    # A larger request is cut into pieces that take about so long, and takes turns with the others:
    # its next piece is queued when the one before is answered.
    piece_seconds: float = 0.025
    most_items: int = 4096  # so many may wait; for more, ``submit`` raises ``Busy``
    on_batch: Callable[[int], object] | None = None  # is told how many items were in a batch
    waiting: deque[Piece] = field(default_factory=deque, init=False)
    waiting_items: int = field(default=0, init=False)
    # Running means of what was computed, for ``Busy`` and for the length of pieces.
    seconds_per_item: float = field(default=0.01, init=False)
    seconds_per_character: float = field(default=2e-5, init=False)
    arrived: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    task: asyncio.Task | None = field(default=None, init=False)

    async def submit(self, key: str, items: Sequence[str]) -> list[Any]:
        """Return the results of all items, in order.

        Raises ``Busy``, or what ``compute`` raises for these items.
        """
        # An empty queue takes a request of any size, which could never be accepted otherwise.
        if self.waiting_items and self.waiting_items + len(items) > self.most_items:
            raise Busy(1 + int(self.waiting_items * self.seconds_per_item))
        if self.task is None:  # not in __init__, where no loop runs yet
            self.task = asyncio.create_task(self.run())

        results: list[Any] = []
        queued = 0
        self.waiting_items += len(items)
        try:
            while queued < len(items):
                piece = self.next_piece(key, items[queued : queued + self.batch_items])
                self.waiting.append(piece)
                queued += len(piece.items)
                self.arrived.set()
                # If the client hangs up, this is cancelled, and with it a piece that still waits.
                results += await piece.result
        finally:
            # Those in the queue are counted where they leave it.
            self.waiting_items -= len(items) - queued
        return results

    def next_piece(self, key: str, items: Sequence[str]) -> Piece:
        """Take the first item, and those after it that can be computed in ``piece_seconds``."""
        seconds = 0.0
        for count, item in enumerate(items):
            seconds += (len(key) + len(item)) * self.seconds_per_character
            if count > 0 and seconds > self.piece_seconds:
                items = items[:count]
                break
        return Piece(key, items, asyncio.get_running_loop().create_future())

    async def run(self) -> None:
        """Compute what waits, forever."""
        while True:
            await self.arrived.wait()
            batch = self.next_batch()
            if batch:
                await self.compute_batch(batch)
            else:
                self.arrived.clear()

    def next_batch(self) -> list[Piece]:
        """Take the piece that has waited longest, and those after it that fit beside it.

        Cancelled pieces are dropped.
        """
        batch: list[Piece] = []
        items = 0
        while self.waiting:
            piece = self.waiting[0]
            if piece.result.done():
                self.waiting_items -= len(self.waiting.popleft().items)
                continue
            # No later piece overtakes: one that does not fit beside the first is the first of the
            # next batch.
            fits = items + len(piece.items) <= self.batch_items
            if batch and (piece.key != batch[0].key or not fits):
                break
            batch.append(self.waiting.popleft())
            items += len(piece.items)
        self.waiting_items -= items
        return batch

    async def compute_batch(self, batch: list[Piece]) -> None:
        """Compute pieces together; if that fails, each alone.

        So a bad text fails its own request only.
        """
        items: list[str] = []
        for piece in batch:
            items += piece.items
        characters = sum(piece.characters() for piece in batch)
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            results = await loop.run_in_executor(self.executor, self.compute, batch[0].key, items)
        except Exception as error:
            if len(batch) > 1:
                for piece in batch:
                    await self.compute_batch([piece])
            elif not batch[0].result.done():  # alone, so the error is its own
                batch[0].result.set_exception(error)
            return

        # The mean over the last ten batches or so: clients and their texts change.
        seconds = loop.time() - start
        self.seconds_per_item = 0.9 * self.seconds_per_item + 0.1 * seconds / len(items)
        # A few short texts say nothing about longer ones: their time is that of the call.
        if characters >= MEASURED_CHARACTERS:
            mean = 0.7 * self.seconds_per_character + 0.3 * seconds / characters
            self.seconds_per_character = mean
        if self.on_batch is not None:
            self.on_batch(len(items))

        first = 0
        for piece in batch:
            last = first + len(piece.items)
            if not piece.result.done():  # the client may have gone while the batch was computed
                piece.result.set_result(results[first:last])
            first = last
