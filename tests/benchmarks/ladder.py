"""The speed ladder: from batches padded to 128 tokens to bfloat16, one change per step.

    python -m tests.benchmarks.ladder                        the 2,758 sentences of STS-B test: about four minutes
    python -m tests.benchmarks.ladder --limit 300 --rounds 1

Every step computes the same vectors. The steps take turns, so a change in the speed of the machine affects all of them;
sentences per second are the median of the rounds. The texts are tokenized before timing starts. As in the commands,
freed memory is kept (``devices.keep_freed_memory``), from the first step on.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
from minisbert.fast.fused import FusedBert, evaluating, linear
from torch import Tensor, nn

from minisbert.core.bert import Bert
from minisbert.core.encoder import normalize
from minisbert.core.tokenizer import pad_batch
from minisbert.models.sentence_encoder import BATCH_TOKENS, SentenceEncoder
from minisbert.objectives.scored_pairs import load_scored_pairs
from minisbert.system.console import run_command, say
from minisbert.system.devices import bfloat16_hardware, keep_freed_memory

BATCH, PADDED = 32, 128

# ------------------------------------------------------------------------------------------ batching


def as_they_come(lengths: list[int]) -> list[list[int]]:
    """Batches of 32 rows."""
    return [list(range(start, min(start + BATCH, len(lengths)))) for start in range(0, len(lengths), BATCH)]


def sorted_by_length(lengths: list[int]) -> list[list[int]]:
    """The longest 32 together, then the next 32: the rows of a batch have nearly the same length."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [[order[i] for i in rows] for rows in as_they_come(lengths)]


def of_one_length(lengths: list[int]) -> list[list[int]]:
    """Rows of one length, up to ``BATCH_TOKENS`` tokens: nothing to pad, nothing to mask."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    for length, group in groupby(order, key=lambda row: lengths[row]):
        rows, most = list(group), max(1, BATCH_TOKENS // length)
        batches += [rows[start : start + most] for start in range(0, len(rows), most)]
    return batches


# ------------------------------------------------------------------------------------------- padding


def to_128(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, 128) and mask (B, 128), even if all texts are short."""
    ids = torch.tensor([row[:PADDED] + [0] * (PADDED - len(row)) for row in rows])
    return ids, torch.arange(PADDED) < torch.tensor([[len(row)] for row in rows])


def to_the_longest(rows: list[list[int]]) -> tuple[Tensor, Tensor | None]:
    """Ids (B, T) and mask (B, T), T the longest text of the batch; no mask if all have one length."""
    return pad_batch(rows, pad_id=0)


# --------------------------------------------------------------------------------------- computation


def as_written(bert: Bert) -> Callable:
    """The formulas of ``bert.py``."""
    return bert


def linear_by_onednn(bert: Bert) -> Callable:
    """The same formulas, with oneDNN's matrix product in the linear layers."""
    bert = copy.deepcopy(bert)
    for module in bert.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(linear, weight=module.weight, bias=module.bias)
    return bert


def fused(bert: Bert) -> Callable:
    """Also layer norm, GELU and attention as one operation each."""
    fast = FusedBert(bert, torch.float32)
    return lambda ids, mask: fast([ids])[0]


# ----------------------------------------------------------------------------------------- the ladder


@dataclass(frozen=True)
class Step:
    """How texts are batched and padded, and how hidden states are computed."""

    name: str
    batches: Callable[[list[int]], list[list[int]]]
    pad: Callable[[list[list[int]]], tuple[Tensor, Tensor | None]]
    compute: Callable[[Bert], Callable]

    def vectors(self, encoder: SentenceEncoder, compute: Callable, ids: list[list[int]]) -> Tensor:
        """(N, D) of length 1, mean over the real tokens, as ``SentenceEncoder.encode`` gives them."""
        vectors = torch.empty(len(ids), encoder.width)
        for rows in self.batches([len(row) for row in ids]):
            tokens, mask = self.pad([ids[row] for row in rows])  # (B, T)
            vectors[rows] = normalize(encoder.pool(compute(tokens, mask), mask))  # (B, D)
        return vectors


