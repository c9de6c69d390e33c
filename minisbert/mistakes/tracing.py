"""Where does another implementation part from this one? Layer by layer, and which known mistake gives its numbers.

python -m minisbert.trace "A cat sits." "It rains."     beside Hugging Face
python -m minisbert.trace --write ours.safetensors      every intermediate result, by name
python -m minisbert.trace --against theirs.safetensors  beside your own code

For the last one take ``ids`` and ``mask`` from ``ours.safetensors``, compute any of its other tensors with your code,
and write them under the same names, ``ids`` and ``mask`` with them (``safetensors.torch.save_file``).
Exit codes: 0 equal, 1 not equal, 2 bad input.
"""

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from minisbert.core import InputError
from minisbert.core.tokenizer import pad_batch
from minisbert.mistakes.divergence import Row, compare, explain, first_divergence, suspects
from minisbert.models.checkpoint import read_safetensors, write_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder, find_model
from minisbert.system.console import run_command, say
from minisbert.system.files import atomic_file

TEXTS = ["The cat sits on the mat.", "A happy child is playing with a small red ball in the garden.", "Rain."]
INPUTS = ("ids", "mask", "token_types")

# a faithful forward pass differs by 4e-6 in float32 and 5e-15 in float64, the smallest real mistake by 3e-4
HIDDEN, VECTOR, DOUBLE = 2e-5, 2e-6, 1e-10


def our_states(encoder: SentenceEncoder, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every intermediate result by name, in order; ``vector`` only where all tokens are of the first sentence."""
    ids, mask, token_types = (inputs[name] for name in INPUTS)  # (B, T) each
    states: dict[str, Tensor] = {}
    with torch.no_grad():
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
    """What transformers computes, in a process of its own: nothing under minisbert/ imports it."""
    root = Path(__file__).resolve().parents[2]
    instead = "; or compare with a file: --against FILE"
    if not (root / "tests" / "reference" / "states.py").is_file():
        raise InputError("--against hf needs a checkout of the project (tests/reference/states.py)" + instead)
    if importlib.util.find_spec("transformers") is None:
        raise InputError("--against hf needs transformers: pip install '.[reference]'" + instead)
    with tempfile.TemporaryDirectory() as place:
        given, made = Path(place) / "inputs.safetensors", Path(place) / "states.safetensors"
        write_safetensors(inputs, given)
        command = [sys.executable, "-m", "tests.reference.states", folder.resolve(), given, made]
        run = subprocess.run(command + ["--double"] * double, cwd=root, capture_output=True, text=True)
        if run.returncode:
            said = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise InputError(f"transformers could not run {folder}: {said}{instead}")
        return read_safetensors(made)


def read_states(path: Path, double: bool) -> dict[str, Tensor]:
    """A file of named tensors; ``ids``, ``mask`` and ``token_types`` (zero where it has none) come as (B, T)."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; python -m minisbert.trace --write FILE shows what it should hold")
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


def check_fit(ours: dict[str, Tensor], theirs: dict[str, Tensor], source: str) -> list[str]:
    """The names that only the other side has. ``InputError`` where shapes do not fit or nothing can be compared."""
    unknown = [name for name in theirs if name not in ours and name not in INPUTS]
    shared = [name for name in ours if name in theirs]
    if not shared:
        held = f" ({', '.join(unknown)} it has)" if unknown else ""
        raise InputError(f"{source} has none of the tensors that are compared{held}: {', '.join(ours)}")
    shapes = {name: (tuple(theirs[name].shape), tuple(ours[name].shape)) for name in shared}
    wrong = [f"\n  {name} is {got}, should be {wanted}" for name, (got, wanted) in shapes.items() if got != wanted]
    if wrong:
        raise InputError(f"{source} does not fit this model and these texts:{''.join(wrong)}")
    return unknown


# ----------------------------------------------------------------------------------------- the command


def write_states(tensors: dict[str, Tensor], path: Path) -> None:
    """All tensors in one safetensors file."""
    with atomic_file(path) as partial:
        write_safetensors(tensors, partial)
    say(f"wrote {len(tensors)} tensors to {path}: {', '.join(tensors)}")


