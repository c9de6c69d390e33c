"""An OpenAI-compatible embeddings server; it reranks, too, with --reranker.

Every client of OpenAI's API can call the server: set its base URL to http://127.0.0.1:8000/v1.
Needs the serve extra.

Examples:
  minisbert serve all-MiniLM-L6-v2
  minisbert serve all-MiniLM-L6-v2 --compiled --reranker cross-encoder/ms-marco-MiniLM-L6-v2
  curl --fail 127.0.0.1:8000/v1/embeddings -H 'Content-Type: application/json' -d '{"input": "A"}'
"""

import argparse
import gc
import ipaddress
import logging
import os
import socket

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import bounded, check_usage, command_parser, say

# Connections at a time, and files that a process opens beside them.
MOST_CONNECTIONS = 500
OTHER_FILES = 50


def serve_options(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments.

    The parser is made here, and not at import: the default of the key is in the environment.
    """
    parser = command_parser("serve", __doc__)
    shared.add_model_options(parser, name="model")
    parser.add_argument(
        "--dtype", help="float32 (default), bfloat16, auto, or with --compiled int8"
    )
    parser.add_argument(
        "--reranker", metavar="MODEL", help="a cross-encoder for /v1/rerank; it computes in float32"
    )
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="how clients call the model (default: MODEL)"
    )
    parser.add_argument(
        "--served-reranker-name",
        metavar="NAME",
        help="how clients call the reranker (default: its MODEL)",
    )
    parser.add_argument(
        "--any-model", action="store_true", help="answer requests that name another model"
    )
    parser.add_argument(
        "--cors",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin call the server, https://example.org, or * for all; may "
        "be repeated",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 for all networks (default: this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="0 for a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--api-key",
        default=os.environ.get("MINISBERT_API_KEY"),
        metavar="KEY",
        help="the token that clients must send; better in MINISBERT_API_KEY, where other users do "
        "not see it",
    )
    parser.add_argument(
        "--truncate",
        choices=("cut", "error"),
        default="cut",
        help="what to do with a text beyond the model's limit: cut it and say so, or refuse it "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--max-waiting",
        type=bounded(int, 1),
        default=4096,
        metavar="N",
        help="at most N texts in the queue (default: %(default)s)",
    )
    parser.add_argument(
        "--max-texts",
        type=bounded(int, 1),
        default=2048,
        metavar="N",
        help="at most N texts in a request (default: %(default)s)",
    )
    parser.add_argument(
        "--max-characters",
        type=bounded(int, 1),
        default=100_000,
        metavar="N",
        help="at most N characters in a text (default: %(default)s)",
    )
    options = parser.parse_args(arguments)

    # Clients send the key in a header, as one word of UTF-8. A line end is not printable, nor is a
    # lone surrogate, which Python has for a byte that is not UTF-8.
    key = options.api_key or ""
    # An empty one is most often a variable that is not set: it must not open the server.
    is_empty = options.api_key == ""
    check_usage(
        (
            not key.isprintable() or " " in key,
            "--api-key, MINISBERT_API_KEY: the key must be UTF-8 without spaces and line ends",
        ),
        (
            is_empty,
            "--api-key, MINISBERT_API_KEY: the key is empty: give one, or neither option nor "
            "variable to serve without a key",
        ),
        (options.host == "", "--host is empty: 127.0.0.1 is this machine, 0.0.0.0 all networks"),
    )
    return options


def main(arguments: list[str] | None = None) -> None:
    options = serve_options(arguments)
    try:
        import uvicorn

        from minisbert.serving.application import Server
        from minisbert.serving.connections import Connection, HttpServer
    except ImportError as error:
        raise InputError(f"minisbert serve needs {error.name}: pip install -e '.[serve]'") from None
    from minisbert.models.pair_model import PairModel
    from minisbert.serving.engine import Engine

    encoder = shared.chosen_encoder(options, options.dtype)
    reranker = None
    reranker_name = ""
    if options.reranker:
        reranker = PairModel.load(options.reranker, device=options.device)
        reranker_name = options.served_reranker_name or options.reranker
    model_name = options.served_model_name or options.model
    engine = Engine(model_name, encoder, reranker, reranker_name, options.dtype)
    # The first call is slower, so no client should make it.
    engine.embed("", ["the first call is slower"])
    server = Server(
        engine,
        options.api_key or "",
        options.truncate,
        options.any_model,
        options.cors,
        max_texts=options.max_texts,
        max_characters=options.max_characters,
        max_waiting=options.max_waiting,
    )
    limit = connection_limit()
    config = uvicorn.Config(
        server.application(),
        http=Connection,
        ws="none",
        h11_max_incomplete_event_size=2**16,  # bytes of a request's head
        limit_concurrency=limit,
        # How many asyncio accepts before it reads from any of them. If these were as many as the
        # limit, a flood of connections would push out a client before its request is seen.
        backlog=min(limit, 128),
        # A warning for each request that is not HTTP would let anybody fill the log.
        log_level="error",
        timeout_graceful_shutdown=60,
    )
    # A line for each request that is HTTP is logged all the same.
    logging.getLogger("uvicorn.access").setLevel("INFO")
    # If nobody reads the log any more, or its disk is full, a traceback for each line helps nobody.
    logging.raiseExceptions = False

    with listen(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        access = ""
        if not options.api_key and not ipaddress.ip_address(host).is_loopback:
            access = ", open to everybody on its networks (no --api-key)"
        if ":" in host:
            host = f"[{host}]"  # as URLs have IPv6
        say(
            f"{engine.description} on http://{host}:{port}/v1{access}, at most "
            f"{options.max_texts:,} texts of {options.max_characters:,} characters a request; "
            f"Ctrl-C stops it"
        )
        # Looking for garbage among a request's lists and the model's objects would cost seconds for
        # a million of them.
        gc.freeze()
        gc.set_threshold(100_000)
        try:
            HttpServer(config).run(sockets=[listener])
        except KeyboardInterrupt:
            # Uvicorn has answered what it had accepted, and passes the signal on.
            say("stopped")


def connection_limit() -> int:
    """Return how many connections there may be at a time: fewer than the files left to open."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return MOST_CONNECTIONS
    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, most_files - OTHER_FILES))


def listen(host: str, port: int) -> socket.socket:
    """Open the socket of the server; ``InputError`` if the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from None
    # subtle: asyncio sets this for sockets that it creates itself; without it an answer may wait
    # 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
