"""What lesson 18 and its project search: ``docstrings``, and the old way to do it: ``bm25``."""
