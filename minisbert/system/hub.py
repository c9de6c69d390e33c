"""Models on the Hugging Face Hub by name, in the cache that huggingface_hub keeps for all libraries.

``owner/name`` is the newest revision, ``owner/name@revision`` a branch, a tag or a commit. The library's environment
variables apply: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN. Weights come as safetensors only: a
pickle, which can execute code, is never downloaded.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import BROKEN_DISK, listed

SECONDS = 5  # for the hub's first answer; huggingface_hub itself would wait for minutes
MODEL_FILES = ["*.json", "model.safetensors", "model-*-of-*.safetensors", "vocab.txt", "merges.txt", "*.model"]
NEEDED = ["modules.json", "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"]
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def is_hub_name(model: str) -> bool:
    """Whether this is ``owner/name`` or ``owner/name@revision``; ``./a/b``, ``a/b/c`` and ``~/a`` are paths."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@.+)?", model, re.ASCII) is not None


def download_model(name: str, revision: str | None = None) -> Path:
    """Download what the cache lacks of a model and return its folder there; ``name`` may end in @revision.

    Its files are those of the repository's root and of the folders that ``modules.json`` names. Raises ``InputError``
    with the remedy: an unknown name or revision, a gated model, no network, a full disk, or weights without
    safetensors.
    """
    name, _, given = name.partition("@")
    folder, listing = snapshot(name, revision or given or None, model_files)
    places = module_folders(folder / "modules.json")
    files = listing or [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    weights = {str(PurePosixPath(file).parent) for file in files if file.endswith(".safetensors")}
    pickles = [file for file in files if file.endswith(PICKLES)]
    for file in pickles:
        place = str(PurePosixPath(file).parent)
        if place in places and place not in weights:
            remedy = "choose a repository with model.safetensors, or download the file yourself and run"
            problem = f"has weights only as pickles ({one_line(file)}), which can execute code"
            raise InputError(f"{name} {problem}: {remedy} minisbert checkpoint convert")
    if not weights & places:
        where = "" if listing else f" in {folder}"
        raise InputError(f"{name} has no model.safetensors{where}: choose another repository")
    return folder


def model_files(files: Sequence[str], modules: Path | None) -> list[str]:
    """Of a repository's files those that a model is read from; ``modules`` is its ``modules.json``, if it has one."""
    places = module_folders(modules)
    chosen = []
    for file in files:
        path = PurePosixPath(file)
        if str(path.parent) in places and any(fnmatchcase(path.name, pattern) for pattern in MODEL_FILES):
            chosen.append(file)
    return chosen


def module_folders(modules: Path | None) -> set[str]:
    """The root, ".", and the folders that a ``modules.json`` names; only the root if it is missing or damaged."""
    places = {"."}
    if modules is None or not modules.is_file():
        return places
    with suppress(ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        for module in json.loads(modules.read_text(encoding="utf-8")):
            places.add(str(PurePosixPath(module["path"])))
    return places


def offline() -> bool:
    """Whether ``MINISBERT_OFFLINE`` forbids downloads."""
    return os.environ.get("MINISBERT_OFFLINE", "0") not in ("", "0")


def snapshot(
    name: str, revision: str | None, choose: Callable[[Sequence[str], Path | None], Sequence[str]]
) -> tuple[Path, list[str]]:
    """The folder in the cache with some files of a repository, and the names of all its files.

    ``choose`` is given these names and the repository's ``modules.json``, if it has one, and returns the files to
    download. The newest revision that the hub has; if the hub cannot be asked, the one in the cache, and no names.
    """
    # here: they take 0.2 s
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils import tqdm

    class DownloadBar(tqdm):  # the library's, shown on a terminal while there is something to download
        def __init__(self, *arguments: Any, **options: Any):
            options["disable"] = not missing or not sys.stderr.isatty()
            super().__init__(*arguments, **options)

    local = constants.HF_HUB_OFFLINE or offline()
    listing: list[str] = []
    missing: list[str] = []
    wanted: list[str] | None = None
    failure = None
    try:
        if not local:
            found = HfApi().model_info(name, revision=revision, timeout=SECONDS)
            listing = [file.rfilename for file in found.siblings or []]
            modules = None
            if "modules.json" in listing:
                modules = Path(hf_hub_download(name, "modules.json", revision=found.sha))
            chosen = choose(listing, modules)
            wanted = [escape(file) for file in chosen]
            missing = [
                file for file in chosen if not isinstance(try_to_load_from_cache(name, file, revision=found.sha), str)
            ]
    except Exception as error:  # of this library, the one below it, or a proxy in between
        failure, local = error, True
    if missing:
        say(f"downloading {name} from {constants.ENDPOINT}: {listed(missing)}")
    if local:
        wanted, revision = cached_files(name, revision)
    options: dict[str, Any] = {"local_files_only": local, "allow_patterns": wanted, "tqdm_class": DownloadBar}
    try:
        folder = snapshot_download(name, revision=revision, **options)
    except Exception as error:
        raise InputError(explained(name, revision, failure or error)) from error
    if failure:
        say(f"{constants.ENDPOINT} cannot serve {name} ({reason(failure)}); using {folder}")
    return Path(folder), listing


def cached_files(name: str, revision: str | None) -> tuple[list[str], str | None]:
    """The files without which a cached model is not complete, and the commit that the cache has for a branch or tag."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    places = {"."}
    with suppress(OSError, ValueError):
        folder = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"))
        # other programs end the file with a newline
        revision = (folder / "refs" / (revision or "main")).read_text(encoding="ascii").strip()
        places = module_folders(folder / "snapshots" / revision / "modules.json")
    return [escape(str(PurePosixPath(place, file))) for place in places for file in NEEDED], revision


def explained(name: str, revision: str | None, error: Exception) -> str:
    """One line about a failed download, with the remedy."""
    from huggingface_hub import constants, errors

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its terms at {hub}/{name}, then set HF_TOKEN or run: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {one_line(revision)}: give a branch, a tag or a commit of {hub}/{name}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{name} is neither a local folder nor a model on {hub}; a private model needs HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"{one_line(name)} is neither a folder nor a name on {hub}: {reason(error)}"
    if isinstance(error, OSError) and error.errno in BROKEN_DISK:
        return f"{name} does not fit into {cache} ({error.strerror}): free some space, or set HF_HOME to another disk"
    if constants.HF_HUB_OFFLINE or offline():
        return f"{name} is not in {cache}, or not all of it, and downloads are switched off (offline mode)"
    return f"{name} is neither a local folder nor in {cache}, and {hub} cannot be reached ({reason(error)})"


def reason(error: Exception) -> str:
    """The first line of an error's message, safe for any terminal."""
    return one_line((str(error).strip() or type(error).__name__).splitlines()[0][:200], 200)[1:-1]
