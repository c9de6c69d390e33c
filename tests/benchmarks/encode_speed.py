"""Encoding compared with sentence-transformers and ONNX Runtime: same weights, texts and threads, in alternation.

    python -m tests.benchmarks.encode_speed                     everything, about fifteen minutes
    python -m tests.benchmarks.encode_speed --what rates --texts stsb --rounds 5
    python -m tests.benchmarks.encode_speed --what start --json

rates    texts per second, the median of rounds in which all sides take turns, and the largest difference from
         sentence-transformers in float32. ``stsb``: the distinct sentences of STS-B test, with the Spearman of all its
         pairs; ``mixed``: 10 to 250 tokens; ``long``: all 256 tokens that the model accepts
latency  milliseconds for one sentence per call
start    seconds from the start of a new process to the vector of one sentence, and the peak memory

Needs the ``reference`` extra. The batch size of each peer is the fastest of a few, tried on the first texts. As in the
commands, freed memory is kept (``devices.keep_freed_memory``), for all sides; ``--library`` disables that.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from minisbert.core.metrics import spearman
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.objectives.evaluation import similarities
from minisbert.objectives.scored_pairs import load_scored_pairs
from minisbert.system.assets import ensure
from minisbert.system.console import run_command, say
from minisbert.system.devices import bfloat16_hardware, keep_freed_memory
from tests.benchmarks import peers
from tests.benchmarks.peers import Encode

MODEL = "all-MiniLM-L6-v2"
SENTENCE = "A man is playing a guitar on the stage."
START = {
    "minisbert": """
from minisbert.models.sentence_encoder import SentenceEncoder
vector = SentenceEncoder.load({model!r}).encode([{sentence!r}])
""",
    "sentence-transformers": """
import os; os.environ["HF_HUB_OFFLINE"] = "1"
from sentence_transformers import SentenceTransformer
vector = SentenceTransformer({model!r}, device="cpu").encode([{sentence!r}])
""",
    "onnxruntime": """
import numpy as np
import onnxruntime
from tokenizers import Tokenizer
ids = np.array([Tokenizer.from_file({model!r} + "/tokenizer.json").encode({sentence!r}).ids])
feed = dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
states = onnxruntime.InferenceSession({onnx!r}).run(None, feed)[0]
vector = states.mean(axis=1)
""",
}
# subtle: not ru_maxrss, which a child process on Linux inherits from its parent
PEAK = """
import re
from pathlib import Path
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def composed(count: int, shortest: int, longest: int, tokens: dict[str, int]) -> list[str]:
    """Texts of ``shortest`` to ``longest`` tokens, [CLS] and [SEP] included, made by concatenating real sentences."""
    chance = random.Random(0)
    sentences = list(tokens)
    texts = []
    while len(texts) < count:
        wanted, chosen, found = chance.randint(shortest, longest) - 2, [], 0
        while found < wanted:
            chosen.append(chance.choice(sentences))
            found += tokens[chosen[-1]]
        words = " ".join(chosen).split()
        texts.append(" ".join(words[: max(3, round(len(words) * wanted / found))]))
    return texts


def texts_of(kind: str, encoder: SentenceEncoder) -> list[str]:
    pairs = load_scored_pairs("stsb", "test")
    distinct = list(dict.fromkeys([pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]))
    if kind == "stsb":
        return distinct
    tokens = {text: len(ids) - 2 for text, ids in zip(distinct, encoder.tokenizer.encode(distinct).ids, strict=True)}
    return composed(300, 10, 250, tokens) if kind == "mixed" else composed(150, 300, 400, tokens)


def stsb_spearman(texts: list[str], vectors: np.ndarray) -> float:
    pairs = load_scored_pairs("stsb", "test")
    row = {text: i for i, text in enumerate(texts)}
    u, v = ([row[getattr(pair, side)] for pair in pairs] for side in ("sentence1", "sentence2"))
    cosines = similarities(vectors[u], vectors[v])["cosine"]
    return spearman(cosines, np.array([pair.score for pair in pairs]))


def sides(encoder: SentenceEncoder, folder: Path, onnx: dict[str, Path], probe: list[str]) -> dict[str, Encode]:
    """All participants by name, each peer at its best batch size."""
    makers = {
        "sentence-transformers float32": partial(peers.sentence_transformers, folder, "float32"),
        "sentence-transformers bfloat16": partial(peers.sentence_transformers, folder, "bfloat16"),
        "onnxruntime float32": partial(peers.onnxruntime, onnx["float32"], folder),
        "onnxruntime int8": partial(peers.onnxruntime, onnx["int8"], folder),
    }
    found: dict[str, Encode] = {"minisbert float32": encoder.encode}
    if bfloat16_hardware(torch.device("cpu"))[0]:
        found["minisbert bfloat16"] = partial(encoder.encode, precision="bfloat16")
    else:
        del makers["sentence-transformers bfloat16"]
    for name, make in makers.items():
        best = peers.best_batch_size(make, probe)
        say(f"{name}: batches of {best}")
        found[name] = make(best)
    return found


