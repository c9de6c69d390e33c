"""The vectors of a corpus on disk: the index of a file; and hard negatives mined in them.

Imports the rooms up to ``data`` and ``loading``.
"""
