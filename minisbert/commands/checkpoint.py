"""Convert old checkpoints to safetensors.

minisbert checkpoint convert path/to/pytorch_model.bin
"""

from pathlib import Path

from minisbert.core import InputError
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command

parser = command_parser("checkpoint", __doc__)
conversions = parser.add_subparsers(dest="command", required=True)
converting = conversions.add_parser("convert", help="pytorch_model.bin to model.safetensors, beside it")
converting.add_argument("file", type=Path, metavar="FILE", help="such as path/to/pytorch_model.bin")
converting.add_argument("--out", type=Path, help="default: model.safetensors in the same folder")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    from minisbert.checkpoints.weights import convert

    out = options.out or options.file.with_name("model.safetensors")
    if out.exists():
        raise InputError(f"{out} exists and is not overwritten")
    print(f"wrote {convert(options.file, out)} tensors to {out}")


if __name__ == "__main__":
    run_command(main)
