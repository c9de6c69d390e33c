"""minisbert: sentence embeddings in plain torch, small enough to read in an evening.

The book is ``minisbert/core``, ten chapters to be read in order; the rooms around it make it fast and safe to use.

    from minisbert import SentenceEncoder
    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
"""

import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from minisbert.system.help_pages import print_page
from minisbert.system.version import __version__ as __version__

if TYPE_CHECKING:
    from minisbert import util
    from minisbert.loading import load
    from minisbert.models.multi_vector_encoder import MultiVectorEncoder
    from minisbert.models.pair_model import CrossEncoder, PairModel
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.models.sparse_encoder import SparseEncoder
    from minisbert.models.static_encoder import StaticEncoder

__all__ = [
    "CrossEncoder",
    "MultiVectorEncoder",
    "PairModel",
    "SentenceEncoder",
    "SparseEncoder",
    "StaticEncoder",
    "load",
    "util",
]

# How long OpenMP's threads spin before they sleep, in a command: 3,000 iterations in libgomp, about .15 ms
# (default: 300,000); 1 ms in libomp and Intel's (default: 200). A spinning thread keeps its core from other processes.
WAITING = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "1"}


def _stop(*_: object) -> None:
    """End the process at once, as Ctrl-C ends a command: during imports nothing needs to be closed."""
    try:
        os.write(2, b"stopped\n")
    finally:
        os._exit(130)


def start_command() -> None:
    """Prepare the process for a command's import of torch, which takes a second; ``run_command`` takes over."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if not {"OMP_WAIT_POLICY", *WAITING} & os.environ.keys():  # OpenMP reads them when torch is imported
        os.environ.update(WAITING)


if sys.argv[:1] == ["-m"]:
    _module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    if _module.partition(".")[0] == "minisbert":  # not the command of another package that imports this one
        start_command()
    if _module == "minisbert.train":
        print_page("train", sys.argv[1:])


FILES = {
    "SentenceEncoder": "models.sentence_encoder",
    "PairModel": "models.pair_model",
    "CrossEncoder": "models.pair_model",
    "SparseEncoder": "models.sparse_encoder",
    "MultiVectorEncoder": "models.multi_vector_encoder",
    "StaticEncoder": "models.static_encoder",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """The package's classes, imported when they are first used: importing torch takes a second."""
    if name == "util":
        return import_module("minisbert.util")
    if name not in FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"minisbert.{FILES[name]}"), name)


def __dir__() -> list[str]:
    """The public names, before they are imported too: for ``dir`` and the TAB key."""
    return sorted({*globals(), *__all__})
