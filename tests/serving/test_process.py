"""``minisbert serve`` as a process: a real client, bytes that are no HTTP, and its end."""

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from minisbert.commands.serve import main
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT

uvicorn = pytest.importorskip("uvicorn", reason="needs the serve extra: pip install '.[serve]'")
httpx = pytest.importorskip("httpx", reason="needs the serve extra: pip install '.[serve]'")


COMMAND = "from minisbert.__main__ import main; main()"


def start(*arguments: str, code: str = COMMAND) -> tuple[subprocess.Popen, str]:
    """The command, listening, and its URL."""
    command = [sys.executable, "-c", code, "serve", *arguments, "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    line = process.stderr.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert url, line + process.stderr.read()
    return process, url[0]


@pytest.fixture(scope="module")
def server(tiny) -> Iterator[str]:
    process, url = start(str(tiny))
    yield url
    process.terminate()
    assert process.wait(20) == 0
    log = process.stderr.read()
    assert log.endswith("stopped\n")
    assert "Traceback" not in log


def test_openais_client(server, tiny):
    openai = pytest.importorskip("openai", reason="needs the ecosystem extra")
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="any", max_retries=0)
    texts = ["a cat", "the dog runs", ""]
    answer = client.embeddings.create(model="tiny", input=texts)
    found = [row.embedding for row in answer.data]
    np.testing.assert_allclose(found, SentenceEncoder.load(tiny).encode(texts), atol=2e-6, rtol=0)
    with pytest.raises(openai.BadRequestError, match="input is not a text"):
        client.embeddings.create(model="tiny", input=[])


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
    address = server.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1000)
    assert httpx.get(f"{server}/health").text == "ok\n"


def test_clients_that_leave_in_the_middle_do_not_stop_it(server):
    address = server.removeprefix("http://").split(":")
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    for _ in range(20):
        with socket.create_connection((address[0], int(address[1])), timeout=10) as connection:
            connection.sendall(head)
    assert httpx.post(f"{server}/v1/embeddings", json={"input": "a cat"}).status_code == 200


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_connections_beyond_the_limit_of_open_files_and_silent_ones_are_closed(tiny):
    """A process that may open 200 files accepts at most 100 of 150 connections, answers beside them, and frees them."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); {COMMAND}"
    process, url = start(str(tiny), "--timeout", "1", code=limited)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    opened = [socket.create_connection(address, timeout=10) for _ in range(150)]
    for connection in opened:  # b"" is the end: refused at once, or silent for a second
        assert connection.recv(1) == b""
    assert httpx.get(f"{url}/health").text == "ok\n"
    for connection in opened:
        connection.close()
    process.terminate()
    assert process.wait(20) == 0
    assert process.stderr.read() == "stopped\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_sigterm_answers_what_was_accepted(tiny):
    process, url = start(str(tiny))
    answers = []
    texts = [f"a text of its own, number {i}, that takes a while" for i in range(2000)]

    def request() -> None:
        answers.append(httpx.post(f"{url}/v1/embeddings", json={"input": texts}, timeout=60))

    thread = threading.Thread(target=request)
    thread.start()
    while "minisbert_waiting_texts 0.0" in httpx.get(f"{url}/metrics").text and thread.is_alive():
        pass
    process.send_signal(signal.SIGTERM)
    thread.join(60)
    assert process.wait(20) == 0
    assert len(answers[0].json()["data"]) == len(texts)


def test_a_port_that_is_taken_is_one_line(server, tiny, capsys):
    command = [sys.executable, "-m", "minisbert", "serve", str(tiny), "--port", server.rpartition(":")[2]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert re.fullmatch(r"error: cannot listen on 127\.0\.0\.1 port \d+: .*\n", done.stderr)
