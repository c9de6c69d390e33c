"""What the site adds to docs/commands.md: the options of each command.

A Sphinx extension. Everything comes from the parsers, so that the page says what ``--help`` says.
"""

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from minisbert.__main__ import COMMANDS, command
from minisbert.system.console import Parser
from minisbert.training.options import make_parser

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/commands"
# An example begins with one of these.
PROGRAMS = ("minisbert", "python", "torchrun", "sort", "curl")


class Asked(Exception):
    """Carries the parser whose ``parse_args`` was called."""


def ask(parser: Parser, *_: object) -> None:
    raise Asked(parser)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser that ``minisbert NAME`` reads its options with; run nothing else of it."""
    if name == "train":
        return make_parser()
    with patch.object(Parser, "parse_args", ask), patch.dict(os.environ):
        # It is the default of --api-key, which no build may publish.
        os.environ.pop("MINISBERT_API_KEY", None)
        try:
            command(name)([])
        except Asked as asked:
            return asked.args[0]
    raise RuntimeError(f"minisbert {name} has read no options")


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """Return the lines of a parser's description and epilog that can be typed."""
    lines = []
    for line in f"{parser.description}\n{parser.epilog or ''}".splitlines():
        line = line.strip().removeprefix("Examples:").strip()
        line = re.sub(r" {3,}(?=\w)", "    # ", line)  # a remark behind several spaces
        words = line.split(" ")
        if words[0] in PROGRAMS and len(words) > 1:
            lines.append(line)
    return lines


def spelled(action: argparse.Action) -> str:
    """Return an option as ``--help`` spells it: ``--top K``, ``--split {train,dev,test}``."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return value
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    if action.nargs == "?":
        value = f"[{value}]"
    return f"{', '.join(action.option_strings)} {value}"


def about(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return an option's help, with its default if the help does not say it."""
    formatter = parser._get_formatter()  # it puts %(default)s in; argparse has no public way
    text = formatter._expand_help(action) if action.help else ""
    unset = (None, False, "", argparse.SUPPRESS, [])
    if action.default not in unset and "default" not in text:
        text += f" (default: {action.default})"
    return text.strip()


def table(parser: argparse.ArgumentParser) -> list[str]:
    """Return Markdown with a table for each group of a parser's options, and its actions."""
    lines: list[str] = []
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                titles = {choice.dest: choice.help for choice in action._choices_actions}
                for name, below in action.choices.items():
                    title = titles.get(name, "")
                    lines += ["", f"`{parser.prog} {name}`: {title}", *table(below)]
            elif action.help != argparse.SUPPRESS and action.dest not in ("help", "version"):
                code = spelled(action).replace("|", r"\|").replace(",", ", ")
                rows.append(f"| `{code}` | {as_markdown(about(parser, action))} |")
        if rows:
            title = (group.title or "").replace("positional arguments", "arguments")
            lines += ["", f"| {title} | |", "|---|---|", *rows]
    return lines


def as_markdown(text: str) -> str:
    """Show a help text as it is written, but an option as code."""
    text = re.sub(r"([\\`*_{}\[\]<>|$#])", r"\\\1", text)
    return re.sub(r"(?<![\w-])--[a-z][\w-]*", lambda found: f"`{found[0]}`", text)


def generated(name: str) -> str:
    """Return what the site adds to the section of a command: its options, folded."""
    parser = parser_of(name)
    lines = [f":::{{dropdown}} All options of {name}", ":class-container: options", *table(parser)]
    return "\n".join([*lines, ":::", ""])


def add_options(app: "Sphinx", page: str, source: list[str]) -> None:
    """Put the options of each command at the end of its section."""
    if page == PAGE:
        for name in COMMANDS:
            before, heading, section = source[0].partition(f"\n## {name}\n")
            if not heading:
                raise ValueError(f"{PAGE}.md has no heading {name!r}")
            section, next_heading, after = section.partition("\n## ")
            section = f"{section}\n{generated(name)}"
            source[0] = before + heading + section + next_heading + after


def note_parsers(app: "Sphinx", env: object, *_: object) -> list[str]:
    """Read the page anew at every build: its options stand in other files."""
    return [PAGE]


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("source-read", add_options)
    app.connect("env-get-outdated", note_parsers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
