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
from minisbert.system.files import BROKEN_DISK

HUB_SECONDS = 5  # for the hub's first answer

# In these patterns * matches a slash too. Modules lie in folders of any name, so the exports that many repositories
# hold beside a model are named: each repeats the model's settings, some its weights.
READ = ("*.json", "*vocab.txt", "*merges.txt", "*.model", "model.safetensors", "*/model.safetensors")
READ = (*READ, "model-*-of-*.safetensors", "*/model-*-of-*.safetensors")
NOT_READ = ("onnx/*", "openvino/*", "coreml/*", "checkpoint-*/*")


def is_hub_name(model: str) -> bool:
    """Return whether this is ``owner/name`` or ``owner/name@revision``; ``./a/b``, ``a/b/c`` and ``~/a`` are paths."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@.+)?", model, re.ASCII) is not None


def offline() -> bool:
    """Return whether ``MINISBERT_OFFLINE`` forbids downloads."""
    return os.environ.get("MINISBERT_OFFLINE", "0") not in ("", "0")


def download_model(name: str, revision: str | None = None) -> Path:
    """Download what the cache lacks of a model and return its folder there; ``name`` may end in @revision.

    If the hub cannot be asked, the revision in the cache is used. Raises ``InputError`` with the remedy: an unknown
    name or revision, a gated model, no network, a full disk, or weights without safetensors.
    """
    name, _, given = name.partition("@")
    folder = snapshot(name, revision or given or None, READ)
    if not any(folder.rglob("*.safetensors")):
        raise InputError(
            f"{name} has no model.safetensors, and a pickle can execute code: choose another repository, or download "
            f"the pickle yourself and convert it as docs/assets.md says (the other files are in {folder})"
        )
    return folder


def snapshot(name: str, revision: str | None, files: Sequence[str]) -> Path:
    """Return the folder in the cache with the files of a repository that match the patterns ``files``."""
    from huggingface_hub import HfApi, constants, snapshot_download  # here: it takes .2 s
    from huggingface_hub.utils import tqdm

    class DownloadBar(tqdm):
        """The library's bar, on a terminal only, and only for what takes a second: not for a look into the cache."""

        def __init__(self, *arguments: Any, **options: Any):
            options.update(disable=not sys.stderr.isatty(), delay=1, leave=False)
            super().__init__(*arguments, **options)

    local, failure = constants.HF_HUB_OFFLINE or offline(), None
    options: dict[str, Any] = {"allow_patterns": [*files], "ignore_patterns": [*NOT_READ], "tqdm_class": DownloadBar}
    try:
        # asked first, because behind a firewall that answers nothing the download tries for minutes
        if not local:
            HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:  # of this library, the one below it, or a proxy in between
        local, failure = True, error
    try:
        folder = snapshot_download(name, revision=revision, local_files_only=local, **options)
    except Exception as error:
        raise InputError(explained(name, revision, failure or error)) from error
    if failure:  # it may be an old revision
        say(f"{constants.ENDPOINT} cannot serve {name} ({first_line(failure)}); using {folder}")
    return Path(folder)


def explained(name: str, revision: str | None, error: Exception) -> str:
    """Describe a failed download in one line, with the remedy."""
    from huggingface_hub import constants, errors

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its terms at {hub}/{name}, then set HF_TOKEN or run: hf auth login"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {one_line(revision)}: give a branch, a tag or a commit of {hub}/{name}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{name} is neither a local folder nor a model on {hub}; a private model needs HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"{one_line(name)} is neither a folder nor a name on {hub}: {first_line(error)}"
    if isinstance(error, OSError) and error.errno in BROKEN_DISK:
        return f"{name} does not fit into {cache} ({error.strerror}): free some space, or set HF_HOME to another disk"
    if constants.HF_HUB_OFFLINE or offline():
        return f"{name} is not in {cache}, or not all of it, and downloads are switched off (offline mode)"
    reason = first_line(error)
    return f"{name} is neither a local folder nor (completely) in {cache}, and {hub} cannot be reached ({reason})"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, safe for any terminal."""
    return one_line((str(error).strip() or type(error).__name__).splitlines()[0], 200)[1:-1]
