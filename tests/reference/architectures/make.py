"""Make the golden files of ``minisbert/architectures``, as ``make_reference.py`` the others.

    python -m tests.reference.architectures.make          write tiny checkpoints and golden files
    python -m tests.reference.architectures.make --check  make them in memory and compare
    python -m tests.reference.architectures.make mpnet    only those of some modules

Each module beside this one has ``FOLDERS``: names, and functions that write a sentence model of
that name. The golden file has ids, layers, vectors and gradients; for a module with ``LAYERS`` the
states of these layers, and vectors of texts and of queries; for one with ``golden(name)`` what that
function returns.
"""

import argparse
import importlib
import json
import pkgutil
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file
from torch import Tensor

from minisbert.integrations.transformers import in_double
from tests.reference import architectures
from tests.reference import make_reference as book
from tests.reference.texts import SENTENCES

SKIPPED = ("make",)


def golden(
    write: Callable[[Path], None], modeling: ModuleType, layers: tuple[int, ...]
) -> dict[str, Tensor]:
    """Ids, the states of some layers, and vectors of texts and of queries."""
    with in_double(modeling), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "model")
        model = book.SentenceTransformer(str(Path(folder) / "model"), device="cpu").double().eval()
        batch = model.tokenizer(
            list(SENTENCES), padding="longest", truncation=True, return_tensors="pt"
        )
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        states = model[0].model(**inputs, output_hidden_states=True).hidden_states
        found = {"ids": batch["input_ids"], "mask": batch["attention_mask"].bool()}
        found |= {f"layers.{i}": states[i + 1] for i in layers}
        found["vectors"] = model.encode(list(SENTENCES), convert_to_tensor=True)
        found["queries"] = model.encode(
            list(SENTENCES), prompt_name="query", convert_to_tensor=True
        )
    return {key: value.clone() for key, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reference.architectures.make", description=__doc__
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with the committed files and write nothing"
    )
    parser.add_argument("names", nargs="*", help="of modules (default: all)")
    options = parser.parse_args()
    names = options.names or [
        each.name
        for each in pkgutil.iter_modules(architectures.__path__)
        if each.name not in SKIPPED
    ]
    problems: list[str] = []
    for module in (
        importlib.import_module(f"tests.reference.architectures.{name}") for name in names
    ):
        for name, write in module.FOLDERS.items():
            book.FOLDERS[name] = write
            folder, path = book.HERE / "architectures" / name, f"architectures/{name}"
            if not options.check:
                shutil.rmtree(folder, ignore_errors=True)
                write(folder)
            if hasattr(module, "LAYERS"):
                values = golden(write, module.MODELING, module.LAYERS)
            else:
                values = getattr(module, "golden", book.family_golden)(name)
            values = {key: value.detach().contiguous() for key, value in values.items()}
            if options.check:
                problems += book.check(path, values) + book.check_folder(folder, write)
            else:
                save_file(values, book.HERE / f"{path}.safetensors", metadata=book.metadata())
    print(
        "\n".join(problems).replace("make_reference", "architectures.make")
        or json.dumps(book.metadata())
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
