"""Evaluate by retrieval: does the exact search find the documents that people judged relevant?

The files have BEIR's layout (Thakur et al. 2021): queries and corpus as .jsonl, the relevance
judgements, called qrels, as .tsv. The formulas are in ``metrics``; the command is ``minisbert
evaluate``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minisbert.core import InputError, one_line
from minisbert.data.columns import PAIRS
from minisbert.data.records import Record
from minisbert.data.rows import as_rows
from minisbert.data.tables import file_lines, open_records
from minisbert.data.values import as_number
from minisbert.evaluation.metrics import METRICS
from minisbert.models.pair_model import PairScorer
from minisbert.models.text_encoder import TextEncoder
from minisbert.search.dense import top_k
from minisbert.search.kinds import KINDS
from minisbert.system.console import warn
from minisbert.system.reading import reading

# queries, corpus, k, progress -> scores and indices, (Q, k) each
Search = Callable[..., tuple[np.ndarray, np.ndarray]]
CUTOFFS = (1, 3, 5, 10, 100)
REPORTED = ("accuracy@1", "recall@10", "mrr@10", "ndcg@10", "map@100")  # of a training run
QRELS = ("query-id", "corpus-id", "score")
# The keys of a text and its id: BEIR's, then Anserini's and LangChain's.
ID_KEYS = ("_id", "id")
TEXT_KEYS = ("text", "contents", "page_content")


@dataclass(frozen=True)
class Retrieval:
    """Q queries with at least one relevant document each, and N documents."""

    queries: list[str]
    corpus: list[str]
    # of each query: row of a judged document -> its grade, above 0 if relevant
    grades: list[dict[int, int]]
    skipped: list[int | None]  # of each query: row of a document that is excluded from its ranking
    unjudged: int = 0  # queries of the file without a relevant document, which are not evaluated


def load_retrieval(
    queries: str | Path, corpus: str | Path, qrels: str | Path, ignore_identical_ids: bool = False
) -> Retrieval:
    """Read three files in BEIR's layout.

    - ``queries``: each line is an object with ``_id`` and ``text``; ``id`` and ``contents`` or
      ``page_content`` will do.
    - ``corpus``: the same, and maybe a ``title``, which is put before the text.
    - ``qrels``: query-id, corpus-id and score, separated by tabs, with this header or without; or
      the four columns of TREC, whose second is not read, separated by tabs or blanks. Scores are
      whole numbers.

    ``ignore_identical_ids`` excludes the document with the query's own id from its ranking, for
    data whose queries are documents themselves. A judged document that the corpus lacks counts as
    never found, as in trec_eval. Raises ``InputError`` with file and line for anything else in a
    file, a repeated id, a judgement on an unknown query, an empty corpus, and if no document is
    relevant.
    """
    query_texts = texts_by_id(queries)
    documents = texts_by_id(corpus)
    judgements = read_qrels(qrels, query_texts)
    rows = {identity: row for row, identity in enumerate(documents)}

    # Judged documents that the corpus lacks get the rows after it, where no search finds them.
    for of_query in judgements.values():
        for document in of_query:
            rows.setdefault(document, len(rows))
    missing = len(rows) - len(documents)
    if missing:
        check_some_in_corpus(judgements, documents, missing, str(qrels), str(corpus))
        warn(
            f"{qrels}: {missing:,} judged documents are not in the corpus; they count as never "
            f"found, as in trec_eval"
        )

    judged = []
    grades = []
    for identity in query_texts:
        of_query = judgements.get(identity, {})
        if any(grade > 0 for grade in of_query.values()):
            judged.append(identity)
            grades.append({rows[document]: grade for document, grade in of_query.items()})
    if not judged:
        raise InputError(f"{qrels}: no query has a relevant document (a score above 0)")

    skipped: list[int | None] = [None] * len(judged)
    if ignore_identical_ids:
        skipped = [rows.get(identity) for identity in judged]
    return Retrieval(
        queries=[query_texts[identity] for identity in judged],
        corpus=list(documents.values()),
        grades=grades,
        skipped=skipped,
        unjudged=len(query_texts) - len(judged),
    )


def check_some_in_corpus(
    judgements: Mapping[str, Collection[str]],
    documents: Collection[str],
    missing: int,
    qrels: str,
    corpus: str,
) -> None:
    """Raise ``InputError`` if all judged documents are missing from the corpus."""
    for of_query in judgements.values():
        if any(document in documents for document in of_query):
            return
    raise InputError(
        f"{qrels}: none of the {missing:,} judged documents is in {corpus}: their ids must be "
        f"those of the corpus"
    )


def load_retrieval_folder(folder: str | Path) -> dict[str, Retrieval | None]:
    """Load dev and test of a folder in BEIR's layout.

    It has queries.jsonl, corpus.jsonl, qrels/dev.tsv and maybe qrels/test.tsv. Raises
    ``InputError`` as ``load_retrieval`` does.
    """
    folder = Path(folder)
    splits: dict[str, Retrieval | None] = {"dev": None, "test": None}
    for split in splits:
        qrels = folder / "qrels" / f"{split}.tsv"
        if split == "dev" or qrels.exists():
            splits[split] = load_retrieval(folder / "queries.jsonl", folder / "corpus.jsonl", qrels)
    return splits


def retrieval_from_pairs(pairs: Any) -> Retrieval:
    """Make a search for each anchor's positive among all positives.

    ``pairs`` are rows as ``as_rows`` reads them, (anchor, positive, ...). Equal anchors are one
    query with several relevant documents, equal positives one document. ``[("a", "x"), ("b", "y"),
    ("a", "y")]`` has the queries a and b and the documents x and y; y is relevant to both.
    """
    corpus: dict[str, int] = {}
    grades: dict[str, dict[int, int]] = {}
    table = as_rows(pairs, PAIRS, name="pairs")
    for anchor, positive, *_ in table.rows:
        row = corpus.setdefault(positive, len(corpus))
        grades.setdefault(anchor, {})[row] = 1
    return Retrieval(list(grades), list(corpus), list(grades.values()), [None] * len(grades))


def texts_by_id(path: str | Path) -> dict[str, str]:
    """Read the texts of a .jsonl by their ``_id``, each after its ``title`` if it has one."""
    texts: dict[str, str] = {}
    records = open_records(path)
    if records.separator:
        needed = '{"_id": "7", "text": "..."}'
        raise InputError(
            f"{path} is a table, as MS MARCO's queries.tsv is: write a .jsonl, {needed} in each "
            f"line"
        )
    with reading(path) as at:
        for at.line, fields in records.items:
            identity: Any = first_value(fields, ID_KEYS)
            text = first_value(fields, TEXT_KEYS)
            title = fields.get("title") or ""
            if type(identity) is int:
                identity = str(identity)
            if not all(isinstance(value, str) for value in (identity, text, title)):
                raise ValueError(
                    f"_id, text and maybe title are needed, all strings, not {one_line(fields)}"
                )
            identity = identity.strip()
            if identity in texts:
                raise ValueError(f"the _id {one_line(identity)} occurs twice")
            texts[identity] = f"{title} {text}".strip()
    if not texts:
        raise InputError(
            f'{path} is empty: a line like {{"_id": "7", "text": "..."}} is needed for each text'
        )
    return texts


def first_value(fields: Record, keys: Sequence[str]) -> Any:
    """Return the value of the first of the keys that an object has; None without one."""
    for key in keys:
        if key in fields:
            return fields[key]
    return None


def read_qrels(path: str | Path, queries: Collection[str]) -> dict[str, dict[str, int]]:
    """Read the judgements on each query: the grades of its documents, all by their ids."""
    judgements: dict[str, dict[str, int]] = {}
    is_first = True
    width = 0  # of the lines: 3, or 4 in TREC's files
    with reading(path) as at:
        for at.line, line in file_lines(path):
            if not line.strip(" "):
                continue
            cells = cells_of_judgement(line)
            check_width(cells, width)
            width = len(cells)
            if width == 4:  # a line of TREC's
                check_iteration(cells[1])
            query = cells[0]
            document = cells[-2]
            score = cells[-1]
            grade = as_number(score)
            if is_first:
                is_first = False
                if grade is None:
                    check_header(cells)
                    continue

            if grade is None or grade % 1 or abs(grade) >= 2**31:
                raise ValueError(
                    f"the score {one_line(score)} is not a whole number, or far too large"
                )
            if query not in queries:
                raise ValueError(f"{one_line(query)} is not an _id of the queries")
            of_query = judgements.setdefault(query, {})
            if document in of_query:
                raise ValueError(
                    f"the document {one_line(document)} is judged twice for this query"
                )
            of_query[document] = int(grade)
    return judgements


def cells_of_judgement(line: str) -> list[str]:
    """Return the cells of a line: between tabs, or of TREC's four columns between blanks."""
    if "\t" not in line and len(line.split()) == 4:
        return line.split()
    return [cell.strip() for cell in line.split("\t")]


