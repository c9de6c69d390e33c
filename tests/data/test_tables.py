"""From the bytes of a file to its records: lines, cells, JSON, Parquet, and what is no text."""

import gzip
import io
import json
import lzma
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data.tables import (
    LONGEST_LINE,
    array_values,
    bare_rows,
    check_growth,
    file_lines,
    open_records,
    quoted_rows,
    read_lines,
    separator_of,
)

TABLE = "a,b\n1,2\n3,4\n"
ROWS = [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]


def records_of(path: Path, **options) -> list[dict]:
    return [record for _, record in open_records(path, **options).items]


# ---------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", TABLE),
        ("a.csv", "a;b\n1;2\n3;4\n"),
        ("a.csv", "a\tb\n1\t2\n3\t4\n"),
        ("a.csv", '"a","b"\n"1",2\n3,"4"'),
        ("a.csv", "\ufeffa,b\r\n\r\n1 , 2\r\n3,4\r\n \n"),
        ("a.csv.gz", TABLE),
        ("a.txt", TABLE),
        ("a", TABLE),
        ("a.jsonl", '{"a": "1", "b": "2"}\n\n{"a": "3", "b": "4"}\n'),
        ("a.txt", '{"a": "1", "b": "2"}\n{"a": "3", "b": "4"}\n'),
        ("a.json", '[{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]'),
        ("a.json", '\ufeff \n[\n{"a": "1",\n "b": "2"},\n{"a": "3", "b": "4"}\n]\n'),
        ("a.json", '{"a": "1", "b": "2"}\n{"a": "3", "b": "4"}\n'),
        ("a.json.gz", '[{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]'),
    ],
)
def test_the_same_records_in_every_form(write, name, content):
    """Which form a file has makes no difference behind this page."""
    records = open_records(write(name, content))
    assert records.names == ["a", "b"]
    assert [record for _, record in records.items] == ROWS


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("a\tb;c,d", "\t"),
        ("a;b,c", ";"),
        ("a,b", ","),
        ("alone", ","),
        ('"a;b",c', ","),
        ('"a\tb";"c,d"', ";"),
    ],
)
def test_the_separator_is_the_first_that_the_header_has(header, separator):
    """Of tab, semicolon and comma, outside of quotation marks."""
    assert separator_of(header) == separator


def test_without_quotes_a_mark_is_text(write):
    """GLUE's files have marks that open and never close."""
    path = write("a.tsv", 'x\ty\n"all quoted"\t"a, b" and "c\n')
    assert records_of(path, quotes=False) == [{"x": '"all quoted"', "y": '"a, b" and "c'}]


def test_a_cell_may_hold_lines_and_blank_lines(write):
    """The number of a row is that of its first line."""
    path = write("a.csv", 'x,y\n"a\n\nb",c\r\n1,2\n')
    records = open_records(path)
    assert list(records.items) == [
        (2, {"x": "a\n\nb", "y": "c"}),
        (5, {"x": "1", "y": "2"}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('x,y\n1,a\n1,"a,b\n', "line 3: a quotation mark is never closed.*--no-quotes"),
        ('x,y\n1,"a\n\nb"\n"a"x,b\n', "line 5: .*--no-quotes"),
        ("x,y\n1\n", "line 2: 1 cells between commas; the header has 2"),
        ("x;y\n1;2\n\n1;2;3\n", "line 4: 3 cells between semicolons; the header has 2"),
        ("x,y\n1,2\nx,y\n", "line 3: the header again"),
        ("", "a.csv is empty"),
        ("\ufeff\n \n", "a.csv is empty"),
    ],
)
def test_a_broken_table_names_its_line(write, content, message):
    with pytest.raises(InputError, match=message):
        records_of(write("a.csv", content))


def test_a_row_without_end_is_not_read_to_the_end_of_the_file():
    """A mark that is never closed, or closed and opened in each line, would fill the memory."""
    for line in ("b", '","'):
        lines = [(1, "text,other"), (2, '"a'), *((i, line) for i in range(3, 60))]
        with pytest.raises(InputError, match=r"line 2: a row longer than 100 .*--no-quotes"):
            list(quoted_rows(lines, ",", "a.csv", longest=100))


