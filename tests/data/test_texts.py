"""One reader of texts for all commands: lines, .jsonl and tables; never raw lines, headers or braces."""

import gzip
import json

import pytest

from minisbert.commands import encode, mine, pairs, search
from minisbert.core import InputError
from minisbert.data.lines import every_text, read_texts

TEXTS = ["the dog, small", "a cat", "the moon"]
LINES = "\n".join(f"  {text}\t" for text in TEXTS)
OBJECTS = [{"id": 1, "text": "small ", "title": "the dog,"}, {"text": "a cat", "label": 0}, {"text": " the moon"}]
JSON = "\n".join(map(json.dumps, OBJECTS))
FILES = {
    "lines.txt": LINES,
    "no ending": "\ufeff" + LINES.replace("\n", "\r\n"),
    "rows.jsonl": JSON,
    "rows.csv": 'Text,id\n"the dog, small",1\na cat,2\nthe moon,3\n',
    "rows.tsv": "id\ttitle\tsentence\n1\tthe dog,\tsmall\n2\t\ta cat\n3\t\tthe moon\n",
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_same_texts(tmp_path, name, packed):
    path, content = tmp_path / name, FILES[name].encode()
    if packed:
        path, content = tmp_path / f"{name}.gz", gzip.compress(content)
    path.write_bytes(content)
    assert [text for _, text in read_texts(path)] == list(every_text(path)) == TEXTS


def test_blank_texts_are_counted_or_refused(tmp_path):
    for name, content, line in (
        ("a.txt", "a cat\n \nthe moon", 2),
        ("a.jsonl", '{"text": "a cat"}\n{"text": ""}\n{"text": "b"}', 2),
        ("a.csv", "id,text\n1,a\n2,\n3,b\n", 3),
    ):
        (tmp_path / name).write_text(content)
        assert [text != "" for _, text in read_texts(tmp_path / name)] == [True, False, True]
        with pytest.raises(InputError, match=rf"{name}, line {line}: an empty line has no text"):
            list(every_text(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a\.txt is empty"),
        ("a.jsonl", "\n", r"a\.jsonl is empty"),
        ("a.csv", "", r"a\.csv: a column text is needed, its columns are none"),
        ("a.csv", "text\n", r"a\.csv is empty"),
        ("a.csv", "query,positive\na,b\n", "a column text is needed, its columns are 'query', 'positive'; or a .txt"),
        ("a.csv", "id,text\n1,a,b\n", r"a\.csv, line 2: 3 cells, the header has 2"),
        ("a.tsv", "1\ta cat\n2\ta dog\n", "a column text is needed, its columns are '1', 'a cat'"),
        (
            "a.jsonl",
            '{"text": "a"}\n"b"\n',
            r"a\.jsonl, line 2: text and maybe title are needed, both strings, not 'b'",
        ),
        ("a.jsonl", '{"query": "a"}', r"a\.jsonl, line 1: text and maybe title are needed"),
        ("a.jsonl", '{"text": 5}', r"a\.jsonl, line 1: text and maybe title are needed"),
        ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl, line 1: .*surrogate"),
        ("a.jsonl", "{", r"a\.jsonl, line 1: not valid JSON"),
    ],
)
def test_what_is_not_texts_is_refused_by_every_command(tiny, tmp_path, name, content, message):
    path, out = tmp_path / name, ["--model", str(tiny), "--out"]
    path.write_text(content)
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n")
    for command in (
        lambda: encode.main(["--file", str(path), *out, str(tmp_path / "v.npy")]),
        lambda: encode.main(["--file", str(path), *out, str(tmp_path / "shards"), "--shard-rows", "2"]),
        lambda: mine.main(
            ["--pairs", str(tmp_path / "pairs.tsv"), "--corpus", str(path), *out, str(tmp_path / "o.jsonl")]
        ),
        lambda: pairs.main([str(path), "--model", str(tiny)]),
        lambda: search.main([str(path), "--model", str(tiny), "--query", "a"]),
        lambda: search.main([str(tmp_path / "pairs.txt"), "--model", str(tiny), "--queries", str(path)]),
    ):
        with pytest.raises(InputError, match=message):
            command()
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, "pairs.tsv"])
