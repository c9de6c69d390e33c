"""Evaluation: STS, retrieval, the STS suite, scores of models and heads, metrics beyond the book, plots of runs.

Imports ``core``, ``system``, ``fast``, ``models`` and ``data``.
"""
