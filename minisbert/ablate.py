"""The papers' tables on what is at hand: one setting is varied, each value trained with several seeds.

    python -m minisbert.ablate pooling                                    SBERT, table 6: mean, max, cls on STS-B
    python -m minisbert.ablate concat --data snli.jsonl --limit 10000     SBERT, table 6: what the classifier reads
    python -m minisbert.ablate dropout --data sentences.txt --epochs 2    SimCSE: how much dropout makes two views
    python -m minisbert.ablate temperature --data sentences.txt --seeds 1,2,3,4,5 -- --batch-size 128

Each cell is a run of ``python -m minisbert.train``: a recipe, one flag, a seed. A cell that is done is not run again,
so a table that was stopped goes on where it was. The numbers are those of the last evaluation on dev, not of the best
one: a setting that ruins a model must show it.
"""

from minisbert.run.ablation import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
