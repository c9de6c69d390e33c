"""Draw the grader as it names a bug, in docs/static/grader.svg.

    python docs/tools/draw_grader.py

A real run: the stub of lesson 05 gets an attention that forgets to divide by the root of K, and the
grader says so. The drawing has colours for light and dark. It does not move, because readers who
arrive in the middle of an animation see an empty box.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "static" / "grader.svg"
WRITTEN = """\
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    probabilities = scores.softmax(-1)
    weights = nn.functional.dropout(probabilities, dropout)
    return weights @ value, probabilities
"""
COLUMNS = 84
LINE = 19  # pixels from one line to the next
MARGIN = 16
TITLE = "The grader names a bug: an attention whose scores are not divided by the root of K"
STYLE = """\
svg { --paper: #f6f8fa; --ink: #17202a; --soft: #52606d; --good: #1a6b33; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #16191d; --ink: #edf1f5; --soft: #b3bfcb; --good: #7ddc98; --bad: #ff9b8f; } }
rect { fill: var(--paper); }
text { font: 13px Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); white-space: pre; }
.soft { fill: var(--soft); } .good { fill: var(--good); } .bad { fill: var(--bad); } .typed { font-weight: bold; }
"""


def grader(mine: Path, *arguments: str) -> str:
    """Return what ``python -m lessons.check`` prints, with the answers in a folder of their own."""
    environment = os.environ | {"MINISBERT_MINE": str(mine), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lessons.check", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    return done.stdout


def run() -> tuple[str, str]:
    """Return the function of the file, without docstring, and what the grader says about it."""
    with tempfile.TemporaryDirectory() as folder:
        mine = Path(folder)
        grader(mine, "start", "05")
        file = mine / "lesson_05.py"
        text = file.read_text(encoding="utf-8")
        start = text.index("def attention(")
        head, stub = text[start:].split('    """', 1)
        rest = stub[stub.index("\n\n\nclass ") :]
        file.write_text(f"{text[:start]}{head}{WRITTEN}{rest}", encoding="utf-8")
        said = grader(mine, "run", "05")
    return head + WRITTEN, said


def wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False)


def screen(function: str, said: str) -> list[tuple[str, str]]:
    """Return the lines of the picture, each with its look."""
    lines = [("# lessons/mine/lesson_05.py", "soft")]
    for line in function.splitlines():
        for part in wrapped(line, 8):
            lines.append((part, ""))

    lines.append(("", ""))
    lines.append(("$ python -m lessons.check run 05", "typed"))
    first_piece = said.split("\n\n")[1]
    for line in first_piece.splitlines():
        look = "soft"
        if "FAIL" in line or "failed" in line:
            look = "bad"
        elif line.split()[0] == "ok":
            look = "good"
        elif "exactly the numbers" in line:
            look = "typed"
        for part in wrapped(line, 8):
            lines.append((part, look))
    return lines


def drawing(lines: list[tuple[str, str]]) -> str:
    """Return the lines as an SVG."""
    width = 2 * MARGIN + int(COLUMNS * 7.85)
    height = 2 * MARGIN + LINE * len(lines)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    described = " ".join(" ".join(line for line, _ in lines).split())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{TITLE}</title>',
        f'<desc id="desc">{escape(described)}</desc>',
        f"<style>\n{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8"/>',
    ]
    for number, (line, look) in enumerate(lines):
        y = MARGIN + LINE * number + 14
        if line.strip():
            place = f'x="{MARGIN}" y="{y}" xml:space="preserve"'
            parts.append(f'<text class="{look}" {place}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawing(screen(*run())), encoding="utf-8")
