"""A process of its own for each side of a benchmark: threads do not slow down each other."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.peers import Encode, stay_offline
from minisbert.core import InputError
from minisbert.system.devices import keep_freed_memory


class Side:
    """One way of encoding, which waits in its own process and takes no CPU time until its turn."""

    def __init__(self, make: Callable[[], Encode], keep_memory: bool):
        """Call ``make``, which loads the library, in the new process, and wait until it is done."""
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=serve, args=(end, make, keep_memory), daemon=True)
        self.process.start()
        end.close()
        self._answer(None)

    def timed(self, calls: Sequence[Sequence[str]]) -> tuple[list[float], np.ndarray]:
        """Encode the texts of each call: the seconds of each, and the last vectors.

        The way between the processes is not timed.

        Raises ``InputError`` with the words of an error in the process.
        """
        return self._answer(calls)

    def close(self) -> None:
        self.process.kill()
        self.process.join()

    def _answer(self, calls: Sequence[Sequence[str]] | None) -> tuple[list[float], np.ndarray]:
        """Send ``calls`` unless they are None, and wait."""
        try:
            if calls is not None:
                self.pipe.send(calls)
            answer = self.pipe.recv()
        except (EOFError, OSError):
            raise InputError("the process of a side ended before its answer") from None
        if isinstance(answer, Exception):
            raise InputError(f"the process of a side failed: {answer!r}") from answer
        return answer


def serve(pipe: Connection, make: Callable[[], Encode], keep_memory: bool) -> None:
    """What runs in the process of a side, until the other end of the pipe is closed."""
    stay_offline()
    if keep_memory:
        keep_freed_memory()
    try:
        encode = make()
        pipe.send(None)
        while True:
            seconds = []
            for texts in pipe.recv():
                started = time.perf_counter()
                vectors = encode(texts)
                seconds.append(time.perf_counter() - started)
            pipe.send((seconds, vectors))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error)
