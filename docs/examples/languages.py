"""Teach an English sentence encoder Spanish by translations alone: python
docs/examples/languages.py FOLDER

The corpus is a toy that this file writes: each sentence is a subject, what it does, and where or
when, in both languages. Held out are new combinations of the same phrases; others are of other
patterns. Two runs of ``minisbert train`` learn from the same rows: from a teacher's vectors, and
from labels, 1 for a translation, 0 for a shuffled one.
"""

import random
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from minisbert import SentenceEncoder
from minisbert.train import main as train

MODEL = "all-MiniLM-L6-v2"
TRAIN, HELD_OUT = 3200, 200

SUBJECTS = """
a man | un hombre; the woman | la mujer; my brother | mi hermano; her sister | su hermana; the old teacher | el viejo
maestro; a young doctor | una joven médica; the child | el niño; our neighbour | nuestro vecino; the girl | la niña;
his grandmother | su abuela; the farmer | el granjero; a soldier | un soldado; the singer | la cantante; the black dog |
el perro negro; a white cat | un gato blanco; the tired driver | el conductor cansado
"""
ACTIONS = """
reads a book | lee un libro; eats bread and cheese | come pan y queso; drinks cold water | bebe agua fría; plays the
guitar | toca la guitarra; opens the door | abre la puerta; looks for the keys | busca las llaves; writes a long
letter | escribe una larga carta; buys red apples | compra manzanas rojas; washes the car | lava el coche; is sleeping
| está durmiendo; runs fast | corre rápido; sings an old song | canta una vieja canción; cuts the wood | corta la
madera; waits for the train | espera el tren; watches the birds | mira los pájaros; loses a lot of money | pierde
mucho dinero; breaks the window | rompe la ventana; paints the wall green | pinta la pared de verde; learns English |
aprende inglés; cooks fish and rice | cocina pescado y arroz
"""
PLACES = """
in the park | en el parque; at home | en casa; on the street | en la calle; near the river | cerca del río; in the
kitchen | en la cocina; this morning | esta mañana; every night | cada noche; behind the church | detrás de la iglesia;
in winter | en invierno; under a tree | debajo de un árbol; with a friend | con un amigo; on the island | en la isla;
after dinner | después de la cena; at the market | en el mercado; on Sundays | los domingos; without help | sin ayuda
"""
OTHERS = """
it is raining | está lloviendo; where is the station? | ¿dónde está la estación?; I do not know him | no lo conozco;
the soup is too hot | la sopa está demasiado caliente; we will see each other tomorrow | nos veremos mañana; the dog
sleeps in the kitchen | el perro duerme en la cocina; the doctor has two sons | la médica tiene dos hijos; my sister
bought a house near the river | mi hermana compró una casa cerca del río; the teacher is reading in the park | el
maestro lee en el parque; they closed the factory last year | cerraron la fábrica el año pasado; how much does this
cost? | ¿cuánto cuesta esto?; the water of the lake is cold | el agua del lago está fría; the boy broke his arm | el
chico se rompió el brazo; she speaks three languages | ella habla tres idiomas; the shop opens at nine | la tienda abre
a las nueve; the birds fly south | los pájaros vuelan hacia el sur
"""


def phrases(table: str) -> list[tuple[str, str]]:
    """``"a man | un hombre; ..."`` -> pairs of a phrase and its translation."""
    rows = [entry.split("|") for entry in " ".join(table.split()).split(";")]
    return [(english.strip(), spanish.strip()) for english, spanish in rows]


def corpus(seed: int = 42) -> dict[str, list[tuple[str, str]]]:
    """Sentences with their translations for train, dev and test; no sentence is in two of them."""
    parts = list(product(*map(phrases, (SUBJECTS, ACTIONS, PLACES))))
    rows = [tuple(" ".join(phrase[side] for phrase in part) for side in (0, 1)) for part in parts]
    random.Random(seed).shuffle(rows)
    ends = [TRAIN, TRAIN + HELD_OUT, TRAIN + 2 * HELD_OUT]
    return {
        "train": rows[: ends[0]],
        "dev": rows[ends[0] : ends[1]],
        "test": rows[ends[1] : ends[2]],
    }


HEADER = "score\tsentence1\tsentence2\n"


def write(folder: Path, rows: dict[str, list[tuple[str, str]]]) -> dict[str, str]:
    """The files of both runs: translations, and translations with label 1 beside wrong pairs with
    label 0.
    """
    # the rows are in random order, so that the next one's translation is a shuffled one
    shifted = {
        split: [(a, c) for (a, _), (_, c) in pairwise([*pairs, pairs[0]])]
        for split, pairs in rows.items()
    }
    lines = {"translations": ["anchor\tpositive\n", *(f"{a}\t{b}\n" for a, b in rows["train"])]}
    for split, name in (("train", "labelled"), ("dev", "dev"), ("test", "test")):
        lines[name] = [HEADER]
        for label, pairs in ((1, rows[split]), (0, shifted[split])):
            lines[name] += [f"{label}\t{a}\t{b}\n" for a, b in pairs]
    for name, content in lines.items():
        (folder / f"{name}.tsv").write_text("".join(content), encoding="utf-8")
    return {name: str(folder / f"{name}.tsv") for name in lines}


def measure(
    encoder: SentenceEncoder, rows: list[tuple[str, str]], start: SentenceEncoder
) -> dict[str, float]:
    """Mean cosines of translations, of other pairs, and with the English vectors of ``start``; and
    what is found.
    """
    english = start.encode([row[0] for row in rows], normalize_embeddings=True)  # (N, D)
    u, v = (
        encoder.encode(list(side), normalize_embeddings=True) for side in zip(*rows, strict=True)
    )  # (N, D) each
    cosines, own = u @ v.T, np.arange(len(rows))  # (N, N)
    return {
        "cosine of translations": cosines.diagonal().mean(),
        "of other pairs": cosines[~np.eye(len(rows), dtype=bool)].mean(),
        "found, en -> es": (cosines.argmax(axis=1) == own).mean(),
        "found, es -> en": (cosines.argmax(axis=0) == own).mean(),
        "English as before": (u * english).sum(axis=1).mean(),
    }


def main(folder: Path, model: str = MODEL, *flags: str) -> dict[str, dict[str, dict[str, float]]]:
    folder.mkdir(parents=True, exist_ok=True)
    rows = corpus()
    files = write(folder, rows)
    common = ["--model", model, "--dev", files["dev"], "--test", files["test"], "--scale", "1"]
    runs = {
        "teacher": ["--teacher", model, "--data", files["translations"], "--lr", "2e-4"],
        "labels": ["--data", files["labelled"], "--warmup", "100", "--eval-every", "100"],
    }
    models = {"before": model}
    for name, options in runs.items():
        train([*common, *options, *flags, "--out", str(folder / name)])
        models[name] = folder / name / "model"
    found, start = {}, SentenceEncoder.load(model)
    for title, pairs in {"held out": rows["test"], "of other patterns": phrases(OTHERS)}.items():
        scores = {
            name: measure(SentenceEncoder.load(path), pairs, start) for name, path in models.items()
        }
        found[title] = scores
        print(f"\n{f'{len(pairs)} {title}':24}" + "".join(f"{name:>10}" for name in models))
        for metric in scores["before"]:
            print(f"{metric:24}" + "".join(f"{scores[name][metric]:10.3f}" for name in models))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
