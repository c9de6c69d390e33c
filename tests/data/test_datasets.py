"""The rows of a run: data sets by name, what is held out, limits, several files of NLI, scores of
another scale.
"""

import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.data import datasets as sources
from minisbert.data.datasets import (
    Sources,
    class_rows,
    duplicate_rows,
    hold_out,
    judged_rows,
    load_scored_pairs,
    nli_triplets,
    open_rows,
    scored_rows,
    text_rows,
    triplet_rows,
)
from minisbert.data.formats import LABELLED, Row, read_file
from minisbert.system.assets import asset
from minisbert.training.objectives import sources_of
from minisbert.training.settings import parse
from tests import toys
from tests.data.test_reader import (
    CONTRADICTION,
    ENTAILMENT,
    NEUTRAL,
    QUORA,
    QUORA_ROWS,
    SCORED_ROWS,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return toys.write_all(tmp_path_factory.mktemp("toys"))


# ------------------------------------------------------------------------------ which rows are read


@pytest.fixture
def labelled(tmp_path):
    """``labelled("--seed", "7")`` -> the splits of fifty different duplicates, their sizes, and the
    notes.
    """
    path = tmp_path / "numbered.tsv"
    path.write_text(
        toys.LABEL_HEADER + "".join(f"{i % 2}\tthe cat {i}\ta dog {i}\n" for i in range(50))
    )

    def read(*flags: str):
        rows, notes = duplicate_rows(
            sources_of(parse(["--objective", "binary", "--data", str(path), *flags]))
        )
        return rows, {split: len(part) for split, part in rows.items()}, notes

    return read


def test_a_tenth_is_held_out_for_dev_and_for_test(labelled):
    rows, sizes, notes = labelled()
    assert sizes == {"train": 26, "dev": 12, "test": 12}
    everything = [row.sentence1 for part in rows.values() for row in part]
    assert sorted(everything) == sorted(
        f"the cat {i}" for i in range(50)
    )  # each once: the splits are disjoint
    assert notes["train"].endswith("numbered.tsv (50 pairs)")
    assert notes["dev"] == notes["test"] == "held out of it (12 pairs)"


def test_only_a_split_without_a_file_is_held_out(labelled, files):
    for named, missing in (("dev", "test"), ("test", "dev")):
        rows, sizes, notes = labelled(f"--{named}", files["duplicates"])
        assert sizes == {"train": 34, named: 40, missing: 16}
        assert notes[missing] == "held out of it (16 pairs)"
        assert not {*rows["train"]} & {*rows[missing]}
    rows, sizes, _ = labelled("--dev", files["duplicates"], "--test", files["duplicates"])
    assert [row.sentence1 for row in rows["train"]] == [f"the cat {i}" for i in range(50)]
    assert sizes == {"train": 50, "dev": 40, "test": 40}


def test_the_limit_is_for_training_rows_and_takes_the_first(labelled, files):
    rows, sizes, _ = labelled("--limit", "20")
    assert sizes == {"train": 10, "dev": 5, "test": 5}
    assert {row.sentence1 for part in rows.values() for row in part} == {
        f"the cat {i}" for i in range(20)
    }
    _, sizes, _ = labelled(
        "--limit", "20", "--dev", files["duplicates"], "--test", files["duplicates"]
    )
    assert sizes == {"train": 20, "dev": 40, "test": 40}
    rows, notes = scored_rows(sources_of(parse(toys.flags(files, "cosine", "--limit", "7"))))
    assert {split: len(part) for split, part in rows.items()} == {"train": 7, "dev": 20, "test": 20}
    assert notes["train"] == f"{files['scored']} (7 pairs)"
    for read, objective in ((triplet_rows, "mnr"), (text_rows, "simcse")):
        assert len(read(sources_of(parse(toys.flags(files, objective, "--limit", "6"))))[0]) == 6


def test_nli_rows_serve_softmax_and_as_triplets(files):
    """Twenty premises, each with all three labels."""
    rows, *_ = class_rows(sources_of(parse(["--objective", "softmax", "--data", files["nli"]])))
    assert {split: len(part) for split, part in rows.items()} == {
        "train": 30,
        "dev": 15,
        "test": 15,
    }
    triplets, note = triplet_rows(
        sources_of(parse(["--objective", "triplet", "--data", files["nli"]]))
    )
    assert len(triplets) == 20
    assert triplets[0] == ("a small cat", "the cat", "the music")
    assert note == f"20 triplets of {files['nli']} (60 NLI rows)"


def test_snli_and_multinli_by_name(tmp_path, monkeypatch, files):
    """SNLI's dev and test choose the model; MultiNLI alone, which has no labels of test, gets its
    own held-out rows.
    """
    monkeypatch.setattr(sources, "ensure", lambda name: tmp_path)
    for name in ("snli", "multinli"):
        with zipfile.ZipFile(tmp_path / f"{name}_1.0.zip", "w") as packed:
            for split in ("train", "dev", "test"):
                rows = "".join(toys.nli(30)).replace(
                    '"sentence1": "', f'"sentence1": "{name}-{split} '
                )
                packed.writestr(f"{name}_1.0/{name}_1.0_{split}.jsonl", rows)
    own = files["nli"]
    for data, expected, note in (
        (
            "snli,multinli",
            ["snli-train", "multinli-train", "snli-dev", "snli-test"],
            "snli (30 pairs)",
        ),
        ("multinli", ["multinli-train"], "held out of it (9 pairs)"),
        (f"snli,{own}", ["snli-train", "a", "snli-dev", "snli-test"], "snli (30 pairs)"),
    ):
        rows, notes, _ = class_rows(sources_of(parse(["--objective", "softmax", "--data", data])))
        firsts = [
            row.sentence1.split()[0] for split in ("train", "dev", "test") for row in rows[split]
        ]
        assert ([*dict.fromkeys(firsts)], notes["dev"]) == (expected, note)


def test_several_nli_files_are_one_after_the_other(tmp_path):
    """Twelve rows and nine, the second file with a comma in its name."""
    first, second, other = tmp_path / "a.jsonl", tmp_path / "b,c.jsonl", tmp_path / "b.jsonl"
    first.write_text("".join(toys.nli(12)))
    second.write_text(
        "".join(toys.nli(60)[51:]) + '{"gold_label": "-", "sentence1": "a", "sentence2": "b"}\n'
    )
    other.write_bytes(second.read_bytes())
    nli = ["--objective", "softmax", "--dev", str(first), "--test", f"{first},{other}"]
    rows, notes, _ = class_rows(sources_of(parse([*nli, "--data", f"{first},{other}"])))
    alone = [
        class_rows(sources_of(parse([*nli, "--data", str(path)])))[0]["train"]
        for path in (first, second)
    ]
    assert [len(part) for part in alone] == [12, 9]
    assert rows["train"] == rows["test"] == alone[0] + alone[1]
    assert notes["train"] == f"{first},{other} (21 pairs, 1 skipped)"
    for limit, expected in ((5, 5), (12, 12), (14, 14), (99, 21)):
        limited, *_ = class_rows(
            sources_of(parse([*nli, "--data", f"{first},{other}", "--limit", str(limit)]))
        )
        assert limited["train"] == rows["train"][:expected]
    triplets, note = triplet_rows(
        sources_of(parse(["--objective", "mnr", "--data", f"{first},{other}"]))
    )
    assert len(triplets) == 4 + 3
    assert note == f"7 triplets of {first},{other} (21 NLI rows, 1 skipped)"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{nli},missing.jsonl", "missing.jsonl does not exist"),
        ("{nli},stsb", "stsb has no rows .*: give snli"),
        ("{nli},{scored}", "scored.tsv: .*gold_label"),
        ("", "empty"),
    ],
)
def test_each_of_several_files_must_serve(files, data, message):
    with pytest.raises(InputError, match=message):
        class_rows(sources_of(parse(["--objective", "softmax", "--data", data.format(**files)])))


