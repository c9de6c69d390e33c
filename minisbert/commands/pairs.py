"""Find the closest pairs in a file of sentences: near-duplicates, paraphrases.

minisbert pairs sentences.txt --top 20
minisbert pairs questions.txt.gz --top 1000 --min-score 0.9 --index questions.safetensors --json
"""

import json

from minisbert.commands.options import TEXT_FILES, add_corpus_options, load_and_encode, read_corpus
from minisbert.core import InputError
from minisbert.search.dense import closest_pairs
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, run_command, say


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("pairs", __doc__)
    parser.add_argument("file", metavar="FILE", help=f"{TEXT_FILES}; empty lines are skipped")
    parser.add_argument(
        "--top", type=bounded(int, 1), default=20, metavar="K", help="pairs to show (default: %(default)s)"
    )
    parser.add_argument(
        "--min-score", type=float, default=-1.0, metavar="S", help="only pairs with at least this cosine"
    )
    add_corpus_options(parser)
    options = parser.parse_args(arguments)
    if not -1 <= options.min_score <= 1:
        raise InputError(f"--min-score {options.min_score} is not a cosine, which is from -1 to 1")

    texts = read_corpus(options.file)
    count = len(texts) * (len(texts) - 1) // 2
    if count == 0:
        raise InputError(f"{options.file} contains one sentence: a pair needs two")
    if options.top > count:
        say(f"--top {options.top}: {len(texts)} sentences make only {count} pairs; all are compared")
    _, vectors, _ = load_and_encode(texts, options)
    scores, pairs = closest_pairs(vectors, min(options.top, count), progress=True)
    reached = int((scores >= options.min_score).sum())
    if reached < len(scores):
        say(f"{reached} of the {len(scores)} closest pairs have a cosine of at least {options.min_score}")
    found = list(zip(scores.tolist()[:reached], pairs.tolist()[:reached], strict=True))
    if options.json:
        rows = [{"score": score, "indices": [i, j], "texts": [texts[i], texts[j]]} for score, (i, j) in found]
        print(json.dumps({"model": options.model, "sentences": len(texts), "pairs": rows}, ensure_ascii=False))
        return
    for score, (i, j) in found:
        print(f"{score:8.4f}  {texts[i]}\n{'':8}  {texts[j]}")


if __name__ == "__main__":
    run_command(main)
