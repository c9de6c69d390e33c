"""Search embeddings, find paraphrases and communities, under sentence-transformers' names.

Examples:

    from minisbert import SentenceEncoder, util

    queries = encoder.encode_query(["a cat?"])
    hits = util.semantic_search(queries, encoder.encode_document(documents), top_k=5)
    pairs = util.paraphrase_mining(encoder, sentences)
    triplets = util.mine_hard_negatives([("a cat?", "A cat sits.")], encoder, documents)
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from minisbert.core import InputError, one_line
from minisbert.core.checks import check_texts
from minisbert.data import rows as data
from minisbert.data.columns import Columns
from minisbert.evaluation.retrieval import encode_both
from minisbert.models.properties import AnyVectors, check_count, similarity, vector_rows
from minisbert.models.sparse_encoder import SparseEncoder
from minisbert.models.text_encoder import TextEncoder
from minisbert.replacements import (
    COMMUNITY_DETECTION,
    ENCODE,
    MINE_HARD_NEGATIVES,
    PARAPHRASE_MINING,
    SEMANTIC_SEARCH,
    UTIL,
    explained,
    missing_from_module,
)
from minisbert.search import dense
from minisbert.search.by_tokens import rank
from minisbert.search.mining import Rules, Triplet, candidates_of, mine, summarize, triplets
from minisbert.system.console import warn

__all__ = [
    "community_detection",
    "cos_sim",
    "dot_score",
    "mine_hard_negatives",
    "paraphrase_mining",
    "semantic_search",
]

COMMUNITY_ROWS = 1024  # vectors that are compared with all others at a time

if not TYPE_CHECKING:
    # Hidden from type checkers, which would take every name for one that the module has.
    def __getattr__(name: str) -> Any:
        raise missing_from_module(__name__, UTIL, name, globals())


def cos_sim(a: AnyVectors, b: AnyVectors) -> Tensor:
    """Compute the cosine of every row of a (N, D) with every row of b (M, D) -> (N, M)."""
    return torch.as_tensor(similarity(a, b))


def dot_score(a: AnyVectors, b: AnyVectors) -> Tensor:
    """Compute the dot product of every row of a (N, D) with every row of b (M, D) -> (N, M)."""
    return torch.as_tensor(similarity(a, b, "dot"))


@explained(SEMANTIC_SEARCH)
def semantic_search(
    query_embeddings: np.ndarray | Tensor,
    corpus_embeddings: np.ndarray | Tensor,
    *,
    top_k: int = 10,
    score_function: str | Callable[[Tensor, Tensor], Any] = "cosine",
) -> list[list[dict[str, Any]]]:
    """Find for each query the ``top_k`` rows of the corpus with the highest score.

    Queries are (Q, D), or one (D,); the corpus is (N, D). ``score_function`` is "cosine", "dot",
    "euclidean", "manhattan", or a function of tensors (Q, D) and (N, D) such as
    ``encoder.similarity``; vectors do not say which one their model was trained for: give
    ``encoder.similarity_fn_name``. A name is searched in blocks, a function query by query. Returns
    ``[[{"corpus_id": 3, "score": 0.91}, ...], ...]``, best first, ties by number; exact. Raises
    ``InputError`` as ``minisbert.search.dense.top_k``.
    """
    check_count("top_k", top_k)
    queries = vector_rows(query_embeddings)
    corpus = vector_rows(corpus_embeddings)
    if not len(queries) or not len(corpus):
        return [[] for _ in queries]
    # The two functions that nearly everybody passes have a fast way.
    if score_function is cos_sim:
        score_function = "cosine"
    elif score_function is dot_score:
        score_function = "dot"

    k = min(top_k, len(corpus))
    if callable(score_function):
        scores, rows = ranked_by(score_function, queries, corpus, k)
    else:
        scores, rows = dense.top_k(queries, corpus, k, similarity=score_function)
    results = []
    for best, numbers in zip(scores.tolist(), rows.tolist(), strict=True):
        hits = []
        for score, row in zip(best, numbers, strict=True):
            hits.append({"corpus_id": row, "score": score})
        results.append(hits)
    return results


def ranked_by(
    score_function: Callable[[Tensor, Tensor], Any],
    queries: np.ndarray,
    corpus: np.ndarray,
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k highest scores of each query and their rows, (Q, k) each, query by query."""
    query_tensor = torch.tensor(queries)
    corpus_tensor = torch.tensor(corpus)

    def scores_of_query(query: int) -> np.ndarray:
        """Score all of the corpus for one query: (N,)."""
        one_query = query_tensor[query : query + 1]  # (1, D)
        scores = np.asarray(score_function(one_query, corpus_tensor), np.float32)  # (1, N)
        return scores[0]

    return rank(scores_of_query, queries.shape, corpus.shape, k, progress=False)


