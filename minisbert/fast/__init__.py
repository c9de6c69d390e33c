"""Speed: the numbers of the book, computed faster. Packed batches, the fused encoder, exact search.

Imports ``core`` and ``system``. Tests compare each piece with the book's version, which stays the one to read.
Private APIs of torch are called only in ``kernels.py``, behind a check and with a public fallback.
"""
