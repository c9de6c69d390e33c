"""minisbert: sentence embeddings in plain torch, small enough to read in an evening.

``minisbert/core`` is the book: ten chapters, to be read in order. The other folders make it fast
and safe to use.

    from minisbert import SentenceEncoder
    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minisbert.replacements import PACKAGE, missing_from_module

if TYPE_CHECKING:
    from minisbert import util
    from minisbert.loading import load
    from minisbert.models.multi_vector_encoder import MultiVectorEncoder
    from minisbert.models.pair_model import CrossEncoder, PairModel
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.models.sparse_encoder import SparseEncoder
    from minisbert.models.static_encoder import StaticEncoder

__version__ = "0.1.0"
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

# The module that defines each name.
DEFINED_IN = {
    "SentenceEncoder": "models.sentence_encoder",
    "PairModel": "models.pair_model",
    "CrossEncoder": "models.pair_model",
    "SparseEncoder": "models.sparse_encoder",
    "MultiVectorEncoder": "models.multi_vector_encoder",
    "StaticEncoder": "models.static_encoder",
    "load": "loading",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take every name for one that the package has.
    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used: importing torch takes a second."""
        if name == "util":
            return import_module("minisbert.util")
        if name not in DEFINED_IN:
            raise missing_from_module(__name__, PACKAGE, name, __all__)
        module = import_module(f"minisbert.{DEFINED_IN[name]}")
        return getattr(module, name)


def __dir__() -> list[str]:
    """List the public names for ``dir`` and the TAB key, also those not imported yet."""
    return [*__all__, "__version__"]
