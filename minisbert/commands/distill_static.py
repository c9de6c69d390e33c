"""Make a table of static vectors from an encoder: one vector per token, far faster, at a loss.

minisbert distill-static --out table
minisbert distill-static --model path/to/encoder --dim 128 --out table
minisbert encode --model table "A cat sits." "A kitten is sitting."
"""

from pathlib import Path

from minisbert.commands.options import add_device_options, add_model_option
from minisbert.core import InputError
from minisbert.system.assets import local_path
from minisbert.system.console import bounded, command_parser, run_command, say
from minisbert.system.files import check_output

parser = command_parser("distill-static", __doc__)
add_model_option(parser)
parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write the model to this folder")
parser.add_argument("--dim", type=bounded(int, 1), default=256, metavar="N", help="columns (default: %(default)s)")
sif_help = "weight a token of frequency p (Zipf's law) by A / (A + p), with a large A all alike (default: %(default)s)"
parser.add_argument("--sif", type=bounded(float, 1e-9), default=1e-4, metavar="A", help=sif_help)
add_device_options(parser)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    from minisbert.loading import load_encoder
    from minisbert.models.sentence_encoder import SentenceEncoder
    from minisbert.models.static_encoder import distill
    from minisbert.system.devices import use_threads

    check_output(options.out, local_path(options.model))
    use_threads(options.threads)
    encoder = load_encoder(options.model, device=options.device)
    if not isinstance(encoder, SentenceEncoder) or encoder.vectors_are != "dense":
        raise InputError(f"--model {options.model}: only an encoder of dense vectors can be distilled to a table")
    static = distill(encoder, options.dim, options.sif, progress=True)
    static.save(options.out)
    rows, width = static.embedding.weight.shape
    say(f"wrote {rows:,} vectors of width {width} ({4 * rows * width / 2**20:.0f} MB) to {options.out}")


if __name__ == "__main__":
    run_command(main)
