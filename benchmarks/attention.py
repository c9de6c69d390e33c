"""Which attention is the fastest one: milliseconds of a batch by the length of its rows.

    python -m benchmarks.attention                 int8: about five minutes, most of it compiling
    python -m benchmarks.attention --dtype bfloat16
    python -m benchmarks.attention --pairs         of a cross-encoder

Two packages of the same model are compiled, one that always takes ``bfloat16_attention`` of ``backends/graphs.py`` and
one that always takes ``fused``; their batches take turns. Each row is one text or joined pair, so a batch has R of T
tokens. The bound, ``SHORT`` of ``models/batching.py``, comes from such tables.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch

from benchmarks import machine
from minisbert.backends import graphs as attention
from minisbert.backends.graphs import compile_model
from minisbert.backends.package import CompiledEncoder, CompiledPairModel
from minisbert.checkpoints.layout import ModelFolder, find_model
from minisbert.core.heads import JointHead
from minisbert.models.pair_model import PairModel
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import run_command, say
from minisbert.system.devices import keep_freed_memory

MODEL = "all-MiniLM-L6-v2"
ALWAYS, NEVER = 10**9, 0
WAYS = {"written out": ALWAYS, "fused": NEVER}  # the longest rows, SHORT
ROWS = ((1, 12), (1, 24), (1, 40), (4, 24), (34, 24), (1, 60), (4, 60), (34, 60))  # R, T
ROWS += ((20, 100), (12, 160), (10, 200), (8, 256), (4, 512))


def model_folder(pairs: bool, folder: Path) -> Path:
    """The encoder's, or that of a new cross-encoder with its weights."""
    if not pairs:
        return find_model(MODEL)
    encoder = SentenceEncoder.load(MODEL, device="cpu")
    PairModel(encoder, JointHead(encoder.width)).save(folder / "pairs")
    return folder / "pairs"


def compiled(model: Path, dtype: str, way: str, folder: Path) -> Callable:
    """The package's function of a batch."""
    path = folder / f"{way}.pt2"
    say(f"compiling {path.name}")
    with mock.patch.object(attention, "SHORT", WAYS[way]):
        compile_model(model, dtype, None, path)
    kind = CompiledPairModel if ModelFolder(model).holds_pair_model else CompiledEncoder
    return kind.load(model, path).run


def batch(rows: int, tokens: int, pairs: bool) -> tuple[torch.Tensor, ...]:
    """``Batch.inputs`` of R texts of T tokens; or ids, mask and token types of R pairs."""
    ids = torch.randint(1000, 30_000, (rows, tokens), generator=torch.Generator().manual_seed(0))
    if pairs:
        return ids, torch.ones_like(ids), torch.zeros_like(ids)
    positions = torch.arange(tokens).repeat(rows, 1)
    texts = torch.arange(rows)[:, None].expand(rows, tokens).contiguous()
    return ids, positions, texts, torch.arange(rows * tokens).view(rows, tokens)


def milliseconds(sides: list[Callable], inputs: tuple[torch.Tensor, ...], rounds: int) -> list[float]:
    """The median of each side; all take turns, and the first three rounds do not count."""
    times: list[list[float]] = [[] for _ in sides]
    with torch.inference_mode():
        for _ in range(rounds + 3):
            for run, own in zip(sides, times, strict=True):
                start = time.perf_counter()
                run(*inputs)
                own.append(1000 * (time.perf_counter() - start))
    return [statistics.median(own[3:]) for own in times]


def main(arguments: list[str] | None = None) -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.attention", description=__doc__, formatter_class=layout)
    parser.add_argument("--dtype", choices=("bfloat16", "int8"), default="int8", help="of the packages (default: int8)")
    parser.add_argument("--pairs", action="store_true", help="a cross-encoder's")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    print(machine.lines(machine.measure()))
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(options.pairs, Path(folder))
        sides = [compiled(model, options.dtype, way, Path(folder)) for way in WAYS]
        print(f"| rows | tokens | {', ms | '.join(WAYS)}, ms |\n|---|---|---|---|---|")
        for rows, tokens in ROWS:
            found = milliseconds(sides, batch(rows, tokens, options.pairs), 40 if rows * tokens < 500 else 12)
            print(f"| {rows} | {tokens} | {' | '.join(f'{each:.2f}' for each in found)} |", flush=True)


if __name__ == "__main__":
    run_command(main)
