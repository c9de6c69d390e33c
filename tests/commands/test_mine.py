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
    named = [
        "--pairs",
        files / "pairs.tsv",
        "--corpus",
        files / "corpus.txt",
        "--out",
        files / "out.jsonl",
    ]
    return [*map(str, named), "--model", str(tiny), *more]


@pytest.mark.parametrize("corpus", ["txt", "jsonl"])
def test_the_command_writes_triplets_that_training_reads(files, tiny, capsys, corpus):
    texts = (files / "corpus.txt").read_text().splitlines()
    rows = [json.dumps({"_id": str(i), "text": text}) for i, text in enumerate(texts)]
    (files / "corpus.jsonl").write_text("\n".join(rows))
    main(
        [
            *command(files, tiny, "--num-negatives", "2"),
            "--corpus",
            str(files / f"corpus.{corpus}"),
            "--json",
        ]
    )
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "3 rows, 1 skipped (an empty text or no label); anchor, positive" in captured.err
    assert (found["anchors"], found["pairs"], found["documents"]) == (2, 3, 8)
    assert (found["negatives"], found["triplets"], found["anchors_without_negative"]) == (4, 6, 0)
    assert found["left_out"] == {"copy of anchor or positive": 1}
    rows = read_rows(files / "out.jsonl", Columns(3)).rows
    pairs = ("a small dog", "the dog"), ("the moon", "the sky"), ("the moon", "a star")
    assert [row[:2] for row in rows] == [pair for pair in pairs for _ in range(2)]
    assert not {negative for _, _, negative in rows[:2]} & {"the dog", "The  Dog"}
    assert rows[2][2] == rows[4][2] != rows[3][2]


def test_the_columns_of_the_pairs(files, tiny):
    (files / "pairs.csv").write_text("to,note,from\nthe dog,x,a small dog\nthe sky,y,the moon\n")
    for columns in ("from,to", "1,2"):
        if columns == "1,2":
            (files / "pairs.csv").write_text("a small dog,the dog,x\nthe moon,the sky,y\n")
        main([*command(files, tiny), "--pairs", str(files / "pairs.csv"), "--columns", columns])
        rows = [row[:2] for row in read_rows(files / "out.jsonl", Columns(3)).rows]
        assert [*dict.fromkeys(rows)] == [("a small dog", "the dog"), ("the moon", "the sky")]


def test_negatives_in_the_pairs_and_the_summary(files, tiny, capsys):
    names = ("anchor", "positive", "negative")
    rows = [("a small dog", "the dog", "rain"), ("the moon", "the sky", "snow")]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (files / "pairs.jsonl").write_text("\n".join(lines))
    main([*command(files, tiny, "--max-score", "0.999"), "--pairs", str(files / "pairs.jsonl")])
    captured = capsys.readouterr()
    assert "only anchor and positive are read, not the 1 negatives of each row" in captured.err
    lines = captured.out.splitlines()
    assert lines[0] == "2 anchors with 2 positives, 7 documents"
    assert any(line.endswith("candidates left out: max score") for line in lines)
    assert lines[-2].startswith("mean cosine similarity to the anchor: positives ")
    assert "--relative-margin" in lines[-1]  # negatives are as near as positives


def test_pairs_that_the_file_lacks_are_named(files, tiny, capsys):
    """No candidate is further from an anchor than the furthest text."""
    texts, encoder = (
        ["snow", "a man plays", "the guitar", "a small dog"],
        SentenceEncoder.load(tiny),
    )
    (furthest,) = [
        texts[i] for i in top_k(-encoder.encode(["the moon"]), encoder.encode(texts), 1)[1][0]
    ]
    (files / "corpus.txt").write_text("\n".join(texts))
    rows = f"a small dog\ta small dog\nthe moon\t{furthest}\nthe moon\tthe moon\n"
    (files / "pairs.tsv").write_text("anchor\tpositive\n" + rows)
    main(command(files, tiny, "--absolute-margin", "0.001", "--json"))
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["anchors_without_negative"], found["pairs_without_negative"], found["pairs"]) == (
        1,
        2,
        3,
    )
    message = (
        "2 of 3 pairs are not in the file, no candidate is left for their anchors: 'the moon'; "
        "relax the margins"
    )
    assert message in captured.err
    rows = read_rows(files / "out.jsonl", Columns(3)).rows
    assert {row[0] for row in rows} == {"a small dog"}


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="this system has no /dev/fd")
def test_pairs_from_a_pipe_replace_an_old_file(files, tiny):
    """``--pairs <(cat pairs.tsv)``: a path of the shell that no other path equals."""
    reader, writer = os.pipe()
    os.write(writer, (files / "pairs.tsv").read_bytes())
    os.close(writer)
    (files / "out.jsonl").write_text("old")
    main([*command(files, tiny), "--pairs", f"/dev/fd/{reader}"])
    os.close(reader)
    assert len(read_rows(files / "out.jsonl", Columns(3)).rows) > 1


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
    (files / "out.jsonl").write_text('["a cat", "the cat"]\n')
    with pytest.raises(InputError, match=message):
        main(
            command(files, tiny, *(text.replace("OUT", str(files / "out.jsonl")) for text in more))
        )
    assert (files / "out.jsonl").read_text() == '["a cat", "the cat"]\n'
