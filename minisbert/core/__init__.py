"""The book: from a folder of weights to a trained sentence encoder, in ten chapters.

They are to be read in this order:

    tokenizer   text to ids                       metrics   how well scores agree with people's
    weights     a folder to named tensors         heads     two sentences to one score
    bert        ids to hidden states              losses    what training minimises
    pooling     hidden states to one vector       data      rows to batches
    encoder     the four above in one object      loop      the schedule, AdamW, the training loop

Each chapter imports torch, numpy, tokenizers, safetensors, chapters before it, and the appendix
``checks``. The folder works on its own: command lines, progress, downloads, processes and speed
live in the rooms around it. At its top each chapter says which of its functions they run.
"""

from .checks import InputError, one_line, read_json, reading

__all__ = ["InputError", "one_line", "read_json", "reading"]
