"""Find hard negatives for (anchor, positive) pairs in a corpus, and write triplets to train on.

minisbert mine --pairs pairs.tsv --out triplets.jsonl
minisbert mine --pairs pairs.tsv --corpus sentences.txt --relative-margin 0.05 --out triplets.jsonl
minisbert mine --pairs pairs.jsonl --corpus corpus.jsonl --range-min 10 --range-max 50 --out triplets.jsonl
minisbert train --objective mnr --data triplets.jsonl

Negatives are texts that the model finds close to an anchor and that are not its own positives.
"""

import argparse
import json
import statistics
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands.options import (
    CORPUS_FILES,
    ROLES,
    add_corpus_options,
    check_written,
    encoded_metadata,
    load_and_encode,
    print_result,
    prompt_of,
    read_corpus,
    say_unread,
)
from minisbert.core import InputError
from minisbert.system.command_line import command_parser
from minisbert.system.console import check_usage, run_command, say
from minisbert.system.files import atomic_file, listed

if TYPE_CHECKING:
    from minisbert.loading import Encoder
    from minisbert.search.mining import Candidates, Mined, Rules

RULE_OPTIONS = {  # the fields of ``Rules``, which has their defaults: type, metavar, help
    "num_negatives": (int, "N", "at most N for each anchor (default: 3)"),
    "range_min": (int, "N", "skip the N best, which may be unlabelled positives"),
    "range_max": (int, "N", "consider the N best (default: 10 per negative if a rule can exclude some)"),
    "absolute_margin": (float, "M", "at least M below the score of the anchor's worst positive"),
    "relative_margin": (float, "M", "at least M times the positive's score below it"),
    "max_score": (float, "S", "no score above S"),
    "min_score": (float, "S", "no score below S"),
}
REMEDY = "relax the margins and scores, raise --range-max, lower --range-min, or give a larger --corpus"

parser = command_parser("mine", __doc__)
parser.add_argument(
    "--pairs", metavar="FILE", required=True, help="two columns, anchor and positive: .tsv, .csv or .jsonl, also as .gz"
)
parser.add_argument(
    "--corpus",
    metavar="FILE",
    help=f"where to look: {CORPUS_FILES}; the positives of other anchors are always candidates, and without --corpus "
    "the only ones",
)
parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="write the triplets to FILE.jsonl")
of_rules = parser.add_argument_group("which candidates become negatives")
for name, (kind, metavar, text) in RULE_OPTIONS.items():
    of_rules.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
add_corpus_options(parser, roles=tuple(ROLES))


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    check_written("--out", options.out, [".jsonl"], options.model, options.pairs, options.corpus)
    from minisbert.search.index import encode_with_progress
    from minisbert.search.mining import Rules, mine, triplets

    # absent options leave the defaults to ``Rules``, which also checks the others
    rules = Rules(**{name: getattr(options, name) for name in RULE_OPTIONS if getattr(options, name) is not None})
    # codes hold no texts, and a negative is a text
    no_text = not options.corpus and encoded_metadata(options) is not None
    check_usage((no_text, f"--index {options.index} needs --corpus FILE with the texts that it was encoded from"))
    task, corpus = read_candidates(options)
    with atomic_file(options.out) as partial:  # opened first: a folder that is missing is found before the work
        encoder, documents = encode_documents(task, corpus, options)
        anchors = encode_with_progress(encoder, task.anchors, prompt_of(encoder, options, "query"))
        similarity = encoder.similarity_fn_name
        mined = mine(anchors, documents, task, rules, True, similarity)
        result = summary(task, mined, rules)
        if not result["triplets"]:
            reasons = ", ".join(f"{count:,} by {reason}" for reason, count in result["left_out"].items() if count)
            reasons = reasons or "no other documents"
            raise InputError(f"no negative is left for any of {result['anchors']:,} anchors ({reasons}): {REMEDY}")
        with open(partial, "w", encoding="utf-8") as file:
            for row in triplets(task, mined):
                file.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")
    lost = [anchor for anchor, rows in zip(task.anchors, mined.negatives, strict=True) if not rows]
    if lost:  # training would miss them without a word
        pairs = f"{result['pairs_without_negative']:,} of {result['pairs']:,} pairs"
        say(f"{pairs} are not in the file, no candidate is left for their anchors: {listed(lost)}; {REMEDY}")
    about = {"model": options.model, "similarity": similarity, "out": str(options.out)}
    print_result(options, about | result, summary_lines(about | result, rules.num_negatives, options.out))


