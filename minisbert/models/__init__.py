"""Models that users load, call and save: ``SentenceEncoder`` and ``PairModel``.

Here are the families beyond BERT (DistilBERT, RoBERTa), more poolings, sentence-transformers' folder layout, and
checkpoints in both directions. Imports ``core``, ``system`` and ``fast``: ``encode`` runs on the fused encoder.
"""
