"""Inspect files of training data before training on them.

    minisbert inspect train.tsv
    minisbert inspect train.tsv dev.tsv test.tsv --plots pictures
    minisbert inspect triplets.jsonl.gz --model bert-base-uncased --max-length 128 --json

It says which format a file has, what is wrong with it and where, what the files share, and how to train on them.
The exit code is 1 if there is a problem, which training refuses or learns nothing from; warnings leave it at 0.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minisbert.system.assets import asset, local_path
from minisbert.system.command_line import command_parser
from minisbert.system.console import exiting, run_command, say, score_scale
from minisbert.system.files import check_output

DEFAULT = "all-MiniLM-L6-v2"
PICTURE = "inspection.png"
FINDING_LEVELS = ("problem", "warning", "note")  # the worst first

parser = command_parser("inspect", __doc__)
files_help = "train, then optionally dev and test; .gz files are decompressed"
parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files_help)
parser.add_argument(
    "--model", metavar="M", help=f"name, folder, or owner/name on the Hub, for its tokenizer (default: {DEFAULT})"
)
parser.add_argument("--max-length", type=int, metavar="N", help="the limit in tokens (default: the model's)")
parser.add_argument("--scale", type=score_scale, metavar="S", help="scores are 0 to S (default: as the file shows)")
parser.add_argument("--plots", type=Path, metavar="DIR", help=f"draw the lengths to DIR/{PICTURE}")
parser.add_argument("--json", action="store_true", help="print one JSON object")


def report(content: dict[str, Any]) -> Iterator[str]:
    """Yield the lines for people of what ``--json`` prints as one object."""
    for file in content["files"]:
        yield f"{file['path']}: {file['form']}"
        yield f"  rows     {file['rows']:,}"
        yield f"  texts    {file['texts']:,}, {file['distinct_texts']:,} distinct"
        if "tokens" in file:
            tokens = file["tokens"]
            yield f"  tokens   median {tokens['median']:g}, 95 % up to {tokens['p95']:g}, longest {tokens['longest']:,}"
            cut = f"{tokens['cut']:,} of the texts ({100 * tokens['cut_share']:.1f} %)"
            yield f"           the limit of {tokens['limit']:,} cuts {cut}"
        labels = file.get("labels", {})
        if "mean" in labels:
            yield f"  labels   {labels['min']:g} to {labels['max']:g}, mean {labels['mean']:.3g}"
        for name, count in labels.get("counts", {}).items():
            yield f"  label    {name}: {count:,}"
        for finding in sorted(file["findings"], key=lambda finding: FINDING_LEVELS.index(finding["level"])):
            yield f"  {finding['level']:<9}{finding['name']} ({finding['count']:,}): {finding['what']}"
            for place in (*finding["places"], f"-> {finding['remedy']}"):
                yield f"             {place}"
        if not file["findings"]:
            yield "  no problem found"
        yield ""
    for row in content["shared"]:
        yield f"shared by {row['with']} and {row['file']}:"
        more = f"{row['normalised']:,} more but for case and punctuation; {row['texts']:,} texts"
        yield f"  {row['exact']:,} rows, {more}"
        yield ""
    if content["command"] is None:
        yield "No format that training reads was recognised: see docs/training.md."
        return
    is_usable = all(file["usable"] for file in content["files"])
    yield "Train with:" if is_usable else "Once the problems are solved, train with:"
    yield f"  {content['command']}"


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    from minisbert.diagnosis.inspection import compare_files, inspect, training_command
    from minisbert.evaluation import plots
    from minisbert.loading import load_tokenizer

    if options.plots:
        plots.require()
        check_output(options.plots / PICTURE, *options.files, local_path(options.model or DEFAULT))
    tokenizer = None
    default = asset(DEFAULT).folder
    if options.model is not None or (default / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(options.model or default, options.max_length)
    else:  # a download of 90 MB is too much for counting tokens
        say(
            f"lengths in tokens are not counted because {DEFAULT} is missing: "
            f"minisbert assets fetch {DEFAULT}, or give --model FOLDER"
        )
    files = [inspect(path, tokenizer, options.scale, progress=True) for path in options.files]
    content: dict[str, Any] = {"model": None if tokenizer is None else options.model or DEFAULT}
    content["shared"] = compare_files(files)  # before the summaries, because it adds findings
    content["files"] = [file.summary() for file in files]
    content["command"] = training_command(files, options.model, options.max_length)
    if options.plots:
        unit = "tokens" if tokenizer else "characters"
        lengths = {str(file.path): file.tokens or [len(text) for text in file.texts] for file in files}
        plots.save(plots.draw_lengths(lengths, unit), options.plots / PICTURE)
        say(f"wrote {options.plots / PICTURE}")
    with exiting(0 if all(file.usable for file in files) else 1):
        if options.json:
            print(json.dumps(content, ensure_ascii=False))
        else:
            print("\n".join(report(content)))


if __name__ == "__main__":
    run_command(main)
