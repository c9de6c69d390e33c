"""Convert old checkpoints to safetensors.

minisbert checkpoint convert path/to/pytorch_model.bin
"""

from pathlib import Path

from minisbert.checkpoints.weights import convert
from minisbert.core import InputError
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("checkpoint", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("convert", help="pytorch_model.bin to model.safetensors, beside it")
    command.add_argument("file", type=Path, metavar="FILE", help="such as path/to/pytorch_model.bin")
    command.add_argument("--out", type=Path, help="default: model.safetensors in the same folder")
    options = parser.parse_args(arguments)
    out = options.out or options.file.with_name("model.safetensors")
    if out.exists():
        raise InputError(f"{out} exists and is not overwritten")
    print(f"wrote {convert(options.file, out)} tensors to {out}")


if __name__ == "__main__":
    run_command(main)
