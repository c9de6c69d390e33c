"""Connections within bounds: as many as the process may open, and none that sends no request."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_FILES = 32_768  # half of them connections: 10,000 that wait need 45 MiB
BACKLOG = 1024  # connections that are accepted at once


class BoundedConnection(H11Protocol):
    """A connection that is closed at once beyond ``most``, and after ``seconds`` without the head of a request."""

    most = MOST_FILES // 2
    seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self.loop.call_later(self.seconds, self.close_if_silent)

    def close_if_silent(self) -> None:
        if self.cycle is None:  # of a request and its answer
            self.transport.close()


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows, at most ``MOST_FILES``; how many that is.

    Without room asyncio would log each connection that it cannot accept, hundreds of times a second.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MOST_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
