"""Small data of every form, in words of the tiny vocabulary, simple enough for a tiny model to
learn; runs on it.
"""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SUBJECTS = {"animal": ["cat", "dog", "horse"], "sound": ["music", "guitar", "piano"]}
FRAMES = [
    "the {}",
    "a {} is in the park",
    "a small {}",
    "the {} is under the house",
    "a {} and a {}",
]
NOUNS = [
    "cat",
    "dog",
    "child",
    "man",
    "woman",
    "bird",
    "horse",
    "music",
    "guitar",
    "piano",
    "ball",
    "food",
    "apple",
    "bread",
    "water",
    "sun",
    "moon",
    "rain",
    "snow",
    "mat",
]
NLI_LABELS = ["entailment", "contradiction", "neutral"]
SCORED_HEADER = "score\tsentence1\tsentence2\n"
LABEL_HEADER = "label\tsentence1\tsentence2\n"


def sentence(subject: str, chance: random.Random) -> str:
    words = SUBJECTS[subject]
    return chance.choice(FRAMES).format(chance.choice(words), chance.choice(words))


def pairs(count: int, seed: int) -> list[tuple[bool, int, str, str]]:
    """Similar or not, a score, two sentences. Every other pair has one subject (4 or 5), the others
    two (0 or 1).
    """
    chance = random.Random(seed)
    rows = []
    for i in range(count):
        one, other = chance.sample(list(SUBJECTS), 2)
        alike = i % 2 == 0
        score = chance.choice([4, 5] if alike else [0, 1])
        rows.append(
            (alike, score, sentence(one, chance), sentence(one if alike else other, chance))
        )
    return rows


def scored(count: int, seed: int) -> list[str]:
    return [f"{score}\t{a}\t{b}\n" for _, score, a, b in pairs(count, seed)]


def duplicates(count: int, seed: int) -> list[str]:
    return [f"{int(alike)}\t{a}\t{b}\n" for alike, _, a, b in pairs(count, seed)]


def nli(count: int) -> list[str]:
    """Three rows per premise, whose words give away the label."""
    rows = []
    for i in range(count):
        noun, other = NOUNS[i // 3 % len(NOUNS)], NOUNS[(i // 3 + 7) % len(NOUNS)]
        second = [f"the {noun}", f"the {other}", f"the {noun} and the {other}"][i % 3]
        row = {"gold_label": NLI_LABELS[i % 3], "sentence1": f"a small {noun}", "sentence2": second}
        rows.append(json.dumps(row) + "\n")
    return rows


def triplets(count: int) -> list[str]:
    """Sentences about a noun, the same noun, and another one."""
    return [
        f"the {NOUNS[i]}\ta {NOUNS[i]} is in the park\tthe {NOUNS[(i + 7) % len(NOUNS)]} is slow\n"
        for i in range(count)
    ]


def sentences(count: int) -> list[str]:
    return [
        f"the {NOUNS[i % len(NOUNS)]} is {'happy' if i < len(NOUNS) else 'sad'}\n"
        for i in range(count)
    ]


def write_all(folder: Path) -> dict[str, str]:
    """Write a file of each form; return the paths by name. ``dev`` and ``test`` are scored
    pairs.
    """
    files = {
        "scored.tsv": [SCORED_HEADER, *scored(40, seed=0)],
        "dev.tsv": [SCORED_HEADER, *scored(20, seed=1)],
        "test.tsv": [SCORED_HEADER, *scored(20, seed=2)],
        "duplicates.tsv": [LABEL_HEADER, *duplicates(40, seed=3)],
        "nli.jsonl": nli(60),
        "triplets.tsv": ["anchor\tpositive\tnegative\n", *triplets(20)],
        "sentences.txt": sentences(40),
        "translations.tsv": [
            "anchor\tpositive\n",
            *(f"the {noun}\tla {noun[::-1]}\n" for noun in NOUNS),
        ],
        "several.tsv": [
            "anchor\tpositive\tnegative\tnegative_2\n",
            *(
                f"{row.rstrip()} , .\tthe {noun} runs\n"
                for row, noun in zip(triplets(20), NOUNS, strict=True)
            ),
        ],
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(lines))
    return {Path(name).stem: str(folder / name) for name in files}


# -------------------------------------------------------------------------------------------- runs

# the file that a loss trains on; all other losses train on triplets
FORM = {
    "cosine": "scored",
    "cosent": "scored",
    "mse": "scored",
    "softmax": "nli",
    "binary": "duplicates",
    "simcse": "sentences",
    "mlm": "sentences",
    "distillation": "sentences",
}


def flags(files: dict[str, str], loss: str, *more: str) -> list[str]:
    """The options of a run on toy data. A head is judged by rows like its own, held out of them."""
    form = FORM.get(loss, "triplets")
    given = ["--loss", loss, "--data", files[form]]
    if form not in ("nli", "duplicates") and "--head" not in more:
        given += ["--dev", files["dev"], "--test", files["test"]]
    if loss == "mse":
        given += ["--dev", files["dev"], "--test", files["test"]]
    return [*given, *more]


def rows(form: str) -> list[tuple]:
    """The rows of ``write_all``'s files as Python has them; scores are 0 to 1."""
    if form == "scored":
        return scored_rows(40, seed=0)
    if form == "duplicates":
        return [(a, b, int(alike)) for alike, _, a, b in pairs(40, seed=3)]
    if form == "nli":
        found = [json.loads(line) for line in nli(60)]
        return [(row["sentence1"], row["sentence2"], row["gold_label"]) for row in found]
    if form == "triplets":
        return [tuple(line.strip().split("\t")) for line in triplets(20)]
    return [(line.strip(),) for line in sentences(40)]


def scored_rows(count: int, seed: int) -> list[tuple]:
    """Two texts and a score from 0 to 1."""
    return [(a, b, score / 5) for _, score, a, b in pairs(count, seed)]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, without the speed."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines
    ]


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics(folder) if "loss" in line]


def dev_scores(folder: Path, metric: str = "spearman") -> list[float]:
    return [line["dev"][metric] for line in metrics(folder) if "dev" in line]


TIMELESS = {"training_seconds": 0}  # to compare results without their times


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text())


def interrupt_at(call: int, function: Callable) -> Callable:
    """``function``, but Ctrl-C comes at its n-th call."""
    calls = iter(range(1, 1000))

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return interrupted


def stop_at(call: int, target: tuple[Any, str], start: Callable, *arguments: Any) -> None:
    """Call ``start`` and press Ctrl-C at the n-th call of ``target``, a module or class and a
    function's name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*target, interrupt_at(call, getattr(*target)))
        with pytest.raises(KeyboardInterrupt):
            start(*arguments)


def without_dropout(model: Path, folder: Path, **rates: float) -> Path:
    """A copy of a model without dropout, or with these rates."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | rates
    (folder / "config.json").write_text(json.dumps(config))
    return folder
