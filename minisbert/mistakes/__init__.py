"""Known mistakes: the catalogue ``MISTAKES``, and the tools that recognise a mistake by its numbers.

``bert``, ``blocks`` (the encoder's formulas and modules), ``heads``, ``losses``, ``pipeline`` (text, names, batches,
search), ``scores`` (poolings, metrics) and ``training`` fill the catalogue; ``planting`` puts a mistake into the
running package; ``divergence`` and ``tracing`` find where two implementations differ and which mistake explains it.
May import every other room; only ``minisbert.trace``, the lessons and the tests may import it.
"""

from minisbert.mistakes import bert, blocks, heads, losses, pipeline, scores, training
from minisbert.mistakes.planting import MISTAKES, planted

__all__ = ["MISTAKES", "bert", "blocks", "heads", "losses", "pipeline", "planted", "scores", "training"]
