"""The tensors of a forward pass by name: ours, Hugging Face's, or those of a file.

``python -m minisbert.trace`` compares them; lessons 07 and 15 do the same step by step.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.diagnosis.divergence import Row, first_divergence
from minisbert.diagnosis.mistakes.planting import written_out
from minisbert.models.checkpoint import read_safetensors, write_safetensors
from minisbert.models.inputs import check_inputs
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.console import say

INPUTS = ("ids", "mask", "token_types")

# a correct forward pass differs by 4e-6 in float32 and 5e-15 in float64, the smallest real mistake by 3e-4
HIDDEN, VECTOR, DOUBLE = 2e-5, 2e-6, 1e-10


def our_states(encoder: SentenceEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every intermediate result by name, in order; ``vector`` only if all tokens are of the first sentence."""
    ids, mask, token_types = (inputs[name] for name in INPUTS)  # (B, T) each
    states: dict[str, Tensor] = {}
    check_inputs(encoder.bert.config, ids, mask, token_types)  # they may be another program's
    with torch.no_grad(), written_out():  # attention's probabilities are compared, too
        hidden = encoder.bert(ids, mask, token_types, states)  # (B, T, D)
        if encoder.bert.pooler is not None:
            states["pooler"] = encoder.bert.pool(hidden)  # (B, D)
        states["pooled"] = encoder.pool(hidden, mask, states["layers.0"])  # (B, D)
        if not token_types.any():
            states["vector"] = encoder(ids, mask)  # (B, D)
    return states


def inputs_of(encoder: SentenceEncoder, texts: list[str]) -> dict[str, Tensor]:
    """Texts to ids, mask and token types, (B, T) each."""
    encoded = encoder.tokenizer.encode(texts)
    if encoded.truncated:
        say(encoder.tokenizer.cut_message(encoded.truncated, len(texts)))
    ids, mask = pad_batch(encoded.ids, encoder.tokenizer.pad_id)
    mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return {"ids": ids, "mask": mask, "token_types": torch.zeros_like(ids)}


# ------------------------------------------------------------------------------------- the other side


def huggingface(folder: Path, inputs: dict[str, Tensor], double: bool) -> dict[str, Tensor]:
    """What transformers computes, in a separate process: nothing under minisbert/ imports it."""
    instead = "; or compare with a file: --against FILE"
    script = reference_script()
    if script is None:
        missing = "--against hf needs reference_states.py, which this installation lacks"
        raise InputError(f"{missing}: install minisbert again, or run it from a checkout{instead}")
    if importlib.util.find_spec("transformers") is None:
        raise InputError("--against hf needs transformers: pip install '.[reference]'" + instead)
    with tempfile.TemporaryDirectory() as place:
        given, made = Path(place) / "inputs.safetensors", Path(place) / "states.safetensors"
        write_safetensors(inputs, given)
        # subtle: -P, or the script's neighbours (bert.py, heads.py, ...) would be importable as top-level modules
        command = [sys.executable, "-P", script, folder.resolve(), given, made]
        run = subprocess.run(command + ["--double"] * double, capture_output=True, text=True)
        if run.returncode:
            said = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(f"transformers could not run {folder}: {said}{instead}")
        return read_safetensors(made)


def reference_script() -> Path | None:
    """The script that runs transformers: beside this file in an installed package, under tests/ in a checkout."""
    here = Path(__file__).resolve()
    places = (here.with_name("reference_states.py"), here.parents[2] / "tests" / "reference" / "states.py")
    return next((path for path in places if path.is_file()), None)


def read_states(path: Path, double: bool) -> dict[str, Tensor]:
    """The named tensors of a file, with ``ids``, ``mask`` and ``token_types`` (by default 0) as (B, T)."""
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {problem}; python -m minisbert.trace --write FILE shows what it should hold")
    found = read_safetensors(path)
    missing = [name for name in ("ids", "mask") if name not in found]
    if missing:
        raise InputError(f"{path} has no {' and no '.join(missing)}: copy ids and mask from what --write wrote")
    found.setdefault("token_types", torch.zeros_like(found["ids"]))
    for name in INPUTS:
        value = found[name]
        if value.ndim != 2 or value.shape != found["ids"].shape or value.is_floating_point():
            raise InputError(f"{path}: {name} must be whole numbers (B, T), not {value.dtype} {tuple(value.shape)}")
        found[name] = value.bool() if name == "mask" else value.long()
    for name, value in found.items():
        if name not in INPUTS and value.dtype not in ((torch.float64,) if double else (torch.float32, torch.float64)):
            needed = "--double needs float64" if double else "float32 or float64 is needed"
            raise InputError(f"{path}: {name} is {value.dtype}, {needed}")
    return found


def check_fit(ours: dict[str, Tensor], other: dict[str, Tensor], source: str) -> list[str]:
    """The names that only the other side has. ``InputError`` if shapes do not fit or nothing can be compared."""
    unknown = [name for name in other if name not in ours and name not in INPUTS]
    shared = [name for name in ours if name in other]
    if not shared:
        found = f"; it has {', '.join(unknown)}" if unknown else ""
        raise InputError(f"{source} has none of the tensors that are compared, {', '.join(ours)}{found}")
    shapes = {name: (tuple(other[name].shape), tuple(ours[name].shape)) for name in shared}
    wrong = [f"\n  {name} is {got}, should be {wanted}" for name, (got, wanted) in shapes.items() if got != wanted]
    if wrong:
        raise InputError(f"{source} does not fit this model and these texts:{''.join(wrong)}")
    return unknown


# ------------------------------------------------------------------------------------------ the table


def print_rows(rows: list[Row]) -> None:
    """Print the comparison; the first row beyond its tolerance is marked FIRST DIVERGENCE."""
    first = first_divergence(rows)
    print(f"{'tensor':<21}{'shape':<18}{'max difference':>14}   {'at':<18}")
    for row in rows:
        verdict = "ok" if row.ok else "FIRST DIVERGENCE" if row is first else "differs"
        shape = " x ".join(map(str, row.shape))
        print(f"{row.name:<21}{shape:<18}{row.difference:>14.2e}   {row.at!s:<18}{verdict}")
