"""Evaluation: the STS suite, retrieval, evaluators, metrics beyond the book, and plots.

Imports ``core``, ``system``, ``search``, ``models`` and ``data``.
"""
