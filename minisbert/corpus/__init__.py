"""The vectors of a corpus on disk: the index of a file, shards of a long encoding; and hard negatives mined in them.

Imports the rooms up to ``data`` and ``loading``.
"""
