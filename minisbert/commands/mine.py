"""Find hard negatives for (anchor, positive) pairs in a corpus, and write triplets to train on.

minisbert mine --pairs pairs.tsv --out triplets.jsonl
minisbert mine --pairs pairs.tsv --corpus sentences.txt --relative-margin 0.05 --out triplets.jsonl
minisbert mine --pairs pairs.jsonl --corpus corpus.jsonl --range-min 10 --range-max 50 --out triplets.jsonl
python -m minisbert.train --objective mnr --data triplets.jsonl

Negatives are texts that the model finds close to an anchor and that are not its own positives.
"""

import argparse
import json
import statistics
from itertools import chain
from pathlib import Path

import numpy as np

from minisbert.commands.options import (
    ROLES,
    TEXT_FILES,
    add_corpus_options,
    check_written,
    encoded_metadata,
    load_and_encode,
    prompt_of,
    read_corpus,
)
from minisbert.core import InputError
from minisbert.corpus.index import encode_with_progress
from minisbert.corpus.mining import Candidates, Mined, Rules, candidates_of, mine, triplets
from minisbert.data.datasets import read_file
from minisbert.data.formats import PAIRS
from minisbert.loading import Encoder
from minisbert.search.dense import Stacked
from minisbert.system.command_line import command_parser
from minisbert.system.console import check_usage, run_command, say
from minisbert.system.files import atomic_file, listed

