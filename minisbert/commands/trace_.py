"""Find where another implementation first differs from this one, layer by layer, and which known
mistake explains it.

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

from minisbert.commands import shared
from minisbert.system.console import add_threads_option, check_usage, command_parser, exiting, say
from minisbert.system.files import atomic_file

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
    check_usage(
        (against != "hf" and options.texts, f"the texts are those of {against}: give none here")
    )
    shared.check_written("--write", options.write, [".safetensors"], options.model, options.against)

    from minisbert.checkpoints.layout import find_model
    from minisbert.checkpoints.weights import write_safetensors
    from minisbert.diagnosis import tracing
    from minisbert.models.batching import check_inputs
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.system.devices import use_threads
    from minisbert.system.reading import reading

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

    unknown = tracing.unknown_names(ours, other, against)
    hidden = tracing.DOUBLE if options.double else tracing.HIDDEN
    # the numbers of a vector of length 1 are smaller than those of hidden states
    final = tracing.VECTOR if encoder.normalize and not options.double else hidden

    def compare() -> list[tracing.Stage]:
        # computed anew, because a mistake may be planted
        bounds = dict.fromkeys(ours, hidden) | {"vector": final}
        return tracing.compare_states(
            tracing.our_states(encoder, inputs), other, inputs["mask"], bounds
        )

    rows = compare()
    first = tracing.first_divergence(rows)
    whole, part = ([], {}) if first is None else tracing.suspects(rows, compare)
    verdict = tracing.explain(rows, whole, part, list(ours))
    with exiting(int(first is not None)):
        if options.json:
            tensors = [asdict(row) | {"ok": row.ok} for row in rows]
            for fields in tensors:
                if not math.isfinite(fields["difference"]):
                    fields["difference"] = None  # JSON has no infinity
            report = {"model": options.model, "against": against, "tensors": tensors}
            report |= {
                "first_divergence": first and first.name,
                "mistakes": whole,
                "mistakes_in_part": part,
            }
            print(json.dumps(report | {"unknown": unknown, "verdict": verdict}))
            return
        dtype = str(encoder.dtype).removeprefix("torch.")
        print(f"model      {options.model}, {encoder.pooling_mode} pooling, {dtype}")
        print(f"against    {'Hugging Face transformers' if against == 'hf' else against}")
        counts = inputs["mask"].sum(dim=1).tolist()
        print(
            f"texts      {len(counts)}, with {', '.join(map(str, counts))} tokens; pads are not "
            f"compared"
        )
        print(f"tolerance  {hidden:g}, for the final vector {final:g}\n")
        tracing.print_rows(rows)
        print()
        for side, names in (
            ("we have", unknown),
            ("the other side has", [name for name in ours if name not in other]),
        ):
            if names:
                print(f"not compared because {side} no such tensor: {', '.join(names)}")
        print(verdict)
