"""Readers of labelled pairs, triplets and plain sentences, on files written here."""

import gzip
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data.corpora import (
    LabelledPair,
    Triplet,
    load_nli,
    nli_triplets,
    read_duplicates,
    read_nli,
    read_sentences,
    read_triplets,
    split_rows,
)
from minisbert.data.formats import NLI_LABELS
from minisbert.data.rows import LONGEST_LINE

CONTRADICTION, ENTAILMENT, NEUTRAL = range(3)


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Write a file, compressed if its name ends in .gz."""

    def write_file(name: str, content: str | bytes) -> Path:
        content = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file


def nli_line(label: str, premise: str, hypothesis: str, **more: object) -> str:
    return json.dumps({"gold_label": label, "sentence1": premise, "sentence2": hypothesis, **more}) + "\n"


# the other keys are also in SNLI
NLI = (
    nli_line("neutral", "A man sleeps.", "A man dreams.", annotator_labels=["neutral"], pairID="1r1n")
    + nli_line("-", "A man sleeps.", "He is home.", annotator_labels=["neutral", "entailment"])
    + nli_line("contradiction", "A man sleeps.", "A man runs.")
    + nli_line("entailment", " A man sleeps. ", "A person rests. ")
)
NLI_ROWS = [
    LabelledPair("A man sleeps.", "A man dreams.", NEUTRAL),
    LabelledPair("A man sleeps.", "A man runs.", CONTRADICTION),
    LabelledPair("A man sleeps.", "A person rests.", ENTAILMENT),
]

# ------------------------------------------------------------------------------------------------ NLI


def test_the_order_of_the_labels_is_sberts():
    assert NLI_LABELS == ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize("name", ["nli.jsonl", "nli.jsonl.gz", "nli.txt"])
@pytest.mark.parametrize("change", ["as it is", "line ends", "byte order mark", "no last line end", "blank lines"])
def test_nli_rows_and_how_many_have_no_gold_label(write, name, change):
    content = {
        "as it is": NLI,
        "line ends": NLI.replace("\n", "\r\n"),
        "byte order mark": "\ufeff" + NLI,
        "no last line end": NLI.removesuffix("\n"),
        "blank lines": NLI.replace("\n", "\n\n"),
    }[change]
    assert read_nli(write(name, content)) == (NLI_ROWS, 1)


@pytest.mark.parametrize(("limit", "rows", "skipped"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 3, 1), (99, 3, 1)])
def test_the_limit_counts_rows_of_the_file(write, limit, rows, skipped):
    assert read_nli(write("nli.jsonl", NLI), limit=limit) == (NLI_ROWS[:rows], skipped)


def test_nothing_after_the_limit_is_read(write):
    """Neither a broken line nor the broken end of an archive."""
    assert read_nli(write("nli.jsonl", NLI + "broken"), limit=4) == (NLI_ROWS, 1)
    path = write("nli.jsonl.gz", NLI * 5000)
    path.write_bytes(path.read_bytes()[:-50])
    assert read_nli(path, limit=4) == (NLI_ROWS, 1)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(write, limit):
    with pytest.raises(InputError, match=f"limit must be at least 1, not {limit}"):
        read_nli(write("nli.jsonl", NLI), limit=limit)


@pytest.mark.parametrize("sentences", [("", "A man."), ("A man.", " \t")])
def test_a_row_with_an_empty_sentence_is_skipped(write, sentences):
    assert read_nli(write("nli.jsonl", nli_line("neutral", *sentences) + NLI)) == (NLI_ROWS, 2)


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\x0b", "\x1c"])
def test_other_line_separators_do_not_split_a_row(write, mark):
    line = json.dumps({"gold_label": "neutral", "sentence1": f"a{mark}b", "sentence2": "c"}, ensure_ascii=False)
    if mark not in ("\x0b", "\x1c"):  # JSON escapes these
        assert mark in line
    assert read_nli(write("nli.jsonl", line)) == ([LabelledPair(f"a{mark}b", "c", NEUTRAL)], 0)


@pytest.fixture
def archive(tmp_path) -> Path:
    """Like SNLI's: a folder, text files beside the tables, and a Mac's twin of every file."""
    path = tmp_path / "snli_1.0.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("snli_1.0/", "")
        packed.writestr("snli_1.0/Icon\r", "")
        for i, split in enumerate(("train", "dev", "test")):
            row = nli_line("entailment", split, "b") + nli_line("-", split, "b") * i
            packed.writestr(f"snli_1.0/snli_1.0_{split}.jsonl", row)
            packed.writestr(f"__MACOSX/snli_1.0/._snli_1.0_{split}.jsonl", b"\x00\x05\x16\x07")
            packed.writestr(f"snli_1.0/snli_1.0_{split}.txt", "not this one")
    return path


@pytest.mark.parametrize(("split", "skipped"), [("train", 0), ("dev", 1), ("test", 2)])
def test_a_split_of_the_published_archive(archive, monkeypatch, split, skipped):
    expected = ([LabelledPair(split, "b", ENTAILMENT)], skipped)
    assert read_nli(archive, split) == expected
    assert load_nli(str(archive), split) == expected
    monkeypatch.setattr("minisbert.data.corpora.ensure", lambda name: archive.parent if name == "snli" else None)
    assert load_nli("snli", split) == expected


@pytest.fixture
def multinli(tmp_path) -> Path:
    """Like MultiNLI's: more keys than SNLI, two dev files, no labels of test."""
    path = tmp_path / "multinli_1.0.zip"
    more = {"annotator_labels": ["entailment"], "genre": "telephone", "pairID": "31193e", "promptID": "31193"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for split in ("train", "dev_matched", "dev_mismatched"):
            rows = nli_line("entailment", split, "b", **more) + nli_line("-", split, "b", **more)
            packed.writestr(f"multinli_1.0/multinli_1.0_{split}.jsonl", rows)
            packed.writestr(f"__MACOSX/multinli_1.0/._multinli_1.0_{split}.jsonl", b"\x00")
    return path


@pytest.mark.parametrize(
    ("split", "file"),
    [("train", "train"), ("dev", "dev_matched"), ("test", "dev_mismatched"), ("dev_mismatched", "dev_mismatched")],
)
def test_a_split_of_multinli(multinli, monkeypatch, split, file):
    expected = ([LabelledPair(file, "b", ENTAILMENT)], 1)
    assert read_nli(multinli, split) == expected
    monkeypatch.setattr("minisbert.data.corpora.ensure", lambda name: {"multinli": multinli.parent}[name])
    assert load_nli("multinli", split) == expected


def test_a_split_that_the_archive_does_not_have(archive):
    message = "has no split 'dev_matched'; its tables are snli_1.0/snli_1.0_train.jsonl, snli_1.0/snli_1.0_dev.jsonl"
    with pytest.raises(InputError, match=re.escape(message)):
        read_nli(archive, "dev_matched")


def test_an_archive_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("readme.txt", "hello")
    with pytest.raises(InputError, match=r"other\.zip has no split 'train'; its tables are none"):
        read_nli(tmp_path / "other.zip")


def test_an_error_inside_an_archive_names_member_and_line(tmp_path):
    with zipfile.ZipFile(tmp_path / "mnli.zip", "w") as packed:
        packed.writestr("multinli_1.0/multinli_1.0_dev_matched.jsonl", NLI + "{")
    where = r"mnli\.zip/multinli_1\.0/multinli_1\.0_dev_matched\.jsonl, line 5: not valid JSON"
    with pytest.raises(InputError, match=where):
        read_nli(tmp_path / "mnli.zip", "dev_matched")


def test_a_damaged_archive(archive, write):
    content = archive.read_bytes()
    at = content.index(b"snli_1.0/snli_1.0_train.jsonl") + 40
    with pytest.raises(InputError, match=r"damaged\.zip: Error -3 while decompressing"):
        read_nli(write("damaged.zip", content[:at] + b"\x00\xff" + content[at + 2 :]))
    with pytest.raises(InputError, match=r"short\.zip: File is not a zip file"):
        read_nli(write("short.zip", content[: len(content) // 2]))
    with pytest.raises(InputError, match=r"text\.zip: File is not a zip file"):
        read_nli(write("text.zip", NLI))


def test_an_archive_with_a_password(archive, write):
    """A flag marks its files, 6 bytes into their headers and 8 bytes into the table of contents."""
    content = re.sub(rb"(PK\x03\x04..|PK\x01\x02....).", rb"\1" + b"\x01", archive.read_bytes(), flags=re.DOTALL)
    with pytest.raises(InputError, match=r"locked\.zip: .*password required"):
        read_nli(write("locked.zip", content))


def test_a_damaged_gzip(write):
    path = write("nli.jsonl.gz", NLI * 50)
    whole = path.read_bytes()
    for content in (NLI.encode(), whole[:-20], whole[:20], whole[:40] + b"\x00\xff\x00" + whole[43:]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"nli\.jsonl\.gz: (Not a gzipped|Compressed file ended|Error -3 while)"):
            read_nli(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold_label": "neutral"', "not valid JSON: Expecting ',' delimiter"),
        ("A man sleeps.", "not valid JSON: Expecting value"),
        ("[" * 100_000, "not valid JSON: "),
        ("7", "expected NLI rows (.jsonl or .zip with gold_label, sentence1, sentence2) as strings, not 7"),
        ('["a"]', "expected NLI rows (.jsonl or .zip with gold_label, sentence1, sentence2) as strings, not ['a']"),
        ('{"gold_label": "neutral", "sentence1": "a"}', "expected NLI rows"),
        ('{"label": "neutral", "sentence1": "a", "sentence2": "b"}', "expected NLI rows"),
        ('{"gold_label": 1, "sentence1": "a", "sentence2": "b"}', "expected NLI rows"),
        ('{"gold_label": "neutral", "sentence1": null, "sentence2": "b"}', "expected NLI rows"),
        (nli_line("Neutral", "a", "b").strip(), "unknown label 'Neutral'; the labels are contradiction, entailment"),
        (nli_line("", "a", "b").strip(), "unknown label ''"),
    ],
)
def test_an_unusable_nli_row_names_file_line_and_reason(write, line, message):
    with pytest.raises(InputError, match=r"nli\.jsonl, line 6: " + re.escape(message)):
        read_nli(write("nli.jsonl", NLI + "\n" + line + "\n" + NLI))


# ----------------------------------------------------------------------------------------- duplicates

QUORA_ROWS = [
    LabelledPair("What is SQL?", "What does SQL mean?", 1),
    LabelledPair('What is "it"?', "Who wrote\nthis?", 0),
    LabelledPair("How, why\tand when?", 'Is it 5" long?', 0),
]
QUORA = (
    "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "0\t1\t2\tWhat is SQL?\t What does SQL mean? \t1\n"
    '1\t3\t4\t"What is ""it""?"\t"Who wrote\nthis?"\t0\n'
    "2\t5\t6\t\tWhat is this?\t0\n"
    '3\t7\t8\t"How, why\tand when?"\tIs it 5" long?\t0\n'
)
QUORA_COMMAS = (
    '"id","qid1","qid2","question1","question2","is_duplicate"\n'
    '"0","1","2","What is SQL?","What does SQL mean?","1"\n'
    '"1","3","4","What is ""it""?","Who wrote\nthis?","0"\n'
    '"2","5","6","What is this?","","0"\n'
    '"3","7","8","How, why\tand when?","Is it 5"" long?","0"\n'
)


@pytest.mark.parametrize("content", [QUORA, QUORA_COMMAS, "\ufeff" + QUORA], ids=["tabs", "commas", "mark"])
@pytest.mark.parametrize("name", ["quora.tsv", "quora.csv.gz"])
def test_quoras_release(write, name, content):
    assert read_duplicates(write(name, content)) == (QUORA_ROWS, 1)


@pytest.mark.parametrize(("limit", "rows", "skipped"), [(2, 2, 0), (3, 2, 1), (4, 3, 1)])
def test_the_first_rows_of_quoras_release(write, limit, rows, skipped):
    assert read_duplicates(write("quora.tsv", QUORA), limit) == (QUORA_ROWS[:rows], skipped)


@pytest.mark.parametrize(
    "content",
    [
        '1\tA cat.\tThe "cat\n0\tA, b\t"c"\n',
        'label\tsentence1\tsentence2\n1\tA cat.\tThe "cat\r\n\n0\tA, b\t"c"',
        'sentence1\tid\tsentence2\tLabel\nA cat.\t7\tThe "cat\t1\nA, b\t8\t"c"\t0',
        '1,A cat.,"The ""cat"\n0,"A, b","""c"""\n',
        'label,sentence1,sentence2\n1,A cat.,"The ""cat"\r\n\r\n0,"A, b","""c"""',
        'sentence2,sentence1,label\n"The ""cat",A cat.,1\n"""c""","A, b",0\n',
    ],
    ids=["tabs", "header", "other order", "commas", "comma header", "comma order"],
)
def test_pairs_of_a_plain_file(write, content):
    expected = [LabelledPair("A cat.", 'The "cat', 1), LabelledPair("A, b", '"c"', 0)]
    assert read_duplicates(write("mine.tsv", content)) == (expected, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1\ta\tb\nyes\ta\tb\n", "line 2: the label 'yes' is not 0 or 1"),
        ("1\ta\tb\n\n2\ta\tb\n", "line 3: the label '2' is not 0 or 1"),
        ("1,a,b\n0.5,a,b\n", "line 2: the label '0.5' is not 0 or 1"),
        ("1\ta\tb\n1\ta\n", "line 2: 2 columns; 3 are needed (is_duplicate, question1, question2)"),
        ("1\ta\tb\tc\n", "line 1: 4 columns; 3 are needed"),
        (QUORA + "4\t9\t10\ta\tb\n", "line 7: 5 columns; the header has 6"),
        (QUORA + '4\t9\t10\t"a\tb\t0\n5\t11\t12\tc\td\t1\n', "line 7: 4 columns; the header has 6"),
        (QUORA.replace("is_dup", "is_no_dup"), "line 1: 6 columns; 3 are needed"),
        ('1,a,b\n1,"a,b\n', "line 2: not comma-separated values: "),
        ("label\tsentence1\tsentence2\nlabel\tsentence1\tsentence2\n", "line 2: the header again"),
    ],
)
def test_an_unusable_row_of_pairs_names_file_line_and_reason(write, content, message):
    with pytest.raises(InputError, match=r"pairs\.tsv, " + re.escape(message)):
        read_duplicates(write("pairs.tsv", content))


# ------------------------------------------------------------------------------------------- triplets

TRIPLETS = [Triplet("A cat sits.", "A cat rests.", 'A "dog" runs.'), Triplet("One, two", "1, 2", "three")]
TRIPLET_FILES = {
    "a.tsv": 'A cat sits.\tA cat rests.\tA "dog" runs.\n\tx\ty\nOne, two\t1, 2\tthree\n',
    "b.tsv.gz": 'anchor\tpositive\tnegative\n A cat sits.\tA cat rests.\tA "dog" runs.\nx\t \ty\nOne, two\t1, 2\tthree',
    "c.csv": 'sent0,sent1,hard_neg\nA cat sits.,A cat rests.,"A ""dog"" runs."\nx,y,\n"One, two","1, 2",three\n',
    "d.jsonl": '{"anchor": "A cat sits.", "positive": "A cat rests.", "negative": "A \\"dog\\" runs."}\n'
    '{"anchor": "", "positive": "x", "negative": "y"}\n'
    '{"negative": "three", "anchor": "One, two", "positive": "1, 2", "id": 5}\n',
    "e.jsonl.gz": '["A cat sits.", "A cat rests.", "A \\"dog\\" runs."]\n["x", "y", ""]\n["One, two", "1, 2", "three"]',
}


@pytest.mark.parametrize("name", TRIPLET_FILES)
def test_triplets_in_every_format(write, name):
    assert read_triplets(write(name, TRIPLET_FILES[name])) == (TRIPLETS, 1)
    assert read_triplets(write(name, TRIPLET_FILES[name]), limit=1) == (TRIPLETS[:1], 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "a\tb\tc\na\tb\n", "line 2: 2 columns; the first row has 3"),
        ("t.jsonl", '["a", "b", "c"]\n["a", "b"]\n', "line 2: 2 texts; the first row has 3"),
        ("t.jsonl", '["a", "b", 3]', "line 1: expected triplets"),
        ("t.jsonl.gz", '{"anchor": "a", "positive": "b"}', "line 1: 2 texts; anchor, positive and negative are needed"),
    ],
)
def test_an_unusable_triplet_names_file_line_and_reason(write, name, content, message):
    with pytest.raises(InputError, match=re.escape(f"{name}, {message}")):
        read_triplets(write(name, content))


