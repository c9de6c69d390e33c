"""What the site adds to the lessons: notebooks, hints, links to lines, source pages.

A Sphinx extension, and the reader that makes a notebook of a lesson; jupytext does the conversion.
"""

import ast
import base64
import logging
import re
import shutil
import subprocess
import sys
import tomllib
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jupytext
from docutils import nodes
from jupyter_cache.cache.main import JupyterCacheBase
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.parallel import make_chunks

from lessons.quiz import questions
from lessons.slides import OBJECTIVES, objectives

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
SOURCE_FOLDERS = (
    "minisbert/**/*.py",
    "lessons/**/[a-z]*.py",
    "docs/examples/*.py",
    "benchmarks/*.py",
)
SOURCES: list[Path] = []
for pattern in SOURCE_FOLDERS:
    SOURCES += sorted(ROOT.glob(pattern))
CARDS = ROOT / "lessons" / "grader" / "cards.toml"
ANSWERS = CARDS.with_name("answers.toml")
DRAWING = re.compile(r"\]\((drawings/\w+\.svg)\)")
FORMULAS = Path(__file__).with_name("formulas.toml")
PLAY = FORMULAS.with_name("play.html")
MARK = re.compile(r"^<!-- play: (\w+) -->\n", re.MULTILINE)
LONGEST = (13, 20, 18, 24, 19, 27, 21, 26)  # lessons by the seconds of CPU that they take
NOTEBOOKS = "notebooks"  # a branch: Colab and Binder open what a repository holds
# "(On the site you can [cut texts of your own](../docs/interactive.md#...).)"
ON_THE_SITE = re.compile(r"\s*\(On\s+the\s+site\s(?:[^()]|\([^()]*\))*\)")
PICTURE = re.compile(r"\n*!\[([^\]]*)\]\(figures/[^)]*\)")  # of a lesson, with its description

INSTALL = """\
# Outside a checkout of the course, this fetches one and installs it. Without a GPU, install
# PyTorch's CPU build first.
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

places = [Path.cwd(), *Path.cwd().parents, Path("minisbert-course").resolve()]
checkouts = [place for place in places if (place / "lessons" / "course.py").is_file()]
course = checkouts[0] if checkouts else places[-1]
if not course.is_dir():
    subprocess.run(["git", "clone", "--depth", "1", "REPOSITORY", str(course)], check=True)
if find_spec("minisbert") is None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--editable"]
    subprocess.run([*pip, f"{course}[plots]"], check=True)
sys.path[:0] = [str(course / "lessons"), str(course)]"""


def origin(root: Path) -> str:
    """Where the notebooks clone the course from: the checkout's origin, without credentials."""
    command = ["git", "-C", str(root), "config", "--get", "remote.origin.url"]
    url = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    url = re.sub(r"^git@([^:/]+):", r"https://\1/", url)
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url) or root.as_uri()


# ---------------------------------------------------------------------------------------- notebooks


def formula_table() -> list[dict[str, Any]]:
    return tomllib.loads(FORMULAS.read_text(encoding="utf-8"))["formulas"]


def typeset(text: str, lesson: int, page: bool) -> str:
    """Markdown of a lesson with its formulas in TeX; on a page, with what there is to play with."""
    for formula in formula_table():
        if formula["lesson"] != lesson:
            continue
        pattern = rf"^ {{4}} *{re.escape(formula['starts'])}.*(?:\n {{4}}.*)*"
        match = re.search(pattern, text, re.MULTILINE)
        if match is None:  # The formula is in another cell.
            continue
        block = match[0]
        if "tex" in formula:
            block = f"$$\n{formula['tex'].strip()}\n$$"
        if page:
            for name in formula.get("play", []):
                block += f"\n\n{playthings()[name]}"
        text = text[: match.start()] + block + text[match.end() :]
    if 'class="play"' in text:
        text += f"\n\n{playthings()['scripts']}"
    return text


def number_of(text: str) -> int:
    """The number in the title of a lesson."""
    return int(re.search(r"^# # (?:Lesson|Sheet) (\d+)", text, re.MULTILINE)[1])


