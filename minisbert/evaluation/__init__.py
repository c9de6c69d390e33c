"""Evaluation: correlations on STS, the STS suite, retrieval, metrics beyond the book, evaluators,
plots of plain data.

Imports ``core``, ``system``, ``search``, ``models`` and ``data``.
"""
