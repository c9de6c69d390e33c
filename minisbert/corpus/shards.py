"""Encode a file in shards: a folder of ``.npy`` files that survives a kill at any time.

    minisbert encode --file sentences.txt --out shards --shard-rows 100000

Shards and manifest (``corpus/manifest.py``) are replaced atomically, and a shard counts only if its file has the hash
in the manifest; so a second start encodes only what is missing or damaged.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from minisbert.core import InputError
from minisbert.corpus.index import differences, made_from, text_line, texts_hash
from minisbert.corpus.manifest import Manifest, read_manifest
from minisbert.data.texts import every_text
from minisbert.loading import Encoder
from minisbert.models.prompts import choose_prompt
from minisbert.search.vector_files import write_npy
from minisbert.system.console import say
from minisbert.system.devices import choose_dtype
from minisbert.system.files import LITTER, atomic_file, listed, lock, recover
from minisbert.system.progress import Bar


def encode_shards(
    encoder: Encoder, file: str, folder: Path, shard_rows: int, overwrite: bool = False, **options: Any
) -> None:
    """Encode the shards of ``file`` that ``folder`` lacks. ``options`` are those of ``encode``.

    Raises ``InputError`` for a folder that was made with another input, model or option, which ``overwrite`` replaces,
    for one that holds other files, and for an input that changes while it is read. Complete shards stay in any case.
    """
    if encoder.vectors_are != "dense":
        raise InputError(f"--shard-rows is for arrays of vectors, not for those of a {type(encoder).__name__}")
    check_foreign(folder)  # before anything is created there
    planned = plan(encoder, file, folder, shard_rows, options)
    with locked(folder):
        manifest = read_manifest(folder)
        if manifest is None or manifest.made != planned.made:
            changed = manifest and differences(manifest.made, planned.made)
            if changed and not overwrite:
                remedy = "give what it was made with, choose another --out, or --overwrite to start over"
                raise InputError(f"{folder} was made with {changed}: {remedy}")
            planned.write()
            manifest = planned
        clean_up(manifest)
        written, truncated = write_shards(encoder, file, manifest, options)
    rows = sum(manifest.shape(shard)[0] for shard in written)
    if truncated:
        say(encoder.tokenizer.cut_message(truncated, rows))
    said = f"wrote {len(written):,} shards with {rows:,} vectors of width {manifest.made['width']} to {folder}"
    if len(written) < len(manifest.shards):
        said += f"; {len(manifest.shards) - len(written):,} were complete"
    say(said)


def plan(encoder: Encoder, file: str, folder: Path, shard_rows: int, options: dict[str, Any]) -> Manifest:
    """The manifest of shards that are still to be encoded. Reads the whole file, and so checks every line."""
    example = encoder.encode(["a"], **options)  # (1, D); an option that is out of range is found here
    computed = getattr(encoder, "compiled_dtype", None)
    if computed is None:
        computed = str(choose_dtype(options.get("dtype") or "float32", encoder.device)[0]).removeprefix("torch.")
    prompt = choose_prompt(encoder.settings, options.get("prompt"), options.get("prompt_name"))
    made = made_from(encoder, prompt) | {
        "normalize_embeddings": str(bool(options.get("normalize_embeddings"))),
        "computed": computed,
        "shard_rows": str(shard_rows),
        "dtype": str(example.dtype),
    }
    texts = iter(Bar(every_text(file), desc=f"reading {file}", unit=" texts"))
    whole, rows, shards = hashlib.sha256(), 0, []
    while batch := list(islice(texts, shard_rows)):
        rows += len(batch)
        shards.append({"texts": texts_hash(batch), "file": ""})
        for text in batch:
            whole.update(text_line(text))
    return Manifest(folder, made | {"texts": whole.hexdigest()}, rows, shards)


def write_shards(encoder: Encoder, file: str, manifest: Manifest, options: dict[str, Any]) -> tuple[list[int], int]:
    """Encode what is missing or damaged; the numbers of those shards, and how many of their texts were cut."""
    written, truncated = [], 0
    texts = every_text(file)
    with Bar(total=manifest.rows, unit=" texts") as bar:
        for shard in range(len(manifest.shards)):
            batch = islice(texts, manifest.shard_rows)
            if manifest.is_complete(shard):
                bar.update(sum(1 for _ in batch))
                continue
            write_shard(encoder, batch, manifest, shard, bar, options)
            written.append(shard)
            truncated += encoder.truncated
    return written, truncated


def write_shard(
    encoder: Encoder, texts: Iterable[str], manifest: Manifest, shard: int, bar: Bar, options: dict[str, Any]
) -> None:
    """Write a shard's file and then its hash to the manifest, which makes it count."""
    digest, path = hashlib.sha256(), manifest.path(shard)

    def hashed() -> Iterator[str]:
        for text in texts:
            digest.update(text_line(text))
            yield text
            bar.update()

    with atomic_file(path) as partial:
        write_npy(encoder.encode_stream(hashed(), **options), manifest.shape(shard)[0], partial)
        if digest.hexdigest() != manifest.shards[shard]["texts"]:
            raise InputError("the file changed while it was being read: run encode again")
    manifest.note(shard)


def check_foreign(folder: Path) -> None:
    """Raise ``InputError`` if a folder has a damaged manifest, or none and anything but hidden files."""
    foreign = sorted(path.name for path in folder.glob("[!.]*") if path.name not in LITTER)
    if read_manifest(folder) is None and foreign:
        raise InputError(
            f"{folder} is not a folder of shards: it holds {listed(foreign)}, which encode did not write; "
            "choose another --out"
        )


def clean_up(manifest: Manifest) -> None:
    """Remove what killed processes were writing, and shards of a manifest that was replaced and had more of them."""
    for path in manifest.folder.glob(".*.partial-*"):
        recover(manifest.folder / path.name[1:].rpartition(".partial-")[0])
    current = {manifest.path(shard) for shard in range(len(manifest.shards))}
    for path in manifest.folder.glob("shard-?????.npy"):
        if path not in current:
            path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from writing into the same folder; raises ``InputError`` in that process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            lock(file)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is encoding there; wait for it to finish or stop it"
            ) from error
        yield
