"""Evaluate a model: the correlation of its similarities with human scores.

python -m minisbert.evaluate --split test
python -m minisbert.evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
"""

import argparse
import json

from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.evaluation import PROTOCOL, check_scores, evaluate
from minisbert.objectives.scored_pairs import SPLITS, load_scored_pairs
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device, keep_freed_memory


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.evaluate",
        description="Pearson and Spearman correlation of a model's similarities with human scores.",
        epilog="Example: python -m minisbert.evaluate --split test --json",
    )
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--data", default="stsb", help="stsb, or a file: score, sentence1, sentence2 (default: stsb)")
    parser.add_argument("--split", choices=SPLITS, help="split of stsb (default: dev)")
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    options = parser.parse_args(arguments)
    if options.data == "stsb":
        options.split = options.split or "dev"
    elif options.split:
        raise InputError("--split belongs to --data stsb; a file has no splits")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    pairs = load_scored_pairs(options.data, options.split or "")
    check_scores(pairs, options.data)
    keep_freed_memory()
    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device))
    result = evaluate(encoder, pairs, progress=True)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, 2 * len(pairs)))
    if options.json:
        about = {"data": options.data, "split": options.split, "pairs": len(pairs), "model": options.model}
        print(json.dumps(about | {"pooling": encoder.pooling.mode} | result))
        return
    print(f"model     {options.model}, {encoder.pooling.mode} pooling")
    print(f"data      {options.data}{f', {options.split} split' if options.split else ''}, {len(pairs):,} pairs")
    print(f"protocol  {PROTOCOL}\n")
    print(f"{'x 100':<10}{'Pearson':>10}{'Spearman':>10}")
    for name in result["pearson"]:
        print(f"{name:<10}{100 * result['pearson'][name]:>10.2f}{100 * result['spearman'][name]:>10.2f}")


if __name__ == "__main__":
    run_command(main)
