"""The catalogue of known mistakes, ``MISTAKES``: wrong code, which lessons and tests plant.

``by_hand`` (merges, gradients, costs), ``compression`` (int8, bits), ``distillation``, ``forward``
(what vectors do not show), ``heads``, ``losses``, ``pipeline`` (text, names, batches), ``scores``
(metrics), ``search`` (top_k, BM25, ranks, MaxSim, an index), ``sheets`` (boards, prompts, budgets),
``training`` and ``vectors`` (of the forward pass) fill it. ``planted`` puts a mistake into the
running package; ``hunt`` names one by its numbers.
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
    sheets,
    training,
    vectors,
)
from lessons.mistakes.planting import MISTAKES, planted

__all__ = ["MISTAKES", "planted"]
