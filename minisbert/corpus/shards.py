"""Encode a file in shards: a folder of ``.npy`` files that any number of processes fill and that survives a kill.

    python -m minisbert.encode --file sentences.txt --out vectors --shard-rows 100000

Rank r of W takes shards r, r + W, r + 2 W, ... The ranks do not talk to each other: what is to be done is in the
manifest (``corpus/manifest.py``), and what is done is on disk. A shard is written atomically, and counts only if its
file has the hash that was noted when it was written; so a second start encodes what is missing or damaged and nothing
else.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from minisbert.core import InputError, one_line
from minisbert.corpus.hashes import model_hash
from minisbert.corpus.manifest import MANIFEST, Manifest, differences, read_manifest, scan, text_hash, write_manifest
from minisbert.corpus.notes import check_foreign, clean_up, hash_of, is_intact, locked, noted_hashes
from minisbert.corpus.shard_vectors import check_shard
from minisbert.corpus.vectors import write_header, write_npy
from minisbert.data.rows import open_texts
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import Bar, say
from minisbert.system.devices import choose_device, choose_precision
from minisbert.system.files import atomic_file, write_json
from minisbert.system.interrupts import Interrupts
from minisbert.training.processes import environment_number

BLOCK = 2**22  # bytes to copy at once


def read_rank() -> tuple[int, int]:
    """This process's rank and the number of processes: torchrun's, Slurm's, or 0 and 1.

    Only ``RANK`` and ``WORLD_SIZE`` are read, or ``SLURM_PROCID`` and ``SLURM_NTASKS``: there is no process group.
    Raises ``InputError`` for a rank that is not below the number of processes.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        rank, size, starter = "RANK", "WORLD_SIZE", "torchrun"
    elif "SLURM_PROCID" in os.environ:
        rank, size, starter = "SLURM_PROCID", "SLURM_NTASKS", "srun"
    else:
        return 0, 1
    count = environment_number(size, 1, starter=starter)
    return environment_number(rank, 0, count - 1, f" ({size} is {count})", starter), count


def own_device(name: str) -> torch.device:
    """``choose_device``; if that is CUDA, the processes of one machine take its GPUs in turn."""
    device = choose_device(name)
    local = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", ""))
    if device.type == "cuda" and device.index is None and local.isdecimal():
        return torch.device("cuda", int(local) % torch.cuda.device_count())
    return device


def encode_shards(
    load: Callable[[], SentenceEncoder], file: str, folder: Path, shard_rows: int, overwrite: bool, **options: Any
) -> None:
    """Encode this rank's shards of ``file`` that ``folder`` lacks. ``options`` are those of ``encode``.

    The model is loaded once the folder is known to be usable. Raises ``InputError`` for a folder that was made with
    another input, model or option, which ``overwrite`` replaces; for a rank that is already at work; and for an input
    that changes while it is read. Shards that are complete stay in any case.
    """
    if not Path(file).is_file():  # a missing file and a pipe: it is read several times
        with open_texts(file):
            raise InputError(f"{file} can be read only once; shards need a regular file")
    rank, size = read_rank()
    who = f"rank {rank} of {size}: " if size > 1 else ""
    check_foreign(folder, read_manifest(folder, overwrite))  # before anything is created there
    with locked(folder, rank):
        encoder = load()
        manifest = agree(encoder, file, folder, shard_rows, overwrite, options)
        clean_up(folder, len(manifest.parts), rank, size)
        own = range(rank, len(manifest.parts), size)
        missing = find_missing(folder, manifest, own, rank == 0)
        truncated = write_shards(encoder, file, folder, manifest, missing, rank == 0, options)
    rows = sum(manifest.shape(shard)[0] for shard in missing)
    if truncated:
        say(who + encoder.tokenizer.cut_message(truncated, rows))
    kept = f"; {len(own) - len(missing):,} were complete" if len(own) > len(missing) else ""
    say(f"{who}wrote {len(missing):,} shards with {rows:,} vectors of width {manifest.width} to {folder}{kept}")


def agree(
    encoder: SentenceEncoder, file: str, folder: Path, shard_rows: int, overwrite: bool, given: dict[str, Any]
) -> Manifest:
    """The folder's manifest, which is written if there is none. Every rank comes to the same one by itself."""
    example = encoder.encode(["a"], **given)  # (1, D); an option that is out of range is found here
    model = model_hash(encoder, "")
    options = {
        "part_rows": shard_rows,
        "precision": str(choose_precision(given["precision"], encoder.device)[0]).removeprefix("torch."),
        "normalize": given["normalize"],
        "truncate_dim": given["truncate_dim"],
        "prompt": choose_prompt(encoder.settings, given["prompt"], given["prompt_name"]),
        "pooling": encoder.pooling_mode,
        "max_length": encoder.tokenizer.limit,
    }
    found = read_manifest(folder, overwrite)
    if found is not None:
        changed = differences(found, model, options)
        if not changed and text_hash(file) == found.input["sha256"]:
            return found
        refuse(folder, found, changed or ["another text"], overwrite)
    source, parts = scan(file, shard_rows)
    manifest = Manifest(source, model, options, example.shape[1], str(example.dtype), parts)
    other = read_manifest(folder, overwrite)  # another rank may have written it in the meantime
    if other is None or other.identity != manifest.identity:
        if other is not None:
            refuse(folder, other, differences(other, model, options) or ["another text"], overwrite)
        check_foreign(folder, other, len(parts))
        write_manifest(folder, manifest)
    return manifest


