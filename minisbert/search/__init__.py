"""Exact search: dense vectors, int8 codes and bits, sparse vectors by an inverted index, late
interaction.

Formulas on arrays and tensors, hard negatives, and files of vectors; no models. Imports the rooms
up to ``checkpoints``.
"""
