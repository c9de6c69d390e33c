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
    fetching = actions.add_parser(
        "fetch", help="hash an asset's files, and download it unless all of them match"
    )
    fetching.add_argument("name", metavar="NAME")
    locating = actions.add_parser("path", help="print the asset's folder")
    locating.add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)

    if options.command == "list":
        print_assets()
        return
    wanted = asset(options.name)
    if options.command == "fetch" and problems(wanted):
        fetch(wanted)
    print(wanted.folder)


def print_assets() -> None:
    for entry in assets().values():
        size = 0
        for file in entry.files:
            if file.size is not None:
                size += file.size
        megabytes = "size unknown"
        if size:
            megabytes = f"{size / 1e6:.1f} MB"
        # The first key of a source is its kind, and the value its address.
        sources = []
        for source in entry.sources:
            kind, address = next(iter(source.items()))
            sources.append(f"{kind} {address}")
        print(f"{entry.name}  ({entry.kind}, {megabytes}, {entry.state()})")
        print(f"  {entry.about}")
        print(f"  {entry.upstream}; licence: {entry.licence}")
        print(f"  from {', else '.join(sources)}")


def version(arguments: list[str] | None = None) -> None:
    """Print the versions of minisbert and torch, and what this CPU multiplies matrices with.

    A report of slow encoding should contain these lines.

    Examples:
      minisbert version
    """
    command_parser("version", version.__doc__).parse_args(arguments)
    import torch

    from minisbert.system.devices import fastest_products

    library, dtype = fastest_products()
    threads = torch.get_num_threads()
    instructions = torch.backends.cpu.get_cpu_capability()
    print(f"minisbert {__version__}")
    print(f"torch {torch.__version__}, {threads} threads, {instructions}")
    print(f"float32 by {library}; dtype auto is {str(dtype).removeprefix('torch.')}")
