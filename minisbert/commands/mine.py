"""Find hard negatives for (anchor, positive) pairs in a corpus, and write triplets to train on.

Negatives are texts that the model finds close to an anchor and that are not its own positives.

Examples:
  minisbert mine --pairs pairs.tsv --out triplets.jsonl
  minisbert mine --pairs pairs.tsv --corpus texts.txt --relative-margin 0.05 --out triplets.jsonl
  minisbert mine --pairs pairs.jsonl --range-min 10 --range-max 50 --out triplets.jsonl
  minisbert train --loss ranking --data triplets.jsonl
"""

import json
import statistics
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import command_parser, say
from minisbert.system.files import atomic_file, listed

if TYPE_CHECKING:
    from minisbert.search.mining import Candidates, Mined, Rules

RULE_OPTIONS = {  # the fields of ``Rules``, which has their defaults: type, metavar, help
    "num_negatives": (int, "N", "at most N for each anchor (default: 3)"),
    "range_min": (int, "N", "skip the N best, which may be unlabelled positives"),
    "range_max": (
        int,
        "N",
        "consider the N best (default: 10 per negative if a rule can exclude some)",
    ),
    "absolute_margin": (float, "M", "at least M below the score of the anchor's worst positive"),
    "relative_margin": (float, "M", "at least M times the positive's score below it"),
    "max_score": (float, "S", "no score above S"),
    "min_score": (float, "S", "no score below S"),
}
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
about = "the positives of other anchors are always candidates, and without --corpus the only ones"
parser.add_argument(
    "--corpus", metavar="FILE", help=f"where to look: {shared.CORPUS_FILES}; {about}"
)
parser.add_argument(
    "--out", metavar="FILE", type=Path, required=True, help="write the triplets to FILE.jsonl"
)
of_rules = parser.add_argument_group("which candidates become negatives")
for name, (kind, metavar, text) in RULE_OPTIONS.items():
    of_rules.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
shared.add_corpus_options(parser, "anchor and positive of --pairs", tuple(shared.ROLES))


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    shared.check_written(
        "--out", options.out, [".jsonl"], options.model, options.pairs, options.corpus
    )
    shared.check_no_codes(options)
    from minisbert.data.columns import Columns
    from minisbert.data.rows import read_rows
    from minisbert.loading import load_dense
    from minisbert.models.index import encode_with_progress
    from minisbert.search.mining import Rules, candidates_of, mine, triplets

    # absent options leave the defaults to ``Rules``, which also checks the others
    rules = Rules(
        **{
            name: getattr(options, name)
            for name in RULE_OPTIONS
            if getattr(options, name) is not None
        }
    )
    pairs = read_rows(
        options.pairs,
        Columns(2, more_texts=True),
        options.columns,
        split="train",
        quotes=options.quotes,
    )
    say(pairs.note())
    rows = pairs.rows
    # rows may be triplets of an earlier mining: their negatives are to be found anew
    negatives = len(rows[0]) - 2
    if negatives:
        say(
            f"{options.pairs}: only anchor and positive are read, not the {negatives} negatives of "
            f"each row"
        )
    corpus = shared.read_corpus(options.corpus, quotes=options.quotes) if options.corpus else []
    task = candidates_of([row[:2] for row in rows], corpus)
    with atomic_file(
        options.out
    ) as partial:  # opened first: a folder that is missing is found before the work
        encoder = load_dense(shared.chosen_encoder(options))
        query_prompt = shared.prompt_of(encoder, options, "query")
        prompt = shared.prompt_of(encoder, options, "corpus")
        documents = shared.corpus_vectors(encoder, task.documents, prompt, options.index)
        anchors = encode_with_progress(encoder, task.anchors, query_prompt)
        similarity = encoder.similarity_fn_name
        mined = mine(anchors, documents, task, rules, True, similarity)
        result = {"model": options.model, "similarity": similarity, "out": str(options.out)}
        result |= summary(task, mined, rules)
        if not result["triplets"]:
            reasons = ", ".join(
                f"{count:,} by {reason}" for reason, count in result["left_out"].items() if count
            )
            reasons = reasons or "no other documents"
            raise InputError(
                f"no negative is left for any of {result['anchors']:,} anchors ({reasons}): "
                f"{REMEDY}"
            )
        with open(partial, "w", encoding="utf-8") as file:
            for row in triplets(task, mined):
                file.write(json.dumps(row._asdict(), ensure_ascii=False) + "\n")
    lost = [anchor for anchor, rows in zip(task.anchors, mined.negatives, strict=True) if not rows]
    if lost:  # training would miss them without a word
        pairs = f"{result['pairs_without_negative']:,} of {result['pairs']:,} pairs"
        say(
            f"{pairs} are not in the file, no candidate is left for their anchors: {listed(lost)}; "
            f"{REMEDY}"
        )
    lines = [
        f"{result['anchors']:,} anchors with {result['pairs']:,} positives, "
        f"{result['documents']:,} documents"
    ]
    for reason, count in result["left_out"].items():
        lines.append(f"{count:>12,}  candidates left out: {reason}")
    without = (
        f"anchors left out, with {result['pairs_without_negative']:,} pairs: no candidate remained"
    )
    lines.append(f"{result['anchors_without_negative']:>12,}  {without}")
    lines.append(
        f"{result['anchors_with_fewer']:>12,}  anchors with fewer than {rules.num_negatives} "
        f"negatives"
    )
    lines.append(
        f"{result['negatives']:>12,}  negatives, {result['triplets']:,} triplets in {options.out}"
    )
    positive, negative = result["mean_score"].values()
    means = f"positives {positive:.4f}, negatives {negative:.4f}"
    lines.append(f"mean {similarity} similarity to the anchor: {means}")
    if negative >= positive:
        advice = "leave those out with --relative-margin 0.05, or --max-score"
        lines.append(
            f"negatives are as near as positives, so some may say the same as their anchor: "
            f"{advice}"
        )
    shared.print_result(options, result, lines)


def summary(task: "Candidates", mined: "Mined", rules: "Rules") -> dict[str, Any]:
    """Return the numbers of ``--json``."""
    counts = [
        (len(own), len(found)) for own, found in zip(task.positives, mined.negatives, strict=True)
    ]
    lost = [positives for positives, negatives in counts if negatives == 0]
    means: dict[str, float | None] = {}
    for noun, scores in (("positives", mined.positive_scores), ("negatives", mined.scores)):
        means[noun] = statistics.fmean(chain.from_iterable(scores)) if any(scores) else None
    return {
        "anchors": len(counts),
        "pairs": sum(positives for positives, _ in counts),
        "documents": len(task.documents),
        "negatives": sum(negatives for _, negatives in counts),
        "triplets": sum(positives * negatives for positives, negatives in counts),
        "anchors_without_negative": len(lost),
        "pairs_without_negative": sum(lost),
        "anchors_with_fewer": sum(0 < negatives < rules.num_negatives for _, negatives in counts),
        "left_out": {"copy of anchor or positive": sum(map(len, task.copies))} | mined.failed,
        "mean_score": means,
    }
