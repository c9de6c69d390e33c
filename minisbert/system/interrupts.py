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
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's background job keeps ignoring Ctrl-C
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
        """Raise an interrupt that arrives inside this block at its end."""
        if self.deferring:  # inside another block
            yield
            return
        self.deferring = True
        try:
            yield
        finally:
            self.deferring, waiting, self.waiting = False, self.waiting, False
        if waiting:
            raise KeyboardInterrupt
