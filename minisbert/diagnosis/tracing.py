"""Compare the tensors of a forward pass by name, ours with another implementation's: where they
first differ, and why.

``minisbert trace`` compares them; lessons 07 and 14 do the same step by step.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minisbert.checkpoints.weights import read_safetensors, write_safetensors
from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.mistakes import with_each_mistake
from minisbert.diagnosis.planting import MISTAKES, unfused
from minisbert.models.batching import check_inputs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import cut_message, say
from minisbert.system.files import open_bytes
from minisbert.system.reading import reading

TRACE_INPUTS = ("ids", "mask", "token_types")

# a correct forward pass differs by 4e-6 in float32 and 5e-15 in float64, the smallest real mistake
# by 3e-4
HIDDEN, VECTOR, DOUBLE = 2e-5, 2e-6, 1e-10

# what is computed between the previous tensor and this one
PARTS = {
    "embeddings": "the word table, the positions, the token types and the LayerNorm over their sum",
    "attention": "queries and keys (weights, biases, how the heads are split), the scale "
    "1/sqrt(K), the mask, softmax",
    "layers": "values, merging the heads, the output layer, both residual sums, both LayerNorms, "
    "feed-forward and GELU",
    "pooler": "the dense layer over the first token and its tanh",
    "pooled": "the kind of pooling, and whether it leaves out the pads",
    "vector": "the steps after the pooling: a dense layer in some models, then scaling to length 1",
}


def our_states(encoder: SentenceEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute every intermediate result by name, in order; ``vector`` only if all tokens are of the
    first sentence.
    """
    ids, mask, token_types = (inputs[name] for name in TRACE_INPUTS)  # (B, T) each
    check_inputs(encoder.bert.config, ids, mask, token_types)  # they may be another program's
    states: dict[str, Tensor] = {}
    with torch.no_grad(), unfused():  # attention's probabilities are compared, too
        hidden = encoder.bert(ids, mask, token_types, states)  # (B, T, D)
        if encoder.bert.pooler is not None:
            states["pooler"] = encoder.bert.pool(hidden)  # (B, D)
        states["pooled"] = encoder.pooling(hidden, mask)  # (B, D)
        if not token_types.any():
            states["vector"] = encoder(ids, mask)  # (B, D)
    return states


def inputs_of(encoder: SentenceEncoder, texts: list[str]) -> dict[str, Tensor]:
    """Tokenize texts to ids, mask and token types, (B, T) each."""
    encoded = encoder.tokenizer.encode(texts)
    if any(encoded.truncated):
        say(cut_message(encoder.tokenizer.limit, sum(encoded.truncated), len(texts)))
    ids, mask = pad_batch(encoded.ids, encoder.tokenizer.pad_id)
    if mask is None:
        mask = torch.ones_like(ids, dtype=torch.bool)
    return {"ids": ids, "mask": mask, "token_types": torch.zeros_like(ids)}


# ------------------------------------------------------------------------------------- the other
# side


def huggingface(folder: Path, inputs: dict[str, Tensor], double: bool) -> dict[str, Tensor]:
    """Compute the tensors with transformers, in a separate process: nothing under minisbert/
    imports it.
    """
    instead = "; or compare with a file: --against FILE"
    script = reference_script()
    if script is None:
        raise InputError(
            f"--against hf needs reference_states.py: install minisbert again{instead}"
        )
    if importlib.util.find_spec("transformers") is None:
        raise InputError(f"--against hf needs transformers: pip install -e '.[reference]'{instead}")
    with tempfile.TemporaryDirectory() as place:
        given, computed = Path(place) / "inputs.safetensors", Path(place) / "states.safetensors"
        write_safetensors(inputs, given)
        # subtle: -P, or the script's neighbours (bert.py, heads.py, ...) would be importable as
        # top-level modules
        command: list[str | Path] = [
            sys.executable,
            "-P",
            script,
            folder.resolve(),
            given,
            computed,
        ]
        if double:
            command.append("--double")
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            message = (run.stderr.strip().splitlines() or ["no message"])[
                -1
            ]  # the last line of a traceback
            raise InputError(f"transformers could not run {folder}: {message}{instead}")
        return read_safetensors(computed)


def reference_script() -> Path | None:
    """Return the script that runs transformers: beside this file if installed, under tests/ in a
    checkout.
    """
    here = Path(__file__).resolve()
    for path in (
        here.with_name("reference_states.py"),
        here.parents[2] / "tests" / "reference" / "states.py",
    ):
        if path.is_file():
            return path
    return None


def read_states(path: Path, double: bool) -> dict[str, Tensor]:
    """Read the named tensors of a file, with ``ids``, ``mask`` and ``token_types`` (by default
    0).
    """
    with reading(path):
        open_bytes(path).close()  # refuses a pipe, which safetensors would wait for
        states = read_safetensors(path)
        ids, mask = states["ids"], states["mask"]
        types = states.get("token_types", torch.zeros_like(ids))
        for name, x in (("ids", ids), ("mask", mask), ("token_types", types)):
            if x.is_floating_point():
                raise ValueError(f"{name} must be whole numbers, not {x.dtype}")
        states |= {"ids": ids.long(), "mask": mask.bool(), "token_types": types.long()}
        for name, tensor in states.items():
            if name in TRACE_INPUTS or tensor.dtype == torch.float64:
                continue
            if double or tensor.dtype != torch.float32:
                needed = "--double needs float64" if double else "float32 or float64 is needed"
                raise ValueError(f"{name} is {tensor.dtype}, {needed}")
        return states


