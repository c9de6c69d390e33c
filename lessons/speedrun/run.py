"""From nothing to a search engine of your own, in ten CPU minutes, with a report card and a search box.

python -m lessons.speedrun                     # ten minutes; Ctrl-C keeps what there is
python -m lessons.speedrun --minutes 2         # a small one
python -m lessons.speedrun --search            # open the box again, over what the last run has left
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from lessons.search import docstrings
from lessons.search.bm25 import bm25_scores
from lessons.speedrun import steps
from lessons.speedrun.judge import Encode, Judge, Scores, unit
from lessons.speedrun.whitened import whitening
from minisbert.core import InputError
from minisbert.core.loop import Step
from minisbert.data.datasets import load_scored_pairs
from minisbert.models.masked_language_model import MaskedLanguageModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k
from minisbert.system.assets import asset
from minisbert.system.console import bounded
from minisbert.system.devices import choose_device, choose_dtype

OUT = Path(__file__).resolve().parents[1] / "mine" / "speedrun"
READING, PAIRS = 0.35, 0.5  # shares of the time; the rest goes to the vocabulary and the judge
QUESTIONS = ("A man is playing a [MASK].", "Two dogs are [MASK] in the snow.", "Return a [MASK] of the array.")
GUESSING, SHOWN = 100, 20  # steps between two looks at the guesses, and between two points of the curve
BAR = 40  # characters of the curve at its start
RESULTS = 3
RIVAL = "all-MiniLM-L6-v2"


# ---------------------------------------------------------------------------------------------- training


def show_guesses(model: MaskedLanguageModel) -> None:
    for question in QUESTIONS:
        guesses = ", ".join(f"{word} {share:.2f}" for word, share in model.fill_mask(question, 3))
        print(f"      {question:36} {guesses}", flush=True)


def follow(run: Iterator[Step], model: MaskedLanguageModel, guesses: bool) -> list[float]:
    """Make the steps of a run and draw its losses as bars; Ctrl-C ends the run and keeps the model."""
    losses: list[float] = []
    try:
        for step in run:
            losses.append(step.loss)
            if step.number % SHOWN == 0:
                loss = sum(losses[-SHOWN:]) / SHOWN
                bar = "█" * round(BAR * loss / losses[0])
                print(f"step {step.number:5}  loss {loss:6.3f}  {bar}", flush=True)
            if guesses and step.number % GUESSING == 0:
                show_guesses(model)
    except KeyboardInterrupt:
        model.eval()
        print(f"stopped after {len(losses)} steps; what it has learned stays")
    if losses:
        print(f"{len(losses)} steps, loss {losses[0]:.3f} -> {sum(losses[-SHOWN:]) / len(losses[-SHOWN:]):.3f}")
    return losses


def remembering(encode: Encode) -> Encode:
    """The same vectors again without encoding a list of texts twice."""
    vectors: dict[tuple[str, ...], np.ndarray] = {}

    def encode_once(texts: Sequence[str]) -> np.ndarray:
        key = tuple(texts)
        if key not in vectors:
            vectors[key] = unit(encode(texts))
        return vectors[key]

    return encode_once


def whitened(encode: Encode, texts: list[str]) -> Encode:
    """Encode, then make all principal axes of some texts' vectors equally long (lesson 24)."""
    change = whitening(unit(encode(texts)))
    return lambda some: unit(change(unit(encode(some))))


class Report:
    """The report card: the scores after each step, and the seconds of CPU up to there."""

    def __init__(self, judge: Judge, sample: list[str]):
        self.judge, self.sample = judge, sample
        self.rows: list[tuple[str, float, Scores]] = []
        self.judging = 0.0

    def enter(self, name: str, encode: Encode) -> None:
        """Judge vectors and show how they do; the judge's own seconds are not the run's."""
        before = time.process_time()
        scores = self.judge.scores(encode)
        after = time.process_time()
        seconds = before - self.judging
        self.judging += after - before
        self.rows.append((name, seconds, scores))
        print(f"{name}: search {scores.search_test:.1f}, STS-B {scores.sts_test:.1f} (test)", flush=True)

    def table(self) -> str:
        lines = ["| what | CPU seconds | search dev | search test | STS-B dev | STS-B test | gained, search test |"]
        lines.append("|---|---|---|---|---|---|---|")
        last = None
        for name, seconds, scores in self.rows:
            gained = "" if last is None else f"{scores.search_test - last:+.1f}"
            lines.append(f"| {name} | {seconds:.0f} | {scores.row()} | {gained} |")
            last = scores.search_test
        dev, test = self.judge.counting()
        lines.append(f"| *BM25, which counts words* | | {dev:.1f} | {test:.1f} | | | |")
        return "\n".join(lines)


