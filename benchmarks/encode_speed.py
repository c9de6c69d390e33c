"""Encoding compared with other libraries: same weights, texts and threads, in alternation.

    python -m benchmarks.encode_speed                     everything, about half an hour
    python -m benchmarks.encode_speed --what rates --texts stsb
    python -m benchmarks.encode_speed --what latency --texts-a-call 1 4 16 --peers openvino
    python -m benchmarks.encode_speed --what start --json

rates    texts per second, the median of rounds in which all sides take turns; the share of the
         machine's GEMM rate: the operations of the encoder (``machine.encoder_flop``) per second,
         divided by the best rate that the machine reaches at this dtype; and the largest
         difference from sentence-transformers in float32. ``stsb``: the distinct sentences of
         STS-B test, with the Spearman of all its pairs; ``mixed``: 10 to 250 tokens; ``long``: all
         256 tokens that the model accepts
latency  milliseconds per call with 1 to 32 sentences of STS-B test, other ones in every call
start    seconds from the start of a new process to the vector of one sentence, and the peak memory

Each side runs in a process of its own and waits there for its turn: in one process the threads and
the memory of one library slow down the others.

Every table begins with the CPU and the rates of its matrix products, measured just before
(``benchmarks.machine``). minisbert is measured eager and compiled, in float32 and bfloat16; its
packages are compiled first if the cache folder has none, which needs a C++ compiler.
``benchmarks.peers`` describes the libraries; they need the ``reference`` extra, and one that is not
installed is left out. As in the commands, freed memory is kept (``devices.keep_freed_memory``), for
all sides; ``--library`` disables it.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import first_vector, machine, peers
from benchmarks.conversion import convert
from benchmarks.peers import Encode, Peer, turns
from benchmarks.sides import Side
from minisbert.backends.package import CompiledEncoder
from minisbert.core.metrics import spearman
from minisbert.data.rows import load_scored_pairs
from minisbert.models.properties import similarity_pairwise
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.assets import ensure
from minisbert.system.console import bounded, run_command, say
from minisbert.system.devices import keep_freed_memory

MODEL = "all-MiniLM-L6-v2"
TEXTS_A_CALL = (1, 2, 4, 8, 16, 32)
PROBE_TOKENS = 8192  # about as many for choosing a peer's settings
CALLS = 20  # of one side in a row, in each round

Makers = dict[str, Callable[[], Encode]]  # what loads a side, called in its process


def composed(count: int, shortest: int, longest: int, tokens: dict[str, int]) -> list[str]:
    """Texts of ``shortest`` to ``longest`` tokens, [CLS] and [SEP] included, of real sentences."""
    chance = random.Random(0)
    sentences = list(tokens)
    texts = []
    while len(texts) < count:
        wanted = chance.randint(shortest, longest) - 2
        chosen = []
        found = 0
        while found < wanted:
            sentence = chance.choice(sentences)
            chosen.append(sentence)
            found += tokens[sentence]
        words = " ".join(chosen).split()
        texts.append(" ".join(words[: max(3, round(len(words) * wanted / found))]))
    return texts


def texts_of(kind: str, encoder: SentenceEncoder) -> list[str]:
    pairs = load_scored_pairs("stsb", "test")
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    distinct = list(dict.fromkeys(texts))
    if kind == "stsb":
        return distinct
    tokens = tokens_of(distinct, encoder)
    if kind == "mixed":
        return composed(200, 10, 250, tokens)
    return composed(80, 300, 400, tokens)


def tokens_of(texts: Sequence[str], encoder: SentenceEncoder) -> dict[str, int]:
    """Each text's number of tokens without [CLS] and [SEP]."""
    ids = encoder.tokenizer.encode(texts).ids
    return {text: len(row) - 2 for text, row in zip(texts, ids, strict=True)}


def stsb_spearman(texts: list[str], vectors: np.ndarray) -> float:
    pairs = load_scored_pairs("stsb", "test")
    row = {text: i for i, text in enumerate(texts)}
    exact = vectors.astype(np.float64)
    u = exact[[row[pair.sentence1] for pair in pairs]]
    v = exact[[row[pair.sentence2] for pair in pairs]]
    cosines = similarity_pairwise(u, v)
    return spearman(cosines, np.array([pair.score for pair in pairs]))


