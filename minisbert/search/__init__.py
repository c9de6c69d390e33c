"""Exact search: dense vectors, int8 and bits, sparse vectors by an inverted index, late interaction.

Formulas on arrays and tensors, and vectors' bytes on disk; no models. Imports the rooms up to ``folder``.
"""
