"""Rows to batches: columns of texts, and batches of similar length in random order."""

from itertools import pairwise

import pytest
import torch

from minisbert.core.data import TextColumns, length_grouped_batches, padded_tokens
from minisbert.core.tokenizer import Tokenizer

# ------------------------------------------------------------------------------- columns of texts

COLUMNS = (["a cat", "the dog is happy", ""], ["the cat", "a dog", "the moon is over the park"])


def test_a_batch_holds_the_first_column_then_the_second(tiny):
    """The words are in the vocabulary: a text has one token per word, and two more."""
    pairs = TextColumns(Tokenizer.load(tiny, limit=16, pad_id=7), COLUMNS)
    assert pairs.lengths == [2 * 4, 2 * 6, 2 * 8]  # two texts, each padded to the longer one
    ids, mask = pairs.batch([2, 0])
    texts = [COLUMNS[0][2], COLUMNS[0][0], COLUMNS[1][2], COLUMNS[1][0]]
    assert ids.shape == (4, 8)
    expected = [
        pairs.encoded[0].ids[2],
        pairs.encoded[0].ids[0],
        pairs.encoded[1].ids[2],
        pairs.encoded[1].ids[0],
    ]
    assert [row[real].tolist() for row, real in zip(ids, mask, strict=True)] == expected
    assert [len(row) for row in expected] == [len(text.split()) + 2 for text in texts]
    assert set(ids[~mask].tolist()) == {7}


@pytest.fixture
def tokenizer(tiny) -> Tokenizer:
    return Tokenizer.load(tiny, limit=16)


def test_three_columns(tokenizer):
    """Triplets: anchor, positive, negative."""
    columns = [["a cat", "a dog"], ["the cat", "moon"], ["snow", "the sun"]]
    triplets = TextColumns(tokenizer, columns)
    ids, mask = triplets.batch([1, 0])
    assert ids.shape == mask.shape == (6, 4)
    assert triplets.lengths == [3 * 4, 3 * 4]


def test_one_column(tokenizer):
    """Sentences alone; these two need no pad, and so no mask."""
    ids, mask = TextColumns(tokenizer, [["a cat", "a dog"]]).batch([0, 1])
    assert ids.tolist() == tokenizer.encode(["a cat", "a dog"]).ids
    assert mask is None


def test_columns_of_two_lengths_are_refused(tokenizer):
    """A row without its second text would shift all rows after it."""
    with pytest.raises(ValueError, match="shorter"):
        TextColumns(tokenizer, [["a cat"], []])


def test_the_tokens_of_a_padded_row():
    """All texts of a row are padded to the longest."""
    assert padded_tokens([[1] * 5, [1] * 8]) == 16
    assert padded_tokens([[1] * 3]) == 3


# ---------------------------------------------------------------------- batches of similar length


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_window_is_50_batches_unless_stated():
    """400 rows in 2 windows of 50 batches of 4: within a window the lengths of two batches do not
    overlap.
    """
    first = set(torch.randperm(400, generator=seeded(1)).tolist()[:200])
    batches = length_grouped_batches(range(400), 4, seeded(1))
    for window in (first, {*range(400)} - first):
        inside = [sorted(batch) for batch in batches if window.issuperset(batch)]
        by_length = sorted(inside)
        assert len(inside) == 50
        assert all(shorter[-1] < longer[0] for shorter, longer in pairwise(by_length))
        assert inside not in (by_length, by_length[::-1])  # batches come in random order
