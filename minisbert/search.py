"""Exact search by cosine: the k best of a corpus for each query, and the closest pairs of a collection.

python -m minisbert.search corpus.txt --query "A man plays a guitar." --top 5
python -m minisbert.search corpus.txt --queries questions.txt --index corpus.safetensors --json

Scores are computed block by block, so no matrix of all scores ever stands in memory. They are computed in float64 and
rounded to float32: equal vectors then get equal scores, 1 with each other, in whatever block they meet. In float32
alone the last digit depends on the block, and with it the order of ties.
"""

from minisbert.fast.search import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
