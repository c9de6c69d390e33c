"""Evaluate a model: correlation with human scores, labels by a threshold, triplets, retrieval, or
the STS suite.

Scored pairs: Pearson's and Spearman's correlation of the similarities with the scores. Pairs
labelled 0 or 1, under a header that says label: average precision, and F1 and accuracy at the best
threshold. Triplets: the share whose anchor is closer to the positive than to the negative.
--queries, --corpus and --qrels: accuracy, precision, recall, MRR, nDCG and MAP of the exact search.
--suite sts: STS12 to STS16, STS-B and SICK-R as papers report them. Vectors are compared by the
model's own similarity, or by --similarity.

Examples:
  minisbert evaluate --split test
  minisbert evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
  minisbert evaluate --data duplicates.tsv
  minisbert evaluate --data triplets.tsv
  minisbert evaluate --queries queries.jsonl --corpus corpus.jsonl --qrels qrels/test.tsv
  minisbert evaluate --queries Q.jsonl --corpus C.jsonl --qrels R.tsv --rerank runs/reranker/model
  minisbert evaluate --suite sts
"""

import argparse
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import check_usage, command_parser, say, warn
from minisbert.system.reading import read_json
from minisbert.training import RUN_CONFIG

if TYPE_CHECKING:
    from minisbert.models.text_encoder import TextEncoder

# The columns of the table of labelled pairs: each metric and its heading. A threshold, "at", stands
# behind what it was chosen for.
DECISIONS = {
    "ap": "AP",
    "f1": "F1",
    "f1_threshold": "at",
    "precision": "precision",
    "recall": "recall",
    "accuracy": "accuracy",
    "accuracy_threshold": "at",
}
PROTOCOL = "each sentence encoded alone, one correlation of their similarity over all pairs"
# What to do with a model that has a vector per token.
ONLY_SEARCH = "only search data evaluates it (--queries, --corpus)"

parser = command_parser("evaluate", __doc__)
parser.add_argument(
    "--data",
    help="stsb, quora, or a file with the columns score, sentence1, sentence2; label, sentence1, "
    "sentence2; anchor, positive, negative; or anchor, positive (default: stsb)",
)
shared.add_table_options(parser, "two texts and their score, or two texts")
parser.add_argument(
    "--split",
    choices=("train", "dev", "test"),
    help="split of stsb (default: dev), or the rows of a file by its column called split",
)
parser.add_argument("--queries", metavar="FILE", help=".jsonl with _id and text")
parser.add_argument("--corpus", metavar="FILE", help=".jsonl with _id, text and maybe title")
parser.add_argument("--qrels", metavar="FILE", help="query-id, corpus-id, score; or TREC's")
parser.add_argument(
    "--ignore-identical-ids",
    action="store_true",
    help="exclude the document with the query's own id from its ranking",
)
shared.add_rerank_options(parser, below=1000)
parser.add_argument("--suite", choices=("sts",), help="STS12 to STS16, STS-B and SICK-R")
shared.add_json_option(parser)
shared.add_model_options(parser.add_argument_group("model"), compares=True)


@dataclass
class Report:
    """What one of the three evaluations found, for ``main`` to print."""

    encoder: "TextEncoder"
    texts: int  # how many were encoded
    data: dict[str, Any]  # what was evaluated, for --json
    header: dict[str, str]  # lines above the table
    result: dict[str, Any]  # for --json
    table: list[str] = field(default_factory=list)


class Measured(NamedTuple):
    """What was measured on rows; the fields are those of ``Report``."""

    result: dict[str, Any]  # for --json
    header: dict[str, str]  # lines above the table
    table: list[str]


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    # Three evaluations have one name, and their data tell which of them is meant.
    searches = bool(options.queries or options.corpus or options.qrels)
    check_options(options, searches)
    if searches:
        report = evaluate_search(options)
    elif options.suite:
        report = evaluate_suite_of_sts(options)
    else:
        if options.data is None:
            options.data = "stsb"
        if options.data == "stsb" and options.split is None:
            options.split = "dev"
        report = evaluate_rows(options)

    encoder = report.encoder
    shared.say_cut_texts(encoder, report.texts)
    model = {
        "model": options.model,
        "pooling": encoder.pooling_mode,
        "similarity": encoder.similarity_fn_name,
    }
    lines = [f"{'model':<9} {options.model}, {encoder.pooling_mode} pooling"]
    for name, value in report.header.items():
        lines.append(f"{name:<9} {value}")
    if report.table:
        lines += ["", *report.table]
    shared.print_result(options, report.data | model | report.result, lines)


