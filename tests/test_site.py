"""The site: notebooks made from the lessons, and every page of ``build/site`` in a real browser.

The pages are tested as they are built (``pytest -m site`` after the README's command); without the
site, its extra or a browser these tests are skipped by name, and fail under CI=true.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.browser import BROWSER, PHONE, require
from tests.conftest import ROOT

SITE = ROOT / "build" / "site"
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
LISTED = ("minisbert/**/*.py", "lessons/**/[a-z]*.py", "docs/examples/*.py", "benchmarks/*.py")
SOURCES: set[Path] = set()
for pattern in LISTED:
    SOURCES |= set(ROOT.glob(pattern))
each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def lesson_pages() -> Iterator[ModuleType]:
    """``docs/tools/lesson_pages.py``, as Sphinx imports it."""
    for name in ("jupytext", "sphinx"):
        pytest.importorskip(name, reason="needs the site extra: pip install '.[site]'")
    sys.path.insert(0, str(ROOT / "docs" / "tools"))
    import lesson_pages

    yield lesson_pages
    sys.path.remove(str(ROOT / "docs" / "tools"))


@each_lesson
def test_a_notebook_holds_the_lesson_after_a_cell_that_installs_it(path, lesson_pages):
    import nbformat

    text = path.read_text(encoding="utf-8")
    book = lesson_pages.notebook(text, "https://example.org/course")
    nbformat.validate(book)
    assert "https://example.org/course" in book.cells[0].source
    written = "".join(cell.source for cell in book.cells[1:] if cell.cell_type == "code")
    code = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in code if line not in written] == []
    assert "](figures/" not in "".join(cell.source for cell in book.cells)
    # A lesson's page has the quiz with its answers folded; only sheet 30 has none.
    book = lesson_pages.read_lesson(text, "https://example.org/course")
    page = "".join(cell.source for cell in book.cells)
    questions = 0 if path.name.startswith("30") else 5
    assert page.count(":::{dropdown} Answer") == questions
    assert page.count("**right**") == questions
    assert " ?: " not in page, "what a hint fits is the grader's"


def test_only_a_notebook_sends_to_the_site_to_play(lesson_pages):
    """The lesson's page on the site has the thing to play with below the text."""
    text = (ROOT / "lessons" / "10_losses.py").read_text(encoding="utf-8")

    def words(book: Any) -> str:
        return " ".join(" ".join(cell.source for cell in book.cells).split())

    elsewhere = words(lesson_pages.notebook(text, "https://example.org/course"))
    assert elsewhere.count("(On the site") == 2
    page = words(lesson_pages.read_lesson(text, "https://example.org/course"))
    assert "On the site" not in page
    assert "15 degrees at best. " in page


def test_a_site_that_has_not_changed_can_be_built_again(lesson_pages):
    """Then Sphinx has no page to read, and asks for their order all the same."""
    names: list[str] = []
    lesson_pages.order_documents(SimpleNamespace(parallel=2), None, names)
    assert names == []


def test_a_lesson_may_have_no_picture(lesson_pages, monkeypatch, tmp_path):
    """An image that its code draws then has no description, and the build goes on."""
    from docutils import nodes
    from docutils.utils import new_document

    lesson = tmp_path / "lessons" / "90_new.py"
    lesson.parent.mkdir()
    lesson.write_text("# # Lesson 90", encoding="utf-8")
    monkeypatch.setattr(lesson_pages, "ROOT", tmp_path)
    monkeypatch.setattr(lesson_pages, "LESSONS", [lesson])
    page = new_document("page")
    page += nodes.image(uri="figures/90_new.png")
    lesson_pages.describe(None, page)
    assert "alt" not in page[0]


