"""Search a file of sentences for the ones closest in meaning to a query, by cosine (a SparseEncoder: dot products).

minisbert search corpus.txt --query "A man plays a guitar." --top 5
minisbert search corpus.txt --queries questions.txt --index corpus.safetensors --json
minisbert search corpus.txt --query "A guitar." --index shards # from: encode --out shards --shard-rows N
minisbert search corpus.txt --query "A guitar." --index bits.safetensors  # from: encode --quantize binary
minisbert search corpus.txt --query "A guitar." --query-prompt "query: " --corpus-prompt "passage: "
"""

import argparse
import json

from minisbert.commands.corpus_options import add_corpus_options, load_and_encode, read_corpus
from minisbert.commands.model_options import ROLES, prompt_of
from minisbert.commands.options import command_parser
from minisbert.corpus.codes import RESCORE, Bits
from minisbert.corpus.index import encode_with_progress
from minisbert.data.texts import read_texts
from minisbert.system.console import bounded, check_usage, run_command, say


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; ``options.queries`` is the list of queries."""
    parser = command_parser("search", __doc__)
    parser.add_argument(
        "corpus", metavar="CORPUS", help="one sentence per line, .txt or .txt.gz; empty lines are skipped"
    )
    parser.add_argument("--query", action="append", metavar="TEXT", help="may be given several times")
    parser.add_argument("--queries", metavar="FILE", help="one query per line")
    parser.add_argument(
        "--top", type=bounded(int, 1), default=5, metavar="K", help="results per query (default: %(default)s)"
    )
    parser.add_argument(
        "--rescore",
        type=bounded(int, 1),
        metavar="K",
        help="for an --index of encode --quantize binary: score K times --top candidates with the float32 query "
        f"(default: {RESCORE}); int8 codes are compared with float32 queries throughout",
    )
    add_corpus_options(parser, roles=ROLES)
    options = parser.parse_args(arguments)
    both = bool(options.query) == bool(options.queries)
    check_usage((both, "give either --query TEXT, once or several times, or --queries FILE"))
    options.queries = options.query or read_texts(options.queries)[0]
    check_usage((not all(map(str.strip, options.queries)), "an empty query matches nothing in particular"))
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    corpus = read_corpus(options.corpus)
    if options.top > len(corpus):
        say(f"--top {options.top}: the corpus has only {len(corpus)} sentences; all are shown")
    with load_and_encode(corpus, options, options.corpus) as (encoder, vectors):
        queries = encode_with_progress(encoder, options.queries, prompt_of(encoder, options, "query"))
        top = min(options.top, len(corpus))
        if isinstance(vectors, Bits):
            scores, indices = vectors.top_k(queries, top, options.rescore or RESCORE)
        else:
            scores, indices = encoder.top_k(queries, vectors, top, progress=True)
    if options.json:
        results = [
            {"query": query, "hits": [{"score": s, "index": i, "text": corpus[i]} for s, i in zip(*hits, strict=True)]}
            for query, *hits in zip(options.queries, scores.tolist(), indices.tolist(), strict=True)
        ]
        print(json.dumps({"model": options.model, "corpus": len(corpus), "results": results}, ensure_ascii=False))
        return
    for number, query in enumerate(options.queries):
        print(f"\n{query}" if number else query)
        for score, index in zip(scores[number], indices[number], strict=True):
            print(f"{score:8.4f}  {corpus[index]}")


if __name__ == "__main__":
    run_command(main)
