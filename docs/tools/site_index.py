"""What the site makes of docs/index.md: cards, kinds of pages, a list of all, links to the source.

A Sphinx extension. The groups of the index are the kinds: tutorial, how-to, reference, explanation.
"""

import html
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/index"
API = "docs/api"
COURSE = "lessons/README"  # the lessons stand below it
GROUP = re.compile(r"^## (.+)\n\n((?:- \[.*\n)+)", re.MULTILINE)
LINK = re.compile(r"^- \[(.+?)\]\(([^)]+)\)", re.MULTILINE)
# GitHub shows headings with lists below them, the site a grid of cards.
CARDS = re.compile(r"^<!-- cards -->\n(.*?)^<!-- end of cards -->\n", re.MULTILINE | re.DOTALL)
# What GitHub hides as a comment: directives of Sphinx.
DIRECTIVES = re.compile(r"<!-- api\n(.*?)\n-->", re.DOTALL)
# What only GitHub shows.
ON_GITHUB = re.compile(r"\n?<!-- github -->.*?<!-- end of github -->", re.DOTALL)
BADGES = re.compile(r"<!-- badges -->.*?<!-- /badges -->\n", re.DOTALL)
CAPTION = re.compile(
    r'<p[^>]*class="caption"[^>]*><span '
    r'class="caption-text">(.*?)</span></p>\s*(<ul.*?</ul>\s*)(?=<p|</div>)',
    re.DOTALL,
)
# In static/: the sign and lessons/drawings/meaning.svg, drawn by a browser on 1,200 by 630 pixels.
CARD = "card.png"
CARD_SHOWS = "Sentences become numbers, and similar sentences similar numbers"


def groups_of(root: Path = ROOT) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the lists of the index: the heading of each, and its documents with their titles."""
    path = root / f"{INDEX}.md"
    groups = []
    for caption, entries in GROUP.findall(path.read_text(encoding="utf-8")):
        documents = []
        for text, link in LINK.findall(entries):
            target = (path.parent / link).resolve().relative_to(root.resolve())
            documents.append((text, target.with_suffix("").as_posix()))
        groups.append((caption, documents))
    return groups


def kinds(root: Path = ROOT) -> dict[str, str]:
    """Return the group of the index that each page is in; a lesson is in that of its list."""
    found = {}
    for caption, pages in groups_of(root):
        for _, name in pages:
            found[name] = caption
            if name == COURSE:
                for path in sorted((root / "lessons").glob("[0-9]*.py")):
                    found[f"lessons/{path.stem}"] = caption
    return found


def text_of(root: Path, name: str) -> str:
    """Return the Markdown of a page, or the file of a lesson."""
    source = root / f"{name}.md"
    if not source.is_file():
        source = root / f"{name}.py"
    return source.read_text(encoding="utf-8").removeprefix("# %% [markdown]\n")


def title(text: str) -> str:
    return re.search(r"^(?:# )?# (.*)$", text, re.MULTILINE)[1].replace("`", "")


def first_sentence(text: str) -> str:
    """Return a page's first sentence, without links; of a lesson, the first after its header."""
    text = ON_GITHUB.sub("", BADGES.sub("", text))
    text = re.sub(r"^#(?: |$)", "", text, flags=re.MULTILINE)
    below = text.partition("\n\n")[2].strip()
    paragraph = " ".join(below.partition("\n\n")[0].split())
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    paragraph = re.sub(r"^Steps through .*? minutes\. ", "", paragraph).replace("**", "")
    return re.match(r".*?[.!?](?= |$)|.*", paragraph)[0]


def llms(root: Path = ROOT) -> str:
    """Return an index of the site for programs, in the form that llmstxt.org describes."""
    index = text_of(root, INDEX)
    lines = [
        "# minisbert",
        "",
        f"> {first_sentence(index)}",
        "",
        f"- [{title(index)}]({INDEX}.html): where to start",
    ]
    last = ""
    for name, caption in kinds(root).items():
        text = text_of(root, name)
        if caption != last:
            lines += ["", f"## {caption}", ""]
            last = caption
        lines.append(f"- [{title(text)}]({name}.html): {first_sentence(text)}")
    return "\n".join([*lines, ""])


