"""Where does another implementation part from this one? Layer by layer, and which known mistake gives its numbers.

python -m minisbert.trace "A cat sits." "It rains."     beside Hugging Face
python -m minisbert.trace --write ours.safetensors      every intermediate result, by name
python -m minisbert.trace --against theirs.safetensors  beside your own code

For the last one take ``ids`` and ``mask`` from ``ours.safetensors``, compute any of its other tensors with your code,
and write them under the same names, ``ids`` and ``mask`` with them (``safetensors.torch.save_file``).
Exit codes: 0 equal, 1 not equal, 2 bad input.
"""

from minisbert.mistakes.tracing import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