def check_options(options: argparse.Namespace, searches: bool) -> None:
    """Raise ``InputError`` for the data of two evaluations, and for half of the data of one."""
    files = {"--queries": options.queries, "--corpus": options.corpus, "--qrels": options.qrels}
    missing = " and ".join(flag for flag, path in files.items() if not path)
    several = [bool(options.data), searches, bool(options.suite)].count(True) > 1
    check_usage(
        (searches and missing, f"retrieval needs three files; missing: {missing}"),
        (
            several,
            "--data, --queries with --corpus and --qrels, and --suite are three evaluations: give "
            "one",
        ),
        (options.rerank and not searches, "--rerank needs --queries, --corpus and --qrels"),
        (
            options.ignore_identical_ids and not searches,
            "--ignore-identical-ids needs --queries, --corpus and --qrels",
        ),
        (options.split and (searches or options.suite), "--split is for --data"),
    )


# -------------------------------------------------------------------------------------------
# rows of texts


def evaluate_rows(options: argparse.Namespace) -> Report:
    """Evaluate on ``--data``: its header or keys say what its rows are and what is measured."""
    from minisbert.evaluation.evaluators import load_rows

    kind, table_of_rows = load_rows(
        options.data, options.split or "", options.columns, options.quotes
    )
    say(table_of_rows.note())
    rows = table_of_rows.rows
    if options.split in (None, "train"):
        warn_of_training_rows(options.model, options.data)
    encoder = shared.chosen_encoder(options, instead=ONLY_SEARCH)

    if kind == "pairs without scores":
        measured = rank_positives(encoder, rows)
    elif kind == "triplets":
        measured = compare_triplets(encoder, rows)
    elif kind == "labelled pairs":
        measured = classify_pairs(encoder, rows)
    else:
        measured = correlate_pairs(encoder, rows)

    split = ""
    if options.split:
        split = f", {options.split} split"
    header = {
        "data": f"{options.data}{split}, {len(rows):,} {kind}",
        "scored by": encoder.similarity_fn_name,
    }
    # Where all similarities were compared, the line "scored by" says so instead.
    header |= measured.header
    noun = "triplets" if kind == "triplets" else "pairs"
    return Report(
        encoder,
        texts=table_of_rows.columns.texts * len(rows),
        data={"data": options.data, "split": options.split, noun: len(rows)},
        header=header,
        result=measured.result,
        table=measured.table,
    )


def warn_of_training_rows(model: str, data: str) -> None:
    """Warn if a model is evaluated on the file that it was trained on.

    ``minisbert train`` keeps its settings in the folder of the run, in which the model's is.
    """
    path = Path(model).parent / RUN_CONFIG
    trained_on = ""
    with suppress(InputError):  # any folder may have a file of this name, or none
        trained_on = read_json(path).get("data") or ""
    for file in str(trained_on).split(","):
        if os.path.exists(file) and os.path.exists(data) and os.path.samefile(file, data):
            warn(
                f"{model} was trained on {data}: a score on rows that it has seen is too high, "
                f"so evaluate on others"
            )


def rank_positives(encoder: "TextEncoder", rows: list[tuple]) -> Measured:
    """Evaluate on pairs without scores: search each anchor's positive among all positives."""
    from minisbert.evaluation.retrieval import retrieval_from_pairs, retrieval_scores

    scores = retrieval_scores(encoder, retrieval_from_pairs(rows))
    header = {"protocol": "each anchor's positive among all positives, by the exact search"}
    return Measured(by_similarity(encoder, scores), header, retrieval_table(scores))


