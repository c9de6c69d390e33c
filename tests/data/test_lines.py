"""Lines and their ends, compressed and damaged files, archives, and the one reader of texts for all
commands.
"""

import gzip
import io
import json
import lzma
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data.datasets import load_scored_pairs, open_rows
from minisbert.data.formats import (
    LABELLED,
    NLI,
    PAIRS,
    SCORED,
    Row,
    every_text,
    read_file,
    recognise,
)
from minisbert.data.lines import LONGEST_LINE, Rows
from tests.data.test_reader import ENTAILMENT, NEUTRAL, NLI_LINES, NLI_ROWS, nli_line

# ---------------------------------------------------------------------------------------------
# lines


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\x0b", "\x0c", "\x1c"])
def test_other_line_separators_do_not_split_a_row(write, mark):
    expected = [Row((f"a{mark}b", f"c{mark}d"), 3.0), Row(("e", "f"), 1.0)]
    assert (
        load_scored_pairs(write("a", f'score,sentence1,sentence2\n3,a{mark}b,"c{mark}d"\n1,e,f\n'))
        == expected
    )
    line = json.dumps(
        {"gold_label": "neutral", "sentence1": f"a{mark}b", "sentence2": "c"}, ensure_ascii=False
    )
    assert read_file(write("nli.jsonl", line), NLI).rows == [Row((f"a{mark}b", "c"), NEUTRAL)]


def test_a_file_that_cannot_be_read_is_named_with_its_line(write, tmp_path):
    for form, good in ((NLI, NLI_LINES.splitlines()[0]), (PAIRS, "anchor,positive,negative")):
        with pytest.raises(InputError, match=r"some\.xyz, line 3: not UTF-8 \(byte 0xe9\)"):
            read_file(write("some.xyz", f"{good}\n\n".encode() + b"caf\xe9\n"), form)
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        recognise(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("name", ["s.txt", "s.txt.gz"])
def test_a_line_too_long_to_tokenize(write, name):
    longest = "b" * (LONGEST_LINE - 1) + "\n"
    assert len(next(every_text(write(name, longest)))) == LONGEST_LINE - 1
    with pytest.raises(
        InputError, match=rf"{re.escape(name)}, line 2: longer than 4,194,304 bytes; split the text"
    ):
        list(every_text(write(name, f"a\nb{longest}c\n")))


def test_nothing_after_the_limit_is_read(write):
    """Neither a broken line nor the broken end of an archive."""
    assert read_file(write("nli.jsonl", NLI_LINES + "broken"), NLI, limit=4)[:2] == (NLI_ROWS, 1)
    path = write("nli.jsonl.gz", NLI_LINES * 5000)
    path.write_bytes(path.read_bytes()[:-50])
    assert read_file(path, NLI, limit=4)[:2] == (NLI_ROWS, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", ["a", "b"]),
        (" a \t\r\nb\r\n", ["a", "b"]),
        ("\ufeffa\u0085b\u2028c\n\x0cd", ["a\u0085b\u2028c", "d"]),
        ("", r"a\.txt is empty"),
        ("a\n \t\n", r"a\.txt, line 2: an empty line"),
        ("a\r\n\r\n", r"a\.txt, line 2: an empty line"),
        ("a\rb\r", r"a\.txt, line 1: lines end in CR alone"),
    ],
)
def test_lines_of_plain_text(write, text, expected):
    path = write("a.txt", text.encode())
    if isinstance(expected, list):
        assert list(every_text(path)) == expected
        return
    with pytest.raises(InputError, match=expected):
        list(every_text(path))


# --------------------------------------------------------------------------------------------
# arrays


def test_an_array_is_read_whole(write):
    items = [{"text": "caf\u00e9 \u2028", "id": i} for i in range(50)]
    for indent, escaped, mark in ((None, True, ""), (1, False, "\ufeff")):
        path = write("a.json", mark + json.dumps(items, indent=indent, ensure_ascii=escaped))
        assert list(Rows(path).values) == list(enumerate(items, start=1))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ('{"a": [1,, 2]}', "line 42: not valid JSON"),
        ('{"a": "b}\n', "line 42: not valid JSON"),
        ('{"a": 1} {"a": 2}', "line 42: not valid JSON: Expecting ','"),
    ],
)
def test_an_unusable_item_of_an_array(write, item, message):
    good = '{"a": "bcd"},\n'
    path = write("a.json", "[" + good * 41 + f"{item},\n" + good * 41 + "{}]")
    with pytest.raises(InputError, match=rf"a\.json.*{message}"):
        list(Rows(path).values)


