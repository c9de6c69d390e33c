"""A directive that lists all options of a command from its own parser, and an index of the pages for programs.

```{options} encode
```
"""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from minisbert.system.command_line import Parser
from minisbert.training.run_options import make_parser

FILES = {"inspect": "inspect_", "trace": "trace_"}  # whose names belong to the standard library


class ParserFound(Exception):
    """Raised by a command in place of reading its arguments, with the parser that would have read them."""


def parser_of(command: str) -> argparse.ArgumentParser:
    """The parser that a command makes, or the one in its file, without running the command."""
    if command == "train":
        return make_parser(advanced=True)
    module = import_module(f"minisbert.commands.{FILES.get(command, command.replace('-', '_'))}")

    def found(self: Parser, *_: Any, **__: Any) -> None:
        raise ParserFound(self)

    with mock.patch.object(Parser, "parse_args", found), mock.patch.object(Parser, "parse_known_args", found):
        try:
            module.main([])
        except ParserFound as error:
            return error.args[0]
    raise ValueError(f"{command} made no parser")


def spelled(action: argparse.Action) -> str:
    """An option as it is typed: ``-f, --file FILE``."""
    value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 else "")


def explained(action: argparse.Action, program: str) -> str:
    """What ``--help`` says about an option, its default in it, and what it may be."""
    about = (action.help or "") % (vars(action) | {"prog": program})
    if action.choices and not action.metavar:
        about += f"; one of {', '.join(map(str, action.choices))}"
    return about


class Options(Directive):
    """The options of a command, group by group, with what ``--help`` says about each."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.lists(parser_of(self.arguments[0]))

    def lists(self, parser: argparse.ArgumentParser) -> list[nodes.Node]:
        """A list for each group of options that has any, and those of subcommands behind their names."""
        made: list[nodes.Node] = []
        for group in parser._action_groups:
            items = nodes.definition_list(classes=["options"])
            for action in group._group_actions:
                if isinstance(action, argparse._SubParsersAction):
                    for name, sub in action.choices.items():
                        made += [nodes.paragraph("", "", nodes.literal(text=f"{parser.prog} {name}")), *self.lists(sub)]
                elif action.help != argparse.SUPPRESS and action.dest not in ("help", "help_all", "version"):
                    about = explained(action, parser.prog)
                    term = nodes.term("", "", nodes.literal(text=spelled(action)))
                    items += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=about)))
            if len(items):
                title = "" if group.title in ("positional arguments", "options") else group.title
                made += [nodes.paragraph(text=title)] if title else []
                made.append(items)
        return made


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Write ``llms.txt``, a list of all pages with their first sentences, for programs that look for one."""
    if error or app.builder.name != "html":
        return
    lines = [f"# {app.config.project}", "", "> Sentence embeddings in plain PyTorch: a book, a course, a package.", ""]
    for name in sorted(app.env.found_docs, key=lambda name: (name != app.config.root_doc, name)):
        page = app.env.get_doctree(name)
        first = next((p.astext().replace("\n", " ") for p in page.findall(nodes.paragraph)), "")
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.html): {first[:200]}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("options", Options)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
