"""Runs: the options, folder, state and processes of a training run, with plots and ablations of such runs.

Also the files that the commands write: vectors, and the index of a corpus. Imports every room above (``core``,
``system``, ``fast``, ``models``, ``objectives``); of the package, only the commands import ``run``.
"""