def test_scores_of_another_scale(tmp_path, monkeypatch):
    """As scores of pairs they are 0 to 5, and those of stsb always were."""
    path = tmp_path / "ones.tsv"
    path.write_text(
        toys.SCORED_HEADER + "0.8\ta cat\tthe cat\n0.3\ta cat\ta dog\n1\ta cat\ta cat\n"
    )
    flags = ["--data", str(path), "--dev", str(path), "--test", str(path), "--scale", "1"]
    rows, _ = scored_rows(sources_of(parse(flags)))
    for split in ("train", "dev", "test"):
        assert [pair.score for pair in rows[split]] == pytest.approx([4, 1.5, 5], abs=1e-12)
    with pytest.raises(InputError, match="no score is above 1"):
        scored_rows(Sources(data=str(path)))
    monkeypatch.setattr(sources, "ensure", lambda name: tmp_path)
    (tmp_path / "sts-dev.csv").write_text(STSB)
    assert [pair.score for pair in load_scored_pairs("stsb", "dev", scale=1)] == [4.2, 0]


def test_nli_rows_without_a_triplet_are_an_error(tmp_path):
    path = tmp_path / "neutral.jsonl"
    path.write_text('{"gold_label": "neutral", "sentence1": "a cat", "sentence2": "a dog"}\n')
    with pytest.raises(InputError, match="none of 1 rows has a premise"):
        triplet_rows(sources_of(parse(["--objective", "mnr", "--data", str(path)])))


