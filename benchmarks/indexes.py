"""The sides of ``handover``: exact search, and the indexes of faiss and hnswlib over the same vectors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

from minisbert.search.dense import top_k
from minisbert.system.console import say

NEIGHBOURS, CONSTRUCTION = 32, 200
EFS, PROBES = (16, 64, 256), (1, 8, 32)
BLOCK = 10_000  # rows handed over at a time
NEEDS = {"faiss": "faiss-cpu", "hnswlib": "hnswlib"}

Search = Callable[[np.ndarray], np.ndarray]  # queries (Q, D) -> indices (Q, k)


@dataclass(frozen=True)
class Side:
    """An index over the corpus: one search for each setting, and ``save`` that writes it to a file, if it is one."""

    searches: dict[str, Search]
    save: Callable[[str], None] | None = None


def blocks(corpus: np.ndarray) -> Iterator[np.ndarray]:
    """The rows, at most ``BLOCK`` in memory at a time."""
    for start in range(0, len(corpus), BLOCK):
        yield np.asarray(corpus[start : start + BLOCK], dtype=np.float32)


def exact(corpus: np.ndarray, k: int) -> Side:
    return Side({"": lambda queries: top_k(queries, corpus, k)[1]})


def faiss_side(kind: str, corpus: np.ndarray, k: int) -> Side:
    """``IndexFlatIP``, ``IndexHNSWFlat`` or ``IndexIVFFlat`` by inner product, which is the cosine at length 1."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    faiss.cvar.distance_compute_blas_threshold = 20  # see search_speed
    width, product = corpus.shape[1], faiss.METRIC_INNER_PRODUCT
    if kind == "Flat":
        index = faiss.IndexFlatIP(width)
    elif kind == "HNSW":
        index = faiss.IndexHNSWFlat(width, NEIGHBOURS, product)
        index.hnsw.efConstruction = CONSTRUCTION
    else:
        lists = max(1, min(round(4 * len(corpus) ** 0.5), len(corpus) // 39))  # faiss warns of fewer vectors a list
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, product)
        rows = np.random.default_rng(0).choice(len(corpus), min(len(corpus), 64 * lists), replace=False)
        index.train(corpus[np.sort(rows)])  # the lists are found on a sample, in memory
    for block in blocks(corpus):
        index.add(block)

    def search(queries: np.ndarray, parameters: object = None) -> np.ndarray:
        return index.search(queries, k, params=parameters)[1]

    if kind == "HNSW":
        settings = {f"ef {ef}": faiss.SearchParametersHNSW(efSearch=ef) for ef in EFS}
    elif kind == "IVF":
        settings = {f"nprobe {n}": faiss.SearchParametersIVF(nprobe=n) for n in PROBES if n <= lists}
    else:
        settings = {"": None}
    searches = {name: partial(search, parameters=chosen) for name, chosen in settings.items()}
    return Side(searches, lambda path: faiss.write_index(index, path))


def hnswlib_side(corpus: np.ndarray, k: int) -> Side:
    import hnswlib

    index = hnswlib.Index(space="ip", dim=corpus.shape[1])
    index.set_num_threads(torch.get_num_threads())
    index.init_index(max_elements=len(corpus), M=NEIGHBOURS, ef_construction=CONSTRUCTION)
    for block in blocks(corpus):
        index.add_items(block)  # numbered in order, from 0

    def search(queries: np.ndarray, ef: int) -> np.ndarray:
        index.set_ef(ef)
        return index.knn_query(queries, k)[0].astype(np.int64)

    return Side({f"ef {ef}": partial(search, ef=ef) for ef in EFS}, index.save_index)


def sides_of(libraries: Sequence[str]) -> dict[str, Callable[[np.ndarray, int], Side]]:
    sides: dict[str, Callable[[np.ndarray, int], Side]] = {"minisbert, exact": exact}
    if "faiss" in libraries:
        sides |= {f"faiss {kind}": partial(faiss_side, kind) for kind in ("Flat", "HNSW", "IVF")}
    if "hnswlib" in libraries:
        sides["hnswlib"] = hnswlib_side
    return sides


def installed() -> list[str]:
    for library, package in NEEDS.items():
        if not find_spec(library):
            say(f"{library} is not compared: not installed; pip install {package}")
    return [library for library in NEEDS if find_spec(library)]
