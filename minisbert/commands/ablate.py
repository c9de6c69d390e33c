"""Repeat a table of SBERT or SimCSE: vary one setting, train each value with several seeds, print both scores.

    minisbert ablate pooling                                    SBERT, table 6: mean, max, cls on STS-B
    minisbert ablate concat --data snli.jsonl --limit 10000     SBERT, table 6: the input of the classifier
    minisbert ablate dropout --data sentences.txt --epochs 2    SimCSE: the dropout that makes two views
    minisbert ablate temperature --data sentences.txt --seeds 1,2,3,4,5 -- --batch-size 128
    minisbert ablate augmentation --data sentences.txt --synonyms words.txt     SimCSE, table 1

Flags after ``--`` are passed on to ``python -m minisbert.train``. Each cell is a run in its own folder under --out,
without the weights. Finished cells are not run again, so an interrupted table continues where it stopped.
"""

import argparse
import json
import sys

from minisbert.commands.options import add_threads_option, command_parser
from minisbert.core import InputError
from minisbert.system.console import say
from minisbert.system.devices import use_threads
from minisbert.training.ablation import PAPERS, TABLES, is_done, make_cells, markdown, run_cells, summarize
from minisbert.training.distributed import read_environment, run_distributed_command


def seed_list(text: str) -> list[int]:
    """An argparse type: ``42,43,44``."""
    found = [int(part) for part in text.split(",")]
    if len({*found}) < len(found) or min(found) < 0:
        raise ValueError
    return found


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The options before ``--``, and the flags of training after it."""
    parser = command_parser("ablate", __doc__)
    parser.usage = "%(prog)s TABLE [options] [-- flags of minisbert.train]"
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument(
        "--data", metavar="FILE", help="NLI rows for concat and the second half of pooling, else plain sentences"
    )
    parser.add_argument(
        "--synonyms", metavar="FILE", help="for augmentation: lines of words with one meaning, as in big, large, huge"
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name, folder, or owner/name on the Hub (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=seed_list, default=[42, 43, 44], help="default: 42,43,44")
    parser.add_argument("--limit", metavar="ROWS", help="read only the first ROWS training rows")
    parser.add_argument("--epochs", help="default: from the recipe, see minisbert.train --recipe list")
    parser.add_argument("--max-steps", metavar="STEPS", help="stop each run after STEPS steps")
    parser.add_argument("--out", metavar="FOLDER", help="folder of the runs (default: runs/ablate/TABLE)")
    parser.add_argument("--overwrite", action="store_true", help="replace cells that were run with other settings")
    add_threads_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    arguments = sys.argv[1:] if arguments is None else arguments
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_args(arguments[:cut]), arguments[cut + 1 :]


def main(arguments: list[str] | None = None) -> None:
    options, train_flags = parse(arguments)
    if (size := read_environment()[1]) > 1:
        raise InputError(f"torchrun started {size} processes, an ablation runs in one: minisbert ablate ...")
    use_threads(options.threads)
    cells = make_cells(options, train_flags)
    done = {cell.folder for cell in cells if is_done(cell, options.overwrite)}
    try:
        failed = run_cells(cells, done)
    except KeyboardInterrupt:
        say(f"{len(done)} of {len(cells)} cells are done; run the same command to continue")
        raise
    if not done:
        raise InputError(f"all {len(cells)} cells failed: {next(iter(failed.values()))}")
    source, summaries = PAPERS[options.table], summarize(cells, done)
    if options.json:
        about = {"table": options.table, "model": options.model, "scale": "x 100", "source": source}
        print(json.dumps(about | {"rows": summaries, "failed": {str(key): value for key, value in failed.items()}}))
    else:
        print(f"Spearman x 100 on dev, {options.model}, before and after training: mean ± sd over seeds\n")
        print(markdown(options.table, summaries))
        print(f"\npublished: {source}")
    if failed:
        raise InputError(f"{len(failed)} of {len(cells)} cells failed; run the same command to retry them")


if __name__ == "__main__":
    run_distributed_command(main)
