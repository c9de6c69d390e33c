"""Serve vectors over HTTP in the protocol of OpenAI's embeddings, and perhaps reranking.

    minisbert serve all-MiniLM-L6-v2
    minisbert serve all-MiniLM-L6-v2 --compiled --reranker cross-encoder/ms-marco-MiniLM-L6-v2 --port 8000
    curl http://127.0.0.1:8000/v1/embeddings -H "Content-Type: application/json" -d '{"input": "A cat sits."}'

Every client of OpenAI's API can call it: set its base URL to http://127.0.0.1:8000/v1. Needs the serve extra.
"""

import argparse
import os
from typing import TYPE_CHECKING

from minisbert.commands.options import add_model_options, chosen_encoder
from minisbert.core import InputError
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, check_usage, run_command, say

if TYPE_CHECKING:
    from minisbert.serving.engine import Engine


def serve_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("serve", __doc__)
    add_model_options(parser, name="model")
    about = "float32, bfloat16, auto, or with --compiled int8 (default: float32, or the package's)"
    parser.add_argument("--dtype", help=about)
    parser.add_argument("--reranker", metavar="MODEL", help="a cross-encoder for /v1/rerank; it computes in float32")
    about = "the name by which clients know the model (default: MODEL)"
    parser.add_argument("--served-model-name", metavar="NAME", help=about)
    parser.add_argument("--served-reranker-name", metavar="NAME", help="the same for the reranker")
    about = "answer requests that name another model; without it they get status 404, as from OpenAI"
    parser.add_argument("--any-model", action="store_true", help=about)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for all networks (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one (default: %(default)s)")
    about = "the token that clients must send; better in MINISBERT_API_KEY, where other users do not see it"
    parser.add_argument("--api-key", default=os.environ.get("MINISBERT_API_KEY", ""), metavar="KEY", help=about)
    about = "what happens to a text beyond the model's limit: cut it and say so, or refuse it (default: %(default)s)"
    parser.add_argument("--truncate", choices=("cut", "error"), default="cut", help=about)
    count, seconds = bounded(int, 1), bounded(float, 1e-3, 86_401)
    parser.add_argument("--max-waiting", type=count, default=4096, metavar="N", help="texts in the queue (%(default)s)")
    parser.add_argument("--max-texts", type=count, default=2048, metavar="N", help="texts in a request (%(default)s)")
    parser.add_argument("--max-characters", type=count, default=100_000, metavar="N", help="of one text (%(default)s)")
    about = "seconds a request may take to arrive, and again to be answered (default: %(default)s)"
    parser.add_argument("--timeout", type=seconds, default=60, metavar="S", help=about)
    parser.add_argument("--no-access-log", action="store_true", help="no line for each request on stdout")
    options = parser.parse_args(arguments)
    # clients send it in a header; a lone surrogate, which stands for a byte that is not UTF-8, is not printable
    usable = options.api_key.isprintable() and " " not in options.api_key
    check_usage((not usable, "--api-key, MINISBERT_API_KEY: the key must be UTF-8 without spaces and line ends"))
    return options


def main(arguments: list[str] | None = None) -> None:
    options = serve_options(arguments)
    try:
        import uvicorn

        from minisbert.serving.application import Server
        from minisbert.serving.connections import Limits, listening, uvicorn_config
    except ImportError as error:
        raise InputError(f"minisbert serve needs {error.name}: pip install 'minisbert[serve]'") from None
    from minisbert.models.pair_model import PairModel
    from minisbert.serving.engine import Engine

    encoder = chosen_encoder(options)
    name = options.served_model_name or options.model
    reranker, reranker_name = None, ""
    if options.reranker:
        reranker = PairModel.load(options.reranker, device=options.device)
        reranker_name = options.served_reranker_name or options.reranker
    engine = Engine(name, encoder, reranker, reranker_name, options.dtype)
    engine.embed("", ["the first call is slower"])
    counts = {"texts": options.max_texts, "characters": options.max_characters, "waiting_texts": options.max_waiting}
    limits = Limits(seconds=options.timeout, **counts)
    choices = {"api_key": options.api_key, "truncate": options.truncate, "any_model": options.any_model}
    application = Server(engine, limits, **choices).application()
    config = uvicorn_config(application, options.timeout, access_log=not options.no_access_log)
    with listening(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        if ":" in host:
            host = f"[{host}]"  # as URLs have IPv6
        accepted = f"at most {limits.texts:,} texts of {limits.characters:,} characters, {limits.seconds:g} s a request"
        say(f"{served(engine)} on http://{host}:{port}/v1, {accepted}; Ctrl-C stops it")
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn has answered what it had accepted, and passes the signal on
            say("stopped")


def served(engine: "Engine") -> str:
    """Say what is served: names, arithmetic, compiled or not, and where texts are cut."""
    compiled = "compiled"
    if not engine.compiled:
        compiled = "not compiled"
    about = f"{engine.name} ({engine.used_dtype}, {compiled}, {engine.encoder.tokenizer.limit:,} tokens)"
    if engine.reranker is not None:
        limit = engine.reranker.tokenizer.limit
        about += f" and {engine.reranker_name} (float32, not compiled, {limit:,} tokens)"
    return about


if __name__ == "__main__":
    run_command(main)