def notebook(text: str, repository: str, page: bool = False) -> NotebookNode:
    """A lesson as a notebook that runs anywhere.

    The picture in git is left out, since the cell that draws it shows it; its description goes to
    that cell. Answers are folded, below the cells that ask for guesses. A ``page`` of the site has
    more than a notebook can hold.
    """
    book = jupytext.reads(text, fmt="py:percent")
    book.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
    }
    lesson = number_of(text)
    description = ""
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = typeset(cell.source, lesson, page)
            picture = PICTURE.search(cell.source)
            if picture:
                description = picture[1]
                cell.source = PICTURE.sub("", cell.source)
        elif re.search(r"^figure\(", cell.source, re.MULTILINE):
            cell.metadata["mystnb"] = {"image": {"alt": description}}
        if re.search(r"^guess\.answer\(", cell.source, re.MULTILINE):
            cell.metadata |= {
                "tags": ["hide-cell"],
                "mystnb": {"code_prompt_show": "Show the answer"},
            }
    install = new_code_cell(
        INSTALL.replace("REPOSITORY", repository), metadata={"tags": ["remove-cell"]}
    )
    book.cells.insert(0, install)
    for number, cell in enumerate(book.cells):  # nbformat draws them at random
        cell["id"] = f"cell-{number}"
    return book


def launch_links(repository: str, stem: str) -> str:
    """Markdown with links that open a lesson in Colab and Binder, from the branch of notebooks."""
    name = re.sub(r"^https?://[^/]*/|\.git$|/$", "", repository)
    colab = f"https://colab.research.google.com/github/{name}/blob/{NOTEBOOKS}/{stem}.ipynb"
    binder = f"https://mybinder.org/v2/gh/{name}/{NOTEBOOKS}?labpath={stem}.ipynb"
    return f" Or open it in [Colab]({colab}) or [Binder]({binder})."


def read_lesson(text: str, repository: str, launch: bool = False) -> NotebookNode:
    """The notebook of a lesson; with ``launch`` there are links that open it elsewhere.

    Objectives and links to its files come first, quiz and hints last; answers are folded below the
    exercises.
    """
    book = notebook(text, repository, page=True)
    lesson = number_of(text)
    stem = next(path.stem for path in LESSONS if int(path.stem[:2]) == lesson)
    title = book.cells[1]
    heading, about, *more = title.source.split("\n\n")
    goals = "\n".join(f"- {line}" for line in objectives(lesson))
    title.source = "\n\n".join([heading, about, "**After this lesson you can**", goals, *more])
    title.source += (
        f'\n\nDownload it as a <a href="{stem}.ipynb" download>notebook</a> '
        f'or as the <a href="{stem}.py" download>Python file</a> that this page is made from.'
    )
    if launch:
        title.source += launch_links(repository, stem)
    for cell in book.cells:
        if cell.cell_type == "markdown":
            # On the site what one can play with stands below.
            cell.source = answered(ON_THE_SITE.sub("", cell.source), lesson)
    asked = quiz(lesson)
    if lesson == 0:  # it says who should read this lesson
        return NotebookNode(book | {"cells": [*book.cells[:2], *asked, *book.cells[2:]]})
    return NotebookNode(book | {"cells": [*book.cells, *asked, *hints(lesson)]})


def quiz(lesson: int) -> list[NotebookNode]:
    """The lesson's quiz: each question, its choices, and folded why each is right or wrong."""
    lines = []
    for question in questions().get(lesson, []):
        lines += [f"**{int(question.at[3:])}.** {with_code(question.ask)}", ""]
        for number, choice in enumerate(question.choices, start=1):
            lines.append(f"{number}. {with_code(choice)}")
        lines += ["", ":::{dropdown} Answer"]
        for number, reason in enumerate(question.why, start=1):
            verdict = "**right**" if number == question.right else "wrong"
            lines.append(f"{number}. {verdict}: {with_code(reason)}")
        lines += ["", f"*{question.read}* has more about it.", ":::", ""]
    if not lines:
        return []
    return [new_markdown_cell("\n".join(["## Quiz", "", *lines]))]


