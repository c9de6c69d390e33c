"""The documentation as a whole: its size, the kind and the reader of each page, and what its words refer to.

``test_readme.py`` follows links, resolves files and runs the snippets; ``test_site.py`` looks at the built site.
"""

import ast
import re
import subprocess
import sys
from importlib import import_module

import pytest

import minisbert
from docs import command_pages, make_recording, site_index
from minisbert.__main__ import command_files
from minisbert.commands.inspect_ import main as inspect
from tests.conftest import ROOT
from tests.test_readme import anchors

DOCS = sorted((ROOT / "docs").glob("*.md"))
COURSE = sorted((ROOT / "lessons").glob("*.md"))
PAGES = [*ROOT.glob("*.md"), *DOCS, *COURSE, ROOT / "weights" / "README.md"]
# not written to be read: measurements, kept for whoever checks them, and tables that a program writes
RESULTS = {path for path in DOCS if path.name.startswith(("results", "parity-"))}
WORDS = 25_000
FENCE = re.compile(r"^(`{3,}|\$\$).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


def written(text: str) -> int:
    """Count the words of a page's sentences: without code, tables, formulas, HTML and the addresses of links."""
    text = FENCE.sub("", text)
    text = re.sub(r"<(div|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", ":", "<"))]
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    return len(re.findall(r"[^\W\d_][\w'’-]*", text))


def test_words_are_those_of_sentences():
    page = "# A title\n\nFive words, [one link](a/b.md).\n\n| a | table |\n|---|---|\n\n```bash\nno words here\n```\n"
    assert written(page) == 2 + 4


def test_the_documentation_can_be_read():
    counts = {path.name: written(path.read_text(encoding="utf-8")) for path in DOCS if path not in RESULTS}
    assert sum(counts.values()) <= WORDS, sorted(counts.items(), key=lambda item: -item[1])[:8]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.stem)
def test_every_page_says_for_whom_it_is_and_stands_in_one_group_of_the_index(path):
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    if path.name == "index.md":
        return
    first = path.read_text(encoding="utf-8").split("\n\n")[1]
    assert first.startswith("For "), first
    assert name in site_index.kinds()
    groups = [names for _, names in site_index.pages_of("docs/index")]
    assert sum(names.count(name) for names in groups) <= 1


def test_the_index_says_what_each_group_is_for():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert named == [caption for caption, _ in site_index.pages_of("docs/index")]


# ------------------------------------------------------------------------------------------ what pages name

FOREIGN = set("--python --torch-backend --install --inplace --node_rank --nproc_per_node --nnodes --editable".split())


def parsers() -> list:
    return [command_pages.parser_of(name) for name in command_files()] + [command_pages.parser_of("encode", "merge")]


def options(parser) -> set[str]:
    found = set()
    for action in parser._actions:
        found |= set(action.option_strings)
        if isinstance(action.choices, dict):  # commands of a command
            found |= {option for below in action.choices.values() for option in options(below)}
    return found


def test_every_option_that_a_sentence_names_exists():
    """Of a command of the package, or in the source of a tool of the repository."""
    existing = {option for parser in parsers() for option in options(parser)} | FOREIGN
    for folder in ("benchmarks", "lessons", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            existing |= set(re.findall(r"\"(--[a-z][\w-]*)\"", path.read_text(encoding="utf-8")))
    named = [
        (path.name, option)
        for path in PAGES
        for code in CODE.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)
    ]
    assert len(named) > 300, "else the pattern finds none"
    assert [found for found in named if found[1] not in existing] == []


