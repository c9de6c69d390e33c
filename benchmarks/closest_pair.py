"""The most similar pair of 10,000 sentences, by vectors and by a joint model: SBERT's "65 hours".

    python -m benchmarks.closest_pair        sentences of the STS Benchmark, about 3 minutes
    python -m benchmarks.closest_pair --file sentences.txt.gz --count 5000 --rounds 1

A joint model (a cross-encoder) reads both sentences of every pair together: 49,995,000 forwards for
10,000 sentences, "about 65 hours" on a V100 with "BERT"; with sentence vectors "about 5 seconds"
(Reimers and Gurevych 2019, abstract, sections 1 and 8). The paper does not name the size: 10,000
sentences in 5 s fit BERT-base, 2,042 a second in its table 7; for the 65 hours, base is inferred.
Here all vectors are computed and compared. The joint model, whose head is random because only its
time matters, is timed on a sample of pairs, and the total is extrapolated.

If sentence-transformers is installed (the ``reference`` extra), its ``paraphrase_mining`` runs in
alternation, in the same process with the same number of threads. Models are loaded and warmed up
before timing starts.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

from minisbert.core import InputError
from minisbert.core.heads import JointHead
from minisbert.data.rows import SPLITS, every_text, load_scored_pairs
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import closest_pairs
from minisbert.system.assets import ensure
from minisbert.system.console import run_command, say

MODEL = "all-MiniLM-L6-v2"
PAPER = {"vectors": 5.0, "joint": 65 * 3600.0}  # seconds
WARM_UP = 256  # sentences
PARTS = ("encode", "search", "total")  # what is timed of a side with vectors

Found = dict[str, object]  # seconds of encode and search, and the pair


def sentences(file: str | None, count: int) -> list[str]:
    """The first ``count`` sentences of the file, or of STS-B, that differ in more than case."""
    texts = []
    if file:
        texts = list(every_text(file))
    else:
        for split in SPLITS:
            for pair in load_scored_pairs("stsb", split):
                texts += [pair.sentence1, pair.sentence2]
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(" ".join(text.lower().split()), text)
    different = list(first.values())
    if not 2 <= count <= len(different):
        raise InputError(
            f"--count {count:,}: choose 2 to {len(different):,}, the number of different sentences"
        )
    return different[:count]


def minisbert_side() -> Callable[[list[str]], Found]:
    encoder = SentenceEncoder.load(MODEL)

    def closest(texts: list[str]) -> Found:
        started = time.perf_counter()
        vectors = encoder.encode(texts)
        encoded = time.perf_counter()
        scores, pairs = closest_pairs(vectors, 1)
        done = time.perf_counter()
        return outcome(
            encoded - started, done - encoded, texts, float(scores[0]), *pairs[0].tolist()
        )

    return closest


def reference_side() -> Callable[[list[str]], Found]:
    """The two steps of ``paraphrase_mining``: ``encode``, then the search in the vectors."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util.retrieval import paraphrase_mining_embeddings

    model = SentenceTransformer(str(ensure(MODEL)), device="cpu")

    def closest(texts: list[str]) -> Found:
        started = time.perf_counter()
        vectors = model.encode(texts, convert_to_tensor=True)
        encoded = time.perf_counter()
        score, i, j = paraphrase_mining_embeddings(vectors, top_k=1, max_pairs=1)[0]
        done = time.perf_counter()
        return outcome(encoded - started, done - encoded, texts, score, i, j)

    return closest


def outcome(encode: float, search: float, texts: list[str], score: float, i: int, j: int) -> Found:
    seconds = {"encode": encode, "search": search, "total": encode + search}
    return {"seconds": seconds, "score": score, "pair": [texts[i], texts[j]]}


