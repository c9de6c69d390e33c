"""Small data of every form, in words of the tiny vocabulary, simple enough for a tiny model to learn."""

import json
import random
from pathlib import Path

SUBJECTS = {"animal": ["cat", "dog", "horse"], "sound": ["music", "guitar", "piano"]}
FRAMES = ["the {}", "a {} is in the park", "a small {}", "the {} is under the house", "a {} and a {}"]
NOUNS = (
    "cat dog child man woman bird horse music guitar piano ball food apple bread water sun moon rain snow mat".split()
)
NLI_LABELS = ["entailment", "contradiction", "neutral"]


def sentence(subject: str, chance: random.Random) -> str:
    words = SUBJECTS[subject]
    return chance.choice(FRAMES).format(chance.choice(words), chance.choice(words))


def pairs(count: int, seed: int) -> list[tuple[bool, int, str, str]]:
    """Similar or not, a score, two sentences. Every other pair has one subject (4 or 5), the others two (0 or 1)."""
    chance = random.Random(seed)
    rows = []
    for i in range(count):
        one, other = chance.sample(list(SUBJECTS), 2)
        alike = i % 2 == 0
        score = chance.choice([4, 5] if alike else [0, 1])
        rows.append((alike, score, sentence(one, chance), sentence(one if alike else other, chance)))
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
    return [f"the {NOUNS[i % len(NOUNS)]} is {'happy' if i < len(NOUNS) else 'sad'}\n" for i in range(count)]


def write_all(folder: Path) -> dict[str, str]:
    """Write a file of each form; return the paths by name. ``dev`` and ``test`` are scored pairs."""
    files = {
        "scored.tsv": scored(40, seed=0),
        "dev.tsv": scored(20, seed=1),
        "test.tsv": scored(20, seed=2),
        "duplicates.tsv": duplicates(40, seed=3),
        "nli.jsonl": nli(60),
        "triplets.tsv": triplets(20),
        "sentences.txt": sentences(40),
    }
    for name, lines in files.items():
        (folder / name).write_text("".join(lines))
    return {Path(name).stem: str(folder / name) for name in files}