def load_minisbert(folder: Path, dtype: str, compiled: bool) -> Encode:
    if compiled:
        return CompiledEncoder.load(folder, dtype=dtype).encode
    return partial(SentenceEncoder.load(folder).encode, dtype=dtype)


def minisbert_makers(folder: Path) -> Makers:
    """minisbert, eager and compiled, at every dtype that the CPU has."""
    makers = {}
    for dtype in machine.precisions():
        makers[f"minisbert {dtype}"] = partial(load_minisbert, folder, dtype, False)
    for dtype in machine.package_dtypes():
        makers[f"minisbert compiled {dtype}"] = partial(load_minisbert, folder, dtype, True)
    return makers


def minisbert_sides(folder: Path) -> dict[str, Encode]:
    """``minisbert_makers``, loaded in this process. Compiles packages that are missing."""
    return {name: make() for name, make in minisbert_makers(folder).items()}


@contextmanager
def running(makers: Makers, keep_memory: bool) -> Iterator[dict[str, Side]]:
    """All sides, each in a process of its own."""
    with ExitStack() as stack:
        sides = {}
        for name, make in makers.items():
            say(f"loading {name}")
            sides[name] = Side(make, keep_memory)
            stack.callback(sides[name].close)
        yield sides


def rates(
    kind: str,
    encoder: SentenceEncoder,
    ours: Makers,
    others: Sequence[Peer],
    files: Path,
    keep_memory: bool,
    rounds: int,
) -> dict:
    """Texts per second of every side, their share of the GEMM rate, and the quality of the vectors.

    The first round is not counted: libraries compile kernels.
    """
    texts = texts_of(kind, encoder)
    lengths = [len(ids) for ids in encoder.tokenizer.encode(texts).ids]
    probed = min(len(texts), PROBE_TOKENS * len(texts) // sum(lengths))
    probe = random.Random(0).sample(texts, probed)
    tuned = {peer.name: partial(peers.fastest, peer, files, probe) for peer in others}
    measured = machine.measure()
    seconds: dict[str, list[float]] = {name: [] for name in ours | tuned}
    vectors = {}
    with running(ours | tuned, keep_memory) as sides:
        for round_, name, side in turns(kind, rounds + 1, sides):
            times, vectors[name] = side.timed([texts])
            if round_:
                seconds[name] += times

    reference = vectors.get("sentence-transformers float32", vectors["minisbert float32"])
    operations = machine.encoder_flop(encoder.bert.config, lengths)
    result = {}
    for name, times in seconds.items():
        median = statistics.median(times)
        peak = 1e9 * machine.best_rate(measured, name.split()[-1])
        result[name] = {
            "texts_per_second": len(texts) / median,
            "gemm_share": operations / median / peak,
            "difference": float(abs(vectors[name] - reference).max()),
            "seconds": times,
        }
        if kind == "stsb":
            result[name]["spearman"] = stsb_spearman(texts, vectors[name])
    sizes = {"texts": len(texts), "tokens": sum(lengths), "longest": max(lengths)}
    return {"machine": measured, **sizes, "sides": result}


def latency(
    sentences: Sequence[str], sides: dict[str, Side], texts_a_call: Sequence[int], rounds: int
) -> dict:
    """Median milliseconds of a call; ``CALLS`` calls of one side, then as many of the next.

    In one round all sides encode the same sentences. The first round is not counted: libraries
    compile kernels for new shapes. Nor is the first call of a turn, which wakes the threads.
    """
    measured = machine.measure()
    result: dict[str, dict[int, float]] = {name: {} for name in sides}
    for count in texts_a_call:
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for round_, name, side in turns(f"{count} a call", rounds + 1, sides):
            texts = random.Random(round_).sample(sentences, (CALLS + 1) * count)
            calls = [texts[start : start + count] for start in range(0, len(texts), count)]
            times, _ = side.timed(calls)
            if round_:
                seconds[name] += times[1:]
        for name, times in seconds.items():
            result[name][count] = 1000 * statistics.median(times)
    return {"machine": measured, "milliseconds": result}


def table(
    title: str,
    found: dict,
    columns: Sequence[str],
    rows: dict[str, Sequence[str]],
    corner: str = "",
) -> None:
    """A Markdown table under its title and the lines of its machine."""
    print(f"\n{title}\n\n{machine.lines(found['machine'])}\n")
    print(f"| {corner:<29} | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
    for name, cells in rows.items():
        print(f"| {name:<29} | {' | '.join(cells)} |")


def rates_row(row: dict, base: float) -> list[str]:
    rate = row["texts_per_second"]
    cells = [f"{rate:,.0f}" if rate >= 100 else f"{rate:,.1f}"]
    cells.append(f"{rate / base:.2f}")
    cells.append(f"{row['gemm_share']:.0%}")
    cells.append(f"{row['difference']:.0e}")
    if "spearman" in row:
        cells.append(f"{100 * row['spearman']:.3f}")
    return cells


def show(results: dict) -> None:
    for kind, found in results.get("rates", {}).items():
        size = f"{found['texts']:,} texts, {found['tokens']:,} tokens, longest {found['longest']}"
        title = f"{kind}: {size}"
        columns = ["texts a second", "ratio", "GEMM share", "difference"]
        if kind == "stsb":
            columns.append("Spearman")
        sides = found["sides"]
        reference = sides.get("sentence-transformers float32", sides["minisbert float32"])
        base = reference["texts_per_second"]
        table(title, found, columns, {name: rates_row(row, base) for name, row in sides.items()})
    if "latency" in results:
        found = results["latency"]
        rows = {}
        for name, row in found["milliseconds"].items():
            rows[name] = [f"{ms:.2f}" for ms in row.values()]
            columns = [str(count) for count in row]  # the same of every side
        table("milliseconds per call, by texts a call", found, columns, rows)
    if "start" in results:
        found = results["start"]
        rows = {}
        for name, row in found["sides"].items():
            rows[name] = [f"{row['seconds']:.2f}", f"{row['mebibytes']:,.0f}"]
        title = "process start to the first vector, float32 unless named"
        table(title, found, ["seconds", "MiB"], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encode_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = ("stsb", "mixed", "long")
    whats = ("rates", "latency", "start")
    libraries = tuple(peers.NEEDS)
    parser.add_argument(
        "--what", nargs="+", choices=whats, default=whats, help="what to measure (default: all)"
    )
    parser.add_argument(
        "--texts", nargs="+", choices=kinds, default=kinds, help="for the rates (default: all)"
    )
    counts = {"type": bounded(int, 1, 101), "default": TEXTS_A_CALL, "metavar": "N"}
    parser.add_argument(
        "--texts-a-call", nargs="+", **counts, help="for the latency (default: 1 2 4 8 16 32)"
    )
    parser.add_argument(
        "--peers", nargs="*", choices=libraries, help="compare with these (default: all installed)"
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=5, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--library", action="store_true", help="do not keep freed memory, as when used as a library"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    peers.stay_offline()
    chosen = peers.installed(options.peers)
    if not options.library:
        keep_freed_memory()
    folder = ensure(MODEL)
    encoder = SentenceEncoder.load(folder)
    minisbert_sides(folder)  # compiles the packages that are missing
    ours = minisbert_makers(folder)
    keep_memory = not options.library
    others = peers.peers(chosen, "bfloat16" in machine.precisions())
    results: dict = {"freed_memory_kept": keep_memory}
    with tempfile.TemporaryDirectory() as converted:
        files = Path(converted)
        convert(folder, files, chosen)
        if "rates" in options.what:
            results["rates"] = {}
            for kind in options.texts:
                results["rates"][kind] = rates(
                    kind, encoder, ours, others, files, keep_memory, options.rounds
                )
        if "latency" in options.what:
            calls = options.texts_a_call
            single: Makers = {}
            for peer in others:
                single[peer.name] = partial(peers.one_stream, peer, files, max(calls))
            sentences = texts_of("stsb", encoder)
            with running(ours | single, keep_memory) as sides:
                results["latency"] = latency(sentences, sides, calls, options.rounds)
        if "start" in options.what:
            results["start"] = first_vector.measure(chosen, files, options.rounds)
    if options.json:
        print(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    run_command(main)
