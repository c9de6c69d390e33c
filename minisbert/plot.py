"""Pictures of training: one run, or several compared.

    python -m minisbert.plot runs/cosine-all-MiniLM-L6-v2            writes curves.png into the run's folder
    python -m minisbert.plot runs/A runs/B runs/C --out compared.png

Needs matplotlib, which the ``plots`` extra brings.
"""

from minisbert.run.plots import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
