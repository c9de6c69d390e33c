"""The catalogue of known mistakes, ``MISTAKES``: those of the forward pass, which the package names, and all others.

``by_hand`` (merges, gradients, costs), ``compression`` (int8, bits), ``distillation``, ``forward`` (what vectors do not
show), ``heads``, ``late`` (MaxSim), ``lexical`` (BM25), ``losses``, ``pipeline`` (text, names, batches, search),
``scores`` (metrics), ``training`` and ``walks`` (an index) fill it, beside
``minisbert/diagnosis/mistakes.py``. ``planted`` puts a mistake into the running package.
"""

from lessons.mistakes import (
    by_hand,
    compression,
    distillation,
    forward,
    heads,
    late,
    lexical,
    losses,
    pipeline,
    scores,
    training,
    walks,
)
from minisbert.diagnosis.planting import MISTAKES, planted

__all__ = [
    "MISTAKES",
    "by_hand",
    "compression",
    "distillation",
    "forward",
    "heads",
    "late",
    "lexical",
    "losses",
    "pipeline",
    "planted",
    "scores",
    "training",
    "walks",
]