def answered(text: str, lesson: int) -> str:
    """Markdown with the hint and the answer of each exercise below it, in dropdowns."""
    for exercise in tomllib.loads(ANSWERS.read_text(encoding="utf-8"))["exercises"]:
        chapter, _, number = exercise["at"].partition(".")
        if int(chapter) != lesson:
            continue
        task = re.search(rf"^\*\*Exercise {number}\.\*\*.*(?:\n.+)*", text, re.MULTILINE)
        if task is None:  # The exercise is in another cell.
            continue
        folded = ""
        for key in ("hint", "answer"):
            title = f"Exercise {number}: {key}"
            folded += f"\n\n:::{{dropdown}} {title}\n{with_code(exercise[key])}\n:::"
        text = text[: task.end()] + folded + text[task.end() :]
    return text


@cache
def playthings() -> dict[str, str]:
    """The HTML of each thing to play with, by name; ``scripts`` are those of the lessons."""
    text = PLAY.read_text(encoding="utf-8")
    blocks = re.findall(r'^(<div class="play" id="play-(\w+)">\n(?:.+\n)+)', text, re.MULTILINE)
    html = {name: block for block, name in blocks}
    html["scripts"] = re.search(r"^(?:<script .*\n)+", text, re.MULTILINE)[0]
    # The front page has the attention alone, with less data.
    front = html["attention"].replace('class="play"', 'class="play front"')
    front = front.replace("<label>Sentence <select", '<label><select aria-label="Sentence"')
    html["front"] = front + html["scripts"].replace("play_data.js", "front_data.js")
    return html


def put_playthings(app: Sphinx, name: str, source: list[str]) -> None:
    """Put what there is to play with at its mark, a comment that GitHub does not show."""
    source[0] = MARK.sub(lambda mark: playthings()[mark[1]], source[0])


def hints(lesson: int) -> list[NotebookNode]:
    """The lesson's pieces, each hint folded and without its pattern; no cell without pieces."""
    cards = tomllib.loads(CARDS.read_text(encoding="utf-8"))["pieces"]
    lines = []
    for card in cards:
        if card["lesson"] != lesson:
            continue
        lines += [f"### `{card['master']}`", "", plain(card["what_for"])]
        lines += [f"Level {card['level']} of 3, about {card['minutes']} minutes.", ""]
        for number, hint in enumerate(card["hints"], start=1):
            text = plain(hint.rpartition(" ?: ")[2])
            lines += [f":::{{dropdown}} Hint {number} of {len(card['hints'])}", text, ":::", ""]
    if not lines:
        return []
    start = f"`python -m lessons.check start {lesson:02}` creates the empty functions, "
    start += f"`run {lesson:02}` grades yours."
    return [new_markdown_cell("\n".join(["## Pieces and hints", "", start, "", *lines]))]


def with_code(text: str) -> str:
    """``text`` as it is written, but with what stands between backquotes as code."""
    parts = text.split("`")
    parts[::2] = [plain(part) for part in parts[::2]]  # the others stand between backquotes
    return "`".join(parts)


def plain(text: str) -> str:
    """Markdown that shows ``text`` as it is written."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def embed_drawings(book: NotebookNode) -> NotebookNode:
    """Drawings become part of the text, since a notebook may be opened far from the course."""
    for cell in book.cells:
        for name in DRAWING.findall(cell.source):
            data = base64.b64encode((ROOT / "lessons" / name).read_bytes()).decode("ascii")
            cell.source = cell.source.replace(f"]({name})", f"](data:image/svg+xml;base64,{data})")
    return book


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write each lesson as ``.ipynb`` and as it is, beside its page."""
    if error is None:
        folder = Path(app.outdir) / "lessons"
        for path in LESSONS:
            text = path.read_text(encoding="utf-8")
            book = embed_drawings(notebook(text, app.config.repository or origin(ROOT)))
            jupytext.write(book, folder / f"{path.stem}.ipynb")
            (folder / path.name).write_text(text, encoding="utf-8")


