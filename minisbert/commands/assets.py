"""List, fetch and verify the weights and data sets of the manifest, ``minisbert/system/assets.toml``.

minisbert assets list
minisbert assets fetch all-MiniLM-L6-v2
minisbert assets path stsb
minisbert assets verify

MINISBERT_HOME moves the folders, MINISBERT_OFFLINE=1 forbids the network, HF_ENDPOINT names a mirror.
"""

from minisbert.core import InputError
from minisbert.system.assets import asset, assets, fetch, problems
from minisbert.system.command_line import command_parser
from minisbert.system.console import run_command

parser = command_parser("assets", __doc__)
actions = parser.add_subparsers(dest="command", required=True)
actions.add_parser("list", help="show every asset with its source, licence and state on this machine")
fetching = actions.add_parser("fetch", help="download an asset, even if it is already there")
fetching.add_argument("name", metavar="NAME")
locating = actions.add_parser("path", help="print its folder")
locating.add_argument("name", metavar="NAME")
verifying = actions.add_parser("verify", help="hash every file that has been fetched")
verifying.add_argument("name", metavar="NAME", nargs="?", help="only this asset")


def main(arguments: list[str] | None = None) -> None:
    options = parser.parse_args(arguments)
    if options.command == "list":
        list_assets()
    elif options.command == "verify":
        verify(options.name)
    else:
        if options.command == "fetch":
            fetch(asset(options.name))
        print(asset(options.name).folder)


def list_assets() -> None:
    for entry in assets().values():
        about = [entry.kind, entry.state()]
        total = sum(file.size or 0 for file in entry.files)
        if total:
            about.insert(1, f"{total / 1e6:.1f} MB")
        print(f"{entry.name}  ({', '.join(about)})")
        print(f"  {entry.about}\n  {entry.upstream}; licence: {entry.licence}")
        # a source's first key is its kind, the value its address
        print("  from " + ", else ".join(" ".join(next(iter(source.items()))) for source in entry.sources))
        if any(file.md5 for file in entry.files):
            print("  checked by md5 only: its publisher gave no sha256")


def verify(name: str | None) -> None:
    """Hash one asset, or all that have been fetched; ``InputError`` if any of them is damaged."""
    chosen = [asset(name)] if name else [entry for entry in assets().values() if entry.folder.exists()]
    if not chosen:
        print("nothing has been fetched yet")
    damaged = []
    for entry in chosen:
        verdict = "; ".join(problems(entry))
        if verdict:
            damaged.append(entry.name)
        print(f"{entry.name}: {verdict or f'{len(entry.files)} files, all match the manifest'}")
    if damaged:
        again = f"fetch again: minisbert assets fetch {damaged[0]}"
        raise InputError(f"does not match the manifest: {', '.join(damaged)}; {again}")


if __name__ == "__main__":
    run_command(main)
