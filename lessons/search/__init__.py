"""What lesson 19 and ``python -m lessons.check project`` search: ``docstrings``, and the old way to do it: ``bm25``."""