def test_triplets_of_nli_by_hand():
    """First entailment with first contradiction; neutral does not count; premises in the order of their first row."""
    rows = [
        LabelledPair("p", "p neutral", NEUTRAL),
        LabelledPair("q", "q no 1", CONTRADICTION),
        LabelledPair("p", "p no", CONTRADICTION),
        LabelledPair("only neutral", "x", NEUTRAL),
        LabelledPair("only neutral", "y", ENTAILMENT),
        LabelledPair("q", "q no 2", CONTRADICTION),
        LabelledPair("q", "q yes 1", ENTAILMENT),
        LabelledPair("no entailment", "z", CONTRADICTION),
        LabelledPair("p", "p yes", ENTAILMENT),
        LabelledPair("q", "q yes 2", ENTAILMENT),
    ]
    assert nli_triplets(rows) == [Triplet("p", "p yes", "p no"), Triplet("q", "q yes 1", "q no 1")]
    assert nli_triplets([]) == []


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=40))
def test_triplets_of_nli_equal_a_slow_search(drawn):
    rows = [LabelledPair(f"p{premise}", f"h{i}", label) for i, (premise, label) in enumerate(drawn)]
    expected = []
    for premise in dict.fromkeys(row.sentence1 for row in rows):
        yes = [row.sentence2 for row in rows if row.sentence1 == premise and row.label == 1]
        no = [row.sentence2 for row in rows if row.sentence1 == premise and row.label == 0]
        expected += [Triplet(premise, yes[0], no[0])] if yes and no else []
    assert nli_triplets(rows) == expected