RULE_OPTIONS = {  # the fields of ``Rules`` that are options: type, metavar, help
    "num_negatives": (int, "N", "at most N for each anchor (default: %(default)s)"),
    "range_min": (int, "N", "skip the N best, which may be unlabelled positives"),
    "range_max": (int, "N", "consider the N best (default: 10 per negative if a rule can exclude some)"),
    "absolute_margin": (float, "M", "at least M below the anchor's worst positive in cosine"),
    "relative_margin": (float, "M", "at least M times the positive's cosine below it"),
    "max_score": (float, "S", "no cosine above S"),
    "min_score": (float, "S", "no cosine below S"),
}
ADVICE = "relax the margins and scores, raise --range-max, lower --range-min, or give a larger --corpus"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``options.rules`` are the ``Rules``."""
    parser = command_parser("mine", __doc__)
    files = "two columns, anchor and positive: .tsv, .csv or .jsonl, also as .gz"
    parser.add_argument("--pairs", metavar="FILE", required=True, help=files)
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        help=f"where to look: {TEXT_FILES}; the positives of other anchors are always candidates, and without --corpus "
        "the only ones",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="write the triplets to FILE.jsonl")
    group = parser.add_argument_group("which candidates become negatives")
    for name, (kind, metavar, text) in RULE_OPTIONS.items():
        flag, default = f"--{name.replace('_', '-')}", getattr(Rules, name)
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    add_corpus_options(parser, roles=ROLES)
    options = parser.parse_args(arguments)
    options.rules = Rules(**{name: getattr(options, name) for name in RULE_OPTIONS})
    no_text = not options.corpus and encoded_metadata(options) is not None
    check_usage((no_text, f"--index {options.index} needs --corpus FILE with the texts that it was encoded from"))
    check_written("--out", options.out, [".jsonl"], options.model, options.pairs, options.corpus)
    return options


def read_files(options: argparse.Namespace) -> tuple[Candidates, list[str]]:
    """What to search, and the corpus as it is in its file, with duplicates."""
    rows, skipped, unread = read_file(options.pairs, PAIRS)
    if skipped:
        say(f"{options.pairs}: {skipped:,} rows with an empty text were skipped")
    if unread:
        say(f"{options.pairs}: not read: {', '.join(unread)}")
    negatives = len(rows[0].texts) - 2
    if negatives:
        say(f"{options.pairs}: only anchor and positive are read, not the {negatives} negatives of each row")
    corpus: list[str] = []
    if options.corpus:
        corpus = read_corpus(options.corpus)
    return candidates_of([row.texts[:2] for row in rows], corpus), corpus


def encode_documents(
    task: Candidates, corpus: list[str], options: argparse.Namespace
) -> tuple[Encoder, np.ndarray | Stacked]:
    """The model and the vectors (N, D) of the documents; of shards and codes, those that the corpus lacks are added."""
    if encoded_metadata(options) is None:
        encoder, vectors, _ = load_and_encode(task.documents, options)
        return encoder, vectors
    encoder, vectors, prompt = load_and_encode(corpus, options)
    rows = {text: row for row, text in enumerate(corpus)}  # in the order of the documents, which begin with these
    more = task.documents[len(rows) :]
    parts = [vectors, encode_with_progress(encoder, more, prompt)]
    chosen = np.array([*rows.values(), *range(len(corpus), len(corpus) + len(more))])
    return encoder, Stacked(parts.__getitem__, (len(corpus), len(more)), vectors.shape[1], vectors.dtype, chosen)


def summary(task: Candidates, mined: Mined, rules: Rules) -> dict[str, object]:
    """The numbers of ``--json``."""
    counts = [len(rows) for rows in mined.negatives]
    positives, negatives = (
        statistics.fmean(chain.from_iterable(scores)) if any(scores) else None
        for scores in (mined.positive_scores, mined.scores)
    )
    alone = [len(own) for own, count in zip(task.positives, counts, strict=True) if count == 0]
    return {
        "anchors": len(task.anchors),
        "pairs": sum(map(len, task.positives)),
        "documents": len(task.documents),
        "negatives": sum(counts),
        "triplets": sum(len(own) * count for own, count in zip(task.positives, counts, strict=True)),
        "anchors_without_negative": len(alone),
        "pairs_without_negative": sum(alone),
        "anchors_with_fewer": sum(0 < count < rules.num_negatives for count in counts),
        "left_out": {"copy of anchor or positive": sum(map(len, task.copies))} | mined.failed,
        "mean_cosine": {"positives": positives, "negatives": negatives},
    }


def warn_of_lost_pairs(task: Candidates, mined: Mined, found: dict) -> None:
    """Say which pairs the file of triplets lacks, and what brings them back."""
    lost = [anchor for anchor, rows in zip(task.anchors, mined.negatives, strict=True) if not rows]
    if lost:
        pairs = f"{found['pairs_without_negative']:,} of {found['pairs']:,} pairs"
        say(f"{pairs} are not in the file, no candidate is left for their anchors: {listed(lost)}; {ADVICE}")


def show(found: dict, rules: Rules, out: Path) -> None:
    print(f"{found['anchors']:,} anchors with {found['pairs']:,} positives, {found['documents']:,} documents")
    for reason, count in found["left_out"].items():
        print(f"{count:>12,}  candidates left out: {reason}")
    lost = f"{found['anchors_without_negative']:>12,}  anchors left out, with {found['pairs_without_negative']:,} pairs"
    print(f"{lost}: no candidate remained")
    print(f"{found['anchors_with_fewer']:>12,}  anchors with fewer than {rules.num_negatives} negatives")
    print(f"{found['negatives']:>12,}  negatives, {found['triplets']:,} triplets in {out}")
    positive, negative = found["mean_cosine"].values()
    print(f"mean cosine with the anchor: positives {positive:.4f}, negatives {negative:.4f}")


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    (task, corpus), rules = read_files(options), options.rules
    with atomic_file(options.out) as partial:  # opened first: a folder that is missing is found before the work
        encoder, documents = encode_documents(task, corpus, options)
        anchors = encode_with_progress(encoder, task.anchors, prompt_of(encoder, options, "query"))
        mined = mine(anchors, documents, task, rules, progress=True)
        found = summary(task, mined, rules)
        if not found["triplets"]:
            reasons = ", ".join(f"{count:,} by {name}" for name, count in found["left_out"].items() if count)
            reasons = reasons or "no other documents"
            raise InputError(f"no negative is left for any of {found['anchors']:,} anchors ({reasons}): {ADVICE}")
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row._asdict(), ensure_ascii=False) + "\n" for row in triplets(task, mined))
    warn_of_lost_pairs(task, mined, found)
    if options.json:
        print(json.dumps({"model": options.model, "out": str(options.out)} | found, ensure_ascii=False))
    else:
        show(found, rules, options.out)


if __name__ == "__main__":
    run_command(main)
