"""The STS suite: STS12 to STS16, the STS Benchmark and SICK-R, as the papers since SBERT report them.

The score of a year is Spearman's correlation over all pairs of its sets together ("all"; Gao et al. 2021, appendix B,
compare it with the mean of the sets). SICK-R is given twice: for the 4,927 pairs of its test split, as papers report
it, and for all 9,927 pairs, as MTEB does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from minisbert.core import InputError, reading
from minisbert.data.formats import parse_score
from minisbert.data.rows import Rows
from minisbert.data.scored_pairs import ScoredPair, load_scored_pairs
from minisbert.evaluation.sts import correlate, encode_pairs, similarities
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import asset, ensure, problems

YEARS = {  # STS13 lacks its SMT set, whose licence forbids copies, here as in the papers
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
SICK_FILES = {"test": "SICK_test_annotated.txt", "train": "SICK_train.txt", "trial": "SICK_trial.txt"}
SICK_COLUMNS = ("pair_ID", "sentence_A", "sentence_B", "relatedness_score", "entailment_judgment")
TASKS = (*YEARS, "STS-B", "SICK-R")  # what SimCSE's table has, in its order
SICK_ALL = "SICK-R, all"

TextPair = frozenset[str]  # two texts in any order; one, if they are equal


@dataclass(frozen=True)
class Task:
    """Scored pairs by set, and what the score is computed of."""

    name: str
    protocol: str
    sets: dict[str, list[ScoredPair]]

    @property
    def pairs(self) -> list[ScoredPair]:
        return [pair for pairs in self.sets.values() for pair in pairs]


# ------------------------------------------------------------------------------------------- reading


def load_suite() -> tuple[list[Task], dict[str, str]]:
    """The tasks that are there or can be fetched, and for the others the reason by name.

    Raises ``InputError`` for a folder with a missing or changed file, and for a file that cannot be read.
    """
    tasks: list[Task] = []
    missing: dict[str, str] = {}
    for name in TASKS:
        source = {"STS-B": "stsb", "SICK-R": "sick"}.get(name, name.lower())
        try:
            folder = ensure(source) if not asset(source).folder.exists() else asset(source).folder
        except InputError as error:
            missing[name] = str(error).splitlines()[0].removesuffix(":")  # ensure has told the rest on the way
            continue
        if found := problems(asset(source)):
            raise InputError(f"{found[0]}; fetch it again: python -m minisbert.assets fetch {source}")
        tasks += load_task(name, folder)
    return sorted(tasks, key=lambda task: task.name == SICK_ALL), missing


def load_task(name: str, folder: Path) -> list[Task]:
    """The task of that name, and for SICK-R the one with all pairs."""
    if name == "STS-B":
        return [Task(name, "test split", {"test": load_scored_pairs("stsb", "test")})]
    if name == "SICK-R":
        sets = {split: read_sick(folder / file) for split, file in SICK_FILES.items()}
        papers = Task(name, "test split, as in SimCSE", {"test": sets["test"]})
        return [papers, Task(SICK_ALL, "train, trial and test, as in MTEB", sets)]
    if name == "STS16":
        sets = {one: read_sts_table(folder / f"{one}.test.tsv") for one in YEARS[name]}
    else:
        sets = {one: read_sts(folder / f"STS.input.{one}.txt", folder / f"STS.gs.{one}.txt") for one in YEARS[name]}
    return [Task(name, f"all pairs of {len(sets)} sets", sets)]


def read_sts(sentences: Path, gold: Path) -> list[ScoredPair]:
    """The scored pairs of a set: a line of ``sentences`` is sentence1, tab, sentence2; that of ``gold`` their score.

    Further columns are sources. A blank line of ``gold`` is a pair that was not scored, which is not a score of 0.
    """
    rows, scores = tab_cells(sentences), tab_cells(gold)
    if len(rows) != len(scores):
        raise InputError(f"{gold} has {len(scores):,} lines and {sentences} has {len(rows):,}: one score a pair")
    return scored_pairs(
        sentences, [["\t".join(score), *cells] for score, cells in zip(scores, rows, strict=True)], gold
    )


def read_sts_table(path: Path) -> list[ScoredPair]:
    """The same from one file of score, sentence1, sentence2 by tabs; an empty score is a pair that was not scored."""
    return scored_pairs(path, tab_cells(path), path)


def read_sick(path: Path) -> list[ScoredPair]:
    """The pairs of a file of SICK with their relatedness, 1 to 5."""
    header, *rows = tab_cells(path) or [[]]
    if tuple(header) != SICK_COLUMNS or {len(cells) for cells in rows} != {len(SICK_COLUMNS)}:
        raise InputError(f"{path}: the columns are not {', '.join(SICK_COLUMNS)}, separated by tabs, in every line")
    return scored_pairs(path, [[score, first, second] for _, first, second, score, _ in rows], path, start=2)


def scored_pairs(path: Path, rows: Sequence[list[str]], gold: Path, start: int = 1) -> list[ScoredPair]:
    """The rows of score, sentence1, sentence2 that have a score; ``start`` is the line of the first row."""
    pairs = []
    with reading(path) as at:
        for at.line, (score, *texts) in enumerate(rows, start):
            if not score.strip():
                continue
            first, second = (text.strip() for text in (*texts, "", "")[:2])
            if not first or not second:
                raise ValueError("two sentences separated by a tab are needed")
            with reading(gold) as place:
                place.line = at.line
                pairs.append(ScoredPair(first, second, parse_score(score)))
    if not pairs:
        raise InputError(f"{gold} scores no pair")
    return pairs


def tab_cells(path: Path) -> list[list[str]]:
    """The cells of every line of a file that ends them with a line feed, alone or after a carriage return."""
    return [line.split("\t") for line in Rows(path).lines()]


# ---------------------------------------------------------------------------------------- evaluation


def evaluate_suite(
    encoder: SentenceEncoder, tasks: Sequence[Task], trained: set[TextPair] | None = None, progress: bool = False
) -> list[dict[str, Any]]:
    """A dict for each task, with Spearman's correlations of the cosine, in -1..1.

    ``spearman`` of all pairs, ``mean`` and ``weighted_mean`` of the sets, the latter by their pairs, each set's own in
    ``sets``, and ``trained``: how many pairs are among those that the model was trained on, None if that is unknown.
    """
    vectors = encode_pairs(encoder, [pair for task in tasks for pair in task.pairs], progress)
    cosines = similarities(*vectors)["cosine"]  # (N,)
    lines = []
    for task in tasks:
        count = len(task.pairs)
        lines.append(task_scores(task, cosines[:count]) | {"trained": overlap(task, trained)})
        cosines = cosines[count:]
    return lines


def task_scores(task: Task, cosines: np.ndarray) -> dict[str, Any]:
    """What ``evaluate_suite`` gives for a task whose pairs have these cosines, (N,)."""
    what, weights = f"{task.name}: the cosine against the scores", [len(pairs) for pairs in task.sets.values()]
    parts = zip(task.sets.items(), np.split(cosines, np.cumsum(weights)[:-1]), strict=True)
    sets = {
        name: {"pairs": len(pairs), "spearman": correlate(what, part, pairs)["spearman"]}
        for (name, pairs), part in parts
    }
    values = [one["spearman"] for one in sets.values()]
    return {
        "task": task.name,
        "protocol": task.protocol,
        "pairs": len(cosines),
        "spearman": correlate(what, cosines, task.pairs)["spearman"],
        "mean": mean(values),
        "weighted_mean": float(np.average(values, weights=weights)),
        "sets": sets,
    }


def overlap(task: Task, trained: set[TextPair] | None) -> int | None:
    """How many pairs of the task are among ``trained``, in either order."""
    if trained is None:
        return None
    return sum(frozenset((pair.sentence1, pair.sentence2)) in trained for pair in task.pairs)


def average(lines: Sequence[dict[str, Any]]) -> float | None:
    """The mean of the seven tasks x 100, each rounded to two digits first as in SimCSE; None if one is missing."""
    scores = {line["task"]: float(f"{100 * line['spearman']:.2f}") for line in lines}
    return mean(scores[name] for name in TASKS) if set(TASKS) <= scores.keys() else None
