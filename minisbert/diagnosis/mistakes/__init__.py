"""Known mistakes of the forward pass, which ``trace`` and ``certify`` name by their numbers.

``bert`` (the encoder's formulas and modules), ``modern`` (those of newer encoders) and ``pooling`` fill the table
``MISTAKES``; ``planting`` puts one of them into the running package. ``lessons/mistakes`` adds those of every other
piece to the same table, and those of the forward pass that change no vector.
"""

from minisbert.diagnosis.mistakes import bert, modern, pooling
from minisbert.diagnosis.mistakes.planting import MISTAKES, planted, with_each_mistake

__all__ = ["MISTAKES", "bert", "modern", "planted", "pooling", "with_each_mistake"]
