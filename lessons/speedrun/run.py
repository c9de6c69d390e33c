"""From an empty folder to a search engine of your own, beside BM25; see ``SPEEDRUN.md``.

python -m lessons.speedrun                     # Ctrl-C keeps what it has learned
python -m lessons.speedrun --minutes 10        # more tables
python -m lessons.speedrun --search            # the search box again, over Python's docstrings
python -m lessons.speedrun --search ~/notes    # over a folder of yours
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from shutil import rmtree

import numpy as np
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from benchmarks import machine
from lessons import engine
from lessons.search import docstrings
from lessons.search.fusion import reciprocal_ranks
from lessons.speedrun import paired_table
from lessons.speedrun.data import read_data
from lessons.speedrun.judge import Judge, Likeness, unit
from lessons.speedrun.paired_table import LIMIT, Table
from lessons.speedrun.three_tables import SIZES, Tables
from lessons.speedrun.verify import commit
from minisbert.core import InputError
from minisbert.core.loop import Step
from minisbert.core.tokenizer import Tokenizer
from minisbert.evaluation import plots
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k
from minisbert.system.assets import asset
from minisbert.system.console import bounded

OUT = Path(__file__).resolve().parents[1] / "mine" / "speedrun"
LOOKS = 16  # steps between two looks at dev


def opponents(judge: Judge) -> dict[str, Likeness]:
    """What the run has to beat.

    MiniLM only if its weights are on this disk: the run itself needs no network.
    """
    found = {"BM25": judge.counted()}
    if asset(engine.MODEL).state() == "complete":
        found["MiniLM"] = judge.cosines(SentenceEncoder.load(engine.MODEL).encode)
    else:
        print(f"{engine.MODEL} is not on this disk, so the run is judged without it;", end=" ")
        print("lesson 01 fetches it")
    return found


def train(judge: Judge, rounds: int, seed: int) -> tuple[Tables, Likeness, dict[int, float]]:
    """Train a table of each size in each round -> all, their summed cosines, dev's scores."""
    data = read_data()
    tables: list[Table] = []
    curve: dict[int, float] = {}
    stopped = False
    sums: Likeness = dict.fromkeys(judge.queries, 0)

    def added(table: Table, *splits: str) -> Likeness:
        cosines = judge.cosines(table, splits)
        return {split: sums[split] + cosines[split] for split in cosines}

    def watch(steps: Iterable[Step], total: int, table: Table) -> Iterator[Step]:
        """A clock for all tables; Ctrl-C ends it and keeps what this table has learned."""
        nonlocal stopped
        clock.total = rounds * len(SIZES) * total
        try:
            for step in steps:
                clock.update()
                if step.number % LOOKS == 0:
                    curve[clock.n] = judge.ndcg(added(table, "dev"))["dev"]
                    clock.set_postfix_str(f"loss {step.loss:.2f}, dev {curve[clock.n]:.1f}")
                yield step
        except KeyboardInterrupt:
            stopped = True

    with tqdm(unit="step", dynamic_ncols=True) as clock:
        for number, pieces in product(range(rounds), SIZES):
            try:
                table = paired_table.train(replace(data, watch=watch), seed + number, pieces)
            except KeyboardInterrupt:  # before its first step
                if not tables:
                    raise
                break
            tables.append(table)
            sums = added(table, *judge.queries)
            if stopped:
                break
    return Tables(tables), sums, curve


def save(tables: Tables, out: Path) -> None:
    """A folder for each table, in the place of those of the last run."""
    rmtree(out / "tables", ignore_errors=True)
    for number, table in enumerate(tables.tables):
        folder = out / "tables" / str(number)
        folder.mkdir(parents=True)
        table.tokenizer.backend.save(str(folder / "tokenizer.json"))
        save_file({"rows": table.rows}, folder / "table.safetensors")


def load(out: Path) -> Tables:
    folders = sorted((out / "tables").glob("*"))
    if not folders:
        raise InputError(f"{out} has no table: run python -m lessons.speedrun first")
    tables = []
    for folder in folders:
        rows = load_file(folder / "table.safetensors")["rows"]
        tables.append(Table(Tokenizer.load(folder, LIMIT), rows))
    return Tables(tables)


def report(scores: dict[str, dict[str, float]], about: str) -> str:
    lines = ["# A speedrun", "", about, "", "| nDCG@10 x 100 | dev | test |", "|---|---|---|"]
    for name, found in scores.items():
        lines.append(f"| {name} | {found['dev']:.1f} | {found['test']:.1f} |")
    return "\n".join(lines) + "\n"


