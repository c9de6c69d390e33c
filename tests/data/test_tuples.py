"""Pairs and rows with several negatives: every format, and the rows that cannot be read."""

import gzip
import re

import pytest

from minisbert.core import InputError
from minisbert.data.corpora import read_tuples

PAIRS = [("A cat sits.", 'A "cat" rests.'), ("One, two", "1, 2")]
PAIR_FILES = {
    "a.tsv": 'A cat sits.\tA "cat" rests.\n\tx\nOne, two\t1, 2\n',
    "b.tsv.gz": 'positive\tid\tAnchor\n A "cat" rests.\t7\tA cat sits. \n\t8\tx\n1, 2\t9\tOne, two',
    "c.csv": 'query,answer\r\nA cat sits.,"A ""cat"" rests."\r\nx, \r\n"One, two","1, 2"\r\n',
    "d.jsonl": '{"query": "A cat sits.", "positive": "A \\"cat\\" rests.", "id": 1}\n{"query": "", "positive": "x"}\n'
    '\n{"positive": "1, 2", "query": "One, two"}\n',
    "e.jsonl.gz": '["A cat sits.", "A \\"cat\\" rests."]\n["x", " "]\n["One, two", "1, 2"]',
}
SEVERAL = [("a", "p", "n", "m"), ("b", "q", "o", "k")]
SEVERAL_FILES = {
    "a.tsv": "a\tp\tn\tm\nb\tq\to\tk\n",
    "b.tsv": "negative_2\tanchor\tscore\tpositive\tnegative_1\nn\ta\t3\tp\tm\no\tb\t4\tq\tk\n",
    "c.csv": "question,answer,hard_neg,hard_neg2\na,p,n,m\nb,q,o,k\n",
    "d.jsonl": '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n'
    '{"negatives": ["o", "k"], "positive": "q", "anchor": "b"}\n',
    "e.jsonl": '["a", "p", "n", "m"]\n{"anchor": "b", "positive": "q", "negative": "o", "negative_2": "k"}\n',
}


def write(path, content):
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


@pytest.mark.parametrize("name", PAIR_FILES)
def test_pairs_in_every_format(tmp_path, name):
    path = write(tmp_path / name, PAIR_FILES[name])
    assert read_tuples(path) == (PAIRS, 1)
    assert read_tuples(path, limit=2) == (PAIRS[:1], 1)


@pytest.mark.parametrize("name", SEVERAL_FILES)
def test_several_negatives_in_every_format(tmp_path, name):
    assert read_tuples(write(tmp_path / name, SEVERAL_FILES[name])) == (SEVERAL, 0)


def test_a_triplet_is_a_row_with_one_negative(tmp_path):
    assert read_tuples(write(tmp_path / "t.csv", "sent0,sent1,hard_neg\na,p,n\n")) == ([("a", "p", "n")], 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.tsv", "a\tp\nb\n", "t.tsv, line 2: 1 columns; the first row has 2"),
        ("t.tsv", "anchor\tpositive\tid\n\na\tp\n", "t.tsv, line 3: 2 columns; the first row has 3"),
        ("t.txt", "only one\ncolumn\n", "t.txt, line 1: 1 column; anchor and positive are needed"),
        ("t.csv", "", "t.csv holds no usable rows"),
        ("t.csv", "anchor,positive\na,\n", "t.csv holds no usable rows (1 were skipped)"),
        ("t.jsonl", '["a", "p"]\n["a", "p", "n"]\n', "t.jsonl, line 2: 3 texts; the first row has 2"),
        ("t.jsonl", '{"anchor": "a"}', "t.jsonl, line 1: expected pairs or triplets"),
        ("t.jsonl", '["a"]', "t.jsonl, line 1: expected pairs or triplets"),
        ("t.jsonl", '["a", "p"]\n"a"', "t.jsonl, line 2: expected pairs or triplets"),
        ("t.jsonl", '{"anchor": "a", "positive": 3}', "t.jsonl, line 1: expected pairs or triplets"),
        (
            "t.jsonl",
            '{"anchor": "a", "positive": "p", "negative": [["n"]]}',
            "t.jsonl, line 1: expected pairs or triplets",
        ),
        ("t.jsonl", '["a", "\\ud800"]', "t.jsonl, line 1: not valid Unicode"),
        ("t.jsonl", '["a", ', "t.jsonl, line 1: not valid JSON"),
    ],
)
def test_an_unusable_row_names_file_line_and_reason(tmp_path, name, content, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_tuples(write(tmp_path / name, content))