def compare_triplets(encoder: "TextEncoder", rows: list[tuple]) -> Measured:
    """Evaluate on triplets: how often is the anchor closer to the positive than to the negative?"""
    from minisbert.evaluation.evaluators import TripletEvaluator

    anchors, positives, negatives = columns_of(rows)
    evaluator = TripletEvaluator(anchors, positives, negatives, show_progress_bar=True)
    result = evaluator(encoder)
    share = f"{100 * result[evaluator.primary_metric]:.2f} %"
    header = {
        "accuracy": f"{share} have an anchor that is closer to the positive than to the negative"
    }
    return Measured(result, header, table=[])


def classify_pairs(encoder: "TextEncoder", rows: list[tuple]) -> Measured:
    """Evaluate on pairs with labels 0 and 1, which a threshold of each similarity separates."""
    from minisbert.evaluation.evaluators import BinaryClassificationEvaluator
    from minisbert.models.properties import SIMILARITIES

    first, second, labels = columns_of(rows)
    evaluator = BinaryClassificationEvaluator(first, second, labels, show_progress_bar=True)
    metrics = evaluator.compute_metrics(encoder, SIMILARITIES)

    cells: list[list[float | str]] = [["x 100", *DECISIONS.values()]]
    for similarity, values in metrics.items():
        row: list[float | str] = [similarity]
        for metric in DECISIONS:
            if metric.endswith("threshold"):
                row.append(f"{values[metric]:.3f}")  # not times 100
            else:
                row.append(values[metric])
        cells.append(row)

    protocol = "thresholds chosen on these very pairs, which flatters all but average precision"
    header = {"scored by": comparing_all(encoder), "protocol": protocol}
    return Measured(evaluator.flatten(metrics), header, lay_out(cells, 10, 11))


def correlate_pairs(encoder: "TextEncoder", rows: list[tuple]) -> Measured:
    """Evaluate on scored pairs: the correlations of each similarity with the scores."""
    from minisbert.evaluation.evaluators import EmbeddingSimilarityEvaluator
    from minisbert.models.properties import SIMILARITIES

    first, second, scores = columns_of(rows)
    evaluator = EmbeddingSimilarityEvaluator(first, second, scores, show_progress_bar=True)
    metrics = evaluator.compute_metrics(encoder, SIMILARITIES)
    cells: list[list[float | str]] = [["x 100", "Pearson", "Spearman"]]
    for similarity, values in metrics.items():
        cells.append([similarity, values["pearson"], values["spearman"]])
    header = {"scored by": comparing_all(encoder), "protocol": PROTOCOL}
    return Measured(evaluator.flatten(metrics), header, lay_out(cells, 10, 10))


def columns_of(rows: list[tuple]) -> list[list]:
    """Return the columns of rows: ``[("a", "b", 1), ("c", "d", 0)]`` has a, c; b, d; and 1, 0."""
    return [list(values) for values in zip(*rows, strict=True)]


def comparing_all(encoder: "TextEncoder") -> str:
    """Return the line "scored by" of a table that has a row for each similarity."""
    return f"{encoder.similarity_fn_name}; the other similarities for comparison"


def by_similarity(encoder: "TextEncoder", scores: dict[str, float]) -> dict[str, float]:
    """Name each metric as sentence-transformers does: ``cosine_ndcg@10``."""
    return {f"{encoder.similarity_fn_name}_{metric}": value for metric, value in scores.items()}


# -------------------------------------------------------------------------------------------
# retrieval


