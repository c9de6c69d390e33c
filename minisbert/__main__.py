"""The command ``minisbert``: ``minisbert train --epochs 4`` is ``python -m minisbert.train --epochs 4``."""

import argparse
import os
import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

import minisbert
from minisbert.core import one_line
from minisbert.system.console import run_command, say
from minisbert.system.help_pages import print_page


def files() -> dict[str, Path]:
    """The file of each command by name. ``inspect_.py`` and ``trace_.py`` leave the standard library's names alone."""
    package = Path(__file__).parent
    paths = [package / "train.py", *(package / "commands").glob("*.py")]
    named = {path.stem.rstrip("_").replace("_", "-"): path for path in paths if is_command(path)}
    return dict(sorted(named.items()))


def is_command(path: Path) -> bool:
    """Whether a file ends in a call of ``run_command``, as each command does."""
    return 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def about(path: Path) -> str:
    """The first line of a command's file, which is read but not imported."""
    return path.read_text(encoding="utf-8").partition("\n")[0].strip('"').replace("``", "")


def overview() -> None:
    """The names of all commands."""
    print("usage: minisbert COMMAND ...\n")
    for name, path in files().items():
        print(f"  {name:<16}{about(path)}")
    print("\nminisbert COMMAND --help shows a command's options; minisbert --version versions.")


def complete() -> None:
    """Complete a command's name here; behind it, have its own parser complete its options (``Parser.parse_args``)."""
    typed = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = typed.split()
    if len(words) > 1 and typed.startswith(f"{words[0]} {words[1]} "):
        sys.argv[1:] = [words[1]]
        os.environ["_ARGCOMPLETE"] = "2"  # the first two words are the command
        return
    import argcomplete

    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=files())
    argcomplete.autocomplete(parser)


def main() -> None:
    if "_ARGCOMPLETE" in os.environ:
        complete()
    if sys.argv[1:2] == ["help"]:  # help train: train --help
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        run_command(overview)
        return
    if name == "--version":
        name = "version"
    name = name.replace("_", "-")
    if name not in files():
        near = get_close_matches(name, files(), n=1)
        advice = f"did you mean {near[0]}?" if near else "minisbert alone lists the commands"
        say(f"error: minisbert has no command {one_line(name)}: {advice}")
        sys.exit(2)
    del sys.argv[1]
    print_page(name, sys.argv[1:])
    minisbert.start_command()
    module = "minisbert.train" if name == "train" else f"minisbert.commands.{files()[name].stem}"
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
