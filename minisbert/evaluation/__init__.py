"""Evaluation: correlations on STS, the STS suite, retrieval, metrics beyond the book, evaluators, plots of plain data.

Imports ``core``, ``system``, ``search``, ``models`` and ``data``.
"""

from typing import NoReturn

from minisbert.models.habits import missing_name


def __getattr__(name: str) -> NoReturn:
    """Name the way out for what sentence-transformers has in a module of this name."""
    raise missing_name(__name__, name)