# --------------------------------------------------------------------------------- sentences, splits


@pytest.mark.parametrize("name", ["wiki.txt", "wiki.txt.gz"])
def test_sentences_with_duplicates(write, name):
    content = 'A cat.\r\n\nNaïve 猫\n A cat. \n \t\na\u2028b, "c"\tand d'
    expected = ["A cat.", "Naïve 猫", "A cat.", 'a\u2028b, "c"\tand d']
    assert read_sentences(write(name, content)) == (expected, 2)
    assert read_sentences(write(name, content), limit=4) == (expected[:3], 1)


@given(st.integers(2, 60), st.sampled_from([0.5, 0.8, 0.9]), st.integers(0, 2**31))
def test_a_split_keeps_every_row_once(count, share, seed):
    rows = [f"row {i}" for i in range(count)]
    try:
        first, rest = split_rows(rows, share, seed)
    except ValueError:
        assert round(share * count) == count
        return
    assert len(first) == round(share * count)
    assert sorted(first + rest) == sorted(rows)
    assert split_rows(rows, share, seed) == (first, rest)


def test_a_split_is_random_and_changes_with_the_seed():
    rows = list(range(1000))
    first, rest = split_rows(rows, 0.8, seed=1)
    assert (len(first), len(rest)) == (800, 200)
    assert 350 < sum(rest) / 200 < 650  # the mean of the last 200 rows would be 899.5
    assert split_rows(rows, 0.8, seed=2) != (first, rest)


