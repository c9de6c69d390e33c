"""``minisbert serve`` as a process: where it listens, what it says, and its end."""

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
from pathlib import Path
from typing import IO
from urllib.request import Request, urlopen

import pytest

from minisbert.commands.serve import connection_limit, main
from minisbert.core import InputError
from tests.conftest import ROOT

pytest.importorskip("fastapi", reason="needs the serve extra: pip install '.[serve]'")
uvicorn = pytest.importorskip("uvicorn")


class Process(subprocess.Popen):
    """The command, listening: its first line and its URL.

    Each takes seconds to start: tests share two of them.
    """

    def __init__(self, *arguments: str, stdout: int | IO = subprocess.DEVNULL):
        command = [sys.executable, "-m", "minisbert", "serve", *arguments]
        command += ["--port", "0", "--threads", "1"]
        super().__init__(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.first = self.stderr.readline()
        url = re.search(r"http://\S+:\d+", self.first)
        assert url, self.first + self.stderr.read()
        self.url = url[0]


def ask(url: str, content: dict | None = None) -> str:
    """The body of an answer with status 200."""
    body = None if content is None else json.dumps(content).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as response:
        return response.read().decode()


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """What the server writes to stdout."""
    return tmp_path_factory.mktemp("log") / "stdout"


@pytest.fixture(scope="module")
def process(tiny, log) -> Iterator[Process]:
    options = ["--served-model-name", "owner/small", "--max-texts", "7"]
    with log.open("w") as file:
        process = Process(str(tiny), *options, stdout=file)
    yield process
    process.terminate()
    assert process.wait(20) == 0
    assert process.stderr.read() == "stopped\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_socket_that_listens(tiny, monkeypatch, host):
    """Without TCP_NODELAY an answer in two parts waits for an ACK, 40 ms on Linux."""
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("needs IPv6")
    listeners = []

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        (listener,) = sockets
        no_delay = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        listeners.append((listener.getsockname()[0], no_delay))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    main([str(tiny), "--host", host, "--port", "0"])
    assert listeners == [(host, 1)]


@pytest.mark.parametrize("part", ["owner/small", "float32", "not compiled", "16 tokens", "7 texts"])
def test_the_first_line_says_what_is_served(process, part):
    assert part in process.first


def test_the_model_has_the_name_that_it_is_served_by(process):
    assert json.loads(ask(f"{process.url}/v1/models"))["data"][0]["id"] == "owner/small"


def test_requests_are_logged(process, log):
    ask(f"{process.url}/v1/models")
    line = '"GET /v1/models HTTP/1.1" 200'
    deadline = time.monotonic() + 20  # the line follows the answer
    while line not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert line in log.read_text()


@pytest.mark.parametrize(
    ("options", "key", "name"),
    [
        (["--max-texts", "0"], None, "--max-texts"),
        (["--api-key", "a\nb"], None, "--api-key"),
        # A variable that is not set must not open the server to everybody.
        (["--api-key", ""], None, "--api-key"),
        ([], "", "MINISBERT_API_KEY"),
        (["--host", ""], None, "--host"),
        ([], "a\udcffb", "MINISBERT_API_KEY"),  # a byte that is not UTF-8
    ],
)
def test_options_and_keys_that_cannot_be(tiny, monkeypatch, options, key, name):
    """The line names the option or the variable."""
    monkeypatch.delitem(os.environ, "MINISBERT_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setitem(os.environ, "MINISBERT_API_KEY", key)
    with pytest.raises(InputError, match=name) as error:
        main([str(tiny), *options])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "is_open"),
    [([], False), (["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key", "k"], False)],
)
def test_that_everybody_may_call_the_server_is_said(tiny, monkeypatch, capsys, options, is_open):
    monkeypatch.delitem(os.environ, "MINISBERT_API_KEY", raising=False)
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    main([str(tiny), "--port", "0", *options])
    assert ("everybody" in capsys.readouterr().err) == is_open


@pytest.mark.parametrize(("files", "connections"), [(64, 14), (1024, 500), (20, 1)])
def test_there_are_fewer_connections_than_files(monkeypatch, files, connections):
    """The system refuses further ones in a way that fills the log."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connection_limit() == connections


def test_a_log_that_nobody_reads_stops_no_request(tiny):
    """As in ``minisbert serve MODEL | head``."""
    reader, writer = os.pipe()
    process = Process(str(tiny), stdout=writer)
    os.close(writer)
    os.close(reader)
    for _ in range(3):
        assert "data" in ask(f"{process.url}/v1/models")
    process.terminate()
    assert process.wait(20) == 0
    assert process.stderr.read() == "stopped\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_sigterm_answers_what_was_accepted(tiny):
    """So a new version can be started without an error for anybody."""
    process = Process(str(tiny))
    url = process.url
    answers = []
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


def test_a_port_that_is_taken_is_one_line(process, tiny):
    with pytest.raises(InputError, match="port") as error:
        main([str(tiny), "--port", process.url.rpartition(":")[2]])
    assert "\n" not in str(error.value)
