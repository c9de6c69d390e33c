"""The tables of names in docs/from-sentence-transformers.md, from ``minisbert/replacements.py``.

    python -m docs.tools.replacement_tables     write them anew

A table stands below a comment that names it, ``<!-- names: UTIL -->``. A test compares the page
with what this file would write.
"""

import re
from pathlib import Path

from minisbert import replacements

PAGE = Path(__file__).parents[1] / "from-sentence-transformers.md"
PLACE = re.compile(r"^<!-- names: (\w+) -->\n(?:\|.*\n)*", re.MULTILINE)


def rendered(name: str) -> str:
    """Return the comment and the table; names with the same replacement share a row."""
    rows: dict[str, list[str]] = {}
    for theirs, ours in getattr(replacements, name).items():
        rows.setdefault(ours, []).append(f"`{theirs}`")
    lines = [f"<!-- names: {name} -->", "| sentence-transformers | minisbert |", "|---|---|"]
    for ours, theirs in rows.items():
        lines.append(f"| {', '.join(theirs)} | {ours} |")
    return "\n".join([*lines, ""])


def render(text: str) -> str:
    """Return a page with its tables as ``replacements.py`` has them."""
    return PLACE.sub(lambda place: rendered(place[1]), text)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
