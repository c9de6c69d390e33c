"""Encoding beside sentence-transformers and ONNX Runtime: the same weights, texts and threads, in alternation.

    python -m tests.benchmarks.encode_speed                     all of it: about fifteen minutes
    python -m tests.benchmarks.encode_speed --what rates --texts stsb --rounds 5
    python -m tests.benchmarks.encode_speed --what start --json

rates    texts a second, the median of the rounds, in which all sides take turns, and each side's largest difference
         from sentence-transformers in float32. ``stsb``: the distinct sentences of STS-B test, with the Spearman of
         all its pairs; ``mixed``: 10 to 250 tokens; ``long``: all 256 that the model takes
latency  milliseconds for one sentence, by a call of its own
start    a fresh process from its start to one sentence's vector: seconds and the most memory it held

Needs the ``reference`` extra. The peers' batch size is the fastest of a few, tried on the first texts. As in the
commands, freed memory is kept (``device.keep_freed_memory``), for all sides alike; ``--library`` leaves that away.
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
# subtle: not ru_maxrss, which on Linux a child inherits from the process that started it
PEAK = """
import re
from pathlib import Path
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024)
"""


def composed(count: int, shortest: int, longest: int, tokens: dict[str, int]) -> list[str]:
    """Texts of between so many tokens, [CLS] and [SEP] included, made of real sentences one behind the other."""
    chance = random.Random(0)
    sentences = list(tokens)
    texts = []
    while len(texts) < count:
        wanted, parts = chance.randint(shortest, longest) - 2, []
        while sum(tokens[part] for part in parts) < wanted:
            parts.append(chance.choice(sentences))
        words = " ".join(parts).split()
        texts.append(" ".join(words[: max(3, round(len(words) * wanted / sum(tokens[part] for part in parts)))]))
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
    """Everyone who takes part, each peer at its best batch size."""
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
    """Texts a second of every side, and how good its vectors are."""
    texts = texts_of(kind, encoder)
    everyone = sides(encoder, folder, onnx, texts[: max(64, len(texts) // 8)])
    seconds: dict[str, list[float]] = {name: [] for name in everyone}
    vectors = {}
    for _ in range(rounds):
        for name, encode in everyone.items():
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
    """The median of the milliseconds that one sentence takes; 20 calls of a side, then the next side's, in rounds.

    Not call by call in turn: ONNX Runtime's threads wait for more work in a loop, and would slow the others down.
    """
    everyone: dict[str, Encode] = {
        "minisbert float32": encoder.encode,
        "sentence-transformers float32": peers.sentence_transformers(folder, "float32"),
        "onnxruntime float32": peers.onnxruntime(onnx["float32"], folder),
        "onnxruntime int8": peers.onnxruntime(onnx["int8"], folder),
    }
    seconds: dict[str, list[float]] = {name: [] for name in everyone}
    for _ in range(rounds):
        for name, encode in everyone.items():
            time.sleep(0.2)
            encode([SENTENCE])
            for _ in range(20):
                started = time.perf_counter()
                encode([SENTENCE])
                seconds[name].append(time.perf_counter() - started)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def start(folder: Path, onnx: dict[str, Path], rounds: int) -> dict[str, dict]:
    """Seconds from a process's start to its end behind the first vector, and its peak memory in MiB; medians."""
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
        print(f"\n{kind}: {found['texts']:,} texts, {found['tokens']:,} tokens, the longest {found['longest']}")
        base = found["sides"]["sentence-transformers float32"]["texts_per_second"]
        for name, row in found["sides"].items():
            quality = f"   Spearman {100 * row['spearman']:.3f}" if "spearman" in row else ""
            rate = row["texts_per_second"]
            print(f"{name:<32}{rate:>8,.0f} a second{rate / base:>7.2f} x{row['difference']:>10.1e}{quality}")
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
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all sides (default: %(default)s)")
    parser.add_argument("--library", action="store_true", help="do not keep freed memory")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
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