def as_json(row: Row) -> dict:
    difference = row.difference if math.isfinite(row.difference) else None  # JSON knows no infinity
    return asdict(row) | {"difference": difference, "ok": row.ok}


def print_rows(rows: list[Row]) -> None:
    """The table; the first row that is not ok is shouted, later ones are only told."""
    first = first_divergence(rows)
    print(f"{'tensor':<21}{'shape':<18}{'max difference':>14}   {'at':<18}")
    for row in rows:
        verdict = "ok" if row.ok else "FIRST DIVERGENCE" if row is first else "differs"
        shape = " x ".join(map(str, row.shape))
        print(f"{row.name:<21}{shape:<18}{row.difference:>14.2e}   {row.at!s:<18}{verdict}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m minisbert.trace",
        description="Layer by layer beside another implementation: the first divergence, and what explains it.",
        epilog='Example: python -m minisbert.trace "A cat sits." "It rains, and nobody has an umbrella."',
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: three short sentences of different length")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="name or folder (default: %(default)s)")
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--against", metavar="hf|FILE", help="Hugging Face, or a .safetensors file (default: hf)")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write our tensors to FILE.safetensors")
    parser.add_argument("--double", action="store_true", help="compute in float64: real differences stand out more")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, full precision")
    options = parser.parse_args(arguments)
    against = options.against or "hf"
    if options.write and options.write.suffix != ".safetensors":
        raise InputError(f"--write {options.write}: the name must end in .safetensors")
    if against != "hf" and options.texts:
        raise InputError(f"the texts are those of {against}: give none here")
    if not all(text.strip() for text in options.texts):
        raise InputError("an empty text shows little: give one with words")

    theirs = read_states(Path(against), options.double) if against != "hf" else {}
    encoder = SentenceEncoder.load(options.model, options.pooling)
    encoder = encoder.double() if options.double else encoder
    inputs = {name: theirs[name] for name in INPUTS} if theirs else inputs_of(encoder, options.texts or TEXTS)
    try:
        ours = our_states(encoder, inputs)
    except ValueError as error:
        raise InputError(f"{against}: {error}") from error
    if options.write:
        write_states(inputs | ours, options.write)
        if options.against is None:
            return
    theirs = theirs or huggingface(find_model(options.model), inputs, options.double)
    unknown = check_fit(ours, theirs, against)

    hidden, vector = (DOUBLE, DOUBLE) if options.double else (HIDDEN, VECTOR if encoder.normalize else HIDDEN)
    tolerances = {name: vector if name == "vector" else hidden for name in ours}
    rows = compare(ours, theirs, inputs["mask"], tolerances)
    whole, part = [], {}
    if first_divergence(rows):
        whole, part = suspects(rows, lambda: compare(our_states(encoder, inputs), theirs, inputs["mask"], tolerances))
    verdict = explain(rows, whole, part, list(ours))
    if options.json:
        first = first_divergence(rows)
        about = {"model": options.model, "against": against, "tensors": [as_json(row) for row in rows]}
        found = {"first_divergence": first and first.name, "mistakes": whole, "mistakes_in_part": part}
        print(json.dumps(about | found | {"unknown": unknown, "verdict": verdict}))
    else:
        dtype = "float64" if options.double else "float32"
        lengths = ", ".join(str(length) for length in inputs["mask"].sum(dim=1).tolist())
        print(f"model      {options.model}, {encoder.pooling.mode} pooling, {dtype}")
        print(f"against    {'Hugging Face transformers' if against == 'hf' else against}")
        print(f"texts      {len(inputs['ids'])}, of {lengths} tokens; what stands at pads is not compared")
        print(f"tolerance  {hidden:g}, for the last vector {vector:g}\n")
        print_rows(rows)
        lacking = [name for name in ours if name not in theirs]
        if unknown or lacking:
            print()
        if unknown:
            print(f"not compared, we have no such tensor: {', '.join(unknown)}")
        if lacking:
            print(f"not compared, the other side has no such tensor: {', '.join(lacking)}")
        print(f"\n{verdict}")
    if first_divergence(rows):
        sys.stdout.flush()  # while a closed pipe can still be told
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
