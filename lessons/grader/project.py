"""The project of lesson 18, graded: a student's search engine on queries it did not see.

A project is a folder with a model, as ``SentenceEncoder.save`` or sentence-transformers writes it,
in ``model/`` or in the folder itself, and perhaps a ``search.toml``:

    store = "bits"      # what is kept of a document's vector: float32 (the default), int8 or bits
    columns = 256       # only its first so many columns; by default 0, which means all
    candidates = 40     # for bits: so many are found by Hamming distance, then sorted by cosine
"""

import csv
import hashlib
import platform
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.search.docstrings import Entry, read_entries, split_of
from lessons.search.measure import grades, interval, ndcg_of_each
from minisbert.core import InputError
from minisbert.core.checks import check_integer, check_one_of
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search import quantized
from minisbert.search.dense import top_k
from minisbert.system.console import say
from minisbert.system.reading import reading

FIELDS = (
    "questions",
    "name",
    "ndcg@10",
    "low",
    "high",
    "recall@10",
    "bytes",
    "ms",
    "store",
    "machine",
)
TIMED = 30  # queries, one at a time


@dataclass(frozen=True)
class Options:
    """``search.toml``."""

    store: str = "float32"
    columns: int = 0
    candidates: int = 40

    def __post_init__(self) -> None:
        check_one_of("store", self.store, ["float32", "int8", "bits"])
        check_integer("columns", self.columns, least=0)
        check_integer("candidates", self.candidates)


def load_project(folder: Path) -> tuple[SentenceEncoder, Options]:
    """The model and the options. ``InputError`` without a model, or for settings that are none."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: name the one that holds your model")
    options = Options()
    file = folder / "search.toml"
    if file.exists():
        with reading(file):
            stated = tomllib.loads(file.read_text(encoding="utf-8"))
            if unknown := stated.keys() - vars(options).keys():
                raise ValueError(
                    f"{', '.join(sorted(unknown))}: the options are {', '.join(vars(options))}"
                )
            options = Options(**stated)
    return SentenceEncoder.load(
        folder / "model" if (folder / "model").is_dir() else folder
    ), options


def hidden_rows(entries: list[Entry], secret: str, everything: bool) -> np.ndarray:
    """The entries that are asked for: those of the test modules, or everything.

    With a secret, a random half of them.
    """
    rows = np.array(
        [row for row, entry in enumerate(entries) if everything or split_of(entry.module) == "test"]
    )
    if len(rows) < 20:
        raise InputError(
            f"{len(rows)} held-out queries among {len(entries)} docstrings: at least 20 are needed"
        )
    if not secret:
        return rows
    seed = int.from_bytes(hashlib.sha256(secret.encode()).digest()[:8], "big")
    return np.sort(np.random.default_rng(seed).permutation(rows)[: len(rows) // 2])


class Engine:
    """Documents encoded once and kept in few bytes or many, and the search in them."""

    def __init__(self, encoder: SentenceEncoder, options: Options, documents: list[str]):
        self.encoder = encoder
        self.options = options
        self.stored = self.columns(encoder.encode_document(documents))  # (N, D)
        self.ranges = quantized.calibrate(self.stored)
        if options.store == "int8":
            self.stored = quantized.to_int8(self.stored, self.ranges)
        if options.store == "bits":
            self.stored = quantized.to_bits(self.stored)  # (N, D / 8)

    def columns(self, vectors: np.ndarray) -> np.ndarray:
        return vectors[:, : self.options.columns or None]

    def search(self, queries: list[str], k: int) -> np.ndarray:
        """The rows of the k nearest documents, (Q, k); the queries stay in float32."""
        vectors = self.columns(self.encoder.encode_query(queries))  # (Q, D)
        if self.options.store == "bits":
            count = min(max(k, self.options.candidates), len(self.stored))
            found = quantized.hamming_top_k(vectors, self.stored, count)[1]  # (Q, C)
            signs = quantized.from_bits(self.stored[found], vectors.shape[1])  # (Q, C, D)
            return quantized.rescore(vectors, found, signs, k)[1]
        restored = (
            quantized.from_int8(self.stored, self.ranges)
            if self.options.store == "int8"
            else self.stored
        )
        return top_k(vectors, restored, k)[1]


def grade_project(
    folder: Path, board: Path, name: str = "", secret: str = "", source: Path | None = None
) -> None:
    """Print the scores with intervals, bytes and milliseconds; add a row to the leaderboard."""
    encoder, options = load_project(folder)
    entries = read_entries(source)
    rows = hidden_rows(entries, secret, everything=source is not None)
    engine = Engine(encoder, options, [entry.document for entry in entries])
    queries = [entries[row].query for row in rows]
    found = engine.search(queries, 10)  # (Q, 10)
    ndcg = ndcg_of_each(found, rows)
    hits = grades(found, rows).sum(axis=1)
    seconds = []
    for query in queries[:TIMED]:
        started = time.perf_counter()
        engine.search([query], 10)
        seconds.append(time.perf_counter() - started)
    (low, high) = interval(ndcg)
    (least, most) = interval(hits)
    size = engine.stored[0].nbytes
    ms = 1000 * float(np.median(seconds))
    print(f"{len(rows):,} hidden queries, {len(entries):,} documents")
    print(f"nDCG@10    {ndcg.mean():.4f}   95 % of the draws in {low:.4f} .. {high:.4f}")
    print(f"recall@10  {hits.mean():.4f}   95 % of the draws in {least:.4f} .. {most:.4f}")
    print(f"index      {size} bytes a vector, {size * len(entries) / 1e6:.2f} MB")
    print(f"search     {ms:.1f} ms for a query, encoding included")
    values = (
        f"{ndcg.mean():.4f}",
        f"{low:.4f}",
        f"{high:.4f}",
        f"{hits.mean():.4f}",
        str(size),
        f"{ms:.1f}",
    )
    about = (options.store, f"{platform.machine()} Python {platform.python_version()}")
    digest = hashlib.sha256(
        "\n".join([*queries, *(entry.document for entry in entries)]).encode()
    ).hexdigest()[:8]
    shown = " ".join((name or folder.resolve().name).split())
    board.parent.mkdir(parents=True, exist_ok=True)
    with board.open("a", encoding="utf-8", newline="") as file:
        row = (digest, shown, *values, *about)
        csv.writer(file, lineterminator="\n").writerows([row] if file.tell() else [FIELDS, row])
    say(f"{board} has one row more; compare those with equal questions")