class Packed(Step):
    """Texts of several lengths side by side in one batch: still nothing to pad, and every batch is full."""

    def vectors(self, encoder: SentenceEncoder, compute: Callable, ids: list[list[int]]) -> Tensor:
        vectors = torch.empty(len(ids), encoder.width)
        for rows in self.batches([len(row) for row in ids]):
            groups = [list(group) for _, group in groupby(rows, key=lambda row: len(ids[row]))]
            hidden = compute([torch.tensor([ids[row] for row in group]) for group in groups])  # (B, T, D) each
            for group, states in zip(groups, hidden, strict=True):
                vectors[group] = normalize(encoder.pool(states))
        return vectors


def in_budget(lengths: list[int]) -> list[list[int]]:
    """Up to ``BATCH_TOKENS`` tokens of texts of any length, longest first."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches: list[list[int]] = []
    for row in order:
        if not batches or sum(lengths[other] for other in batches[-1]) + lengths[row] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches


STEPS = [
    Step("padded to 128 tokens", as_they_come, to_128, as_written),
    Step("padded to the longest of the batch", as_they_come, to_the_longest, as_written),
    Step("sorted by length", sorted_by_length, to_the_longest, as_written),
    Step("batches of one length, no mask", of_one_length, to_the_longest, as_written),
    Step("linear layers by oneDNN", of_one_length, to_the_longest, linear_by_onednn),
    Step("layer norm, GELU, attention fused", of_one_length, to_the_longest, fused),
    Packed("several lengths side by side", in_budget, to_the_longest, partial(FusedBert, dtype=torch.float32)),
    Packed("bfloat16", in_budget, to_the_longest, partial(FusedBert, dtype=torch.bfloat16)),
]


def measure(encoder: SentenceEncoder, ids: list[list[int]], rounds: int) -> list[dict]:
    """One row per step: sentences per second, ratio to the previous step, largest difference from the first."""
    able, reason = bfloat16_hardware(encoder.device)
    if not able:
        say(f"without bfloat16: {reason}")
    steps = STEPS if able else STEPS[:-1]
    seconds: list[list[float]] = [[] for _ in steps]
    differences = [0.0] * len(steps)
    computed = [step.compute(encoder.bert) for step in steps]
    for step, compute in zip(steps, computed, strict=True):
        step.vectors(encoder, compute, ids[:BATCH])  # warm-up
    first: Tensor | None = None
    for _ in range(rounds):
        for i, step in enumerate(steps):
            started = time.perf_counter()
            vectors = step.vectors(encoder, computed[i], ids)
            seconds[i].append(time.perf_counter() - started)
            first = vectors if first is None else first
            differences[i] = (vectors - first).abs().max().item()
    rows = []
    for step, times, difference in zip(steps, seconds, differences, strict=True):
        rate = len(ids) / statistics.median(times)
        ratio = rate / rows[-1]["sentences_per_second"] if rows else 1.0
        rows.append(
            {
                "step": step.name,
                "sentences_per_second": rate,
                "ratio": ratio,
                "difference": difference,
                "seconds": times,
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="number of sentences (default: all 2,758)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    keep_freed_memory()
    pairs = load_scored_pairs("stsb", "test")
    texts = [pair.sentence1 for pair in pairs] + [pair.sentence2 for pair in pairs]
    encoder = SentenceEncoder.load(options.model)
    ids = encoder.tokenizer.encode(texts[: options.limit]).ids
    with evaluating(encoder):
        rows = measure(encoder, ids, options.rounds)
    if options.json:
        print(json.dumps({"sentences": len(ids), "threads": torch.get_num_threads(), "steps": rows}))
        return
    print(f"{len(ids):,} sentences, {sum(map(len, ids)):,} tokens, {torch.get_num_threads()} threads\n")
    print(f"{'step':<36}{'sentences/s':>12}{'x previous':>12}{'x first':>9}{'difference':>12}")
    for row in rows:
        rate, first = row["sentences_per_second"], rows[0]["sentences_per_second"]
        print(f"{row['step']:<36}{rate:>12,.0f}{row['ratio']:>12.2f}{rate / first:>9.2f}{row['difference']:>12.1e}")


if __name__ == "__main__":
    run_command(main)
