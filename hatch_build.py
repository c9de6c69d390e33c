"""The README as a package index shows it: its links point to the project's address.

In the repository they are relative, and hold in every clone and branch; on an index page they would
be dead. hatchling calls ``update`` when it builds the package.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The end of a Markdown link, or a whole picture, unless it points to an address of any scheme
# (``https:``, ``mailto:``) or to a heading. The last group is the link's title, if it has one.
RELATIVE = re.compile(
    r"(!\[[^\]]*)?\]\((?![A-Za-z][\w+.-]*:|#)([^)\s]+)(\s+\"[^\"]*\"|\s+'[^']*')?\)"
)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        # ``python -m docs.tools.set_address`` writes the address to pyproject.toml.
        address = metadata.get("urls", {}).get("Repository")
        if address:
            readme = with_whole_addresses(readme, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def with_whole_addresses(readme: str, address: str) -> str:
    """Replace the relative links of a page by addresses in the repository.

    ``[a](b.md)`` becomes ``[a](ADDRESS/blob/main/b.md)``, and the picture ``![a](b.svg)`` becomes
    ``![a](ADDRESS/raw/main/b.svg)``.
    """

    def whole(link: re.Match) -> str:
        """The link, or the whole picture, with an address in place of its path."""
        picture, path, title = link.groups(default="")
        if picture:
            return f"{picture}]({address}/raw/main/{path}{title})"
        return f"]({address}/blob/main/{path}{title})"

    return RELATIVE.sub(whole, readme)