def test_a_notebook_names_the_origin_without_credentials_or_the_checkout(lesson_pages, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert lesson_pages.origin(tmp_path) == tmp_path.as_uri()
    for origin in ("https://name:secret@example.org/a/b.git", "git@example.org:a/b.git"):
        subprocess.run(["git", "-C", tmp_path, "config", "remote.origin.url", origin], check=True)
        assert lesson_pages.origin(tmp_path) == "https://example.org/a/b.git"


@pytest.mark.parametrize(
    ("folder", "installed", "commands"),
    [
        ("checkout/lessons", True, []),
        ("checkout", False, ["pip"]),
        ("elsewhere", True, ["git"]),
        ("elsewhere", False, ["git", "pip"]),
        ("beside", True, []),
    ],
)
def test_the_first_cell_fetches_and_installs_only_what_is_missing(
    folder, installed, commands, lesson_pages, tmp_path, monkeypatch
):
    homes = {"beside": "beside/minisbert-course", "elsewhere": "elsewhere/minisbert-course"}
    home = tmp_path / homes.get(folder, "checkout")
    for course in (tmp_path / "checkout", tmp_path / homes["beside"]):
        (course / "lessons").mkdir(parents=True)
        (course / "lessons" / "course.py").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed or None)
    monkeypatch.setattr("sys.path", ["kept"])
    ran = []
    monkeypatch.setattr("subprocess.run", lambda command, check: ran.append((command, check)))
    exec(lesson_pages.INSTALL, {})
    assert sys.path == [str(home / "lessons"), str(home), "kept"]
    assert ["git" if "git" in command else "pip" for command, _ in ran] == commands
    assert all(str(home) in command[-1] and check for command, check in ran)


def write_small_course(folder: Path, files: dict[str, str]) -> None:
    """The programs of docs/ with ``files`` in place of its pages and of the course."""
    shutil.copytree(
        ROOT / "docs",
        folder / "docs",
        ignore=shutil.ignore_patterns("*.md", "*.png", "__pycache__"),
    )
    (folder / "minisbert").mkdir()
    (folder / "lessons" / "grader").mkdir(parents=True)
    needed = {
        "lessons/course.py": "",
        "lessons/grader/cards.toml": "pieces = []\n",
        "lessons/grader/answers.toml": "exercises = []\n",
    }
    for file, content in (needed | files).items():
        (folder / file).write_text(content)


