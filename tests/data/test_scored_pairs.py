"""Readers of scored sentence pairs and of plain lines."""

import io
import os
import re

import pytest

from minisbert.core import InputError
from minisbert.data.rows import LONGEST_LINE, text_lines
from minisbert.data.scored_pairs import ScoredPair, load_scored_pairs, read_scored_pairs

CATS = ScoredPair("A cat sits.", "A kitten is sitting.", 4.2)
DOGS = ScoredPair('He said "sit', "The dog, it sat", 0.0)


@pytest.fixture
def read(tmp_path):
    """Write a file and read it as scored pairs."""

    def write_and_read(content: str | bytes) -> list[ScoredPair]:
        path = tmp_path / "pairs.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_scored_pairs(path)

    return write_and_read


STSB_7 = (
    "main-captions\tMSRvid\t2012test\t0024\t4.2\tA cat sits.\tA kitten is sitting.\n"
    'main-news\theadlines\t2013\t0025\t0.0\tHe said "sit\tThe dog, it sat\n'
)
STSB_9 = STSB_7.replace("sitting.\n", "sitting.\tlicence one\tlicence two\n")
TABS = '4.2\tA cat sits.\tA kitten is sitting.\n0\tHe said "sit\tThe dog, it sat\n'
COMMAS = '4.2,A cat sits.,A kitten is sitting.\n0,"He said ""sit","The dog, it sat"\n'
FORMS = {"stsb 7 columns": STSB_7, "stsb some with 9": STSB_9, "tabs": TABS, "commas": COMMAS}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("change", ["as it is", "line ends", "byte order mark", "no last line end", "blank lines"])
def test_the_same_pairs_in_every_format(read, content, change):
    if change == "line ends":
        content = content.replace("\n", "\r\n")
    elif change == "byte order mark":
        content = "\ufeff" + content
    elif change == "no last line end":
        content = content.removesuffix("\n")
    elif change == "blank lines":
        content = content.replace("\n", "\n\n") + " \n\n"
    assert read(content) == [CATS, DOGS]


@pytest.mark.parametrize("header", ["score,sentence1,sentence2\n", "Score,Sentence1,Sentence2\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_header_is_skipped(read, header, mark):
    assert read(mark + header + COMMAS) == [CATS, DOGS]
    assert read(mark + header.replace(",", "\t") + TABS) == [CATS, DOGS]


def test_the_header_of_stsb_is_skipped(read):
    header = "genre\tfile\tyear\tid\tscore\tsentence1\tsentence2"
    assert read(f"{header}\n{STSB_7}") == [CATS, DOGS]
    assert read(f"{header}\tsource1\tsource2\n{STSB_9}") == [CATS, DOGS]


def test_a_short_row_of_stsb(read):
    with pytest.raises(InputError, match=r"line 3: 6 columns; 3 are needed .* or STS-B's 7"):
        read(STSB_7 + "main-news\theadlines\t2013\t0025\t0.0\tA cat sits.\n")


def test_header_words_further_down_are_a_row(read):
    with pytest.raises(InputError, match="line 3: the score 'score' is not a number"):
        read(TABS + "score\tsentence1\tsentence2\n")


def test_quotes_in_tab_separated_files_are_text(read):
    (pair,) = read('3\t"all quoted"\t"a, b" and "c\n')
    assert (pair.sentence1, pair.sentence2) == ('"all quoted"', '"a, b" and "c')


def test_a_quoted_line_end_stays_in_its_sentence(read):
    """Or "cat" and "sat" would become one word."""
    pairs = read('3,"a cat\nsat","b"\r\n2,"c\r\nd",e\n1,f,g\n')
    assert pairs == [ScoredPair("a cat\nsat", "b", 3.0), ScoredPair("c\nd", "e", 2.0), ScoredPair("f", "g", 1.0)]


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_other_line_separators_do_not_split_a_sentence(read, mark):
    expected = [ScoredPair(f"a{mark}b", f"c{mark}d", 3.0), ScoredPair("e", "f", 1.0)]
    assert read(f"3\ta{mark}b\tc{mark}d\n1\te\tf\n") == expected
    assert read(f"g\tf\ty\ti\t3\ta{mark}b\tc{mark}d\ng\tf\ty\ti\t1\te\tf\n") == expected
    assert read(f'3,a{mark}b,"c{mark}d"\n1,e,f\n') == expected


def test_a_tab_inside_a_comma_separated_sentence(read):
    """The first line decides the format."""
    assert read("1,e,f\n3,a\tb,c\td\n") == [ScoredPair("e", "f", 1.0), ScoredPair("a\tb", "c\td", 3.0)]


def test_spaces_around_sentences_and_scores_are_dropped(read):
    assert read(" 4.2 \t A cat sits. \tA kitten is sitting. \n") == [CATS]


@pytest.mark.parametrize(("cell", "score"), [("0", 0.0), ("5", 5.0), ("5.000", 5.0), ("2.5e0", 2.5), ("-0", 0.0)])
def test_scores_at_the_ends_of_the_scale(read, cell, score):
    assert read(f"{cell},a,b\n")[0].score == score


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3\ta", "2 columns; 3 are needed"),
        ("3\ta\tb\tc", "4 columns; 3 are needed"),
        ("g\tf\ty\ti\t3\ta", "6 columns; 3 are needed"),
        ("high\ta\tb", "the score 'high' is not a number"),
        ("\ta\tb", "the score '' is not a number"),
        ("1,5\ta\tb", "the score '1,5' is not a number"),
        ("nan\ta\tb", "the score nan is not on the scale of 0 to 5"),
        ("inf\ta\tb", "the score inf is not on the scale of 0 to 5"),
        ("-inf\ta\tb", "the score -inf is not on the scale of 0 to 5"),
        ("-1\ta\tb", "the score -1 is not on the scale of 0 to 5"),
        ("5.1\ta\tb", "the score 5.1 is not on the scale of 0 to 5"),
        ("3\t\tb", "an empty sentence"),
        ("3\ta\t", "an empty sentence"),
        ("3\ta\t  ", "an empty sentence"),
    ],
)
def test_an_unusable_row_names_file_line_and_reason(read, tmp_path, row, message):
    where = re.escape(f"{tmp_path / 'pairs.csv'}, line 4: ")
    with pytest.raises(InputError, match=where + re.escape(message)):
        read(TABS + "\n" + row + "\n" + TABS)
    if "," not in row:
        with pytest.raises(InputError, match=where + re.escape(message)):
            read(COMMAS + "\n" + row.replace("\t", ",") + "\n" + COMMAS)