def test_a_cell_that_may_have_swallowed_rows_is_named(write, capsys):
    """A mark that opens a text may have been closed by that of another row."""
    path = write("a.tsv", 'x\ty\n"a\tb\nc"\td\n')
    assert records_of(path) == [{"x": "a\tb\nc", "y": "d"}]
    assert "a.tsv, line 2" in capsys.readouterr().err


def test_a_cell_of_150_kb(write):
    """Python's csv has a limit of 128 KiB by default."""
    long = "word " * 30_000 + "end"
    assert records_of(write("a.csv", f"x,y\nq,{long}\n"))[0]["y"] == long


def test_a_table_without_a_header_is_numbered(write):
    records = open_records(write("a.csv", "1,2\n3,4\n"), last_number=2)
    assert records.names == ["1", "2"]
    assert [record for _, record in records.items] == [{"1": "1", "2": "2"}, {"1": "3", "2": "4"}]


def test_a_row_between_tabs_may_be_longer_than_the_first(write):
    """The STS Benchmark's own files have 7 to 9 columns."""
    path = write("a.csv", "5.0\ta\tb\n3.0\tc\td\tlicence\n")
    assert [record["2"] for record in records_of(path, last_number=3)] == ["a", "c"]


@pytest.mark.parametrize("content", ["3,a,b\n4,c, c,d\n", "3,a\n"])
def test_a_comma_in_a_text_shifts_no_column_of_a_numbered_table(write, content):
    with pytest.raises(InputError, match=r"cells between commas.*--columns needs 3"):
        records_of(write("a.csv", content), last_number=3)


CELL = st.text(alphabet="ab \"',\t\né\u2028", max_size=6)


@st.composite
def written_tables(draw: Callable) -> tuple[str, str]:
    """A table as a csv writer writes it, with marks around any cell, and its delimiter."""
    delimiter = draw(st.sampled_from("\t,"))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = [delimiter.join("xyz")]
    for row in draw(st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=5)):
        cells = []
        for cell in row:
            needs_marks = cell.startswith('"') or delimiter in cell or "\n" in cell
            if needs_marks or draw(st.booleans()):
                doubled = cell.replace('"', '""')
                cell = f'"{doubled}"'
            cells.append(cell)
        lines.append(delimiter.join(cells))
        if draw(st.booleans()):
            lines.append("")
    return end.join(lines) + draw(st.sampled_from(["", end])), delimiter


@settings(max_examples=int(os.environ.get("MINISBERT_EXAMPLES", 200)), deadline=None)
@given(
    table=written_tables(),
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
    try:
        ours = [list(record.values()) for record in records_of(path)]
    except InputError:
        assert damage
        return
    frame = pandas.read_csv(path, sep=delimiter, dtype=str, keep_default_na=False)
    theirs = []
    for row in frame.values.tolist():
        theirs.append([cell.replace("\r\n", "\n").strip() for cell in row])
    assert ours == theirs


# ----------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\x0b", "\x0c", "\x1c"])
def test_other_line_separators_are_text(write, mark):
    """Python's text files split at some of them, inside a sentence."""
    assert records_of(write("a.csv", f'x,y\na{mark}b,"c{mark}d"\n')) == [
        {"x": f"a{mark}b", "y": f"c{mark}d"}
    ]
    line = json.dumps({"x": f"a{mark}b"}, ensure_ascii=False)
    assert records_of(write("a.jsonl", line)) == [{"x": f"a{mark}b"}]


def test_a_byte_order_mark_is_no_text(write):
    """It may also stand where one file was appended to another."""
    path = write("a.txt", "\ufeffa\n\ufeffb\n")
    assert list(file_lines(path)) == [(1, "a"), (2, "b")]


def test_blank_lines_before_the_first_are_counted(write):
    assert list(open_records(write("a.txt", "\n \na\n"), is_text=True).items) == [
        (1, {"text": ""}),
        (2, {"text": ""}),
        (3, {"text": "a"}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n\ncaf\xe9,c\n", r"line 3: not UTF-8 \(byte 0xe9\)"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1: a NUL byte"),
        (b"a,b\n1,\x002\n", "line 2: a NUL byte"),
        (b"a,b\r1,2\r", "line 1: lines end in CR alone; convert them"),
    ],
)
def test_bytes_that_are_no_text_name_their_line(write, content, message):
    with pytest.raises(InputError, match=rf"a\.csv.*{message}"):
        records_of(write("a.csv", content))