# ``SparseEncoder.encode`` has the options of every other ``encode``.
@explained(ENCODE | PARAPHRASE_MINING, SparseEncoder.encode)
def paraphrase_mining(
    model: TextEncoder,
    sentences: Sequence[str],
    *,
    max_pairs: int = 500_000,
    show_progress_bar: bool = False,
    **options: Any,
) -> list[list[float | int]]:
    """Find the ``max_pairs`` most similar pairs of sentences.

    Returns ``[[score, i, j], ...]``, i < j, best first. Compares every pair by the model's own
    similarity. ``options`` are those of ``encode``.
    """
    check_count("max_pairs", max_pairs)
    check_encoder(model)
    sentences = check_texts(sentences)
    count = len(sentences)
    if count < 2:
        return []
    vectors = model.encode(sentences, show_progress_bar=show_progress_bar, **options)
    k = min(max_pairs, count * (count - 1) // 2)
    scores, pairs = dense.closest_pairs(vectors, k, show_progress_bar, model.similarity_fn_name)
    results: list[list[float | int]] = []
    for score, (i, j) in zip(scores.tolist(), pairs.tolist(), strict=True):
        results.append([score, i, j])
    return results


def check_encoder(model: object) -> None:
    """Raise ``InputError`` for what is no encoder, such as the name of one."""
    if not hasattr(model, "encode_query"):
        raise InputError(
            f"model must be an encoder, as SentenceEncoder.load returns it, not {one_line(model)}"
        )


@explained(MINE_HARD_NEGATIVES, Rules)
def mine_hard_negatives(
    pairs: Any,
    model: TextEncoder,
    corpus: Sequence[str] = (),
    *,
    columns: str | None = None,
    show_progress_bar: bool = False,
    **rules: Any,
) -> list[Triplet]:
    """Find negatives for (anchor, positive) pairs: triplets to train on.

    ``pairs`` are rows as ``train`` takes them: tuples, dictionaries or a data set, whose columns
    are found by their names or named by ``columns``, such as "question,answer".

    A negative is a text that the model finds close to the anchor. Looks in ``corpus`` and in the
    positives of other anchors, by the model's own similarity; anchors are encoded as queries, the
    others as documents. ``rules`` are the fields of ``minisbert.search.mining.Rules``:
    num_negatives=3, range_min, range_max, absolute_margin, relative_margin, max_score, min_score.
    An anchor for which nothing is left is not in the result, which a line says. Raises
    ``InputError`` for rules that no candidate can meet.
    """
    checked_rules = Rules(**rules)
    check_encoder(model)
    table = data.as_rows(pairs, Columns(), columns, name="pairs")
    if table.skipped or table.unread:
        warn(table.note())
    task = candidates_of(table.rows, corpus)
    anchors, documents = encode_both(
        model, task.anchors, task.documents, show_progress_bar=show_progress_bar
    )
    mined = mine(
        anchors, documents, task, checked_rules, show_progress_bar, model.similarity_fn_name
    )
    summary = summarize(task, mined, checked_rules)
    if summary.pairs_without_negative:
        warn(
            f"{summary.pairs_without_negative:,} of {summary.pairs:,} pairs have no negative, so "
            f"they are not in the result: no candidate is left for their anchors"
        )
    return list(triplets(task, mined))


@explained(COMMUNITY_DETECTION)
def community_detection(
    embeddings: np.ndarray | Tensor, *, threshold: float = 0.75, min_community_size: int = 10
) -> list[list[int]]:
    """Group rows of (N, D) that are near their group's first row, its centre.

    A row is near if its cosine with the centre is ``threshold`` or more. Returns the largest group
    first. No row is in two groups: the larger one takes it. Groups of fewer than
    ``min_community_size`` rows are left out.
    """
    check_count("min_community_size", min_community_size)
    if not isinstance(threshold, int | float) or not -1 <= threshold <= 1:
        raise InputError(f"threshold must be a number from -1 to 1, not {one_line(threshold)}")
    vectors = torch.tensor(vector_rows(embeddings), dtype=torch.float32)  # (N, D)
    vectors = torch.nn.functional.normalize(vectors)

    # First only the size of the group around each row: the members of all groups at once could be
    # N lists of N rows.
    sizes = torch.empty(len(vectors), dtype=torch.long)  # (N,)
    for start in range(0, len(vectors), COMMUNITY_ROWS):
        part = slice(start, start + COMMUNITY_ROWS)
        cosines = vectors[part] @ vectors.T  # (COMMUNITY_ROWS, N)
        sizes[part] = (cosines >= threshold).sum(dim=1)
    candidates = sizes.argsort(descending=True, stable=True)
    candidates = candidates[sizes[candidates] >= min_community_size]

    # Then the members, the largest group first. Most rows are in another group by then, and are no
    # centre any more.
    taken = torch.zeros(len(vectors), dtype=torch.bool)
    communities = []
    for block in candidates.split(COMMUNITY_ROWS):
        centres = block[~taken[block]]
        for centre, cosines in zip(centres.tolist(), vectors[centres] @ vectors.T, strict=True):
            if taken[centre]:
                continue
            members = ((cosines >= threshold) & ~taken).nonzero().flatten()
            if len(members) < min_community_size:
                continue
            order = cosines[members].argsort(descending=True, stable=True)
            # The centre comes first. It may not be among the members: rounding may leave its cosine
            # with itself below a threshold of 1.
            others = [row for row in members[order].tolist() if row != centre]
            communities.append([centre, *others])
            taken[members] = True
    return sorted(communities, key=len, reverse=True)
