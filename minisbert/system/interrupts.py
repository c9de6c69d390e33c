"""Ctrl-C and SIGTERM, deferred to the end of blocks that must not be interrupted."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Ctrl-C and SIGTERM as ``KeyboardInterrupt``, deferred to the end of a ``defer`` block.

    >>> with Interrupts() as interrupts:
    ...     with interrupts.defer():
    ...         ...  # a step: an interrupt is raised at its end; a second one ends the process immediately
    """

    def __init__(self) -> None:
        self.deferring = self.waiting = False
        self.replaced: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # only it can set signal handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # a shell's background job ignores Ctrl-C
                    self.replaced[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.replaced.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if not self.deferring:
            raise KeyboardInterrupt
        if self.waiting:
            raise SystemExit(130)  # a second signal does not wait, not even for a save
        self.waiting = True

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Raise an interrupt that arrives inside this block at its end, or at the end of the outermost such block."""
        outer, self.deferring = self.deferring, True
        try:
            yield
        finally:
            self.deferring = outer
            waiting = self.waiting and not outer
            self.waiting = self.waiting and outer
        if waiting:
            raise KeyboardInterrupt
