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
  minisbert evaluate --queries Q.jsonl --corpus C.jsonl --qrels R.tsv --rerank CROSS_ENCODER
  minisbert evaluate --suite sts
"""

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.core import InputError
from minisbert.system.console import check_usage, command_parser, cut_message, say

if TYPE_CHECKING:
    from minisbert.loading import Encoder

# the encoder, how many texts it encoded, what was evaluated, what stands above the table, the
# result, the table
Evaluation = tuple["Encoder", int, dict[str, Any], dict[str, str], dict[str, Any], list[str]]
RETRIEVAL = ("queries", "corpus", "qrels")
DECISIONS = ["ap", "f1", "f1_threshold", "precision", "recall", "accuracy", "accuracy_threshold"]
PROTOCOL = "each sentence encoded alone, zero-shot similarity, one correlation over all pairs"
ONLY_SEARCH = (
    "only search data evaluates it (--queries, --corpus)"  # of a model with a vector per token
)

parser = command_parser("evaluate", __doc__)
rows = (
    "score, sentence1, sentence2; a header label, sentence1, sentence2 and labels; "
    "or anchor, positive, negative"
)
parser.add_argument("--data", help=f"stsb, quora, or a file: {rows} (default: stsb)")
shared.add_table_options(parser, "two texts and their score, or two texts")
split_help = "split of stsb (default: dev), or rows of a file by its column called split"
parser.add_argument("--split", choices=("train", "dev", "test"), help=split_help)
parser.add_argument("--queries", metavar="FILE", help=".jsonl with _id and text")
parser.add_argument("--corpus", metavar="FILE", help=".jsonl with _id, text and maybe title")
parser.add_argument("--qrels", metavar="FILE", help=".tsv with query-id, corpus-id, score")
about = "exclude the document with the query's own id from its ranking"
parser.add_argument("--ignore-identical-ids", action="store_true", help=about)
shared.add_rerank_options(parser, below=1000)
parser.add_argument("--suite", choices=("sts",), help="STS12 to STS16, STS-B and SICK-R")
shared.add_json_option(parser)
shared.add_model_options(parser.add_argument_group("model"), compares=True)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    given = [name for name in RETRIEVAL if getattr(options, name)]
    # three evaluations under one name, told apart by their data: none of them may be half given
    missing = " and ".join(f"--{name}" for name in RETRIEVAL if name not in given)
    several = (
        "--data, --queries with --corpus and --qrels, and --suite are three evaluations: give one"
    )
    stsb = options.data in (None, "stsb") and not given and not options.suite
    check_usage(
        (given and missing, f"retrieval needs three files; missing: {missing}"),
        (bool(options.data) + bool(given) + bool(options.suite) > 1, several),
        (options.rerank and not given, "--rerank needs --queries, --corpus and --qrels"),
        (
            options.ignore_identical_ids and not given,
            "--ignore-identical-ids needs --queries, --corpus and --qrels",
        ),
        (options.split and (given or options.suite), "--split is for --data"),
    )
    if stsb:
        options.data, options.split = "stsb", options.split or "dev"
    evaluate = evaluate_rows
    if options.suite or given:
        evaluate = evaluate_suite_of_sts if options.suite else evaluate_search
    encoder, texts, data, header, result, lines = evaluate(options)
    if encoder.truncated:
        say(cut_message(encoder.tokenizer.limit, encoder.truncated, texts))
    shown = {"model": f"{options.model}, {encoder.pooling_mode} pooling"} | header
    above = [f"{name:<9} {value}" for name, value in shown.items()]
    about = {
        "model": options.model,
        "pooling": encoder.pooling_mode,
        "similarity": encoder.similarity_fn_name,
    }
    shared.print_result(options, data | about | result, [*above, *([""] if lines else []), *lines])


def evaluate_rows(options: argparse.Namespace) -> Evaluation:
    """``--data``: the rows of a file say what is measured."""
    from minisbert.evaluation import evaluators
    from minisbert.evaluation.retrieval import retrieval_from_pairs, retrieval_scores
    from minisbert.models.properties import SIMILARITIES

    # the file's header or keys say what its rows are, and so which measure fits
    kind, table_of_rows = evaluators.load_rows(
        options.data, options.split or "", options.columns, options.quotes
    )
    say(table_of_rows.note())
    rows = table_of_rows.rows
    encoder = shared.chosen_encoder(options, instead=ONLY_SEARCH)
    similarity = encoder.similarity_fn_name
    # columns of texts, and behind those of scored and labelled pairs the scores or labels
    columns = [list(values) for values in zip(*rows, strict=True)]
    split = f", {options.split} split" if options.split else ""
    header = {"data": f"{options.data}{split}, {len(rows):,} {kind}", "scored by": similarity}
    lines: list[str] = []
    if kind == "pairs without scores":
        header["protocol"] = "each anchor's positive among all positives, by the exact search"
        ranked = retrieval_scores(encoder, retrieval_from_pairs(rows))
        lines = retrieval_table(ranked)
        result = {f"{similarity}_{metric}": value for metric, value in ranked.items()}
    elif kind == "triplets":
        anchors, positives, negatives = columns
        triplets = evaluators.TripletEvaluator(
            anchors, positives, negatives, show_progress_bar=True
        )
        result = triplets(encoder)
        share = f"{100 * result[triplets.primary_metric]:.2f} %"
        header["accuracy"] = (
            f"{share} have an anchor that is closer to the positive than to the negative"
        )
    else:
        header["scored by"] += "; the other similarities for comparison"
        first, second, labels = columns
        evaluator: evaluators.Evaluator
        cells: list[list[float | str]]
        if kind == "labelled pairs":
            header["protocol"] = (
                "thresholds chosen on these very pairs, which flatters all but average precision"
            )
            evaluator = evaluators.BinaryClassificationEvaluator(
                first, second, labels, show_progress_bar=True
            )
            found = evaluator.compute_metrics(encoder, SIMILARITIES)
            cells = [["x 100", "AP", "F1", "at", "precision", "recall", "accuracy", "at"]]
            for name, values in found.items():
                cells.append([name, *(values[metric] for metric in DECISIONS)])
                for at in (3, 7):  # thresholds are not shown times 100
                    cells[-1][at] = f"{cells[-1][at]:.3f}"
            lines = table(cells, 10, 11)
        else:
            header["protocol"] = PROTOCOL
            evaluator = evaluators.EmbeddingSimilarityEvaluator(
                first, second, labels, show_progress_bar=True
            )
            found = evaluator.compute_metrics(encoder, SIMILARITIES)
            cells = [["x 100", "Pearson", "Spearman"]]
            cells += [
                [name, values["pearson"], values["spearman"]] for name, values in found.items()
            ]
            lines = table(cells, 10, 10)
        result = evaluator.flat(found)
    counted = "triplets" if kind == "triplets" else "pairs"
    data = {"data": options.data, "split": options.split, counted: len(rows)}
    return encoder, table_of_rows.columns.texts * len(rows), data, header, result, lines


def table(rows: Iterable[Sequence[float | str]], first: int, width: int) -> list[str]:
    """Lay out rows in columns, the first one to the left; numbers are shown times 100."""
    lines = []
    for name, *cells in rows:
        shown = [cell if isinstance(cell, str) else f"{100 * cell:.2f}" for cell in cells]
        lines.append(f"{name:<{first}}" + "".join(f"{cell:>{width}}" for cell in shown))
    return lines


def retrieval_table(result: dict[str, float]) -> list[str]:
    from minisbert.evaluation.metrics import METRICS
    from minisbert.evaluation.retrieval import CUTOFFS

    rows: list[list[float | str]] = [["x 100", *METRICS]]
    rows += [[f"@{k}", *(result[f"{name}@{k}"] for name in METRICS)] for k in CUTOFFS]
    return table(rows, 8, 11)


def evaluate_search(options: argparse.Namespace) -> Evaluation:
    """``--queries``, ``--corpus``, ``--qrels``."""
    from minisbert.evaluation.retrieval import load_retrieval, retrieval_scores, two_stage_search
    from minisbert.models.pair_model import PairModel

    # the files first: what is wrong with them is said before a model is downloaded or loaded
    task = load_retrieval(
        options.queries, options.corpus, options.qrels, options.ignore_identical_ids
    )
    encoder = shared.chosen_encoder(options)
    queries, documents = len(task.queries), len(task.corpus)
    similarity = encoder.similarity_fn_name
    search, order = None, f"exact search by {similarity}, ties in the order of the corpus"
    if options.rerank:
        reranker = PairModel.load(options.rerank, device=options.device)
        search = two_stage_search(
            encoder.top_k, reranker, task.queries, task.corpus, options.candidates
        )
        first = f"the first {options.candidates} sorted by {options.rerank}"
        order = f"exact search by {similarity}, {first}"
    scores = retrieval_scores(encoder, task, search=search)
    unjudged = f" ({task.unjudged:,} more have no relevant document)" if task.unjudged else ""
    header = {"data": f"{queries:,} queries{unjudged}, {documents:,} documents"}
    header["protocol"] = f"{order}; mean over the queries"
    data = {name: getattr(options, name) for name in (*RETRIEVAL, "ignore_identical_ids", "rerank")}
    lines = retrieval_table(scores)
    # the scores of two stages are no longer those of the similarity
    if not options.rerank:
        scores = {f"{similarity}_{metric}": value for metric, value in scores.items()}
    result = {"evaluated_queries": queries, "documents": documents} | scores
    return encoder, queries + documents, data, header, result, lines


def evaluate_suite_of_sts(options: argparse.Namespace) -> Evaluation:
    """``--suite sts``: a line for each task, and the average."""
    from minisbert.evaluation.suite import average, evaluate_suite, load_suite

    # what cannot be fetched is left out and named, but then there is no average to compare with a
    # paper's
    tasks, missing = load_suite()
    if not tasks:
        raise InputError("the suite's data is missing: minisbert assets fetch sts12, and so on")
    encoder = shared.chosen_encoder(options, instead=ONLY_SEARCH)
    scores = evaluate_suite(encoder, tasks, progress=True)
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")
    rows: list[list[float | str]] = [["", "pairs", "score", "mean", "weighted", "  protocol"]]
    for task in scores:
        means: list[float | str] = ["", ""]  # of a single set they say nothing
        if len(task["sets"]) > 1:
            means = [task["mean"], task["weighted_mean"]]
        rows.append(
            [task["task"], f"{task['pairs']:,}", task["spearman"], *means, f"  {task['protocol']}"]
        )
    total = average(scores)
    shown, how = "-", f"needs {', '.join(missing)} too"
    if total is not None:
        shown, how = f"{total:.2f}", "of STS12 to SICK-R, each rounded first, as in SimCSE"
    rows.append(["average", "", shown, "", "", f"  {how}"])
    result = {"average": total, "tasks": scores, "missing": list(missing)}
    header = {
        "protocol": "each sentence encoded alone, Spearman's correlation with the scores, x 100"
    }
    header["scored by"] = encoder.similarity_fn_name
    texts = 2 * sum(task["pairs"] for task in scores)
    return encoder, texts, {"suite": options.suite}, header, result, table(rows, 13, 9)
