"""The models that users load, call and save: encoders of five kinds, and heads that score pairs of texts.

``encoder.py`` turns texts into vectors for all of them; it takes its batches from ``batching.py``, its prompts
from ``prompts.py``. Imports ``core``, ``system``, ``architectures``, ``checkpoints``, ``search``.
"""
