"""Slides made of a lesson's text, pictures, predictions and quiz: one HTML file, no network.

    python -m lessons.slides 05 --out slides     slides/05_attention.html
    python -m lessons.slides all --out slides

Nothing is written here that a lesson does not say. A section gives its first sentences, its
formulas and pictures, or a short cell if it has neither; a prediction gives two slides, the
question and the answer.
"""

import argparse
import ast
import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from string import Template
from textwrap import dedent

from lessons.grader.pieces import LESSONS, ROOT, lesson_file
from lessons.quiz import questions
from minisbert.core import InputError
from minisbert.system.console import run_command, say
from minisbert.system.files import atomic_file

OBJECTIVES = ROOT / "lessons" / "OBJECTIVES.md"
LINES = 16  # what fits on a slide of 1280 x 720 at 24 pixels
LETTERS = 84  # of a line, at 24 pixels
ROOMY = 10  # at most so many lines get letters of 30 pixels
DENSE = 21  # at most so many lines fit with letters of 20 pixels
PICTURE = 10  # lines that a picture needs at least
PREDICTIONS = "Predict, then run"
ITEM = r"^(- |\d+\. )(.+(?:\n .*)*)"  # of a list
NUMBER = re.compile(r"^# \*\*\d\.\*\* ", re.MULTILINE)  # of a question


@dataclass(frozen=True)
class Block:
    """A part of a slide, and about how many lines it takes."""

    html: str
    lines: float
    item: str = ""  # "ul" or "ol" for an item of a list


def objectives(lesson: int) -> list[str]:
    """What one can do after a lesson, each to follow "you can", as Markdown."""
    body = (
        OBJECTIVES.read_text(encoding="utf-8")
        .partition(f"\n## [{lesson:02} ")[2]
        .partition("\n## ")[0]
    )
    lines = re.findall(r"^- (.+)$", body, re.MULTILINE)
    return [re.sub("[A-Z]", lambda first: first[0].lower(), line, count=1) for line in lines]


def sections(text: str) -> list[tuple[str, list[str]]]:
    """The headings of a lesson, each with its parts: Markdown begins with ``# ``, code does not."""
    found: list[tuple[str, list[str]]] = []
    for kind, cell in re.findall(
        r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL
    ):
        parts = re.split(r"^# ##? ", cell, flags=re.MULTILINE) if kind else [cell]
        if parts[0].strip():
            found[-1][1].append(parts[0])
        for part in parts[1:]:
            title, _, rest = part.partition("\n")
            found.append((title, [rest] if rest.strip("# \n") else []))
    return found


def paragraphs(part: str) -> list[str]:
    """The paragraphs, formulas, lists and pictures of Markdown; none of code."""
    lines = part.strip("\n").splitlines()
    if not all(line.startswith("#") for line in lines):
        return []
    text = "\n".join(line[2:] for line in lines)
    return [block.strip("\n") for block in re.split(r"\n{2,}|\n(?=!\[)", text) if block.strip()]


def is_formula(text: str) -> bool:
    return bool(text) and all(line.startswith("    ") for line in text.splitlines())


def split(text: str) -> list[str]:
    """The sentences of a paragraph."""
    return re.split(
        r"(?:(?<=[.?!])|(?<=[.?!][\")*]))\s+(?=[A-Z0-9\"`*(\[])", " ".join(text.split())
    )


def sentences(text: str, letters: int) -> str:
    """The first sentences of a paragraph: one, and more while they have room."""
    first, *others = split(text)
    for sentence in others:
        if len(first) + len(sentence) > letters:
            break
        first += f" {sentence}"
    return first


def call(code: str, name: str) -> list[ast.expr]:
    """The arguments of the call of ``predict`` or ``guess.answer``, if the code has one."""
    if name in code and not paragraphs(code):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                return node.args
    return []


