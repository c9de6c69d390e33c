"""Vectors from a server that speaks OpenAI's protocol or none, and golden files, which judge without the model."""

import json
import re
import shutil
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer

import numpy as np
import pytest

from minisbert.commands.certify import main
from minisbert.core import InputError
from minisbert.diagnosis import vector_sources
from minisbert.diagnosis.vector_sources import fetch_vectors, golden_texts, read_golden
from minisbert.models.sentence_encoder import SentenceEncoder

TEXTS = [f"the {noun} sits" for noun in "cat dog man woman bird boy girl moon sun rain snow tree".split()] * 2


@pytest.fixture
def server():
    """``server(answer)``: the address of a server; ``answer(path, body)`` is a status and what it sends."""
    running = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content, *location = answer(self.path, body, self.headers)
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                for address in location:
                    self.send_header("Location", address)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        running.append(httpd)
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{httpd.server_port}"

    yield start
    for httpd in running:
        httpd.shutdown()
        httpd.server_close()


def speaking(encoder):
    """A server's answers in OpenAI's protocol, in the reverse order, with their numbers."""

    def answer(path, body, headers):
        assert path == "/v1/embeddings"
        assert body["model"] == "a name"
        vectors = encoder.encode(body["input"]).tolist()
        entries = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
        return 200, {"data": entries[::-1]}

    return answer


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/embeddings"])
def test_vectors_from_a_server(server, tiny, ending):
    encoder = SentenceEncoder.load(tiny)
    fetched = fetch_vectors(server(speaking(encoder)) + ending, TEXTS, "a name")
    np.testing.assert_allclose(fetched.values, encoder.encode(TEXTS), atol=1e-6)


def test_the_command_names_what_a_server_does(server, tiny, tmp_path, capsys):
    encoder = SentenceEncoder.load(tiny)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = ["--texts", str(tmp_path / "texts.txt"), "--model", str(tiny), "--served-model", "a name"]
    url = server(speaking(encoder))
    main(["--url", url, *options])
    assert "Equal, to " in capsys.readouterr().out
    encoder.normalize = False
    with pytest.raises(SystemExit) as end:
        main(["--url", url, *options])
    assert end.value.code == 1
    assert "not scaled to length 1" in capsys.readouterr().out


ONE = {"data": [{"index": 0, "embedding": [1.0]}]}


def test_a_key_is_sent(server, monkeypatch):
    monkeypatch.setenv(vector_sources.KEY_VARIABLE, "schlüssel")
    seen = []
    answer = lambda path, body, headers: seen.append(headers["Authorization"]) or (200, ONE)  # noqa: E731
    fetch_vectors(server(answer), ["a"])
    assert [key.encode("latin-1").decode() for key in seen] == ["Bearer schlüssel"]


def test_a_redirect_is_not_followed(server, monkeypatch):
    """The key and the texts do not go to a server that the user has not named."""
    monkeypatch.setenv(vector_sources.KEY_VARIABLE, "secret")
    seen = []
    other = server(lambda path, body, headers: seen.append(path) or (200, ONE))
    for status in (301, 302, 303, 307, 308):
        with pytest.raises(InputError, match=f"answered {status} .*{other}"):
            fetch_vectors(server(lambda path, body, headers, status=status: (status, b"", other)), ["a"])
    assert seen == []


