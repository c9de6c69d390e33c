"""What tokenizing and batching cost beside the tokenizers library: microseconds of CPU time a text, in one thread.

    python -m benchmarks.batching                 20,000 sentences, half a minute
    python -m benchmarks.batching --texts 100000

The library's part is its call and the lists of ids that it returns. The rest is ours: from texts to ids as bytes, and
from these to the tensors of all batches.
"""

import argparse
import os
import time

os.environ["RAYON_NUM_THREADS"] = "1"  # before the library starts its threads: its CPU time would hide ours

from benchmarks.encode_speed import texts_of
from minisbert.models.batching import packed_batches, tokenize
from minisbert.models.encoder import BATCH_TOKENS
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import best_seconds


def library(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """The ids of the texts, by the library alone."""
    return [encoding.ids for encoding in tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batching", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=bounded(int, 1), default=20_000, help="number of texts (default: %(default)s)")
    parser.add_argument("--rounds", type=bounded(int, 1), default=7, help="the best of so many (default: %(default)s)")
    options = parser.parse_args(arguments)
    encoder = SentenceEncoder.load(ensure("all-MiniLM-L6-v2"), device="cpu")
    sentences = texts_of("stsb", encoder)
    texts = [f"{sentences[number % len(sentences)]} {number}" for number in range(options.texts)]
    keys, _ = tokenize(encoder.tokenizer, texts)
    calls = [
        lambda: library(encoder.tokenizer, texts),
        lambda: tokenize(encoder.tokenizer, texts),
        lambda: list(packed_batches(keys, BATCH_TOKENS)),
    ]
    alone, ids, batches = (
        1e6 * seconds / len(texts) for seconds in best_seconds(calls, options.rounds, clock=time.process_time)
    )
    print(f"library {alone:.1f}, ids beyond it {max(0.0, ids - alone):.1f}, batches {batches:.1f} microseconds a text")


if __name__ == "__main__":
    run_command(main)
