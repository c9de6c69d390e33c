"""Speed: the numbers of the book, computed faster. Texts that share rows, models compiled ahead of time, exact search.

Imports ``core`` and ``system``. There is no second forward pass here: batches are made for the book's, and it is the
book's that is compiled. Private APIs of torch are called only in ``internals.py``, behind a check and with a public
fallback.
"""