def test_the_line_of_a_row_is_where_it_starts(read):
    with pytest.raises(InputError, match="line 3: the score 9"):
        read('3,"a\nb",c\n9,"d\n\n\ne",f\n')


@pytest.mark.parametrize("content", ['3,"a,b\n', '3,"a"x,b\n'])
def test_broken_quotes_name_file_and_line(read, content):
    with pytest.raises(InputError, match=r"pairs\.csv, line 3: not comma-separated values"):
        read(COMMAS + content)


@pytest.mark.parametrize(
    "content", ["", "\n\n", "\ufeff", "score,sentence1,sentence2\n", "score\tsentence1\tsentence2"]
)
def test_a_file_without_pairs(read, content):
    with pytest.raises(InputError, match=r"pairs\.csv holds no usable rows"):
        read(content)


def test_a_file_that_is_not_utf8_names_the_line(read):
    with pytest.raises(InputError, match=r"pairs\.csv, line 2: not UTF-8 \(byte 0xe9\)"):
        read(b"3,a,b\n3,caf\xe9,b\n")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv does not exist"):
        read_scored_pairs(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_scored_pairs(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_that_may_have_no_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(InputError, match=r"pipe\.tsv is a pipe, a file is needed"):
        read_scored_pairs(tmp_path / "pipe.tsv")


def test_a_line_too_long_to_tokenize(read):
    longest = b"3\ta\t" + b"b" * (LONGEST_LINE - 5) + b"\n"
    assert len(read(longest)[0].sentence2) == LONGEST_LINE - 5
    with pytest.raises(InputError, match=r"pairs\.csv, line 2: longer than 4,194,304 bytes; split the text"):
        read(b"3\ta\tb\n" + longest.replace(b"a", b"aaa") * 2)


def test_load_reads_a_file_whatever_the_split(tmp_path):
    (tmp_path / "mine.csv").write_text(COMMAS, encoding="utf-8")
    assert load_scored_pairs(str(tmp_path / "mine.csv"), "dev") == [CATS, DOGS]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_load_takes_the_split_of_the_benchmark(tmp_path, monkeypatch, split):
    monkeypatch.setattr("minisbert.data.scored_pairs.ensure", lambda name: tmp_path / name)
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / f"sts-{split}.csv").write_text(STSB_9, encoding="utf-8")
    assert load_scored_pairs("stsb", split) == [CATS, DOGS]


def test_an_unknown_split_is_refused_before_anything_is_fetched(monkeypatch):
    monkeypatch.setattr("minisbert.data.scored_pairs.ensure", lambda name: pytest.fail("fetched"))
    with pytest.raises(InputError, match="unknown split 'validation'; choose from train, dev, test"):
        load_scored_pairs("stsb", "validation")


# ------------------------------------------------------------------------------------- plain lines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        (" a \t\n", ["a"]),
        ("a\u0085b\u2028c\n\x0cd", ["a\u0085b\u2028c", "d"]),
        ("\ufeffa\nb", ["a", "b"]),  # a byte order mark is not text
    ],
)
def test_text_lines(text, expected):
    assert list(text_lines(io.BytesIO(text.encode()), "stdin")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stdin is empty"),
        ("\n", "stdin, line 1: an empty line"),
        ("a\n\nb\n", "stdin, line 2: an empty line"),
        ("a\nb\n\n", "stdin, line 3: an empty line"),
        ("a\r\n\r\n", "stdin, line 2: an empty line"),
        ("a\n \t\n", "stdin, line 2: an empty line"),
        ("a\rb\r", "stdin: lines end in CR alone, as on old Macs; convert them"),
        ("a\rb", "stdin: lines end in CR alone"),
        ("a\n" + "b" * (LONGEST_LINE + 2), "stdin, line 2: longer than 4,194,304 bytes"),
    ],
)
def test_text_lines_without_text(text, message):
    with pytest.raises(InputError, match=message):
        list(text_lines(io.BytesIO(text.encode()), "stdin"))
