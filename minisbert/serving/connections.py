"""Keep connections from being held by clients that send nothing: uvicorn, with limits of our own.

Uvicorn ends a connection that idles after an answer, and answers 503 while there are too many. It
waits without end for a first request, for the rest of one, and for a client that does not read.
"""

import asyncio
import errno
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from minisbert.system.console import say

# So much is read from a client before the others have their turn. A body may come in chunks of one
# byte each, and h11 takes some 15 us for each.
READ_BYTES = 4096
# The errors of accepting a connection if the process, or the system, has no more files or memory.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


# Of uvicorn's protocols this one bounds a request's head; httptools' does not.
class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection that is given up if its client keeps the server waiting too long.

    If there are too many connections, the one whose client has kept the server waiting longest is
    given up for the newest.
    """

    # A client has so long to send a whole request, or to read on in its answer.
    client_seconds: float = 60
    # It has so long when the server stops. Docker kills after 10 s.
    stop_seconds: float = 5

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.buffer = bytearray(READ_BYTES)
        self.has_had_answer = False
        # Since when the server has waited for the client. It counts only while ``waits`` is true.
        self.waiting_since = self.loop.time()
        self.patience = self.client_seconds
        self.unsent_bytes = 0  # of an answer, when ``check_client`` last looked
        self.timer = self.loop.call_later(self.patience, self.check_client)
        self.make_room()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Say where asyncio shall put the next bytes: no more than fit are read."""
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on the bytes that asyncio has put there."""
        self.data_received(bytes(self.buffer[:nbytes]))

    def waits(self) -> bool:
        """Say whether it is the client's turn: to send a whole request, or to read an answer."""
        owes_request = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        return owes_request or self.transport.get_write_buffer_size() > 0

    def make_room(self) -> None:
        """Give up the connections that have waited longest, while there are too many.

        Those that never had an answer go first. If none waits for its client, uvicorn answers 503.
        """
        limit = self.config.limit_concurrency
        if limit is None:
            return
        while len(self.connections) >= limit:
            waiting = []
            for connection in self.connections:
                if not isinstance(connection, Connection) or connection is self:
                    continue
                if connection.waits():
                    waiting.append(connection)
            if not waiting:
                return
            longest_waiting = min(waiting, key=Connection.give_up_order)
            longest_waiting.transport.abort()
            # Asyncio tells uvicorn a moment later.
            self.connections.discard(longest_waiting)

    def give_up_order(self) -> tuple[bool, float]:
        """Return the key that sorts connections: the first one is given up first."""
        return self.has_had_answer, self.waiting_since

    def check_client(self) -> None:
        """Give up the connection if its client's time is over."""
        now = self.loop.time()
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes < self.unsent_bytes:  # the client reads on
            self.waiting_since = now
        self.unsent_bytes = unsent_bytes

        if self.waits() and now - self.waiting_since >= self.patience:
            self.transport.abort()
        else:
            self.timer = self.loop.call_later(self.patience / 4, self.check_client)

    def on_response_complete(self) -> None:
        self.has_had_answer = True
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        super().shutdown()
        self.timer.cancel()
        self.waiting_since = self.loop.time()
        self.patience = self.stop_seconds
        self.timer = self.loop.call_later(self.patience, self.check_client)

    def connection_lost(self, exc: Exception | None) -> None:
        self.timer.cancel()
        super().connection_lost(exc)


class HttpServer(uvicorn.Server):
    """Uvicorn's server, which says once in a minute that it cannot accept connections."""

    last_report = -60.0  # the loop's time of it

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self.report)
        await super().serve(sockets)

    def report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report what asyncio could not handle. That it cannot accept comes a thousandfold."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() - self.last_report >= 60:
            self.last_report = loop.time()
            say(f"no connection can be accepted: {error.strerror}; raise the limit (ulimit -n)")
