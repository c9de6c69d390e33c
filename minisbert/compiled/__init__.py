"""Models compiled ahead of time to native code, without parameters to train.

The graphs are the book's own forward pass, exported. Imports the rooms up to ``models``.
"""