@contextmanager
def raw_server(send):
    """The address of a server that answers each connection with ``send(socket)``, whatever it is asked."""

    class Handler(StreamRequestHandler):
        def handle(self):
            self.connection.recv(65536)
            with suppress(OSError):
                send(self.connection)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads, running.block_on_close = True, False
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def dripping_head(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for i in range(100):
        connection.sendall(f"X-{i}: a\r\n".encode())
        time.sleep(0.05)


def endless_body(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        connection.sendall(b" " * 2**16)


def sending(content):
    return lambda connection: connection.sendall(content)


RAW = {
    "a head in drops": (dripping_head, "whole answer"),
    "an answer without an end": (endless_body, "MiB"),
    "a body that is cut off": (sending(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"), "answered '{'"),
    "an error that is cut off": (sending(b"HTTP/1.1 500 No\r\nContent-Length: 99\r\n\r\nx"), "500|Incomplete"),
    "chunks that are cut off": (
        *(sending(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{"), "IncompleteRead"),
    ),
    "no HTTP": (sending(b"\x1b[31mhello\n"), "cannot be asked"),
    "nothing": (lambda c: None, "cannot be asked"),
}


@pytest.mark.parametrize("name", RAW)
def test_answers_that_do_not_end_well_are_one_line(monkeypatch, name):
    monkeypatch.setattr(vector_sources, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(vector_sources, "ANSWER_BYTES", 2**20)
    send, said = RAW[name]
    with raw_server(send) as address, pytest.raises(InputError, match=said) as error:
        fetch_vectors(address, ["a"])
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (401, {"error": "no key"}, "401 .*no key"),
        (500, b"\xff", "500"),
        (200, b"<html>log in</html>", "OpenAI"),
        (200, {"embeddings": []}, "OpenAI"),
        (200, {"data": []}, "0 vectors for 2 texts"),
        (200, {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}, "http"),
        (200, {"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1]}]}, "http"),
        (200, b'{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1]}]}', "row 1: NaN"),
    ],
)
def test_answers_that_are_no_vectors_are_one_line(server, status, content, said):
    address = server(lambda path, body, headers: (status, content))
    with pytest.raises(InputError, match=said) as error:
        fetch_vectors(address, ["a", "b"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nowhere", "ftp://x", "file:///etc/passwd", "http://[bad"])
def test_addresses_where_nobody_answers(monkeypatch, url):
    with pytest.raises(InputError, match=re.escape(url)):
        fetch_vectors(url, ["a"])


# ------------------------------------------------------------------------------------------- golden files


@pytest.fixture(scope="module")
def golden(tiny, tmp_path_factory):
    """A golden file whose model is gone, and the vectors of its texts."""
    folder = tmp_path_factory.mktemp("golden")
    shutil.copytree(tiny, folder / "model")
    main(["--write-golden", str(folder / "g.json"), "--model", str(folder / "model")])
    encoder = SentenceEncoder.load(folder / "model")
    shutil.rmtree(folder / "model")
    return folder / "g.json", encoder.encode(golden_texts())


CHANGES = {
    "equal": (lambda v: v, 0, "Equal, to "),
    "float16": (lambda v: v.astype(np.float16), 0, "stored as float16"),
    "signs": (lambda v: (v > 0).astype(np.float32), 0, "binary: the signs of the columns"),
    "reversed": (lambda v: v[::-1], 1, "the rows are in"),
    "longer": (lambda v: 3 * v, 1, "the directions are right, the lengths are not"),
    "zeros": (lambda v: v * (np.arange(len(v)) > 0)[:, None], 1, "1 of 20 vectors are all zeros, such as line 1"),
    "another": (lambda v: np.roll(v, 1, axis=1), 1, "another model's vectors"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_vectors_beside_a_golden_file(name, golden, tmp_path, capsys):
    path, vectors = golden
    change, code, said = CHANGES[name]
    np.save(tmp_path / "v.npy", change(vectors))
    arguments = [str(tmp_path / "v.npy"), "--golden", str(path)]
    if code:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == code
    else:
        main(arguments)
    assert said in capsys.readouterr().out


def test_the_file_holds_the_vectors_to_the_last_bit_of_float32(golden):
    path, vectors = golden
    content = read_golden(path)
    np.testing.assert_array_equal(content.vectors.astype(np.float32), vectors)
    assert content.about == "mean pooling, at most 16 tokens, scaled to length 1"
    assert len(set(content.texts)) == 20


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"texts": []}, "not a golden file"),
        ({"minisbert": "golden vectors"}, "texts"),
        ({"minisbert": "golden vectors", "texts": ["a", "b"], "vectors": [[1, 2]]}, "2 texts"),
        ({"minisbert": "golden vectors", "texts": ["a"], "vectors": [[1, "x"]]}, "g.json: "),
    ],
    ids=str,
)
def test_another_file_is_refused(content, said, tmp_path):
    (tmp_path / "g.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        main([str(tmp_path / "v.npy"), "--golden", str(tmp_path / "g.json")])


def test_vectors_of_another_width_or_number_are_refused(golden, tmp_path):
    path, vectors = golden
    for wrong, said in ((vectors[:, 1:], "23 columns"), (vectors[1:], "19 vectors for 20 texts")):
        np.save(tmp_path / "v.npy", wrong)
        with pytest.raises(InputError, match=said):
            main([str(tmp_path / "v.npy"), "--golden", str(path)])


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("v.npy --golden g.json --texts t.txt", "--texts"),
        ("v.npy --write-golden g.json", "--write-golden"),
        ("--write-golden g.txt", ".json"),
        ("--golden g.json", "--url"),
        ("v.npy --url http://127.0.0.1:1 --texts t.txt", "--url"),
        ("v.npy", "--golden"),
    ],
)
def test_options_that_do_not_fit(line, option):
    with pytest.raises(InputError, match=option):
        main(line.split())
