"""The memory that encoding a long stream of short texts takes: ``encode_stream`` over a generator.

    python -m benchmarks.stream_memory           a million texts: about twenty minutes
    python -m benchmarks.stream_memory --model weights/tiny --texts 100000

The vectors are discarded as they arrive, so any growth is memory of the stream itself. Growth is
the peak memory of the process minus its memory after loading model and libraries.
"""

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator

from minisbert.data.rows import load_scored_pairs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command
from minisbert.system.devices import keep_freed_memory


def short_texts(count: int) -> Iterator[str]:
    """Sentences of STS-B train, each with its number as an extra word, so no two are equal."""
    chance = random.Random(0)
    sentences = [pair.sentence1.split() for pair in load_scored_pairs("stsb", "train")]
    for i in range(count):
        words = chance.choice(sentences)[:12]
        yield " ".join([*words, str(i)])


def peak() -> float:
    """The peak memory of this process in MiB."""
    kibi = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB elsewhere.
    return kibi / 2**20 if sys.platform == "darwin" else kibi / 2**10


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stream_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--texts", type=int, default=1_000_000, help="number of texts (default: a million)"
    )
    parser.add_argument(
        "--dtype", default="float32", help="float32 or bfloat16 (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    keep_freed_memory()
    encoder = SentenceEncoder.load(options.model)
    encoder.encode(["One text, so everything is loaded."], dtype=options.dtype)
    loaded = peak()
    started = time.perf_counter()
    done = 0
    stream = encoder.encode_stream(
        short_texts(options.texts), show_progress_bar=True, total=options.texts, dtype=options.dtype
    )
    for vectors in stream:
        done += len(vectors)
    seconds = time.perf_counter() - started
    found = {
        "texts": done,
        "seconds": seconds,
        "loaded_mebibytes": loaded,
        "growth_mebibytes": peak() - loaded,
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"{done:,} texts in {seconds:,.0f} s, {done / seconds:,.0f} per second")
    print(f"{loaded:,.0f} MiB loaded, {peak() - loaded:,.0f} MiB more at the peak")


if __name__ == "__main__":
    run_command(main)
