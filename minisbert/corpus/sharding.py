"""Encode a file in shards: a folder of ``.npy`` files that any number of processes fill and that survives a kill.

    minisbert encode --file sentences.txt --out vectors --shard-rows 100000

Rank r of W takes shards r, r + W, r + 2 W, ... The ranks do not talk to each other: what is to be done is in the
manifest (``shards.py``), and what is done is on disk. A shard is written atomically, and counts only if its file has
the hash that was noted when it was written; so a second start encodes only what is missing or damaged.
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
from minisbert.corpus.shards import Manifest, check_foreign, clean_up, file_hash, locked, plain_line, read_manifest
from minisbert.corpus.vectors import write_npy
from minisbert.data.rows import open_texts, text_lines
from minisbert.models.prompts import choose_prompt
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import Bar, say
from minisbert.system.devices import choose_device, choose_precision
from minisbert.system.files import atomic_file, write_json


def read_rank() -> tuple[int, int]:
    """This process's rank and the number of processes: torchrun's, Slurm's, or 0 and 1. There is no process group."""
    rank, size, starter = "RANK", "WORLD_SIZE", "torchrun"
    if not {rank, size} & os.environ.keys():
        if "SLURM_PROCID" not in os.environ:
            return 0, 1
        rank, size, starter = "SLURM_PROCID", "SLURM_NTASKS", "srun"
    count = environment_number(size, 1, starter=starter)
    return environment_number(rank, 0, count - 1, f" ({size} is {count})", starter), count


def environment_number(name: str, smallest: int, largest: int = 10**6, why: str = "", starter: str = "torchrun") -> int:
    """A variable that torchrun or ``starter`` sets; ``InputError`` unless it is a whole number in that range."""
    text = os.environ.get(name, "")
    if text.isascii() and text.isdigit() and len(text) < 8 and smallest <= int(text) <= largest:
        return int(text)
    found = f"{name} is {one_line(text)}" if name in os.environ else f"{name} is not set"
    raise InputError(f"{found}, not a whole number from {smallest} to {largest}{why}: started with {starter}?")


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
    rank, size = read_rank()
    who = f"rank {rank} of {size}: " if size > 1 else ""
    check_foreign(folder, read_manifest(folder))  # before anything is created there
    with locked(folder, rank):
        encoder = load()
        manifest = agree(encoder, file, folder, shard_rows, overwrite, options)
        clean_up(manifest)
        own = range(rank, len(manifest.parts), size)
        bar = Bar(own, desc=f"checking {folder}", unit=" shards", shown=rank == 0)
        missing = [shard for shard in bar if not is_intact(manifest, shard)]
        truncated = write_shards(encoder, file, manifest, missing, rank == 0, options)
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
    found = read_manifest(folder)
    if found is not None:
        changed = found.changed_options(model, options)
        if not changed and file_hash(file) == found.input["sha256"]:
            return found
        if not overwrite:
            found.check_unchanged(changed or ["another text"], "choose another --out, or --overwrite to start over")
    source, parts = scan(file, shard_rows)
    manifest = Manifest(folder, source, model, options, example.shape[1], str(example.dtype), parts)
    current = read_manifest(folder)  # another rank may have written it in the meantime
    if current is None or (overwrite and current.identity != manifest.identity):
        check_foreign(folder, current, len(parts))
        manifest.write()
    manifest.check_current()
    return manifest


def scan(path: str, shard_rows: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A manifest's ``input`` and ``parts``; checks every line: raises ``InputError`` as ``text_lines``."""
    whole, lines, size, row = hashlib.sha256(), hashlib.sha256(), 0, 0
    parts: list[dict[str, Any]] = []
    with open_texts(path) as stream:
        last = LastLine(stream)
        for row, _ in enumerate(Bar(text_lines(last, path), desc=f"reading {path}", unit=" texts")):
            if row % shard_rows == 0:
                parts.append({"offset": size, "bytes": 0, "sha256": hashlib.sha256()})
            size += len(last.line)
            whole.update(last.line)
            lines.update(plain_line(last.line, first=row == 0))
            parts[-1]["bytes"] += len(last.line)
            parts[-1]["sha256"].update(last.line)
    source = {"name": Path(path).name, "sha256": whole.hexdigest(), "bytes": size, "rows": row + 1}
    places = [part | {"sha256": part["sha256"].hexdigest()} for part in parts]
    return source | {"lines": lines.hexdigest()}, places


class LastLine:
    """A stream for ``text_lines`` that keeps the bytes of the line that was read last."""

    def __init__(self, stream: IO[bytes]):
        self.stream, self.line = stream, b""

    def readline(self, limit: int) -> bytes:
        self.line = self.stream.readline(limit)
        return self.line


def is_intact(manifest: Manifest, shard: int) -> bool:
    """Does a shard's file have the hash that was noted? Reports one that is damaged."""
    noted, path = manifest.noted_hash(shard), manifest.path(shard)
    if noted is None or file_hash(path) == noted:
        return noted is not None
    say(f"{path} is damaged or cut short: encoding it again")
    return False


def write_shards(
    encoder: SentenceEncoder, file: str, manifest: Manifest, shards: list[int], shown: bool, options: dict
) -> int:
    """Encode and write some shards in order; how many texts were cut."""
    truncated, rows = 0, sum(manifest.shape(shard)[0] for shard in shards)
    with open_texts(file) as stream, Bar(total=rows, unit=" texts", shown=shown) as bar:
        for shard in shards:
            bar.desc = f"shard {shard}"
            texts = shard_texts(stream, manifest.parts[shard], file, bar)
            write_shard(encoder.encode_stream(texts, **options), manifest, shard)
            truncated += encoder.truncated
    return truncated


def shard_texts(stream: IO[bytes], place: dict[str, Any], file: str, bar: Bar) -> Iterator[str]:
    """The texts of a shard; at their end ``InputError`` if they are not the bytes that the manifest was made from."""
    stream.seek(place["offset"])  # in a .gz, forward only reads on
    left, digest = place["bytes"], hashlib.sha256()
    coding = "utf-8" if place["offset"] else "utf-8-sig"  # a byte order mark at the start is not text
    while left and (line := stream.readline(left)):
        left -= len(line)
        digest.update(line)
        # subtle: every line was valid when the manifest was made; one that is not any more gives another hash
        yield line.decode(coding, "replace").removesuffix("\n").rstrip("\r")
        bar.update()
        coding = "utf-8"
    if digest.hexdigest() != place["sha256"]:
        raise InputError(
            f"{file} changed while it was being read; the shards written so far were made from the old file"
        )


def write_shard(chunks: Iterator[np.ndarray], manifest: Manifest, shard: int) -> None:
    """Write a shard's file and then the note of its hash, which makes it count."""
    path = manifest.path(shard)
    with atomic_file(path) as partial:
        write_npy(chunks, manifest.shape(shard)[0], partial)
        digest = file_hash(partial)
        manifest.check_current()
    with atomic_file(path.with_suffix(".json")) as partial:
        write_json(partial, {"part": shard, "sha256": digest, "manifest": manifest.identity})