def build_course(folder: Path, *options: str) -> str:
    """Build the site of a small course into its folder ``built``; return what Sphinx prints."""
    command = [sys.executable, "-m", "sphinx", "-W", *options, "-c", "docs", ".", "built"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.site
@pytest.mark.parametrize("address", ["", "https://github.com/somebody/course"])
def test_the_repositorys_address_is_one_setting(address, tmp_path):
    """With it pages can be edited and cloned, and lessons opened elsewhere; without it, not."""
    require(find_spec("myst_nb"), "needs the site extra: pip install '.[site]'")
    text = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    conf, count = re.subn(
        '^repository = ".*"$', f'repository = "{address}"', text, flags=re.MULTILINE
    )
    assert count == 1
    files = {
        "docs/conf.py": conf,
        "docs/interactive.md": "# Play\n",
        "docs/install.md": "# Install\n\nFor all.\n\n```bash\npip install .\n```\n",
        "docs/index.md": (
            "# Front\n\nAll.\n\n## Start\n\n"
            "- [One](../lessons/01_first.py)\n- [Install](install.md)\n\n## Course\n\n- "
            "[Play](interactive.md)\n"
        ),
        "lessons/01_first.py": (
            "# %% [markdown]\n# # Lesson 01: first\n#\n# About 20 minutes.\n\n# %%\n6 * 7\n"
        ),
    }
    write_small_course(tmp_path, files)
    build_course(tmp_path, "-q", "-D", "nb_execution_mode=off")
    built = tmp_path / "built"
    lesson = (built / "lessons" / "01_first.html").read_text(encoding="utf-8")
    install = (built / "docs" / "install.html").read_text(encoding="utf-8")
    index = (built / "llms.txt").read_text(encoding="utf-8")
    expected = {
        "https://colab.research.google.com/github/somebody/course/blob/notebooks/01_first.ipynb": lesson,
        "https://mybinder.org/v2/gh/somebody/course/notebooks?labpath=01_first.ipynb": lesson,
        "https://github.com/somebody/course/edit/main/docs/install.md": install,
        "git clone https://github.com/somebody/course": re.sub("<[^>]*>", "", install),
        '"og:image" content="https://somebody.github.io/course/_static/card.png"': install,
    }
    assert [part in page for part, page in expected.items()] == [bool(address)] * 5
    always = (  # a link's preview; a group of the sidebar is open on its own pages
        '<meta property="og:title" content="Install">\n<meta property="og:description" '
        'content="For all.">',
        '<details class="group" open>\n<summary>Start</summary>',
        '<details class="group">\n<summary>Course</summary>',
    )
    assert [part for part in always if part not in install] == []
    assert "docs/install.html): For all." in index
    assert not (tmp_path / "index.html").exists(), "built is no version"
    book = json.loads((built / "lessons" / "01_first.ipynb").read_text(encoding="utf-8"))
    assert address in "".join(book["cells"][0]["source"])  # "" is in every text


@pytest.mark.site
def test_the_build_says_which_lesson_it_executes(tmp_path):
    """Minutes without a sign look like a failure; a lesson whose outputs are stored says nothing."""
    require(find_spec("myst_nb"), "needs the site extra: pip install '.[site]'")
    lesson = "# %% [markdown]\n# # Lesson {0}: one\n#\n# About 20 minutes.\n\n# %%\n6 * {1}\n"
    index = "# Front\n\nAll.\n\n## Start\n\n- [One](../lessons/01_one.py)\n"
    index += "- [Two](../lessons/02_one_more.py)\n- [A](a.md)\n- [B](b.md)\n- [C](c.md)\n"
    files = {
        "docs/index.md": index,
        "docs/a.md": "# A\n\nText.\n",
        "docs/b.md": "# B\n\nText.\n",
        "docs/c.md": "# C\n\nText.\n",
        "lessons/01_one.py": lesson.format("01", 1),
        "lessons/02_one_more.py": lesson.format("02", 2),
    }
    write_small_course(tmp_path, files)
    # Two processes read six pages; Sphinx shows what they log only when they are done.
    printed = build_course(tmp_path, "-j", "2").splitlines()
    assert printed.count("executing lesson 01 of 2: one") == 1
    assert printed.count("executing lesson 02 of 2: one more") == 1
    # If two lessons end in the same moment, jupyter-cache may lose one; a build by one process
    # stores it.
    build_course(tmp_path, "-E")
    assert "executing lesson" not in build_course(tmp_path, "-j", "2", "-E")


@pytest.mark.site
@pytest.mark.weights
def test_a_notebook_runs_in_an_empty_folder(lesson_pages, minilm, tmp_path, monkeypatch):
    """In a fresh kernel, from a clone that its first cell makes, as the build runs it."""
    import nbclient

    require((ROOT / ".git").exists(), "needs a git repository to clone")
    home = ROOT if minilm.is_relative_to(ROOT) else minilm.parents[1]
    monkeypatch.setenv("MINISBERT_HOME", str(home))
    text = (ROOT / "lessons" / "04_embeddings.py").read_text(encoding="utf-8")
    book = lesson_pages.notebook(text, ROOT.as_uri())
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, resources=resources).execute()
    figures = tmp_path / "minisbert-course" / "lessons" / "mine" / "figures"
    assert (figures / "04_embeddings.png").is_file()
    outputs = []
    for cell in book.cells:
        outputs += cell.get("outputs", [])
    assert any("image/png" in output.get("data", {}) for output in outputs)


