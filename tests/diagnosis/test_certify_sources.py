"""Vectors from a server that speaks OpenAI's protocol, or none."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from minisbert.commands.certify import main
from minisbert.core import InputError
from minisbert.diagnosis import certificate
from minisbert.diagnosis.certificate import fetch_vectors
from minisbert.models.sentence_encoder import SentenceEncoder

TEXTS = [
    f"the {noun} sits"
    for noun in [
        "cat",
        "dog",
        "man",
        "woman",
        "bird",
        "boy",
        "girl",
        "moon",
        "sun",
        "rain",
        "snow",
        "tree",
    ]
] * 2


@pytest.fixture
def server():
    """``server(answer)``: the address of a server; ``answer(path, body, headers)`` is a status and
    what it sends.
    """
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


def test_the_command_names_what_a_server_does(server, tiny, tmp_path, capsys):
    encoder = SentenceEncoder.load(tiny)

    def answer(path, body, headers):
        """In OpenAI's protocol, in the reverse order, with their numbers."""
        assert (path, body["model"]) == ("/v1/embeddings", "a name")
        vectors = encoder.encode(body["input"]).tolist()
        return 200, {
            "data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)][::-1]
        }

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = [
        "--texts",
        str(tmp_path / "texts.txt"),
        "--model",
        str(tiny),
        "--served-model",
        "a name",
    ]
    url = server(answer)
    for ending in ("", "/v1", "/v1/embeddings"):
        main(["--url", url + ending, *options])
        assert "Equal, to " in capsys.readouterr().out
    encoder.normalize = False
    with pytest.raises(SystemExit) as end:
        main(["--url", url, *options])
    assert end.value.code == 1
    assert "not scaled to length 1" in capsys.readouterr().out


def test_a_key_is_sent_and_no_redirect_followed(server, monkeypatch):
    """The key and the texts do not go to a server that the user has not named."""
    monkeypatch.setenv(certificate.KEY_VARIABLE, "schlüssel")
    seen = []

    def answer(path, body, headers):
        seen.append(headers["Authorization"].encode("latin-1").decode())
        return 200, {"data": [{"index": 0, "embedding": [1.0]}]}

    other = server(answer)
    fetch_vectors(other, ["a"], "")
    assert seen == ["Bearer schlüssel"]
    for status in (301, 302, 303, 307, 308):
        with pytest.raises(InputError, match=f"{status}.*{other}"):
            fetch_vectors(
                server(lambda path, body, headers, status=status: (status, b"", other)), ["a"], ""
            )
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (401, {"error": "no key"}, "401"),
        (500, b"\xff", "500"),
        (200, b"<html>log in</html>", "OpenAI"),
        (200, {"embeddings": []}, "OpenAI"),
        (200, b"[1]", "OpenAI"),
        (200, {"data": []}, "0 vectors for 2 texts"),
        (
            200,
            {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]},
            "http",
        ),
        (
            200,
            {"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1]}]},
            "list of numbers",
        ),
        (
            200,
            {
                "data": [
                    {"index": 0, "embedding": "AACAPw=="},
                    {"index": 1, "embedding": "AACAPw=="},
                ]
            },
            "base64",
        ),
        (
            200,
            {"data": [{"index": 0, "embedding": [None]}, {"index": 1, "embedding": [1]}]},
            "null|None",
        ),
        (
            200,
            {"data": [{"index": 0, "embedding": [True, 0.5]}, {"index": 1, "embedding": [1, 1]}]},
            "list of numbers",
        ),
        (
            200,
            {"data": [{"index": None, "embedding": [1]}, {"index": 1, "embedding": [1]}]},
            "index",
        ),
        (
            200,
            b'{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1]}]}',
            "row 1",
        ),
    ],
)
def test_answers_that_are_no_vectors_are_one_line(server, status, content, said):
    address = server(lambda path, body, headers: (status, content))
    with pytest.raises(InputError, match=said) as error:
        fetch_vectors(address, ["a", "b"], "")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "nowhere", "ftp://x", "file:///etc/passwd", "http://[bad"]
)
def test_addresses_where_nobody_answers(url):
    with pytest.raises(InputError, match=re.escape(url)):
        fetch_vectors(url, ["a"], "")


@pytest.mark.parametrize("line", ["v.npy --url http://127.0.0.1:1 --texts t.txt", "--texts t.txt"])
def test_a_file_or_a_server(line):
    with pytest.raises(InputError, match="--url"):
        main(line.split())
