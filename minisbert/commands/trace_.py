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

from minisbert.commands.model_options import check_written
from minisbert.core import reading
from minisbert.diagnosis.trace import tracing
from minisbert.diagnosis.trace.tracing import DOUBLE, HIDDEN, INPUTS, VECTOR, Stage, compare_states, our_states
from minisbert.folder.find import find_model
from minisbert.folder.weights import write_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.system.arguments import add_threads_option, command_parser
from minisbert.system.console import check_usage, exiting, run_command, say
from minisbert.system.devices import use_threads
from minisbert.system.files import atomic_file

TEXTS = ["The cat sits on the mat.", "A happy child is playing with a small red ball in the garden.", "Rain."]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("trace", __doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="default: three short sentences of different length")
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name, folder, or owner/name on the Hub (default: %(default)s)"
    )
    parser.add_argument("--pooling", help="override the model's pooling: mean, cls, max, ...")
    parser.add_argument("--against", metavar="hf|FILE", help="Hugging Face, or a .safetensors file (default: hf)")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write our tensors to FILE.safetensors")
    parser.add_argument("--double", action="store_true", help="compute in float64: real differences stand out more")
    add_threads_option(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at full precision")
    return parser.parse_args(arguments)


def as_json(row: Stage) -> dict:
    difference = row.difference if math.isfinite(row.difference) else None  # JSON has no infinity
    return asdict(row) | {"difference": difference, "ok": row.ok}


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    against = options.against or "hf"
    check_usage((against != "hf" and options.texts, f"the texts are those of {against}: give none here"))
    check_written("--write", options.write, [".safetensors"], options.model, options.against)
    other = tracing.read_states(Path(against), options.double) if against != "hf" else {}
    use_threads(options.threads)
    path = find_model(options.model)
    encoder = SentenceEncoder.load(path, pooling=options.pooling)
    encoder = encoder.double() if options.double else encoder
    inputs = {name: other[name] for name in INPUTS} if other else tracing.inputs_of(encoder, options.texts or TEXTS)
    with reading(against):
        ours = our_states(encoder, inputs)
    if options.write:
        with atomic_file(options.write) as partial:
            write_safetensors(inputs | ours, partial)
        say(f"wrote {len(inputs | ours)} tensors to {options.write}: {', '.join(inputs | ours)}")
        if options.against is None:
            return
    other = other or tracing.huggingface(path, inputs, options.double)
    unknown = tracing.unknown_names(ours, other, against)

    hidden, vector = (DOUBLE, DOUBLE) if options.double else (HIDDEN, VECTOR if encoder.normalize else HIDDEN)
    tolerances = {name: vector if name == "vector" else hidden for name in ours}

    def compare() -> list[Stage]:
        return compare_states(our_states(encoder, inputs), other, inputs["mask"], tolerances)

    rows = compare()
    first = tracing.first_divergence(rows)
    whole, part = tracing.suspects(rows, compare) if first else ([], {})
    verdict = tracing.explain(rows, whole, part, list(ours))
    with exiting(1 if first else 0):
        if options.json:
            about = {"model": options.model, "against": against, "tensors": [as_json(row) for row in rows]}
            found = {"first_divergence": first and first.name, "mistakes": whole, "mistakes_in_part": part}
            print(json.dumps(about | found | {"unknown": unknown, "verdict": verdict}))
            return
        texts = inputs["mask"].sum(dim=1).tolist()
        precision = "float64" if options.double else "float32"
        print(f"model      {options.model}, {encoder.pooling_mode} pooling, {precision}")
        print(f"against    {'Hugging Face transformers' if against == 'hf' else against}")
        print(f"texts      {len(texts)}, with {', '.join(map(str, texts))} tokens; pads are not compared")
        print(f"tolerance  {hidden:g}, for the final vector {vector:g}\n")
        tracing.print_rows(rows)
        print()
        for side, names in (("we have", unknown), ("the other side has", [name for name in ours if name not in other])):
            if names:
                print(f"not compared because {side} no such tensor: {', '.join(names)}")
        print(verdict)


if __name__ == "__main__":
    run_command(main)
