"""Models that users load, call and save: ``SentenceEncoder`` and ``PairModel``.

Here are the families beyond BERT (DistilBERT, RoBERTa, ELECTRA, ...), more poolings, prompts, checkpoints in both
directions, the folder layout of sentence-transformers, with its CrossEncoders, and both classes compiled ahead of time.
Imports ``core``, ``system`` and ``fast``, which makes the batches of ``encode``. All run the book's forward pass.
"""
