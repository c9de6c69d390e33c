"""The models that users load, call and save: encoders, and heads that score pairs of texts.

``text_encoder.py`` is the way from texts to numbers for all encoders, in batches of
``batching.py``; each kind has a file that says what a batch is computed with.
``properties.py`` has what a user sets: prompts, lengths, similarities. Imports ``core``,
``system``, ``architectures``, ``checkpoints``, ``search``.
"""

from typing import TYPE_CHECKING, Any

from minisbert.replacements import MODULES, missing_from_module

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take every name for one that the package has.
    def __getattr__(name: str) -> Any:
        raise missing_from_module(__name__, MODULES, name)