def finish(
    app: "Sphinx", name: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """Give a page the tags from which a search engine or a chat takes description and picture."""
    root = Path(app.srcdir)
    about = first_sentence(text_of(root, name if name in kinds(root) else INDEX)).replace("`", "")
    tags = {
        "og:type": "website",
        "og:site_name": app.config.project,
        "og:title": html.unescape(re.sub("<[^>]*>", "", context.get("title", app.config.project))),
        "og:description": about,
    }
    if app.config.html_baseurl:  # both must be whole addresses
        tags["og:url"] = f"{app.config.html_baseurl}{name}.html"
        tags["og:image"] = f"{app.config.html_baseurl}_static/{CARD}"
        tags["og:image:alt"] = CARD_SHOWS
        tags["twitter:card"] = "summary_large_image"
    lines = []
    for key, value in tags.items():
        lines.append(f'<meta property="{key}" content="{html.escape(value)}">')
    lines.append(f'<meta name="description" content="{html.escape(about)}">')
    context["metatags"] = "\n".join([context.get("metatags", ""), *lines])
    context["fold"] = fold
    # Sphinx's lists of parameters have no terms, which a screen reader expects of such a list.
    if name == API:
        context["body"] = context["body"].replace("<dl>\n<dd>", '<dl role="presentation">\n<dd>')


def fold(sidebar: str) -> str:
    """Fold the sidebar's groups, except the page's own: nobody reads a list of eighty links."""

    def folded(group: re.Match) -> str:
        unfolded = " open" if 'class="current' in group[2] else ""
        summary = f"<summary>{group[1]}</summary>"
        return f'<details class="group"{unfolded}>\n{summary}\n{group[2]}</details>\n'

    # The theme's own arrows, which open the lessons, have no name for a screen reader.
    named = sidebar.replace("<summary>", '<summary aria-label="pages of this group">')
    return CAPTION.sub(folded, named)


def pages_address(repository: str) -> str:
    """Return where GitHub Pages shows the site of a repository; "" for other hosts."""
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(\.git)?/?", repository)
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def write_llms(app: "Sphinx", error: Exception | None) -> None:
    if error is None:
        (Path(app.outdir) / "llms.txt").write_text(llms(Path(app.srcdir)), encoding="utf-8")


def write_versions(app: "Sphinx", error: Exception | None) -> None:
    """Lead from the folder above to the newest version if the site's folder is named after one."""
    out = Path(app.outdir)
    if error is not None or out.name != app.config.release:
        return
    names = [path.parent.name for path in out.parent.glob("*/llms.txt")]
    # By number: 0.10 comes after 0.9.
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    links = "".join(f'<li><a href="{name}/{INDEX}.html">{name}</a></li>\n' for name in names)
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<title>minisbert: versions</title>",
        f'<meta http-equiv="refresh" content="0; url={names[0]}/{INDEX}.html">\n</head>',
        f"<body>\n<h1>minisbert</h1>\n<ul>\n{links}</ul>\n</body>\n</html>\n",
    ]
    (out.parent / "index.html").write_text("\n".join(lines), encoding="utf-8")


def as_grid(cards: re.Match) -> str:
    """Make a card of each heading and what is below it: one column on a phone, else three."""
    lines = ["::::{grid} 1 1 3 3", ":gutter: 3", ""]
    for card in re.split(r"^### ", cards[1], flags=re.MULTILINE)[1:]:
        heading, _, text = card.partition("\n")
        lines += [f":::{{grid-item-card}} {heading}", text.strip(), ":::", ""]
    return "\n".join([*lines, "::::", ""])


def mark(app: "Sphinx", name: str, source: list[str]) -> None:
    """Name a page's kind before its first line, and make the lists of contents.

    GitHub would show them as they are.
    """
    if name == INDEX:
        source[0] = CARDS.sub(as_grid, source[0])
        for caption, pages in groups_of(Path(app.srcdir)):
            entries = "\n".join(f"{text} </{page}>" for text, page in pages)
            source[0] += f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{entries}\n```\n"
    if name == COURSE:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
    if name == API:
        source[0] = DIRECTIVES.sub(r"```{eval-rst}\n\1\n```", source[0])
    # Badges are pictures of other hosts, and no page asks another host.
    source[0] = ON_GITHUB.sub("", BADGES.sub("", source[0]))
    kind = kinds(Path(app.srcdir)).get(name)
    if kind and name.startswith("docs/"):
        source[0] = re.sub(r"^(# .*\n\n)(?=[A-Z`])", rf"\1**{kind}** · ", source[0])
    repository = app.config.repository
    if repository and name == "docs/install":
        folder = repository.rstrip("/").rpartition("/")[2]
        clone = f"git clone {repository} && cd {folder}\n"
        source[0] = source[0].replace("```bash\n", f"```bash\n{clone}", 1)


def theme_options(repository: str) -> dict[str, Any]:
    """Return the theme's settings for an address; none without one, so that no link is dead."""
    if not repository:
        return {}
    return {
        "repository_url": repository,
        "repository_branch": "main",
        "path_to_docs": "",
        "use_repository_button": True,
        "use_edit_page_button": True,
        "use_issues_button": True,
    }


def setup(app: "Sphinx") -> dict[str, int | bool]:
    app.add_config_value("repository", "", "env", [str])
    app.connect("source-read", mark)
    app.connect("html-page-context", finish)
    app.connect("build-finished", write_llms)
    app.connect("build-finished", write_versions)  # after the list, by which it knows a version
    # The index decides what stands on the other pages.
    version = zlib.crc32((ROOT / f"{INDEX}.md").read_bytes())
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