def test_scores_that_are_only_compared_have_any_scale(tmp_path):
    """As dev of pairs without scores; with ``--scale``, and as training rows, they must be on
    it.
    """
    path = tmp_path / "dev.tsv"
    for scores in ((0, 50, 100), (-1, 0, 1)):
        path.write_text(
            toys.SCORED_HEADER + "".join(f"{score}\ta\tb {score}\n" for score in scores)
        )
        judged, _ = judged_rows([("a", "b")], "pairs", Sources(data="a.csv", dev=str(path)))
        assert [row.score for row in judged["dev"]] == list(scores)
        with pytest.raises(InputError, match="--scale"):
            scored_rows(Sources(data=str(path)))
    judged, _ = judged_rows([("a", "b")], "pairs", Sources(data="a.csv", dev=str(path), scale=-1))
    assert [row.score for row in judged["dev"]] == [-5, 0, 5]


def test_dev_of_pairs_by_columns(tmp_path):
    """A file without names of its own is read by those of the training rows, one with names by its
    own.
    """
    train, dev, scored = tmp_path / "train.csv", tmp_path / "dev.csv", tmp_path / "scored.csv"
    train.write_text("Frage,Antwort\na,b\n")
    dev.write_text("Nr,Frage,Antwort\n1,c,d\n")
    scored.write_text("score,sentence1,sentence2\n1,e,f\n2,g,h\n")
    given = {"data": str(train), "columns": "Frage,Antwort"}
    judged, _ = judged_rows([("a", "b")], "pairs", Sources(**given, dev=str(dev), test=str(scored)))
    assert judged["dev"] == [("c", "d")]
    assert [row.texts for row in judged["test"]] == [("e", "f"), ("g", "h")]


def test_classes_of_ones_own(tmp_path):
    """Numbered in sorted order; dev must not have others."""
    path, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    rows = "".join(f"text {i},other {i},{('refund', 'bug', 'praise')[i % 3]}\n" for i in range(30))
    path.write_text(f"sentence1,sentence2,label\n{rows}")
    dev.write_text("sentence1,sentence2,label\na,b,rage\n")
    rows, _, classes = class_rows(Sources(data=str(path)))
    assert classes == ("bug", "praise", "refund")
    everything = {row.sentence1: row.label for some in rows.values() for row in some}
    assert [everything[f"text {i}"] for i in range(3)] == [2, 0, 1]
    with pytest.raises(
        InputError, match="line 2: the class 'rage' is not one of bug, praise, refund"
    ):
        class_rows(Sources(data=str(path), dev=str(dev)))


def test_columns_are_read_by_the_names_of_the_training_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("stars,left,right\n" + "".join(f"{i % 6},text {i},other\n" for i in range(9)))
    rows, _ = scored_rows(
        Sources(data=str(path), dev=str(path), test=str(path), columns="stars,left,right")
    )
    assert rows["dev"][4] == Row(("text 4", "other"), 4.0)


# ------------------------------------------------------------------------------ the STS Benchmark

STSB = (
    "main-captions\tMSRvid\t2012test\t0024\t4.2\tA cat sits.\tA kitten is sitting.\tlicence "
    "one\tlicence two\n"
    'main-news\theadlines\t2013\t0025\t0.0\tHe said "sit\tThe dog, it sat\n'
)


