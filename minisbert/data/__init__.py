"""Rows: files of every format to one ``Row``, the data sets by name, splits, batches, augmentation.

``rows`` reads bytes to cells and values, ``texts`` files of texts, ``formats`` knows the names and values of columns,
``reader`` makes rows of them, ``recognition`` says which format a file has, ``sources`` finds files and data sets,
``splits`` divides rows, and ``datasets`` does all of it for a training run. Imports ``core``, ``system`` and
``folder``.
"""
