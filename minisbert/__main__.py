"""The command ``minisbert``: ``minisbert NAME`` runs ``commands/NAME.py``."""

import sys
from importlib import import_module
from pathlib import Path

from minisbert import __version__
from minisbert.core import InputError, one_line
from minisbert.system.console import run_command


def command_files() -> dict[str, Path]:
    """Return the file of each command by name: those that end in a call of ``run_command``.

    ``inspect_.py`` and ``trace_.py`` leave the standard library's names alone.
    """
    # read and not imported, so that a list of names costs no imports
    package = Path(__file__).parent
    named = {}
    for path in (package / "commands").glob("*.py"):
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8"):
            named[path.stem.rstrip("_").replace("_", "-")] = path
    return dict(sorted(named.items()))


def overview() -> None:
    """Print the first line of each command's file, which is read but not imported."""
    print("usage: minisbert COMMAND ...\n")
    for name, path in command_files().items():
        about = path.read_text(encoding="utf-8").partition("\n")[0].strip('"').replace("``", "")
        print(f"  {name:<16}{about}")
    print("\nminisbert COMMAND --help shows a command's options; minisbert --version the version.")


def dispatch() -> None:
    """Run the command that ``sys.argv`` names, whose own parser reads the rest."""
    if sys.argv[1:2] == ["help"]:  # help train: train --help
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        overview()
        return
    if name == "--version":
        print(f"minisbert {__version__}")
        return
    name = name.replace("_", "-")
    files = command_files()
    if name not in files:
        raise InputError(f"minisbert has no command {one_line(name)}; minisbert alone lists the commands")
    del sys.argv[1]  # the command's own parser reads what is left
    import_module(f"minisbert.commands.{files[name].stem}").main()


def main() -> None:
    run_command(dispatch)


if __name__ == "__main__":
    main()
