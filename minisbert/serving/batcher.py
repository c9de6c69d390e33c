"""Requests that wait while a batch is computed share the next one."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any


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
