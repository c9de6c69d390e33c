"""Draw the pictures of the gallery, docs/static/gallery/*.svg.

    python docs/tools/make_gallery.py

Each tile of docs/gallery.md in Python runs first, so that its picture shows the numbers that its
code computes. The tiles that need a model of the Hub, or a shell, get a drawing of what happens.
"""

import ast
import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the checkout: lessons are in no wheel

from lessons.drawings.pen import Pen  # noqa: E402

PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "static" / "gallery"
WIDTH = 420
TILE = re.compile(
    r"## (?P<title>.+)\n\n"
    r"!\[(?P<alt>.+)\]\(static/gallery/(?P<name>[\w-]+)\.svg\)\n\n"
    r"(?P<text>(?:.+\n)+)\n"
    r"```(?P<kind>python|bash)\n(?P<code>(?s:.+?))```\n"
    r"(?:\n```\n(?P<shown>(?s:.+?))```\n)?"
)


class Tile(NamedTuple):
    title: str
    alt: str
    name: str  # of its picture
    text: str
    kind: str  # python or bash
    code: str
    shown: str  # what it prints, or nothing


def tiles() -> list[Tile]:
    """Read the page: each tile is a heading, a picture, a sentence, code, maybe its output."""
    sections = re.split(r"^(?=## )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = []
    for section in sections:
        match = TILE.match(section)
        if match is None:
            raise SystemExit(f"{PAGE.name}: no tile: {section[:60]}")
        found.append(Tile(**{key: value or "" for key, value in match.groupdict().items()}))
    return found


def run(code: str) -> dict[str, Any]:
    """Run the code of a tile in Python, silently; return its variables and what it printed."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    return names | {"printed": printed.getvalue()}


# --------------------------------------------------------------------------- pictures of numbers


def bars(
    pen: Pen, top: float, rows: list[tuple[str, float, str]], best: int, scale: float = 1.0
) -> None:
    """Draw for each row a label, a bar for its share of ``scale``, and a text behind it."""
    for row, (label, value, written) in enumerate(rows):
        y = top + 40 * row
        pen.text(12, y + 12, label, "small", "start")
        length = max(2, 340 * max(0, value) / scale)
        pen.box(12, y + 18, length, 12, look="lit" if row == best else "a")
        look = "small bold" if row == best else "small soft"
        pen.text(20 + length, y + 29, written, look, "start")


def search(names: dict[str, Any], title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 200, title, alt)
    pen.text(12, 22, names["code_question"], "bold", "start")
    rows = []
    for hit in names["hits"]:
        score = hit["score"]
        rows.append((names["notes"][hit["corpus_id"]], score, f"{score:.2f}"))
    bars(pen, 34, rows, best=0, scale=0.5)
    return pen


def near_duplicates(names: dict[str, Any], title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 190, title, alt)
    close = [pair for pair in names["pairs"] if pair[0] > 0.5]
    joined = set()
    for _, i, j in close:
        joined |= {i, j}
    for row, text in enumerate(names["titles"]):
        pen.box(10, 10 + 35 * row, 270, 28, text, "a" if row in joined else "panel")
    for score, i, j in close:
        top = 24 + 35 * i
        bottom = 24 + 35 * j
        pen.line((280, top), (312, top), (312, bottom), (280, bottom))
        pen.text(322, (top + bottom) / 2 + 5, f"{score:.2f}", "bold", "start")
    return pen


def clusters(names: dict[str, Any], title: str, alt: str) -> Pen:
    """Place nine vectors by their first two principal axes."""
    pen = Pen(WIDTH, 230, title, alt)
    groups = ast.literal_eval(names["printed"])
    vectors = np.asarray(names["vectors"], dtype=np.float64)
    axes = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)[2][:2]
    # The axes have no sign of their own: make their largest component positive.
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
    places = (vectors - vectors.mean(axis=0)) @ axes.T
    low = places.min(axis=0)
    high = places.max(axis=0)
    places = (places - low) / (high - low) * (300, 150) + (60, 24)
    for look, group, subject in zip("abc", groups, ("English", "money", "gadgets"), strict=True):
        middle = places[group].mean(axis=0)
        for row in group:
            pen.dot(*places[row], 8, look=look)
        pen.text(middle[0], places[group, 1].max() + 28, subject, "small bold")
    return pen


def topics(names: dict[str, Any], title: str, alt: str) -> Pen:
    """Write the reviews of each topic into a box, the most typical one in bold."""
    pen = Pen(WIDTH, 292, title, alt)
    topic = np.asarray(names["topic"])
    cosines = np.asarray(names["cosines"])
    for k, look in enumerate("abc"):
        top = 10 + 94 * k
        pen.box(10, top, 400, 84, look=look)
        members = np.flatnonzero(topic == k)
        typical = members[cosines[members, k].argmax()]
        for line, row in enumerate(members):
            weight = "small bold" if row == typical else "small"
            pen.text(22, top + 25 + 24 * line, names["reviews"][row], weight, "start")
    return pen


def classify(names: dict[str, Any], title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 228, title, alt)
    classes = list(names["known"])
    scores = np.asarray(names["scores"])
    for column, label in enumerate(classes):
        pen.text(190 + 80 * column, 24, label, "small bold")
    for row, message in enumerate(names["messages"]):
        y = 32 + 64 * row
        pen.text(12, y + 16, message, "small", "start")
        for column, score in enumerate(scores[row]):
            look = "lit" if column == scores[row].argmax() else "panel"
            pen.box(152 + 80 * column, y + 22, 76, 30, f"{score:.2f}", look)
    return pen


def rag(names: dict[str, Any], title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 236, title, alt)
    pen.box(10, 8, 150, 30, "question", "lit")
    chosen = [hit["corpus_id"] for hit in names["hits"]]
    for row, text in enumerate(names["passages"]):
        y = 58 + 32 * row
        pen.box(10, y, 276, 26, look="a" if row in chosen else "panel")
        pen.text(18, y + 18, text if len(text) < 40 else f"{text[:36]} …", "small", "start")
        if row in chosen:
            pen.arrow((286, y + 13), (312, y + 13))
    pen.box(312, 8, 98, 172, "prompt", "c")
    pen.arrow((160, 23), (312, 23))
    pen.arrow((361, 180), (361, 200))
    pen.box(270, 200, 140, 30, "language model")
    return pen


def train(names: dict[str, Any], title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 228, title, alt)
    pen.text(12, 22, names["question"], "bold", "start")
    for place, label in enumerate(("before", "after five steps")):
        pen.text(12 + 200 * place, 46, label, "small soft", "start")
    before = np.asarray(names["before"])[0]
    after = np.asarray(names["after"])[0]
    for row, text in enumerate(names["answers"]):
        y = 54 + 42 * row
        pen.text(12, y + 14, text, "small", "start")
        for place, scores in enumerate((before, after)):
            left = 12 + 200 * place
            best = row == scores.argmax()
            length = max(2, 340 * scores[row])
            pen.box(left, y + 20, length, 12, look="lit" if best else "a")
            look = "small bold" if best else "small soft"
            pen.text(left + length + 8, y + 31, f"{scores[row]:.2f}", look, "start")
    return pen


# ------------------------------------------------------------------------- pictures of what happens


def rerank(_: object, title: str, alt: str) -> Pen:
    pen = Pen(WIDTH, 216, title, alt)
    pen.text(104, 20, "search", "bold")
    pen.text(316, 20, "rerank", "bold")
    for left, label, look in ((10, "question", "lit"), (110, "passage", "a")):
        pen.box(left, 34, 88, 28, label, look)
        pen.arrow((left + 44, 62), (left + 44, 84))
        pen.box(left, 84, 88, 32, "encoder")
        pen.arrow((left + 44, 116), (left + 44, 138))
        pen.box(left, 138, 88, 20, look=look)
    pen.line((54, 158), (54, 176), (154, 176), (154, 158))
    pen.text(104, 200, "cosine of two vectors", "small soft")
    pen.box(224, 34, 92, 28, "question", "lit")
    pen.box(316, 34, 92, 28, "passage", "a")
    pen.arrow((316, 62), (316, 84))
    pen.box(224, 84, 184, 74, "cross-encoder")
    pen.arrow((316, 158), (316, 182))
    pen.text(316, 200, "one score for the pair", "small soft")
    return pen


def drawings() -> dict[str, str]:
    """Return the SVG of every tile by the name of its picture."""
    drawn = {}
    for tile in tiles():
        names: dict[str, Any] = {}
        # A tile that loads another model needs the Hub: it is drawn without its numbers.
        loads_another = "load(" in tile.code.replace('load("all-MiniLM-L6-v2")', "")
        if tile.kind == "python" and not loads_another:
            names = run(tile.code)
            question = re.search(r'"([^"\n]+\?)"\)\n', tile.code)
            names["code_question"] = question[1] if question else ""
        draw = globals()[tile.name.replace("-", "_")]
        drawn[tile.name] = draw(names, tile.title, tile.alt).svg()
    return drawn


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for name, svg in drawings().items():
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
