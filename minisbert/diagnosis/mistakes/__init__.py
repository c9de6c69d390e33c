"""Known mistakes of the forward pass, which ``trace`` names by their numbers.

``in_bert`` (the encoder's formulas and modules), ``in_modern`` (those of newer encoders) and ``in_pooling`` fill the
table ``MISTAKES``; ``planting`` puts one of them into the running package. ``lessons/mistakes`` adds those of every
other piece to the same table, and those of the forward pass that change no vector.
"""

from minisbert.diagnosis.mistakes import in_bert, in_modern, in_pooling
from minisbert.diagnosis.mistakes.planting import MISTAKES, planted, with_each_mistake

__all__ = ["MISTAKES", "in_bert", "in_modern", "in_pooling", "planted", "with_each_mistake"]
