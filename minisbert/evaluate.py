"""Evaluate a model: the correlation of its similarities with human scores, or its accuracy on triplets.

python -m minisbert.evaluate --split test
python -m minisbert.evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
python -m minisbert.evaluate --data triplets.tsv
"""

import argparse
import json

from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.evaluation import (
    PROTOCOL,
    check_scores,
    evaluate,
    evaluate_triplets,
    holds_triplets,
    load_triplets,
)
from minisbert.objectives.scored_pairs import SPLITS, load_scored_pairs
from minisbert.system.console import run_command, say
from minisbert.system.devices import choose_device, keep_freed_memory


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.evaluate",
        description="Pearson and Spearman correlation of a model's similarities with human scores, or, for triplets, "
        "the share whose anchor is closer to the positive than to the negative, by the cosine.",
        epilog="Example: python -m minisbert.evaluate --split test --json",
    )
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument(
        "--data",
        default="stsb",
        help="stsb, or a file: score, sentence1, sentence2; or anchor, positive, negative (default: stsb)",
    )
    parser.add_argument("--split", choices=SPLITS, help="split of stsb (default: dev)")
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--max-length", type=int, metavar="N", help="cut texts to N tokens (default: the model's)")
    parser.add_argument("--scale", type=float, default=5.0, metavar="S", help="a file's scores are 0 to S (default: 5)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    options = parser.parse_args(arguments)
    if options.data == "stsb":
        options.split = options.split or "dev"
    elif options.split:
        raise InputError("--split belongs to --data stsb; a file has no splits")
    if not options.scale > 0:
        raise InputError(f"--scale {options.scale:g}: the largest score must be above 0")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    noun, texts_in_a_row = "pairs", 2
    if options.data != "stsb" and holds_triplets(options.data):
        noun, texts_in_a_row = "triplets", 3
        rows = load_triplets(options.data)
    else:
        rows = load_scored_pairs(options.data, options.split or "", options.scale)
        check_scores(rows, options.data)
    keep_freed_memory()
    encoder = SentenceEncoder.load(options.model, options.pooling, choose_device(options.device), options.max_length)
    result = (evaluate if noun == "pairs" else evaluate_triplets)(encoder, rows, progress=True)
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, texts_in_a_row * len(rows)))
    if options.json:
        about = {"data": options.data, "split": options.split, noun: len(rows), "model": options.model}
        print(json.dumps(about | {"pooling": encoder.pooling.mode} | result))
        return
    print(f"model     {options.model}, {encoder.pooling.mode} pooling")
    print(f"data      {options.data}{f', {options.split} split' if options.split else ''}, {len(rows):,} {noun}")
    if noun == "triplets":
        print(f"accuracy  {100 * result['triplet_accuracy']:.2f} % have cos(anchor, positive) > cos(anchor, negative)")
        return
    print(f"protocol  {PROTOCOL}\n")
    print(f"{'x 100':<10}{'Pearson':>10}{'Spearman':>10}")
    for name in result["pearson"]:
        print(f"{name:<10}{100 * result['pearson'][name]:>10.2f}{100 * result['spearman'][name]:>10.2f}")


if __name__ == "__main__":
    run_command(main)
