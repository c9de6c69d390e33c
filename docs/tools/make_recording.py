"""Record the grader as it names a bug, in docs/static/grader.svg.

    python docs/tools/make_recording.py

A real run: the stub of lesson 05 gets an attention that forgets to divide by the root of K, and the
grader says so. The drawing is complete at once and after four seconds plays line by line. It has
colours for light and dark, and no script.
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
@keyframes wait { from { opacity: 0; } }
text { animation-name: wait; animation-timing-function: step-end; animation-delay: 4s; }
@media (prefers-reduced-motion: reduce) { text { animation: none; } }
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


def screen(function: str, said: str) -> list[tuple[str, str, float]]:
    """Return the lines of the recording: text, look, and the seconds after which each appears."""
    lines = [("# lessons/mine/lesson_05.py", "soft", 0.0)]
    seconds = 0.4
    for line in function.splitlines():
        seconds += 0.3
        lines += [(part, "", seconds) for part in wrapped(line, 8)]
    seconds += 1
    lines += [("", "", seconds), ("$ python -m lessons.check run 05", "typed", seconds)]
    seconds += 1.2
    for line in said.split("\n\n")[1].splitlines():  # of the first piece
        look = "bad" if "FAIL" in line or "failed" in line else "soft"
        if line.split()[0] == "ok":
            look = "good"
        if "exactly the numbers" in line:
            look = "typed"
            seconds += 1
        lines += [(part, look, seconds) for part in wrapped(line, 8)]
        seconds += 0.4
    return lines


def drawing(lines: list[tuple[str, str, float]]) -> str:
    """Return the SVG: every line at once, and the animation, in which each waits for its turn."""
    width = 2 * MARGIN + int(COLUMNS * 7.85)
    height = 2 * MARGIN + LINE * len(lines)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    described = " ".join(" ".join(line for line, _, _ in lines).split())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{TITLE}</title>',
        f'<desc id="desc">{escape(described)}</desc>',
        f"<style>\n{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8"/>',
    ]
    for number, (line, look, seconds) in enumerate(lines):
        y = MARGIN + LINE * number + 14
        if line.strip():
            place = f'x="{MARGIN}" y="{y}" xml:space="preserve"'
            delay = f'style="animation-duration: {seconds:.1f}s"'
            parts.append(f'<text class="{look}" {place} {delay}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawing(screen(*run())), encoding="utf-8")