class Links(HTMLParser):
    """The ids of a page and the addresses it points to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.addresses: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag in ("a", "img", "link", "script"):
            self.addresses += [found[key] for key in ("href", "src") if found.get(key)]


@pytest.fixture(scope="module")
def pages() -> dict[str, Links]:
    """Every page of the built site, by its path."""
    require((SITE / "index.html").is_file(), "the site is not built: the README has the command")
    found = sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)
    return {path.relative_to(SITE).as_posix(): Links(path) for path in found}


@pytest.mark.site
def test_the_api_shows_what_is_public(pages):
    shown = {name for name in pages["docs/api.html"].ids if name.startswith("minisbert.")}
    assert {
        "minisbert.SentenceEncoder.encode",
        "minisbert.util.semantic_search",
        "minisbert.load",
    } <= shown


# What people search for, and the page that treats it.
SEARCHED = (
    ("multi gpu", "docs/training"),
    ("multi node", "docs/training"),
    ("matryoshka embeddings", "docs/training"),
    ("distillation", "docs/training"),
    ("pretraining", "docs/training"),
    ("large batches", "docs/training"),
    ("hyperparameters", "docs/hyperparameters"),
    ("loss", "docs/which-loss"),
    ("prompts", "docs/which-model"),
    ("hard negatives", "docs/mine"),
    ("fine tune", "docs/tutorial-finetune"),
    ("semantic search", "docs/search"),
    ("quantization", "docs/search"),
    ("int8", "docs/search"),
    ("binary", "docs/search"),
    ("streaming", "docs/search"),
    ("sparse vectors", "docs/search"),
    ("ndcg", "docs/retrieval"),
    ("mrr", "docs/retrieval"),
    ("chunking", "docs/long-documents"),
    ("pdf", "docs/long-documents"),
    ("hybrid search", "docs/hybrid-search"),
    ("bm25", "docs/hybrid-search"),
    ("reciprocal rank fusion", "docs/hybrid-search"),
    ("pgvector", "docs/vector-databases"),
    ("qdrant", "docs/vector-databases"),
    ("chroma", "docs/vector-databases"),
    ("elasticsearch", "docs/vector-databases"),
    ("faiss", "docs/vector-databases"),
    ("openai compatible", "docs/http"),
    ("docker", "docs/http"),
    ("onnx runtime", "docs/serving"),
    ("threads", "docs/serving"),
    ("rerank", "docs/gallery"),
    ("clustering", "docs/gallery"),
    ("rag", "docs/gallery"),
    ("langchain", "docs/use-it-in"),
    ("splade", "docs/models"),
    ("colbert", "docs/models"),
    ("commercially", "docs/faq"),
    ("semicolons", "docs/faq"),
)


@pytest.fixture(scope="module")
def search_index(pages) -> dict[str, Any]:
    """What the site's search reads: for each stem of a word the numbers of its pages."""
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text[text.index("(") + 1 : text.rindex(")")])


@pytest.mark.site
@pytest.mark.parametrize(("query", "page"), SEARCHED)
def test_the_search_finds_the_words_of_the_field_in_the_headings_of_their_page(
    query, page, search_index
):
    """The search lists pages with a word in a heading before those that only mention it."""
    from sphinx.search.en import SearchEnglish

    stemmer = SearchEnglish({})
    number = search_index["docnames"].index(page)
    for word in query.split():
        found = search_index["titleterms"].get(stemmer.stem(word), [])
        if isinstance(found, int):  # the only page is not in a list
            found = [found]
        assert number in found, word


@pytest.mark.site
def test_every_internal_link_leads_to_a_file_and_an_anchor(pages):
    broken = []
    for page, links in pages.items():
        for address in links.addresses:
            url = urlsplit(urljoin(f"/{page}", address))
            if url.scheme:
                continue
            target = unquote(url.path).lstrip("/")
            if not (SITE / target).is_file():
                broken.append(f"{page}: {address}")
            elif (
                url.fragment and target in pages and unquote(url.fragment) not in pages[target].ids
            ):
                broken.append(f"{page}: {address}: no such anchor")
    assert broken == []


