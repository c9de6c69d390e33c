"""Find hard negatives for (anchor, positive) pairs in a corpus, and write triplets to train on.

Negatives are texts that the model finds close to an anchor and that are not its own positives.

Examples:
  minisbert mine --pairs pairs.tsv --out triplets.jsonl
  minisbert mine --pairs pairs.tsv --corpus corpus.txt --relative-margin 0.05 --out triplets.jsonl
  minisbert mine --pairs pairs.jsonl --range-min 10 --range-max 50 --out triplets.jsonl
  minisbert train --loss ranking --data triplets.jsonl
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import command_parser, say
from minisbert.system.files import atomic_file, listed

if TYPE_CHECKING:
    from minisbert.search.mining import Candidates, Mined, Rules, Summary

# What to do if anchors are left without a negative.
REMEDY = (
    "relax the margins and scores, raise --range-max, lower --range-min, or give a larger --corpus"
)

parser = command_parser("mine", __doc__)
parser.add_argument(
    "--pairs",
    metavar="FILE",
    required=True,
    help="two columns, anchor and positive: .tsv, .csv, .jsonl or .parquet",
)
parser.add_argument(
    "--corpus",
    metavar="FILE",
    help=f"where to look: {shared.CORPUS_FILES}; the positives of other anchors are always "
    "candidates, and without --corpus the only ones",
)
parser.add_argument(
    "--out", metavar="FILE", type=Path, required=True, help="write the triplets to FILE.jsonl"
)
# The defaults are those of ``Rules``, which also checks the values.
of_rules = parser.add_argument_group("which candidates become negatives")
of_rules.add_argument(
    "--num-negatives", type=int, metavar="N", help="at most N for each anchor (default: 3)"
)
of_rules.add_argument(
    "--range-min",
    type=int,
    metavar="N",
    help="skip the N best, which may be unlabelled positives",
)
of_rules.add_argument(
    "--range-max",
    type=int,
    metavar="N",
    help="choose among the N best (default: as many as are needed, ten times as many with a margin "
    "or --max-score)",
)
of_rules.add_argument(
    "--absolute-margin",
    type=float,
    metavar="M",
    help="score below the anchor's worst positive by at least M",
)
of_rules.add_argument(
    "--relative-margin",
    type=float,
    metavar="M",
    help="score below the anchor's worst positive by at least M times the score of that positive",
)
of_rules.add_argument("--max-score", type=float, metavar="S", help="no score above S")
of_rules.add_argument("--min-score", type=float, metavar="S", help="no score below S")
shared.add_corpus_options(parser, "anchor and positive of --pairs", ("query", "corpus"))


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    inputs = (options.model, options.pairs, options.corpus)
    shared.check_written("--out", options.out, [".jsonl"], *inputs)
    shared.check_no_codes(options)

    from minisbert.search.mining import candidates_of, summarize

    rules = rules_of(options)
    pairs = read_pairs(options)
    corpus: list[str] = []
    if options.corpus:
        corpus = shared.read_corpus(options.corpus, quotes=options.quotes)
    task = candidates_of(pairs, corpus)

    # The file is opened first: a folder that is missing is found before the work.
    with atomic_file(options.out) as partial:
        mined, similarity = mine_negatives(options, task, rules)
        summary = summarize(task, mined, rules)
        if not summary.triplets:
            raise InputError(no_negative(summary))
        write_triplets(task, mined, partial)

    # Training would miss these anchors without a word.
    lost = [anchor for anchor, rows in zip(task.anchors, mined.negatives, strict=True) if not rows]
    if lost:
        say(
            f"{summary.pairs_without_negative:,} of {summary.pairs:,} pairs are not in the file, "
            f"no candidate is left for their anchors: {listed(lost)}; {REMEDY}"
        )
    result = {"model": options.model, "similarity": similarity, "out": str(options.out)}
    lines = report(summary, rules, similarity, options.out)
    shared.print_result(options, result | asdict(summary), lines)


def rules_of(options: argparse.Namespace) -> "Rules":
    """Return the rules of the options; one that is not given has the default of ``Rules``."""
    from minisbert.search.mining import Rules

    values = {
        "num_negatives": options.num_negatives,
        "range_min": options.range_min,
        "range_max": options.range_max,
        "absolute_margin": options.absolute_margin,
        "relative_margin": options.relative_margin,
        "max_score": options.max_score,
        "min_score": options.min_score,
    }
    given = {name: value for name, value in values.items() if value is not None}
    return Rules(**given)


def read_pairs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Read anchor and positive of each row of ``--pairs``."""
    from minisbert.data.columns import Columns
    from minisbert.data.rows import read_rows

    table = read_rows(
        options.pairs,
        Columns(2, more_texts=True),
        options.columns,
        split="train",
        quotes=options.quotes,
    )
    say(table.note())
    # Rows may be triplets of an earlier mining, whose negatives are to be found anew.
    negatives = len(table.rows[0]) - 2
    if negatives:
        say(
            f"{options.pairs}: only anchor and positive are read, not the {negatives} negatives of "
            f"each row"
        )
    return [(row[0], row[1]) for row in table.rows]


