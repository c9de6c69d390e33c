"""Data sets that have a name, in the very form in which they are published."""

import re
import zipfile
from pathlib import Path

import pytest

from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import load_scored_pairs, read_rows
from minisbert.data.tables import open_records
from minisbert.system.assets import asset

SCORED = Columns(2, "score")
CLASSES = Columns(2, "class")
STSB = (
    "main-captions\tMSRvid\t2012test\t0024\t4.2\tA cat sits.\tA kitten is sitting.\tlicence "
    "one\tlicence two\n"
    'main-news\theadlines\t2013\t0025\t0.0\tHe said "sit\tThe dog, it sat\n'
)
QUORA = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "0\t1\t2\tWhat is SQL?\t What does SQL mean? \t1\n"
    '1\t3\t4\t"What is ""it""?"\t"Who wrote\nthis?"\t0\n'
    "2\t5\t6\t\tWhat is this?\t0\n"
    '4\t9\t10\t"Why" not?\tHow?\t1\n'
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where every data set lies."""
    monkeypatch.setattr("minisbert.data.published.ensure", lambda name: tmp_path)
    return tmp_path


def pack(folder: Path, name: str, *splits: str) -> Path:
    """Like SNLI's and MultiNLI's: a folder, text files beside the tables, and a Mac's twin of every
    file.
    """
    path = folder / f"{name}_1.0.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"{name}_1.0/", "")
        packed.writestr(f"{name}_1.0/Icon\r", "")
        for split in splits:
            rows = ""
            for label, text in (("entailment", "yes"), ("-", "maybe"), ("contradiction", "no")):
                rows += f'{{"gold_label": "{label}", "genre": "g", '
                rows += f'"sentence1": "{name} {split}", "sentence2": "{text}"}}\n'
            packed.writestr(f"{name}_1.0/{name}_1.0_{split}.jsonl", rows)
            packed.writestr(f"__MACOSX/{name}_1.0/._{name}_1.0_{split}.jsonl", b"\0\5\x16\7")
            packed.writestr(f"{name}_1.0/{name}_1.0_{split}.txt", "not this one")
    return path


def test_the_sts_benchmark(folder):
    """It has no header, its marks are text, and some of its rows have two columns more."""
    (folder / "sts-dev.csv").write_text(STSB)
    assert load_scored_pairs("stsb", "dev") == [
        ("A cat sits.", "A kitten is sitting.", 4.2),
        ('He said "sit', "The dog, it sat", 0.0),
    ]
    table = read_rows("stsb", SCORED, split="dev")
    assert table.note() == "stsb: 2 rows; sentence1, sentence2, score"


def test_each_text_of_the_benchmark_once(folder):
    """What a loss of single texts reads of it."""
    (folder / "sts-train.csv").write_text(STSB + STSB)
    table = read_rows("stsb", Columns(1), split="train")
    assert [text for (text,) in table.rows] == [
        "A cat sits.",
        "A kitten is sitting.",
        'He said "sit',
        "The dog, it sat",
    ]
    assert table.note() == "stsb: 4 rows; each of its texts once"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\tb\t3\tc\n", "line 3: 4 cells"),
        ("g\tf\ty\ti\thigh\ta\tb\n", "line 3: the score 'high'"),
    ],
)
def test_a_changed_benchmark_names_the_line(folder, row, message):
    (folder / "sts-dev.csv").write_text(STSB + row)
    with pytest.raises(InputError, match=message):
        load_scored_pairs("stsb", "dev")


def test_quoras_release(folder):
    """After some of its closing quotation marks there is more text, which is refused elsewhere."""
    path = folder / asset("quora").files[0].name
    path.write_text(QUORA)
    table = read_rows("quora", Columns(2, "binary"))
    assert table.rows == [
        ("What is SQL?", "What does SQL mean?", 1),
        ('What is "it"?', "Who wrote\nthis?", 0),
        ("Why not?", "How?", 1),
    ]
    assert len(table.skipped) == 1
    with pytest.raises(InputError, match=r"line 6: .*--no-quotes"):
        read_rows(path, Columns(2, "binary"))


@pytest.mark.parametrize(
    ("name", "split", "file"),
    [
        ("snli", "train", "train"),
        ("snli", "dev", "dev"),
        ("snli", "test", "test"),
        ("multinli", "train", "train"),
        ("multinli", "dev", "dev_matched"),
        ("multinli", "test", "dev_mismatched"),
    ],
)
def test_a_split_of_a_published_archive(folder, name, split, file):
    """The labels of MultiNLI's test are secret, so its second dev file is the test."""
    pack(folder, "snli", "train", "dev", "test")
    pack(folder, "multinli", "train", "dev_matched", "dev_mismatched")
    table = read_rows(name, CLASSES, split=split)
    assert table.rows == [
        (f"{name} {file}", "yes", "entailment"),
        (f"{name} {file}", "no", "contradiction"),
    ]


def test_nli_by_name_gives_triplets(folder):
    pack(folder, "snli", "train")
    table = read_rows("snli", Columns(2, more_texts=True), split="train")
    assert table.rows == [("snli train", "yes", "no")]


def test_two_data_sets_by_name(folder):
    pack(folder, "snli", "train")
    pack(folder, "multinli", "train")
    table = read_rows("snli,multinli", CLASSES, split="train")
    assert [row[0] for row in table.rows] == ["snli train"] * 2 + ["multinli train"] * 2
    assert table.note().startswith("snli,multinli: 4 rows, 2 skipped")


def test_a_data_set_of_another_kind(folder):
    (folder / "sts-train.csv").write_text(STSB)
    with pytest.raises(InputError, match=r"stsb: .*needed: three texts"):
        read_rows("stsb", Columns(3), split="train")
    with pytest.raises(InputError, match=r"sick is no data set of rows; .* stsb, snli"):
        read_rows("sick", SCORED)


def test_an_archive_without_the_split_lists_its_files(tmp_path):
    path = pack(tmp_path, "snli", "train", "dev", "test")
    with pytest.raises(InputError, match=r"snli_1\.0_train\.jsonl.* split 'dev_matched'"):
        open_records(path, split="dev_matched")


def test_a_damaged_archive(tmp_path):
    content = pack(tmp_path, "snli", "train").read_bytes()
    at = content.index(b"snli_1.0/snli_1.0_train.jsonl") + 40
    damaged = content[:at] + b"\x00\xff" + content[at + 2 :]
    # a flag marks an encrypted file, 6 bytes into its header and 8 bytes into the table of contents
    locked = re.sub(rb"(PK\x03\x04..|PK\x01\x02....).", rb"\1" + b"\x01", content, flags=re.DOTALL)
    path = tmp_path / "broken.zip"
    for broken, message in (
        (damaged, "Error -3 while decompressing"),
        (content[: len(content) // 2], "File is not a zip file"),
        (locked, ".*password required"),
    ):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=rf"broken\.zip.*: {message}"):
            list(open_records(path, split="train").items)