# requests that fail or go to another host, pictures without natural width or description
KINDS = (
    "console",
    "requests",
    "tracebacks",
    "pictures",
    "wide",
    "cut",
    "tables",
    "accessibility",
)
Findings = dict[str, list[str]]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(pages) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    require(BROWSER, "needs a browser: apt-get install chromium")
    require(find_spec("axe_playwright_python"), "needs the site extra: pip install '.[site]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


DESKTOP = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}
PICTURES = """() => [...document.images].filter(x => !x.naturalWidth || !x.alt || /\\.(png|svg)$/.test(x.alt))
                                       .map(x => `${x.currentSrc} "${x.alt}"`)"""
# Axe would look for imported style sheets in the wrong place.
AXE = {"resultTypes": ["violations"], "preload": False}
CUT = """() => [...document.querySelectorAll('.bd-article :is(pre, div.math)')]
               .filter(x => x.scrollWidth > x.clientWidth + 1).map(x => x.innerText.trim().slice(0, 80))"""
# Tables that scroll on a phone: the column that one looks for is out of sight.
TABLES = """() => [...document.querySelectorAll('.bd-article table')]
                  .filter(x => x.scrollWidth > x.parentElement.clientWidth + 1)
                  .map(x => x.innerText.trim().slice(0, 80))"""
TYPESET = "document.querySelectorAll('div.math:not(:has(mjx-math))').length == 0"
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def listen(tab: Any, server: str, found: Findings) -> None:
    """Note what the tab logs and requests from now on."""

    def note(kind: str, text: Any, wrong: bool = True) -> None:
        if wrong:
            found[kind].append(f"{tab.url}: {text}")

    tab.on("console", lambda told: note("console", told.text, told.type in ("error", "warning")))
    tab.on("pageerror", lambda error: note("console", error))

    def note_request(request: Any) -> None:
        note("requests", request.url, not request.url.startswith((server, "data:")))

    def note_response(answer: Any) -> None:
        note("requests", f"{answer.url} {answer.status}", answer.status >= 400)

    tab.on("request", note_request)
    tab.on("response", note_response)
    tab.on("requestfailed", lambda request: note("requests", f"{request.url} {request.failure}"))


@pytest.fixture(scope="module")
def findings(server, chromium, pages) -> Findings:
    """Every page on a phone in light colours, and on a desktop in dark ones (not listings)."""
    from axe_playwright_python.sync_playwright import Axe

    found: Findings = {kind: [] for kind in KINDS}
    listings = {page for page in pages if (ROOT / page).with_suffix(".py") in SOURCES}
    full = pages.keys() - listings - {"index.html"} | {"minisbert/core/bert.html"}
    for device, shown in ((PHONE, full | listings), (DESKTOP, full)):
        tab = chromium.new_context(**device).new_page()
        listen(tab, server, found)
        for page in sorted(shown):
            tab.goto(f"{server}/{page}", wait_until="load")
            tab.wait_for_function(TYPESET)
            where = f"{page}, {device['viewport']['width']} pixels"
            if "Traceback (most recent call last)" in tab.inner_text("body"):
                found["tracebacks"].append(where)
            found["pictures"] += [f"{where}: {picture}" for picture in tab.evaluate(PICTURES)]
            if (pixels := tab.evaluate(WIDER)) > 0:
                found["wide"].append(f"{where}: by {pixels} pixels")
            # Of a lesson: code, output or a formula that is wider than its box.
            if re.match(r"lessons/\d\d_", page):
                found["cut"] += [f"{where}: {text}" for text in tab.evaluate(CUT)]
            if device == PHONE and page.startswith("docs/"):
                found["tables"] += [f"{where}: {text}" for text in tab.evaluate(TABLES)]
            if page in full:
                for rule in Axe().run(tab, options=AXE).response["violations"]:
                    for node in rule["nodes"]:
                        wrong = f"{where}: {rule['id']}: {node['html'][:300]}"
                        found["accessibility"].append(wrong)
    return found


