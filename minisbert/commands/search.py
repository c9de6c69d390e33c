"""Search a file of texts for the ones closest in meaning to a query, by cosine (a SparseEncoder: dot products).

minisbert search corpus.txt --query "A man plays a guitar." --top 5
minisbert search corpus.txt --queries questions.txt --index corpus.safetensors --json
minisbert search corpus.jsonl --query "A guitar." --rerank cross-encoder/ms-marco-MiniLM-L6-v2
minisbert search corpus.txt --query "A guitar." --index shards # from: encode --out shards --shard-rows N
minisbert search corpus.txt --query "A guitar." --index bits.safetensors  # from: encode --quantize binary
minisbert search corpus.txt --query "A guitar." --query-prompt "query: " --corpus-prompt "passage: "
"""

import argparse
import json

import numpy as np

from minisbert.commands.options import ROLES, TEXT_FILES, add_corpus_options, load_and_encode, prompt_of, read_corpus
from minisbert.corpus.index import encode_with_progress, index_metadata
from minisbert.evaluation.retrieval import rerank
from minisbert.models.pair_model import PairModel
from minisbert.search.vector_files import RESCORE, Bits
from minisbert.system.command_line import command_parser
from minisbert.system.console import bounded, check_usage, run_command, say

CANDIDATES = 50  # texts for each query that a reranker reads


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``options.queries`` is the list of queries."""
    parser = command_parser("search", __doc__)
    at_least_1 = bounded(int, 1)
    parser.add_argument("corpus", metavar="CORPUS", help=f"{TEXT_FILES}; empty lines are skipped")
    parser.add_argument("--query", action="append", metavar="TEXT", help="may be given several times")
    parser.add_argument("--queries", metavar="FILE", help="one query per line, or as CORPUS")
    parser.add_argument("--top", type=at_least_1, default=5, metavar="K", help="results per query (default: 5)")
    parser.add_argument(
        "--rescore",
        type=at_least_1,
        metavar="K",
        help="for an --index of encode --quantize binary: score K times --top candidates with the float32 query "
        f"(default: {RESCORE}); int8 codes are compared with float32 queries throughout",
    )
    parser.add_argument(
        "--rerank", metavar="MODEL", help="a cross-encoder, which reads the best texts beside the query and sorts them"
    )
    parser.add_argument(
        "--candidates",
        type=at_least_1,
        default=CANDIDATES,
        metavar="N",
        help="texts for each query that --rerank reads, at least --top (default: %(default)s)",
    )
    add_corpus_options(parser, roles=ROLES)
    options = parser.parse_args(arguments)
    both = bool(options.query) == bool(options.queries)
    check_usage((both, "give either --query TEXT, once or several times, or --queries FILE"))
    options.queries = options.query or read_corpus(options.queries)
    has_codes = options.index is not None and options.index.is_file() and "quantized" in index_metadata(options.index)
    check_usage(
        (not all(map(str.strip, options.queries)), "an empty query matches nothing in particular"),
        (options.rescore and not has_codes, "--rescore is for an --index that encode --quantize wrote"),
    )
    return options


def search(options: argparse.Namespace, corpus: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and indices, (Q, K) each, the best first."""
    reranker = None
    top = min(options.top, len(corpus))
    count = top
    if options.rerank:
        reranker = PairModel.load(options.rerank, device=options.device)
        count = min(max(options.candidates, top), len(corpus))
    encoder, vectors, _ = load_and_encode(corpus, options)
    queries = encode_with_progress(encoder, options.queries, prompt_of(encoder, options, "query"))
    if isinstance(vectors, Bits):
        scores, indices = vectors.top_k(queries, count, options.rescore or RESCORE)
    else:
        scores, indices = encoder.top_k(queries, vectors, count, progress=True)
    if reranker:
        scores, indices = rerank(reranker, options.queries, corpus, indices)
    return scores[:, :top], indices[:, :top]


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    corpus = read_corpus(options.corpus)
    if options.top > len(corpus):
        say(f"--top {options.top}: the corpus has only {len(corpus)} sentences; all are shown")
    scores, indices = search(options, corpus)
    results = []
    for query, own_scores, own_indices in zip(options.queries, scores.tolist(), indices.tolist(), strict=True):
        hits = zip(own_scores, own_indices, strict=True)
        results.append({"query": query, "hits": [{"score": s, "index": i, "text": corpus[i]} for s, i in hits]})
    if options.json:
        print(json.dumps({"model": options.model, "corpus": len(corpus), "results": results}, ensure_ascii=False))
        return
    blocks = []
    for result in results:
        lines = [f"{hit['score']:8.4f}  {hit['text']}" for hit in result["hits"]]
        blocks.append("\n".join([result["query"], *lines]))
    print("\n\n".join(blocks))


if __name__ == "__main__":
    run_command(main)
