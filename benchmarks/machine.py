"""The machine a benchmark runs on: its CPU, and the rates of its matrix products in GFLOP/s.

    python -m benchmarks.machine
    python -m benchmarks.machine --json

Matrix products take most of an encoder's time, and their rates differ more between CPUs than
libraries do, so the tables of ``encode_speed`` begin with these lines. A rate is that of the six
linear layers of one MiniLM layer on 2,048 tokens with all of torch's threads, the best of several
rounds:

MKL float32       ``torch.nn.functional.linear``; torch's other BLAS in builds without MKL
oneDNN float32    ``minisbert.system.torch_internals.products``, weights laid out beforehand
oneDNN bfloat16   the same two operations of torch, which ``matrices`` calls in float32 only
oneDNN int8       ``torch.ops.onednn.qlinear_pointwise``: uint8 activations times int8 weights,
                  float32 results
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from minisbert.backends.graphs import SIGNED, UNSIGNED
from minisbert.core.weights import BertConfig
from minisbert.system import torch_internals as internals
from minisbert.system.console import bounded, run_command
from minisbert.system.devices import CPU_INFO, bfloat16_hardware, cpu_flags

FLAGS = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
FLAGS += ("sve", "i8mm", "bf16")  # of ARM's CPUs
TOKENS = 2048
ROUNDS = 20
D = 384  # MiniLM's width
F = 1536  # and that of its feed-forward block
# (in, out) of query, key, value and output, then of the feed-forward block.
LAYER = [(D, D)] * 4 + [(D, F), (F, D)]


def encoder_flop(config: BertConfig, lengths: Iterable[int]) -> float:
    """Floating-point operations of the forward pass for texts of these lengths in tokens.

    Padding is not counted.

    A product (T, in) x (in, out) is 2 T in out operations. Per layer, the linear layers of a text
    of T tokens are T (8 D² + 4 D F): four of D x D and two of D x F. Attention is 4 T² D: Q Kᵀ and
    probabilities times V, over all heads. Everything else (embeddings, softmax, LayerNorm, GELU,
    pooling) is left out: under 2 %.

    all-MiniLM-L6-v2 (L 6, D 384, F 1,536), 14 tokens: 6 (14 (1,179,648 + 2,359,296) + 4 * 196 *
    384) = 299,077,632, 21.4 million per token. At 256 tokens it is 23.6 million per token.
    """
    width = config.hidden_size
    linear = 8 * width**2 + 4 * width * config.intermediate_size
    total = 0
    for tokens in lengths:
        total += config.num_hidden_layers * (tokens * linear + 4 * tokens**2 * width)
    return float(total)


def cpu() -> dict:
    """Name, family and model, number of usable cores, and those of ``FLAGS`` that the CPU has."""
    info: dict[str, str] = {}
    if CPU_INFO.exists():
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines:
            key, _, value = line.partition(":")
            info.setdefault(key.strip(), value.strip())  # the first core speaks for all
    present = set(info.get("flags", info.get("Features", "")).split())
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # those that this process may use
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "family": info.get("cpu family"),
        "model": info.get("model"),
        "cores": cores,
        "flags": [flag for flag in FLAGS if flag in present],
    }


def precisions() -> list[str]:
    """What minisbert is measured in: bfloat16 too if the CPU multiplies it."""
    return ["float32", "bfloat16"] if bfloat16_hardware(torch.device("cpu"))[0] else ["float32"]


def package_dtypes() -> list[str]:
    """What packages are compiled for on this CPU."""
    dtypes = precisions()
    if not cpu_flags().isdisjoint((SIGNED, UNSIGNED)):
        dtypes.append("int8")
    return dtypes


def bfloat16_product(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """oneDNN's product of x (TOKENS, in) and weight (out, in)."""
    laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16())
    return partial(torch.ops.mkldnn._linear_pointwise, x.bfloat16(), laid_out, None, "none", [], "")


def int8_product(inputs: int, outputs: int) -> Callable[[], Tensor]:
    """oneDNN's product of random uint8 activations (TOKENS, in) and int8 weights (out, in)."""
    x = torch.randint(0, 256, (TOKENS, inputs), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, [TOKENS, inputs])
    scales = torch.full((outputs,), 0.01)
    zeros = torch.zeros(outputs, dtype=torch.int64)
    bias = torch.zeros(outputs)
    # Scale, zero point and dtype of the result, and no operation on it.
    after = (1.0, 0, torch.float32, "none", [], "")
    return partial(
        torch.ops.onednn.qlinear_pointwise, x, 0.02, 128, packed, scales, zeros, bias, *after
    )


def products() -> dict[str, list[Callable[[], Tensor]]]:
    """The six products of a layer in every way that this machine has."""
    operands = [(torch.randn(TOKENS, i), torch.randn(o, i)) for i, o in LAYER]
    blas = "MKL" if torch.backends.mkl.is_available() else "BLAS"
    found = {f"{blas} float32": [partial(functional.linear, x, weight) for x, weight in operands]}
    if internals.ONEDNN:
        found["oneDNN float32"] = [
            partial(internals.products, x, internals.laid_out(weight)) for x, weight in operands
        ]
        if "bfloat16" in precisions():
            found["oneDNN bfloat16"] = [bfloat16_product(x, weight) for x, weight in operands]
        if hasattr(torch.ops.onednn, "qlinear_pointwise"):
            found["oneDNN int8"] = [int8_product(*shape) for shape in LAYER]
    return found


@torch.no_grad()
def gemm_rates(rounds: int = ROUNDS) -> dict[str, float]:
    """GFLOP/s of every way to multiply, the best of ``rounds`` in which all take turns.

    Takes two seconds or so.
    """
    ways = products()
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds + 1):  # the first compiles the kernels and is never the best
        for name, layer in ways.items():
            started = time.perf_counter()
            for product in layer:
                product()
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    operations = sum(2 * TOKENS * inputs * outputs for inputs, outputs in LAYER)
    return {name: operations / best / 1e9 for name, best in seconds.items()}


def measure(rounds: int = ROUNDS) -> dict:
    """``cpu()``, the version and threads of torch, and ``gemm_rates``."""
    found = cpu()
    found["torch"] = torch.__version__
    found["threads"] = torch.get_num_threads()
    found["gflop_per_second"] = gemm_rates(rounds)
    return found


def best_rate(machine: dict, dtype: str) -> float:
    """The highest rate in GFLOP/s for a dtype; NaN if none was measured."""
    rates = machine["gflop_per_second"]
    of_dtype = [rate for name, rate in rates.items() if name.endswith(dtype)]
    return max(of_dtype, default=float("nan"))


def identity(machine: dict) -> str:
    """A line for the CPU."""
    kind = f" (family {machine['family']}, model {machine['model']})" if machine["family"] else ""
    flags = " ".join(machine["flags"]) or "none of the flags that matter"
    return f"{machine['cpu']}{kind}, {machine['cores']} cores: {flags}"


def lines(machine: dict) -> str:
    """What every table begins with: one line for the CPU and one for its rates."""
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in machine["gflop_per_second"].items())
    torch_line = f"torch {machine['torch']}, {machine['threads']} threads; GFLOP/s: {rates}"
    return f"{identity(machine)}\n{torch_line}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.machine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=bounded(int, 1), default=ROUNDS, help="the best of (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    machine = measure(options.rounds)
    print(json.dumps(machine) if options.json else lines(machine))


if __name__ == "__main__":
    run_command(main)
