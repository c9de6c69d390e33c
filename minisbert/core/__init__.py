"""The book: from a folder of weights to a trained sentence encoder, in ten chapters.

They are to be read in this order:

    tokenizer   text to ids
    weights     a folder to named tensors
    bert        ids to hidden states
    pooling     hidden states to one vector
    encoder     the four above in one object
    metrics     how well scores agree with people's
    heads       two sentences to one score
    losses      what training minimises
    data        rows to batches
    loop        the schedule, AdamW, the training loop

A chapter imports nothing but torch, numpy, tokenizers, safetensors, chapters before it, and the
appendix ``checks``. The folder works on its own: command lines, progress bars, downloads, processes
and speed are in the folders around it, which the chapters call the library.

At its top each chapter says which of its functions the library runs. A list names the others: what
the library runs instead, and the test that holds the two equal. Tests and parity checks, which
compare with a reference, are functions under ``tests/``.
"""

# The rest of the project imports these from here. A chapter is imported by its own name.
from .checks import InputError, one_line, read_json, reading

__all__ = ["InputError", "one_line", "read_json", "reading"]
