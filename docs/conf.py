"""Sphinx configuration of the site: the lessons, executed, and the pages of docs/.

The source directory is the repository, so that a link holds on the site as it does in the
repository:

    python -m sphinx -W -j 2 -c docs . build/site

Built into a folder named after the version, the site leaves a page beside it that leads to the
newest of all.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
sys.path.insert(0, str(ROOT / "docs" / "tools"))

from lesson_pages import LESSONS, origin  # noqa: E402
from site_index import pages_address, theme_options  # noqa: E402

import minisbert  # noqa: E402

# The repository's address, such as https://github.com/OWNER/NAME. With it the pages have "edit" and
# "clone", and the lessons buttons for Colab and Binder (docs/publishing.md); without it there is no
# dead link.
repository = ""

# What the kernels that run the lessons inherit: figures and answers apart from those of whoever
# builds the site.
os.environ["MINISBERT_FIGURES"] = str(BUILD / "figures")
os.environ["MINISBERT_MINE"] = str(BUILD / "answers")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the build and a kernel share the cores
(BUILD / "answers").mkdir(parents=True, exist_ok=True)

project = "minisbert"
release = minisbert.__version__
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "dev/LOG.md",
    "docs/*.md",
    "lessons/*.md",
    "lessons/[0-9][0-9]_*.py",
    "weights/README.md",
]
exclude_patterns = [".*", "build", "data", "runs", "lessons/mine"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "command_pages",
    "gallery_data",
    "lesson_pages",
    "play_data",
    "site_index",
]
highlight_language = "none"  # an indented block is a formula
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", ".*")
]  # types of torch and NumPy, whose documentation is on other hosts
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88  # a longer one has a line for each argument
autodoc_preserve_defaults = True  # as they are written, not as repr() has them

myst_heading_anchors = 3  # as on GitHub
myst_enable_extensions = ["colon_fence", "dollarmath", "html_image"]

nb_custom_formats = {
    ".py": [
        "lesson_pages.read_lesson",
        {"repository": repository or origin(ROOT), "launch": bool(repository)},
    ]
}
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 600  # seconds a cell
nb_merge_streams = True


def fingerprint() -> str:
    """Of everything that a lesson runs: outputs are kept per notebook, and the package must not
    change under them.
    """
    files = [
        path
        for folder in ("minisbert", "lessons", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    code = [
        path.read_bytes()
        for path in files
        if path not in LESSONS and not path.name.startswith("test_")
    ]
    return hashlib.sha256(b"\0".join(code)).hexdigest()[:16]


nb_execution_cache_path = str(BUILD / "executed" / fingerprint())

mathjax_path = "mathjax/tex-chtml.js"  # in _static, where lesson_pages puts it
# Their columns need the place of the contents.
WIDE = ["docs/index", "docs/interactive", "docs/gallery", "lessons/README"]
html_theme = "sphinx_book_theme"
html_title = "minisbert"
html_baseurl = pages_address(repository)  # a link's picture needs it
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
templates_path = ["templates"]
html_sidebars = {"**": ["home.html", "search-button-field.html", "navigation.html"]}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system is
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"}), ("tables.js", {"defer": "defer"})]
html_show_copyright = html_show_sphinx = False
html_copy_source = html_use_index = False
html_theme_options = {
    "footer_content_items": [],  # author and copyright
    "navbar_persistent": [],  # the sidebar has the search field
    "secondary_sidebar_items": {"**": ["page-toc.html"]} | {page: [] for page in WIDE},
    "show_toc_level": 2,
    "use_download_button": False,  # each lesson names its files
} | theme_options(repository)


ROW = re.compile(r"(\w+) {2,}(\S.*)")


def with_rows(lines: list[str]) -> list[str]:
    """Make a list of a table of arguments, whose lines have a name, spaces, and what it means."""
    found: list[str] = []
    for line in lines:
        row = ROW.fullmatch(line)
        inside = bool(found) and found[-1].startswith("* ``")
        if row:
            if found and not inside and found[-1]:
                found.append("")
            found.append(f"* ``{row[1]}``: {row[2]}")
        elif inside and line.startswith("      "):  # the row goes on
            found[-1] += f" {line.strip()}"
        else:
            if inside and line:
                found.append("")
            found.append(line)
    return found


def hide_passed_on(
    app: object, what: str, name: str, obj: object, options: object, signature: str, *_: object
) -> Any:
    """Show a class without arguments if it only passes on what it is given: ``load`` is how users
    make one.
    """
    if what == "class" and signature and signature.startswith("(*args"):
        return "", None
    return None


def plain_text(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Show a docstring as it is written: a bar is no substitution, and an indented block needs no
    mark before it.
    """
    shown: list[str] = []
    for line in with_rows(lines):
        indented = line.startswith(" ")
        before = shown[-1] if shown else ""
        if indented and before and not before.startswith(" "):
            shown += ["", "::", ""]
        elif line and not indented and before.startswith(" "):
            shown.append("")
        parts = line.split("``")  # every second one is code
        if not indented:
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        shown.append("``".join(parts))
    lines[:] = shown


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("autodoc-process-signature", hide_passed_on)
