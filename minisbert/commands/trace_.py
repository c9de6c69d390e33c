"""Find where another implementation first differs from this one, layer by layer, and which known mistake explains it.

minisbert trace "A cat sits." "It rains."     against Hugging Face
minisbert trace --write ours.safetensors      write every intermediate result, by name
minisbert trace --against yours.safetensors   against your own code

For the last one, take ``ids`` and ``mask`` from ``ours.safetensors``, compute any of its other tensors with your code,
and write them under the same names, together with ``ids`` and ``mask`` (``safetensors.torch.save_file``).
Exit codes: 0 equal, 1 not equal, 2 bad input.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisbert.commands.options import add_model_option, add_pooling_option, check_written
from minisbert.system.console import add_threads_option, check_usage, command_parser, exiting, run_command, say
from minisbert.system.files import atomic_file

if TYPE_CHECKING:
    from torch import Tensor

    from minisbert.diagnosis.tracing import Stage
    from minisbert.models.sentence_encoder import SentenceEncoder

    Tensors = dict[str, Tensor]

EXAMPLE_TEXTS = ["The cat sits on the mat.", "A happy child is playing with a small red ball in the garden.", "Rain."]


def trace_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("trace", __doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: three short sentences of different length")
    add_model_option(parser)
    add_pooling_option(parser)
    parser.add_argument("--against", metavar="hf|FILE", help="Hugging Face, or a .safetensors file (default: hf)")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write our tensors to FILE.safetensors")
    parser.add_argument("--double", action="store_true", help="compute in float64: real differences stand out more")
    add_threads_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = trace_options(arguments)
    against = options.against or "hf"
    check_usage((against != "hf" and options.texts, f"the texts are those of {against}: give none here"))
    check_written("--write", options.write, [".safetensors"], options.model, options.against)

    from minisbert.checkpoints.layout import find_model
    from minisbert.checkpoints.weights import write_safetensors
    from minisbert.core import reading
    from minisbert.diagnosis import tracing
    from minisbert.models.guards import check_inputs
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.system.devices import use_threads

    # the other side's file comes first: it says which texts
    other = {}
    if against != "hf":
        other = tracing.read_states(Path(against), options.double)
    use_threads(options.threads)
    path = find_model(options.model)
    encoder = SentenceEncoder.load(path, pooling=options.pooling, device="cpu")
    if options.double:
        encoder = encoder.double()
    if other:
        inputs = {name: other[name] for name in tracing.TRACE_INPUTS}
        with reading(against):
            check_inputs(encoder.bert.config, inputs["ids"], inputs["mask"], inputs["token_types"])
    else:
        inputs = tracing.inputs_of(encoder, options.texts or EXAMPLE_TEXTS)

    ours = tracing.our_states(encoder, inputs)
    if options.write:
        with atomic_file(options.write) as partial:
            write_safetensors(inputs | ours, partial)
        say(f"wrote {len(inputs | ours)} tensors to {options.write}: {', '.join(inputs | ours)}")
        if options.against is None:
            return
    if not other:
        other = tracing.huggingface(path, inputs, options.double)
    compare_both(options, encoder, inputs, ours, other)


def compare_both(
    options: argparse.Namespace, encoder: "SentenceEncoder", inputs: "Tensors", ours: "Tensors", other: "Tensors"
) -> None:
    """Print the comparison of both sides and the verdict; the exit code is 1 if they differ."""
    from minisbert.diagnosis import tracing

    against = options.against or "hf"
    unknown = tracing.unknown_names(ours, other, against)
    hidden = tracing.DOUBLE if options.double else tracing.HIDDEN
    # the numbers of a vector of length 1 are smaller than those of hidden states
    final = tracing.VECTOR if encoder.normalize and not options.double else hidden

    def compare() -> "list[Stage]":
        # computed anew, because a mistake may be planted
        bounds = dict.fromkeys(ours, hidden) | {"vector": final}
        return tracing.compare_states(tracing.our_states(encoder, inputs), other, inputs["mask"], bounds)

    rows = compare()
    first = tracing.first_divergence(rows)
    whole: list[str] = []
    part: dict[str, str] = {}
    if first is not None:
        whole, part = tracing.suspects(rows, compare)
    verdict = tracing.explain(rows, whole, part, list(ours))
    with exiting(int(first is not None)):
        if options.json:
            report = {"model": options.model, "against": against, "tensors": [as_json(row) for row in rows]}
            report |= {"first_divergence": first and first.name, "mistakes": whole, "mistakes_in_part": part}
            print(json.dumps(report | {"unknown": unknown, "verdict": verdict}))
            return
        print_setting(options, encoder, inputs["mask"].sum(dim=1).tolist())
        print(f"tolerance  {hidden:g}, for the final vector {final:g}\n")
        tracing.print_rows(rows)
        print()
        for side, names in (("we have", unknown), ("the other side has", [name for name in ours if name not in other])):
            if names:
                print(f"not compared because {side} no such tensor: {', '.join(names)}")
        print(verdict)


def print_setting(options: argparse.Namespace, encoder: "SentenceEncoder", counts: list[int]) -> None:
    """Print what is compared: the model, the other side, and how many tokens each text has."""
    dtype = str(encoder.dtype).removeprefix("torch.")
    print(f"model      {options.model}, {encoder.pooling_mode} pooling, {dtype}")
    against = options.against
    if against in (None, "hf"):
        against = "Hugging Face transformers"
    print(f"against    {against}")
    print(f"texts      {len(counts)}, with {', '.join(map(str, counts))} tokens; pads are not compared")


def as_json(row: "Stage") -> dict[str, Any]:
    fields = asdict(row) | {"ok": row.ok}
    if not math.isfinite(row.difference):
        fields["difference"] = None  # JSON has no infinity
    return fields


if __name__ == "__main__":
    run_command(main)