@pytest.mark.parametrize("path", DOCS + COURSE, ids=lambda path: path.stem)
def test_every_option_belongs_to_the_command_before_it(path):
    """``minisbert encode --quantize int8`` in a sentence, where no shell block shows it."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for code in CODE.findall(text):
        called = re.match(rf"(?:minisbert )?({'|'.join(command_files())}) (.*--.*)", code)
        if called:
            used = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", called[2]))
            assert used <= options(command_pages.parser_of(called[1])) | {"--help-all"}, code


def resolve(name: str) -> object:
    """Return the object that a dotted name means, in ``minisbert`` if it does not begin with it."""
    found, path = minisbert, ["minisbert"]
    for part in name.removeprefix("minisbert.").split("."):
        path.append(part)
        if not hasattr(found, part):
            import_module(".".join(path))
        found = getattr(found, part)
    return found


THEIRS = {"util.quantize_embeddings"}  # of sentence-transformers, in the page for those who come from it


def test_every_object_that_a_page_names_exists():
    names = {
        name
        for path in PAGES
        for code in CODE.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
        for name in re.findall(r"^((?:[A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)+)(?:\(|$)", code)
        if name.split(".")[0] in {"minisbert", *minisbert.__all__} and not name.endswith((".py", ".md", ".toml"))
    }
    assert len(names) > 15, "else the pattern finds none"
    for name in sorted(names - THEIRS):
        assert resolve(name) is not None


API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
INNER = {"Embedder", "EncoderModule", "MinisbertTransformer", "file_times", "worker_encoder", "worker_threads"}


def definitions(name: str) -> dict[str, ast.AST]:
    """Read the public classes and functions of a file of the package, without importing it."""
    tree = ast.parse((ROOT / "minisbert" / name).read_text(encoding="utf-8"))
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {name: node for name, node in nodes.items() if not name.startswith("_")}


def test_every_public_name_has_its_place_in_the_reference():
    """Sphinx leaves out what has no docstring, and shows as a module's own what the module only imports if told to."""
    directives = re.findall(r"^\.\. auto(?:class|function|module):: (\S+)$", API, re.MULTILINE)
    assert {f"minisbert.{name}" for name in minisbert.__all__} <= {*directives}
    assert "imported-members" not in API
    left_out = {name for names in re.findall(r":exclude-members: (.*)", API) for name in names.split(", ")}
    assert left_out == {"row_scores", "same_length"}
    for module in ("util", "evaluation.evaluators"):
        assert f"minisbert.{module}" in directives
        found = definitions(f"{module.replace('.', '/')}.py")
        assert len(found) > 5
        assert [name for name, node in found.items() if not ast.get_docstring(node)] == []


def parameters(node: ast.AST, others: dict[str, ast.AST]) -> dict[str, str]:
    """Return parameters and defaults: of a function, or of a class by its ``__init__``, its base's, or its fields."""
    if isinstance(node, ast.ClassDef):
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and part.target.id[0] != "_"]
        made = [part for part in node.body if getattr(part, "name", "") == "__init__"]
        if not made and not fields:
            return parameters(others[node.bases[0].id], others)
        if not made:
            values = {field.target.id: ast.unparse(field.value) if field.value else "..." for field in fields}
            return {name: value.replace("Field(default_factory=dict)", "{}") for name, value in values.items()}
        node = made[0]
    named = [argument.arg for argument in node.args.args if argument.arg != "self"]
    defaults = [""] * (len(named) - len(node.args.defaults)) + [*map(ast.unparse, node.args.defaults)]
    found = dict(zip(named, defaults, strict=True))
    found |= {a.arg: ast.unparse(value) for a, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)}
    return found


