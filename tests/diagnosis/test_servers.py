"""Vectors fetched from servers that speak three protocols, and from those that speak none."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from minisbert.commands.certify import main
from minisbert.core import InputError
from minisbert.diagnosis import vector_sources as servers
from minisbert.diagnosis.vector_sources import fetch_vectors
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
                status, content = answer(self.path, body, self.headers)
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
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


def speaking(api, encoder):
    """A server's answers in a protocol; OpenAI's come in the reverse order, with their numbers."""

    def answer(path, body, headers):
        assert path == servers.PATHS[api]
        texts = body["inputs" if api == "tei" else "input"]
        vectors = encoder.encode(texts).tolist()
        if api == "tei":
            return 200, vectors
        assert body["model"] == "a name"
        if api == "ollama":
            return 200, {"embeddings": vectors}
        entries = [{"index": number, "embedding": vector} for number, vector in enumerate(vectors)]
        return 200, {"data": entries[::-1]}

    return answer


@pytest.mark.parametrize("api", servers.PATHS)
@pytest.mark.parametrize("ending", ["", "/"])
def test_three_protocols(server, tiny, api, ending):
    encoder = SentenceEncoder.load(tiny)
    found = fetch_vectors(server(speaking(api, encoder)) + ending, TEXTS, api, "a name")
    np.testing.assert_allclose(found.values, encoder.encode(TEXTS), atol=1e-6)


def test_the_command_names_what_a_server_does(server, tiny, tmp_path, capsys):
    encoder = SentenceEncoder.load(tiny)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = ["--texts", str(tmp_path / "texts.txt"), "--model", str(tiny), "--served-model", "a name"]
    main(["--url", server(speaking("openai", encoder)) + "/v1", *options])
    assert "Equal, to " in capsys.readouterr().out
    encoder.normalize = False
    with pytest.raises(SystemExit) as end:
        main(["--url", server(speaking("tei", encoder)), "--api", "tei", *options])
    assert end.value.code == 1
    assert "not scaled to length 1" in capsys.readouterr().out
    for wrong in ([], ["vectors.npy", "--url", "http://127.0.0.1:1"]):
        with pytest.raises(InputError, match="either VECTORS, a file, or --url"):
            main([*wrong, *options])


def test_a_key_is_sent(server, monkeypatch):
    monkeypatch.setenv(servers.KEY, "secret")
    seen = []
    answer = lambda path, body, headers: seen.append(headers["Authorization"]) or (200, [[1.0]])  # noqa: E731
    fetch_vectors(server(answer), ["a"], "tei")
    assert seen == ["Bearer secret"]


@pytest.mark.parametrize(
    ("status", "content", "says"),
    [
        (401, {"error": "no key"}, "answered 401 Unauthorized: .*no key"),
        (500, b"\xff", "answered 500"),
        (200, b"<html>log in</html>", "not JSON"),
        (200, {"embeddings": []}, "not the form of --api openai"),
        (200, {"data": []}, "gave 0 vectors for 2 texts"),
        (200, {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}, "http"),
        (200, {"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1]}]}, "http"),
        (200, b'{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1]}]}', "row 1: NaN"),
    ],
)
def test_answers_that_are_no_vectors_are_one_line(server, status, content, says):
    address = server(lambda path, body, headers: (status, content))
    with pytest.raises(InputError, match=says) as found:
        fetch_vectors(address, ["a", "b"])
    assert "\n" not in str(found.value)


def test_addresses_where_nobody_answers(monkeypatch):
    monkeypatch.setattr(servers, "SECONDS", 0.2)
    for url in ("http://127.0.0.1:9", "nowhere", "ftp://x", "http://[bad"):
        with pytest.raises(InputError, match="cannot be asked"):
            fetch_vectors(url, ["a"])
