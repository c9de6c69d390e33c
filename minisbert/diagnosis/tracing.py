"""Compare every intermediate result of a forward pass with another implementation's, by name.

``minisbert trace`` prints the comparison and the first tensor that differs; lessons 07 and 14 take
the same steps one by one.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from minisbert.checkpoints.weights import read_safetensors, write_safetensors
from minisbert.core import InputError, bert
from minisbert.core.tokenizer import pad_batch
from minisbert.models.batching import check_inputs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import cut_message, warn
from minisbert.system.files import open_bytes
from minisbert.system.reading import reading

TRACE_INPUTS = ("ids", "mask", "token_types")

# The tolerances. A correct forward pass differs by 4e-6 in float32 and by 5e-15 in float64, the
# smallest real mistake by 3e-4.
HIDDEN = 2e-5  # for hidden states in float32
VECTOR = 2e-6  # for vectors of length 1 in float32: their numbers are smaller
DOUBLE = 1e-10  # for everything in float64

# For each kind of tensor, what is computed between the tensor before it and itself.
PARTS = {
    "embeddings": "the word table, the positions, the token types and the LayerNorm over their sum",
    "attention": (
        "queries and keys (weights, biases, how the heads are split), the scale 1/sqrt(K), the "
        "mask, softmax"
    ),
    "layers": (
        "values, merging the heads, the output layer, both residual sums, both LayerNorms, "
        "feed-forward and GELU"
    ),
    "pooler": "the dense layer over the first token and its tanh",
    "pooled": "the kind of pooling, and whether it leaves out the pads",
    "vector": "the steps after the pooling: a dense layer in some models, then scaling to length 1",
}


@contextmanager
def unfused() -> Iterator[None]:
    """Within this context the encoder computes its formulas as the book writes them out.

    PyTorch's fused operations (``bert.FUSED``) give the same numbers, but keep no attention
    probabilities.
    """
    before = bert.FUSED
    bert.FUSED = False
    try:
        yield
    finally:
        bert.FUSED = before


def our_states(encoder: SentenceEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute every intermediate result by name, in order.

    ``vector`` is among them only if all tokens are of the first sentence.
    """
    ids = inputs["ids"]  # (B, T), as are the other two
    mask = inputs["mask"]
    token_types = inputs["token_types"]
    check_inputs(encoder.bert.config, ids, mask, token_types)  # they may be another program's

    states: dict[str, Tensor] = {}
    with torch.no_grad(), unfused():
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
        warn(cut_message(encoder.tokenizer.limit, sum(encoded.truncated), len(texts)))
    ids, mask = pad_batch(encoded.ids, encoder.tokenizer.pad_id)
    if mask is None:
        mask = torch.ones_like(ids, dtype=torch.bool)
    return {"ids": ids, "mask": mask, "token_types": torch.zeros_like(ids)}


# ----------------------------------------------------------------------------------- the other side


def huggingface(folder: Path, inputs: dict[str, Tensor], double: bool) -> dict[str, Tensor]:
    """Compute the tensors with transformers, in a process of its own."""
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            "--against hf needs transformers: pip install -e '.[reference]'; or compare with a "
            "file: --against FILE"
        )

    with tempfile.TemporaryDirectory() as place:
        inputs_file = Path(place) / "inputs.safetensors"
        states_file = Path(place) / "states.safetensors"
        write_safetensors(inputs, inputs_file)

        # The script is run and not imported: this room lies below the integrations.
        # subtle: -P, or the script itself and its neighbours would be imported in place of the
        # libraries that they are named after
        script = Path(__file__).parents[1] / "integrations" / "transformers.py"
        command: list[str | Path] = [sys.executable, "-P", script]
        command += [folder.resolve(), inputs_file, states_file]
        if double:
            command.append("--double")
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            message = "no message"
            lines = run.stderr.strip().splitlines()
            if lines:
                message = lines[-1]  # a traceback ends with the error
            raise InputError(
                f"transformers could not run {folder}: {message}; or compare with a file: "
                f"--against FILE"
            )
        return read_safetensors(states_file)


def read_states(path: Path, double: bool) -> dict[str, Tensor]:
    """Read the named tensors of a file, and its inputs: ``ids``, ``mask`` and ``token_types``.

    Token types are 0 if the file has none.
    """
    with reading(path):
        open_bytes(path).close()  # refuses a pipe, which safetensors would wait for
        states = read_safetensors(path)
        inputs = {"ids": states["ids"], "mask": states["mask"]}
        inputs["token_types"] = states.get("token_types", torch.zeros_like(inputs["ids"]))
        for name, tensor in inputs.items():
            if tensor.is_floating_point():
                raise ValueError(f"{name} must be whole numbers, not {tensor.dtype}")
        states["ids"] = inputs["ids"].long()
        states["mask"] = inputs["mask"].bool()
        states["token_types"] = inputs["token_types"].long()

        for name, tensor in states.items():
            if name in TRACE_INPUTS or tensor.dtype == torch.float64:
                continue
            if double:
                raise ValueError(f"{name} is {tensor.dtype}, --double needs float64")
            if tensor.dtype != torch.float32:
                raise ValueError(f"{name} is {tensor.dtype}, float32 or float64 is needed")
        return states


