"""Requests that wait share a batch; each gets its own results, errors and turn."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisbert.serving.engine import Batcher, Busy


class Recorder:
    """Doubles numbers, once ``go`` is set, and records what it was called with."""

    def __init__(self):
        self.calls = []
        self.go = threading.Event()

    def __call__(self, key, items):
        assert self.go.wait(10)
        self.calls.append((key, list(items)))
        if "bad" in items:
            raise ValueError("bad item")
        return [2 * item for item in items]


@pytest.fixture
def compute():
    return Recorder()


@pytest.fixture
def executor():
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def started(batcher, *requests):
    """The tasks of requests (key, items), submitted one by one while nothing is computed."""
    tasks = []
    for key, items in requests:
        tasks.append(asyncio.create_task(batcher.submit(key, items)))
        await asyncio.sleep(0.01)
    return tasks


def test_what_waits_is_computed_together_and_by_key(compute, executor):
    """The first request was alone when it came; then the oldest takes those of its key that fit."""

    async def scenario():
        batcher = Batcher(compute, executor, batch_items=4)
        tasks = await started(
            batcher, ("a", [1]), ("a", [2, 3]), ("b", [4]), ("a", [5]), ("a", [6])
        )
        compute.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [[2], [4, 6], [8], [10], [12]]
    assert compute.calls == [("a", [1]), ("a", [2, 3]), ("b", [4]), ("a", [5, 6])]


def test_a_large_request_is_cut_and_keeps_its_order(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor, batch_items=3)
        compute.go.set()
        return await batcher.submit("a", list(range(8)))

    assert asyncio.run(scenario()) == [2 * i for i in range(8)]
    assert [len(items) for _, items in compute.calls] == [3, 3, 2]


def test_a_bad_item_fails_its_own_request_only(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor)
        tasks = await started(batcher, ("a", [0]), ("a", [1]), ("a", ["bad"]), ("a", [2]))
        compute.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    zero, one, bad, two = asyncio.run(scenario())
    assert (zero, one, two) == ([0], [2], [4])
    assert str(bad) == "bad item"


def test_a_full_queue_refuses_with_the_seconds_to_wait(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor, batch_items=2, most_items=3)
        batcher.seconds_per_item = 2.0
        tasks = await started(batcher, ("a", [0]), ("a", [1, 2]))
        with pytest.raises(Busy) as refused:
            await batcher.submit("a", [3, 4])
        compute.go.set()
        return refused.value.args[0], await asyncio.gather(*tasks), batcher.waiting_items

    seconds, results, waiting = asyncio.run(scenario())
    assert seconds == 1 + 2 * 2  # two items wait, two seconds each
    assert results == [[0], [2, 4]]
    assert waiting == 0


def test_a_request_that_was_given_up_is_not_computed(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor)
        first, given_up, last = await started(batcher, ("a", [0]), ("a", [1]), ("a", [2]))
        given_up.cancel()
        await asyncio.sleep(0.01)
        compute.go.set()
        return await first, await last, batcher.waiting_items

    assert asyncio.run(scenario()) == ([0], [4], 0)
    assert compute.calls == [("a", [0]), ("a", [2])]
