"""Many texts to batches: complete, in order, within their budgets, in bounded memory."""

import random
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core.bert import BertConfig
from minisbert.models.batching import (
    FEW_PADS,
    Row,
    Tokens,
    budgeted_batches,
    check_inputs,
    chunks,
    distinct_rows,
    packed_batches,
    same_text,
    share_rows,
    tokenize,
    unpack,
)

TEXTS = [
    "the cat sits on the mat",
    "a dog",
    "a woman eats an apple",
    "moon",
    "the horse runs fast over snow",
]

# ------------------------------------------------------------------------------------------ chunks


@given(st.lists(st.text(max_size=20)), st.integers(1, 50))
def test_chunks_hold_all_texts_in_order_and_few_characters(texts, characters):
    """Memory is bounded by the chunk, whatever the file."""
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


@pytest.mark.parametrize("characters", [2**16, 30])
def test_many_texts_are_tokenized_in_chunks(tiny, characters):
    """At once or in several threads: the ids and what was cut are the same."""
    tokenizer = read_tokenizer(tiny)
    texts = [*TEXTS, "cat " * 15]
    tokens = tokenize(tokenizer, texts, characters)
    assert tokens.truncated == [False] * 5 + [True]
    assert [list(ids) for ids in tokens.ids] == tokenizer.encode(texts).ids


def test_equal_rows_are_found():
    """Of equal texts one is computed, and each gets its vector."""
    a, b = array("i", [1, 2]), array("i", [1, 2, 3])
    assert distinct_rows([a, b, a]) == ([a, b], [0, 1, 0])
    assert distinct_rows([]) == ([], [])


# ---------------------------------------------------------------------------------- packed batches

ROWS = st.lists(st.lists(st.integers(0, 30_000), min_size=1, max_size=90), max_size=30)


def tokens_of(rows) -> Tokens:
    return Tokens([array("i", row) for row in rows])


def of_lengths(*lengths: int) -> Tokens:
    return tokens_of([[0] * length for length in lengths])


@given(ROWS, st.integers(1, 200))
def test_every_text_is_in_one_batch_and_can_be_found_there(rows_of_ids, batch_tokens):
    """Its ids at its places, its positions from 0, its number; the few pads are nobody's."""
    seen = []
    for batch in packed_batches(tokens_of(rows_of_ids), batch_tokens):
        seen += batch.texts
        rows, width = batch.ids.shape
        assert rows == 1 or rows * width <= batch_tokens
        # An eighth of the first row's rounded length, what rounding adds, and a few for the last
        # rows.
        assert rows * width - batch.tokens <= rows * (width / 8 + 8) + 3 * FEW_PADS
        positions = batch.positions.flatten()
        text_index = batch.text_index.flatten()
        found, real = unpack(batch.ids.unsqueeze(-1), batch.places)
        for number, text in enumerate(batch.texts):
            expected = rows_of_ids[text]
            assert found[number, real[number], 0].tolist() == expected
            places = batch.places[number, real[number]]
            assert positions[places].tolist() == list(range(len(expected)))
            assert text_index[places].tolist() == [number] * len(expected)
        assert batch.tokens == int(real.sum()) == int((text_index >= 0).sum())
    assert sorted(seen) == list(range(len(rows_of_ids)))


def test_packed_batches_by_hand():
    """Two rows for 84 tokens, 42 each; the text of 70 has its own, rounded to 72, and is first."""
    long, short = packed_batches(of_lengths(20, 70, 40, 22, 2), 2048)
    assert long.texts == [1]
    assert long.ids.shape == (1, 72)
    assert short.texts == [2, 4, 3, 0]
    assert short.ids.shape == (2, 44)


@pytest.mark.parametrize(("tokens", "width"), [(13, 13), (25, 28), (513, 513)])
def test_a_text_alone_has_few_pads(tokens, width):
    """None if it is short or long; between, few shapes are worth more than few pads."""
    (alone,) = packed_batches(of_lengths(tokens), 2048)
    assert alone.ids.shape == (1, width)