def test_a_row_of_a_table_too_long_to_read(write, monkeypatch):
    """As of a mark that is never closed, or closed and opened in each line: it is not read to its
    end.
    """
    monkeypatch.setattr("minisbert.data.lines.LONGEST_LINE", 100)
    for line in ("b\n", '","\n'):
        path = write("a.csv", 'text,other\n"a' + line * 60)
        with pytest.raises(InputError, match=r"line 2: a row longer than 100 .*--no-quotes"):
            list(Rows(path).cells())


# ------------------------------------------------------------------------------------------
# archives


def pack(folder: Path, name: str, splits: tuple[str, ...], **more: object) -> Path:
    """Like SNLI's and MultiNLI's: a folder, text files beside the tables, and a Mac's twin of every
    file.
    """
    path = folder / f"{name}_1.0.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{name}_1.0/", "")
        packed.writestr(f"{name}_1.0/Icon\r", "")
        for split in splits:
            rows = nli_line("entailment", split, "b", **more) + nli_line("-", split, "b", **more)
            packed.writestr(f"{name}_1.0/{name}_1.0_{split}.jsonl", rows)
            packed.writestr(f"__MACOSX/{name}_1.0/._{name}_1.0_{split}.jsonl", b"\x00\x05\x16\x07")
            packed.writestr(f"{name}_1.0/{name}_1.0_{split}.txt", "not this one")
    return path


@pytest.fixture
def archive(tmp_path) -> Path:
    return pack(tmp_path, "snli", ("train", "dev", "test"))


@pytest.mark.parametrize(
    ("data", "split", "file"),
    [
        *[("snli", split, split) for split in ("train", "dev", "test")],
        *[("multinli", split, split) for split in ("train", "dev_mismatched")],
        *(
            ("multinli", "dev", "dev_matched"),
            ("multinli", "test", "dev_mismatched"),
        ),  # test has no labels
    ],
)
def test_a_split_of_a_published_archive(archive, tmp_path, monkeypatch, data, split, file):
    pack(
        tmp_path,
        "multinli",
        ("train", "dev_matched", "dev_mismatched"),
        genre="telephone",
        promptID="31193",
    )
    monkeypatch.setattr("minisbert.data.datasets.ensure", {data: tmp_path}.__getitem__)
    for source in (tmp_path / f"{data}_1.0.zip", data):
        assert read_file(open_rows(source, split), NLI)[:2] == ([Row((file, "b"), ENTAILMENT)], 1)


def test_an_archive_without_the_split_lists_its_files(archive, tmp_path):
    with pytest.raises(
        InputError, match=r"snli_1\.0_train\.jsonl.* and 2 more.* split 'dev_matched'"
    ):
        read_file(Rows(archive, "dev_matched"), NLI)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("readme.txt", "hello")
        packed.writestr("a_dev.jsonl", NLI_LINES + "{")
    with pytest.raises(InputError, match=r"other\.zip/a_dev\.jsonl, line 5: not valid JSON"):
        read_file(Rows(tmp_path / "other.zip", "dev"), NLI)