def refuse(folder: Path, found: Manifest, changed: list[str], overwrite: bool) -> None:
    if overwrite:
        return
    raise InputError(
        f"{folder} was made from {one_line(found.input['name'])} with {'; '.join(changed)}: give what it was made "
        "with, choose another --out, or --overwrite to start over"
    )


def find_missing(folder: Path, manifest: Manifest, own: range, shown: bool) -> list[int]:
    """The shards of ``own`` that are not there or do not have the hash that was noted; reports damaged ones."""
    bar = Bar(own, desc=f"checking {folder}", unit=" shards", shown=shown)
    return [shard for shard in bar if not is_intact(folder, manifest, shard)]


def write_shards(
    encoder: SentenceEncoder, file: str, folder: Path, manifest: Manifest, shards: list[int], shown: bool, options: dict
) -> int:
    """Encode and write some shards in order; how many texts were cut."""
    truncated, rows = 0, sum(manifest.shape(shard)[0] for shard in shards)

    def counted(chunks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for chunk in chunks:
            bar.update(len(chunk))
            yield chunk

    with Interrupts(), open_texts(file) as stream, Bar(total=rows, unit=" texts", shown=shown) as bar:
        for shard in shards:
            bar.set_description(f"shard {shard}", refresh=False)
            texts = shard_texts(stream, manifest.parts[shard], file)
            write_shard(counted(encoder.encode_stream(texts, **options)), folder, manifest, shard)
            truncated += encoder.truncated
    return truncated


def shard_texts(stream: IO[bytes], place: dict[str, Any], file: str) -> Iterator[str]:
    """The texts of a shard; at their end ``InputError`` if they are not the bytes that the manifest was made from."""
    stream.seek(place["offset"])  # in a .gz, forward only reads on
    left, digest = place["bytes"], hashlib.sha256()
    coding = "utf-8" if place["offset"] else "utf-8-sig"  # a byte order mark at the start is not text
    while left and (line := stream.readline(left)):
        left -= len(line)
        digest.update(line)
        # subtle: every line was valid when the manifest was made; one that is not any more gives another hash
        yield line.decode(coding, "replace").removesuffix("\n").rstrip("\r")
        coding = "utf-8"
    if digest.hexdigest() != place["sha256"]:
        raise InputError(
            f"{file} changed while it was being read; the shards written so far were made from the old file"
        )


def write_shard(chunks: Iterator[np.ndarray], folder: Path, manifest: Manifest, shard: int) -> None:
    """Write a shard's file and then the note of its hash, which makes it count."""
    path = manifest.path(folder, shard)
    with atomic_file(path) as partial:
        write_npy(chunks, manifest.shape(shard)[0], partial)
        digest = hash_of(partial)
        current = read_manifest(folder)
        if current is None or current.identity != manifest.identity:
            raise InputError(f"{folder / MANIFEST} was replaced by another run: this one stops")
    with atomic_file(path.with_suffix(".json")) as partial:
        write_json(partial, {"part": shard, "sha256": digest, "manifest": manifest.identity})


def merge_shards(folder: Path, out: Path) -> tuple[int, int]:
    """Copy all shards to one ``.npy``, a few MiB in memory at a time, and check their hashes; the shape, (N, D).

    Raises ``InputError``, and writes nothing, if a shard is missing or does not have the hash that was noted.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise InputError(f"{folder} is not a folder of shards: it has no {MANIFEST}")
    if out.resolve().parent == folder.resolve():
        raise InputError(f"--out {out} is in the folder of the shards: choose another place")
    notes = noted_hashes(folder, manifest)
    starts = [check_shard(folder, manifest, shard) for shard in range(len(notes))]
    shape = manifest.input["rows"], manifest.width
    with atomic_file(out) as partial, open(partial, "wb") as target:
        write_header(target, np.dtype(manifest.dtype), shape)
        for shard in Bar(range(len(notes)), desc=f"merging {folder}", unit=" shards"):
            path = manifest.path(folder, shard)
            if copy_shard(path, starts[shard], target) != notes[shard]:
                raise InputError(f"{path} is damaged or cut short: run encode again, which replaces it")
    return shape


def copy_shard(path: Path, start: int, target: IO[bytes]) -> str:
    """Copy a file from ``start`` on, where its vectors begin; the sha256 of the whole file."""
    with open(path, "rb") as stream:
        digest = hashlib.sha256(stream.read(start))
        while block := stream.read(BLOCK):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()
