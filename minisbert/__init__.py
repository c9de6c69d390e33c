"""minisbert: sentence embeddings in plain torch, small enough to read in an evening.

``minisbert/core`` is the book: ten chapters, to be read in order. The other folders make it fast
and safe to use.

    from minisbert import SentenceEncoder
    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
# What to use instead of the names that users of sentence-transformers import first. The whole table
# is in docs/from-sentence-transformers.md.
REPLACEMENTS = {
    "SentenceTransformer": 'SentenceEncoder.load("name")',
    "SentenceTransformerTrainer": "minisbert.train.train, or the command minisbert train",
    "SentenceTransformerTrainingArguments": "the arguments of minisbert.train.train",
    "CrossEncoderTrainer": "minisbert train --head cross-encoder",
    "InputExample": "the rows of a .tsv, .csv or .jsonl file with a header",
    "datasets": "the rows of a .tsv, .csv or .jsonl file with a header",
    "losses": "minisbert.core.losses, or the option --loss of minisbert train",
    "SimilarityFunction": 'its name: "cosine", "dot", "euclidean" or "manhattan"',
    "quantize_embeddings": 'encode(texts, precision="int8")',
    "export_optimized_onnx_model": "the command minisbert export-onnx",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing torch takes a second."""
    if name == "util":
        return import_module("minisbert.util")
    if name in REPLACEMENTS:
        # ``from minisbert import name`` would not show the message of an AttributeError.
        raise ImportError(
            f"minisbert has no {name}: use {REPLACEMENTS[name]}; docs/from-sentence-transformers.md"
        )
    if name not in DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"minisbert.{DEFINED_IN[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    """List the public names for ``dir`` and the TAB key, also those not imported yet."""
    return [*__all__, "__version__"]
