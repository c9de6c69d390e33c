"""Find the closest pairs in a file of sentences: near-duplicates, paraphrases.

Examples:
  minisbert pairs sentences.txt --top 20
  minisbert pairs questions.txt.gz --top 1000 --min-score 0.9 --index questions.safetensors --json
"""

import math

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import bounded, command_parser, say

parser = command_parser("pairs", __doc__)
parser.add_argument("file", metavar="FILE", help=f"{shared.CORPUS_FILES}; empty lines are skipped")
parser.add_argument(
    "--top",
    type=bounded(int, 1),
    default=20,
    metavar="K",
    help="pairs to show (default: %(default)s)",
)
parser.add_argument(
    "--min-score", type=float, metavar="S", help="only pairs with at least this score"
)
shared.add_corpus_options(parser, "the column of texts")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    if options.min_score is not None and not math.isfinite(options.min_score):
        raise InputError(f"--min-score must be a number, got {options.min_score}")

    texts = shared.read_corpus(options.file, options.columns, options.quotes)
    count = len(texts) * (len(texts) - 1) // 2
    if count == 0:
        raise InputError(f"{options.file} contains one sentence: a pair needs two")
    if options.top > count:
        say(
            f"--top {options.top}: {len(texts)} sentences make only {count} pairs; all are compared"
        )
    shared.check_no_codes(options)

    from minisbert.loading import load_dense
    from minisbert.search.dense import closest_pairs

    encoder = load_dense(shared.chosen_encoder(options))
    prompt = shared.prompt_of(encoder, options)
    vectors = shared.corpus_vectors(encoder, texts, prompt, options.index)
    similarity = encoder.similarity_fn_name
    top = min(options.top, count)
    scores, pairs = closest_pairs(vectors, top, progress=True, similarity=similarity)
    say(f"scored by {similarity}")

    if options.min_score is not None:
        close = scores >= options.min_score
        if not close.all():
            say(
                f"{close.sum()} of the {len(scores)} closest pairs have a score of at least "
                f"{options.min_score}"
            )
        scores = scores[close]
        pairs = pairs[close]

    rows = []
    lines = []
    for score, (i, j) in zip(scores.tolist(), pairs.tolist(), strict=True):
        rows.append({"score": score, "indices": [i, j], "texts": [texts[i], texts[j]]})
        lines.append(f"{score:8.4f}  {texts[i]}")
        lines.append(f"{'':8}  {texts[j]}")
    result = {
        "model": options.model,
        "similarity": similarity,
        "sentences": len(texts),
        "pairs": rows,
    }
    shared.print_result(options, result, lines)