def check_comparable(ours: dict[str, Tensor], other: dict[str, Tensor], source: str) -> None:
    """Raise ``InputError`` if the two sides share no name, or tensors of one name differ in shape.

    ``source`` is where the other side comes from.
    """
    shared = [name for name in ours if name in other]
    if not shared:
        raise InputError(f"{source} has none of the tensors that are compared, {', '.join(ours)}")
    wrong = ""
    for name in shared:
        shape = tuple(other[name].shape)
        expected = tuple(ours[name].shape)
        if shape != expected:
            wrong += f"\n  {name} is {shape}, should be {expected}"
    if wrong:
        raise InputError(f"{source} does not fit this model and these texts:{wrong}")


def names_only_in(other: dict[str, Tensor], ours: dict[str, Tensor]) -> list[str]:
    """Return the names of the other side's tensors that ours does not have."""
    return [name for name in other if name not in ours and name not in TRACE_INPUTS]


# ----------------------------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Stage:
    """The comparison of one named tensor."""

    name: str
    shape: tuple[int, ...]
    difference: float  # the largest, absolute, at real tokens; infinite if either side has a NaN
    at: tuple[int, ...]  # the index of the number that differs most
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
    stages = []
    for name in ours:
        if name not in other:
            continue
        difference = (ours[name].double() - other[name].double()).abs().nan_to_num(nan=torch.inf)
        if difference.ndim == 3:  # hidden states (B, T, D)
            difference = difference.masked_fill(~mask[:, :, None], 0.0)
        if difference.ndim == 4:  # probabilities (B, H, T, T)
            difference = difference.masked_fill(~mask[:, None, :, None], 0.0)

        shape = tuple(difference.shape)
        index = torch.unravel_index(difference.argmax(), shape)  # a tensor for each dimension
        at = tuple(int(i) for i in index)
        stages.append(Stage(name, shape, difference[at].item(), at, tolerances[name]))
    return stages


def first_divergence(stages: list[Stage]) -> Stage | None:
    """Return the first tensor beyond its tolerance, or None."""
    for stage in stages:
        if not stage.ok:
            return stage
    return None


def explain(stages: list[Stage], names: Sequence[str]) -> str:
    """Say the verdict in words: all equal, or where the mistake must be.

    ``names`` are all tensors that could have been compared, in order.
    """
    first = first_divergence(stages)
    if first is None:
        worst = max(stages, key=lambda stage: stage.difference / stage.tolerance)
        percent = 100 * worst.difference / worst.tolerance
        return (
            f"Equal: all {len(stages)} tensors agree. The worst, {worst.name}, uses "
            f"{percent:.2g} % of its tolerance."
        )

    # Each tensor is computed from those before it, but none from the pooler's output, so the pooler
    # is left out unless it is itself the first to differ.
    chain = [name for name in names if name == first.name or name != "pooler"]

    # The mistake is in what is computed after the last one that agrees.
    before_first = stages[: stages.index(first)]
    agreeing = [stage.name for stage in before_first if stage.name in chain]
    if agreeing:
        start = chain.index(agreeing[-1]) + 1
        where = f"between {agreeing[-1]}, which agrees, and {first.name}"
    else:
        start = 0
        where = f"before {first.name}"

    parts: list[str] = []
    for name in chain[start : chain.index(first.name) + 1]:
        part = PARTS[part_of(name)]
        if part not in parts:
            parts.append(part)
    return f"{first.name} is the first to differ. Look {where}: {'; '.join(parts)}."


def part_of(name: str) -> str:
    """Return a tensor's key in ``PARTS``: layers.3 -> layers, layers.3.attention -> attention."""
    if name.endswith(".attention"):
        return "attention"
    return name.partition(".")[0]


def print_rows(stages: list[Stage]) -> None:
    """Print the comparison; the first row beyond its tolerance is marked FIRST DIVERGENCE."""
    first = first_divergence(stages)
    print(f"{'tensor':<21}{'shape':<18}{'max difference':>14}   {'at':<18}")
    for stage in stages:
        verdict = "ok" if stage.ok else "differs"
        if stage is first:
            verdict = "FIRST DIVERGENCE"
        shape = " x ".join(str(size) for size in stage.shape)
        print(f"{stage.name:<21}{shape:<18}{stage.difference:>14.2e}   {stage.at!s:<18}{verdict}")
