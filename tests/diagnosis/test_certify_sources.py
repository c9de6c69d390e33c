"""Vectors from a server that speaks OpenAI's protocol, or none."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from minisbert.commands.certify import main
from minisbert.core import InputError
from minisbert.diagnosis.vector_sources import KEY_VARIABLE, fetch_vectors
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.toys import NOUNS

TEXTS = [f"the {noun} sits" for noun in NOUNS[:12]] * 2  # more than one request takes


@pytest.fixture
def server():
    """``server(answer)`` starts one and returns its address.

    ``answer(path, body, headers)`` returns a status, what is sent, and where a redirect goes.
    """
    running = []

    def start(answer):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, content, *location = answer(self.path, body, self.headers)
                if not isinstance(content, bytes):
                    content = json.dumps(content).encode()
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


@pytest.fixture
def encoder(tiny):
    return SentenceEncoder.load(tiny)


@pytest.fixture
def served(server, encoder, tiny, tmp_path):
    """Options of the command, and the address of a server that has the tiny model."""

    def answer(path, body, headers):
        """In OpenAI's protocol, in the reverse order, with their numbers."""
        assert (path, body["model"]) == ("/v1/embeddings", "a name")
        data = []
        for i, vector in enumerate(encoder.encode(body["input"]).tolist()):
            data.append({"index": i, "embedding": vector})
        return 200, {"data": data[::-1]}

    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    options = ["--texts", str(texts), "--model", str(tiny), "--served-model", "a name"]
    return options, server(answer)


@pytest.mark.parametrize("ending", ["", "/v1", "/v1/embeddings"])
def test_the_command_asks_a_server(served, capsys, ending):
    """Users write its address in each of these forms."""
    options, url = served
    main(["--url", url + ending, *options])
    assert "Equal, to " in capsys.readouterr().out


def test_the_command_names_what_a_server_does(served, encoder, capsys):
    """A server's vectors are judged as those of a file."""
    options, url = served
    encoder.normalize = False
    with pytest.raises(SystemExit) as end:
        main(["--url", url, *options])
    assert end.value.code == 1
    assert "not scaled to length 1" in capsys.readouterr().out


def test_a_key_is_sent(server, monkeypatch):
    """As a bearer token, in UTF-8."""
    monkeypatch.setenv(KEY_VARIABLE, "schlüssel")
    seen = []

    def answer(path, body, headers):
        seen.append(headers["Authorization"].encode("latin-1").decode())
        return 200, {"data": [{"index": 0, "embedding": [1.0]}]}

    fetch_vectors(server(answer), ["a"], "")
    assert seen == ["Bearer schlüssel"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(server, status):
    """The key and the texts do not go to a server that the user has not named."""
    asked = []

    def elsewhere(path, body, headers):
        asked.append(path)
        return 200, {"data": [{"index": 0, "embedding": [1.0]}]}

    other = server(elsewhere)

    def redirect(path, body, headers):
        return status, b"", other

    with pytest.raises(InputError, match=f"{status}.*{other}"):
        fetch_vectors(server(redirect), ["a"], "")
    assert asked == []


def assert_refused(address: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        fetch_vectors(address, ["a", "b"], "")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (401, {"error": "no key"}, "401"),
        (500, b"\xff", "500"),
        (200, b"<html>log in</html>", "OpenAI"),
        (200, {"embeddings": []}, "OpenAI"),
        (200, b"[1]", "OpenAI"),
        (200, {"data": []}, "0 vectors for 2 texts"),
        (200, {"data": [{"index": None, "embedding": [1]}, {"index": 1}]}, "index"),
    ],
)
def test_answers_that_are_no_vectors_are_one_line(server, status, content, message):
    """The error shows what the server sent, whatever it was."""
    assert_refused(server(lambda path, body, headers: (status, content)), message)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([1], [1, 2], "http"),
        (["x"], [1], "list of numbers"),
        ([True, 0.5], [1, 1], "list of numbers"),
        ([None], [1], "null|None"),
        ("AACAPw==", "AACAPw==", "base64"),
        ([float("nan")], [1], "row 1"),
    ],
)
def test_embeddings_that_are_no_vectors_are_one_line(server, first, second, message):
    """A number that is none would make every comparison false, without a word."""
    data = [{"index": 0, "embedding": first}, {"index": 1, "embedding": second}]
    assert_refused(server(lambda path, body, headers: (200, {"data": data})), message)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "nowhere", "ftp://x", "file:///etc/passwd", "http://[bad"]
)
def test_addresses_where_nobody_answers(url):
    """The error quotes the address, which is most often misspelled."""
    with pytest.raises(InputError, match=re.escape(url)):
        fetch_vectors(url, ["a"], "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["v.npy", "--url", "http://127.0.0.1:1", "--texts", "t.txt"],
        ["--texts", "t.txt"],
    ],
)
def test_a_file_or_a_server(arguments):
    """Not both, and not neither."""
    with pytest.raises(InputError, match="--url"):
        main(arguments)
