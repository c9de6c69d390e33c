"""Print the versions of minisbert and torch, and how this machine multiplies: for a report of slow encoding.

minisbert version
"""

from minisbert import __version__
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command

parser = command_parser("version", __doc__)


def main(arguments: list[str] | None = None) -> None:
    parser.parse_args(arguments)
    import torch

    from minisbert.system.torch_internals import GAIN, OneDNNLinear, fastest_linear

    library = "torch's own"
    if isinstance(fastest_linear(), OneDNNLinear):
        library = "oneDNN's"
    print(f"minisbert {__version__}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    # not the measured gain, which is another one each time
    print(f"linear layers in float32: {library}; oneDNN's are taken where {GAIN} times as fast")


if __name__ == "__main__":
    run_command(main)
