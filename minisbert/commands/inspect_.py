"""Inspect files of training data before training on them.

    minisbert inspect train.tsv
    minisbert inspect train.tsv dev.tsv test.tsv --plots pictures
    minisbert inspect triplets.jsonl.gz --model bert-base-uncased --max-length 128 --json

It says which format a file has, what is wrong with it and where, what the files share, and how to train on them.
The exit code is 1 if there is a problem, which training refuses or learns nothing from; warnings leave it at 0.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minisbert.diagnosis.inspection import (
    NOTE,
    PROBLEM,
    WARNING,
    InspectedFile,
    compare_files,
    inspect,
    training_command,
)
from minisbert.evaluation.plots import draw_histogram, new_figure, require, save, shorten
from minisbert.loading import load_tokenizer
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.assets import asset, local_path
from minisbert.system.command_line import command_parser
from minisbert.system.console import exiting, run_command, say, score_scale
from minisbert.system.files import check_output

DEFAULT = "all-MiniLM-L6-v2"
PICTURE = "inspection.png"
BAR = 24  # characters of the longest bar
LEVELS = (PROBLEM, WARNING, NOTE)


def find_tokenizer(model: str | None, max_length: int | None) -> Tokenizer | None:
    """The tokenizer of a model; None, with a message, if none is named and the default model is not there.

    A download of 90 MB is too much for counting tokens, so the default model is not fetched.
    """
    folder = asset(DEFAULT).folder
    if model is None and not (folder / "tokenizer.json").is_file():
        say(
            f"lengths in tokens are not counted because {DEFAULT} is missing: "
            f"minisbert assets fetch {DEFAULT}, or give --model FOLDER"
        )
        return None
    return load_tokenizer(folder if model is None else model, max_length)


def print_line(name: str, text: str) -> None:
    print(f"  {name:<9}{text}".rstrip())


def print_file(found: InspectedFile) -> None:
    """The report on one file."""
    content = found.summary()
    print(f"{found.path}: {found.name}")
    print_line("rows", f"{content['rows']:,}")
    if content["texts"]:
        print_line("texts", f"{content['texts']:,}, {content['distinct_texts']:,} distinct")
    if "tokens" in content:
        print_tokens(content["tokens"])
    if "labels" in content:
        print_labels(content["labels"])
    for finding in sorted(found.findings.values(), key=lambda one: LEVELS.index(one.level)):
        count = f" ({finding.count:,})" if finding.count > 1 else ""
        print_line(finding.level, f"{finding.name}{count}: {finding.what}")
        for place in (*finding.places, f"-> {finding.remedy}"):
            print_line("", f"  {place}")
    if not found.findings:
        print("  no problem found")
    print()


def print_tokens(tokens: dict[str, Any]) -> None:
    most = f"95 % up to {tokens['p95']:g}, longest {tokens['longest']:,}"
    print_line("tokens", f"median {tokens['median']:g}, {most}")
    cut = "cuts none"
    if tokens["cut"]:
        cut = f"cuts {tokens['cut']:,} of the texts ({100 * tokens['cut_share']:.1f} %)"
    print_line("", f"the limit of {tokens['limit']:,} {cut}")


def print_labels(labels: dict[str, Any]) -> None:
    if "mean" in labels:
        print_line("labels", f"{labels['min']:g} to {labels['max']:g}, mean {labels['mean']:.3g}")
    else:
        print_line("labels", f"{len(labels['counts'])} classes")
    counts = {name: f"{count:,}" for name, count in labels["counts"].items()}
    width, digits = max(map(len, counts)), max(map(len, counts.values()))
    most = max(labels["counts"].values())
    for name, count in labels["counts"].items():
        print_line("", f"{name:<{width}}  {counts[name]:>{digits}}  {'#' * round(BAR * count / most)}")


def print_all(
    files: list[InspectedFile], shared: list[dict[str, Any]], train: str | None, reranker: str | None
) -> None:
    for found in files:
        print_file(found)
    for row in shared:
        print(f"shared by {row['with']} and {row['file']}:")
        more = f"{row['normalised']:,} more but for case and punctuation; {row['texts']:,} texts"
        print(f"  {row['exact']:,} rows, {more}")
    if shared:
        print()
    if train is None:
        print("No format that training reads was recognised: see docs/training.md.")
        return
    usable = all(found.findings.usable for found in files)
    print(f"{'Train' if usable else 'Once the problems are solved, train'} with:\n  {train}")
    if reranker:
        print(f"Or a cross-encoder, which reads both texts at once, to rerank or score pairs:\n  {reranker}")


def draw_inspection(files: Sequence[InspectedFile]) -> Any:
    """A ``Figure``: for each file its lengths in tokens, with the limit, and in characters."""
    figure = new_figure((9, 3.2 * len(files)))
    panels = figure.subplots(len(files), 2, squeeze=False)
    for (left, right), found in zip(panels, files, strict=True):
        left.set_title(shorten(str(found.path), 60), fontsize=9, loc="left", parse_math=False)
        if not found.lengths or not found.lengths.tokens:
            right.set_axis_off()
            continue
        draw_histogram(left, found.lengths.tokens, found.lengths.limit)
        draw_histogram(right, found.lengths.characters, unit="characters")
        for axes in (left, right):
            axes.legend(fontsize=8)  # framed: it lies on the bars
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("inspect", __doc__)
    files_help = "train, then optionally dev and test; .gz files are decompressed"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files_help)
    parser.add_argument(
        "--model", metavar="M", help=f"name, folder, or owner/name on the Hub, for its tokenizer (default: {DEFAULT})"
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="the limit in tokens (default: the model's)")
    parser.add_argument(
        "--scale", type=score_scale, metavar="S", help="scores are 0 to S (default: inferred from the file)"
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help=f"draw the lengths to DIR/{PICTURE}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.plots:
        require()
        check_output(options.plots / PICTURE, *options.files, local_path(options.model))
    tokenizer = find_tokenizer(options.model, options.max_length)
    files = [inspect(path, tokenizer, options.scale, progress=True) for path in options.files]
    shared = compare_files(files)
    train, reranker = (training_command(files, options.model, options.max_length, kind) for kind in (False, True))
    if options.plots:
        save(draw_inspection(files), options.plots / PICTURE)
        say(f"wrote {options.plots / PICTURE}")
    with exiting(0 if all(found.findings.usable for found in files) else 1):
        if options.json:
            content = {"model": None if tokenizer is None else options.model or DEFAULT}
            content |= {"files": [found.summary() for found in files], "shared": shared}
            content |= {"command": train, "reranker": reranker}
            print(json.dumps(content, ensure_ascii=False))
        else:
            print_all(files, shared, train, reranker)


if __name__ == "__main__":
    run_command(main)
