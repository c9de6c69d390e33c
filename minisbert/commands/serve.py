"""Serve vectors over HTTP in the protocol of OpenAI's embeddings, and perhaps reranking.

Every client of OpenAI's API can call it: set its base URL to http://127.0.0.1:8000/v1. Needs the
serve extra.

Examples:
  minisbert serve all-MiniLM-L6-v2
  minisbert serve all-MiniLM-L6-v2 --reranker cross-encoder/ms-marco-MiniLM-L6-v2 --port 8000
  curl http://127.0.0.1:8000/v1/embeddings --json '{"input": "A cat sits."}'
"""

import argparse
import gc
import logging
import os
import socket

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import bounded, check_usage, command_parser, say

# at a time, below the files that most systems let a process open; uvicorn answers others with 503
CONNECTIONS = 500


def serve_options(arguments: list[str] | None) -> argparse.Namespace:
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
    parser.add_argument("--served-reranker-name", metavar="NAME", help="the same for the reranker")
    parser.add_argument(
        "--any-model", action="store_true", help="answer requests that name another model"
    )
    about = (
        "let web pages of this origin call it, https://example.org, or * for all; may be repeated"
    )
    parser.add_argument("--cors", action="append", default=[], metavar="ORIGIN", help=about)
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 for all networks (default: this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=8000, help="0 for a free one (default: %(default)s)"
    )
    about = "the token that clients must send; better in MINISBERT_API_KEY, where other users do "
    about += "not see it"
    parser.add_argument(
        "--api-key", default=os.environ.get("MINISBERT_API_KEY", ""), metavar="KEY", help=about
    )
    about = "what happens to a text beyond the model's limit: cut it and say so, or refuse it "
    about += "(default: %(default)s)"
    parser.add_argument("--truncate", choices=("cut", "error"), default="cut", help=about)
    count = bounded(int, 1)
    parser.add_argument(
        "--max-waiting",
        type=count,
        default=4096,
        metavar="N",
        help="texts in the queue (%(default)s)",
    )
    parser.add_argument(
        "--max-texts",
        type=count,
        default=2048,
        metavar="N",
        help="texts in a request (%(default)s)",
    )
    parser.add_argument(
        "--max-characters",
        type=count,
        default=100_000,
        metavar="N",
        help="of one text (%(default)s)",
    )
    options = parser.parse_args(arguments)
    # clients send it in a header; a lone surrogate, which stands for a byte that is not UTF-8, is
    # not printable
    usable = options.api_key.isprintable() and " " not in options.api_key
    check_usage(
        (
            not usable,
            "--api-key, MINISBERT_API_KEY: the key must be UTF-8 without spaces and line ends",
        )
    )
    return options


def main(arguments: list[str] | None = None) -> None:
    options = serve_options(arguments)
    try:
        import uvicorn

        from minisbert.serving.application import Server
    except ImportError as error:
        raise InputError(f"minisbert serve needs {error.name}: pip install -e '.[serve]'") from None
    from minisbert.models.pair_model import PairModel
    from minisbert.serving.engine import Engine

    encoder = shared.chosen_encoder(options, options.dtype)
    reranker, reranker_name = None, ""
    if options.reranker:
        reranker = PairModel.load(options.reranker, device=options.device)
        reranker_name = options.served_reranker_name or options.reranker
    engine = Engine(
        options.served_model_name or options.model, encoder, reranker, reranker_name, options.dtype
    )
    engine.embed("", ["the first call is slower"])
    limits = {
        name: getattr(options, name) for name in ("max_texts", "max_characters", "max_waiting")
    }
    server = Server(
        engine, options.api_key, options.truncate, options.any_model, options.cors, **limits
    )

    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.create_server((options.host, options.port), family=family)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {options.host} port {options.port}: {error}") from None
    # subtle: asyncio sets this for sockets that it creates itself; without it an answer may wait 40
    # ms for an ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        server.application(),
        limit_concurrency=CONNECTIONS,
        # a warning for each request that is no HTTP would let anybody fill the log
        log_level="error",
        timeout_graceful_shutdown=60,
    )
    logging.getLogger("uvicorn.access").setLevel("INFO")
    with listener:
        host, port = listener.getsockname()[:2]
        if ":" in host:
            host = f"[{host}]"  # as URLs have IPv6
        most = f"{options.max_texts:,} texts of {options.max_characters:,} characters a request"
        say(f"{engine.about} on http://{host}:{port}/v1, at most {most}; Ctrl-C stops it")
        # looking for garbage among a request's lists, and the model's objects, would cost seconds
        # for a million of them
        gc.freeze()
        gc.set_threshold(100_000)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except (
            KeyboardInterrupt
        ):  # uvicorn has answered what it had accepted, and passes the signal on
            say("stopped")
