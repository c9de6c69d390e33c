"""Encode batches in the workers of an engine: Ray Data, Spark, Hugging Face's datasets
(``docs/engines.md``).

    encode = EncodeBatch("all-MiniLM-L6-v2", workers=2)
    encode({"id": [7, 8], "text": ["A cat sits.", "Rain."]})  # the same columns and "vector", (2, 384) float32

The engine reads, splits, schedules, tries again and writes. This file imports none of them.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.loading import Encoder, load_encoder
from minisbert.system.devices import use_threads

MOST_MODELS = 3  # in memory of a worker, as many as Spark's predict_batch_udf
IMPORTED_IN = os.getpid()


class EncodeBatch:
    """A function from a batch, column name -> N values, to the batch with a column of vectors, (N,
    D) float32.

    A pickled copy carries the settings, not the model: each worker process loads it at its first
    batch and keeps it for every later copy with the same settings.

    model     a name, or a folder that every worker can read, at the same path
    text      the column with the texts
    vector    the new column
    workers   worker processes per machine; each computes with cores / workers threads. None leaves the number to
              torch: ``OMP_NUM_THREADS``, which Ray sets to the CPUs of the worker, or all cores.
              A forked process, as ``datasets`` starts them, always computes with one thread

    The other settings are those of ``SentenceEncoder.load`` and ``encode``. Raises ``InputError``
    for a number of workers below 1, and at the first batch as ``load`` and ``encode`` do.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        text: str = "text",
        vector: str = "vector",
        workers: int | None = None,
        pooling: str | None = None,
        device: str = "cpu",
        max_seq_length: int | None = None,
        dtype: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ):
        if workers is not None and (type(workers) is not int or workers < 1):
            raise InputError(f"workers must be an integer from 1, not {workers!r}")
        self.text, self.vector = text, vector
        self.options: dict[str, Any] = {
            "dtype": dtype,
            "truncate_dim": truncate_dim,
            "prompt": prompt,
        }
        self.options |= {"normalize_embeddings": normalize_embeddings, "prompt_name": prompt_name}
        self.model = str(model)
        files: tuple = ()
        if os.path.isdir(model):
            self.model = os.path.abspath(model)  # workers may start elsewhere
            # subtle: a model trained anew into the same folder is another model, for workers that
            # still have the old one and for the cache of ``datasets``, which knows a function by
            # its pickled bytes
            paths = sorted(path for path in Path(self.model).rglob("*") if path.is_file())
            files = tuple(
                (str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths
            )
        self.loading = (files, workers, pooling, device, max_seq_length)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of ``batch`` as they are, and the vectors (N, D); (0, D) for an empty
        batch.

        Raises ``InputError`` with column and row for a value that is not a valid text, for a batch
        without the column of texts, and for one that already has the column of vectors.
        """
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
        texts = list(batch[self.text])
        for row, text in enumerate(texts):
            try:
                check_texts([text], row)
            except InputError as error:
                # a row of a batch has no number that the user knows: its other columns name it
                where = f"column {self.text!r}, row {row} of a batch of {len(texts):,}"
                rest = {name: list(batch[name])[row] for name in batch if name != self.text}
                if rest:
                    where += f", with {one_line(rest)}"
                raise InputError(f"{where}: {error}; fill or drop such rows first") from error
        encoder = worker_encoder(os.getpid(), self.model, *self.loading)
        return dict(batch) | {self.vector: encoder.encode(texts, **self.options)}


@lru_cache(MOST_MODELS)
def worker_encoder(
    process: int,
    model: str,
    files: tuple,
    workers: int | None,
    pooling: str | None,
    device: str,
    limit: int | None,
) -> Encoder:
    """Load this process's encoder for these settings, once, and set the threads of the process.

    ``process`` and ``files`` only distinguish: a forked process has its parent's encoders, but
    needs other threads.
    """
    use_threads(worker_threads(workers))
    return load_encoder(model, pooling=pooling, device=device, max_seq_length=limit)


def worker_threads(workers: int | None) -> int:
    """Return the threads of this process if ``workers`` such processes share the machine's
    cores.
    """
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
