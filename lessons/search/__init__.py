"""What lesson 17 and ``python -m lessons.check project`` search: ``docstrings``, and the old way to do it: ``bm25``."""
