"""Find where another implementation first differs from this one, layer by layer.

To compare your own code, take ``ids`` and ``mask`` from the file of ``--write``, compute any of its
other tensors, and write them under the same names, together with ``ids`` and ``mask``
(``safetensors.torch.save_file``). Exit codes: 0 equal, 1 not equal, 2 bad input.

Examples:
  minisbert trace "A cat sits." "It rains."     # against Hugging Face
  minisbert trace --write ours.safetensors      # write every intermediate result, by name
  minisbert trace --against yours.safetensors   # against your own code
"""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands import shared
from minisbert.system.console import (
    add_threads_option,
    check_usage,
    command_parser,
    escaped,
    exiting,
    say,
)
from minisbert.system.files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

    from minisbert.diagnosis.tracing import Stage

EXAMPLE_TEXTS = [
    "The cat sits on the mat.",
    "A happy child is playing with a small red ball in the garden.",
    "Rain.",
]

parser = command_parser("trace", __doc__)
parser.add_argument(
    "texts", nargs="*", metavar="TEXT", help="default: three short sentences of different length"
)
shared.add_model_option(parser)
shared.add_pooling_option(parser)
parser.add_argument(
    "--against", metavar="hf|FILE", help="Hugging Face, or a .safetensors file (default: hf)"
)
parser.add_argument(
    "--write", metavar="FILE", type=Path, help="write our tensors to FILE.safetensors"
)
parser.add_argument(
    "--double", action="store_true", help="compute in float64: real differences stand out more"
)
add_threads_option(parser)
parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    against = options.against or "hf"
    texts_twice = against != "hf" and bool(options.texts)
    check_usage((texts_twice, f"the texts are those of {against}: give none here"))
    shared.check_written("--write", options.write, [".safetensors"], options.model, options.against)

    from minisbert.checkpoints.layout import find_model
    from minisbert.checkpoints.weights import write_safetensors
    from minisbert.diagnosis import tracing
    from minisbert.models.batching import check_inputs
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.system.devices import use_threads
    from minisbert.system.reading import reading

    # The other side's file is read first: its ids say which texts are compared.
    other = None
    if against != "hf":
        other = tracing.read_states(Path(against), options.double)

    use_threads(options.threads)
    path = find_model(options.model)
    encoder = SentenceEncoder.load(path, pooling=options.pooling, device="cpu")
    if options.double:
        encoder = encoder.double()

    if other is None:
        inputs = tracing.inputs_of(encoder, options.texts or EXAMPLE_TEXTS)
    else:
        inputs = {name: other[name] for name in tracing.TRACE_INPUTS}
        with reading(against):
            check_inputs(encoder.bert.config, inputs["ids"], inputs["mask"], inputs["token_types"])

    ours = tracing.our_states(encoder, inputs)
    if options.write:
        written = inputs | ours
        with atomic_file(options.write) as partial:
            write_safetensors(written, partial)
        say(f"wrote {len(written)} tensors to {options.write}: {', '.join(written)}")
        if options.against is None:
            return

    if other is None:
        other = tracing.huggingface(path, inputs, options.double)
    tracing.check_comparable(ours, other, against)
    only_theirs = tracing.names_only_in(other, ours)
    only_ours = [name for name in ours if name not in other]

    # The numbers of a vector of length 1 are smaller than those of hidden states, and so is its
    # tolerance.
    tolerance = tracing.DOUBLE if options.double else tracing.HIDDEN
    vector_tolerance = tolerance
    if encoder.normalize and not options.double:
        vector_tolerance = tracing.VECTOR
    tolerances = dict.fromkeys(ours, tolerance)
    tolerances["vector"] = vector_tolerance

    rows = tracing.compare_states(ours, other, inputs["mask"], tolerances)
    first = tracing.first_divergence(rows)
    verdict = tracing.explain(rows, list(ours))

    exit_code = 0
    first_name = None
    if first is not None:
        exit_code = 1
        first_name = first.name
    with exiting(exit_code):
        if options.json:
            report = {
                "model": options.model,
                "against": against,
                "tensors": [as_json(row) for row in rows],
                "first_divergence": first_name,
                "unknown": only_theirs,
                "verdict": verdict,
            }
            print(json.dumps(report))
            return

        dtype = str(encoder.dtype).removeprefix("torch.")
        print(f"model      {options.model}, {encoder.pooling_mode} pooling, {dtype}")
        print_other_side(against, inputs["mask"])
        print(f"tolerance  {tolerance:g}, for the final vector {vector_tolerance:g}\n")
        tracing.print_rows(rows)
        print()
        print_not_compared("we have", only_theirs)
        print_not_compared("the other side has", only_ours)
        print(verdict)


def print_other_side(against: str, mask: "Tensor") -> None:
    """Print what is compared with, and the texts of the mask (N, T)."""
    other_side = against
    if against == "hf":
        other_side = "Hugging Face transformers"
    counts = mask.sum(dim=1).tolist()
    tokens = ", ".join(map(str, counts))
    print(f"against    {other_side}")
    print(f"texts      {len(counts)}, with {tokens} tokens; pads are not compared")


def as_json(row: "Stage") -> dict[str, Any]:
    """Return a compared tensor as JSON has it, without infinity."""
    fields = asdict(row) | {"ok": row.ok}
    if not math.isfinite(row.difference):
        fields["difference"] = None
    return fields


def print_not_compared(side: str, names: list[str]) -> None:
    if names:
        print(escaped(f"not compared because {side} no such tensor: {', '.join(names)}"))
