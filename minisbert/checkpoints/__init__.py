"""A model's folder on disk: finding, reading and writing its files.

What is read comes back as plain values and tensors: nothing here knows the classes of ``models/``,
which are built from them. Imports ``core``, ``system`` and ``architectures``.
"""