def test_a_damaged_archive(archive, write):
    content = archive.read_bytes()
    at = content.index(b"snli_1.0/snli_1.0_train.jsonl") + 40
    damaged = content[:at] + b"\x00\xff" + content[at + 2 :]
    # a flag marks an encrypted file, 6 bytes into its header and 8 bytes into the table of contents
    locked = re.sub(rb"(PK\x03\x04..|PK\x01\x02....).", rb"\1" + b"\x01", content, flags=re.DOTALL)
    for broken, message in (
        (damaged, "Error -3 while decompressing"),
        (content[: len(content) // 2], "File is not a zip file"),
        (locked, ".*password required"),
    ):
        with pytest.raises(InputError, match=rf"broken\.zip.*: {message}"):
            read_file(Rows(write("broken.zip", broken), "train"), NLI)


def test_a_damaged_gzip(write):
    path = write("nli.jsonl.gz", NLI_LINES * 50)
    whole = path.read_bytes()
    for content in (
        NLI_LINES.encode(),
        whole[:-20],
        whole[:20],
        whole[:40] + b"\x00\xff\x00" + whole[43:],
    ):
        path.write_bytes(content)
        with pytest.raises(
            InputError,
            match=r"nli\.jsonl\.gz: (Not a gzipped|Compressed file ended|Error -3 while)",
        ):
            read_file(path, NLI)


# --------------------------------------------------------------------------------------- containers

TABLE = b'score,sentence1,sentence2\n3,a,"b\nc"\n'


def tar(content: bytes) -> bytes:
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(*names: str) -> bytes:
    with zipfile.ZipFile(packed := io.BytesIO(), "w") as archive:
        archive.writestr("__MACOSX/._a.csv", b"\0")
        for name in names:
            archive.writestr(name, TABLE)
    return packed.getvalue()


def test_a_compressed_table(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TABLE))
    assert load_scored_pairs(tmp_path / "a.csv.gz") == [Row(("a", "b\nc"), 3.0)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tar.gz", gzip.compress(tar(TABLE)), "NUL byte.*unpack"),
        ("a.csv", gzip.compress(TABLE), "unpack"),  # under another name than .gz
        ("a.csv.gz", gzip.compress(gzip.compress(TABLE)), "unpack"),
        ("a.csv.xz", lzma.compress(TABLE), "NUL byte.*unpack"),
        ("a.csv.zip", zipped("a.csv"), "unpack"),
        ("a.xlsx", zipped("[Content_Types].xml", "xl/workbook.xml"), "NUL byte"),
        (
            "a.csv",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "git lfs pull",
        ),
        ("a.txt", b"<!Doctype HTML>\n<html>\n", "a web page"),
        ("a.csv.gz", gzip.compress(b'<?xml version="1.0"?>\n<a/>\n'), "XML"),
        ("a.txt", b"{\\rtf1\\ansi a cat}\n", "RTF"),
    ],
)
def test_what_is_no_table_is_refused_for_texts_and_rows(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for read in (load_scored_pairs, lambda path: list(every_text(path))):
        with pytest.raises(InputError, match=rf"{name}.*{message}"):
            read(tmp_path / name)


def test_parquet_is_read_by_row_groups(tmp_path):
    """Its cells have types: numbers, lists, nothing."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{"Score": float(i % 6), "sentence1": f"a {i}", "sentence2": "b"} for i in range(50)]
    parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=7)
    assert load_scored_pairs(path) == [Row((row["sentence1"], "b"), row["Score"]) for row in rows]
    assert recognise(path) is SCORED
    lists = [{"query": "a", "pos": ["b", "c"], "neg": ["d"]}]
    parquet.write_table(arrow.Table.from_pylist(lists), path)
    assert read_file(path, PAIRS).rows == [Row(("a", "b", "d")), Row(("a", "c", "d"))]
    parquet.write_table(arrow.Table.from_pylist([{"text": "a"}, {"text": None}]), path)
    with pytest.raises(InputError, match="row 2: a text"):
        list(every_text(path))
    path.write_bytes(b"PAR1" + bytes(30))
    with pytest.raises(InputError, match="no Parquet"):
        list(every_text(path))


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"pip install -e '\.\[parquet\]'"):
        load_scored_pairs(tmp_path / "a.parquet")


# ------------------------------------------------------------------------------------------ tables

CELL = st.text(alphabet="ab \"',\t\né\u2028", max_size=6)


@st.composite
def written(draw: Callable) -> tuple[str, str]:
    """A table as a csv writer writes it, with marks around any cell, and its delimiter."""
    delimiter, end = draw(st.sampled_from("\t,")), draw(st.sampled_from(["\n", "\r\n"]))
    lines = ["x\ty\tz".replace("\t", delimiter)]
    for row in draw(st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=5)):
        cells = []
        for cell in row:
            must = cell.startswith('"') or {delimiter, "\n"} & {*cell}
            doubled = cell.replace('"', '""')
            cells.append(f'"{doubled}"' if must or draw(st.booleans()) else cell)
        lines.append(delimiter.join(cells))
        lines += [""] * draw(st.integers(0, 1))
    return end.join(lines) + draw(st.sampled_from(["", end])), delimiter


@settings(max_examples=int(os.environ.get("MINISBERT_EXAMPLES", 200)), deadline=None)
@given(
    table=written(),
    damage=st.none() | st.tuples(st.floats(0, 1), st.sampled_from(['"', '""', '"\t', ',"', "\n"])),
)
def test_tables_are_what_pandas_reads(tmp_path_factory, table, damage):
    """As written the same rows. Damaged, the same rows or none: a refusal, where pandas may drop
    marks or fill rows.
    """
    pandas = pytest.importorskip("pandas")
    content, delimiter = table
    if damage:
        at = len("x,y,z") + round(damage[0] * (len(content) - len("x,y,z")))
        content = content[:at] + damage[1] + content[at:]
    path = tmp_path_factory.getbasetemp() / "table.csv"
    path.write_bytes(content.encode())
    refused: list[str] = []
    try:
        ours = [
            [*row.values()]
            for _, row in Rows(path).records(lambda line, message: refused.append(message))
        ]
    except InputError as error:
        refused.append(str(error))
    assert damage or not refused
    if not refused:
        theirs = pandas.read_csv(
            path, sep=delimiter, dtype=str, keep_default_na=False
        ).values.tolist()
        assert ours == [[cell.replace("\r\n", "\n").strip() for cell in row] for row in theirs]


def test_a_cell_that_may_have_swallowed_rows_is_named(write, capsys):
    """GLUE's files have marks that open and never close: the next one may close a cell of several
    rows.
    """
    path = write("a.tsv", 'label\tsentence1\tsentence2\n1\t"a\tb\n0\tc"\td\n')
    assert read_file(path, LABELLED).rows == [Row(("a\tb\n0\tc", "d"), 1)]
    assert "--no-quotes" in capsys.readouterr().err
    assert len(read_file(Rows(path, quotes=False), LABELLED).rows) == 2


# ------------------------------------------------------------------------------------- texts

TEXTS = ["the dog, small", "a cat", "the moon"]
LINES = "\n".join(f"  {text}\t" for text in TEXTS)
OBJECTS = [
    {"id": 1, "text": "the dog, small ", "title": ""},
    {"Text": "a cat", "label": 0},
    {"text": " the moon"},
]
JSON = "\n".join(map(json.dumps, OBJECTS))
FILES = {
    "lines.txt": LINES,
    "no ending": "\ufeff" + LINES.replace("\n", "\r\n"),
    "rows.jsonl": JSON,
    "rows.json": json.dumps(OBJECTS, indent=1),
    "lines.json": JSON,
    "rows.txt": JSON,
    "rows.csv": 'Text,id\n"the dog, small",1\na cat,2\nthe moon,3\n',
    "rows.tsv": "id\ttitle\tsentence\n1\t\tthe dog, small\n2\t\ta cat\n3\t\tthe moon\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_same_texts(tmp_path, name, packed):
    path, content = tmp_path / name, FILES[name].encode()
    if packed:
        path, content = tmp_path / f"{name}.gz", gzip.compress(content)
    path.write_bytes(content)
    assert list(every_text(path)) == TEXTS


def test_blank_texts_are_counted_or_refused(write):
    for name, content, line in (
        ("a.txt", "a cat\n \nthe moon", 2),
        ("a.jsonl", '{"text": "a cat"}\n{"text": ""}\n{"text": "b"}', 2),
        ("a.csv", "id,text\n1,a\n2,\n3,b\n", 3),
        ("a.json", '[{"text": "a"}, {"text": ""}, {"text": "b"}]', 2),
    ):
        path = write(name, content)
        assert [text != "" for text in every_text(path, blanks=True)] == [True, False, True]
        with pytest.raises(InputError, match=rf"{name}, (line|item) {line}: an empty line"):
            list(every_text(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a\.txt is empty"),
        ("a.jsonl", "\n", r"a\.jsonl is empty"),
        ("a.json", "[]", r"a\.json is empty"),
        ("a.csv", "text\n", r"a\.csv is empty"),
        ("a.csv", "query,positive\na,b\n", r"a\.csv: .*'query', 'positive'.*text"),
        ("a.csv", "id,text\n1,a,b\n", r"a\.csv, line 2: 3 columns"),
        ("a.jsonl", '{"text": "a"}\n7\n', r"a\.jsonl, line 2: 7"),
        ("a.jsonl", '{"query": "a"}', r"a\.jsonl, line 1: .*text"),
        ("a.jsonl", '{"text": "a", "title": "b"}', r"a\.jsonl, line 1: the title"),
        ("a.csv", "text\na\n\"['b', 'c']\"\n", r"a\.csv, line 3: a text"),
        ("a.jsonl", '{"text": 5}', r"a\.jsonl, line 1: a text"),
        ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl, line 1: .*surrogate"),
        ("a.jsonl", '{"text":', r"a\.jsonl, line 1: not valid JSON"),
        ("a.jsonl", '{\n"text": "a"\n}', r"a\.jsonl, line 1: .*within a row"),
        ("a.json", '["a", "b"]', r"a\.json, item 1: 'a'"),
        ("a.txt", '[{"text": "a"}]', r"a\.txt, line 1: \[.*array"),
        ("a.txt", "a\n\0\n", r"a\.txt, line 2: a NUL byte"),  # UTF-16, a tar, NumPy's
    ],
)
def test_what_is_not_texts_is_refused(write, name, content, message):
    with pytest.raises(InputError, match=message):
        list(every_text(write(name, content)))
