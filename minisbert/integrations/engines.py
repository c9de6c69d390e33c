"""Encode batches in the workers of an engine: Ray Data, Spark, Hugging Face's datasets.

    encode = EncodeBatch("all-MiniLM-L6-v2", workers=2)
    batch = {"id": [7, 8], "text": ["A cat sits.", "Rain."]}
    encode(batch)  # the same columns and "vector", (2, 384) float32

The engine reads, splits, schedules, tries again and writes. This file imports none of them;
``docs/engines.md`` has an example for each.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.integrations.opening import (
    EMBEDDER_OPTIONS,
    FileStamps,
    FrozenOptions,
    check_named,
    file_stamps,
    freeze,
    split_options,
    thaw,
)
from minisbert.loading import load_encoder
from minisbert.models.text_encoder import TextEncoder
from minisbert.system.devices import use_threads

# A column of texts has one prompt for all.
ENGINE_OPTIONS = (*EMBEDDER_OPTIONS, "default_prompt_name", "prompt", "prompt_name")
MOST_MODELS = 3  # a worker keeps so many in memory, as Spark's predict_batch_udf does
# The number of the process that has imported this file. A forked process has this value too, and
# another number: so it knows that it was forked.
IMPORTED_IN = os.getpid()


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker needs to load its encoder; equal settings share one."""

    model: str
    workers: int | None
    options: FrozenOptions  # of ``load``
    # They change when a new model is saved into the folder. Then workers do not take the old one,
    # which they have in memory, nor ``datasets`` the old vectors from its cache, which knows a
    # function by its pickled bytes.
    stamps: FileStamps


class EncodeBatch:
    """A function from a batch to the batch with a column of vectors, (N, D) float32.

    A batch maps the names of columns to N values. A pickled copy carries the settings, not the
    model: each worker process loads it at its first batch and keeps it for every later copy with
    the same settings.

    model     a name, or a folder that every worker can read, at the same path
    text      the column with the texts
    vector    the new column
    workers   worker processes per machine; each computes with cores / workers threads. None leaves
              the number to torch: ``OMP_NUM_THREADS``, which Ray sets to the CPUs of the worker, or
              all cores. A forked process, as ``datasets`` starts them, always computes with one
              thread

    ``options`` are those of ``load`` and ``encode``: pooling, device (by default the CPU),
    max_seq_length, truncate_dim, prompts, prompt, prompt_name, dtype, batch_size,
    normalize_embeddings. Raises ``InputError`` for a number of workers below 1, and at the first
    batch as ``load`` and ``encode`` do.
    """

    def __init__(
        self,
        model: str | Path = "all-MiniLM-L6-v2",
        *,
        text: str = "text",
        vector: str = "vector",
        workers: int | None = None,
        **options: Any,
    ):
        if workers is not None and (type(workers) is not int or workers < 1):
            raise InputError(f"workers must be an integer from 1, not {workers!r}")
        check_named("EncodeBatch", model)
        load_options, encode_options = split_options(
            "EncodeBatch", model, options, ENGINE_OPTIONS, ("model", "text", "vector", "workers")
        )
        load_options.setdefault("device", "cpu")
        self.text = text
        self.vector = vector
        self.options = encode_options
        name = str(model)
        if os.path.isdir(model):
            name = os.path.abspath(model)  # workers may start elsewhere
        self.settings = WorkerSettings(
            model=name, workers=workers, options=freeze(load_options), stamps=file_stamps(name)
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of ``batch`` as they are, and the vectors (N, D).

        Raises ``InputError`` with column and row for a value that is not a valid text, for a batch
        without the column of texts, and for one that already has the column of vectors.
        """
        self.check_columns(batch)
        texts = list(batch[self.text])
        for row, text in enumerate(texts):
            try:
                check_texts([text], row)
            except InputError as error:
                where = self.describe_row(batch, row, len(texts))
                raise InputError(f"{where}: {error}; fill or drop such rows first") from error
        encoder = worker_encoder(os.getpid(), self.settings)
        columns = dict(batch)
        columns[self.vector] = encoder.encode(texts, **self.options)
        return columns

    def describe_row(self, batch: Mapping[str, Any], row: int, rows: int) -> str:
        """Say which of a batch's ``rows`` is meant, for an error.

        It has no number that the user knows, so its other columns name it.
        """
        description = f"column {self.text!r}, row {row} of a batch of {rows:,}"
        other_columns = {}
        for name in batch:
            if name != self.text:
                other_columns[name] = list(batch[name])[row]
        if other_columns:
            description += f", with {one_line(other_columns)}"
        return description

    def check_columns(self, batch: Mapping[str, Any]) -> None:
        """Raise ``InputError`` unless a batch has the column of texts and none of vectors."""
        if self.text not in batch:
            columns = ", ".join(one_line(str(name)) for name in batch) or "none"
            raise InputError(
                f"no column {self.text!r} in the batch, which has {columns}: give its name, "
                f"text=..."
            )
        if self.vector in batch:
            raise InputError(
                f"the column {self.vector!r} exists: give the vectors another name, vector=..."
            )
        if isinstance(batch[self.text], str):
            raise InputError(
                f"column {self.text!r} holds one text, not those of a batch: use map(..., "
                f"batched=True)"
            )


@lru_cache(MOST_MODELS)
def worker_encoder(process: int, settings: WorkerSettings) -> TextEncoder:
    """Load the encoder of this process for these settings, once, and set the process's threads.

    ``process``, its number, is only a part of the cache's key: a forked process has a copy of its
    parent's cache, but needs other threads.
    """
    use_threads(worker_threads(settings.workers))
    return load_encoder(settings.model, **thaw(settings.options))


def worker_threads(workers: int | None) -> int:
    """Return the threads of this process if ``workers`` such processes share the cores."""
    # subtle: torch's OpenMP threads do not survive a fork, and a child would wait for them forever
    # if its parent has computed with more than one
    if os.getpid() != IMPORTED_IN:
        return 1
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    if workers is None:
        return min(torch.get_num_threads(), cores)
    return max(cores // workers, 1)
