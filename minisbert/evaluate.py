"""Evaluate a model: correlation with human scores, labels by a threshold, triplets, retrieval, or the STS suite.

python -m minisbert.evaluate --split test
python -m minisbert.evaluate --model runs/cosine-all-MiniLM-L6-v2/model --data my_pairs.tsv --json
python -m minisbert.evaluate --data duplicates.tsv
python -m minisbert.evaluate --data triplets.tsv
python -m minisbert.evaluate --queries queries.jsonl --corpus corpus.jsonl --qrels qrels/test.tsv
python -m minisbert.evaluate --suite sts

Scored pairs: Pearson's and Spearman's correlation of the similarities with the scores. Pairs labelled 0 or 1, under a
header that says label: average precision, and F1 and accuracy at the best threshold. Triplets: the share whose anchor
is closer to the positive than to the negative, by the cosine. --queries, --corpus and --qrels: accuracy, precision,
recall, MRR, nDCG and MAP of the exact search. --suite sts: STS12 to STS16, STS-B and SICK-R as papers report them.
"""

import argparse
import json
from typing import Any

from minisbert.core import InputError
from minisbert.data.datasets import load_duplicates
from minisbert.data.scored_pairs import SPLITS, check_scores, load_scored_pairs
from minisbert.evaluation.retrieval import CUTOFFS, load_retrieval, retrieval_scores
from minisbert.evaluation.retrieval_metrics import METRICS
from minisbert.evaluation.sts import (
    PROTOCOL,
    evaluate,
    evaluate_labelled,
    evaluate_triplets,
    holds_labels,
    holds_triplets,
    load_triplets,
)
from minisbert.evaluation.suite import average, evaluate_suite, load_suite
from minisbert.models.options import add_model_options, load_encoder, load_pooled
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import check_options, check_usage, command_parser, run_command, say
from minisbert.training.trained_on import trained_on

