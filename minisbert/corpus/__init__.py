"""A corpus as vectors: files of vectors, the parts of one long encoding, its manifest, the index of a folder.

Also the workers of Ray, Spark and datasets, and the mining of pairs and hard negatives. Imports every room above, of
``training`` only ``processes``.
"""
