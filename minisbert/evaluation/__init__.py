"""Evaluation: the STS suite, retrieval, evaluators, metrics beyond the book, and plots.

Imports ``core``, ``system``, ``search``, ``models`` and ``data``.
"""

from typing import TYPE_CHECKING, Any

from minisbert.replacements import EVALUATION, missing_from_module

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take every name for one that the package has.
    def __getattr__(name: str) -> Any:
        raise missing_from_module(__name__, EVALUATION, name)
