"""Models compiled ahead of time to native code, without parameters to train.

The graphs are the book's own forward pass, exported; in bfloat16 and int8 attention is replaced (``attention.py``).
Imports the rooms up to ``models``.
"""
