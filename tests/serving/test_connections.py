"""Clients that keep the server waiting: their connections end, and nobody else waits."""

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse

import pytest

pytest.importorskip("uvicorn", reason="needs the serve extra: pip install '.[serve]'")
import uvicorn

from minisbert.serving.connections import Connection, HttpServer

GET = b"GET /3 HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Of a connection's two ends. The system's own grow to many MB, and the server sees that a client
# reads on only when a third of what it has sent is gone.
BUFFER_BYTES = 2**16
HEAD_OF_POST = b"POST /3 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


async def application(scope, receive, send):
    """Read the body, and answer as many bytes as the path says; ``/wait`` takes a second."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/wait":
        await asyncio.sleep(1.0)
        size = 4
    else:
        size = int(scope["path"][1:])
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"a" * size})


class Impatient(Connection):
    client_seconds = 0.4


class Running:
    """A server in a thread: where it listens, and how to stop it."""

    def __init__(self, kind: type[Connection], limit: int):
        config = uvicorn.Config(
            application,
            http=kind,
            lifespan="off",
            log_config=None,
            limit_concurrency=limit,
            timeout_graceful_shutdown=20,
        )
        self.server = HttpServer(config)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.address = self.listener.getsockname()
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.socket()
        client.settimeout(20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        client.connect(self.address)
        client.sendall(sent)
        return client

    def stop(self) -> float:
        """Return the seconds that it took."""
        start = time.monotonic()
        self.server.should_exit = True
        self.thread.join(30)
        return time.monotonic() - start


@contextmanager
def running(kind: type[Connection] = Impatient, limit: int = 100) -> Iterator[Running]:
    server = Running(kind, limit)
    try:
        yield server
    finally:
        server.stop()  # after a failure, too: pytest would wait for the thread for ever


def read_to_end(client: socket.socket) -> bytes:
    """What the server sends before it ends the connection."""
    parts = []  # joined at the end: adding up 30 MB part by part takes longer than a server waits
    try:
        while part := client.recv(2**20):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status(client: socket.socket) -> int:
    """Read the next answer; return its status, or 0 if the server has ended the connection."""
    response = HTTPResponse(client)
    try:
        response.begin()
        response.read()
    except OSError:  # RemoteDisconnected is one, too
        return 0
    return response.status


@pytest.mark.parametrize("sent", [b"", b"GET /3 HT", HEAD_OF_POST, HEAD_OF_POST + b"12345678"])
def test_a_client_that_never_sends_the_whole_request(sent):
    """Uvicorn alone would wait without end."""
    with running() as server:
        assert read_to_end(server.connect(sent)) == b""


def test_a_client_that_sends_a_byte_now_and_then():
    """The time is that of the whole request."""
    with running() as server:
        client = server.connect(HEAD_OF_POST)
        sent = 0
        with suppress(OSError):
            while sent < 9:
                time.sleep(0.2)
                client.sendall(b"a")
                sent += 1
        assert sent < 9


def test_a_client_that_does_not_read():
    """Its answer would stay in memory for ever."""
    with running() as server:
        client = server.connect(GET.replace(b"/3", b"/30000000"))
        time.sleep(2)
        assert len(read_to_end(client)) < 30_000_000


def test_a_client_that_reads_slowly():
    """It gets its whole answer, which takes longer than the client's time."""

    class Patient(Connection):
        client_seconds = 1.5

    with running(Patient) as server:
        client = server.connect(GET.replace(b"/3", b"/30000000"))
        received = b""
        for _ in range(30):
            time.sleep(0.1)
            received += client.recv(BUFFER_BYTES)
        received += read_to_end(client)
        assert len(received.partition(b"\r\n\r\n")[2]) == 30_000_000


def test_a_client_waits_as_long_as_the_answer_takes():
    """Only the client's time is limited, not that of a large request."""
    with running() as server:
        assert status(server.connect(GET.replace(b"/3", b"/wait"))) == 200


def test_silent_connections_make_room_for_others():
    """As many as there may be kept all others out."""
    with running(Connection, limit=5) as server:
        silent = []
        for sent in [b"", b"GET /3 HT", HEAD_OF_POST] * 5:
            silent.append(server.connect(sent))
        for _ in range(10):
            assert status(server.connect(GET)) == 200


def test_a_client_that_rests_keeps_its_connection():
    """Clients keep connections for their next request; those that never asked go first."""
    with running(Connection, limit=5) as server:
        client = server.connect(GET)
        assert status(client) == 200
        silent = [server.connect() for _ in range(20)]
        client.sendall(GET)
        assert status(client) == 200
        assert len(silent) == 20


def test_a_request_that_is_computed_is_not_given_up_for_others():
    with running(Connection, limit=3) as server:
        clients = []
        for _ in range(2):
            clients.append(server.connect(GET.replace(b"/3", b"/wait")))
        time.sleep(0.2)
        assert status(server.connect(GET)) == 503
        assert [status(client) for client in clients] == [200, 200]


def test_a_client_is_read_in_small_parts():
    """A body in chunks of a byte takes seconds, in which the others must have their turn."""
    sizes = []

    class Noted(Connection):
        def data_received(self, data):
            sizes.append(len(data))
            super().data_received(data)

    with running(Noted) as server:
        client = server.connect(HEAD_OF_POST.replace(b"9", b"1000000") + b"a" * 1_000_000)
        assert status(client) == 200
    assert max(sizes) <= 4096
    assert sum(sizes) > 1_000_000


@pytest.mark.parametrize("sent", [b"", HEAD_OF_POST + b"12345678"])
def test_a_client_that_owes_its_request_does_not_delay_the_end(sent):
    """Uvicorn would wait for a minute, and Docker kills after ten seconds."""

    class Stopped(Connection):
        stop_seconds = 0.2

    server = Running(Stopped, 100)
    client = server.connect(sent)
    time.sleep(0.1)
    assert server.stop() < 5
    client.close()


def test_a_client_may_finish_its_request_while_the_server_stops():
    class Patient(Connection):
        stop_seconds = 10

    server = Running(Patient, 100)
    client = server.connect(HEAD_OF_POST + b"12345678")
    time.sleep(0.2)
    server.server.should_exit = True
    time.sleep(0.5)
    client.sendall(b"9")
    assert status(client) == 200
    server.stop()


def test_that_no_connection_can_be_accepted_is_said_once_in_a_minute(capsys):
    """It fails a thousand times a second."""
    server = HttpServer(uvicorn.Config(application, log_config=None))
    loop = asyncio.new_event_loop()
    error = OSError(errno.EMFILE, "Too many open files")
    for _ in range(3):
        server.report(
            loop, {"message": "socket.accept() out of system resource", "exception": error}
        )
    loop.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Too many open files" in said
