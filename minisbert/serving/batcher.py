"""A queue in front of the engine: requests that wait together share a batch, and take turns."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

# A batch of so many characters tells how long a character takes.
MEASURED_CHARACTERS = 1000


class Busy(Exception):
    """The queue is full. ``seconds`` is an estimate of when what waits will have been answered."""

    def __init__(self, seconds: int):
        super().__init__(f"the queue is full: try again in {seconds} s")
        self.seconds = seconds


@dataclass
class Piece:
    """Items of one request that are computed together.

    Pieces with the same ``key`` may share a batch.
    """

    key: str
    items: Sequence[str]
    result: asyncio.Future  # gets the list of the items' results


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
    # An item of more characters takes no longer: the model cuts it.
    read_characters: float = math.inf
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
            # Items that were never queued wait no more. ``next_batch`` subtracts the others, as
            # they leave the queue.
            self.waiting_items -= len(items) - queued
        return results

    def next_piece(self, key: str, items: Sequence[str]) -> Piece:
        """Take the first item, and those after it that can be computed in ``piece_seconds``."""
        piece_items: list[str] = []
        seconds = 0.0
        for item in items:
            seconds += self.count_characters(key, item) * self.seconds_per_character
            if piece_items and seconds > self.piece_seconds:
                break
            piece_items.append(item)
        return Piece(key, piece_items, asyncio.get_running_loop().create_future())

    def count_characters(self, key: str, item: str) -> float:
        """Count the characters that are read for an item: the key stands beside it."""
        return min(len(key) + len(item), self.read_characters)

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
        key = batch[0].key  # of all of them
        items: list[str] = []
        for piece in batch:
            items += piece.items
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            results = await loop.run_in_executor(self.executor, self.compute, key, items)
        except Exception as error:
            if len(batch) > 1:
                for piece in batch:
                    await self.compute_batch([piece])
            elif not batch[0].result.done():  # alone, so the error is its own
                batch[0].result.set_exception(error)
            return

        self.note_seconds(key, items, loop.time() - start)
        if self.on_batch is not None:
            self.on_batch(len(items))

        # Divide the results among the pieces.
        first = 0
        for piece in batch:
            last = first + len(piece.items)
            if not piece.result.done():  # the client may have gone while the batch was computed
                piece.result.set_result(results[first:last])
            first = last

    def note_seconds(self, key: str, items: Sequence[str], seconds: float) -> None:
        """Update the running means with the time that a batch has taken.

        They are over the last few batches, because clients and their texts change: ten or so for
        the time of a text, which differs most, and three for that of a character.
        """
        self.seconds_per_item = 0.9 * self.seconds_per_item + 0.1 * seconds / len(items)
        characters = sum(self.count_characters(key, item) for item in items)
        # A few short texts say nothing about longer ones: their time is that of the call.
        if characters >= MEASURED_CHARACTERS:
            mean = 0.7 * self.seconds_per_character + 0.3 * seconds / characters
            self.seconds_per_character = mean
