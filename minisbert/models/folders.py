"""Finding a model's folder, and replacing one atomically.

A loaded model's weights are not copied into memory: the file stays mapped, so that loading is fast. Everything here
replaces a file or folder by renaming a complete new one, which leaves the mapped file as it was: a model may be saved
over its own source, or fetched again, while it is in use. Another program that writes into the file itself (``cp``
over it, say) changes the vectors of models that are loaded, and one that truncates it ends their process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minisbert.core import InputError, one_line, read_json
from minisbert.models.backends import SENTENCEPIECE
from minisbert.models.settings import stated
from minisbert.models.text_settings import TEXT_FILES
from minisbert.models.tokenizer import FILES, VOCABULARY
from minisbert.system.assets import assets, ensure
from minisbert.system.files import MOST_BYTES, atomic_folder, foreign_entries, listed
from minisbert.system.hub import download_model, is_hub_name

REQUIRED = ("config.json", "model.safetensors")
INDEX = "model.safetensors.index.json"  # which tensor is in which shard
SHARDS = "model-[0-9]*-of-[0-9]*.safetensors"
SAVED = (  # every file that ``save``, sentence-transformers or transformers' tokenizers write for such a model
    *REQUIRED,
    INDEX,
    SHARDS,
    *FILES,
    *VOCABULARY,
    SENTENCEPIECE,
    "unigram.json",
    "added_tokens.json",
    *TEXT_FILES,
    "modules.json",
    "config_sentence_transformers.json",
    "README.md",
    "head.json",
    "head.safetensors",
    *(f"[0-9]_{module}/{name}" for module in ("Pooling", "Dense", "Normalize") for name in REQUIRED),
)


def find_model(model: str | Path) -> Path:
    """The folder of a model: a folder, a name of the manifest, or ``owner/name[@revision]`` on the Hugging Face Hub.

    A named model is downloaded if it is missing. Raises ``InputError`` for anything else, and for a file in the folder
    that cannot be read.
    """
    name = str(model)
    weights = [asset for asset, entry in assets().items() if entry.kind == "weights"]
    if name in weights:
        return ensure(name)
    if os.path.isdir(model):  # not Path.is_dir, which raises OSError for a name that is too long
        folder = Path(model)
    elif os.path.lexists(model):
        raise InputError(
            f"no model {one_line(name)}: {'a file' if os.path.exists(model) else 'a broken symbolic link'}"
        )
    elif isinstance(model, str) and is_hub_name(model):
        folder = download_model(name)
    else:
        raise InputError(
            f"no model {one_line(name)}: neither a folder nor one of {', '.join(weights)}; models on the Hugging Face "
            "Hub have an owner in their name, such as sentence-transformers/all-mpnet-base-v2"
        )
    check_files(folder)
    return folder


def check_files(folder: Path) -> None:
    """Raise ``InputError`` for a model's file that is a folder, a pipe, a device, a broken link, or far too large.

    Missing files are reported by those who need them. Modules in subfolders are looked at too.
    """
    names = {Path(name).name for name in SAVED}
    for parent in (folder, *(path for path in folder.iterdir() if path.is_dir() and path.name[:1].isdecimal())):
        for path in parent.iterdir():
            if path.name not in names:
                continue
            if not path.is_file():
                kind = "a pipe or a device" if path.exists() else "a link that leads nowhere"
                raise InputError(f"{path} is {'a folder' if path.is_dir() else kind}, a file is needed")
            if path.suffix != ".safetensors" and path.stat().st_size > MOST_BYTES:
                raise InputError(f"{path} has {path.stat().st_size:,} bytes; at most {MOST_BYTES:,} are read")


def weight_files(folder: Path) -> list[Path]:
    """``model.safetensors``, or the shards that an index names. Raises ``InputError`` for what is missing."""
    path, index = folder / "model.safetensors", folder / INDEX
    if path.is_file() or not index.is_file():
        check_present(path)
        return [path]
    where = stated(read_json(index), "weight_map", dict, index, {})
    names = sorted({stated(where, tensor, str, index, "") for tensor in where})
    if not names:
        raise InputError(f"{index} names no file (weight_map)")
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise InputError(f"{index}: {one_line(name)} is not the name of a safetensors file beside it")
        if not os.path.isfile(folder / name):  # not Path.is_file, which raises OSError for a name that is too long
            raise InputError(f"{index} names {one_line(name)}, which is missing: fetch it again")
    return [folder / name for name in names]


def check_present(path: Path) -> None:
    """Raise ``InputError`` if a safetensors file is missing, naming what is there instead."""
    if path.is_file():
        return
    hint = ""
    if path.with_name("pytorch_model.bin").exists():
        hint = f"; convert the old checkpoint: python -m minisbert.checkpoint convert {path.parent}/pytorch_model.bin"
    raise InputError(f"{path} is missing{hint}")


@contextmanager
def model_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to write a model to; on success it replaces ``folder`` (new, empty or a model) atomically.

    Raises ``InputError`` if ``folder`` holds anything that a saved model does not have.
    """
    check_replaceable(Path(folder))
    with atomic_folder(folder) as partial:
        yield partial
        check_replaceable(Path(folder))  # writing takes a while


def check_replaceable(folder: Path) -> None:
    """Raise ``InputError`` unless a folder is missing, empty, or a model and nothing else."""
    if foreign := foreign_entries(folder, SAVED):
        advice = "and is not replaced; choose another folder"
        raise InputError(f"{folder} holds what is not a model's ({listed(foreign)}) {advice}")
    required = ("config.json", INDEX) if (folder / INDEX).is_file() else REQUIRED
    missing = [name for name in required if not (folder / name).is_file()]
    if folder.is_dir() and any(folder.iterdir()) and missing:
        raise InputError(f"{folder} is not a model (no {missing[0]}) and is not replaced; choose another folder")
