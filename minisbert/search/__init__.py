"""Exact search, on arrays and tensors.

Dense vectors, int8 codes and bits, sparse vectors by an inverted index, late interaction; hard
negatives, and files of codes. No models. Imports the rooms up to ``checkpoints``.
"""
