"""How well do a model's similarities agree with people's scores?

python -m minisbert.evaluate --split test
python -m minisbert.evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
"""

from minisbert.objectives.evaluation import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