def without_asserts(code: str) -> str:
    """A cell as it is, but for its asserts and for runs of empty lines."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assert):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in lines)).strip("\n")


def reasons(code: str) -> list[str]:
    """What the asserts of a cell say."""
    return [
        node.msg.value.rstrip(",") for node in ast.parse(code).body if isinstance(node, ast.Assert)
    ]


def inline(text: str) -> str:
    """Markdown inside a paragraph as HTML; links become their text."""
    parts = re.split(r"`([^`]+)`", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text))
    html = ""
    for i, part in enumerate(parts):
        part = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escape(part))
        part = re.sub(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])", r"<em>\1</em>", part)
        html += f"<code>{part}</code>" if i % 2 else part  # every other part is code
    return html


def prose(text: str, kind: str = "") -> Block:
    return Block(
        f"<p{kind and f' class={kind!r}'}>{inline(text)}</p>", 0.5 + -(-len(text) // LETTERS)
    )


def listed(text: str, number: str = "") -> Block:
    item = f'<li value="{number}">' if number else "<li>"
    return Block(
        f"{item}{inline(text)}</li>", 0.3 + -(-len(text) // (LETTERS - 4)), "ol" if number else "ul"
    )


def formula(text: str) -> Block:
    """Text as it is written, in letters as large as its longest line allows."""
    lines = text.splitlines()
    size = min(0.85, 75 / max(map(len, lines)))
    shown = f'<pre tabindex="0" style="font-size: {size:.2f}rem"><code>{escape(text)}</code></pre>'
    return Block(shown, 1 + size * len(lines))


def picture(alt: str, name: str) -> Block:
    data = base64.b64encode((ROOT / "lessons" / name).read_bytes()).decode("ascii")
    kind, style = ("svg+xml", "drawing") if name.endswith(".svg") else ("png", "plot")
    image = f'<img class="{style}" src="data:image/{kind};base64,{data}" alt="{escape(alt)}">'
    return Block(f"<figure>{image}<figcaption>{escape(alt)}</figcaption></figure>", PICTURE)


def choices(texts: tuple[str, ...], right: str = "") -> Block:
    html = ""
    lines = 0.0
    for text in texts:
        mark = " class=right" if text == right else ""
        html += f"<li{mark}>{inline(text)}</li>"
        lines += 0.3 + -(-len(text) // LETTERS)
    return Block(f'<ol class="choices">{html}</ol>', lines)


def size(blocks: list[Block]) -> str:
    """Larger letters for a few lines, smaller ones for a few too many."""
    total = sum(block.lines for block in blocks)
    if any("<figure>" in block.html for block in blocks):
        return ""
    return "roomy" if total <= ROOMY else "dense" if LINES < total <= DENSE else ""


def slides(title: str, blocks: list[Block], kind: str | None = None) -> Iterator[str]:
    """As many slides of one title as the blocks need; the items of a list may be on several."""
    kind = size(blocks) if kind is None else kind
    tag = "h1" if kind == "first" else "h2"
    pages: list[list[Block]] = []
    for block in blocks:
        if not pages or sum(other.lines for other in pages[-1]) + block.lines > (
            DENSE if kind == "dense" else LINES
        ):
            pages.append([])
        pages[-1].append(block)
    for page in pages:
        groups = []
        for item, blocks in groupby(page, attrgetter("item")):
            html = "".join(block.html for block in blocks)
            groups.append(f"<{item}>{html}</{item}>" if item else html)
        body = "\n".join(groups)
        yield f'<section class="slide {kind}">\n<{tag}>{inline(title)}</{tag}>\n{body}\n</section>'


def blocks_of(parts: list[str]) -> Iterator[Block]:
    """What slides show of a section: key sentences, formulas, lists, pictures.

    Its first cell, too, if all that is prose.
    """
    found = []
    for part in parts:
        found += paragraphs(part)
    prosaic = True
    for number, text in enumerate(found):
        if drawn := re.fullmatch(r"!\[([^\]]*)\]\(([^)]+)\)", " ".join(text.split())):
            yield picture(*drawn.groups())
            prosaic = False
        elif is_formula(text):
            yield formula(dedent(text))
            prosaic = False
        elif re.match(ITEM, text):
            items = re.findall(ITEM, text, re.MULTILINE)
            yield from (listed(sentences(item, 200), mark.strip("-. ")) for mark, item in items)
        elif number == 0 or text.startswith("**"):
            yield prose(sentences(text, 160 if number else 420))
        elif is_formula("".join(found[number + 1 : number + 2])):  # what leads to it
            yield prose(split(text)[-1])
    cells = [without_asserts(part) for part in parts if not paragraphs(part)]
    if prosaic and cells and 2 <= len(cells[0].splitlines()) <= 12:
        yield formula(cells[0])


def of_section(title: str, parts: list[str]) -> Iterator[str]:
    """The slides of a section, and two for each of its predictions."""
    asked = [number for number, part in enumerate(parts) if call(part, "predict")]
    opening = (
        [] if asked and title == PREDICTIONS else [*blocks_of(parts[: asked[0] if asked else None])]
    )
    if len(opening) > 1 or not asked:
        yield from slides(title, opening)
        opening = []
    begin = 0
    for number, end in zip(asked, [*asked, len(parts)][1:], strict=True):
        _, question, offered = (ast.literal_eval(part) for part in call(parts[number], "predict"))
        leads = [part for part in parts[begin:number] if paragraphs(part)]
        numbered = NUMBER.split("".join(leads))[1:]
        lead = (
            "# " + numbered[-1]
            if numbered
            else leads[-1]
            if begin or len(leads) > 1 or title == PREDICTIONS
            else ""
        )
        head = [
            prose(text)
            for text in paragraphs(lead)[0 if numbered else -1 :]
            if not is_formula(text)
        ]
        head = [*(head or opening), prose(question, "question")]
        begin = number + 1
        opening = []
        cell = next(part for part in parts[begin:end] if call(part, "guess.answer"))
        right = ast.literal_eval(call(cell, "guess.answer")[0])
        comments = [part for part in parts[begin:end] if paragraphs(part)]
        if end < len(parts) and not NUMBER.search(
            "".join(comments)
        ):  # the last one leads to the next question
            comments = comments[:-1]
        said = [*blocks_of([NUMBER.split("".join(comments))[0]])] or [
            prose(x) for x in reasons(cell) if x != right
        ]
        answer = [*head, choices(offered, right), *said]
        yield from slides(title, [*head, choices(offered)], size(answer))
        yield from slides(title, answer)


def deck(lesson: int) -> str:
    """The slides of a lesson as one page of HTML."""
    (heading, opening), *others = sections(lesson_file(lesson).read_text(encoding="utf-8"))
    found = [
        prose(" ".join(paragraphs(opening[0])[0].split()), "small"),
        prose("After this lesson you can"),
    ]
    found += [listed(line) for line in objectives(lesson)]
    pages = [*slides(heading, found, "first")]
    pages += slides(
        heading, [block for block in blocks_of(opening[:1]) if "<figure>" in block.html]
    )
    for title, parts in others:
        pages += of_section(title, parts)
    for question in questions().get(lesson, []):
        right = question.right - 1
        title = f"Quiz {question.at}"
        asked = prose(question.ask, "question")
        answer = [
            asked,
            choices(question.choices, question.choices[right]),
            prose(question.why[right]),
        ]
        pages += [
            *slides(title, [asked, choices(question.choices)], size(answer)),
            *slides(title, answer),
        ]
    page = Template((ROOT / "lessons" / "slides.html").read_text(encoding="utf-8"))
    return page.substitute(title=escape(heading), slides="\n".join(pages))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lessons.slides", description="Write the slides of a lesson."
    )
    parser.add_argument("lesson", metavar="LESSON", help="a number such as 05, or all")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the folder for LESSON's .html"
    )
    options = parser.parse_args()
    wanted = options.lesson
    if wanted != "all" and not (wanted.isdecimal() and int(wanted) in LESSONS):
        raise InputError(
            f"there is no lesson {wanted}: give a number from {min(LESSONS):02} to {max(LESSONS)}, "
            f"or all"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS if wanted == "all" else [int(wanted)]:
        path = options.out / f"{lesson_file(lesson).stem}.html"
        with atomic_file(path) as partial:
            partial.write_text(deck(lesson), encoding="utf-8")
        say(f"wrote {path}")


if __name__ == "__main__":
    run_command(main)