RETRIEVAL = ("queries", "corpus", "qrels")
ONLY_SEARCH = "only search data evaluates it (--queries, --corpus)"  # of a model with a vector per token


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("evaluate", __doc__)
    rows = "stsb, quora, or a file: score, sentence1, sentence2; a header label, sentence1, sentence2 and labels; or "
    rows += "anchor, positive, negative (default: stsb)"
    parser.add_argument("--data", help=rows)
    parser.add_argument("--split", choices=SPLITS, help="split of stsb (default: dev)")
    parser.add_argument("--queries", metavar="FILE", help=".jsonl with _id and text")
    parser.add_argument("--corpus", metavar="FILE", help=".jsonl with _id, text and maybe title")
    parser.add_argument("--qrels", metavar="FILE", help=".tsv with query-id, corpus-id, score")
    identical = "exclude the document with the query's own id from its ranking"
    parser.add_argument("--ignore-identical-ids", action="store_true", help=identical)
    parser.add_argument("--suite", choices=("sts",), help="STS12 to STS16, STS-B and SICK-R")
    parser.add_argument("--scale", type=float, default=5.0, metavar="S", help="a file's scores are 0 to S (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    add_model_options(parser.add_argument_group("model"))
    options = parser.parse_args(arguments)
    check(options)
    if not (options.suite or options.qrels):
        options.data = options.data or "stsb"
        options.split = options.split or ("dev" if options.data == "stsb" else None)
    return options


def check(options: argparse.Namespace) -> None:
    """Raise ``InputError`` for options that do not go together."""
    check_options(options, scale="above 0 and finite")
    given = [name for name in RETRIEVAL if getattr(options, name)]
    missing = " and ".join(f"--{name}" for name in RETRIEVAL if name not in given)
    several = "--data, --queries with --corpus and --qrels, and --suite are three evaluations: give one"
    of_stsb = (options.data or "stsb") == "stsb" and not given and not options.suite
    check_usage(
        (given and missing, f"retrieval needs three files; missing: {missing}"),
        (sum(map(bool, (options.data, given, options.suite))) > 1, several),
        (options.ignore_identical_ids and not given, "--ignore-identical-ids needs --queries, --corpus and --qrels"),
        (options.split and not of_stsb, "--split belongs to --data stsb; a file has no splits"),
    )


def report_cut(encoder: SentenceEncoder, texts: int) -> None:
    if encoder.truncated:
        say(encoder.tokenizer.cut_message(encoder.truncated, texts))


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.suite:
        suite(options)
    elif options.qrels:
        retrieval(options)
    else:
        pairs_or_triplets(options)


def print_header(options: argparse.Namespace, encoder: SentenceEncoder, **about: str) -> None:
    """What was measured and how, a line each."""
    for name, value in ({"model": f"{options.model}, {encoder.pooling_mode} pooling"} | about).items():
        print(f"{name:<9} {value}")


def pairs_or_triplets(options: argparse.Namespace) -> None:
    """``--data``."""
    kind = kind_of(options.data)
    if kind == "triplets":
        rows, measure = load_triplets(options.data), evaluate_triplets
    elif kind == "labelled pairs":
        rows, measure = load_duplicates(options.data, "", None)[0], evaluate_labelled
        if not any(row.label for row in rows):
            raise InputError(f"{options.data}: no pair has label 1, so F1 and average precision are not defined")
    else:
        rows, measure = load_scored_pairs(options.data, options.split or "", options.scale), evaluate
        check_scores(rows, options.data)
    encoder = load_pooled(options, ONLY_SEARCH)
    result = measure(encoder, rows, progress=True)
    report_cut(encoder, (3 if kind == "triplets" else 2) * len(rows))
    if options.json:
        about = {"data": options.data, "split": options.split, kind.split()[-1]: len(rows), "model": options.model}
        print(json.dumps(about | {"pooling": encoder.pooling_mode} | result))
        return
    split = f", {options.split} split" if options.split else ""
    print_header(options, encoder, data=f"{options.data}{split}, {len(rows):,} {kind}")
    if kind == "triplets":
        print(f"accuracy  {100 * result['triplet_accuracy']:.2f} % have cos(anchor, positive) > cos(anchor, negative)")
        return
    if kind == "labelled pairs":
        print_decisions(result)
        return
    print(f"protocol  {PROTOCOL}\n")
    print(f"{'x 100':<10}{'Pearson':>10}{'Spearman':>10}")
    for name in result["pearson"]:
        print(f"{name:<10}{100 * result['pearson'][name]:>10.2f}{100 * result['spearman'][name]:>10.2f}")


def kind_of(data: str) -> str:
    """What ``--data`` has: pairs with scores, pairs with labels, or triplets."""
    if data == "quora" or (data != "stsb" and holds_labels(data)):
        return "labelled pairs"
    return "triplets" if data != "stsb" and holds_triplets(data) else "pairs"


def print_decisions(result: dict[str, dict[str, float]]) -> None:
    """A line for each similarity; the thresholds are on its own scale."""
    print("protocol  thresholds chosen on these very pairs, which flatters all but average precision\n")
    print(f"{'x 100':<10}{'AP':>8}{'F1':>8}{'at':>9}{'precision':>11}{'recall':>8}{'accuracy':>10}{'at':>9}")
    for name, of in result.items():
        shares = {metric: f"{100 * value:.2f}" for metric, value in of.items()}
        print(
            f"{name:<10}{shares['average_precision']:>8}{shares['f1']:>8}{of['f1_threshold']:>9.3f}"
            f"{shares['precision']:>11}{shares['recall']:>8}{shares['accuracy']:>10}{of['accuracy_threshold']:>9.3f}"
        )


def retrieval(options: argparse.Namespace) -> None:
    """``--queries``, ``--corpus``, ``--qrels``."""
    task = load_retrieval(options.queries, options.corpus, options.qrels, options.ignore_identical_ids)
    encoder = load_encoder(options)
    result = retrieval_scores(encoder, task)
    report_cut(encoder, len(task.queries) + len(task.corpus))
    if options.json:
        about = {name: getattr(options, name) for name in (*RETRIEVAL, "ignore_identical_ids", "model")}
        counts = {"evaluated_queries": len(task.queries), "documents": len(task.corpus)}
        print(json.dumps(about | {"pooling": encoder.pooling_mode} | counts | result))
        return
    more = f" ({task.unjudged:,} more have no relevant document)" if task.unjudged else ""
    data = f"{len(task.queries):,} queries{more}, {len(task.corpus):,} documents"
    protocol = "exact search by cosine, ties in the order of the corpus; mean over the queries\n"
    print_header(options, encoder, data=data, protocol=protocol)
    print(f"{'x 100':<8}" + "".join(f"{name:>11}" for name in METRICS))
    for k in CUTOFFS:
        print(f"{f'@{k}':<8}" + "".join(f"{100 * result[f'{name}@{k}']:>11.2f}" for name in METRICS))


def suite(options: argparse.Namespace) -> None:
    """``--suite sts``."""
    tasks, missing = load_suite()
    if not tasks:
        raise InputError("the suite's data is missing: python -m minisbert.assets fetch sts12, and so on")
    pairs, note = trained_on(options.model)
    encoder = load_pooled(options, ONLY_SEARCH)
    lines = evaluate_suite(encoder, tasks, pairs, progress=True)
    report_cut(encoder, 2 * sum(line["pairs"] for line in lines))
    for name, reason in missing.items():
        say(f"{name} is left out: {reason}")
    if options.json:
        about = {"suite": options.suite, "model": options.model, "pooling": encoder.pooling_mode, "trained_on": note}
        print(json.dumps(about | {"average": average(lines), "tasks": lines, "missing": list(missing)}))
        return
    protocol = "each sentence encoded alone, Spearman's correlation of the cosine with the scores, x 100\n"
    print_header(options, encoder, trained=note, protocol=protocol)
    print_suite(lines, list(missing))


def print_suite(lines: list[dict[str, Any]], missing: list[str]) -> None:
    """A line for each task, the average, and a warning if the model was trained on some of the pairs."""
    print(f"{'':<13}{'pairs':>7}{'score':>8}{'mean':>8}{'weighted':>10}{'trained on':>12}  protocol")
    for line in lines:
        several = len(line["sets"]) > 1
        means = [f"{100 * line[name]:.2f}" if several else "" for name in ("mean", "weighted_mean")]
        known = "?" if line["trained"] is None else f"{line['trained']:,}" + (" !" if line["trained"] else "")
        print(
            f"{line['task']:<13}{line['pairs']:>7,}{100 * line['spearman']:>8.2f}{means[0]:>8}{means[1]:>10}{known:>12}"
            f"  {line['protocol']}"
        )
    total = average(lines)
    left_out = f"without {', '.join(missing)} there is none"
    how = left_out if total is None else "of STS12 to SICK-R, each rounded first, as in SimCSE"
    print(f"{'average':<13}{'':>7}{'-' if total is None else f'{total:.2f}':>8}{'':>30}  {how}")
    if warned := [line for line in lines if line["trained"]]:
        shares = ", ".join(f"{100 * line['trained'] / line['pairs']:.0f} % of {line['task']}" for line in warned)
        print(f"\n! the model was trained on {shares}: such a score says little about other texts")


if __name__ == "__main__":
    run_command(main)
