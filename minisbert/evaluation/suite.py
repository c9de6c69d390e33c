"""Evaluate on the STS suite, as the papers since SBERT report it.

The suite is STS12 to STS16, the STS Benchmark and SICK-R. The score of a year is Spearman's
correlation over all pairs of its sets together ("all"; Gao et al. 2021, appendix B, compare it with
the mean of the sets). SICK-R is given twice: for the 4,927 pairs of its test split, as papers
report it, and for all 9,927 pairs, as MTEB does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from minisbert.core import InputError
from minisbert.data.rows import ScoredPair, load_scored_pairs
from minisbert.data.tables import file_lines
from minisbert.data.values import parse_score
from minisbert.evaluation.evaluators import correlate, encode_pairs, row_scores
from minisbert.models.text_encoder import TextEncoder
from minisbert.system.assets import asset, ensure, problems
from minisbert.system.reading import reading

# STS13 lacks its SMT set, whose licence forbids copies, here as in the papers.
YEARS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK_FILES = {
    "test": "SICK_test_annotated.txt",
    "train": "SICK_train.txt",
    "trial": "SICK_trial.txt",
}
AVERAGED = (*YEARS, "STS-B", "SICK-R")  # the tasks of SimCSE's table, in its order
# The asset with the files of each task.
TASK_ASSETS = {
    "STS12": "sts12",
    "STS13": "sts13",
    "STS14": "sts14",
    "STS15": "sts15",
    "STS16": "sts16",
    "STS-B": "stsb",
    "SICK-R": "sick",
}
HIGHEST_SCORE = 5  # in all of them
SICK_ALL = "SICK-R, all"


@dataclass(frozen=True)
class Task:
    """Scored pairs by set, and the pairs that the score is computed from, in words."""

    name: str
    protocol: str
    sets: dict[str, list[ScoredPair]]

    @property
    def pairs(self) -> list[ScoredPair]:
        """The pairs of all sets, one set after the other."""
        everything = []
        for pairs in self.sets.values():
            everything += pairs
        return everything


# ---------------------------------------------------------------------------------------- reading


def load_suite() -> tuple[list[Task], dict[str, str]]:
    """Load the tasks that are there or can be fetched, and the reasons for the others, by name.

    Raises ``InputError`` for a folder with a missing or changed file, and for a file that cannot be
    read.
    """
    tasks: list[Task] = []
    missing: dict[str, str] = {}
    for name in AVERAGED:
        asset_name = TASK_ASSETS[name]
        folder = asset(asset_name).folder
        if not folder.exists():
            try:
                ensure(asset_name)
            except InputError as error:
                reason = str(error).splitlines()[0]  # ensure has printed the rest
                missing[name] = reason.removesuffix(":")
                continue
        # A changed file would give another score without a word, so every hash is compared.
        faults = problems(asset(asset_name))
        if faults:
            raise InputError(f"{faults[0]}; fetch it again: minisbert assets fetch {asset_name}")
        tasks += load_task(name, folder)
    return tasks, missing


def load_task(name: str, folder: Path) -> list[Task]:
    """Load the task of that name, and for SICK-R the one with all pairs too."""
    if name == "STS-B":
        return [Task(name, "test split", {"test": load_scored_pairs("stsb", "test")})]
    if name == "SICK-R":
        return load_sick(folder)
    sets = {}
    for name_of_set in YEARS[name]:
        if name == "STS16":
            # score, sentence1, sentence2, sources
            pairs = read_pairs(folder / f"{name_of_set}.test.tsv")
        else:
            gold = folder / f"STS.gs.{name_of_set}.txt"
            pairs = read_pairs(folder / f"STS.input.{name_of_set}.txt", gold=gold)
        sets[name_of_set] = pairs
    return [Task(name, f"all pairs of {len(sets)} sets", sets)]


def load_sick(folder: Path) -> list[Task]:
    """Load SICK-R as papers report it, and with all of its pairs."""
    sets = {}
    for split, file in SICK_FILES.items():
        # pair_ID, sentence_A, sentence_B, relatedness from 1 to 5, under a header
        sets[split] = read_pairs(folder / file, (3, 1, 2), header=1)
    papers = Task("SICK-R", "test split, as in SimCSE", {"test": sets["test"]})
    everything = Task(SICK_ALL, "train, trial and test, as in MTEB", sets)
    return [papers, everything]


def read_pairs(
    path: Path, columns: Sequence[int] = (0, 1, 2), header: int = 0, gold: Path | None = None
) -> list[ScoredPair]:
    """Read the ``columns`` of score, sentence1 and sentence2. A blank score means unscored, not 0.

    If the scores are in ``gold``, line by line, they come before the cells of ``path``.
    """
    rows = [line.split("\t") for _, line in file_lines(path)]
    if gold is not None:
        scores = [line for _, line in file_lines(gold)]
        with reading(path):  # ``strict`` raises ValueError if a line has no score
            rows = [[score, *cells] for score, cells in zip(scores, rows, strict=True)]

    pairs = []
    with reading(gold or path) as at:
        for at.line, cells in enumerate(rows[header:], header + 1):
            if len(cells) <= max(columns):
                raise ValueError(f"{len(cells)} columns; a score and two sentences are needed")
            score, first, second = [cells[i].strip() for i in columns]
            value = parse_score(score)
            if value is None:
                continue
            if not 0 <= value <= HIGHEST_SCORE:
                raise ValueError(f"the score {score} is not on the scale of 0 to {HIGHEST_SCORE}")
            pairs.append(ScoredPair(first, second, value))
    return pairs


# ------------------------------------------------------------------------------------- evaluation


def evaluate_suite(
    encoder: TextEncoder, tasks: Sequence[Task], progress: bool = False
) -> list[dict[str, Any]]:
    """Correlate the model's own similarity with the scores of each task, by Spearman, in -1..1.

    Returns a dict for each task: ``spearman`` is that of all pairs, ``sets`` has each set's,
    ``mean`` and ``weighted_mean`` are over the sets, the latter weighted by their pairs.
    """
    # In one call, so that each of the sentences that tasks share is encoded once.
    firsts = []
    seconds = []
    for task in tasks:
        for pair in task.pairs:
            firsts.append(pair.sentence1)
            seconds.append(pair.sentence2)
    similarity = encoder.similarity_fn_name
    u, v = encode_pairs(encoder, firsts, seconds, show_progress_bar=progress)
    values = row_scores(encoder, u, v, similarity)  # (N,), those of one task after those of another

    lines = []
    start = 0
    for task in tasks:
        end = start + len(task.pairs)
        lines.append(task_scores(task, values[start:end], similarity))
        start = end
    return lines


def task_scores(task: Task, values: np.ndarray, similarity: str) -> dict[str, Any]:
    """Score one task whose pairs, in the order of ``task.pairs``, have these similarities, (N,)."""
    what = f"{task.name}: {similarity} similarity against the scores"
    human = np.array([pair.score for pair in task.pairs])  # (N,)
    sets = {}
    correlations = []
    counts = []
    start = 0
    for name, pairs in task.sets.items():
        here = slice(start, start + len(pairs))
        spearman = correlate(what, values[here], human[here])["spearman"]
        sets[name] = {"pairs": len(pairs), "spearman": spearman}
        correlations.append(spearman)
        counts.append(len(pairs))
        start += len(pairs)
    return {
        "task": task.name,
        "protocol": task.protocol,
        "pairs": len(values),
        "spearman": correlate(what, values, human)["spearman"],
        "mean": mean(correlations),
        "weighted_mean": float(np.average(correlations, weights=counts)),
        "sets": sets,
    }


def average(lines: Sequence[dict[str, Any]]) -> float | None:
    """Average the seven tasks, x 100, each rounded to two digits first as in SimCSE.

    None if one is missing.
    """
    scores = {line["task"]: float(f"{100 * line['spearman']:.2f}") for line in lines}
    if not set(AVERAGED) <= scores.keys():
        return None
    return mean(scores[name] for name in AVERAGED)
