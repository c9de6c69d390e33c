"""Weights and data sets: where they come from, and the proof that they are the right ones.

``assets.toml`` is the manifest. A fetch tries an asset's sources in order; every file is hashed while it is
written to a temporary folder, and the folder is renamed only when all of them are right. So an interrupted or
corrupted fetch leaves nothing that looks complete.

    python -m minisbert.assets list
    python -m minisbert.assets fetch all-MiniLM-L6-v2
    python -m minisbert.assets path stsb
    python -m minisbert.assets verify
"""

from minisbert.system.assets import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
