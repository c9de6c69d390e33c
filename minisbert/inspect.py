"""Inspect files of training data before training on them.

    python -m minisbert.inspect train.tsv
    python -m minisbert.inspect train.tsv dev.tsv test.tsv --plots pictures
    python -m minisbert.inspect triplets.jsonl.gz --model bert-base-uncased --max-length 128 --json

It says which format a file has, what is wrong with it and where, what the files share, and how to train on them.
The exit code is 1 if there is a problem, which training would refuse; warnings leave it at 0.
"""

import json
from pathlib import Path

from minisbert.data.findings import NOTE, PROBLEM, WARNING, Finding
from minisbert.diagnosis.inspected_file import InspectedFile
from minisbert.diagnosis.inspection import command, compare, inspect
from minisbert.diagnosis.inspection_plot import inspection
from minisbert.evaluation.plots import require
from minisbert.models.folders import find_model
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.assets import asset
from minisbert.system.console import check_options, command_parser, exiting, run_command, say
from minisbert.system.files import check_output

DEFAULT = "all-MiniLM-L6-v2"
PICTURE = "inspection.png"
BAR = 24  # characters of the longest bar


def load_tokenizer(model: str | None, max_length: int | None) -> Tokenizer | None:
    """The tokenizer of a model; None, with a message, if none is named and the default model is not there.

    A download of 90 MB is too much for counting tokens, so the default model is not fetched.
    """
    folder = asset(DEFAULT).folder
    if model is None and not (folder / "tokenizer.json").is_file():
        say(
            f"lengths in tokens are not counted because {DEFAULT} is missing: "
            f"python -m minisbert.assets fetch {DEFAULT}, or give --model FOLDER"
        )
        return None
    return Tokenizer.load(folder if model is None else find_model(model), max_length)


def print_file(found: InspectedFile) -> None:
    """The report on one file."""
    content = found.summary()
    print(f"{found.path}: {found.name}, {found.layout}")
    print(f"  {'rows':<9}{content['rows']:,}")
    if content["texts"]:
        print(f"  {'texts':<9}{content['texts']:,}, {content['distinct_texts']:,} distinct")
    if tokens := content.get("tokens"):
        print(
            f"  {'tokens':<9}median {tokens['median']:g}, 95 % up to {tokens['p95']:g}, longest {tokens['longest']:,}"
        )
        cut = f"cuts {tokens['cut']:,} of the texts ({100 * tokens['cut_share']:.1f} %)"
        print(f"  {'':9}the limit of {tokens['limit']:,} {cut if tokens['cut'] else 'cuts none'}")
        if unknown := content["unknown_words"]:
            words = ", ".join(f"{count:,} {script}" for script, count in unknown.items())
            print(f"  {'[UNK]':<9}{words}")
    if labels := content.get("labels"):
        print(f"  {'labels':<9}{labels['min']:g} to {labels['max']:g}, mean {labels['mean']:.3g}")
        print_bars(labels["counts"])
    for level in (PROBLEM, WARNING, NOTE):
        for finding in found.findings.values():
            if finding.level == level:
                print_finding(finding)
    if not found.findings:
        print("  no problem found")
    print()


def print_bars(counts: dict[str, int]) -> None:
    """A bar for each label: ``entailment   183,416  ####``."""
    width = max(map(len, counts))
    digits = max(len(f"{count:,}") for count in counts.values())
    most = max(counts.values())
    for name, count in counts.items():
        print(f"  {'':9}{name:<{width}}  {count:>{digits},}  {'#' * round(BAR * count / most)}".rstrip())


def print_finding(finding: Finding) -> None:
    count = f" ({finding.count:,})" if finding.count > 1 else ""
    print(f"  {finding.level:<9}{finding.name}{count}: {finding.what}")
    for place in finding.places:
        print(f"  {'':9}  {place}")
    print(f"  {'':9}  -> {finding.remedy}")


def print_shared(shared: list[dict]) -> None:
    """A line for each two files."""
    for row in shared:
        print(f"shared by {row['with']} and {row['file']}:")
        print(
            f"  {row['exact']:,} rows, {row['normalised']:,} more but for case and punctuation; {row['texts']:,} texts"
        )
    if shared:
        print()


def print_command(files: list[InspectedFile], line: str | None) -> None:
    if line is None:
        print("No format that training reads was recognised: see docs/training.md.")
    else:
        usable = all(found.findings.usable for found in files)
        print(f"{'Train' if usable else 'Once the problems are solved, train'} with:\n  {line}")


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("inspect", __doc__)
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="train, then optionally dev and test; .gz files are decompressed",
    )
    parser.add_argument("--model", metavar="M", help=f"name or folder, for its tokenizer (default: {DEFAULT})")
    parser.add_argument("--max-length", type=int, metavar="N", help="the limit in tokens (default: the model's)")
    parser.add_argument("--scale", type=float, metavar="S", help="scores are 0 to S (default: inferred from the file)")
    parser.add_argument("--plots", type=Path, metavar="DIR", help=f"draw lengths and labels to DIR/{PICTURE}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    check_options(options, scale="above 0 and finite")
    if options.plots:
        require()
        check_output(options.plots / PICTURE, *options.files)
    tokenizer = load_tokenizer(options.model, options.max_length)
    files = [inspect(path, tokenizer, options.scale, progress=True) for path in options.files]
    shared = compare(files)
    train = command(files, options.model, options.max_length)
    if options.plots:
        inspection(files, options.plots / PICTURE)
        say(f"wrote {options.plots / PICTURE}")
    with exiting(0 if all(found.findings.usable for found in files) else 1):
        if options.json:
            content = {"model": None if tokenizer is None else options.model or DEFAULT}
            content |= {"files": [found.summary() for found in files], "shared": shared, "command": train}
            print(json.dumps(content, ensure_ascii=False))
            return
        for found in files:
            print_file(found)
        print_shared(shared)
        print_command(files, train)


if __name__ == "__main__":
    run_command(main)
