"""Serve vectors over HTTP in the protocol of OpenAI's embeddings, and perhaps reranking.

    minisbert serve all-MiniLM-L6-v2
    minisbert serve all-MiniLM-L6-v2 --compiled --reranker cross-encoder/ms-marco-MiniLM-L6-v2 --port 8000
    curl http://127.0.0.1:8000/v1/embeddings -H "Content-Type: application/json" -d '{"input": "A cat sits."}'

Every client of OpenAI's API can call it: set its base URL to http://127.0.0.1:8000/v1. Needs the serve extra.
"""

import argparse
import os
import socket

from minisbert.commands.options import add_model_options, chosen_encoder
from minisbert.core import InputError
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, check_usage, run_command, say

# connections at a time, below the files that most systems let a process open; uvicorn answers others with 503
CONNECTIONS = 500
BACKLOG = 128  # connections that are accepted at once: asyncio logs each for which no file is left


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("serve", __doc__)
    add_model_options(parser, name="model")
    parser.add_argument("--reranker", metavar="MODEL", help="a cross-encoder for /v1/rerank")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for all networks (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (default: %(default)s)")
    about = "the token that clients must send; better in MINISBERT_API_KEY, where other users do not see it"
    parser.add_argument("--api-key", default=os.environ.get("MINISBERT_API_KEY", ""), metavar="KEY", help=about)
    about = "what happens to a text beyond the model's limit: cut it and say so, or refuse it (default: %(default)s)"
    parser.add_argument("--truncate", choices=("cut", "error"), default="cut", help=about)
    count, seconds = bounded(int, 1), bounded(float, 1e-3, 86_401)
    parser.add_argument("--max-waiting", type=count, default=4096, metavar="N", help="texts; beyond it, status 429")
    parser.add_argument("--max-texts", type=count, default=2048, metavar="N", help="texts in a request")
    parser.add_argument("--max-characters", type=count, default=100_000, metavar="N", help="characters in a text")
    about = "seconds a request may take to arrive, and again to be answered (default: %(default)s)"
    parser.add_argument("--timeout", type=seconds, default=60, metavar="S", help=about)
    options = parser.parse_args(arguments)
    # clients send it in a header; a lone surrogate, which stands for a byte that is not UTF-8, is not printable
    usable = options.api_key.isprintable() and " " not in options.api_key
    check_usage((not usable, "--api-key, MINISBERT_API_KEY: the key must be UTF-8 without spaces and line ends"))
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    try:
        import uvicorn

        from minisbert.serving.application import Limits, Server, TimedConnection
    except ImportError as error:
        raise InputError(f"minisbert serve needs {error.name}: pip install 'minisbert[serve]'") from None
    from minisbert.models.pair_model import PairModel
    from minisbert.serving.engine import Engine

    encoder = chosen_encoder(options)
    reranker = None
    if options.reranker:
        reranker = PairModel.load(options.reranker, device=options.device)
    engine = Engine(options.model, encoder, reranker, options.reranker or "")
    engine.embed("", ["the first call is slower"])
    counts = {"texts": options.max_texts, "characters": options.max_characters, "waiting_texts": options.max_waiting}
    limits = Limits(seconds=options.timeout, **counts)
    TimedConnection.seconds = options.timeout  # uvicorn makes the connections, and passes nothing on
    config = uvicorn.Config(
        Server(engine, limits, options.api_key, options.truncate).application(),
        http=TimedConnection,
        limit_concurrency=CONNECTIONS,
        backlog=BACKLOG,
        access_log=False,
        log_level="error",  # a warning for each request that is no HTTP would let anybody fill the log
        lifespan="off",
        timeout_graceful_shutdown=int(options.timeout) + 1,
    )
    with listening(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        if ":" in host:
            host = f"[{host}]"  # as URLs have IPv6
        say(f"{options.model} on http://{host}:{port}/v1, Ctrl-C stops it")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has answered what it had accepted, and passes the signal on
            say("stopped")


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a port of an IPv4 or IPv6 address, or of a name."""
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host} port {port}: {error}") from None
    # subtle: asyncio sets this for sockets that it creates itself; without it an answer may wait 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


if __name__ == "__main__":
    run_command(main)