def run(minutes: float, device: torch.device, out: Path) -> None:
    """The four steps, the report card, and the folder that ``--search`` opens."""
    captions = list(dict.fromkeys(text for row in load_scored_pairs("stsb", "train") for text in row.texts))
    dtype, _ = choose_dtype("auto", device)
    torch.manual_seed(0)
    print("1. A vocabulary from text that is on this disk, and an encoder of dice.")
    corpus = steps.read_corpus(captions)
    model = steps.new_encoder(corpus.texts).to(device)
    print(f"   {len(corpus.texts):,} texts, {len(corpus.names):,} names with their sentences, {steps.PIECES:,} pieces")
    judge = Judge()
    report = Report(judge, captions[::4] + judge.documents)
    encode = remembering(model.encode)
    report.enter("random weights", encode)
    report.enter("the same, whitened", whitened(encode, report.sample))

    guessing = f"ln {steps.PIECES} = {math.log(steps.PIECES):.2f}"
    print(f"2. Reading: it guesses hidden words. Without an opinion its loss is {guessing}.")
    reading = steps.read(model, corpus.texts, 60 * minutes * READING, dtype)
    curves = {"reading": follow(reading, model, guesses=True)}
    show_guesses(model)
    report.enter("after reading, whitened", whitened(model.encode, report.sample))

    print("3. Pairs: which of the batch's sentences describes this name? And each caption finds itself.")
    left, right = corpus.names + captions, corpus.sentences + captions
    pairs = steps.pair(model, left, right, 60 * minutes * PAIRS, dtype)
    curves["pairs"] = follow(pairs, model, guesses=False)
    encode = remembering(model.encode)
    report.enter("after pairs, as it is", encode)
    report.enter("after pairs, whitened", whitened(encode, report.sample))

    model.to("cpu").save(out / "model")
    table = report.table()
    (out / "report.md").write_text(f"# Report card\n\n{table}\n", encoding="utf-8")
    (out / "curves.json").write_text(json.dumps(curves), encoding="utf-8")
    print(f"\n{table}\n\nmodel, report card and curves: {out}")


# ----------------------------------------------------------------------------------------- the search box


class Box:
    """Answers of several engines to one question, over the docstrings of Python's standard library."""

    def __init__(self, out: Path):
        if not (out / "model").is_dir():
            raise InputError(f"{out} has no model: run python -m lessons.speedrun first")
        entries = docstrings.read_entries()
        self.names = [entry.name for entry in entries]
        self.documents = [entry.document for entry in entries]
        self.words = [docstrings.terms(document) for document in self.documents]
        encode = SentenceEncoder.load(out / "model").encode
        self.engines = {"yours": whitened(encode, self.documents)}
        if asset(RIVAL).state() == "complete":
            self.engines["MiniLM, after a billion pairs"] = SentenceEncoder.load(RIVAL).encode
        print(f"encoding {len(entries):,} docstrings ...", flush=True)
        self.vectors = {name: unit(engine(self.documents)) for name, engine in self.engines.items()}

    def answer(self, question: str) -> dict[str, list[int]]:
        """The places of the best documents by each engine."""
        scores = bm25_scores([docstrings.terms(question)], self.words)[0]
        found = {"BM25": [int(i) for i in np.argsort(-scores, kind="stable")[:RESULTS] if scores[i] > 0]}
        for name, engine in self.engines.items():
            found[name] = top_k(unit(engine([question])), self.vectors[name], RESULTS)[1][0].tolist()
        return found

    def show(self, question: str) -> None:
        for name, places in self.answer(question).items():
            print(f"  {name}")
            for place in places:
                print(f"    {self.names[place]:40.40}  {self.documents[place][:76]}")
            if not places:
                print("    no word of it is in any docstring")


def ask(out: Path) -> None:
    """A search box in the terminal; an empty line or Ctrl-D ends it."""
    box = Box(out)
    print('Ask for something of Python, such as "copy a file" or "how long until the timer ends"; an empty line ends.')
    while True:
        try:
            question = input("search> ").strip()
        except EOFError:
            question = ""
        if not question:
            return
        box.show(question)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lessons.speedrun", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=bounded(float, 0.01), default=10, help="of CPU, or of the clock on a GPU")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for the model and the report card")
    parser.add_argument("--search", action="store_true", help="only open the search box over what --out holds")
    options = parser.parse_args(arguments)
    if not options.search:
        options.out.mkdir(parents=True, exist_ok=True)
        run(options.minutes, choose_device(options.device), options.out)
    if options.search or sys.stdin.isatty():
        ask(options.out)
    else:
        print("python -m lessons.speedrun --search opens the search box")
