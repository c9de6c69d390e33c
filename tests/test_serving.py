"""docs/serving.md: its examples are the files in docs/examples/, and answer with the vectors of the eager encoder."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import numpy as np
import pytest

from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "docs" / "examples"
TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon"]


def blocks() -> list[str]:
    """The page's Python that needs a package; test_readme.py runs the blocks in ``python``, which need none."""
    return re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_shows_the_example_as_it_is():
    assert (EXAMPLES / "serve.py").read_text(encoding="utf-8") in blocks()


def test_the_first_example(tiny_package, tiny, tmp_path, monkeypatch):
    shutil.copy(tiny_package, tmp_path / "all-MiniLM-L6-v2.pt2")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks()[0].replace('load("all-MiniLM-L6-v2"', f'load("{tiny.as_posix()}"'), names)
    expected = SentenceEncoder.load(tiny).encode(["A cat sits.", "A kitten is sitting."])
    assert abs(names["vectors"] - expected).max() <= MINILM_VECTOR


def test_the_example_of_a_reranker(tiny, tmp_path):
    """With the eager model: ``test_compiled.py`` compares a compiled one with it."""
    encoder = SentenceEncoder.load(tiny)
    PairModel(encoder, JointHead(encoder.width)).save(tmp_path / "model")
    code = blocks()[-1].replace("path/to/cross-encoder", (tmp_path / "model").as_posix())
    names: dict = {}
    exec(code.replace("compiled=True", "compiled=False"), names)
    assert names["scores"].shape == (2,)
    assert names["best"][0] == names["passages"][names["scores"].argmax()]


@pytest.fixture(scope="module")
def port(tiny_package) -> Iterator[int]:
    command = [sys.executable, EXAMPLES / "serve.py", ROOT / "weights" / "tiny", tiny_package, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    try:
        yield int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)\n", server.stdout.readline())[1])
    finally:
        server.terminate()
        server.communicate(timeout=60)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_the_server_refuses_a_package_in_one_line(tiny_package, tiny):
    command = [sys.executable, EXAMPLES / "serve.py", tiny, tiny_package, "--dtype", "bfloat16"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*with dtype float32, not bfloat16.*\n", done.stderr)


def request(port: int, body: str | bytes, method: str = "POST", **headers: str) -> tuple[int, dict | list]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, "/", body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content) if response.getheader("Content-Type") == "application/json" else []


def test_the_server_answers_with_the_vectors(port, tiny):
    """Of many requests at a time, each with its own."""
    expected = SentenceEncoder.load(tiny).encode(TEXTS)
    status, vectors = request(port, json.dumps(TEXTS))
    assert status == 200
    assert abs(np.array(vectors) - expected).max() <= MINILM_VECTOR
    with ThreadPoolExecutor(8) as clients:
        answers = clients.map(lambda row: request(port, json.dumps(TEXTS[row : row + 1])), [*range(len(TEXTS))] * 5)
    for row, (status, (vector,)) in enumerate(answers):
        assert status == 200
        assert abs(np.array(vector) - expected[row % len(TEXTS)]).max() <= MINILM_VECTOR
    assert request(port, "[]") == (200, [])


WRONG = {
    "": "Content-Length is 0, not 1 to 1048576 bytes",
    "a cat": "Expecting value",
    b'["\xff"]': "codec can't decode",
    '"a cat"': "not a JSON list of at most 1024 texts",
    '{"texts": ["a cat"]}': "not a JSON list",
    '["a cat", 7]': "text 1",
    '["\\ud800"]': "text 0",
    json.dumps(["a"] * 1025): "at most 1024 texts",
    "[" * 100_000: "recursion",
}


def test_a_wrong_request_gets_a_message_and_one_that_is_too_large_is_not_read(port):
    for body, said in WRONG.items():
        status, answer = request(port, body)
        assert status == 400
        assert said in answer["error"]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert b" 400 " in answer.splitlines()[0]
    assert b"Content-Length is 1048577, not 1 to 1048576 bytes" in answer
    assert request(port, '["a dog"]', **{"Content-Length": "many"})[0] == 400
    assert request(port, "", "GET")[0] == 501
    assert request(port, '["a dog"]')[0] == 200


def test_the_handler_needs_no_torch():
    """benchmarks/serve_speed.py serves other libraries with it."""
    code = "import sys; sys.path.insert(0, 'docs/examples'); import serve; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n"
