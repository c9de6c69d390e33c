"""The measured tables of the docs: one file per CPU in docs/figures/ fills the tables of the pages.

    python -m benchmarks.figures                        write all tables and the chart anew
    python -m benchmarks.figures --measure zen4 start   run that table's command, keep its output

A table stands below a comment that names its file and itself, ``<!-- figures: zen4 start -->``. A
file says which CPU it is of, and ``--measure`` refuses to run on another one; of a new CPU write a
file with the line that ``benchmarks.machine`` prints first, the commands to be run and the headings
that they print. A table that was put together from several runs has their ``commands``.

The chart, docs/static/encoding.svg, has a panel for each CPU with a table called sentences.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import machine
from minisbert.core import InputError
from minisbert.system.console import run_command

DOCS = Path(__file__).parents[1] / "docs"
PLACE = re.compile(
    r"^<!-- figures: (\w+) ([\w-]+) -->\n(?:```\n(?:.+\n)+```\n\n)?(?:\|.*\n)+", re.MULTILINE
)
TABLE = re.compile(r"^\|.*\n\|[-|: ]+\n(?:\|.*\n)+", re.MULTILINE)
BAR = re.compile(r"(?<!\\)\|")  # between two cells

Rows = list[list[str]]  # the headings first

CHART = DOCS / "static" / "encoding.svg"
CHART_TITLE = "Sentences a second, by engine and precision (more is better)"
CHART_STYLE = """\
svg { --paper: #f6f8fa; --ink: #17202a; --soft: #52606d; --ours: #1f6f8b; --theirs: #9aa8b5; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #16191d; --ink: #edf1f5; --soft: #b3bfcb; --ours: #6cc5e0; --theirs: #5d6b78; } }
text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
text { fill: var(--ink); }
.paper { fill: var(--paper); } .ours { fill: var(--ours); } .theirs { fill: var(--theirs); }
.soft { fill: var(--soft); font-size: 13px; }
.head { font-weight: bold; } .name { text-anchor: end; }
"""
CHART_WIDTH = 560  # pixels, as all sizes of the chart
CHART_MARGIN = 16
BARS_LEFT = 192
BARS_WIDTH = 296
ROW_HEIGHT = 22
GAP = 12  # above a precision's name
PRECISIONS = ("float32", "bfloat16", "int8")


def read(name: str) -> dict[str, Any]:
    """A file: the line of its CPU, and its tables by name."""
    return tomllib.loads((DOCS / "figures" / f"{name}.toml").read_text(encoding="utf-8"))


def write(name: str, content: dict[str, Any]) -> None:
    """A file, with a line for each row."""
    lines = [f"cpu = {quoted(content['cpu'])}\n"]
    for table, about in content["tables"].items():
        lines.append(f"\n[tables.{table}]\n")
        lines += [f"{key} = {quoted(value)}\n" for key, value in about.items() if key != "rows"]
        lines.append("rows = [\n")
        lines += [f"    {quoted(row)},\n" for row in about["rows"]]
        lines.append("]\n")
    (DOCS / "figures" / f"{name}.toml").write_text("".join(lines), encoding="utf-8")


def quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def rendered(name: str, table: str) -> str:
    """The comment, the machine if the table has lines for it, and the table."""
    about = read(name)["tables"][table]
    lines = [f"<!-- figures: {name} {table} -->"]
    if "machine" in about:
        lines += ["```", *about["machine"], "```", ""]
    head, *rows = about["rows"]
    lines += [line(head), "|---" * len(head) + "|"]
    lines += [line(row) for row in rows]
    return "\n".join([*lines, ""])


def line(row: list[str]) -> str:
    """A row of a Markdown table; an empty cell has one space."""
    text = ""
    for cell in row:
        text += f"| {cell} " if cell else "| "
    return text + "|"


def render(text: str) -> str:
    """A page with its tables as the files have them."""
    return PLACE.sub(lambda place: rendered(place[1], place[2]), text)


def speeds(name: str) -> list[tuple[str, str, int]]:
    """Each row of a CPU's sentences: the engine, its precision, and texts a second."""
    found = []
    for row in read(name)["tables"]["sentences"]["rows"][1:]:
        engine, precision = row[0].rsplit(" ", 1)
        found.append((engine, precision, int(row[1].replace(",", ""))))
    return found


def panel(name: str, top: int) -> tuple[list[str], int]:
    """Draw the bars of a CPU below ``top``: lines of SVG, and where the panel ends."""
    measured = speeds(name)
    fastest = max(speed for _, _, speed in measured)

    # A CPU's line is its name, its cores, and after a colon the instructions that it has.
    processor, _, instructions = read(name)["cpu"].partition(": ")
    lines = []
    for text in (processor, instructions):
        top += ROW_HEIGHT
        lines.append(f'<text class="soft" x="{CHART_MARGIN}" y="{top}">{escape(text)}</text>')

    for precision in PRECISIONS:
        bars = [(speed, engine) for engine, kind, speed in measured if kind == precision]
        if not bars:
            continue
        top += GAP + ROW_HEIGHT
        lines.append(f'<text class="head" x="{CHART_MARGIN}" y="{top}">{precision}</text>')
        for speed, engine in sorted(bars, reverse=True):
            top += ROW_HEIGHT
            width = round(BARS_WIDTH * speed / fastest)
            owner = "ours" if engine.startswith("minisbert") else "theirs"
            lines += [
                f'<text class="name" x="{BARS_LEFT - 8}" y="{top}">{escape(engine)}</text>',
                f'<rect class="{owner}" x="{BARS_LEFT}" y="{top - 13}"'
                f' width="{width}" height="16"/>',
                f'<text x="{BARS_LEFT + width + 6}" y="{top}">{speed:,}</text>',
            ]
    return lines, top + GAP


def chart() -> str:
    """Draw texts a second, with colours for light and dark; one panel below the other."""
    lines: list[str] = []
    description = []
    top = CHART_MARGIN + ROW_HEIGHT
    for path in sorted((DOCS / "figures").glob("*.toml")):
        if "sentences" not in read(path.stem)["tables"]:
            continue
        bars, top = panel(path.stem, top)
        lines += bars
        for engine, precision, speed in speeds(path.stem):
            description.append(f"{engine} {precision} {speed:,}")
    height = top + CHART_MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{CHART_WIDTH}" height="{height}"'
        f' viewBox="0 0 {CHART_WIDTH} {height}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{CHART_TITLE}</title>',
        f'<desc id="desc">{escape(", ".join(description))}</desc>',
        f"<style>\n{CHART_STYLE}</style>",
        f'<rect class="paper" width="{CHART_WIDTH}" height="{height}" rx="6"/>',
        f'<text class="head" x="{CHART_MARGIN}" y="{CHART_MARGIN + 14}">{CHART_TITLE}</text>',
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def cells(printed: str, headings: list[str]) -> Rows:
    """The rows of the markdown table with these headings in what a benchmark printed."""
    for found in TABLE.findall(printed):
        rows = []
        for row in found.splitlines():
            rows.append([cell.strip() for cell in BAR.split(row[1:-1])])
        if rows[0] == headings:
            del rows[1]  # the rule below the headings
            return rows
    raise InputError(
        f"the command printed no table with the headings {headings}; the figures are as they were"
    )


def measure(name: str, table: str) -> None:
    """Run a table's command and keep its rows, and the machine's lines if it prints them."""
    content = read(name)
    about = content["tables"].get(table, {})
    if "command" not in about:
        raise InputError(f"docs/figures/{name}.toml has no command for {table}")
    if (here := machine.identity(machine.cpu())) != content["cpu"]:
        raise InputError(f"docs/figures/{name}.toml is of {content['cpu']}; this is {here}")
    done = subprocess.run(
        [sys.executable, "-m", *about["command"].split()[2:]], stdout=subprocess.PIPE, text=True
    )
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise InputError(
            f"{about['command']} ended with {done.returncode}; the figures are as they were"
        )
    about["rows"] = cells(done.stdout, about["rows"][0])
    if "machine" in about:  # some benchmarks print no line of it
        rates = [line for line in done.stdout.splitlines() if "GFLOP/s" in line]
        about["machine"] = [here, *rates]
    write(name, content)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--measure", nargs=2, metavar=("CPU", "TABLE"), help="anew, with the table's own command"
    )
    options = parser.parse_args(arguments)
    if options.measure:
        measure(*options.measure)
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := render(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name} written anew")
    if not CHART.exists() or CHART.read_text(encoding="utf-8") != chart():
        CHART.write_text(chart(), encoding="utf-8")
        print(f"{CHART.name} drawn anew")


if __name__ == "__main__":
    run_command(main)
