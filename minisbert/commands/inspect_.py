"""Inspect files of training data before training on them.

It says which columns are read; counts rows, texts, tokens and labels; names the rows that training
refuses or skips, and those that repeat; counts the rows that are in train and in dev; and prints
the command that trains. The exit code is 1 if training would refuse a file.

Examples:
  minisbert inspect train.tsv
  minisbert inspect train.tsv dev.tsv test.tsv --plots pictures
  minisbert inspect triplets.jsonl.gz --model bert-base-uncased --max-length 128 --json
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.system.assets import asset, local_path
from minisbert.system.console import (
    command_parser,
    escaped,
    exiting,
    print_json,
    say,
    score_scale,
)
from minisbert.system.files import check_no_link, check_output

if TYPE_CHECKING:
    from minisbert.diagnosis.inspection import InspectedFile

DEFAULT = "all-MiniLM-L6-v2"
PICTURE = "inspection.png"
ROLES = ("train", "dev", "test")  # of the files, in their order
NAMED_LABELS = 10  # how many labels are counted for people; --json has all
NAMED_PLACES = 3  # how many rows of each finding are named
# What ``--json`` lists for each file, and what it means.
FINDINGS = {
    "problems": "training stops",
    "skipped": "rows with an empty text or without a label",
    "repeated": "rows with the texts and the label of an earlier one",
}

parser = command_parser("inspect", __doc__)
parser.add_argument(
    "files",
    nargs="+",
    type=Path,
    metavar="FILE",
    help="the file for training, then optionally those for dev and test; .gz is decompressed",
)
parser.add_argument(
    "--model",
    metavar="M",
    help=f"name, folder, or owner/name on the Hub, for its tokenizer (default: {DEFAULT})",
)
parser.add_argument(
    "--max-length",
    type=int,
    metavar="N",
    help="count as cut what exceeds N tokens (default: the model's limit)",
)
parser.add_argument(
    "--scale",
    type=score_scale,
    metavar="S",
    help="the highest possible score (default: 1, 5, 10 or 100, the first that none exceeds)",
)
parser.add_argument(
    "--plots", type=Path, metavar="DIR", help=f"draw lengths and scores to DIR/{PICTURE}"
)
shared.add_table_options(parser, "texts, then their label")
parser.add_argument("--json", action="store_true", help="print one JSON object")


def report(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for people of what ``--json`` prints as one object."""
    for file in content["files"]:
        yield from report_of_file(file)
        yield ""
    for row in content["shared"]:
        rows = f"{row['rows']:,} rows are"
        if row["rows"] == 1:
            rows = "1 row is"
        yield f"{row['file']}: {rows} also in {row['with']}"
    if content["command"] is not None:
        yield f"Train with:\n  {content['command']}"


def report_of_file(file: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one file: what is read, the counts, and the findings."""
    yield file["read"] or f"{file['path']}: no rows that training reads"
    yield f"  texts    {file['texts']:,}, {file['distinct_texts']:,} distinct"
    if "tokens" in file:
        tokens = file["tokens"]
        yield (
            f"  tokens   median {tokens['median']:g}, 95 % up to {tokens['p95']:g}, "
            f"longest {tokens['longest']:,}"
        )
        percent = 100 * tokens["cut"] / file["texts"]
        yield (
            f"           the limit of {tokens['limit']:,} cuts {tokens['cut']:,} of the texts "
            f"({percent:.1f} %)"
        )
    if "scores" in file:
        scores = file["scores"]
        yield f"  scores   {scores['min']:g} to {scores['max']:g}, mean {scores['mean']:.3g}"
    labels = list(file["labels"].items())
    for name, count in labels[:NAMED_LABELS]:
        yield f"  label    {name}: {count:,}"
    if len(labels) > NAMED_LABELS:
        yield f"  label    and {len(labels) - NAMED_LABELS:,} more"
    for name, meaning in FINDINGS.items():
        if file[name]:
            yield f"  {name} ({len(file[name]):,}): {meaning}"
            for place in file[name][:NAMED_PLACES]:
                yield f"             {place}"


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)

    from minisbert.diagnosis.inspection import inspect, overlap, training_command
    from minisbert.evaluation import plots
    from minisbert.loading import load_tokenizer

    if options.plots:
        plots.require()
        check_output(options.plots / PICTURE, *options.files, local_path(options.model or DEFAULT))
        check_no_link(options.plots / PICTURE)

    # Without --model the default one counts tokens, unless it would have to be fetched: 90 MB.
    tokenizer = None
    default = asset(DEFAULT).folder
    if options.model is not None or (default / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(options.model or default, options.max_length)
    else:
        say(
            f"tokens are not counted because {DEFAULT} is missing: minisbert assets fetch "
            f"{DEFAULT}, or give --model"
        )

    files = []
    scale = options.scale
    for i, path in enumerate(options.files):
        # A fourth file and those behind it are for testing, too.
        role = ROLES[min(i, 2)]
        file = inspect(path, tokenizer, scale, role, options.quotes, options.columns)
        files.append(file)
        if i == 0 and file.table is not None:
            scale = file.table.scale  # training divides the scores of dev and test by it, too

    model = None
    if tokenizer is not None:
        model = options.model or DEFAULT
    content: dict[str, Any] = {
        "model": model,
        "files": [file.summary() for file in files],
        "shared": [overlap(files[0], file) for file in files[1:]],
        "command": training_command(files, options.model, options.max_length),
    }

    if options.plots:
        limit = None
        if tokenizer is not None:
            limit = tokenizer.limit
        plots.save(draw_files(files, limit), options.plots / PICTURE)
        say(f"wrote {options.plots / PICTURE}")

    exit_code = 0
    if any(file.problems for file in files):
        exit_code = 1
    with exiting(exit_code):
        if options.json:
            print_json(content)
        else:
            print(escaped("\n".join(report(content))))


def draw_files(files: Sequence["InspectedFile"], limit: int | None) -> Any:
    """Draw the lengths and scores of files: lengths in tokens if they have a ``limit``."""
    from minisbert.evaluation import plots

    unit = "characters"
    if limit is not None:
        unit = "tokens"
    lengths = {}
    scores = {}
    for file in files:
        name = str(file.path)
        lengths[name] = file.tokens
        if limit is None:
            lengths[name] = [len(text) for text in file.texts]
        scores[name] = file.scores
    return plots.draw_histograms(lengths, unit, scores, limit)