def run(minutes: int, seed: int, out: Path) -> None:
    """Opponents, tables under a clock, the joined engine, and a report with a plot."""
    print("reading docstrings, and judging the opponents", flush=True)
    judge = Judge()
    rivals = opponents(judge)
    scores = {name: judge.ndcg(likeness) for name, likeness in rivals.items()}
    said = ", ".join(f"{name} {found['dev']:.1f}" for name, found in scores.items())
    asked = f"{len(judge.queries['dev']):,} names, {len(judge.documents):,} sentences"
    print(f"to beat: {said} (nDCG@10 x 100 on dev: {asked})")
    started = time.process_time()
    tables, mine, curve = train(judge, minutes, seed)
    took = time.process_time() - started
    save(tables, out)
    scores["yours"] = judge.ndcg(mine)
    for name, likeness in rivals.items():
        ranks = {}
        for split, cosines in mine.items():
            ranks[split] = reciprocal_ranks(cosines) + reciprocal_ranks(likeness[split])
        scores[f"yours and {name}, reciprocal ranks"] = judge.ndcg(ranks)
    each = judge.ndcg_of_each(mine)
    gains = []
    for name, likeness in rivals.items():
        gains.append(f"yours - {name} on test: {judge.gain(each, judge.ndcg_of_each(likeness))}")
    if "MiniLM" in rivals:  # whose cosines are of the same kind
        added = {}
        for split, cosines in mine.items():
            added[split] = cosines / len(tables.tables) + rivals["MiniLM"][split]
        scores["yours and MiniLM, cosines added"] = judge.ndcg(added)
    cpu = machine.cpu()
    about = f"{cpu['cpu']}, {cpu['cores']} cores; commit {commit()}; seed {seed}; "
    about += f"{took:.0f} CPU seconds"
    text = report(scores, about) + "\n" + "\n".join(gains) + "\n"
    (out / "report.md").write_text(text, encoding="utf-8")
    draw(curve, scores, out)
    print(f"\n{text}\n{out} has the tables, this report and the curve")


def draw(curve: dict[int, float], scores: dict[str, dict[str, float]], out: Path) -> None:
    """Dev's score by step, with the opponents as level lines; left out without matplotlib."""
    label = "nDCG@10 x 100, dev"
    ends = [min(curve, default=0), max(curve, default=0)]
    runs = {"yours": {label: curve}}
    for name in ("BM25", "MiniLM"):
        if name in scores:
            runs[name] = {label: dict.fromkeys(ends, scores[name]["dev"])}
    try:
        plots.save(plots.draw_curves(runs, "speedrun"), out / "curve.png")
    except InputError as error:
        print(f"no curve: {error}")


# ----------------------------------------------------------------------------------- the search box


class Box(engine.Engine):
    """Lesson 22's engine with tables in the place of words, joined by reciprocal ranks."""

    beside_vectors = "tables"

    def __init__(self, chunks: list[engine.Chunk], tables: Tables):
        super().__init__(chunks)
        self.tables = tables
        self.rows = unit(tables([chunk.text for chunk in chunks]))

    def by_words(self, query: str) -> np.ndarray:
        count = min(engine.CANDIDATES, len(self.rows))
        _, best = top_k(unit(self.tables([query])), self.rows, count)
        return best[0]


def ask(out: Path, folder: Path | None) -> None:
    """A search box in the terminal; an empty line or Ctrl-D ends it."""
    tables = load(out)
    if folder:
        chunks = engine.chunks_to_search(folder, 20_000)
    else:
        entries = docstrings.read_entries()
        chunks = [engine.Chunk(entry.name, 0, entry.document) for entry in entries]
    print(f"encoding {len(chunks):,} texts", flush=True)
    box = Box(chunks, tables)
    print('Ask, such as "copy a file" or "how long until the timer ends"; an empty line ends.')
    try:
        while question := input("search> ").strip():
            engine.show(box.search(question))
    except EOFError:
        return


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.speedrun", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--minutes", type=int, choices=(1, 3, 10), default=1, help="three tables each (default: 1)"
    )
    parser.add_argument("--seed", type=bounded(int, 0), default=0)
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for the tables and the report"
    )
    parser.add_argument(
        "--search", nargs="?", const=True, metavar="FOLDER", help="only open the search box"
    )
    options = parser.parse_args(arguments)
    if not options.search:
        run(options.minutes, options.seed, options.out)
    if options.search or sys.stdin.isatty():
        ask(options.out, Path(options.search) if isinstance(options.search, str) else None)
