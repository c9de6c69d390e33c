"""Make a table of static vectors from an encoder: one vector per token, far faster, at a loss.

minisbert distill-static --out table
minisbert distill-static --model path/to/encoder --dim 128 --out table
minisbert encode --model table "A cat sits." "A kitten is sitting."
"""

from pathlib import Path

from minisbert.checkpoints.save import check_model_replaceable
from minisbert.core import InputError
from minisbert.loading import load_encoder
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.static_encoder import distill
from minisbert.system.assets import local_path
from minisbert.system.command_line import add_threads_option, command_parser
from minisbert.system.console import bounded, run_command, say
from minisbert.system.devices import use_threads
from minisbert.system.files import check_output


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("distill-static", __doc__)
    parser.add_argument(
        "--model", default="all-MiniLM-L6-v2", help="name, folder, or owner/name on the Hub (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="write the model to this folder")
    parser.add_argument(
        "--dim", type=bounded(int, 1), default=256, metavar="N", help="columns of a vector (default: %(default)s)"
    )
    about = "weight tokens by A / (A + p), p their frequency by Zipf's law; a large A weights all alike "
    parser.add_argument(
        "--sif", type=bounded(float, 1e-9), default=1e-4, metavar="A", help=about + "(default: %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (default: %(default)s)")
    add_threads_option(parser)
    options = parser.parse_args(arguments)

    check_output(options.out, local_path(options.model))
    check_model_replaceable(options.out)
    use_threads(options.threads)
    encoder = load_encoder(options.model, device=options.device)
    if not isinstance(encoder, SentenceEncoder) or encoder.vectors_are != "dense":
        raise InputError(f"--model {options.model}: only an encoder of dense vectors can be distilled to a table")
    table = distill(encoder, options.dim, options.sif, progress=True)
    table.save(options.out)
    rows, width = table.embedding.weight.shape
    say(f"wrote {rows:,} vectors of width {width} ({4 * rows * width / 2**20:.0f} MB) to {options.out}")


if __name__ == "__main__":
    run_command(main)
