"""Models that users load, call and save: ``SentenceEncoder`` and ``PairModel``.

Here are the families beyond BERT (DistilBERT, RoBERTa, XLM-RoBERTa), more poolings, prompts, checkpoints in both
directions, and the folder layout of sentence-transformers, with its CrossEncoders. Imports ``core``, ``system`` and
``fast``: ``encode`` runs on the fused encoder.
"""
