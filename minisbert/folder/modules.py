"""The modules of a model's folder: the class that opens them, their order, the names of poolings, ``modules.json``."""

import re
from dataclasses import dataclass
from pathlib import Path

from minisbert.folder.settings import MODULES_FILE
from minisbert.system.files import write_json

POOLING_NAMES = (
    "mean",
    "cls",
    "max",
    "mean_sqrt_len_tokens",
    "weightedmean",
    "lasttoken",
    "attention",
    "first-last",
    "pooler",
)
# flags of older files after ``core.POOLING_FLAGS``, in the order in which sentence-transformers concatenates
MORE_POOLING_FLAGS = {
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class ModelClass:
    """How a folder of this class is recognised, and the order of its modules as a regular expression.

    One of ``marks`` is enough: a ``model_type`` in config_sentence_transformers.json or config.json, a key of the
    former, an architecture in the latter, or a class in modules.json.
    """

    marks: tuple[str, ...]
    order: str


SENTENCE_ENCODER = "SentenceEncoder"  # opens any folder that no other class claims
MODEL_CLASSES = {
    "SparseEncoder": ModelClass(
        marks=("SparseEncoder", "SpladePooling", "SparseStaticEmbedding", "IDF", "SparseAutoEncoder"),
        order="Transformer SpladePooling",
    ),
    "MultiVectorEncoder": ModelClass(
        # the last three are refused
        marks=("MultiVectorEncoder", "MultiVectorMask", "ColBERT", "query_prefix", "HF_ColBERT"),
        order="Transformer Dense( Normalize)? MultiVectorMask( Normalize)?",
    ),
    "StaticEncoder": ModelClass(marks=("StaticEmbedding", "model2vec"), order="StaticEmbedding( Normalize)?"),
    SENTENCE_ENCODER: ModelClass(marks=(), order="Transformer Pooling( Dense)*( Normalize)?"),
}


def check_order(model_class: str, modules: list[str]) -> None:
    """Raise ``ValueError`` for modules, or an order of them, that the class does not compute."""
    order = MODEL_CLASSES[model_class].order
    if not re.fullmatch(order, " ".join(modules)):
        readable = order.replace("( Dense)*", " Dense ...").replace("(", "").replace(")?", "").replace(" ", ", ")
        raise ValueError(f"modules {', '.join(modules)} are not supported, only {readable}")


def write_modules(folder: Path, classes: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json``, create one subfolder per module and return their names; the first module's is ``folder``.

    ``package`` is the one of sentence-transformers that has the classes.
    """
    places, modules = [], []
    for i, name in enumerate(classes):
        place = f"{i}_{name}" if i else ""
        home = "multi_vector_encoder.modules" if name == "MultiVectorMask" else package
        places.append(place)
        modules.append({"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{home}.{name}"})
        (folder / place).mkdir(exist_ok=True)
    write_json(folder / MODULES_FILE, modules)
    return places