def rates(kind: str, encoder: SentenceEncoder, folder: Path, onnx: dict[str, Path], rounds: int) -> dict:
    """Texts per second of every side, and the quality of its vectors."""
    texts = texts_of(kind, encoder)
    encoders = sides(encoder, folder, onnx, texts[: max(64, len(texts) // 8)])
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    vectors = {}
    for _ in range(rounds):
        for name, encode in encoders.items():
            started = time.perf_counter()
            vectors[name] = encode(texts)
            seconds[name].append(time.perf_counter() - started)
    reference = vectors["sentence-transformers float32"]
    result = {}
    for name, times in seconds.items():
        difference = float(abs(vectors[name] - reference).max())
        result[name] = {"texts_per_second": len(texts) / statistics.median(times), "difference": difference}
        result[name]["seconds"] = times
        if kind == "stsb":
            result[name]["spearman"] = stsb_spearman(texts, vectors[name])
    lengths = [len(ids) for ids in encoder.tokenizer.encode(texts).ids]
    return {"texts": len(texts), "tokens": sum(lengths), "longest": max(lengths), "sides": result}


def latency(encoder: SentenceEncoder, folder: Path, onnx: dict[str, Path], rounds: int) -> dict[str, float]:
    """Median milliseconds for one sentence: in each round 20 calls of one side, then 20 of the next.

    Alternating single calls would be unfair: ONNX Runtime's threads spin while they wait, and slow the others down.
    """
    encoders: dict[str, Encode] = {
        "minisbert float32": encoder.encode,
        "sentence-transformers float32": peers.sentence_transformers(folder, "float32"),
        "onnxruntime float32": peers.onnxruntime(onnx["float32"], folder),
        "onnxruntime int8": peers.onnxruntime(onnx["int8"], folder),
    }
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(rounds):
        for name, encode in encoders.items():
            time.sleep(0.2)
            encode([SENTENCE])
            for _ in range(20):
                started = time.perf_counter()
                encode([SENTENCE])
                seconds[name].append(time.perf_counter() - started)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def start(folder: Path, onnx: dict[str, Path], rounds: int) -> dict[str, dict]:
    """Median seconds of a process that computes one vector, and its median peak memory in MiB."""
    found: dict[str, dict] = {name: {"seconds": [], "mebibytes": []} for name in START}
    for _ in range(rounds):
        for name, script in START.items():
            code = script.format(model=str(folder), sentence=SENTENCE, onnx=str(onnx["float32"])) + PEAK
            started = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
            found[name]["seconds"].append(time.perf_counter() - started)
            found[name]["mebibytes"].append(float(done.stdout))
    return {name: {what: statistics.median(values) for what, values in side.items()} for name, side in found.items()}


def show(results: dict) -> None:
    for kind, found in results.get("rates", {}).items():
        print(f"\n{kind}: {found['texts']:,} texts, {found['tokens']:,} tokens, longest text {found['longest']}")
        base = found["sides"]["sentence-transformers float32"]["texts_per_second"]
        for name, row in found["sides"].items():
            quality = f"   Spearman {100 * row['spearman']:.3f}" if "spearman" in row else ""
            rate = row["texts_per_second"]
            print(f"{name:<32}{rate:>8,.0f} per second{rate / base:>7.2f} x{row['difference']:>10.1e}{quality}")
    if "latency" in results:
        print("\none sentence")
        for name, milliseconds in results["latency"].items():
            print(f"{name:<32}{milliseconds:>8.2f} ms")
    if "start" in results:
        print("\nprocess start to the first vector")
        for name, row in results["start"].items():
            print(f"{name:<32}{row['seconds']:>8.2f} s{row['mebibytes']:>8,.0f} MiB")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.encode_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds, whats = ("stsb", "mixed", "long"), ("rates", "latency", "start")
    parser.add_argument("--what", nargs="+", choices=whats, default=whats, help="what to measure (default: all)")
    parser.add_argument("--texts", nargs="+", choices=kinds, default=kinds, help="for the rates (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument("--library", action="store_true", help="do not keep freed memory, as when used as a library")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    if not options.library:
        keep_freed_memory()
    folder = ensure(MODEL)
    encoder = SentenceEncoder.load(folder)
    results: dict = {"threads": torch.get_num_threads(), "freed_memory_kept": not options.library}
    with tempfile.TemporaryDirectory() as exported:
        onnx = peers.export(folder, Path(exported))
        if "rates" in options.what:
            results["rates"] = {k: rates(k, encoder, folder, onnx, options.rounds) for k in options.texts}
        if "latency" in options.what:
            results["latency"] = latency(encoder, folder, onnx, options.rounds)
        if "start" in options.what:
            results["start"] = start(folder, onnx, options.rounds)
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    run_command(main)
