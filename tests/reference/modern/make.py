"""Make the golden files of the architectures in ``minisbert/models/modern``, as ``make_reference.py`` does the others.

    python -m tests.reference.modern.make            write the tiny checkpoints and the golden files beside this one
    python -m tests.reference.modern.make --check    make them again in memory and compare with the committed ones
    python -m tests.reference.modern.make mpnet      only those of some modules

Each module beside this one has ``FOLDERS``: names, and functions that write a sentence model of that name. A module
whose values are others than ids, layers, vectors and gradients also has ``golden(name)``, which makes them.
"""

import argparse
import importlib
import json
import pkgutil
import shutil
import sys

from safetensors.torch import save_file

from tests.reference import make_reference as book
from tests.reference import modern

SKIPPED = ("make",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reference.modern.make", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    parser.add_argument("names", nargs="*", help="of modules (default: all)")
    options = parser.parse_args()
    names = options.names or [each.name for each in pkgutil.iter_modules(modern.__path__) if each.name not in SKIPPED]
    problems: list[str] = []
    for module in (importlib.import_module(f"tests.reference.modern.{name}") for name in names):
        for name, write in module.FOLDERS.items():
            book.FOLDERS[name] = write
            folder, path = book.HERE / "modern" / name, f"modern/{name}"
            if not options.check:
                shutil.rmtree(folder, ignore_errors=True)
                write(folder)
            values = getattr(module, "golden", book.family_golden)(name)
            values = {key: value.detach().contiguous() for key, value in values.items()}
            if options.check:
                problems += book.check(path, values) + book.check_folder(folder, write)
            else:
                save_file(values, book.HERE / f"{path}.safetensors", metadata=book.metadata())
    print("\n".join(problems).replace("make_reference", "modern.make") or json.dumps(book.metadata()))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