@pytest.mark.site
@pytest.mark.parametrize("kind", KINDS)
def test_the_browser_finds_nothing_wrong(kind, findings):
    found = findings[kind]
    assert not found, f"{len(found)}: " + "\n".join(found[:20])


@pytest.mark.site
def test_the_root_leads_to_the_front_page_and_the_search_finds_attention(server, chromium):
    tab = chromium.new_page()
    tab.goto(server)
    tab.wait_for_url("**/docs/index.html")
    assert tab.locator("article h2", has_text="Tutorials").is_visible()
    tab.goto(f"{server}/search.html?q=attention")
    tab.wait_for_selector("#search-results li a")
    tab.wait_for_function(
        "() => /lessons\\/05_attention/.test(document.querySelector('#search-results').innerHTML)"
    )


@pytest.mark.site
def test_hints_start_closed_and_open_by_keyboard(server, chromium):
    tab = chromium.new_page()
    tab.goto(f"{server}/lessons/05_attention.html")
    hints = tab.locator("details.sd-dropdown")
    assert {hint.get_attribute("open") for hint in hints.all()} == {None}
    hints.first.locator("summary").focus()
    for shown in (True, False):
        tab.keyboard.press("Enter")
        assert hints.first.locator(".sd-card-text").first.is_visible() == shown


@pytest.mark.site
def test_the_things_to_play_with_answer_to_the_keyboard(server, chromium):
    tab = chromium.new_context(**PHONE).new_page()
    tab.goto(f"{server}/docs/interactive.html")
    assert "After 200 steps" in tab.locator("#ci-say").inner_text()
    tab.locator("#ci-start").press("Enter")
    assert "After 0 steps" in tab.locator("#ci-say").inner_text()
    tab.locator("#wp-text").fill("Encoders!")
    tab.locator("#wp-end").press("Enter")
    tokens = tab.locator("#wp-tokens").inner_text().split()[::2]
    assert tokens == ["[CLS]", "en", "##code", "##rs", "!", "[SEP]"]
    tab.locator("#sm-scale").press("Home")  # scale 0: four real places share alike
    assert tab.locator("#sm-rows .play-number").all_inner_texts() == ["0.250"] * 4 + ["0.000"]
    assert "animal" in tab.locator("#at-say").inner_text()
    tab.locator("#tr-negative").press("End")
    assert "the gradient is 0" in tab.locator("#tr-say").inner_text()
    tab.locator("#ln-x0").fill("-10")
    assert "Mean 2.000, variance 50.000" in tab.locator("#ln-say").inner_text()
    tab.locator("#ci-200").press("Space")
    assert "After 200 steps" in tab.locator("#ci-say").inner_text()
    tab.locator("#by-kind").press("b")
    assert tab.locator("#by-rows th").last.inner_text() == "bits, 96 columns"
    assert tab.evaluate(WIDER) <= 0
    tab.goto(f"{server}/lessons/10_losses.html")  # where they stand too
    tab.locator("#ci-run").press("Enter")
    tab.wait_for_function(
        "document.querySelector('#ci-say').innerText.startsWith('After 500 steps')"
    )


@pytest.mark.site
def test_the_things_to_play_with_start_with_an_example_and_its_result(server, chromium):
    """Nobody presses the first button of an empty form."""
    tab = chromium.new_page()
    tab.goto(f"{server}/docs/interactive.html")
    tokens = " ".join(tab.locator("#wp-tokens").inner_text().split()[::2])
    assert tokens == "[CLS] the en ##code ##rs love snow ##men . [SEP]"
    assert tab.locator("#wp-tries li").count() == 11  # of "encoders": 7, 3 and 1
    assert tab.locator("#by-rows tr").count() == 4
    for picture in ("at-picture", "ln-picture", "ci-picture", "ci-curve", "tr-picture"):
        assert tab.locator(f"#{picture} text").count() > 4, f"{picture} has no numbers"


