"""A corpus as vectors: files of vectors, shards of a long encoding, the index of a corpus, codes of fewer bytes.

Also the workers of Ray, Spark and datasets, and the mining of pairs and hard negatives. Imports every room above, of
``training`` only ``processes``.
"""