def order_documents(app: Sphinx, env: Any, names: list[str]) -> None:
    """Give each process of ``-j 2`` half of the lessons' work.

    Sphinx hands out names in batches, in this order.
    """
    if not names:  # Nothing has changed since the last build.
        return

    def place(name: str) -> int:
        number = int(re.search(r"/(\d\d)_", name)[1])
        if number in LONGEST:
            return LONGEST.index(number)
        return len(LONGEST)

    lessons = sorted((name for name in names if re.match(r"lessons/\d\d_", name)), key=place)
    others = [name for name in names if name not in lessons]
    # The first takes the longest, the second the next two, the first the next two, ...
    first = lessons[0::4] + lessons[3::4]
    second = lessons[1::4] + lessons[2::4]
    # Pages without code fill the first batch, so that the second begins with the second half.
    fill = max(0, len(make_chunks(names, app.parallel)[0]) - len(first))
    names[:] = first + others[:fill] + second + others[fill:]


def create_cache(app: Sphinx, env: Any, names: list[str]) -> None:
    """Create the database of executed lessons once: two processes that create it at once fail."""
    JupyterCacheBase(app.config.nb_execution_cache_path).db.dispose()


class Progress(logging.Handler):
    """Prints which lesson is executed, when it starts.

    Sphinx shows what a process of ``-j 2`` logs only when that process has read all of its pages.
    """

    def __init__(self, lesson: Path) -> None:
        super().__init__(logging.INFO)
        number, _, name = lesson.stem.partition("_")
        self.line = f"executing lesson {number} of {len(LESSONS)}: {name.replace('_', ' ')}"

    def emit(self, record: logging.LogRecord) -> None:
        # myst-nb logs it only if it has no outputs of this lesson to take.
        if record.levelno == logging.INFO and str(record.msg).startswith("Executing notebook"):
            # A terminal has Sphinx's own progress in the line where the cursor stands.
            start = "\r\x1b[K" if sys.stdout.isatty() else ""
            print(f"{start}{self.line}", flush=True)


def tell_progress(app: Sphinx) -> None:
    """Print a line for each lesson that is executed, but not if the build is quiet (``-q``)."""
    for lesson in LESSONS:
        log = logging.getLogger(f"sphinx.mystnb-{page_of(lesson)}")
        log.handlers.clear()  # of a build before this one in the same process
        if not app.quiet:
            log.addHandler(Progress(lesson))


def write_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy MathJax and its fonts from the package.

    Its Sphinx extension would keep lessons from running side by side.
    """
    if error is None:
        package = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
        target = Path(app.outdir) / "_static" / "mathjax"
        fonts = Path("output", "chtml", "fonts")
        shutil.copytree(package / fonts, target / fonts, dirs_exist_ok=True)
        shutil.copyfile(package / "tex-chtml.js", target / "tex-chtml.js")


# ---------------------------------------------------------------------------------- links to source


def page_of(path: Path) -> str:
    """The name of a source file's page: ``minisbert/core/bert``."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


def definitions(path: Path) -> dict[str, int]:
    """The line of each function, class (``Layer``) and method (``Layer.forward``) of a file."""
    lines = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines[node.name] = node.lineno
        if isinstance(node, ast.ClassDef):
            for child in node.body:
                if isinstance(child, ast.FunctionDef):
                    lines[f"{node.name}.{child.name}"] = child.lineno
    return lines


@cache
def definition_links() -> dict[str, str]:
    """The line of each function and class that a piece may be, by ``bert.attention`` and so on."""
    package = ROOT / "minisbert"

    def rank(path: Path) -> int:
        if path.is_relative_to(package / "core"):
            return 2
        if path.is_relative_to(package):
            return 1
        return 0

    # The last of two that share a name is taken: the book's before the package's before a lesson's.
    links = {}
    for path in sorted(SOURCES, key=rank):
        for name, line in definitions(path).items():
            links[f"{path.stem}.{name}"] = f"{page_of(path)}#L-{line}"
    return links


