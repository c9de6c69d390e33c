"""Evaluate a model: correlation with human scores, labels by a threshold, triplets, retrieval, or the STS suite.

minisbert evaluate --split test
minisbert evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
minisbert evaluate --data duplicates.tsv
minisbert evaluate --data triplets.tsv
minisbert evaluate --queries queries.jsonl --corpus corpus.jsonl --qrels qrels/test.tsv
minisbert evaluate --queries Q.jsonl --corpus C.jsonl --qrels R.tsv --rerank cross-encoder/ms-marco-MiniLM-L6-v2
minisbert evaluate --suite sts

Scored pairs: Pearson's and Spearman's correlation of the similarities with the scores. Pairs labelled 0 or 1, under a
header that says label: average precision, and F1 and accuracy at the best threshold. Triplets: the share whose anchor
is closer to the positive than to the negative, by the cosine. --queries, --corpus and --qrels: accuracy, precision,
recall, MRR, nDCG and MAP of the exact search. --suite sts: STS12 to STS16, STS-B and SICK-R as papers report them.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from minisbert.commands.options import add_model_options, load_encoder, load_pooled
from minisbert.core import InputError
from minisbert.data.datasets import SPLITS, score_scale
from minisbert.evaluation.metrics import METRICS
from minisbert.evaluation.retrieval import CUTOFFS, load_retrieval, retrieval_scores, two_stage_search
from minisbert.evaluation.sts import PROTOCOL, load_rows
from minisbert.evaluation.suite import average, evaluate_suite, load_suite
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, check_usage, run_command, say

RETRIEVAL = ("queries", "corpus", "qrels")
DECISIONS = "average_precision f1 f1_threshold precision recall accuracy accuracy_threshold".split()
ONLY_SEARCH = "only search data evaluates it (--queries, --corpus)"  # of a model with a vector per token


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("evaluate", __doc__)
    rows = "stsb, quora, or a file: score, sentence1, sentence2; a header label, sentence1, sentence2 and labels; or "
    parser.add_argument("--data", help=rows + "anchor, positive, negative (default: stsb)")
    columns = "read these columns or keys of a file of scores: score,sentence1,sentence2 under other names"
    parser.add_argument("--columns", metavar="A,B,C", help=columns)
    parser.add_argument("--split", choices=SPLITS, help="split of stsb (default: dev)")
    parser.add_argument("--queries", metavar="FILE", help=".jsonl with _id and text")
    parser.add_argument("--corpus", metavar="FILE", help=".jsonl with _id, text and maybe title")
    parser.add_argument("--qrels", metavar="FILE", help=".tsv with query-id, corpus-id, score")
    identical = "exclude the document with the query's own id from its ranking"
    parser.add_argument("--ignore-identical-ids", action="store_true", help=identical)
    parser.add_argument(
        "--rerank", metavar="MODEL", help="a cross-encoder, which sorts the first documents of a search"
    )
    parser.add_argument(
        "--candidates",
        type=bounded(int, 1, 1000),
        default=50,
        metavar="N",
        help="documents for each query that --rerank reads (default: %(default)s)",
    )
    parser.add_argument("--suite", choices=("sts",), help="STS12 to STS16, STS-B and SICK-R")
    parser.add_argument(
        "--scale",
        type=score_scale,
        metavar="S",
        help="a file's scores must be 0 to S, or -S to S for -S (default: any scale)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    add_model_options(parser.add_argument_group("model"))
    options = parser.parse_args(arguments)
    given = [name for name in RETRIEVAL if getattr(options, name)]
    missing = " and ".join(f"--{name}" for name in RETRIEVAL if name not in given)
    several = "--data, --queries with --corpus and --qrels, and --suite are three evaluations: give one"
    check_usage(
        (given and missing, f"retrieval needs three files; missing: {missing}"),
        (sum(map(bool, (options.data, given, options.suite))) > 1, several),
        (options.rerank and not given, "--rerank needs --queries, --corpus and --qrels"),
        (options.ignore_identical_ids and not given, "--ignore-identical-ids needs --queries, --corpus and --qrels"),
        (
            options.split and (options.data not in (None, "stsb") or given or options.suite),
            "--split belongs to --data stsb; a file has no splits",
        ),
    )
    if not (options.suite or given):
        options.data = options.data or "stsb"
        options.split = options.split or ("dev" if options.data == "stsb" else None)
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(arguments)
    (suite if options.suite else retrieval if options.qrels else pairs_or_triplets)(options)


def report(
    options: argparse.Namespace,
    encoder: SentenceEncoder,
    texts: int,
    data: dict[str, Any],
    result: dict[str, Any],
    header: dict[str, str],
    table: Sequence[str] = (),
) -> None:
    """Print what was evaluated and the result, as JSON or as a header and a table; ``texts`` were encoded."""
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, texts))
    if options.json:
        print(json.dumps(data | {"model": options.model, "pooling": encoder.pooling_mode} | result))
        return
    for name, value in ({"model": f"{options.model}, {encoder.pooling_mode} pooling"} | header).items():
        print(f"{name:<9} {value}")
    if table:
        print("", *table, sep="\n")


def row(widths: Sequence[int], first: str, *cells: float | str) -> str:
    """A row of a table; numbers are shown times 100."""
    shown = [cell if isinstance(cell, str) else f"{100 * cell:.2f}" for cell in cells]
    return f"{first:<{widths[0]}}" + "".join(f"{cell:>{width}}" for cell, width in zip(shown, widths[1:], strict=True))


def pairs_or_triplets(options: argparse.Namespace) -> None:
    """``--data``."""
    kind, (rows, skipped, unread), measure = load_rows(
        options.data, options.split or "", options.scale, options.columns
    )
    if skipped:
        say(f"{options.data}: {skipped:,} rows with an empty text were skipped")
    if unread:
        say(f"{options.data}: not read: {', '.join(unread)}")
    encoder = load_pooled(options, ONLY_SEARCH)
    result = measure(encoder, rows, progress=True)
    data = {"data": options.data, "split": options.split, "triplets" if kind == "triplets" else "pairs": len(rows)}
    split = f", {options.split} split" if options.split else ""
    header = {"data": f"{options.data}{split}, {len(rows):,} {kind}"}
    if kind == "triplets":
        share = f"{100 * result['triplet_accuracy']:.2f} %"
        header |= {"accuracy": f"{share} have cos(anchor, positive) > cos(anchor, negative)"}
        table = []
    elif kind == "pairs without scores":
        header |= {"protocol": "each anchor's positive among all positives, by the exact search"}
        table = retrieval_table(result)
    elif kind == "labelled pairs":
        header |= {"protocol": "thresholds chosen on these very pairs, which flatters all but average precision"}
        widths = (10, 8, 8, 9, 11, 8, 10, 9)
        table = [row(widths, "x 100", "AP", "F1", "at", "precision", "recall", "accuracy", "at")]
        for name, one in result.items():  # thresholds are on the similarity's own scale
            cells = [f"{one[metric]:.3f}" if metric.endswith("threshold") else one[metric] for metric in DECISIONS]
            table.append(row(widths, name, *cells))
    else:
        header |= {"protocol": PROTOCOL}
        widths = (10, 10, 10)
        table = [row(widths, "x 100", "Pearson", "Spearman")]
        table += [row(widths, name, r, result["spearman"][name]) for name, r in result["pearson"].items()]
    report(options, encoder, (3 if kind == "triplets" else 2) * len(rows), data, result, header, table)


def retrieval(options: argparse.Namespace) -> None:
    """``--queries``, ``--corpus``, ``--qrels``."""
    task = load_retrieval(options.queries, options.corpus, options.qrels, options.ignore_identical_ids)
    encoder = load_encoder(options)
    queries, documents = len(task.queries), len(task.corpus)
    search, order = None, "exact search by cosine, ties in the order of the corpus"
    if options.rerank:
        reranker = PairModel.load(options.rerank, device=options.device)
        search = two_stage_search(encoder.top_k, reranker, task.queries, task.corpus, options.candidates)
        order = f"exact search by cosine, the first {options.candidates} sorted by {options.rerank}"
    result = retrieval_scores(encoder, task, search=search)
    data = {name: getattr(options, name) for name in (*RETRIEVAL, "ignore_identical_ids", "rerank")}
    more = f" ({task.unjudged:,} more have no relevant document)" if task.unjudged else ""
    header = {"data": f"{queries:,} queries{more}, {documents:,} documents"}
    header |= {"protocol": f"{order}; mean over the queries"}
    table = retrieval_table(result)
    result = {"evaluated_queries": queries, "documents": documents} | result
    report(options, encoder, queries + documents, data, result, header, table)


def retrieval_table(result: dict[str, float]) -> list[str]:
    widths = (8, *[11] * len(METRICS))
    table = [row(widths, f"@{k}", *(result[f"{name}@{k}"] for name in METRICS)) for k in CUTOFFS]
    return [row(widths, "x 100", *METRICS), *table]


def suite(options: argparse.Namespace) -> None:
    """``--suite sts``: a line for each task, and the average."""
    tasks, missing = load_suite()
    if not tasks:
        raise InputError("the suite's data is missing: minisbert assets fetch sts12, and so on")
    encoder = load_pooled(options, ONLY_SEARCH)
    scores = evaluate_suite(encoder, tasks, progress=True)
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")
    widths = (13, 7, 8, 8, 10, 1)
    table = [row(widths, "", "pairs", "score", "mean", "weighted", "  protocol")]
    for one in scores:
        means = (one["mean"], one["weighted_mean"]) if len(one["sets"]) > 1 else ("", "")
        scored = f"{one['pairs']:,}", one["spearman"]
        table.append(row(widths, one["task"], *scored, *means, f"  {one['protocol']}"))
    total = average(scores)
    if total is None:
        shown, how = "-", f"without {', '.join(missing)} there is none"
    else:
        shown, how = f"{total:.2f}", "of STS12 to SICK-R, each rounded first, as in SimCSE"
    table.append(row((13, 7, 8, 18, 1), "average", "", shown, "", f"  {how}"))
    result = {"average": total, "tasks": scores, "missing": list(missing)}
    protocol = "each sentence encoded alone, Spearman's correlation of the cosine with the scores, x 100"
    header = {"protocol": protocol}
    report(options, encoder, 2 * sum(one["pairs"] for one in scores), {"suite": options.suite}, result, header, table)


if __name__ == "__main__":
    run_command(main)