def unknown_names(ours: dict[str, Tensor], other: dict[str, Tensor], source: str) -> list[str]:
    """Return the names that only the other side has. Raises ``InputError`` if shapes differ or no
    name is shared.
    """
    shared = [name for name in ours if name in other]
    if not shared:
        raise InputError(f"{source} has none of the tensors that are compared, {', '.join(ours)}")
    wrong = ""
    for name in shared:
        if other[name].shape != ours[name].shape:
            wrong += (
                f"\n  {name} is {tuple(other[name].shape)}, should be {tuple(ours[name].shape)}"
            )
    if wrong:
        raise InputError(f"{source} does not fit this model and these texts:{wrong}")
    return [name for name in other if name not in ours and name not in TRACE_INPUTS]


# ------------------------------------------------------------------------------------- the
# comparison


@dataclass(frozen=True)
class Stage:
    """The comparison of one named tensor."""

    name: str
    shape: tuple[int, ...]
    difference: float  # the largest, absolute, at real tokens; infinite if either side has a NaN
    at: tuple[int, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.difference <= self.tolerance


def compare_states(
    ours: dict[str, Tensor], other: dict[str, Tensor], mask: Tensor, tolerances: dict[str, float]
) -> list[Stage]:
    """Compare the tensors that both sides have, in our order; mask (B, T).

    Only real tokens count: a pad's states and the probabilities (B, H, T, T) with which it attends
    to others are ignored. The probabilities with which real tokens attend to a pad are compared.
    """
    rows = []
    for name in ours:
        if name not in other:
            continue
        difference = (ours[name].double() - other[name].double()).abs().nan_to_num(nan=torch.inf)
        if difference.ndim == 3:  # (B, T, D)
            difference = difference.masked_fill(~mask[:, :, None], 0.0)
        if difference.ndim == 4:  # (B, H, T, T)
            difference = difference.masked_fill(~mask[:, None, :, None], 0.0)
        at = tuple(map(int, torch.unravel_index(difference.argmax(), difference.shape)))
        rows.append(
            Stage(name, tuple(difference.shape), difference[at].item(), at, tolerances[name])
        )
    return rows


def first_divergence(rows: list[Stage]) -> Stage | None:
    return next((row for row in rows if not row.ok), None)


def suspects(
    rows: list[Stage], again: Callable[[], list[Stage]]
) -> tuple[list[str], dict[str, str]]:
    """Plant each known mistake of the forward pass on our side and compare ``again``.

    Returns the mistakes that make everything equal; and those that remove at least the first
    divergence of ``rows``, each with the first one left. Of the latter, only those whose remaining
    divergence comes last.
    """
    order = [row.name for row in rows]
    first = next(number for number, row in enumerate(rows) if not row.ok)
    whole: list[str] = []
    part: dict[str, str] = {}
    for mistake, compared in with_each_mistake(again):
        # without a pooler, say: no proof of anything
        if [row.name for row in compared] != order:
            continue
        left = first_divergence(compared)
        if left is None:
            whole.append(mistake.name)
        elif order.index(left.name) > first:
            part[mistake.name] = left.name
    furthest = max(map(order.index, part.values()), default=0)
    return whole, {name: left for name, left in part.items() if order.index(left) == furthest}


def explain(rows: list[Stage], whole: list[str], part: dict[str, str], names: list[str]) -> str:
    """Say the verdict in words; ``names`` are all tensors that could have been compared, in
    order.
    """
    first = first_divergence(rows)
    if first is None:
        worst = max(rows, key=lambda row: row.difference / row.tolerance)
        share = 100 * worst.difference / worst.tolerance
        return f"Equal: all {len(rows)} tensors agree. The worst, {worst.name}, uses {share:.2g} % of its tolerance."
    verdict = f"{first.name} is the first to differ"
    if whole or part:
        causes = []
        for name in whole or part:
            causes.append(f"{MISTAKES[name].meaning} ({name}, {MISTAKES[name].target})")
        verdict += f": these are exactly the numbers you get when {', or when '.join(causes)}."
        if not whole:
            left = next(iter(part.values()))
            verdict += (
                f" But that is not all: with the same mistake on our side {left} still differs."
            )
        return verdict
    # no mistake: the mistake lies in what is computed after the last tensor that agrees
    path = [
        name for name in names if name == first.name or name != "pooler"
    ]  # nothing is computed from the pooler
    agreeing = [row.name for row in rows[: rows.index(first)] if row.name in path]
    start, where = 0, f"before {first.name}"
    if agreeing:
        start = path.index(agreeing[-1]) + 1
        where = f"between {agreeing[-1]}, which agrees, and {first.name}"
    parts: list[str] = []
    for name in path[start : path.index(first.name) + 1]:
        # "layers.3" -> "layers"
        key = "attention" if name.endswith(".attention") else name.partition(".")[0]
        if PARTS[key] not in parts:
            parts.append(PARTS[key])
    return f"{verdict}, and no known mistake explains it. Look {where}: {'; '.join(parts)}."


def print_rows(rows: list[Stage]) -> None:
    """Print the comparison; the first row beyond its tolerance is marked FIRST DIVERGENCE."""
    first = first_divergence(rows)
    print(f"{'tensor':<21}{'shape':<18}{'max difference':>14}   {'at':<18}")
    for row in rows:
        verdict = "ok" if row.ok else "differs"
        if row is first:
            verdict = "FIRST DIVERGENCE"
        shape = " x ".join(map(str, row.shape))
        print(f"{row.name:<21}{shape:<18}{row.difference:>14.2e}   {row.at!s:<18}{verdict}")
