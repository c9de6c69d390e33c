"""Training data: from the bytes of a file to the rows of a run.

Read in this order: ``records`` are dictionaries from the names of columns to values; ``tables``
makes them of a file, ``published`` of a data set that has a name; ``columns`` is the one rule that
chooses which columns are read, ``values`` says what a text, a score or a class may be; ``rows``
puts them together and writes the one line; ``splits`` divides rows into train, dev and test;
``batches`` groups rows that share no text. Imports ``core``, ``system``, ``checkpoints`` and
``models``.
"""
