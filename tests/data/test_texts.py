"""The texts of a file, for the commands that encode and search them."""

import pytest

from minisbert.core import InputError
from minisbert.data.rows import every_text

TEXTS = ["the dog, small", "a cat", "the moon"]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "  the dog, small\t\n a cat\nthe moon"),
        ("a", "\ufeffthe dog, small\r\na cat\r\nthe moon\r\n"),
        (
            "a.jsonl",
            '{"id": 1, "text": "the dog, small "}\n{"text": "a cat"}\n{"text": "the moon"}',
        ),
        ("a.txt", '{"text": "the dog, small"}\n{"text": "a cat"}\n{"text": "the moon"}\n'),
        ("a.json", '[{"text": "the dog, small"}, {"text": "a cat"}, {"text": "the moon"}]'),
        ("a.json", '["the dog, small", "a cat", "the moon"]'),
        ("a.csv", 'Text,id\n"the dog, small",1\na cat,2\nthe moon,3\n'),
        ("a.tsv", "id\tsentence\n1\tthe dog, small\n2\ta cat\n3\tthe moon\n"),
        (
            "a.jsonl",
            '{"contents": "the dog, small"}\n{"contents": "a cat"}\n{"contents": "the moon"}',
        ),
    ],
)
def test_every_form_gives_the_same_texts(write, name, content, ending):
    assert list(every_text(write(f"{name}{ending}", content))) == TEXTS


def test_columns_name_the_texts(write):
    path = write("a.csv", "Nr,Frage\n1,a\n2,b\n")
    assert list(every_text(path, "frage")) == ["a", "b"]
    assert list(every_text(write("b.csv", "1,a\n2,b\n"), "2")) == ["a", "b"]


def test_names_that_a_file_may_lack(write):
    """search has one --columns for a corpus and for queries."""
    queries = write("a.txt", "a\nb\n")
    assert list(every_text(queries, "Frage", names_may_lack=True)) == ["a", "b"]
    queries = write("a.csv", "text,id\na,1\n")
    assert list(every_text(queries, "Frage", names_may_lack=True)) == ["a"]


def test_one_line_says_what_was_read(write, capsys):
    """Keys of later rows too. A file of lines has nothing to tell."""
    path = write("a.jsonl", '{"id": 1, "text": "a"}\n{"text": "b", "source": "c"}\n')
    list(every_text(path))
    assert capsys.readouterr().err == f"{path}: 2 rows; text; not read: id, source\n"
    list(every_text(path, is_told=True))
    list(every_text(write("a.txt", "a\n")))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.txt", "a cat\n \nthe moon", "line 2"),
        ("a.txt", "a\r\n\r\n", "line 2"),
        ("a.jsonl", '{"text": "a cat"}\n{"text": ""}\n{"text": "b"}', "line 2"),
        ("a.csv", "id,text\n1,a\n2,\n3,b\n", "line 3"),
        ("a.json", '[{"text": "a"}, {"text": null}, {"text": "b"}]', "item 2"),
    ],
)
def test_a_blank_text_is_refused_or_kept(write, name, content, place):
    """encode writes a vector for each line, so none may be left out; search skips and counts."""
    path = write(name, content)
    with pytest.raises(InputError, match=rf"{name}, {place}: an empty line has no text to encode"):
        list(every_text(path))
    assert list(every_text(path, blanks=True))[1] == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a\.txt is empty"),
        ("a.txt", " \n\n", r"a\.txt is empty"),
        ("a.jsonl", "\n", r"a\.jsonl is empty"),
        ("a.json", "[]", r"a\.json is empty"),
        ("a.csv", "text\n", r"a\.csv is empty: it holds no text"),
        ("a.csv", "query,positive\na,b\n", "--columns query or --columns positive"),
        ("a.csv", "id,text\n1,a,b\n", "line 2: 3 cells"),
        ("a.jsonl", '{"text": "a"}\n7\n', "line 2: 7"),
        ("a.jsonl", '{"text": "a"}\n{"body": "b"}\n', "line 2: no 'text'; the keys are body"),
        ("a.csv", "text\na\n\"['b', 'c']\"\n", "line 3: a text"),
        ("a.jsonl", '{"text": 5}', "line 1: a text"),
        ("a.csv", "text,summary\na,b\n", "--columns text or --columns summary"),
    ],
)
def test_what_is_not_texts_is_refused(write, name, content, message):
    with pytest.raises(InputError, match=message):
        list(every_text(write(name, content)))