def test_the_benchmark_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "ensure", lambda name: tmp_path)
    path = tmp_path / "sts-dev.csv"
    path.write_text(STSB, encoding="utf-8")
    assert load_scored_pairs("stsb", "dev") == SCORED_ROWS
    for row, message in (
        ("a\tb\t3\tc\n", "line 3: .*4 columns"),
        ("g\tf\ty\ti\thigh\ta\tb\n", "line 3: .*'high'"),
    ):
        path.write_text(STSB + row)
        with pytest.raises(InputError, match=message):
            load_scored_pairs("stsb", "dev")


def test_quoras_release_by_name(tmp_path, monkeypatch):
    """Its cells are in quotation marks, and after some of them there is more text, which is refused
    in other files.
    """
    monkeypatch.setattr(sources, "ensure", lambda name: tmp_path)
    path = tmp_path / asset("quora").files[0].name
    path.write_text(QUORA)
    for source in ("quora", path):
        assert read_file(open_rows(source), LABELLED)[:3] == (QUORA_ROWS, 1, [])
    path.write_text(QUORA + '4\t9\t10\t"Why" not?\tHow?\t1\n')
    assert read_file(open_rows("quora"), LABELLED).rows[-1] == Row(("Why not?", "How?"), 1)
    with pytest.raises(InputError, match=r"line 7: .*--no-quotes"):
        read_file(path, LABELLED)


# ------------------------------------------------------------------------------ triplets and splits


def test_triplets_of_nli_by_hand():
    """First entailment with first contradiction; neutral does not count; premises in the order of
    their first row.
    """
    rows = [
        Row(("p", "p neutral"), NEUTRAL),
        Row(("q", "q no 1"), CONTRADICTION),
        Row(("p", "p no"), CONTRADICTION),
        Row(("only neutral", "y"), ENTAILMENT),
        Row(("q", "q no 2"), CONTRADICTION),
        Row(("q", "q yes 1"), ENTAILMENT),
        Row(("p", "p yes"), ENTAILMENT),
        Row(("q", "q yes 2"), ENTAILMENT),
    ]
    assert nli_triplets(rows) == [("p", "p yes", "p no"), ("q", "q yes 1", "q no 1")]


@given(
    st.lists(st.tuples(*[st.sampled_from("abcdefghijklmnopqrstuvwxyz")] * 2), max_size=60),
    st.integers(0, 2**31),
)
def test_rows_held_out_share_no_text_with_the_others(letters, seed):
    # rows of their own beside those that hang together
    rows = [Row(pair) for pair in letters] + [
        Row((f"left {i}", f"right {i}"), i) for i in range(80)
    ]
    divided, _ = hold_out(rows, {"dev": 0.1, "test": 0.1}, seed)
    parts = [divided["train"], divided["dev"], divided["test"]]
    assert sorted(row.texts for part in parts for row in part) == sorted(row.texts for row in rows)
    texts = [{text for row in part for text in row.texts} for part in parts]
    assert not texts[0] & (texts[1] | texts[2])
    assert not texts[1] & texts[2]
    assert all(len(part) >= 20 for part in parts)
    assert hold_out(rows, {"dev": 0.1, "test": 0.1}, seed) == (divided, "")


def test_what_is_held_out_is_random_and_a_tenth():
    rows = [(str(i), f"b {i}") for i in range(1000)]
    held_out = hold_out(rows, {"dev": 0.1}, seed=1)[0]["dev"]
    assert len(held_out) == 100
    assert (
        350 < sum(int(first) for first, _ in held_out) / 100 < 650
    )  # the mean of the last would be 949.5
    assert hold_out(rows, {"dev": 0.1}, seed=2)[0]["dev"] != held_out


def test_rows_that_hang_together_are_divided_by_copies():
    rows = [Row(("a dog", f"b {i % 20}")[:: 1 - 2 * (i // 20 % 2)], i % 2) for i in range(100)]
    parts, note = hold_out(rows, {"dev": 0.1}, seed=3)
    assert (len(parts["train"]), len(parts["dev"])) == (80, 20)
    assert not {frozenset(row.texts) for row in parts["train"]} & {
        frozenset(row.texts) for row in parts["dev"]
    }
    assert "texts" in note
    with pytest.raises(InputError, match="dev"):
        hold_out([("a", "b")] * 30, {"dev": 0.1}, seed=1)
