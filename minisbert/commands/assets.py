"""List and fetch the weights and data sets of the manifest, ``minisbert/system/assets.toml``.

MINISBERT_HOME moves the folders, MINISBERT_OFFLINE=1 forbids the network, HF_ENDPOINT names a
mirror.

Examples:
  minisbert assets list
  minisbert assets fetch all-MiniLM-L6-v2
  minisbert assets path stsb
"""

from minisbert import __version__
from minisbert.system.assets import asset, assets, fetch, problems
from minisbert.system.console import command_parser


def main(arguments: list[str] | None = None) -> None:
    parser = command_parser("assets", __doc__)
    actions = parser.add_subparsers(dest="command", required=True)
    actions.add_parser(
        "list", help="show every asset with its source, licence and state on this machine"
    )
    for name, about in (
        ("fetch", "hash an asset's files, and download it unless all of them match"),
        ("path", "print its folder"),
    ):
        actions.add_parser(name, help=about).add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for entry in assets().values():
            size = sum(file.size or 0 for file in entry.files)
            megabytes = f"{size / 1e6:.1f} MB" if size else "size unknown"
            print(f"{entry.name}  ({entry.kind}, {megabytes}, {entry.state()})")
            print(f"  {entry.about}\n  {entry.upstream}; licence: {entry.licence}")
            # a source's first key is its kind, the value its address
            print(
                "  from "
                + ", else ".join(" ".join(next(iter(source.items()))) for source in entry.sources)
            )
        return
    wanted = asset(options.name)
    if options.command == "fetch" and problems(wanted):
        fetch(wanted)
    print(wanted.folder)


def version(arguments: list[str] | None = None) -> None:
    """Print the versions of minisbert and torch, and what this CPU multiplies by: for a report of
    slow encoding.

    Examples:
      minisbert version
    """
    command_parser("version", version.__doc__).parse_args(arguments)
    import torch

    from minisbert.system.devices import fastest_products

    library, dtype = fastest_products()
    print(f"minisbert {__version__}")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}"
    )
    print(f"float32 by {library}; dtype auto is {str(dtype).removeprefix('torch.')}")