@pytest.mark.site
def test_every_slider_has_ticks_with_numbers(server, chromium):
    tab = chromium.new_page()
    tab.goto(f"{server}/docs/interactive.html")
    for slider in tab.locator("input[type=range]").all():
        ticks = slider.locator("xpath=following-sibling::*").locator("span").all_inner_texts()
        assert len(ticks) >= 4, slider.get_attribute("id")
        assert all(re.fullmatch(r"[\d.e-]+", tick) for tick in ticks), ticks


@pytest.mark.site
@pytest.mark.parametrize("page", ["docs/interactive", "docs/index", "lessons/05_attention"])
def test_the_map_of_attention_names_its_rows_and_columns_and_its_colours(page, server, chromium):
    tab = chromium.new_context(**PHONE).new_page()
    tab.goto(f"{server}/{page}.html")
    names = tab.locator("#at-picture .play-name").all_text_contents()
    sentence = "[CLS] the animal did not cross the street because it was too tired . [SEP]"
    assert " ".join(names[0::2]) == sentence
    assert " ".join(names[1::2]) == sentence
    legend = tab.locator(".play-legend").inner_text()
    assert "0: does not look" in legend
    assert "1: looks at nothing else" in legend
    tab.locator("#at-picture .play-square").nth(3 * 15).click()  # a row has 15
    assert '"did" looks most at' in tab.locator("#at-say").inner_text()
    assert "layer 3, head 1" in tab.locator("#at-picture").get_attribute("aria-label")


@pytest.mark.site
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_first_screen_has_a_map_to_play_with_and_the_three_cards(
    width, height, server, chromium
):
    tab = chromium.new_context(viewport={"width": width, "height": height}).new_page()
    tab.goto(f"{server}/docs/index.html")
    cards = tab.locator("article .sd-card")
    assert cards.count() == 3
    assert re.search(r"0\.69", tab.locator("#at-say").inner_text())
    for shown in (tab.locator("#play-attention"), *cards.all()):
        box = shown.bounding_box()
        assert box["y"] + box["height"] <= height, shown.inner_text()


@pytest.mark.site
def test_what_only_github_shows_is_not_on_the_site(pages):
    """There some pages say that the site has more, or show a picture of what one can play with."""
    for page, part in (
        ("docs/interactive", "version of this page"),
        ("docs/commands", "each section of this page"),
        ("docs/index", "05_attention.png"),
        ("README", "Build it with"),
    ):
        assert part in (ROOT / f"{page}.md").read_text(encoding="utf-8")
        shown = (SITE / f"{page}.html").read_text(encoding="utf-8")
        assert part not in shown, page
        assert "<h1>" in shown


@pytest.mark.site
def test_the_search_of_the_gallery_runs_in_the_browser_and_asks_no_other_host(server, chromium):
    from axe_playwright_python.sync_playwright import Axe

    found: Findings = {kind: [] for kind in KINDS}
    tab = chromium.new_context(**PHONE).new_page()
    listen(tab, server, found)
    tab.goto(f"{server}/docs/gallery.html")
    assert not tab.locator("#gs-query").is_visible()
    tab.locator("#gs-load").press("Enter")
    tab.wait_for_selector("#gs-query:visible")
    # The query that stands there asks for a comparison of two folders.
    assert "filecmp" in tab.locator("#gs-hits li").first.inner_text()
    tab.locator("#gs-query").fill("SMTP mail")
    assert "smtplib" in tab.locator("#gs-hits").inner_text()
    assert (SITE / "_static" / "docstrings.js").stat().st_size < 4_000_000
    assert tab.evaluate(WIDER) <= 0
    assert Axe().run(tab, options=AXE).response["violations"] == []
    assert found == {kind: [] for kind in KINDS}