def read_candidates(options: argparse.Namespace) -> tuple["Candidates", list[str]]:
    """Return what to search, and the corpus as it is in its file, with duplicates."""
    from minisbert.data.datasets import read_file
    from minisbert.data.formats import PAIRS
    from minisbert.search.mining import candidates_of

    rows, skipped, unread = read_file(options.pairs, PAIRS)
    say_unread(options.pairs, skipped, unread)
    # rows may be triplets of an earlier mining: their negatives are to be found anew
    negatives = len(rows[0].texts) - 2
    if negatives:
        say(f"{options.pairs}: only anchor and positive are read, not the {negatives} negatives of each row")
    corpus: list[str] = []
    if options.corpus:
        corpus = read_corpus(options.corpus)
    return candidates_of([row.texts[:2] for row in rows], corpus), corpus


def encode_documents(task: "Candidates", corpus: list[str], options: argparse.Namespace) -> tuple["Encoder", Any]:
    """Return the model and the vectors (N, D) of the documents; codes are completed by what they lack."""
    if encoded_metadata(options) is None:
        encoder, vectors, _ = load_and_encode(task.documents, options)
        return encoder, vectors
    import numpy as np

    from minisbert.search.dense import Stacked
    from minisbert.search.index import encode_with_progress

    encoder, vectors, prompt = load_and_encode(corpus, options)
    # the documents begin with the distinct texts of the corpus, and a file of vectors has a row for each duplicate
    rows = {text: row for row, text in enumerate(corpus)}
    more = task.documents[len(rows) :]
    parts = [vectors, encode_with_progress(encoder, more, prompt)]
    chosen = np.array([*rows.values(), *range(len(corpus), len(corpus) + len(more))])
    return encoder, Stacked(parts, chosen)


def summary(task: "Candidates", mined: "Mined", rules: "Rules") -> dict[str, Any]:
    """Return the numbers of ``--json``."""
    negatives = list(map(len, mined.negatives))  # of each anchor
    triplets, lost_pairs = 0, []
    for positives, count in zip(task.positives, negatives, strict=True):
        triplets += len(positives) * count  # each positive with each negative
        if count == 0:
            lost_pairs.append(len(positives))
    means: dict[str, float | None] = {}
    for noun, scores in (("positives", mined.positive_scores), ("negatives", mined.scores)):
        means[noun] = statistics.fmean(chain.from_iterable(scores)) if any(scores) else None
    return {
        "anchors": len(task.anchors),
        "pairs": sum(map(len, task.positives)),
        "documents": len(task.documents),
        "negatives": sum(negatives),
        "triplets": triplets,
        "anchors_without_negative": len(lost_pairs),
        "pairs_without_negative": sum(lost_pairs),
        "anchors_with_fewer": sum(0 < count < rules.num_negatives for count in negatives),
        "left_out": {"copy of anchor or positive": sum(map(len, task.copies))} | mined.failed,
        "mean_score": means,
    }


def summary_lines(result: dict[str, Any], num_negatives: int, out: Path) -> list[str]:
    lines = [f"{result['anchors']:,} anchors with {result['pairs']:,} positives, {result['documents']:,} documents"]
    for reason, count in result["left_out"].items():
        lines.append(f"{count:>12,}  candidates left out: {reason}")
    lost = f"anchors left out, with {result['pairs_without_negative']:,} pairs: no candidate remained"
    lines.append(f"{result['anchors_without_negative']:>12,}  {lost}")
    lines.append(f"{result['anchors_with_fewer']:>12,}  anchors with fewer than {num_negatives} negatives")
    lines.append(f"{result['negatives']:>12,}  negatives, {result['triplets']:,} triplets in {out}")
    positive, negative = result["mean_score"].values()
    means = f"positives {positive:.4f}, negatives {negative:.4f}"
    lines.append(f"mean {result['similarity']} similarity to the anchor: {means}")
    return lines


if __name__ == "__main__":
    run_command(main)
