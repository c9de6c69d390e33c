"""Accept connections: limits, the socket that listens, connections that end when they fall silent, the log."""

import asyncio
import copy
import logging
import socket
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minisbert.core import InputError

# connections at a time, below the files that most systems let a process open; uvicorn answers others with 503
CONNECTIONS = 500
BACKLOG = 128  # connections that are accepted at once: asyncio logs each for which no file is left


@dataclass(frozen=True)
class Limits:
    """What the server accepts. ``seconds`` bounds the arrival of a request, and again the wait for its answer."""

    body_bytes: int = 4 * 2**20
    texts: int = 2048
    # the tokenizer holds Python's lock for a whole text, 0.1 to 0.4 s for this many characters: nobody is answered then
    characters: int = 100_000
    waiting_texts: int = 4096
    batch_texts: int = 64
    seconds: float = 60.0


def uvicorn_config(application: Any, seconds: float, access_log: bool) -> uvicorn.Config:
    """Return uvicorn's configuration: time limits, and a line for each request on stdout if ``access_log``."""
    TimedConnection.seconds = seconds  # uvicorn makes the connections, and passes nothing on
    log = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    log["formatters"]["access"]["fmt"] = '%(asctime)s %(client_addr)s "%(request_line)s" %(status_code)s'
    config = uvicorn.Config(
        application,
        http=TimedConnection,
        limit_concurrency=CONNECTIONS,
        backlog=BACKLOG,
        access_log=access_log,
        log_config=log,
        log_level="error",  # a warning for each request that is no HTTP would let anybody fill the log
        lifespan="off",
        timeout_graceful_shutdown=int(seconds) + 1,
    )
    if access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    logging.raiseExceptions = False  # or a traceback for each line that a full disk does not take
    return config


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port of an IPv4 or IPv6 address, or of a name."""
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from None
    # subtle: asyncio sets this for sockets that it creates itself; without it an answer may wait 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class TimedConnection(H11Protocol):
    """uvicorn's connection, dropped if a request's head takes longer than ``seconds`` or its answer is not read.

    uvicorn's own time-out (``timeout_keep_alive``) begins after an answer, and ends with the next byte: a client that
    sends one byte and stops would keep its connection forever.
    """

    seconds = 60.0
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.set_timer(self.seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.set_timer(self.seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.set_timer(None)  # it would keep the connection in memory until it rings

    def set_timer(self, seconds: float | None) -> None:
        """Drop the connection in so many seconds, if it is idle then; None for never."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if seconds is not None:
            self.timer = self.loop.call_later(seconds, self.drop_if_idle)

    def drop_if_idle(self) -> None:
        """Drop the connection unless a request is being answered; ``Server.content`` bounds the arrival of its body."""
        if self.cycle is None or self.cycle.response_complete or self.flow.write_paused:
            self.transport.abort()  # not close(), which would wait until the client has read everything
