"""What ``inspect`` says "Train with" about, the readers of training read: files of every format, damaged at random."""

import gzip
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.diagnosis.inspection import compare_files, inspect, training_command
from tests.commands.test_inspect import train_on

HEADERS = ("", "score,sentence1,sentence2", "label,sentence1,sentence2", "id,question1,question2,is_duplicate")
HEADERS += (
    "labels,sentence1,sentence2",
    "anchor,positive",
    "query,answer",
    "anchor,positive,negative",
    "text1,text2,similarity",
    "rating,left,right",
)
WORD = st.sampled_from('cat|a dog|the "old" house|"|7|3.5|| |a, b|a;b|{|nan|é\0|-'.split("|"))
TEXT = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
LABEL = st.sampled_from(["0", "1", "2", "5", "0.5", "1.0", "-1", "100", "nan", "neutral", "-", "1,5", "high", ""])
GOOD_LABELS = st.sampled_from([("0", "1"), ("0", "2.5", "5"), ("0.1", "0.9"), ("0", "100"), ("1",), ("neutral", "-")])
STRAY = ("", " ", "\t", ",", "x", '"', '{"a"', "[]", "null", '{"anchor": "a"}', '["a"]', '["a", "b"]')
STRAY += ("1\ta\tb", "1,a,b")


@st.composite
def tables(draw) -> list[str]:
    mark = draw(st.sampled_from("\t\t\t,,,,;"))
    labels, place = draw(GOOD_LABELS), draw(st.sampled_from([None, 0, 0, 0, 0, 1]))
    width, plain = draw(st.integers(1, 4)), draw(st.booleans())
    header = draw(st.sampled_from(HEADERS)).replace(",", mark)
    lines = [header] if header else []
    for i in range(draw(st.integers(1, 25))):
        cells = [f"cat {i} {j}" if plain else draw(TEXT) for j in range(width)]
        if place is not None:
            cells.insert(place, draw(LABEL) if draw(st.integers(0, 60)) == 0 else labels[i % len(labels)])
        if mark == "," and draw(st.booleans()):
            cells = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        lines.append(mark.join(cells))
    return lines


@st.composite
def json_lines(draw) -> list[str]:
    keys = draw(st.sampled_from([HEADERS[1], *HEADERS[4:8:2], "gold_label,sentence1,sentence2", "text", ""]))
    plain = draw(st.booleans())
    lines = []
    for i in range(draw(st.integers(1, 25))):
        texts = [f"cat {i} {j}" if plain else draw(TEXT) for j in range(draw(st.integers(2, 3)) if not keys else 9)]
        if keys.startswith("gold"):
            texts[0] = ("neutral", "entailment", "contradiction", "-")[i % 4]
        if keys.startswith("labels"):
            labels = [["x"], ["x", "y"], [], [1, 0], "x", 1]
            texts[0] = draw(st.sampled_from(labels[:2] if plain else labels))
        lines.append(json.dumps(dict(zip(keys.split(","), texts, strict=False)) if keys else texts))
    return lines


@st.composite
def files(draw) -> tuple[str, bytes]:
    sentences = st.lists(TEXT, min_size=1, max_size=10)
    lines = list(draw(st.one_of(tables(), tables(), json_lines(), sentences)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(lines)))
        lines.insert(at, draw(st.sampled_from([*STRAY, lines[0] if lines else ""])))
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\n\n"]))
    mark, last = draw(st.sampled_from(["", "", "", "\ufeff"])), draw(st.sampled_from([end, ""]))
    content = (mark + end.join(lines) + last).encode()
    content += draw(st.sampled_from([b"", b"", b"", b"caf\xe9\n", b'["\\ud800", "b"]\n']))
    name = "a" + draw(st.sampled_from([".tsv", ".csv", ".txt", ".jsonl", ".json"]))
    if draw(st.integers(0, 5)) == 0:
        content, name = gzip.compress(content)[: draw(st.sampled_from([None, None, -9]))], name + ".gz"
    return name, content


@pytest.mark.filterwarnings("ignore")
def test_what_inspect_recommends_training_reads(tmp_path):
    verdicts: list[bool] = []

    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(file=files(), scale=st.sampled_from([None, None, None, 1.0, 5.0, 10.0]))
    def judge(file: tuple[str, bytes], scale: float | None) -> None:
        path = tmp_path / file[0]
        path.write_bytes(file[1])
        found = inspect(path, scale=scale)
        verdicts.append(found.findings.usable)
        compare_files([found])
        line = training_command([found])
        assert line or not found.findings.usable
        if found.findings.usable:
            train_on(line)

    judge()
    assert 40 < sum(verdicts) < len(verdicts) - 40  # neither verdict is rare, so that the comparison means something


@pytest.mark.parametrize(
    ("rows", "usable"),
    [
        ([f"{i % 2}\ta {i}\tb {i}" for i in range(7)], False),
        ([f"1\ta {i}\tb {i}" for i in range(7)] + ["0\tc\td"], True),
        ([f"{int(i == 0)}\ta {i}\tb {i}" for i in range(60)], False),
    ],
)
def test_rows_that_are_held_out(tmp_path, rows, usable):
    """Of 8 rows training holds out two, of 7 it cannot; each share needs a label 1."""
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{row}\n" for row in rows))
    found = inspect(path)
    compare_files([found])
    assert ("too-few" not in found.findings) == usable
    if not usable:
        with pytest.raises(InputError, match=r"too few to hold some out|no pair has label 1"):
            train_on(training_command([found]))
