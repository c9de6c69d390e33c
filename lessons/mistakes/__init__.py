"""The catalogue of known mistakes, ``MISTAKES``: those of the forward pass, which the package
names, and all others.

``by_hand`` (merges, gradients, costs), ``compression`` (int8, bits), ``distillation``, ``forward``
(what vectors do not show), ``heads``, ``losses``, ``pipeline`` (text, names, batches), ``scores``
(metrics), ``search`` (top_k, BM25, ranks, MaxSim, an index) and ``training`` fill it, beside
``minisbert/diagnosis/mistakes.py``. ``planted`` puts a mistake into the running package.
"""

from lessons.mistakes import (  # noqa: F401 (they fill the table)
    by_hand,
    compression,
    distillation,
    forward,
    heads,
    losses,
    pipeline,
    scores,
    search,
    training,
)
from minisbert.diagnosis.planting import MISTAKES, planted

__all__ = ["MISTAKES", "planted"]