def mine_negatives(
    options: argparse.Namespace, task: "Candidates", rules: "Rules"
) -> tuple["Mined", str]:
    """Encode anchors and documents, and find negatives; return the similarity's name, too."""
    from minisbert.loading import load_dense
    from minisbert.models.index import encode_with_progress
    from minisbert.search.mining import mine

    encoder = load_dense(shared.chosen_encoder(options))
    query_prompt = shared.prompt_of(encoder, options, "query")
    prompt = shared.prompt_of(encoder, options, "corpus")
    documents = shared.corpus_vectors(encoder, task.documents, prompt, options.index)
    anchors = encode_with_progress(encoder, task.anchors, query_prompt)
    similarity = encoder.similarity_fn_name
    mined = mine(anchors, documents, task, rules, progress=True, similarity=similarity)
    return mined, similarity


def write_triplets(task: "Candidates", mined: "Mined", path: Path) -> None:
    from minisbert.search.mining import triplets

    with open(path, "w", encoding="utf-8") as file:
        for triplet in triplets(task, mined):
            file.write(json.dumps(triplet._asdict(), ensure_ascii=False) + "\n")


def no_negative(summary: "Summary") -> str:
    """Return the message that says why there is not a single triplet."""
    reasons = []
    for reason, count in summary.left_out.items():
        if count:
            reasons.append(f"{count:,} by {reason}")
    if not reasons:
        reasons = ["no other documents"]
    return (
        f"no negative is left for any of {summary.anchors:,} anchors ({', '.join(reasons)}): "
        f"{REMEDY}"
    )


def report(summary: "Summary", rules: "Rules", similarity: str, out: Path) -> list[str]:
    """Return the lines for people of what ``--json`` prints as one object."""
    lines = [
        f"{summary.anchors:,} anchors with {summary.pairs:,} positives, "
        f"{summary.documents:,} documents"
    ]
    for reason, count in summary.left_out.items():
        lines.append(f"{count:>12,}  candidates left out: {reason}")
    lines.append(
        f"{summary.anchors_without_negative:>12,}  anchors left out, with "
        f"{summary.pairs_without_negative:,} pairs: no candidate remained"
    )
    wanted = rules.num_negatives
    lines.append(f"{summary.anchors_with_fewer:>12,}  anchors with fewer than {wanted} negatives")
    lines.append(f"{summary.negatives:>12,}  negatives, {summary.triplets:,} triplets in {out}")

    positive = summary.mean_score["positives"]
    negative = summary.mean_score["negatives"]
    lines.append(
        f"mean {similarity} similarity to the anchor: positives {positive:.4f}, "
        f"negatives {negative:.4f}"
    )
    if negative >= positive:
        lines.append(
            "negatives are as near as positives, so some may say the same as their anchor: leave "
            "those out with --relative-margin 0.05, or --max-score"
        )
    return lines
