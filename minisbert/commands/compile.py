"""Compile a model ahead of time to one file of native code, which encodes a sentence in half the time.

minisbert compile all-MiniLM-L6-v2
minisbert compile runs/cosine-all-MiniLM-L6-v2/model --dtype bfloat16 --out model.pt2
minisbert compile all-MiniLM-L6-v2 --dtype int8
minisbert encode "A cat." "A dog." --compiled --dtype int8

int8 is faster than float32 on a CPU with VNNI or AVX2, and its vectors differ a little (docs/results.md). The
result is for this CPU and this version of torch; at the end it is compared with the eager encoder. It needs a C++
compiler and 20 to 90 seconds; loading it needs neither. It is a program: load only packages that you trust. A GPU needs
none: --compiled alone is enough there.
"""

import time
from pathlib import Path

from minisbert.commands.options import add_model_option, add_pooling_option, check_written
from minisbert.system.console import add_threads_option, command_parser, run_command, say

parser = command_parser("compile", __doc__)
add_model_option(parser, "model")
parser.add_argument("--out", type=Path, metavar="F", help="write to F.pt2 (default: to the cache, for --compiled)")
parser.add_argument("--dtype", default="float32", help="float32, bfloat16, int8 or auto (default: %(default)s)")
add_pooling_option(parser)
add_threads_option(parser)


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    check_written("--out", options.out, [".pt2"], options.model)
    from minisbert.backends.graphs import package_dtype
    from minisbert.backends.package import compile_apart, compile_to_cache, package_identity
    from minisbert.checkpoints.layout import ModelFolder, find_model
    from minisbert.system.devices import use_threads

    use_threads(options.threads)
    folder = find_model(options.model)
    dtype = package_dtype(options.dtype)
    started = time.monotonic()
    path = options.out
    if path:
        compile_apart(folder, dtype, options.pooling, path)
    else:
        path = compile_to_cache(folder, package_identity(ModelFolder(folder), dtype, options.pooling))
    say(f"{path}: {path.stat().st_size / 1e6:.0f} MB, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    run_command(main)
