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
from minisbert.models.pair_model import PairModel
from minisbert.serving.engine import Engine
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command, say


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
    parser.add_argument("--max-waiting", type=int, default=4096, metavar="N", help="texts; beyond it, status 429")
    parser.add_argument("--max-texts", type=int, default=2048, metavar="N", help="texts in a request")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds a request may take")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.max_waiting < 1 or options.max_texts < 1 or not options.timeout > 0:
        raise InputError("--max-waiting, --max-texts and --timeout must be above 0")
    try:
        import uvicorn
    except ImportError as error:
        raise InputError(f"minisbert serve needs {error.name}: pip install 'minisbert[serve]'") from None
    from minisbert.serving.application import BACKLOG, BoundedConnection, Limits, Server, raise_file_limit

    encoder = chosen_encoder(options)
    reranker = None
    if options.reranker:
        reranker = PairModel.load(options.reranker, device=options.device)
    engine = Engine(options.model, encoder, reranker, options.reranker or "")
    engine.embed("", ["the first call is slower"])
    limits = Limits(texts=options.max_texts, waiting_texts=options.max_waiting, seconds=options.timeout)
    application = Server(engine, limits, options.api_key, options.truncate).application()
    files = raise_file_limit()
    BoundedConnection.most, BoundedConnection.seconds = files // 2, options.timeout
    config = uvicorn.Config(
        application,
        http=BoundedConnection,
        backlog=min(BACKLOG, files // 8),
        access_log=False,
        log_level="error",  # a warning for each request that is no HTTP would let anybody fill the log
        lifespan="off",
        timeout_graceful_shutdown=int(options.timeout) + 1,
    )
    try:
        listener = socket.create_server((options.host, options.port), backlog=1024)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {options.host} port {options.port}: {error}") from None
    # subtle: asyncio sets this for sockets that it creates itself; without it an answer may wait 40 ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        host, port = listener.getsockname()[:2]
        say(f"{options.model} on http://{host}:{port}/v1, Ctrl-C stops it")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has answered what it had accepted, and passes the signal on
            say("stopped")


if __name__ == "__main__":
    run_command(main)
