"""Batches in which no text occurs twice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisbert.core.data import length_grouped_batches
from minisbert.data.batches import unique_batches


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def rows_with_texts(draw) -> list[tuple[int, ...]]:
    """Rows of one to three texts, drawn from few or many."""
    text = st.integers(0, draw(st.sampled_from([0, 3, 10, 200])))
    return draw(st.lists(st.lists(text, min_size=1, max_size=3).map(tuple), max_size=60))


@given(
    keys=rows_with_texts(),
    batch_size=st.integers(2, 9),
    window=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_text_is_twice_in_a_batch(keys, batch_size, window, seed):
    lengths = [len(str(texts)) for texts in keys]
    batches = unique_batches(keys, lengths, batch_size, seeded(seed), window)
    for batch in batches:
        assert 2 <= len(batch) <= batch_size + 1
        held = [text for row in batch for text in set(keys[row])]
        assert len(held) == len(set(held))
    found = [row for batch in batches for row in batch]
    assert len(found) == len(set(found))
    for row in set(range(len(keys))) - set(
        found
    ):  # dropped: no batch with room could have taken it
        for batch in batches:
            others = {text for other in batch for text in keys[other]}
            assert len(batch) > batch_size or others & set(keys[row])
    assert unique_batches(keys, lengths, batch_size, seeded(seed), window) == batches


@given(
    lengths=st.lists(st.integers(1, 60), max_size=80),
    batch_size=st.integers(2, 17),
    window=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_without_duplicates_they_equal_length_grouped_batches(lengths, batch_size, window, seed):
    keys = [(f"a{i}", f"b{i}") for i in range(len(lengths))]
    batches = unique_batches(keys, lengths, batch_size, seeded(seed), window)
    if len(lengths) % batch_size != 1:
        assert batches == length_grouped_batches(lengths, batch_size, seeded(seed), window)
    elif len(lengths) > 1:  # the row left over has joined another batch
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        assert sorted(map(len, batches)) == [batch_size] * (len(batches) - 1) + [batch_size + 1]


def test_the_window_is_that_of_length_grouped_batches():
    keys = [(row,) for row in range(400)]  # two windows of 50 batches of 4
    assert unique_batches(keys, range(400), 4, seeded(1)) == length_grouped_batches(
        range(400), 4, seeded(1)
    )


def test_every_premise_three_times_as_in_nli():
    """No row is lost, only the last batches are not full, and there is little padding."""
    keys = [(f"premise {row // 3}", f"hypothesis {row}") for row in range(1500)]
    lengths = torch.randint(3, 60, (500,), generator=seeded(0)).repeat_interleave(3).tolist()
    batches = unique_batches(keys, lengths, 32, seeded(1))
    assert sorted(row for batch in batches for row in batch) == list(range(1500))
    assert sum(len(batch) < 32 for batch in batches) <= 4
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    assert 1 - sum(lengths) / padded < 0.08


def test_shared_texts():
    """Within one row they do no harm; rows that all share one make no batch."""
    assert sorted(unique_batches([("a", "a"), ("b", "b")], [1, 1], 2, seeded(0))[0]) == [0, 1]
    assert unique_batches([("a", i) for i in range(5)], [1] * 5, 2, seeded(0)) == []


def test_two_rows_left_alone_join():
    """Rows 0 and 2 are left alone, because row 1 shares a text with each, in whatever order they
    come.
    """
    for seed in range(6):
        batches = unique_batches([("1",), ("1", "2"), ("2",)], [1, 1, 1], 2, seeded(seed))
        assert [sorted(batch) for batch in batches] == [[0, 2]]


def test_a_batch_of_one_is_refused():
    with pytest.raises(ValueError, match="a batch of one has no negatives"):
        unique_batches([("a",)], [1], 1, seeded(0))
