"""Write the project's address wherever it belongs: badges, links, settings, the citation.

    python -m docs.tools.set_address https://github.com/OWNER/NAME

It may be run again with another address, or with "" for none. Without one no page has a dead link:
the places below are empty.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from docs.tools.site_index import pages_address

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"https://[\w.-]+/[\w.-]+/[\w.-]*[\w-]")
# A place between two comments, in Markdown and in YAML or TOML; what is between them is replaced.
BADGES = re.compile(r"(<!-- badges -->\n)(?:.*\n)*?(<!-- /badges -->\n)")
BLOCK = re.compile(r"^( *)(# address\n)(?:.*\n)*?( *# /address\n)", re.MULTILINE)
CLONE = re.compile(r"Clone this repository(?: \(`git clone [^`]*`\))? and `cd` into it")
BIBTEX_END = re.compile(r"(  license = \{MIT\}),?\n(?:  url = \{.*\}\n)?")


def checked(address: str) -> str:
    """Return the address of a repository without ``.git`` or a slash at its end; "" is allowed."""
    address = address.removesuffix("/").removesuffix(".git")
    if address and not ADDRESS.fullmatch(address):
        raise ValueError(f"{address} is no address of a repository: https://HOST/OWNER/NAME")
    return address


def in_settings(text: str, address: str) -> str:
    """docs/conf.py: the one setting that the site reads."""
    return re.sub(r'^repository = ".*"$', f'repository = "{address}"', text, flags=re.MULTILINE)


def in_project(text: str, address: str) -> str:
    """pyproject.toml: the links beside the package in an index."""
    lines = []
    if address:
        lines.append("[project.urls]")
        if pages_address(address):
            lines.append(f'Documentation = "{pages_address(address)}"')
        lines.append(f'Repository = "{address}"')
        lines.append(f'Issues = "{address}/issues"')
        lines.append(f'Changelog = "{address}/blob/main/CHANGELOG.md"')
        lines.append("")
    return filled(text, lines)


def in_citation(text: str, address: str) -> str:
    """CITATION.cff: where the code and its site are."""
    lines = []
    if address:
        lines.append(f"repository-code: {address}")
        lines.append(f"url: {pages_address(address) or address}")
    return filled(text, lines)


def in_readme(text: str, address: str) -> str:
    """README.md: badges, the command that clones, and the address in BibTeX."""
    badges = "".join(f"{line}\n" for line in badge_lines(address))
    clone = "Clone this repository and `cd` into it"
    bibtex = "  license = {MIT}\n"
    if address:
        clone = f"Clone this repository (`git clone {address}`) and `cd` into it"
        bibtex = f"  license = {{MIT}},\n  url = {{{address}}}\n"
    text = BADGES.sub(lambda found: found[1] + badges + found[2], text)
    text = CLONE.sub(clone, text)
    return BIBTEX_END.sub(lambda found: bibtex, text)


def badge_lines(address: str) -> list[str]:
    """Return the badges, in Markdown; a host other than GitHub has neither tests nor a site."""
    if not address:
        return []
    shields = "https://img.shields.io/badge"
    lines = []
    site = pages_address(address)
    if site:
        tests = f"{address}/actions/workflows/tests.yml"
        owner_and_name = address.removeprefix("https://github.com/")
        colab = "https://colab.research.google.com"
        notebook = f"{colab}/github/{owner_and_name}/blob/notebooks/01_first_embedding.ipynb"
        lines.append(f"[![tests]({tests}/badge.svg)]({tests})")
        lines.append(f"[![site]({shields}/site-docs%20and%20playground-blue)]({site})")
        lines.append(f"[![open in Colab]({colab}/assets/colab-badge.svg)]({notebook})")
    lines.append(
        f"[![Python 3.11 to 3.14]({shields}/python-3.11%20to%203.14-blue)](pyproject.toml)"
    )
    lines.append(f"[![MIT licence]({shields}/licence-MIT-blue)](LICENSE)")
    return lines


def filled(text: str, lines: list[str]) -> str:
    """Put lines between each pair of comments, as far from the margin as these are."""

    def place(found: re.Match) -> str:
        indent = found[1]
        written = ""
        for line in lines:
            written += f"{indent}{line}".rstrip() + "\n"
        return indent + found[2] + written + found[3]

    return BLOCK.sub(place, text)


PLACES: dict[str, Callable[[str, str], str]] = {
    "docs/conf.py": in_settings,
    "pyproject.toml": in_project,
    "CITATION.cff": in_citation,
    "README.md": in_readme,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", help='https://github.com/OWNER/NAME, or "" for none')
    options = parser.parse_args()
    try:
        address = checked(options.address)
    except ValueError as error:
        parser.error(str(error))
    for name, write in PLACES.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        changed = write(text, address)
        if changed != text:
            path.write_text(changed, encoding="utf-8", newline="\n")
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
