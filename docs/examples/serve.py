"""Vectors over HTTP: POST a JSON list of texts, get a JSON list of vectors.

    python docs/examples/serve.py all-MiniLM-L6-v2 all-MiniLM-L6-v2.pt2 --port 8000
    curl -d '["A cat sits."]' http://127.0.0.1:8000

The package is a program (docs/serving.md). The server listens to this machine only.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from minisbert.system.console import run_command

BYTES, TEXTS = 2**20, 1024  # the largest request


class Handler(BaseHTTPRequestHandler):
    timeout = 30  # seconds without a byte from the client

    def do_POST(self) -> None:
        try:
            status, answer = 200, self.server.vectors(self.texts())
        except (ValueError, RecursionError) as error:  # minisbert's InputError and JSON's are ValueErrors
            status, answer = 400, {"error": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def texts(self) -> list[str]:
        size = int(self.headers["Content-Length"] or 0)
        if not 0 < size <= BYTES:
            raise ValueError(f"Content-Length is {size}, not 1 to {BYTES} bytes")
        texts = json.loads(self.rfile.read(size))
        if not isinstance(texts, list) or len(texts) > TEXTS:
            raise ValueError(f"the request is not a JSON list of at most {TEXTS} texts")
        return texts

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are not logged."""


class Server(ThreadingHTTPServer):
    """A thread for each connection, and one that encodes: OpenMP makes a set of threads for each that computes."""

    def __init__(self, port: int, encode: Callable):
        super().__init__(("127.0.0.1", port), Handler)
        self.encode, self.worker = encode, ThreadPoolExecutor(1)

    def vectors(self, texts: list[str]) -> list[list[float]]:
        return self.worker.submit(self.encode, texts).result().tolist()


def main() -> None:
    import minisbert  # here, because it imports torch

    parser = argparse.ArgumentParser(description="Vectors over HTTP from a compiled package.")
    parser.add_argument("model", help="name or folder, for its tokenizer and settings")
    parser.add_argument("package", help="the file that was compiled from it")
    parser.add_argument("--dtype", default="float32", help="of the package (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (default: %(default)s)")
    options = parser.parse_args()
    encoder = minisbert.load(options.model, compiled=options.package, dtype=options.dtype)
    encoder.encode(["the first call is slower"])
    with Server(options.port, encoder.encode) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    run_command(main)
