"""Search a file of texts for the ones closest in meaning to a query, by the model's own similarity.

Examples:
  minisbert search corpus.txt --query "A man plays a guitar." --top 5
  minisbert search corpus.txt --queries questions.txt --index corpus.safetensors --json
  minisbert search corpus.jsonl --query "A guitar." --rerank cross-encoder/ms-marco-MiniLM-L6-v2
  minisbert search corpus.txt --query "A guitar." --index bits.safetensors  # of encode --quantize
  minisbert search corpus.txt --query "Music?" --query-prompt "query: " --corpus-prompt "passage: "
"""

import argparse
from typing import Any

from minisbert.commands import shared
from minisbert.system.console import bounded, check_usage, command_parser, say

parser = command_parser("search", __doc__)
parser.add_argument(
    "corpus", metavar="CORPUS", help=f"{shared.CORPUS_FILES}; empty lines are skipped"
)
parser.add_argument(
    "--query", action="append", metavar="TEXT", help="a query; may be given several times"
)
parser.add_argument(
    "--queries", metavar="FILE", help="one query per line, or a file of any kind that CORPUS can be"
)
parser.add_argument(
    "--top", type=bounded(int, 1), default=5, metavar="K", help="results per query (default: 5)"
)
parser.add_argument(
    "--rescore",
    type=bounded(int, 1),
    metavar="K",
    help="with an --index of encode --quantize binary: score K times --top candidates with the "
    "float32 query (default: 4); int8 codes are always compared with float32 queries",
)
shared.add_rerank_options(parser)
shared.add_corpus_options(parser, "the column of texts", ("query", "corpus"))


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    queries = read_queries(options)
    corpus = shared.read_corpus(options.corpus, options.columns, options.quotes)
    if options.top > len(corpus):
        say(f"--top {options.top}: the corpus has only {len(corpus)} sentences; all are shown")

    # The header of the index says what it holds.
    codes = shared.stored_codes(options)
    no_cosine = options.similarity not in (None, "cosine")
    check_usage(
        (options.rescore and not codes, "--rescore is for an --index that encode --quantize wrote"),
        (
            no_cosine and codes.get("quantized") == "binary",
            f"--similarity {options.similarity}: bits have no lengths, so only the cosine ranks "
            f"them",
        ),
    )

    from minisbert.evaluation.retrieval import rerank
    from minisbert.models.index import encode_with_progress
    from minisbert.models.pair_model import PairModel
    from minisbert.search.codes import RESCORE, Bits

    # Models and prompts come first: a wrong name should not cost the hour of encoding the corpus.
    top = min(options.top, len(corpus))
    candidates = top
    if options.rerank:
        reranker = PairModel.load(options.rerank, device=options.device)
        # It must see at least what is shown, and no more than there is.
        candidates = min(max(options.candidates, top), len(corpus))
    encoder = shared.chosen_encoder(options)
    query_prompt = shared.prompt_of(encoder, options, "query")
    prompt = shared.prompt_of(encoder, options, "corpus", codes.get("prompt"))

    vectors = shared.corpus_vectors(encoder, corpus, prompt, options.index)
    query_vectors = encode_with_progress(encoder, queries, query_prompt, query=True)
    similarity = encoder.similarity_fn_name
    if isinstance(vectors, Bits):
        # Bits are compared by Hamming distance, and the best rescored with the float32 query. Their
        # scores are cosines, whatever the model's similarity: rows of signs all have the same
        # length, so dot products would rank them alike.
        similarity = "cosine"
        scores, indices = vectors.top_k(query_vectors, candidates, options.rescore or RESCORE)
    else:
        scores, indices = encoder.top_k(query_vectors, vectors, candidates, progress=True)

    if options.rerank:
        say(f"{candidates} candidates for each query by {similarity}, scored by {options.rerank}")
        scores, indices = rerank(reranker, queries, corpus, indices)
        shared.say_cut_pairs(reranker, indices.size)
    else:
        say(f"scored by {similarity}")
    best_scores = scores[:, :top].tolist()
    best_indices = indices[:, :top].tolist()

    results: list[dict[str, Any]] = []
    lines: list[str] = []
    for query, row_scores, row_indices in zip(queries, best_scores, best_indices, strict=True):
        hits = []
        if lines:
            lines.append("")
        lines.append(query)
        for score, index in zip(row_scores, row_indices, strict=True):
            hits.append({"score": score, "index": index, "text": corpus[index]})
            # the further lines of a text stand below its first
            text = str(corpus[index]).replace("\n", "\n" + 10 * " ")
            lines.append(f"{score:8.4f}  {text}")
        results.append({"query": query, "hits": hits})
    result = {
        "model": options.model,
        "similarity": similarity,
        "rerank": options.rerank,
        "corpus": len(corpus),
        "results": results,
    }
    shared.print_result(options, result, lines)


def read_queries(options: argparse.Namespace) -> list[str]:
    """Return the queries of ``--query`` or of the file of ``--queries``."""
    both_or_none = bool(options.query) == bool(options.queries)
    check_usage(
        (both_or_none, "give either --query TEXT, once or several times, or --queries FILE")
    )
    queries: list[str] = options.query
    if options.queries:
        queries = shared.read_corpus(
            options.queries, options.columns, options.quotes, columns_may_lack=True
        )
    has_empty = any(not query.strip() for query in queries)
    check_usage((has_empty, "an empty query matches nothing in particular"))
    return queries
