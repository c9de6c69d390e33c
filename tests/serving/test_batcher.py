"""Requests that wait share a batch; each gets its own results, errors and turn."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from minisbert.serving.batcher import Batcher, Busy


class Recorder:
    """Capitals of letters, once ``go`` is set; records what it was called with."""

    def __init__(self):
        self.calls = []
        self.go = threading.Event()

    def __call__(self, key, items):
        assert self.go.wait(10)
        self.calls.append((key, list(items)))
        if "bad" in items:
            raise ValueError("bad item")
        return [item.upper() for item in items]


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
            batcher, ("x", ["a"]), ("x", ["b", "c"]), ("y", ["d"]), ("x", ["e"]), ("x", ["f"])
        )
        compute.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [["A"], ["B", "C"], ["D"], ["E"], ["F"]]
    assert compute.calls == [("x", ["a"]), ("x", ["b", "c"]), ("y", ["d"]), ("x", ["e", "f"])]


def test_a_large_request_is_cut_and_keeps_its_order(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor, batch_items=3)
        compute.go.set()
        return await batcher.submit("x", list("abcdefgh"))

    assert asyncio.run(scenario()) == list("ABCDEFGH")
    assert compute.calls == [("x", ["a", "b", "c"]), ("x", ["d", "e", "f"]), ("x", ["g", "h"])]


def test_a_small_request_waits_for_a_piece_of_a_large_one_and_not_for_the_whole(compute, executor):
    """Whoever embeds a library must not hold up a search."""

    async def scenario():
        batcher = Batcher(compute, executor, batch_items=2)
        tasks = await started(batcher, ("x", list("abcdef")), ("y", ["z"]))
        compute.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(scenario()) == [list("ABCDEF"), ["Z"]]
    assert compute.calls == [
        ("x", ["a", "b"]),
        ("y", ["z"]),
        ("x", ["c", "d"]),
        ("x", ["e", "f"]),
    ]


def test_a_piece_of_long_texts_has_fewer_of_them(compute, executor):
    """Sixty-four texts of a page are seconds on a CPU, and all others wait for them."""

    async def scenario():
        batcher = Batcher(compute, executor, piece_seconds=1.0)
        batcher.seconds_per_character = 0.1
        compute.go.set()
        await batcher.submit("", ["a" * 20, "b" * 6, "c" * 4, "d" * 2])

    asyncio.run(scenario())
    assert compute.calls == [("", ["a" * 20]), ("", ["b" * 6, "c" * 4]), ("", ["d" * 2])]


def test_long_items_count_as_far_as_they_are_read(compute, executor):
    """The model cuts them, so ten pages take as long as one, and a book as long as ten pages."""

    async def scenario():
        batcher = Batcher(compute, executor, piece_seconds=1.0, read_characters=5)
        batcher.seconds_per_character = 0.1
        compute.go.set()
        await batcher.submit("", ["a" * 20, "b" * 60, "c" * 5])

    asyncio.run(scenario())
    assert compute.calls == [("", ["a" * 20, "b" * 60]), ("", ["c" * 5])]


def test_a_slow_computation_makes_shorter_pieces(executor):
    """How long a character takes depends on the model and the machine."""
    calls = []

    def slow(key, items):
        calls.append(len(items))
        if len(calls) == 1:
            time.sleep(0.5)
        return items

    async def scenario():
        batcher = Batcher(slow, executor, batch_items=32, piece_seconds=0.1)
        await batcher.submit("", ["a" * 100] * 200)  # at first 2e-5 seconds a character

    asyncio.run(scenario())
    assert calls[0] == 32
    assert calls[1] < 32


def test_a_bad_item_fails_its_own_request_only(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor)
        tasks = await started(batcher, ("x", ["a"]), ("x", ["b"]), ("x", ["bad"]), ("x", ["c"]))
        compute.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, bad, last = asyncio.run(scenario())
    assert (first, second, last) == (["A"], ["B"], ["C"])
    assert str(bad) == "bad item"


def test_a_full_queue_refuses_with_the_seconds_to_wait(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor, batch_items=2, most_items=3)
        batcher.seconds_per_item = 2.0
        tasks = await started(batcher, ("x", ["a"]), ("x", ["b", "c"]))
        with pytest.raises(Busy) as refused:
            await batcher.submit("x", ["d", "e"])
        compute.go.set()
        return refused.value.seconds, await asyncio.gather(*tasks), batcher.waiting_items

    seconds, results, waiting = asyncio.run(scenario())
    assert seconds == 1 + 2 * 2  # two items wait, two seconds each
    assert results == [["A"], ["B", "C"]]
    assert waiting == 0


def test_a_request_that_was_given_up_is_not_computed(compute, executor):
    async def scenario():
        batcher = Batcher(compute, executor)
        first, given_up, last = await started(batcher, ("x", ["a"]), ("x", ["b"]), ("x", ["c"]))
        given_up.cancel()
        await asyncio.sleep(0.01)
        compute.go.set()
        return await first, await last, batcher.waiting_items

    assert asyncio.run(scenario()) == (["A"], ["C"], 0)
    assert compute.calls == [("x", ["a"]), ("x", ["c"])]


def test_a_large_request_that_was_given_up_is_computed_no_further(compute, executor):
    """Its items are not counted as waiting either: they would fill the queue for ever."""

    async def scenario():
        batcher = Batcher(compute, executor, batch_items=2)
        (given_up,) = await started(batcher, ("x", list("abcdef")))
        given_up.cancel()
        await asyncio.sleep(0.01)
        compute.go.set()
        return await batcher.submit("x", ["z"]), batcher.waiting_items

    assert asyncio.run(scenario()) == (["Z"], 0)
    assert compute.calls == [("x", ["a", "b"]), ("x", ["z"])]
