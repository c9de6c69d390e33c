"""The mine command: triplets that training reads, what is reported, and what is refused."""

import json
import os

import pytest

from minisbert.commands.mine import main
from minisbert.core import InputError
from minisbert.data.columns import Columns
from minisbert.data.rows import read_rows
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k


@pytest.fixture
def files(tmp_path):
    """A file of pairs, a corpus, and the arguments that name them and the tiny model."""
    rows = "a small dog\tthe dog\nthe moon\tthe sky\n\tnothing\nthe moon\ta star\n"
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\n" + rows)
    (tmp_path / "corpus.txt").write_text("snow\nThe  Dog\na man plays\n\nthe guitar\nrain\n")
    return tmp_path


def command(files, tiny, *more: str) -> list[str]:
    return [
        "--pairs",
        str(files / "pairs.tsv"),
        "--corpus",
        str(files / "corpus.txt"),
        "--out",
        str(files / "out.jsonl"),
        "--model",
        str(tiny),
        *more,
    ]


def written(files) -> list[tuple]:
    """The triplets as training reads them."""
    return read_rows(files / "out.jsonl", Columns(3)).rows


def test_the_command_writes_triplets_that_training_reads(files, tiny):
    """A triplet for each positive and each negative of its anchor, which share the negatives."""
    main(command(files, tiny, "--num-negatives", "2"))
    rows = written(files)
    assert [row[:2] for row in rows] == [
        ("a small dog", "the dog"),
        ("a small dog", "the dog"),
        ("the moon", "the sky"),
        ("the moon", "the sky"),
        ("the moon", "a star"),
        ("the moon", "a star"),
    ]
    negatives = [row[2] for row in rows]
    assert negatives[2:4] == negatives[4:6]
    assert negatives[2] != negatives[3]
    # near-duplicates of the positive are no negatives
    assert "the dog" not in negatives[:2]
    assert "The  Dog" not in negatives[:2]


@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_the_counts_as_json(files, tiny, capsys, form):
    """The same for a corpus of lines and one of JSON."""
    corpus = files / "corpus.txt"
    if form == "jsonl":
        rows = []
        for i, text in enumerate(corpus.read_text().splitlines()):
            rows.append(json.dumps({"_id": str(i), "text": text}))
        corpus = files / "corpus.jsonl"
        corpus.write_text("\n".join(rows))
    main(command(files, tiny, "--num-negatives", "2", "--corpus", str(corpus), "--json"))
    captured = capsys.readouterr()
    assert "3 rows, 1 skipped (an empty text or no label); anchor, positive" in captured.err
    result = json.loads(captured.out)
    assert result["anchors"] == 2
    assert result["pairs"] == 3
    assert result["documents"] == 8
    assert result["negatives"] == 4
    assert result["triplets"] == 6
    assert result["anchors_without_negative"] == 0
    assert result["pairs_without_negative"] == 0
    assert result["anchors_with_fewer"] == 0
    assert result["left_out"] == {"copy of anchor or positive": 1}


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("to,note,from\nthe dog,x,a small dog\nthe sky,y,the moon\n", "from,to"),
        ("a small dog,the dog,x\nthe moon,the sky,y\n", "1,2"),
    ],
)
def test_the_columns_of_the_pairs(files, tiny, content, columns):
    """By name, or by number without a header."""
    (files / "pairs.csv").write_text(content)
    main(command(files, tiny, "--pairs", str(files / "pairs.csv"), "--columns", columns))
    pairs = {row[:2] for row in written(files)}
    assert pairs == {("a small dog", "the dog"), ("the moon", "the sky")}


def test_negatives_of_an_earlier_mining_are_not_read(files, tiny, capsys):
    """Mining again with another model begins with the pairs alone, and says so."""
    path = files / "pairs.jsonl"
    path.write_text(
        '{"anchor": "a small dog", "positive": "the dog", "negative": "rain"}\n'
        '{"anchor": "the moon", "positive": "the sky", "negative": "snow"}\n'
    )
    main(command(files, tiny, "--pairs", str(path)))
    message = "only anchor and positive are read, not the 1 negatives of each row"
    assert message in capsys.readouterr().err


def test_the_summary(files, tiny, capsys):
    """Counts first, then how near the negatives are, and what to do if they are too near."""
    (files / "pairs.tsv").write_text("anchor\tpositive\na small dog\tthe dog\nthe moon\tthe sky\n")
    main(command(files, tiny, "--max-score", "0.999"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 anchors with 2 positives, 7 documents"
    assert any(line.endswith("candidates left out: max score") for line in lines)
    assert lines[-2].startswith("mean cosine similarity to the anchor: positives ")
    assert "--relative-margin" in lines[-1]  # negatives are as near as positives


def test_pairs_that_the_file_lacks_are_named(files, tiny, capsys):
    """No candidate is further from an anchor than the furthest text."""
    texts = ["snow", "a man plays", "the guitar", "a small dog"]
    encoder = SentenceEncoder.load(tiny)
    _, indices = top_k(-encoder.encode(["the moon"]), encoder.encode(texts), 1)
    furthest = texts[indices[0, 0]]
    (files / "corpus.txt").write_text("\n".join(texts))
    rows = f"a small dog\ta small dog\nthe moon\t{furthest}\nthe moon\tthe moon\n"
    (files / "pairs.tsv").write_text("anchor\tpositive\n" + rows)

    main(command(files, tiny, "--absolute-margin", "0.001", "--json"))
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["anchors_without_negative"] == 1
    assert result["pairs_without_negative"] == 2
    assert result["pairs"] == 3
    message = (
        "2 of 3 pairs are not in the file, no candidate is left for their anchors: 'the moon'; "
        "relax the margins"
    )
    assert message in captured.err
    assert {row[0] for row in written(files)} == {"a small dog"}


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
def test_pairs_from_a_pipe_replace_an_old_file(files, tiny):
    """``--pairs <(cat pairs.tsv)``: a path of the shell that no other path equals."""
    reader, writer = os.pipe()
    os.write(writer, (files / "pairs.tsv").read_bytes())
    os.close(writer)
    (files / "out.jsonl").write_text("old")
    main(command(files, tiny, "--pairs", f"/dev/fd/{reader}"))
    os.close(reader)
    assert len(written(files)) > 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--absolute-margin", "2.5"], "absolute margin"),
        (["--out", "out.tsv"], r"\.jsonl"),
        (["--pairs", "no.tsv"], "no.tsv does not exist"),
        (["--corpus", "no.txt"], "no.txt does not exist"),
        (["--query-prompt-name", "nobody"], "the model has no prompt"),
        (["--pairs", "OUT"], "which this command reads"),
    ],
)
def test_bad_input_is_an_error_and_keeps_the_old_file(files, tiny, more, message):
    """The file may be the result of an hour."""
    out = files / "out.jsonl"
    out.write_text('["a cat", "the cat"]\n')
    more = [text.replace("OUT", str(out)) for text in more]
    with pytest.raises(InputError, match=message):
        main(command(files, tiny, *more))
    assert out.read_text() == '["a cat", "the cat"]\n'
