"""README.md, docs/ and the course's pages: links, files, commands, options, examples and citations are right."""

import json
import re
import runpy
import shlex
import shutil
import sys
from importlib.util import find_spec

import pytest

import minisbert
from docs import make_sources
from minisbert.__main__ import command_files
from minisbert.commands.evaluate import main as evaluate
from tests.conftest import ROOT
from tests.models.test_multi_vector_encoder import write as write_colbert
from tests.test_architecture import CHAPTERS

PACKAGE = ROOT / "minisbert"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "weights" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
OPTIONAL = {"sentence_transformers", "faiss", "hnswlib"}  # an example that imports one needs it

COMMANDS = [
    (module, rest)
    for text in TEXTS.values()
    for module, rest in [
        *re.findall(r"-m ((?:minisbert|tests|lessons)\.[a-z_.]*[a-z])([^\n`#|]*)", text),
        *re.findall(rf"(minisbert (?:{'|'.join(command_files())})\b)([^\n`#|]*)", text),
    ]
]
MODULES = sorted({module for module, _ in COMMANDS})


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("tests.reference")])  # CI runs it
def test_every_command_has_a_help_with_its_options(module, monkeypatch, capsys):
    module, *name = module.split()
    everything = "--help-all" if module == "minisbert.train" or name == ["train"] else "--help"
    monkeypatch.setattr(sys, "argv", [module, *name, everything])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    text = capsys.readouterr().out
    command = " ".join([module, *name])
    assert command.replace("minisbert train", "minisbert.train") in text
    words = [word for called, rest in COMMANDS if called == command for word in shlex.split(rest)]
    used = {word for word in words if word.startswith("--")}
    assert used <= set(re.findall(r"--[\w-]+", text))


def test_every_command_of_the_package_is_in_the_documentation():
    documented = {module.replace("minisbert.train", "minisbert train") for module in MODULES}
    assert {f"minisbert {name}" for name in command_files()} <= documented


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_no_link_is_broken_and_every_file_that_is_named_exists(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
    if page == "docs/parity.md":  # generated; quotes torch's files
        return
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|toml)|[\w./-]+/)`", TEXTS[page])
    made = re.compile("(data|state|model|last|runs)/|.*NAME")  # by commands
    places = (ROOT, PACKAGE, ROOT / "weights")
    assert [name for name in named if not made.match(name) and not any((p / name).exists() for p in places)] == []


def test_versions_given_twice_agree():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    ruff = re.findall(r"ruff==[\d.]+", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {*ruff} == {*re.findall(r"ruff==[\d.]+", settings)}
    assert f"version: {minisbert.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_readme_is_short_and_lists_the_chapters_of_the_book():
    assert len(README.splitlines()) <= 110
    rows = re.findall(r"^\| \[(\w+)\]\(minisbert/core/(\w+)\.py\) \|.*\| (\S+) \|$", README, re.MULTILINE)
    counts = [len((PACKAGE / "core" / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in CHAPTERS]
    assert rows == [(name, name, str(count)) for name, count in zip(CHAPTERS, counts, strict=True)]
    assert f"{sum(counts):,} lines in all" in README


@pytest.mark.weights
def test_the_example_in_python_prints_what_the_readme_shows(minilm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    exec(code.replace("all-MiniLM-L6-v2", str(minilm)), {})
    assert capsys.readouterr().out == shown


RUN_ELSEWHERE = {"docs/engines.md", "docs/gallery.md"}  # test_distributed_encode.py, with engines; test_gallery.py


@pytest.mark.parametrize(
    "page", [page for page, text in TEXTS.items() if "```python" in text and page not in RUN_ELSEWHERE]
)
def test_the_examples_run(page, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "nine_sentences.txt", tmp_path / "docs")
    missing: list[str] = []
    for code in re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL):
        libraries = {*re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)} & OPTIONAL
        if lacking := [name for name in libraries if find_spec(name) is None]:
            missing += lacking
            continue
        if "path/to/colbert" in code:
            code = code.replace("path/to/colbert", write_colbert(tmp_path / "colbert").as_posix())
        code = code.replace("path/to/splade", (ROOT / "tests/reference/architectures/tiny-splade").as_posix())
        exec(re.sub(r'"[^"\n]*all-MiniLM-L6-v2(/model)?"', f'"{tiny.as_posix()}"', code), {})
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; the other examples run")


ARCHITECTURE = TEXTS["docs/architecture.md"]
ROW = r"^\|.*`minisbert evaluate --split {}` \| ([\d.]+) \| ([\d.]+) \|"  # Spearman, Pearson


def test_the_zero_shot_scores_of_the_test_split():
    """``test_evaluate.py`` measures them."""
    assert re.findall(ROW.format("test"), ARCHITECTURE, re.MULTILINE) == [("82.03", "82.74")]
    for shown in ("82.74 -> ", "82.03 -> "):
        assert shown in README


@pytest.mark.slow
@pytest.mark.weights
def test_the_zero_shot_scores_of_the_dev_split(minilm, stsb, capsys):
    evaluate(["--model", str(minilm), "--split", "dev", "--json"])
    found = json.loads(capsys.readouterr().out)
    scores = {name: f"{100 * found[f'{name}_cosine']:.2f}" for name in ("spearman", "pearson")}
    assert re.findall(ROW.format("dev"), ARCHITECTURE, re.MULTILINE) == [tuple(scores.values())]
    for name, score in scores.items():
        assert f"{name:<19}{score} -> " in README


# ------------------------------------------- tests/provenance.md, docs/sources.md and the works that are cited

READING_LIST = ROOT / "docs" / "sources.md"
ITEMS = [(name, *item) for name, text in make_sources.texts().items() for item in text["items"]]
CITED = [
    path
    for folder, kind in (("minisbert", "*.py"), ("lessons", "*.py"), ("docs", "*.md"))
    for path in (ROOT / folder).rglob(kind)
    if path != READING_LIST and "mine" not in path.parts
]
AUTHORS = r"((?:[A-Z][^\W\d_]+(?:, | and | & ))*[A-Z][^\W\d_]+(?: et al\.)?),? \(?((?:19|20)\d\d)\b"
NO_AUTHORS = {"DBF", "Face", "OpenVINO", "March", "Xiv"}  # the last of arXiv and a number


def words(text: str) -> str:
    return " ".join(text.split())


def test_each_item_of_the_five_texts_is_where_it_says_and_the_page_has_it():
    for name, lines, what, status, path, anchor in ITEMS:
        assert status in make_sources.STATUSES, what
        assert re.fullmatch(r"\d+(-\d+)?(, \d+(-\d+)?)*", lines), f"{name}: {what}"
        if status == "missing":
            assert not path + anchor, what
        else:
            assert words(anchor) in words((ROOT / path).read_text(encoding="utf-8")), f"{name}: {what}"
    page = make_sources.PAGE.read_text(encoding="utf-8")
    assert make_sources.replaced(page) == page, "run python docs/make_sources.py"
    assert sum(status == "out" for _, _, _, status, _, _ in ITEMS) <= 3


def test_every_cited_work_stands_in_the_reading_list():
    lines = READING_LIST.read_text(encoding="utf-8").replace("é", "e").splitlines()
    works = {
        (re.split(", | and | & | et al", authors)[0], year)
        for path in CITED
        for authors, year in re.findall(AUTHORS, words(path.read_text(encoding="utf-8").replace("\n#", "\n")))
    }
    works = {(author, year) for author, year in works if author not in NO_AUTHORS}
    assert len(works) > 40, "else the pattern finds no citations"
    assert [work for work in sorted(works) if not any(all(part in line for part in work) for line in lines)] == []
