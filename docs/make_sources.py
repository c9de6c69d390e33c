"""Render docs/sources.toml, the items of the five texts, into tests/provenance.md: python docs/make_sources.py."""

import tomllib
from collections import Counter
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS.parent / "tests" / "provenance.md"
BEGIN, END = "<!-- begin: docs/make_sources.py -->\n", "<!-- end: docs/make_sources.py -->\n"
STATUSES = ("exact", "different", "out", "missing")


def texts() -> dict[str, dict]:
    """The texts by name, S0 to S4, each with ``about`` and ``items``."""
    return tomllib.loads((DOCS / "sources.toml").read_text(encoding="utf-8"))


def render() -> str:
    """The texts, the count of each status, and a table of the items of each text."""
    found = texts()
    counts = {name: Counter(item[2] for item in text["items"]) for name, text in found.items()}
    lines = ["| text | what it is | items | " + " | ".join(STATUSES) + " |", "|---|---|---|" + "---|" * len(STATUSES)]
    for name, text in found.items():
        numbers = " | ".join(str(counts[name][status]) for status in STATUSES)
        lines.append(f"| {name} | {text['about']} | {len(text['items'])} | {numbers} |")
    total = sum(counts.values(), Counter())
    lines.append(f"| all | | {total.total()} | " + " | ".join(str(total[status]) for status in STATUSES) + " |")
    for name, text in found.items():
        lines += ["", f"### {name}", "", "| item | lines | what | status | where |", "|---|---|---|---|---|"]
        for number, (where, what, status, path, _) in enumerate(text["items"], 1):
            link = ""
            if path:
                link = f"[{path}](../{path})"
            lines.append(f"| {name}-{number:02} | {where} | {what.replace('|', chr(92) + '|')} | {status} | {link} |")
    return "\n".join(lines) + "\n"


def replaced(page: str) -> str:
    """The page with a fresh rendering between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + render() + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
