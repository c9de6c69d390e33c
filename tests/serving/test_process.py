"""``minisbert serve`` as a process: a real client, bytes that are no HTTP, and its end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import numpy as np
import pytest

from minisbert.commands.serve import main
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT

uvicorn = pytest.importorskip("uvicorn", reason="needs the serve extra: pip install '.[serve]'")


class Process(subprocess.Popen):
    """The command, listening: its first line and its URL. Each takes seconds to start: tests share two of them."""

    def __init__(self, *arguments: str, stdout: int | IO = subprocess.DEVNULL):
        command = [sys.executable, "-m", "minisbert", "serve", *arguments, "--port", "0", "--threads", "1"]
        super().__init__(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.first = self.stderr.readline()
        url = re.search(r"http://\S+:\d+", self.first)
        assert url, self.first + self.stderr.read()
        self.url = url[0]


def stop(process: subprocess.Popen) -> str:
    """End the server; what it has written to stderr."""
    process.terminate()
    assert process.wait(20) == 0
    return process.stderr.read()


def ask(url: str, content: dict | None = None) -> str:
    """The body of an answer with status 200."""
    body = None if content is None else json.dumps(content).encode()
    with urlopen(url, body, timeout=60) as response:
        return response.read().decode()


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """What the server writes to stdout."""
    return tmp_path_factory.mktemp("log") / "stdout"


@pytest.fixture(scope="module")
def process(tiny, log) -> Iterator[Process]:
    with log.open("w") as file:
        process = Process(str(tiny), "--served-model-name", "owner/small", "--max-texts", "7", stdout=file)
    yield process
    assert stop(process) == "stopped\n"


@pytest.fixture
def server(process) -> str:
    return process.url


def test_openais_client(server, tiny):
    openai = pytest.importorskip("openai", reason="needs the ecosystem extra")
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="any", max_retries=0)
    texts = ["a cat", "the dog runs", ""]
    answer = client.embeddings.create(model="owner/small", input=texts)
    found = [row.embedding for row in answer.data]
    np.testing.assert_allclose(found, SentenceEncoder.load(tiny).encode(texts), atol=2e-6, rtol=0)
    with pytest.raises(openai.BadRequestError, match="input is not a text"):
        client.embeddings.create(model="owner/small", input=[])
    with pytest.raises(openai.NotFoundError, match="other"):
        client.embeddings.create(model="other", input=texts)
    assert client.models.retrieve("owner/small").id == "owner/small"


def test_coheres_clients(server, tiny):
    cohere = pytest.importorskip("cohere", reason="a client of Cohere's API")
    texts = ["a cat", "the dog runs", ""]
    expected = SentenceEncoder.load(tiny).encode(texts)
    first, second = cohere.Client("any", base_url=server), cohere.ClientV2("any", base_url=server)
    found = first.embed(model="small", texts=texts, input_type="search_document").embeddings
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)
    found = second.embed(model="small", texts=texts, input_type="clustering", embedding_types=["float"])
    np.testing.assert_allclose(found.embeddings.float_, expected, atol=2e-6, rtol=0)
    with pytest.raises(cohere.errors.NotFoundError):
        second.embed(model="other", texts=texts, input_type="clustering")


def test_answers_are_not_held_back_until_the_client_acknowledges(tiny, monkeypatch):
    """Without TCP_NODELAY on the listener an answer in two parts waits for an ACK, 40 ms on Linux."""
    seen = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        seen.append(sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    main([str(tiny), "--port", "0"])
    assert seen == [1]


GARBAGE = [
    b"\x00\xff" * 100,
    b"GET\r\n\r\n",
    b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"\r\n" * 50,
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_bytes_that_are_no_http_do_not_stop_it(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1000)
    assert ask(f"{server}/health") == "ok\n"


def test_clients_that_leave_in_the_middle_do_not_stop_it(server):
    for _ in range(20):
        with connect(server) as connection:
            connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    assert "embedding" in ask(f"{server}/v1/embeddings", {"input": "a cat"})


@pytest.fixture(scope="module")
def impatient(tiny) -> Iterator[str]:
    """A server that waits for a second, and logs no requests."""
    process = Process(str(tiny), "--timeout", "1", "--no-access-log", stdout=subprocess.PIPE)
    yield process.url
    assert ask(f"{process.url}/v1/models")
    assert stop(process) == "stopped\n"
    assert "HTTP" not in process.stdout.read()


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
UNREAD = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
# what a client sends before it falls silent, and how the last answer that it gets begins
SILENT = {
    "nothing": (b"", b""),
    "half a head": (b"GET / HTTP/1.1\r\n", b""),
    "a byte after an answer": (HEALTH + b"G", b"HTTP/1.1 200"),
    "half a body": (POST + b"{", b"HTTP/1.1 408"),
    "half a body that nobody reads": (UNREAD + b"{", b"HTTP/1.1 200"),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_client_that_falls_silent_loses_its_connection(impatient, name):
    sent, answer = SILENT[name]
    with connect(impatient) as connection:
        connection.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while chunk := connection.recv(1000):  # times out after ten seconds
                received += chunk
    assert received.startswith(answer)
    assert bool(received) == bool(answer)


def test_a_client_that_reads_no_answer_loses_its_connection(impatient):
    requests = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
    with connect(impatient) as connection, suppress(ConnectionResetError, BrokenPipeError):
        for _ in range(10_000):  # until the buffers of both sides are full; then it times out after ten seconds
            connection.sendall(requests)
        pytest.fail("the server reads on")


def test_a_body_in_drops_ends_the_connection(impatient):
    with connect(impatient) as connection, suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(POST)
        start = time.monotonic()
        while time.monotonic() < start + 10:
            connection.sendall(b" ")
            time.sleep(0.1)
        pytest.fail("a client that sends ten bytes a second keeps its connection")


def test_the_first_line_and_the_log_of_requests(process, log):
    """``impatient`` has none, which it says at its end."""
    for part in ("owner/small", "float32", "not compiled", "16 tokens", "7 texts", "100,000 characters", "60 s"):
        assert part in process.first
    assert json.loads(ask(f"{process.url}/v1/models"))["data"][0]["id"] == "owner/small"
    deadline = time.monotonic() + 20  # the line follows the answer
    while '"GET /v1/models HTTP/1.1" 200' not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert '"GET /v1/models HTTP/1.1" 200' in log.read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_log_that_cannot_be_written_stops_nothing(tiny):
    with open("/dev/full", "w") as full:
        process = Process(str(tiny), stdout=full)
    for _ in range(3):
        assert ask(f"{process.url}/health") == "ok\n"
    process.terminate()
    process.wait(20)
    assert "Traceback" not in process.stderr.read()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_ipv6(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: seen.append(sockets[0].getsockname()[0]))
    main([str(tiny), "--host", "::1", "--port", "0"])
    assert seen == ["::1"]


@pytest.mark.parametrize(
    ("options", "key", "said"),
    [
        (["--timeout", "inf"], "", "--timeout"),
        (["--timeout", "nan"], "", "--timeout"),
        (["--max-texts", "0"], "", "--max-texts"),
        (["--api-key", "a\nb"], "", "--api-key"),
        ([], "a\udcffb", "MINISBERT_API_KEY"),  # a byte that is not UTF-8
    ],
)
def test_options_and_keys_that_cannot_be(tiny, monkeypatch, options, key, said):
    monkeypatch.setitem(os.environ, "MINISBERT_API_KEY", key)
    with pytest.raises(InputError, match=said) as error:
        main([str(tiny), *options])
    assert "\n" not in str(error.value)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_sigterm_answers_what_was_accepted(tiny):
    process = Process(str(tiny))
    answers, url = [], process.url
    texts = [f"a text of its own, number {i}, that takes a while" for i in range(2000)]

    def request() -> None:
        answers.append(json.loads(ask(f"{url}/v1/embeddings", {"input": texts})))

    thread = threading.Thread(target=request)
    thread.start()
    while "minisbert_waiting_texts 0.0" in ask(f"{url}/metrics") and thread.is_alive():
        pass
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert process.wait(20) == 0
    assert len(answers[0]["data"]) == len(texts)


def test_a_port_that_is_taken_is_one_line(server, tiny):
    with pytest.raises(InputError, match=r"cannot listen on 127\.0\.0\.1 port \d+: .*") as error:
        main([str(tiny), "--port", server.rpartition(":")[2]])
    assert "\n" not in str(error.value)
