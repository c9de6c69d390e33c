"""A folder on disk <-> the modules, strict in both directions.

``config.json`` and ``model.safetensors`` are read and written with Hugging Face's names (``dialects.py``); what
stands behind the encoder in a sentence model is ``layout.py``'s. Only safetensors are opened. An old checkpoint,
which is a pickle, is converted once, by torch's restricted unpickler:

    python -m minisbert.checkpoint convert path/to/pytorch_model.bin
"""

from minisbert.models.checkpoint import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
