"""What the site makes of docs/index.md: the kind of each page, a list of all for programs, links to the repository.

A Sphinx extension. The groups of the index are the kinds: tutorial, how-to, reference, explanation.
"""

import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
INDEX = "docs/index"
COURSE = "lessons/README"  # the lessons stand below it
TOCTREE = re.compile(r"^```\{toctree\}\n((?::.*\n)*)\n?((?:.+\n)*)```", re.MULTILINE)


def pages_of(page: str, root: Path = ROOT) -> list[tuple[str, list[str]]]:
    """Return the groups of a page's lists of contents: the caption of each, and the documents in their order."""
    path = root / f"{page}.md"
    groups = []
    for options, entries in TOCTREE.findall(path.read_text(encoding="utf-8")):
        names = []
        for line in entries.split("\n"):
            entry = re.sub(r"^.*<(.*)>$", r"\1", line.strip())  # Title <document>
            if entry:
                names += documents(path.parent, entry, root)
        caption = re.search(r":caption: (.*)", options)
        groups.append((caption[1] if caption else "", names))
    return groups


def documents(folder: Path, entry: str, root: Path) -> list[str]:
    """Return the documents that an entry of a list of contents names; it may be a pattern."""
    paths = [path for suffix in (".md", ".py") for path in folder.glob(f"{entry}{suffix}")]
    return [path.resolve().relative_to(root.resolve()).with_suffix("").as_posix() for path in sorted(paths)]


def kinds(root: Path = ROOT) -> dict[str, str]:
    """Return the group of the index that each page is in; pages below another one have its group."""
    found = {}
    for caption, names in pages_of(INDEX, root):
        for name in names:
            found[name] = caption
            if name == COURSE:
                below = documents(root / "lessons", "[0-9]*", root)
            elif (root / f"{name}.md").is_file():
                below = [lower for _, group in pages_of(name, root) for lower in group]
            else:
                below = []
            found |= dict.fromkeys(below, caption)
    return found


def title(text: str) -> str:
    return re.search(r"^(?:# )?# (.*)$", text, re.MULTILINE)[1].replace("`", "")


def first_sentence(text: str) -> str:
    """Return the first sentence below the heading, without links; of a lesson, the first after files and minutes."""
    below = re.sub(r"^#(?: |$)", "", text, flags=re.MULTILINE).partition("\n\n")[2].strip()
    paragraph = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(below.partition("\n\n")[0].split()))
    paragraph = re.sub(r"^Steps through .*? minutes\. ", "", paragraph).replace("**", "")
    return re.match(r".*?[.!?](?= |$)|.*", paragraph)[0]


def llms(root: Path = ROOT) -> str:
    """Return an index of the site for programs, in the form that llmstxt.org describes."""
    index = (root / f"{INDEX}.md").read_text(encoding="utf-8")
    lines = ["# minisbert", "", f"> {first_sentence(index)}", "", f"- [{title(index)}]({INDEX}.html): where to start"]
    last = ""
    for name, caption in kinds(root).items():
        source = next(path for path in (root / f"{name}.md", root / f"{name}.py") if path.is_file())
        text = source.read_text(encoding="utf-8").removeprefix("# %% [markdown]\n")
        if caption != last:
            lines += ["", f"## {caption}", ""]
            last = caption
        lines.append(f"- [{title(text)}]({name}.html): {first_sentence(text)}")
    return "\n".join([*lines, ""])


def write_llms(app: "Sphinx", error: Exception | None) -> None:
    if error is None:
        (Path(app.outdir) / "llms.txt").write_text(llms(Path(app.srcdir)), encoding="utf-8")


def write_versions(app: "Sphinx", error: Exception | None) -> None:
    """Lead from the folder above to the newest version, with a list of all, if the site's folder is named after one."""
    out = Path(app.outdir)
    if error is not None or out.name != app.config.release:
        return
    names = [path.parent.name for path in out.parent.glob("*/llms.txt")]
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)  # 0.10 after 0.9
    links = "".join(f'<li><a href="{name}/{INDEX}.html">{name}</a></li>\n' for name in names)
    lines = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>minisbert: versions</title>',
        f'<meta http-equiv="refresh" content="0; url={names[0]}/{INDEX}.html">\n</head>',
        f"<body>\n<h1>minisbert</h1>\n<ul>\n{links}</ul>\n</body>\n</html>\n",
    ]
    (out.parent / "index.html").write_text("\n".join(lines), encoding="utf-8")


def mark(app: "Sphinx", name: str, source: list[str]) -> None:
    """Name a page's kind before its first line, and put the lessons below the page that lists them."""
    if name == COURSE:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
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
    app.connect("build-finished", write_llms)
    app.connect("build-finished", write_versions)  # after the list, by which it knows a version
    version = zlib.crc32((ROOT / f"{INDEX}.md").read_bytes())  # it decides what stands on the other pages
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
