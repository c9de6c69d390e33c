"""Models on the Hugging Face Hub by name, in the cache that huggingface_hub keeps for all libraries.

``owner/name`` is the newest revision, ``owner/name@revision`` a branch, a tag or a commit. The library's environment
variables apply: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN. Weights come as safetensors only: a
pickle, which can execute code, is never downloaded.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minisbert.core import InputError, one_line
from minisbert.system.console import say
from minisbert.system.files import BROKEN_DISK, listed

SECONDS = 5  # for the hub's first answer; huggingface_hub itself would wait for minutes
MODEL_FILES = ["*.json", "model.safetensors", "model-*-of-*.safetensors", "[0-9]_*/*.safetensors"]
MODEL_FILES += ["vocab.txt", "merges.txt", "*.model"]  # *.model: SentencePiece
OTHER_FOLDERS = "[!0-9]*/*"  # onnx, openvino; the folders of modules begin with a digit
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def is_hub_name(model: str) -> bool:
    """Whether this is ``owner/name`` or ``owner/name@revision``; ``./a/b``, ``a/b/c`` and ``~/a`` are paths."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@.+)?", model, re.ASCII) is not None


def download_model(name: str, revision: str | None = None) -> Path:
    """Download what the cache lacks of a model and return its folder there; ``name`` may end in @revision.

    Raises ``InputError`` with the remedy: an unknown name or revision, a gated model, no network, a full disk, or a
    repository without safetensors.
    """
    name, _, given = name.partition("@")
    folder, listing = snapshot(name, revision or given or None, MODEL_FILES, OTHER_FOLDERS)
    if any((folder / file).is_file() for file in ("model.safetensors", "model.safetensors.index.json")):
        return folder
    problem = f"has no model.safetensors{'' if listing else f' in {folder}'}: choose another repository"
    if pickles := [file for file in listing if file.endswith(PICKLES)]:
        problem = (
            f"has weights only as pickles ({one_line(pickles[0])}), which can execute code: choose a repository with "
            "model.safetensors, or download the file yourself and run minisbert checkpoint convert"
        )
    raise InputError(f"{name} {problem}")


def offline() -> bool:
    """Whether ``MINISBERT_OFFLINE`` forbids downloads."""
    return os.environ.get("MINISBERT_OFFLINE", "0") not in ("", "0")


def snapshot(
    name: str, revision: str | None, patterns: Sequence[str], ignored: str | None = None
) -> tuple[Path, list[str]]:
    """The folder in the cache with the files of a repository that match, and the names of all its files.

    The newest revision that the hub has; if the hub cannot be asked, the one in the cache, and no names.
    """
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache  # here: they take 0.2 s
    from huggingface_hub.utils import filter_repo_objects, tqdm

    class DownloadBar(tqdm):  # the library's, shown on a terminal while there is something to download
        def __init__(self, *arguments: Any, **options: Any):
            options["disable"] = not missing or not sys.stderr.isatty()
            super().__init__(*arguments, **options)

    local = constants.HF_HUB_OFFLINE or offline()
    wanted: dict[str, Any] = {"allow_patterns": list(patterns), "ignore_patterns": ignored}
    listing: list[str] = []
    missing: list[str] = []
    failure = None
    try:
        if not local:
            found = HfApi().model_info(name, revision=revision, timeout=SECONDS)
            listing = [file.rfilename for file in found.siblings or []]
            missing = [
                file
                for file in filter_repo_objects(listing, **wanted)
                if not isinstance(try_to_load_from_cache(name, file, revision=found.sha), str)
            ]
    except Exception as error:  # of this library, the one below it, or a proxy in between
        failure, local = error, True
    if missing:
        say(f"downloading {name} from {constants.ENDPOINT}: {listed(missing)}")
    try:
        folder = snapshot_download(name, revision=revision, local_files_only=local, tqdm_class=DownloadBar, **wanted)
    except Exception as error:
        raise InputError(explained(name, revision, failure or error)) from error
    if failure:
        say(f"{constants.ENDPOINT} cannot serve {name} ({reason(failure)}); using {folder}")
    return Path(folder), listing


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
