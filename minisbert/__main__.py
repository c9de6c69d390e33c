"""The command ``minisbert``: ``minisbert train --epochs 4`` is ``python -m minisbert.train --epochs 4``."""

import runpy
import sys
from difflib import get_close_matches
from pathlib import Path

import minisbert
from minisbert.core import one_line
from minisbert.system.console import run_command, say


def commands() -> dict[str, str]:
    """What each command does, by name: the first line of its file, which is read but not imported."""
    files = [path for path in sorted(Path(__file__).parent.glob("*.py")) if not path.stem.startswith("_")]
    return {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].strip('"').replace("``", "") for path in files
    }


def overview() -> None:
    """The names of all commands, or the version."""
    if sys.argv[1:] == ["--version"]:
        print(f"minisbert {minisbert.__version__}")
        return
    print("usage: minisbert COMMAND ...\n")
    for name, about in commands().items():
        print(f"  {name:<16}{about}")
    print("\nminisbert COMMAND --help shows a command's options; minisbert --version the version.")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help", "--version"):
        run_command(overview)
    elif (name := name.replace("-", "_")) not in commands():  # distill-static is distill_static
        near = get_close_matches(name, commands(), n=1)
        advice = f"did you mean {near[0]}?" if near else "minisbert alone lists the commands"
        say(f"error: minisbert has no command {one_line(name)}: {advice}")
        sys.exit(2)
    else:
        del sys.argv[1]
        minisbert.start_command()
        runpy.run_module(f"minisbert.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
