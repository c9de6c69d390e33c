"""Say what is wrong with a data file, another engine's vectors, or another implementation.

``minisbert inspect``, ``certify`` and ``trace`` call it. It imports every room above; only
commands, lessons and tests import it.
"""
