"""A local web server that serves what a test wants, right or wrong, and a hub of models."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

Answer = bytes | Callable[[BaseHTTPRequestHandler], None]


class Site:
    """A server's address, its pages (a test may change them), and the paths that were requested, in
    order.
    """

    def __init__(self, address: str, pages: dict[str, Answer | None]):
        self.address = address
        self.pages = pages
        self.asked: list[str] = []


@contextmanager
def serve(pages: dict[str, Answer | None]) -> Iterator[Site]:
    """Serve ``pages`` (path to bytes, or to a function of the request handler) while the block
    runs; else 404.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.asked.append(self.path)
            self.close_connection = True
            answer = site.pages.get(self.path.partition("?")[0])
            if answer is None:
                self.send_error(404)
            elif callable(answer):
                answer(self)
            else:
                send(self, answer)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing: the test reads stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}", pages)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    )
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(
    handler: BaseHTTPRequestHandler, body: bytes, promised: int | None = None, **headers: str
) -> None:
    """A plain answer; ``promised`` is a wrong Content-Length."""
    handler.send_response(200)
    length = str(len(body) if promised is None else promised)
    for name, value in {"Content-Length": length, "Connection": "close", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def refuse(status: int, code: str) -> Answer:
    """An error as the hub reports it, such as 404 RepoNotFound."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("X-Error-Code", code)
        handler.send_header("Content-Length", "0")
        handler.send_header("Connection", "close")
        handler.end_headers()

    return answer


def repository(
    name: str, files: dict[str, bytes], commit: str, *revisions: str
) -> dict[str, Answer | None]:
    """The pages of the Hugging Face Hub for one model; ``revisions`` are the names of this commit
    (main, a tag).
    """
    about = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}
    tree = [
        {"type": "file", "path": file, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
        for file, body in files.items()
    ]
    pages: dict[str, Answer | None] = {
        f"/api/models/{name}/tree/{commit}": json.dumps(tree).encode()
    }
    for revision in (commit, *revisions):
        pages[f"/api/models/{name}/revision/{revision.replace('/', '%2F')}"] = json.dumps(
            about
        ).encode()
        for file, body in files.items():
            pages[f"/{name}/resolve/{revision}/{file}"] = hub_file(body, commit)
    if "main" in revisions:
        pages[f"/api/models/{name}"] = json.dumps(about).encode()
    return pages


def use_hub(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the site the hub of this process, with an empty cache: the library has read its
    variables at its import.
    """
    monkeypatch.setattr(constants, "ENDPOINT", site.address)
    template = site.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("MINISBERT_OFFLINE", raising=False)


def hub_file(body: bytes, commit: str) -> Answer:
    """A file with the headers from which huggingface_hub derives its name in the cache."""
    etag = f'"{hashlib.sha1(body).hexdigest()}"'
    return lambda handler: send(handler, body, ETag=etag, X_Repo_Commit=commit)


def cut(body: bytes, after: int) -> Answer:
    """The connection breaks ``after`` bytes of ``body``."""
    return lambda handler: send(handler, body[:after], promised=len(body))


def cut_chunked(body: bytes) -> Answer:
    """The connection breaks in chunked encoding, which announces no length, before the end mark."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(f"{len(body) * 2:x}\r\n".encode() + body)

    return answer