def test_the_reference_has_every_class_for_another_library_with_its_arguments():
    rows = re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+\(.*\))` \|$", API, re.MULTILINE)
    listed, file = {}, ""
    for named, call in rows:
        file = named or file
        tree = ast.parse(call).body[0].value
        arguments = {argument.id: "" for argument in tree.args}
        arguments |= {word.arg: ast.unparse(word.value) for word in tree.keywords if word.arg}
        listed[file, tree.func.id] = arguments
    there = {}
    for path in sorted((ROOT / "minisbert" / "integrations").glob("[a-z]*.py")):
        others = definitions(f"integrations/{path.name}")
        for name in others.keys() - INNER - {"EncodeBatch"}:
            there[path.stem, name] = parameters(others[name], others)
    assert listed == there
    assert ".. autoclass:: minisbert.integrations.engines.EncodeBatch" in API


@pytest.mark.parametrize("path", COURSE, ids=lambda path: path.stem)
def test_no_link_of_the_courses_pages_is_broken(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not link.startswith(("http:", "https:")):
            assert target.exists(), link
            assert not anchor or target.suffix == ".py" or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.weights
def test_inspect_prints_what_its_page_shows(minilm, tmp_path, monkeypatch, capsys):
    """Of the two files that the page shows, whose columns stand in the places of their names."""
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    train, dev, shown = re.findall(r"```\n((?:score|train\.tsv).*?)```", page, re.DOTALL)
    for name, table in (("train.tsv", train), ("dev.tsv", dev)):
        rows = [re.split(r"\s{3,}|(?<=score) ", line.strip()) for line in table.splitlines()]
        (tmp_path / name).write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^1$"):
        inspect(["train.tsv", "dev.tsv", "--model", str(minilm)])
    assert capsys.readouterr().out.replace(f" --model {minilm}", "") == shown


def test_the_docstrings_of_the_example_need_no_checkout_on_the_path(tmp_path):
    """``-I``: neither the working directory nor the script's folder nor PYTHONPATH is searched."""
    script = ROOT / "docs" / "examples" / "docstrings.py"
    done = subprocess.run([sys.executable, "-I", script, tmp_path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "qrels" / "test.tsv").is_file()


# ------------------------------------------------------------------------------------------ what is generated


@pytest.mark.parametrize("name", command_files())
def test_the_page_of_commands_has_every_option_that_help_prints(name):
    """Read from ``--help`` of a process of its own, which the page is not made from."""
    arguments = [sys.executable, "-m", "minisbert", name, "--help-all" if name == "train" else "--help"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    listed = re.findall(r"^ {2,4}(--[a-z][\w-]*)", shown, re.MULTILINE)
    page = command_pages.generated(name)
    listed = [option for option in listed if option not in ("--version", "--help")]  # said once, on the page
    assert all(f"`{option}" in page or f", {option}" in page for option in listed)
    assert listed or name in ("assets", "checkpoint", "version")
    for line in re.findall(r"^(?:Examples:)? *(minisbert .*\S)$", shown, re.MULTILINE):
        assert line.split("   ")[0] in page


def test_the_page_of_commands_gives_defaults_and_no_secret(monkeypatch):
    assert "`--batch-size BATCH_SIZE` | texts of 64 tokens per batch (default: 32)" in command_pages.generated("encode")
    monkeypatch.setenv("MINISBERT_API_KEY", "a-secret")
    assert "a-secret" not in command_pages.generated("serve")


@pytest.mark.slow
def test_the_recording_is_a_run_of_the_grader():
    """The lines that it shows, but for line numbers, which every edit of the lesson moves."""
    drawn = make_recording.PICTURE.read_text(encoding="utf-8")
    again = make_recording.drawing(make_recording.screen(*make_recording.run()))
    assert re.sub(r"line \d+", "line", drawn) == re.sub(r"line \d+", "line", again), "python docs/make_recording.py"
    assert "These are exactly the numbers you get when the scores are not divided by" in drawn
    assert not re.search(r"href|@import|<script", drawn)


def test_the_index_for_programs_names_every_page_once():
    text = site_index.llms()
    lines = re.findall(r"^- \[.+\]\((\S+)\.html\): \S", text, re.MULTILINE)
    assert len(lines) == len(set(lines))
    expected = {path.relative_to(ROOT).with_suffix("").as_posix() for path in [*DOCS, *COURSE]}
    assert expected <= set(lines)
    assert all((ROOT / f"{name}.md").is_file() or (ROOT / f"{name}.py").is_file() for name in lines)
    assert "- [Lesson 05: attention](lessons/05_attention.html): You " in text


def test_issues_ask_for_what_a_report_needs():
    yaml = pytest.importorskip("yaml")
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    asked = {}
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert form.keys() >= {"name", "description", "body"}, path
            asked[path.stem] = {field["id"] for field in form["body"] if "id" in field}
    assert asked["bug"] >= {"what", "expected", "version"}