def evaluate_search(options: argparse.Namespace) -> Report:
    """Evaluate retrieval: search ``--corpus`` for ``--queries``, and compare with ``--qrels``."""
    from minisbert.evaluation.retrieval import load_retrieval, retrieval_scores, two_stage_search
    from minisbert.models.pair_model import PairModel

    # The files come first: what is wrong with them is said before a model is fetched or loaded.
    task = load_retrieval(
        options.queries, options.corpus, options.qrels, options.ignore_identical_ids
    )
    encoder = shared.chosen_encoder(options)
    search = None
    order = f"exact search by {encoder.similarity_fn_name}, "
    if options.rerank:
        reranker = PairModel.load(options.rerank, device=options.device)
        search = two_stage_search(
            encoder.top_k, reranker, task.queries, task.corpus, options.candidates
        )
        order += f"the first {options.candidates} sorted by {options.rerank}"
    else:
        order += "ties in the order of the corpus"
    scores = retrieval_scores(encoder, task, search=search)

    queries = len(task.queries)
    documents = len(task.corpus)
    unjudged = ""
    if task.unjudged:
        unjudged = f" ({task.unjudged:,} more have no relevant document)"
    # After two stages the ranking is no longer that of the similarity, so it is not in the names.
    named_scores = scores
    if not options.rerank:
        named_scores = by_similarity(encoder, scores)
    return Report(
        encoder,
        texts=queries + documents,
        data={
            "queries": options.queries,
            "corpus": options.corpus,
            "qrels": options.qrels,
            "ignore_identical_ids": options.ignore_identical_ids,
            "rerank": options.rerank,
        },
        header={
            "data": f"{queries:,} queries{unjudged}, {documents:,} documents",
            "protocol": f"{order}; mean over the queries",
        },
        result={"evaluated_queries": queries, "documents": documents} | named_scores,
        table=retrieval_table(scores),
    )


def retrieval_table(scores: dict[str, float]) -> list[str]:
    """Lay out a row for each cutoff, a column for each metric."""
    from minisbert.evaluation.metrics import METRICS
    from minisbert.evaluation.retrieval import CUTOFFS

    cells: list[list[float | str]] = [["x 100", *METRICS]]
    for k in CUTOFFS:
        row: list[float | str] = [f"@{k}"]
        for metric in METRICS:
            row.append(scores[f"{metric}@{k}"])
        cells.append(row)
    return lay_out(cells, 8, 11)


# -------------------------------------------------------------------------------------------
# the suite


def evaluate_suite_of_sts(options: argparse.Namespace) -> Report:
    """Evaluate on ``--suite sts``: a line for each task, and the average."""
    from minisbert.evaluation.suite import average, evaluate_suite, load_suite

    # What cannot be fetched is left out and named, but then there is no average to compare with a
    # paper's.
    tasks, missing = load_suite()
    if not tasks:
        raise InputError("the suite's data is missing: minisbert assets fetch sts12, and so on")
    encoder = shared.chosen_encoder(options, instead=ONLY_SEARCH)
    scores = evaluate_suite(encoder, tasks, progress=True)
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")

    # The last column is wider than the others: two blanks set its text apart.
    cells: list[list[float | str]] = [["", "pairs", "score", "mean", "weighted", "  protocol"]]
    for task in scores:
        row: list[float | str] = [task["task"], f"{task['pairs']:,}", task["spearman"]]
        # The means over a single set say nothing.
        if len(task["sets"]) > 1:
            row += [task["mean"], task["weighted_mean"]]
        else:
            row += ["", ""]
        cells.append([*row, f"  {task['protocol']}"])
    total = average(scores)
    if total is None:
        cells.append(["average", "", "-", "", "", f"  needs {', '.join(missing)} too"])
    else:
        how = "of STS12 to SICK-R, each rounded first, as in SimCSE"
        cells.append(["average", "", f"{total:.2f}", "", "", f"  {how}"])

    protocol = "each sentence encoded alone, Spearman's correlation with the scores, x 100"
    return Report(
        encoder,
        texts=2 * sum(task["pairs"] for task in scores),
        data={"suite": options.suite},
        header={"protocol": protocol, "scored by": encoder.similarity_fn_name},
        result={"average": total, "tasks": scores, "missing": list(missing)},
        table=lay_out(cells, 13, 9),
    )


def lay_out(rows: Iterable[Sequence[float | str]], first: int, width: int) -> list[str]:
    """Lay out rows in columns: the first is ``first`` wide and flush left, the others ``width``.

    Numbers are shown times 100.
    """
    lines = []
    for name, *cells in rows:
        line = f"{name:<{first}}"
        for cell in cells:
            if not isinstance(cell, str):
                cell = f"{100 * cell:.2f}"
            line += f"{cell:>{width}}"
        lines.append(line)
    return lines
