"""Rows: the formats of data files and their readers, the data sets by name, batches, augmentation.

Imports ``core``, ``system`` and ``models``.
"""
