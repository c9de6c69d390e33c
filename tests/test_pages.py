"""What the pages name exists: links, files, options, objects, tables; and their examples run."""

import inspect
import json
import re
import runpy
import shlex
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import minisbert
from benchmarks import figures
from docs.tools import command_pages, draw_grader, set_address, site_index
from lessons.mistakes import __main__ as mistakes
from minisbert.__main__ import COMMANDS as NAMES
from minisbert.commands.encode import main as encode
from minisbert.commands.evaluate import main as evaluate
from minisbert.commands.search import main as search
from minisbert.training.named_heads import add_head
from tests.colbert import write_colbert
from tests.conftest import ROOT

PACKAGE = ROOT / "minisbert"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = sorted((ROOT / "docs").glob("*.md"))
COURSE = sorted((ROOT / "lessons").glob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "weights" / "README.md", *DOCS, *COURSE]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
FENCE = re.compile(r"^(`{3,}|\$\$).*?^\1\s*$", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
each_page = pytest.mark.parametrize("page", TEXTS)


def quoted(page: str) -> list[str]:
    """Return the pieces of code in a page's sentences and tables."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", TEXTS[page]))


# ---------------------------------------------------------------------------------- links and files


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_no_link_is_broken_and_every_file_that_is_named_exists(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text(encoding="utf-8")), link
    if page.startswith("lessons/"):  # whose files are named without their folder
        return
    named = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|toml)|[\w./-]+/)`", TEXTS[page])
    made = re.compile("(build|data|state|model|last|runs)/|.*NAME")  # by commands
    places = (ROOT, PACKAGE, ROOT / "weights")
    for name in named:
        assert made.match(name) or any((place / name).exists() for place in places), name


def test_the_index_names_every_page_once():
    lines = re.findall(r"^- \[.+\]\((\S+)\.html\): \S", site_index.llms(), re.MULTILINE)
    assert len(lines) == len(set(lines))
    for path in [*DOCS, *COURSE]:
        assert path.relative_to(ROOT).with_suffix("").as_posix() in lines


def test_the_readmes_first_sentence_is_not_its_badges():
    """Search engines and chats show it; badges stand above it once the project has an address."""
    readme = set_address.in_readme(README, "https://github.com/somebody/minisbert")
    assert site_index.first_sentence(readme).startswith("Sentence embeddings")


@each_page
def test_the_tables_of_a_page_are_those_of_docs_figures(page):
    assert figures.render(TEXTS[page]) == TEXTS[page], "python -m benchmarks.figures writes it anew"


def test_the_chart_shows_the_tables_of_docs_figures():
    """A table that is measured again would leave the picture on the page as it was."""
    drawn = figures.CHART.read_text(encoding="utf-8")
    assert drawn == figures.chart(), "python -m benchmarks.figures draws it anew"


def test_the_page_on_parity_counts_the_mistakes_that_the_tests_plant():
    """The README's "hundreds of planted bugs" leads to this table."""
    counted = "\n".join(mistakes.table())
    assert counted in TEXTS["docs/parity.md"], "python -m lessons.mistakes writes it anew"


def test_every_table_of_docs_figures_is_in_a_page():
    shown = []
    for text in TEXTS.values():
        shown += figures.PLACE.findall(text)
    expected = []
    for path in (ROOT / "docs" / "figures").glob("*.toml"):
        expected += [(path.stem, table) for table in figures.read(path.stem)["tables"]]
    assert sorted(shown) == sorted(expected)


def test_versions_given_twice_agree():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    version = r"ruff==[\d.]+"
    assert set(re.findall(version, hooks)) == set(re.findall(version, settings))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {minisbert.__version__}\n" in citation


# ----------------------------------------------------------------------- commands and their options

COMMANDS: list[tuple[str, str]] = []  # each with the words behind it
for text in TEXTS.values():
    text = text.replace("\\\n", "")  # a command over two lines
    COMMANDS += re.findall(r"-m ((?:minisbert|tests|lessons)\.[a-z_.]*[a-z])([^\n`#|]*)", text)
    COMMANDS += re.findall(rf"(minisbert (?:{'|'.join(NAMES)})\b)([^\n`#|]*)", text)
# Run by .ci/run; these commands have options of their own.
ELSEWHERE = ("tests.reference", "lessons.check")


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize(
    "command", sorted({name for name, _ in COMMANDS if not name.startswith(ELSEWHERE)})
)
def test_every_command_has_the_options_that_pages_give_it(command, monkeypatch, capsys):
    module, *name = command.split()
    monkeypatch.setattr(sys, "argv", [module, *name, "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    words = []
    for called, rest in COMMANDS:
        if called == command:
            words += shlex.split(rest)
    used = {word for word in words if word.startswith("--")}
    assert used <= set(OPTION.findall(capsys.readouterr().out))


def options(parser) -> set[str]:
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action.choices, dict):  # commands of a command
            for below in action.choices.values():
                found |= options(below)
    return found


FOREIGN = {
    "--resolution",
    "--upgrade",
    "--python",
    "--torch-backend",
    "--install",
    "--inplace",
    "--node_rank",
    "--nproc_per_node",
    "--nnodes",
}


def test_every_option_that_a_sentence_names_exists():
    """Of the command before it, of any command of the package, or in the source of a tool."""
    of_command = {name: options(command_pages.parser_of(name)) | {"--help-all"} for name in NAMES}
    existing = FOREIGN.union(*of_command.values())
    for folder in ("benchmarks", "lessons", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            existing |= set(re.findall(r"\"(--[a-z][\w-]*)\"", path.read_text(encoding="utf-8")))
    for page in TEXTS:
        for code in quoted(page):
            called = re.match(rf"(?:minisbert )?({'|'.join(NAMES)}) ", code)
            known = of_command[called[1]] if called else existing
            assert {*OPTION.findall(code)} <= known, f"{page}: {code}"


def test_the_page_of_commands_gives_defaults_and_no_secret(monkeypatch):
    page = command_pages.generated("encode")
    (row,) = [line for line in page.splitlines() if "`--batch-size BATCH_SIZE`" in line]
    assert row.endswith("(default: 32; on a GPU up to 512) |")
    monkeypatch.setenv("MINISBERT_API_KEY", "a-secret")
    assert "a-secret" not in command_pages.generated("serve")


def without_remark(line: str) -> str:
    """Return a command of a shell block without the remark behind it, and with single spaces."""
    return " ".join(line.split(" #")[0].split())


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_commands_shows_each_example_of_help_once(name):
    """On GitHub the page has no options, but it has what one can copy."""
    section = TEXTS["docs/commands.md"].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    shown = []
    for block in re.findall(r"^```bash\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        shown += block.splitlines()
    expected = command_pages.examples(command_pages.parser_of(name))
    assert [without_remark(line) for line in shown] == [without_remark(line) for line in expected]


# ----------------------------------------------------------------------------- objects and examples


def resolve(name: str) -> object:
    """Return the object that a dotted name means, in ``minisbert`` if it does not begin with it."""
    found = minisbert
    path = ["minisbert"]
    for part in name.removeprefix("minisbert.").split("."):
        path.append(part)
        if not hasattr(found, part):
            import_module(".".join(path))
        found = getattr(found, part)
    return found


@each_page
def test_every_object_that_a_page_names_exists(page):
    for code in quoted(page):
        dotted = re.match(r"((?:[A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)+)(?:\(|$)", code)
        if not dotted or code == "util.quantize_embeddings":  # sentence-transformers has that one
            continue
        name = dotted[1]
        ours = name.split(".")[0] in {"minisbert", *minisbert.__all__}
        if ours and not name.endswith((".py", ".md", ".toml")):
            assert resolve(name) is not None


DIRECTIVE = re.compile(r"^\.\. auto(class|function|module):: (\S+)$", re.MULTILINE)


def documented(kind: str) -> list[str]:
    """Return the objects of a kind that the site's reference shows."""
    blocks = "\n".join(site_index.DIRECTIVES.findall(TEXTS["docs/api.md"]))
    return [name for found, name in DIRECTIVE.findall(blocks) if found == kind]


def test_every_public_name_has_its_place_in_the_reference():
    """The package's own names, and the function that trains."""
    shown = {*documented("class"), *documented("function"), *documented("module")}
    assert {f"minisbert.{name}" for name in minisbert.__all__} <= shown
    assert "minisbert.train.train" in shown


@pytest.mark.parametrize("module", documented("module"))
def test_a_module_in_the_reference_says_what_is_public(module):
    """Sphinx would show its helpers too, and a reader would build on them."""
    names = import_module(module).__all__
    for name in names:
        found = resolve(f"{module}.{name}")
        assert found.__module__ == module
        assert found.__doc__
    helpers = {
        "as_columns",
        "candidate_pairs",
        "check_candidates",
        "check_encoder",
        "check_pair_model",
        "check_probabilities",
        "check_scores",
        "check_vectors",
        "class_names",
        "columns",
        "correlate",
        "encode_pairs",
        "load_rows",
        "numbers_of",
        "ranked_by",
        "row_scores",
    }
    assert not helpers & set(names)


def test_the_reference_has_every_option_of_load():
    """It said of five of them that they were those of another method."""
    rows = re.findall(r"^(\w+) {2,}\S", inspect.getdoc(minisbert.load), re.MULTILINE)
    assert rows == list(inspect.signature(minisbert.load).parameters)


@pytest.mark.weights
@pytest.mark.parametrize("example", [0, 1])
def test_the_examples_in_python_print_what_the_readme_shows(
    example, minilm, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[example]
    exec(code.replace("all-MiniLM-L6-v2", str(minilm)), {})
    assert f"\n# {capsys.readouterr().out}" in code


# An example that imports one of them needs it.
OPTIONAL = {"sentence_transformers", "faiss", "hnswlib", "matplotlib"}
# By integrations/test_engines.py, test_gallery.py and test_guides.py.
RUN_ELSEWHERE = {
    "docs/engines.md",
    "docs/gallery.md",
    "docs/hybrid-search.md",
    "docs/long-documents.md",
    "docs/vector-databases.md",
}


SCORED_PAIRS = """\
score\tsentence1\tsentence2
4.8\tA man plays a guitar.\tA man is playing a guitar.
3.0\tA dog runs in the park.\tA dog is outside.
0.4\tIt rains.\tThe stock market fell.
"""
# The last query's document is not in the corpus: no model finds it.
QUERIES = """\
{"_id": "q1", "text": "how do I keep snails away?"}
{"_id": "q2", "text": "who do I call about the heating?"}
{"_id": "q3", "text": "when can I take time off?"}
"""
PASSAGES = """\
{"_id": "garden", "text": "Slugs stay away from copper."}
{"_id": "empty", "text": " "}
{"_id": "house", "text": "The plumber's number is on the boiler."}
"""
QRELS = """\
q1\tgarden\t1
q2\thouse\t1
q3\twork\t1
"""


@pytest.fixture
def files_of_the_pages(tiny, tmp_path, monkeypatch, capsys):
    """The files that examples read, in the current folder; commands write the last two."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "qrels").mkdir()
    shutil.copy(ROOT / "docs" / "nine_sentences.txt", tmp_path / "docs")
    (tmp_path / "test.tsv").write_text(SCORED_PAIRS)
    (tmp_path / "queries.jsonl").write_text(QUERIES)
    (tmp_path / "corpus.jsonl").write_text(PASSAGES)
    (tmp_path / "passages.jsonl").write_text(PASSAGES)
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)

    model = ["--model", str(tiny), "--device", "cpu"]
    encode(["--file", "docs/nine_sentences.txt", "--out", "nine.safetensors", *model])
    capsys.readouterr()
    search(["passages.jsonl", "--query", "the plumber's number", "--json", *model])
    (tmp_path / "hits.json").write_text(capsys.readouterr().out)


@pytest.mark.usefixtures("files_of_the_pages")
@pytest.mark.parametrize(
    "page",
    [page for page, text in TEXTS.items() if "```python" in text and page not in RUN_ELSEWHERE],
)
def test_the_examples_run(page, tiny, tmp_path):
    missing: list[str] = []
    for code in re.findall(r"```python\n(.*?)```", TEXTS[page], re.DOTALL):
        libraries = {*re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)} & OPTIONAL
        if lacking := [name for name in libraries if find_spec(name) is None]:
            missing += lacking
            continue
        if "path/to/colbert" in code:
            code = code.replace("path/to/colbert", write_colbert(tmp_path / "colbert").as_posix())
        splade = ROOT / "tests" / "reference" / "architectures" / "tiny-splade"
        code = code.replace("path/to/splade", splade.as_posix())
        if "cross-encoder/ms-marco-MiniLM-L6-v2" in code:
            judge = add_head(minisbert.load(tiny), "cross-encoder", "binary")
            judge.save(tmp_path / "judge")
            judge_path = (tmp_path / "judge").as_posix()
            code = code.replace("cross-encoder/ms-marco-MiniLM-L6-v2", judge_path)
        exec(re.sub(r'"[^"\n]*all-MiniLM-L6-v2(/model)?"', f'"{tiny.as_posix()}"', code), {})
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; the other examples run")


@pytest.mark.slow
@pytest.mark.weights
def test_the_dev_scores_that_the_readmes_training_begins_with(minilm, stsb, capsys):
    """``commands/test_evaluate.py`` has those of the test split."""
    evaluate(["--model", str(minilm), "--split", "dev", "--json"])
    found = json.loads(capsys.readouterr().out)
    for name in ("spearman", "pearson"):
        score = 100 * found[f"{name}_cosine"]
        assert re.search(rf"^{name} +{score:.2f} -> ", README, re.MULTILINE)


@pytest.mark.slow
def test_the_picture_of_the_grader_is_a_run_of_it():
    """The lines that it shows, but for line numbers, which every edit of the lesson moves."""
    function, said = draw_grader.run()
    again = draw_grader.drawing(draw_grader.screen(function, said))
    drawn = draw_grader.PICTURE.read_text(encoding="utf-8")
    drawn = re.sub(r"line \d+", "line", drawn)
    assert drawn == re.sub(r"line \d+", "line", again), "run draw_grader.py"
