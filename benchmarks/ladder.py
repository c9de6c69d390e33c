"""The speed ladder: from padded batches to packages compiled in bfloat16, one change per step.

    python -m benchmarks.ladder          the 2,758 sentences of STS-B test: about five minutes
    python -m benchmarks.ladder --limit 300 --rounds 1

Every step computes the same vectors, which is checked. The steps take turns, so a change in the
speed of the machine affects all of them; sentences per second are the median of the rounds. The
texts are tokenized before timing starts. As in the commands, freed memory is kept
(``devices.keep_freed_memory``), from the first step on. The packages are compiled first if the
cache folder has none, which needs a C++ compiler.
"""

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.peers import require, turns
from minisbert.backends.package import CompiledEncoder
from minisbert.core import bert
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.data.rows import load_scored_pairs
from minisbert.models.batching import Tokens
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import keep_freed_memory

BATCH = 32
# How far a vector of length 1 may be from the first step's, by rounding.
SAME = {"float32": 2e-6, "bfloat16": 1e-2, "int8": 3e-2}

Ids = list[list[int]]  # the token ids of each text


def padded(encoder: SentenceEncoder, ids: Ids, order: Sequence[int]) -> Tensor:
    """Vectors (N, D) from batches of 32 texts, each padded to the longest of its batch."""
    vectors = torch.empty(len(ids), encoder.width)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        tokens, mask = pad_batch([ids[row] for row in rows], pad_id=0)  # (B, T)
        vectors[rows] = encoder.unscaled(tokens, mask)  # (B, D)
    return vectors


def as_given(encoder: SentenceEncoder, ids: Ids) -> Tensor:
    return padded(encoder, ids, range(len(ids)))


def by_length(encoder: SentenceEncoder, ids: Ids) -> Tensor:
    """Batches of texts of nearly the same length: the longest 32, then the next 32."""
    return padded(encoder, ids, sorted(range(len(ids)), key=lambda row: -len(ids[row])))


def packed(
    encoder: SentenceEncoder | CompiledEncoder, ids: Ids, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Several texts in one row, as ``encode`` makes its batches: one shape, hardly any pads."""
    tokens = Tokens([array("i", row) for row in ids], dtype=dtype)
    return torch.from_numpy(encoder.encode_tokens(tokens))


@dataclass(frozen=True)
class Step:
    """How texts are batched, and how the encoder computes."""

    name: str
    unscaled: Callable[[SentenceEncoder | CompiledEncoder, Ids], Tensor]
    fused: bool = True
    dtype: str = "float32"
    compiled: bool = False

    def vectors(self, encoder: SentenceEncoder | CompiledEncoder, ids: Ids) -> Tensor:
        """(N, D) of length 1."""
        before = bert.FUSED
        bert.FUSED = self.fused
        try:
            with encoder.computing(self.dtype):
                return normalize(self.unscaled(encoder, ids))
        finally:
            bert.FUSED = before


STEPS = [
    Step("padded, in the order given", as_given, fused=False),
    Step("sorted by length", by_length, fused=False),
    Step("several texts in one row", packed, fused=False),
    Step("fused operations", packed),
    Step("bfloat16", partial(packed, dtype=torch.bfloat16), dtype="bfloat16"),
    Step("compiled, float32 again", packed, compiled=True),
    Step("compiled, bfloat16", packed, dtype="bfloat16", compiled=True),
]


def measure(model: str, ids: Ids, steps: Iterable[Step], rounds: int) -> list[dict]:
    """A row for each step: sentences a second, ratio and difference to the first step."""
    eager = SentenceEncoder.load(model)
    sides: dict[Step, SentenceEncoder | CompiledEncoder] = {}
    for step in steps:
        if step.compiled:
            sides[step] = CompiledEncoder.load(model, dtype=step.dtype)
        else:
            sides[step] = eager
    for step, encoder in sides.items():
        step.vectors(encoder, ids[:BATCH])  # warm-up
    seconds: dict[Step, list[float]] = {step: [] for step in sides}
    vectors: dict[Step, Tensor] = {}
    named = {step.name: step for step in sides}
    for _, _, step in turns("ladder", rounds, named):
        started = time.perf_counter()
        vectors[step] = step.vectors(sides[step], ids)
        seconds[step].append(time.perf_counter() - started)

    first = next(iter(sides))
    first_rate = len(ids) / statistics.median(seconds[first])
    rows = []
    for step, times in seconds.items():
        rate = len(ids) / statistics.median(times)
        difference = (vectors[step] - vectors[first]).abs().max().item()
        wrong = f"the vectors of {step.name} differ by {difference:.0e}"
        require(difference <= SAME[step.dtype], wrong)
        row = {
            "step": step.name,
            "sentences_per_second": rate,
            "difference": difference,
            "seconds": times,
            "ratio": rate / first_rate,
        }
        rows.append(row)
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)"
    )
    parser.add_argument(
        "--limit", type=bounded(int, 1), help="number of sentences (default: all 2,758)"
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=3, help="number of rounds (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    keep_freed_memory()
    pairs = load_scored_pairs("stsb", "test")
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    ids = SentenceEncoder.load(options.model).tokenizer.encode(texts[: options.limit]).ids
    measured = machine.measure()
    steps = [step for step in STEPS if step.dtype in machine.precisions()]
    rows = measure(options.model, ids, steps, options.rounds)
    if options.json:
        print(json.dumps({"sentences": len(ids), "machine": measured, "steps": rows}))
        return
    print(f"{machine.lines(measured)}\n\n{len(ids):,} sentences, {sum(map(len, ids)):,} tokens\n")
    print("| step | sentences a second | times the first | difference |\n|---|---|---|---|")
    for row in rows:
        rate = f"{row['sentences_per_second']:,.0f}"
        print(f"| {row['step']} | {rate} | {row['ratio']:.2f} | {row['difference']:.0e} |")


if __name__ == "__main__":
    run_command(main)
