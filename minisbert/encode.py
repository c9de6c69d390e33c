"""Texts to vectors from the command line.

python -m minisbert.encode "A cat sits." "A kitten is sitting." "The stock market fell."
python -m minisbert.encode --file sentences.txt --out vectors.npy
python -m minisbert.encode --file millions.txt --out vectors.npy --precision bfloat16
sort -u sentences.txt | python -m minisbert.encode - --out vectors.safetensors
"""

from minisbert.run.vectors import main
from minisbert.system.console import run_command

if __name__ == "__main__":
    run_command(main)
