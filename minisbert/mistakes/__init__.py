"""Known mistakes: the catalogue ``MISTAKES``, and the tools that recognise a mistake by its numbers.

``bert``, ``blocks`` (the encoder's formulas and modules), ``compression`` (int8, bits), ``distillation``, ``heads``,
``losses``, ``pipeline`` (text, names, batches, search), ``retrieval``, ``scores`` (poolings, metrics) and ``training``
fill the catalogue; ``planting`` puts a mistake into the running package; ``divergence`` and ``tracing`` find where two
implementations differ and which mistake explains it;
``causes`` does so for final vectors alone, with ``certificate``, ``hypotheses``, ``other_inputs`` and ``verdicts``.
May import every other room; only ``minisbert.trace``, ``minisbert.certify``, the lessons and the tests may import it.
"""

from minisbert.mistakes import (
    bert,
    blocks,
    compression,
    distillation,
    heads,
    losses,
    pipeline,
    retrieval,
    scores,
    training,
)
from minisbert.mistakes.planting import MISTAKES, planted

__all__ = [
    "MISTAKES",
    "bert",
    "blocks",
    "compression",
    "distillation",
    "heads",
    "losses",
    "pipeline",
    "planted",
    "retrieval",
    "scores",
    "training",
]
