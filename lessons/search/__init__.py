"""What lesson 18 and ``python -m lessons.check project`` search: ``docstrings``, and the old way to
do it: ``bm25``.
"""
