"""The measured tables of the docs: one file per CPU in docs/figures/ fills the tables of the pages.

    python -m benchmarks.figures                        write the tables of all pages anew
    python -m benchmarks.figures --measure zen4 start   run that table's command, keep its output

A table stands below a comment that names its file and itself, ``<!-- figures: zen4 start -->``. A
file says which CPU it is of, and ``--measure`` refuses to run on another one; of a new CPU write a
file with the line that ``benchmarks.machine`` prints first, the commands to be run and the headings
that they print. A table that was put together from several runs has their ``commands``.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    run_command(main)
