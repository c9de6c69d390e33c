"""List and fetch the weights and data sets of the manifest, ``minisbert/system/assets.toml``.

minisbert assets list
minisbert assets fetch all-MiniLM-L6-v2
minisbert assets path stsb

MINISBERT_HOME moves the folders, MINISBERT_OFFLINE=1 forbids the network, HF_ENDPOINT names a mirror.
"""

from minisbert.system.assets import asset, assets, fetch, problems
from minisbert.system.console import command_parser, run_command

parser = command_parser("assets", __doc__)
actions = parser.add_subparsers(dest="command", required=True)
actions.add_parser("list", help="show every asset with its source, licence and state on this machine")
fetching = actions.add_parser("fetch", help="hash an asset's files, and download it unless all of them match")
fetching.add_argument("name", metavar="NAME")
locating = actions.add_parser("path", help="print its folder")
locating.add_argument("name", metavar="NAME")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    if options.command == "list":
        list_assets()
        return
    wanted = asset(options.name)
    if options.command == "fetch" and problems(wanted):
        fetch(wanted)
    print(wanted.folder)


def list_assets() -> None:
    for entry in assets().values():
        size = sum(file.size or 0 for file in entry.files)
        megabytes = f"{size / 1e6:.1f} MB" if size else "size unknown"
        print(f"{entry.name}  ({entry.kind}, {megabytes}, {entry.state()})")
        print(f"  {entry.about}\n  {entry.upstream}; licence: {entry.licence}")
        # a source's first key is its kind, the value its address
        print("  from " + ", else ".join(" ".join(next(iter(source.items()))) for source in entry.sources))


if __name__ == "__main__":
    run_command(main)
