"""The smallest server, the same around every library that ``serve_speed`` compares: a JSON list of texts to vectors.

Python's own ``http.server``, without torch. For anything else there is ``minisbert serve``.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(self.server.vectors(texts)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the requests are not logged."""


class Server(ThreadingHTTPServer):
    """A thread for each connection, and one that encodes: OpenMP makes a set of threads for each that computes."""

    def __init__(self, port: int, encode: Callable):
        super().__init__(("127.0.0.1", port), Handler)
        self.encode, self.worker = encode, ThreadPoolExecutor(1)

    def vectors(self, texts: list[str]) -> list[list[float]]:
        return self.worker.submit(self.encode, texts).result().tolist()
