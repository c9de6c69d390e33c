"""Print the versions of minisbert and torch, and what this CPU multiplies by: for a report of slow encoding.

minisbert version
"""

from minisbert import __version__
from minisbert.system.console import command_parser, run_command

parser = command_parser("version", __doc__)


def main(arguments: list[str] | None = None) -> None:
    parser.parse_args(arguments)
    import torch

    from minisbert.system.devices import fastest_products

    library, dtype = fastest_products()
    print(f"minisbert {__version__}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(f"float32 by {library}; dtype auto is {str(dtype).removeprefix('torch.')}")


if __name__ == "__main__":
    run_command(main)
