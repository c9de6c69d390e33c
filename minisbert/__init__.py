"""minisbert: sentence embeddings in plain torch, small enough to read in an evening.

Reading order = import order = the README's table of files; start with ``bert.py``.

    from minisbert.models.sentence_encoder import SentenceEncoder
    encoder = SentenceEncoder.load("all-MiniLM-L6-v2")
    vectors = encoder.encode(["A cat sits.", "A kitten is sitting."])  # (2, 384) float32
"""

__version__ = "0.1.0"