@pytest.mark.parametrize("name", ["s.txt", "s.txt.gz"])
def test_a_line_too_long_to_tokenize(write, name):
    digits = "".join(str(i) for i in range(800_000))  # a .gz of one letter would be a bomb
    longest = digits[: LONGEST_LINE - 1] + "\n"
    assert len(records_of(write(name, longest), is_text=True)[0]["text"]) == LONGEST_LINE - 1
    with pytest.raises(InputError, match="line 2: longer than 4,194,304 bytes; split the text"):
        records_of(write(name, f"a\nb{longest}c\n"), is_text=True)


def test_lines_of_any_length_by_an_argument():
    stream = io.BytesIO(b"abc\nabcdef\n")
    with pytest.raises(InputError, match="s, line 2: longer than 5 bytes"):
        list(read_lines(stream, "s", longest=5))


def test_bare_rows_are_split_at_each_separator():
    assert list(bare_rows([(1, 'a\t"b\t'), (2, " "), (3, "\t")], "\t")) == [
        (1, ["a", '"b', ""]),
        (3, ["", ""]),
    ]


# --------------------------------------------------------------------- files, archives, other data


def test_what_is_no_file(tmp_path):
    """A missing file, a folder, and a pipe that nobody writes to, which would wait forever."""
    with pytest.raises(InputError, match=r"nowhere.csv does not exist"):
        open_records(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a folder, a file is needed"):
        open_records(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a pipe, a file is needed"):
        open_records(tmp_path / "pipe")


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
def test_a_pipe_of_the_shell_is_read_as_a_file():
    """It can be opened and read only once: ``evaluate --data <(zcat f.tsv.gz)``."""
    reading, writing = os.pipe()
    os.write(writing, TABLE.encode())
    os.close(writing)
    assert records_of(Path(f"/dev/fd/{reading}")) == ROWS
    os.close(reading)


def test_a_damaged_gzip(write):
    path = write("a.csv.gz", "".join(f"{i},{i}\n" for i in range(2000)))
    whole = path.read_bytes()
    for content in (TABLE.encode(), whole[:-20], whole[:20], whole[:40] + b"\0\xff\0" + whole[43:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.csv\.gz: .*damaged, or not what its name says"):
            records_of(path)


def test_a_gzip_that_grows_out_of_proportion(write):
    """A bomb would fill the memory, or the day."""
    path = write("a.txt.gz", "a\n" * 1_000_000)
    with io.BufferedReader(gzip.open(path)) as stream:
        stream.read()
        check_growth(stream, 2_000, "a.txt.gz")
        with pytest.raises(InputError, match=r"a\.txt\.gz: 2,000,000 bytes came out of"):
            check_growth(stream, 2_000_000, "a.txt.gz")


def test_a_zip_that_grows_out_of_proportion(write):
    """The archive says how large its file is, so nothing of it is unpacked."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("snli_1.0/snli_1.0_dev.jsonl", b"\n" * 2_000_000)
    with pytest.raises(InputError, match=r"2,000,000 bytes came out of .* more than 300 times"):
        open_records(write("snli_1.0.zip", packed.getvalue()), split="dev")


def test_an_array_of_too_many_values():
    """Each takes some sixty bytes of memory, and three in the file."""
    content = b'[{"text": "a, b"}, {"text": "c"}]'
    assert len(list(array_values(io.BytesIO(content), "a.json", most_values=5))) == 2
    with pytest.raises(InputError, match=r"a\.json: more than 4 values in one array; .*jsonl"):
        list(array_values(io.BytesIO(content), "a.json", most_values=4))


def tar(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, TABLE)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tar.gz", gzip.compress(tar(TABLE.encode())), "NUL byte.*unpack"),
        ("a.csv", gzip.compress(TABLE.encode()), "unpack"),
        ("a.csv.gz", gzip.compress(gzip.compress(TABLE.encode())), "unpack"),
        ("a.csv.xz", lzma.compress(TABLE.encode()), "NUL byte.*unpack"),
        ("a.csv.zip", zipped("a.csv"), "unpack"),
        ("a.xlsx", zipped("xl/workbook.xml"), "NUL byte"),
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("a.txt", b"<!Doctype HTML>\n<html>\n", "a web page"),
        ("a.csv.gz", gzip.compress(b'<?xml version="1.0"?>\n<a/>\n'), "XML"),
        ("a.txt", b"{\\rtf1\\ansi a cat}\n", "RTF"),
    ],
)
def test_what_is_no_table_says_what_it_is(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}.*{message}"):
        records_of(tmp_path / name)


# ------------------------------------------------------------------------------ JSON and Parquet


def test_keys_of_later_objects_are_added(write):
    """A column that only some rows have is named as not read."""
    records = open_records(write("a.jsonl", '{"a": 1}\n{"b": 2}\n'))
    assert records.names == ["a"]
    assert len(list(records.items)) == 2
    assert records.names == ["a", "b"]


def test_a_string_of_json_is_a_text(write):
    assert records_of(write("a.json", '["a", "b"]')) == [{"text": "a"}, {"text": "b"}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": 1', "line 2: not valid JSON"),
        ("a.jsonl", '{\n"a": 1\n}', "line 1: .*the line ends within a row"),
        ("a.jsonl", '{"a": 1}\n' + "[" * 100_000, "line 2: not valid JSON"),
        ("a.jsonl", '{"a": 1}\n7\n', "line 2: 7 is no object with keys"),
        ("a.jsonl", '["a", "b"]\n', "line 1: .*is no object with keys"),
        ("a.jsonl", '{"a": "\\ud800"}', "line 1: .*surrogate"),
        ("a.json", '[{"a": 1},\n{"a": 1,,}]', "line 2: not valid JSON"),
        ("a.json", '[{"a": 1},\n{"a": 2}\n{"a": 3}]', "line 3: not valid JSON: Expecting ','"),
        ("a.json", '[{"a": 1}, 7]', "item 2: 7 is no object with keys"),
        ("a.json", '[{"a": 1},', "line 1: not valid JSON"),
        ("a.txt", '[{"text": "a"}]', "line 1: .*is no object with keys"),
    ],
)
def test_broken_json_names_its_line(write, name, content, message):
    with pytest.raises(InputError, match=rf"{name}, {message}"):
        records_of(write(name, content))


def test_a_file_is_read_no_further_than_it_is_asked_for(write):
    """Neither a broken line nor the broken end of an archive stops ``--limit``."""
    path = write("a.jsonl.gz", '{"a": 1}\n' * 50_000)
    path.write_bytes(path.read_bytes()[:-20])
    items = open_records(path).items
    assert [next(items) for _ in range(2)] == [(1, {"a": 1}), (2, {"a": 1})]


def test_parquet(tmp_path):
    """Its cells have types; its row groups are read one after the other."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"a": float(i), "b": [f"text {i}"]} for i in range(50)]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    records = open_records(tmp_path / "a.parquet")
    assert records.unit == "row"
    assert list(records.items) == list(enumerate(rows, start=1))


def test_damaged_parquet(tmp_path):
    pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(30))
    with pytest.raises(InputError, match="no Parquet"):
        records_of(tmp_path / "a.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"pip install -e '\.\[parquet\]'"):
        open_records(tmp_path / "a.parquet")