def link_targets(doctree: nodes.document, names: dict[str, str], is_lesson: bool) -> dict[str, str]:
    """The page, and maybe line, of each text that becomes a link; ``names`` are files' pages."""
    targets = dict(names)
    for name, page in names.items():
        targets[name.removeprefix("minisbert/")] = page
    targets |= definition_links()
    if is_lesson:
        first = next(iter(doctree.findall(nodes.paragraph)))  # "Steps through ..."
        for literal in first.findall(nodes.literal):
            name = literal.astext()
            if name in names:
                for key, line in definitions(ROOT / name).items():
                    targets.setdefault(key, f"{names[name]}#L-{line}")
    return targets


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Link names of files to their pages and, in a lesson, names of functions to their lines."""
    names = {path.relative_to(ROOT).as_posix(): page_of(path) for path in SOURCES}
    is_lesson = re.match(r"lessons/\d\d_", app.env.docname) is not None
    targets = link_targets(doctree, names, is_lesson)

    def link(target: str, content: nodes.Node) -> nodes.reference:
        page, hash_, line = target.partition("#")
        uri = app.builder.get_relative_uri(app.env.docname, page) + hash_ + line
        return nodes.reference("", "", content.deepcopy(), internal=True, refuri=uri)

    for node in list(doctree.findall(nodes.literal)):
        if node.astext() in targets and isinstance(node.parent, nodes.paragraph | nodes.title):
            node.replace_self(link(targets[node.astext()], node))
    # Links such as [encoder.py](../minisbert/core/encoder.py).
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node["refdomain"] == "doc" and node["reftarget"] in names.values():
            node.replace_self(link(node["reftarget"], node[0]))


def source_pages(app: Sphinx) -> Any:
    """A page for each source file, with an anchor for each line, and ``/`` for the front page."""
    for path in SOURCES:
        code = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        shown = app.builder.highlighter.highlight_block(
            code, "python", linenos="inline", linespans="L"
        )
        yield page_of(path), {"title": name, "body": f"<h1>{name}</h1>{shown}"}, "page.html"
    front = f"{app.config.root_doc}.html"
    lead = f'<meta http-equiv="refresh" content="0; url={front}">'
    body = f'<a href="{front}">Front page</a>'
    yield "index", {"title": "minisbert", "metatags": lead, "body": body}, "page.html"


def leave_out_paths(app: Sphinx, doctree: nodes.document) -> None:
    """Remove the line that says where a figure was saved, since the page shows the figure."""
    for block in list(doctree.findall(nodes.literal_block)):
        kept, count = re.subn(r"^figure: .*\.png\n?", "", block.astext(), flags=re.MULTILINE)
        if count and kept.strip():
            block.rawsource = kept
            block[:] = [nodes.Text(kept)]
        elif count:
            block.parent.remove(block)


def describe(app: Sphinx, doctree: nodes.document) -> None:
    """Give screen readers a description of each picture and a name for a nameless column."""
    for image in doctree.findall(nodes.image):
        lesson = ROOT / "lessons" / f"{Path(image['uri']).stem}.py"
        if not image.get("alt") and lesson in LESSONS:
            picture = PICTURE.search(lesson.read_text(encoding="utf-8"))
            if picture:
                image["alt"] = picture[1]
        # A drawing has dark colours of its own, which the theme need not mend.
        if image["uri"].endswith(".svg"):
            image["classes"].append("dark-light")
    for head in doctree.findall(nodes.thead):
        for entry in head.findall(nodes.entry):
            if not entry.astext():
                entry += nodes.inline("", "row", classes=["visually-hidden"])


def setup(app: Sphinx) -> dict[str, int | bool]:
    app.connect("env-before-read-docs", order_documents)
    app.connect("env-before-read-docs", create_cache)
    app.connect("builder-inited", tell_progress)
    app.connect("doctree-read", link_sources)
    app.connect("doctree-read", leave_out_paths)
    app.connect("doctree-read", describe)
    app.connect("html-collect-pages", source_pages)
    app.connect("source-read", put_playthings)
    app.connect("build-finished", write_notebooks)
    app.connect("build-finished", write_mathjax)
    files = [Path(__file__), OBJECTIVES, FORMULAS, PLAY, *sorted(CARDS.parent.glob("*.toml"))]
    version = 0
    for file in files:
        version = zlib.crc32(file.read_bytes(), version)
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
