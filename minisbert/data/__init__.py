"""Training data: from the bytes of a file to the rows of a run.

Read in this order: ``lines`` turns bytes into lines, cells and JSON values; ``formats`` lists the
names of columns, checks their values and makes a ``Row`` of each line; ``datasets`` finds files and
data sets by name and divides their rows; ``batches`` groups rows that share no text. Imports
``core``, ``system``, ``checkpoints`` and ``models``.
"""