@pytest.mark.parametrize(("count", "share"), [(0, 0.5), (1, 0.5), (10, 0.0), (10, 1.0), (10, 1.5), (10, -0.2)])
def test_a_split_with_an_empty_side(count, share):
    with pytest.raises(ValueError, match=f"a share of {share} of {count} rows leaves one side empty"):
        split_rows(list(range(count)), share, seed=0)


# --------------------------------------------------------------------------------------- every reader

READERS = {"nli.jsonl": read_nli, "pairs.tsv": read_duplicates, "triplets.csv": read_triplets, "s.txt": read_sentences}


@pytest.mark.parametrize("name", READERS)
def test_a_file_without_rows(write, name):
    for content in ("", "\n \n", "\ufeff"):
        with pytest.raises(InputError, match=f"{re.escape(name)} holds no usable rows"):
            READERS[name](write(name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nli.jsonl", nli_line("-", "a", "b") * 2),
        ("pairs.tsv", "1\t\tb\n0\ta\t\n"),
        ("triplets.csv", "anchor,positive,negative\n,b,c\na,b,\n"),
        ("s.txt", " \n\t\n"),
    ],
)
def test_a_file_with_only_skipped_rows_says_so(write, name, content):
    with pytest.raises(InputError, match=rf"{re.escape(name)} holds no usable rows \(2 were skipped\)"):
        READERS[name](write(name, content))


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_not_utf8_names_the_line(write, name):
    good = {"nli.jsonl": NLI.splitlines()[0], "pairs.tsv": "1\ta\tb", "triplets.csv": "a,b,c", "s.txt": "a"}[name]
    with pytest.raises(InputError, match=rf"{re.escape(name)}, line 3: not UTF-8 \(byte 0xe9\)"):
        READERS[name](write(name, f"{good}\n{good}\n".encode() + b"caf\xe9\n"))


@pytest.mark.parametrize("name", ["s.txt", "s.txt.gz"])
def test_a_line_too_long_to_tokenize(write, name):
    with pytest.raises(InputError, match=rf"{re.escape(name)}, line 2: longer than 4,194,304 bytes; split the text"):
        read_sentences(write(name, "a\n" + "b" * (LONGEST_LINE + 2) + "\nc\n"))


def test_a_lone_surrogate_in_json_names_file_and_line(write):
    """No file can hold one, but JSON can escape it."""
    path = write("nli.jsonl", NLI.splitlines()[0] + "\n" + nli_line("neutral", "a \ud800 b", "c"))
    with pytest.raises(InputError, match=r"nli\.jsonl, line 2: not valid Unicode: a lone surrogate in"):
        read_nli(path)


@pytest.mark.parametrize("reader", READERS.values())
def test_missing_file_and_folder(tmp_path, reader):
    with pytest.raises(InputError, match=r"nowhere\.txt does not exist"):
        reader(tmp_path / "nowhere.txt")
    with pytest.raises(InputError, match="is a folder, a file is needed"):
        reader(tmp_path)