def check_iteration(cell: str) -> None:
    """Raise ``ValueError`` unless the second of four cells is TREC's, which is not read."""
    if cell != "Q0" and as_number(cell) is None:
        raise ValueError(
            f"the second of four columns is {one_line(cell)}: TREC's qrels have 0 or Q0 there and "
            f"no header; else {', '.join(QRELS)} are needed"
        )


def check_header(cells: Sequence[str]) -> None:
    """Raise ``ValueError`` for a header with other names than BEIR's."""
    if tuple(cells) != QRELS:
        names = ", ".join(one_line(cell) for cell in cells)
        raise ValueError(f"the header {names} must be {', '.join(QRELS)}")


def check_width(cells: Sequence[str], width: int) -> None:
    """Raise ``ValueError`` unless a line has three cells or four, and as many as those before it.

    ``width`` is the number of theirs, or 0.
    """
    if len(cells) not in (3, 4):
        needed = f"{', '.join(QRELS)} are needed, separated by tabs"
        if len(cells) == 2:
            needed += "; an id and a text are queries, as in MS MARCO's queries.tsv"
        raise ValueError(f"{len(cells)} columns; {needed}")
    if width and len(cells) != width:
        raise ValueError(f"{len(cells)} columns; the lines before have {width}")


def retrieval_scores(
    encoder: TextEncoder,
    task: Retrieval,
    show_progress_bar: bool = True,
    search: Search | None = None,
    cutoffs: Sequence[int] = CUTOFFS,
    **options: Any,
) -> dict[str, float]:
    """Return every metric at every cutoff, over all queries, in 0..1.

    ``{"accuracy@1": ..., "ndcg@10": ..., ...}``. Documents are ranked by ``search``, or by the
    encoder's ``top_k``, which compares by the model's own similarity, ties in the order of the
    corpus. Queries and documents get the prompts that the model has for them. ``encoder.truncated``
    counts the texts that were cut. ``options`` are those of ``encode``.
    """
    options |= KINDS[encoder.vectors_are].encode_options
    options["show_progress_bar"] = show_progress_bar
    queries, corpus = encode_both(encoder, task.queries, task.corpus, **options)  # (Q, D), (N, D)
    if search is None:
        search = encoder.top_k
    ranked = ranked_grades(task, queries, corpus, show_progress_bar, search, max(cutoffs))
    judged = padded([list(grades.values()) for grades in task.grades])
    scores = {}
    for k in cutoffs:
        for name, metric in METRICS.items():
            scores[f"{name}@{k}"] = metric(ranked, judged, k)
    return scores