def joint_rate(texts: list[str], sample: int) -> float:
    """Pairs per second of a joint model, on a random sample of the pairs of these sentences."""
    encoder = SentenceEncoder.load(MODEL)
    model = PairModel(encoder, JointHead(encoder.bert.config.hidden_size)).eval()
    chance = random.Random(0)
    pairs = [chance.sample(texts, 2) for _ in range(sample)]
    model.predict(pairs[:WARM_UP])
    started = time.perf_counter()
    model.predict(pairs)
    return sample / (time.perf_counter() - started)


def compare(texts: list[str], rounds: int, sample: int) -> dict[str, object]:
    """All runs, the median seconds of each side, and the extrapolation for the joint model."""
    sides = {"minisbert": minisbert_side()}
    if find_spec("sentence_transformers"):
        sides["sentence-transformers"] = reference_side()
    for closest in sides.values():
        closest(texts[:WARM_UP])
    runs: dict[str, list[Found]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, closest in sides.items():
            run = closest(texts)
            runs[name].append(run)
            say(f"round {number + 1} of {rounds}, {name}: {run['seconds']['total']:.1f} s")

    found = {}
    seconds = {}
    medians: dict[str, dict[str, float]] = {}
    for name, rows in runs.items():
        found[name] = {"score": rows[0]["score"], "pair": rows[0]["pair"]}
        seconds[name] = [run["seconds"] for run in rows]
        medians[name] = {}
        for part in PARTS:
            medians[name][part] = statistics.median(times[part] for times in seconds[name])

    rate = joint_rate(texts, sample)
    pairs = len(texts) * (len(texts) - 1) // 2
    return {
        "model": MODEL,
        "threads": torch.get_num_threads(),
        "sentences": len(texts),
        "pairs": pairs,
        "found": found,
        "seconds": seconds,
        "medians": medians,
        "joint": {"sample": sample, "pairs_per_second": rate, "seconds": pairs / rate},
        "paper": PAPER,
    }


def show(result: dict) -> None:
    """Print the comparison."""
    best = result["found"]["minisbert"]
    joint = result["joint"]
    medians = result["medians"]
    count = f"{result['pairs']:,} pairs of {result['sentences']:,} sentences"
    print(f"closest of {count}, cosine {best['score']:.4f}:")
    for text in best["pair"]:
        print(f"  {text}")
    print()
    print("| | encode | search | together |\n|---|---|---|---|")
    for name, median in medians.items():
        seconds = [f"{median[part]:.1f} s" for part in PARTS]
        line(f"{name}, vectors", *seconds)
    rate = joint["pairs_per_second"]
    hours = joint["seconds"] / 3600
    line(f"joint model, extrapolated from {rate:.0f} pairs a second", "", "", f"{hours:.0f} h")
    line("paper (V100, SBERT), vectors", "about 5 s", "about .01 s", f"{PAPER['vectors']:.0f} s")
    line("paper (V100, BERT), joint model", "", "", f"{PAPER['joint'] / 3600:.0f} h")
    total = medians["minisbert"]["total"]
    ratio = joint["seconds"] / total
    machine = f"{result['model']}, {result['threads']} threads"
    print(f"\n{machine}: vectors are {ratio:,.0f} times as fast")
    if "sentence-transformers" in medians:
        share = total / medians["sentence-transformers"]["total"]
        print(f"minisbert takes {share:.2f} of sentence-transformers' time")


def line(name: str, *cells: str) -> None:
    """Print a row of the table; an empty cell has one space."""
    row = ""
    for cell in (name, *cells):
        row += f"| {cell} " if cell else "| "
    print(row + "|")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.closest_pair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--file", help="one sentence per line, .txt or .txt.gz (default: the sentences of STS-B)"
    )
    parser.add_argument(
        "--count", type=int, default=10_000, help="number of different sentences (default: 10000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each side, in alternation (default: 3)"
    )
    parser.add_argument(
        "--sample", type=int, default=1000, help="pairs for the joint model (default: 1000)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with all runs")
    options = parser.parse_args()
    result = compare(sentences(options.file, options.count), options.rounds, options.sample)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result)


if __name__ == "__main__":
    run_command(main)