def test_no_texts_and_a_budget_below_every_text():
    """Each text is a batch by itself then."""
    assert list(packed_batches(of_lengths(), 11)) == []
    assert [batch.texts for batch in packed_batches(of_lengths(20, 70), 4)] == [[1], [0]]


def test_rows_are_filled_from_the_longest_text_on():
    """Each text goes to the row with the fewest tokens; a longer one than a row stands alone."""
    assert share_rows([20, 70, 40, 22, 2], tokens=60) == [
        Row([1], 70),
        Row([2, 4], 42),
        Row([3, 0], 42),
    ]


def test_long_rows_may_share_smaller_batches():
    """Written-out attention of compiled packages is fastest with few long rows at a time."""
    lengths = [250, 300, 250, 250, *[30] * 40]
    shapes = [tuple(batch.ids.shape) for batch in packed_batches(of_lengths(*lengths), 2048, 512)]
    assert shapes == [(1, 304), (2, 256), (1, 256), (20, 60)]
    assert [tuple(batch.ids.shape) for batch in packed_batches(of_lengths(250, 250), 256, 512)] == [
        (1, 256)
    ] * 2


def test_who_belongs_together_by_hand():
    """Pads belong together, so that no row of the mask is empty."""
    mask = same_text(torch.tensor([[0, 0, 1, -1]]))
    assert mask.int().tolist() == [[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]]


def test_many_sentences_are_batches_of_few_shapes():
    """As the compiled encoder and oneDNN make programs for shapes."""
    generator = random.Random(0)
    lengths = [generator.choice(range(5, 40)) for _ in range(2000)]
    shapes = [tuple(batch.ids.shape) for batch in packed_batches(of_lengths(*lengths), 2048)]
    assert len({*shapes}) <= 5
    assert sum(rows * width for rows, width in shapes) < 1.04 * sum(lengths)


# ---------------------------------------------------------------------------------- padded batches

LENGTHS = st.lists(st.integers(2, 50), max_size=40)


@given(LENGTHS, st.integers(1, 300))
def test_padded_batches_hold_every_row_come_longest_first_and_use_their_budget(
    lengths, batch_tokens
):
    """The largest is first: memory runs out at once or never. No batch had room for another row."""
    batches = budgeted_batches(lengths, batch_tokens)
    assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
    assert [lengths[row] for rows in batches for row in rows] == sorted(lengths, reverse=True)
    # Each row is padded to the longest. Only a single one may exceed the budget.
    for rows in batches:
        assert len(rows) == 1 or len(rows) * lengths[rows[0]] <= batch_tokens
    for rows in batches[:-1]:
        assert (len(rows) + 1) * lengths[rows[0]] > batch_tokens


# --------------------------------------------------------------------------------- what is refused

CONFIG = BertConfig(37, 15, 2, 3, 22, 12)


def ones(*shape):
    return torch.ones(shape, dtype=torch.long)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((ones(3),), r"ids must have shape"),
        ((ones(2, 0),), r"ids must have shape"),
        ((ones(1, 13),), "13 tokens, but the position table has 12"),
        ((ones(1, 2) * 37,), "from 37 to 37, this model has 37 in its vocabulary"),
        ((ones(1, 2) * -1,), "from -1 to -1"),
        ((ones(2, 3), ones(2, 4)), r"mask must have shape"),
        ((ones(2, 3), None, ones(3)), r"token_types must have shape"),
        (
            (ones(2, 3), None, ones(2, 3) * -1),
            "token_types run from -1 to -1, this model has 2 types",
        ),
        ((ones(2, 3), None, ones(2, 3) * 2), "token_types run from 2 to 2, this model has 2 types"),
        ((ones(2, 3), torch.tensor([[1, 1, 0], [0, 0, 0]])), "row 1 of the mask has no real token"),
    ],
)
def test_bad_input_is_refused(inputs, message):
    """It would crash the process on a GPU, or silently give wrong numbers."""
    with pytest.raises(ValueError, match=message):
        check_inputs(CONFIG, *inputs)
