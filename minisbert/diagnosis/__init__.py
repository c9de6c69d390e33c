"""Say what is wrong with a data file, with vectors of another engine, or with another
implementation.

For ``minisbert inspect``, ``certify`` and ``trace``, with the mistakes of the forward pass that
``trace`` names. Imports every room above; only commands, lessons and tests import it.
"""
