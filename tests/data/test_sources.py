"""Triplets of NLI rows, splits of rows, and the STS Benchmark by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisbert.data.datasets import load_scored_pairs, nli_triplets, split_rows
from minisbert.data.formats import Row
from tests.data.test_formats import CONTRADICTION, ENTAILMENT, NEUTRAL, SCORED_ROWS, STSB_9


def test_triplets_of_nli_by_hand():
    """First entailment with first contradiction; neutral does not count; premises in the order of their first row."""
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


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([CONTRADICTION, ENTAILMENT, NEUTRAL])), max_size=40))
def test_triplets_of_nli_equal_a_slow_search(drawn):
    rows = [Row((f"p{premise}", f"h{i}"), label) for i, (premise, label) in enumerate(drawn)]
    expected = []
    for premise in dict.fromkeys(row.sentence1 for row in rows):
        yes = [row.sentence2 for row in rows if row.sentence1 == premise and row.label == ENTAILMENT]
        no = [row.sentence2 for row in rows if row.sentence1 == premise and row.label == CONTRADICTION]
        expected += [(premise, yes[0], no[0])] if yes and no else []
    assert nli_triplets(rows) == expected


@given(st.integers(0, 60), st.sampled_from([0.0, 0.5, 0.8, 0.9, 1.5]), st.integers(0, 2**31))
def test_a_split_keeps_every_row_once(count, share, seed):
    rows = [Row((f"row {i}", "b")) for i in range(count)]
    if not 0 < round(share * count) < count:
        with pytest.raises(ValueError, match=f"a share of {share} of {count} rows leaves one side empty"):
            split_rows(rows, share, seed)
        return
    first, rest = split_rows(rows, share, seed)
    assert len(first) == round(share * count)
    assert sorted(row.texts for row in first + rest) == sorted(row.texts for row in rows)
    assert split_rows(rows, share, seed) == (first, rest)


def test_a_split_is_random_and_changes_with_the_seed():
    rows = [(str(i), "b") for i in range(1000)]
    first, rest = split_rows(rows, 0.8, seed=1)
    assert 350 < sum(int(first) for first, _ in rest) / 200 < 650  # the mean of the last 200 rows would be 899.5
    assert split_rows(rows, 0.8, seed=2) != (first, rest)


def test_copies_of_a_pair_in_either_order_are_on_one_side():
    rows = [Row((f"a {i % 20}", f"b {i % 20}")[:: 1 - 2 * (i // 20 % 2)], i % 2) for i in range(100)]
    first, rest = split_rows(rows, 0.8, seed=3)
    assert (len(first), len(rest)) == (80, 20)
    assert not {frozenset(row.texts) for row in first} & {frozenset(row.texts) for row in rest}


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_benchmark_by_name_and_a_file_by_path(tmp_path, monkeypatch, split):
    monkeypatch.setattr("minisbert.data.datasets.ensure", lambda name: tmp_path)
    path = tmp_path / f"sts-{split}.csv"
    path.write_text(STSB_9, encoding="utf-8")
    assert load_scored_pairs("stsb", split) == load_scored_pairs(str(path), "") == SCORED_ROWS
