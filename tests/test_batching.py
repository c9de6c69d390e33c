"""Many texts to batches: complete, in order, within their budgets, in bounded memory."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from minisbert.fast.batching import budgeted_batches, chunks, packed_batches, to_ids, tokenize
from minisbert.models.tokenizer import Tokenizer

TEXTS = ["the cat sits on the mat", "a dog", "a woman eats an apple", "moon", "the horse runs fast over snow"]

# ------------------------------------------------------------------------------------------- chunks


@given(st.lists(st.text(max_size=20)), st.integers(1, 50))
def test_chunks_hold_all_texts_in_order_and_few_characters(texts, characters):
    found = list(chunks(iter(texts), characters))
    assert [text for chunk in found for text in chunk] == texts
    for chunk in found:
        assert sum(len(text) + 1 for text in chunk[:-1]) < characters
    for chunk in found[:-1]:
        assert sum(len(text) + 1 for text in chunk) >= characters


def test_chunks_are_made_one_at_a_time():
    """From an endless stream the first chunk reads only its own texts."""

    def endless():
        for i in range(1000):
            assert i < 3, "read past the chunk"
            yield "ten letter"

    assert next(chunks(endless(), 33)) == ["ten letter"] * 3


def test_ids_as_bytes(tiny):
    tokenizer = Tokenizer.load(tiny)
    keys, truncated = tokenize(tokenizer, [*TEXTS, "cat " * 15])
    assert truncated == 1
    assert [list(memoryview(key).cast("i")) for key in keys] == tokenizer.encode([*TEXTS, "cat " * 15]).ids


# ------------------------------------------------------------------------------------ packed batches

KEYS = st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=12), max_size=30).map(
    lambda rows: [torch.tensor(row, dtype=torch.int32).numpy().tobytes() for row in rows]
)


@given(KEYS, st.integers(1, 60))
def test_every_text_is_in_one_group_of_its_length(keys, batch_tokens):
    batches = list(packed_batches(keys, batch_tokens))
    assert sorted(key for batch in batches for group in batch for key in group) == sorted(keys)
    for batch in batches:
        lengths = [{len(key) for key in group} for group in batch]
        assert all(len(found) == 1 for found in lengths)
        assert len(set.union(*lengths)) == len(batch), "texts of one length belong in one group"


@given(KEYS, st.integers(1, 60))
def test_packed_batches_keep_their_budget_and_use_it(keys, batch_tokens):
    """Longest first; only a single larger text exceeds the budget, and no batch had room for the next text."""
    batches = [list(itertools.chain(*batch)) for batch in packed_batches(keys, batch_tokens)]
    lengths = [[len(key) // 4 for key in batch] for batch in batches]
    in_order = list(itertools.chain(*lengths))
    assert in_order == sorted(in_order, reverse=True)
    for found in lengths:
        assert sum(found) <= batch_tokens or len(found) == 1
    for found, following in itertools.pairwise(lengths):
        assert sum(found) + following[0] > batch_tokens


def test_packed_batches_by_hand():
    a, b, c, d = (bytes(4 * tokens) for tokens in (5, 3, 3, 2))
    assert list(packed_batches([c, a, d, b], 11)) == [[[a], [c, b]], [[d]]]
    assert list(packed_batches([a, d], 4)) == [[[a]], [[d]]]
    assert list(packed_batches([], 11)) == []


@given(KEYS)
def test_ids_come_back_from_bytes(keys):
    for batch in packed_batches(keys, 40):
        for group in batch:
            ids = to_ids(group, torch.device("cpu"))
            assert ids.dtype == torch.int64
            assert ids.tolist() == [list(memoryview(key).cast("i")) for key in group]


# ---------------------------------------------------------------------------------- padded batches

LENGTHS = st.lists(st.integers(2, 50), max_size=40)


@given(LENGTHS, st.integers(1, 300))
def test_every_row_is_in_one_batch(lengths, batch_tokens):
    batches = budgeted_batches(lengths, batch_tokens)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert all(batches)


@given(LENGTHS, st.integers(1, 300))
def test_batches_keep_their_budget(lengths, batch_tokens):
    """With every row padded to the longest; only a single larger row may exceed it."""
    for rows in budgeted_batches(lengths, batch_tokens):
        padded = len(rows) * max(lengths[row] for row in rows)
        assert padded <= batch_tokens or len(rows) == 1


@given(LENGTHS, st.integers(1, 300))
def test_batches_come_longest_first_and_use_their_budget(lengths, batch_tokens):
    """The largest comes first, so memory runs out immediately or never; no batch had room for another row."""
    batches = budgeted_batches(lengths, batch_tokens)
    in_order = [lengths[row] for rows in batches for row in rows]
    assert in_order == sorted(lengths, reverse=True)
    for rows in batches[:-1]:
        assert (len(rows) + 1) * lengths[rows[0]] > batch_tokens


def test_batches_by_hand():
    assert budgeted_batches([3, 9, 4, 4, 2], 8) == [[1], [2, 3], [0, 4]]
    assert budgeted_batches([], 8) == []
