"""The models that users load, call and save: encoders of five kinds, and heads that score pairs of texts.

``encoder.py`` turns texts into vectors for all of them; it takes its batches from ``batching.py``, its text settings
from ``prompts.py`` and ``tokenizer.py``. Imports ``core``, ``system``, ``architectures``, ``checkpoints``, ``search``.
"""

from typing import NoReturn

from minisbert.models.habits import missing_name


def __getattr__(name: str) -> NoReturn:
    """Name the way out for what sentence-transformers has in a module of this name."""
    raise missing_name(__name__, name)
