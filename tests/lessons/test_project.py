"""Lesson 18's project: the corpus, the measure, and ``python -m lessons.check project``."""

import csv
import io
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from lessons import check
from lessons.grader import project
from lessons.search import docstrings
from lessons.search.measure import grades, interval, ndcg_of_each
from minisbert.core import InputError
from minisbert.evaluation.metrics import ndcg_at_k

MODULE = '''
import nothing_of_this_name


class TarFile:
    """Reads and writes archives of files. More about it."""

    def addFile2(self):
        """Add one file to the archive

        and more"""

    def __init__(self):
        """Make a new archive of files."""

    class Inner:
        async def next_HTTPRequest(self):
            """Wait for the next request, e.g. of a browser. Then return."""


def short():
    """Too short here."""


def again():
    """Reads and writes   ARCHIVES of files!"""
'''


@pytest.fixture
def source(tmp_path):
    """Three modules of a package, one of them no Python at all."""
    (tmp_path / "source" / "pack" / "tests").mkdir(parents=True)
    for name, text in (
        ("__init__", MODULE),
        ("broken", "def f(:\n"),
        ("tests/more", MODULE.replace("Tar", "Zip")),
    ):
        (tmp_path / "source" / "pack" / f"{name}.py").write_text(text)
    return tmp_path / "source"


def test_names_and_first_sentences(source):
    inner = ("pack.TarFile.Inner.next_HTTPRequest", "tar file inner next http request")
    assert [tuple(entry) for entry in docstrings.read_entries(source)] == [
        ("pack", "pack.TarFile", "tar file", "Reads and writes archives of files."),
        ("pack", "pack.TarFile.addFile2", "tar file add file 2", "Add one file to the archive"),
        ("pack", *inner, "Wait for the next request, e.g."),
    ]


def test_the_measure_is_the_packages():
    generator = np.random.default_rng(0)
    found = np.stack([generator.permutation(40)[:12] for _ in range(50)])
    right = found[np.arange(50), np.arange(50) % 12]  # every rank
    right[:12] = 40  # and none
    expected = ndcg_at_k(grades(found, right), np.ones((50, 1)), 10)
    assert ndcg_of_each(found, right).mean() == pytest.approx(expected, abs=1e-12)


def test_the_interval_is_as_wide_as_it_should_be():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    low, high = interval(values)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=0.03)
    assert interval(values) == (low, high)


@pytest.fixture
def corpus(monkeypatch):
    """A corpus of 60 entries, 30 of them of a test module."""
    entries = [
        docstrings.Entry(
            module, f"{module}.f{i}", f"{word} {i}", f"Returns the {word} of number {i}."
        )
        for module, word in (("email", "mail"), ("asyncio", "loop"))
        for i in range(30)
    ]
    monkeypatch.setattr(project, "read_entries", lambda source=None: entries)
    return entries


@pytest.fixture
def folder(tiny, tmp_path):
    """A project with the tiny model."""
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "model").symlink_to(tiny)
    return tmp_path / "ada"


def board(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def graded(*arguments: object) -> str:
    with redirect_stdout(io.StringIO()) as said:
        check.main(["project", *map(str, arguments)])
    return said.getvalue()


def test_a_project_is_graded_and_entered(corpus, folder, tmp_path):
    file = tmp_path / "board.csv"
    said = graded(folder, "--board", file)
    assert "30 hidden queries, 60 documents" in said
    (row,) = board(file)
    assert row["name"] == "ada"
    assert (
        float(row["low"])
        <= float(row["ndcg@10"])
        <= float(row["high"])
        <= float(row["recall@10"])
        <= 1
    )
    assert f"nDCG@10    {row['ndcg@10']}" in said
    assert (int(row["bytes"]), row["store"]) == (4 * 24, "float32")
    assert float(row["ms"]) > 0
    graded(folder / "model", "--board", file, "--name", "bob\n")  # the model's own folder will do
    assert [(one["name"], one["ndcg@10"]) for one in board(file)] == [
        ("ada", row["ndcg@10"]),
        ("bob", row["ndcg@10"]),
    ]


def test_the_settings_decide_what_is_kept(corpus, folder, tmp_path):
    for settings, size in (
        ('store = "int8"', 24),
        ('store = "bits"\ncandidates = 60', 3),
        ('columns = 16\nstore = "bits"', 2),
        ("columns = 5", 20),
    ):
        (folder / "search.toml").write_text(settings)
        graded(folder, "--board", tmp_path / f"{size}.csv")
        (row,) = board(tmp_path / f"{size}.csv")
        assert int(row["bytes"]) == size
        assert 0 <= float(row["ndcg@10"]) <= 1


def test_the_scores_are_those_of_a_plain_search(corpus, folder, tiny, tmp_path):
    from minisbert.models.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.load(tiny)
    documents, asked = (
        encoder.encode([getattr(e, side) for e in corpus]) for side in ("document", "query")
    )
    order = np.argsort(
        -(asked[:30].astype(float) @ documents.T.astype(float)), axis=1, kind="stable"
    )
    ranks = np.argmax(order == np.arange(30)[:, None], axis=1) + 1
    expected = np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0).mean()
    assert f"nDCG@10    {expected:.4f}" in graded(folder, "--board", tmp_path / "board.csv")


def test_a_secret_chooses_half_of_the_queries_and_another_source_is_asked_for_whole(
    corpus, folder, tmp_path
):
    chosen = [
        project.hidden_rows(corpus, secret, False).tolist()
        for secret in ("rosebud", "rosebud", "Rosebud")
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(
        len(rows) == 15 and {*rows} < {*range(30)} and rows == sorted(rows) for rows in chosen
    )
    file = tmp_path / "board.csv"
    for secret in ("rosebud", "Rosebud"):
        assert "15 hidden queries" in graded(folder, "--board", file, "--secret", secret)
        assert secret not in file.read_text()
    assert len({row["questions"] for row in board(file)}) == 2
    assert len(project.hidden_rows(corpus, "", True)) == 60
    with pytest.raises(InputError, match="10 docstrings"):
        project.hidden_rows(corpus[:10], "", True)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("ada/model", b"", "ada"),
        ("ada/search.toml", b"store =", "search.toml"),
        ("ada/search.toml", b"stores = 'bits'", "stores"),
        ("ada/search.toml", b"store = 'zip'", "store"),
        ("ada/search.toml", b"columns = -1", "columns"),
    ],
)
def test_what_cannot_be_graded_is_one_line(corpus, folder, tmp_path, file, content, says):
    (tmp_path / file).unlink(missing_ok=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        graded(folder, "--board", tmp_path / "board.csv")
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.glob("*.csv")]
    with pytest.raises(InputError, match="nobody"):
        graded(tmp_path / "nobody")