def encode_both(
    model: TextEncoder, queries: Sequence[str], documents: Sequence[str], **options: Any
) -> tuple[Any, Any]:
    """Encode queries and documents, each with the model's prompt for them, if it has one.

    ``model.truncated`` counts the texts of both that were cut.
    """
    query_vectors = model.encode_query(queries, **options)
    cut_queries = model.truncated
    document_vectors = model.encode_document(documents, **options)
    model.truncated += cut_queries
    return query_vectors, document_vectors


def ranked_grades(
    task: Retrieval,
    queries: np.ndarray,
    corpus: np.ndarray,
    progress: bool = False,
    search: Search = top_k,
    depth: int = max(CUTOFFS),
) -> np.ndarray:
    """Return the grades of the ``depth`` best documents of each query, best first.

    (Q, depth), or (Q, N) if the corpus has fewer.
    """
    count = depth
    if any(row is not None for row in task.skipped):
        count += 1  # because one document may be excluded
    _, indices = search(queries, corpus, min(count, len(corpus)), progress)  # (Q, k)
    ranked = []
    for rows, grades, skipped in zip(indices.tolist(), task.grades, task.skipped, strict=True):
        row_grades = [grades.get(row, 0) for row in rows if row != skipped]
        ranked.append(row_grades[:depth])
    return padded(ranked)


def padded(rows: list[list[int]]) -> np.ndarray:
    """Fill ragged rows up with 0: (Q, longest)."""
    longest = max((len(values) for values in rows), default=0)
    longest = max(longest, 1)  # metrics need a column
    result = np.zeros((len(rows), longest), dtype=np.int64)
    for row, values in enumerate(rows):
        result[row, : len(values)] = values
    return result


def rerank(
    model: PairScorer, queries: Sequence[str], texts: Sequence[str], indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sort the candidates (Q, C) by the model's scores of query and text, ties as they were.

    Returns scores and indices, (Q, C) each. Raises ``InputError`` for a model of classes, which has
    no score for a pair.
    """
    pairs = []
    for query, candidates in zip(queries, indices, strict=True):
        pairs += [(query, texts[i]) for i in candidates]
    scores = model.predict(pairs, show_progress_bar=True)
    if scores.ndim > 1:
        raise InputError("reranking needs a model with one score for a pair, not one of classes")
    scores = scores.reshape(indices.shape)
    order = np.argsort(-scores, axis=1, kind="stable")
    scores = np.take_along_axis(scores, order, axis=1)
    indices = np.take_along_axis(indices, order, axis=1)
    return scores, indices


def two_stage_search(
    search: Search, model: PairScorer, queries: Sequence[str], texts: Sequence[str], candidates: int
) -> Search:
    """Make a search by vectors, whose best ``candidates`` for each query ``model`` sorts.

    The others follow.
    """

    def search_and_rerank(
        query_vectors: np.ndarray, corpus: np.ndarray, k: int, progress: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Search, then sort the first columns of the result."""
        scores, indices = search(query_vectors, corpus, k, progress)
        best_scores, best_indices = rerank(model, queries, texts, indices[:, :candidates])
        scores[:, :candidates] = best_scores
        indices[:, :candidates] = best_indices
        return scores, indices

    return search_and_rerank
