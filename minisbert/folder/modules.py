"""Which class opens a model's folder, one row per kind, and ``modules.json``.

A kind is recognised by words: ``model_type`` in config_sentence_transformers.json and in config.json, the keys of the
former, the architectures in the latter, and the classes in modules.json. Its class has what commands call on
``SentenceEncoder``, with the same arguments: ``load``, ``encode``, ``similarity``, ``top_k``, ``search_options``,
``settings``, ``tokenizer``, ``width``.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from minisbert.folder.settings import MODULES_FILE
from minisbert.system.files import write_json


@dataclass(frozen=True)
class Kind:
    """The words of a class, of which one is enough, and the order of its modules as a regular expression."""

    words: str
    order: str


POOLING_NAMES = (
    *("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
    *("attention", "first-last", "pooler"),
)
SENTENCE_ENCODER = "SentenceEncoder"  # any folder that no other kind claims
KINDS = {
    "SparseEncoder": Kind(
        "SparseEncoder SpladePooling SparseStaticEmbedding IDF SparseAutoEncoder",
        "Transformer SpladePooling",
    ),
    "MultiVectorEncoder": Kind(
        "MultiVectorEncoder MultiVectorMask ColBERT query_prefix HF_ColBERT",  # the last three are refused
        "Transformer Dense( Normalize)? MultiVectorMask( Normalize)?",
    ),
    "StaticEncoder": Kind("StaticEmbedding model2vec", "StaticEmbedding( Normalize)?"),
    SENTENCE_ENCODER: Kind("", "Transformer Pooling( Dense)*( Normalize)?"),
}


def check_order(name: str, modules: list[str]) -> None:
    """Raise ``ValueError`` for modules, or an order of them, that the kind does not compute."""
    if not re.fullmatch(KINDS[name].order, " ".join(modules)):
        known = KINDS[name].order.replace("( Dense)*", " Dense ...").replace("(", "").replace(")?", "")
        raise ValueError(f"modules {', '.join(modules)} are not supported, only {known.replace(' ', ', ')}")


def write_modules(folder: Path, kinds: list[str], package: str = "models") -> list[str]:
    """Write ``modules.json``, create one subfolder per module and return their names; the first module's is ``folder``.

    ``package`` is the one of sentence-transformers that has the classes.
    """
    places, modules = [], []
    for i, kind in enumerate(kinds):
        place = f"{i}_{kind}" if i else ""
        home = "multi_vector_encoder.modules" if kind == "MultiVectorMask" else package
        places.append(place)
        modules.append({"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.{home}.{kind}"})
        (folder / place).mkdir(exist_ok=True)
    write_json(folder / MODULES_FILE, modules)
    return places
