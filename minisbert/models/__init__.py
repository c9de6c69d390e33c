"""The models that users load, call and save: encoders of five kinds, and heads that score pairs of
texts.

``sentence_encoder.py`` turns texts into vectors for all of them, in batches of ``batching.py``;
``properties.py`` has what a user sets: prompts, lengths, similarities. Imports ``core``,
``system``, ``architectures``, ``checkpoints``, ``search``.
"""
