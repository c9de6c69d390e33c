"""Readers of sentence pairs, and batches."""

import io
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisbert.core import InputError
from minisbert.core.data import length_grouped_batches
from minisbert.core.tokenizer import pad_batch
from minisbert.objectives.batches import unique_batches
from minisbert.objectives.scored_pairs import ScoredPair, load_scored_pairs, read_scored_pairs, text_lines

CATS = ScoredPair("A cat sits.", "A kitten is sitting.", 4.2)
DOGS = ScoredPair('He said "sit', "The dog, it sat", 0.0)


@pytest.fixture
def read(tmp_path):
    """Write a file and read it as scored pairs."""

    def write_and_read(content: str | bytes) -> list[ScoredPair]:
        path = tmp_path / "pairs.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_scored_pairs(path)

    return write_and_read


# ---------------------------------------------------------------------------------------- readers

STSB_7 = (
    "main-captions\tMSRvid\t2012test\t0024\t4.2\tA cat sits.\tA kitten is sitting.\n"
    'main-news\theadlines\t2013\t0025\t0.0\tHe said "sit\tThe dog, it sat\n'
)
STSB_9 = STSB_7.replace("sitting.\n", "sitting.\tlicence one\tlicence two\n")
TABS = '4.2\tA cat sits.\tA kitten is sitting.\n0\tHe said "sit\tThe dog, it sat\n'
COMMAS = '4.2,A cat sits.,A kitten is sitting.\n0,"He said ""sit","The dog, it sat"\n'
FORMS = {"stsb 7 columns": STSB_7, "stsb some with 9": STSB_9, "tabs": TABS, "commas": COMMAS}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("change", ["as it is", "line ends", "byte order mark", "no last line end", "blank lines"])
def test_the_same_pairs_in_every_form(read, content, change):
    if change == "line ends":
        content = content.replace("\n", "\r\n")
    elif change == "byte order mark":
        content = "\ufeff" + content
    elif change == "no last line end":
        content = content.removesuffix("\n")
    elif change == "blank lines":
        content = content.replace("\n", "\n\n") + " \n\n"
    assert read(content) == [CATS, DOGS]


@pytest.mark.parametrize("header", ["score,sentence1,sentence2\n", "Score,Sentence1,Sentence2\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_header_is_skipped(read, header, mark):
    assert read(mark + header + COMMAS) == [CATS, DOGS]
    assert read(mark + header.replace(",", "\t") + TABS) == [CATS, DOGS]


def test_header_of_the_long_form_is_skipped(read):
    assert read("genre\tfile\tyear\tid\tscore\tsentence1\tsentence2\n" + STSB_7) == [CATS, DOGS]


def test_header_words_further_down_are_a_row(read):
    with pytest.raises(InputError, match="line 3: the score 'score' is not a number"):
        read(TABS + "score\tsentence1\tsentence2\n")


def test_quotes_in_tab_separated_files_are_text(read):
    (pair,) = read('3\t"all quoted"\t"a, b" and "c\n')
    assert (pair.sentence1, pair.sentence2) == ('"all quoted"', '"a, b" and "c')


def test_a_quoted_line_end_stays_in_its_sentence(read):
    """Between both lines there must stay something: "cat" and "sat" are two words."""
    pairs = read('3,"a cat\nsat","b"\r\n2,"c\r\nd",e\n1,f,g\n')
    assert pairs == [ScoredPair("a cat\nsat", "b", 3.0), ScoredPair("c\r\nd", "e", 2.0), ScoredPair("f", "g", 1.0)]


@pytest.mark.parametrize("mark", ["\u0085", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1e"])
def test_other_line_separators_do_not_split_a_sentence(read, mark):
    expected = [ScoredPair(f"a{mark}b", f"c{mark}d", 3.0), ScoredPair("e", "f", 1.0)]
    assert read(f"3\ta{mark}b\tc{mark}d\n1\te\tf\n") == expected
    assert read(f"g\tf\ty\ti\t3\ta{mark}b\tc{mark}d\ng\tf\ty\ti\t1\te\tf\n") == expected
    assert read(f'3,a{mark}b,"c{mark}d"\n1,e,f\n') == expected


def test_a_tab_inside_a_comma_separated_sentence(read):
    """The first line decides the form."""
    assert read("1,e,f\n3,a\tb,c\td\n") == [ScoredPair("e", "f", 1.0), ScoredPair("a\tb", "c\td", 3.0)]


def test_spaces_around_sentences_and_scores_are_dropped(read):
    assert read(" 4.2 \t A cat sits. \tA kitten is sitting. \n") == [CATS]


@pytest.mark.parametrize(("cell", "score"), [("0", 0.0), ("5", 5.0), ("5.000", 5.0), ("2.5e0", 2.5), ("-0", 0.0)])
def test_scores_at_the_ends_of_the_scale(read, cell, score):
    assert read(f"{cell},a,b\n")[0].score == score


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("3\ta", "2 columns; 3 are needed"),
        ("3\ta\tb\tc", "4 columns; 3 are needed"),
        ("g\tf\ty\ti\t3\ta", "6 columns; 3 are needed"),
        ("high\ta\tb", "the score 'high' is not a number"),
        ("\ta\tb", "the score '' is not a number"),
        ("1,5\ta\tb", "the score '1,5' is not a number"),
        ("nan\ta\tb", "the score nan is not on the scale of 0 to 5"),
        ("inf\ta\tb", "the score inf is not on the scale of 0 to 5"),
        ("-inf\ta\tb", "the score -inf is not on the scale of 0 to 5"),
        ("-1\ta\tb", "the score -1 is not on the scale of 0 to 5"),
        ("5.1\ta\tb", "the score 5.1 is not on the scale of 0 to 5"),
        ("3\t\tb", "an empty sentence"),
        ("3\ta\t", "an empty sentence"),
        ("3\ta\t  ", "an empty sentence"),
    ],
)
def test_an_unusable_row_names_file_line_and_reason(read, tmp_path, row, message):
    where = re.escape(f"{tmp_path / 'pairs.csv'}, line 4: ")
    with pytest.raises(InputError, match=where + re.escape(message)):
        read(TABS + "\n" + row + "\n" + TABS)
    if "," not in row:
        with pytest.raises(InputError, match=where + re.escape(message)):
            read(COMMAS + "\n" + row.replace("\t", ",") + "\n" + COMMAS)


def test_the_line_of_a_row_is_where_it_starts(read):
    with pytest.raises(InputError, match="line 3: the score 9"):
        read('3,"a\nb",c\n9,"d\n\n\ne",f\n')


@pytest.mark.parametrize("content", ['3,"a,b\n', '3,"a"x,b\n'])
def test_broken_quotes_name_file_and_line(read, content):
    with pytest.raises(InputError, match=r"pairs\.csv, line 3: not comma-separated values"):
        read(COMMAS + content)


@pytest.mark.parametrize(
    "content", ["", "\n\n", "\ufeff", "score,sentence1,sentence2\n", "score\tsentence1\tsentence2"]
)
def test_a_file_without_pairs(read, content):
    with pytest.raises(InputError, match=r"pairs\.csv holds no sentence pairs"):
        read(content)


def test_a_file_that_is_not_utf8_names_the_line(read):
    with pytest.raises(InputError, match=r"pairs\.csv, line 2: not UTF-8 \(byte 0xe9\)"):
        read(b"3,a,b\n3,caf\xe9,b\n")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv does not exist"):
        read_scored_pairs(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_scored_pairs(tmp_path)


def test_load_reads_a_file_of_ones_own_whatever_the_split(tmp_path):
    (tmp_path / "mine.csv").write_text(COMMAS, encoding="utf-8")
    assert load_scored_pairs(str(tmp_path / "mine.csv"), "dev") == [CATS, DOGS]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_load_takes_the_split_of_the_benchmark(tmp_path, monkeypatch, split):
    monkeypatch.setattr("minisbert.core.data.ensure", lambda name: tmp_path / name)
    (tmp_path / "stsb").mkdir()
    (tmp_path / "stsb" / f"sts-{split}.csv").write_text(STSB_9, encoding="utf-8")
    assert load_scored_pairs("stsb", split) == [CATS, DOGS]


def test_an_unknown_split_is_told_before_anything_is_fetched(monkeypatch):
    monkeypatch.setattr("minisbert.core.data.ensure", lambda name: pytest.fail("fetched"))
    with pytest.raises(InputError, match="no split is called 'validation'; choose from train, dev, test"):
        load_scored_pairs("stsb", "validation")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        (" a \n", [" a "]),
        ("a\u0085b\u2028c\n\x0cd", ["a\u0085b\u2028c", "\x0cd"]),
        ("\ufeffa\nb", ["a", "b"]),  # the byte order mark is no text
    ],
)
def test_text_lines(text, expected):
    assert list(text_lines(io.BytesIO(text.encode()), "stdin")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stdin is empty"),
        ("\n", "stdin, line 1: an empty line"),
        ("a\n\nb\n", "stdin, line 2: an empty line"),
        ("a\nb\n\n", "stdin, line 3: an empty line"),
        ("a\r\n\r\n", "stdin, line 2: an empty line"),
        ("a\n \t\n", "stdin, line 2: an empty line"),
    ],
)
def test_text_lines_without_text(text, message):
    with pytest.raises(InputError, match=message):
        list(text_lines(io.BytesIO(text.encode()), "stdin"))


# ---------------------------------------------------------------------------------------- batches


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=80),
    batch_size=st.integers(1, 17),
    window=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_is_in_one_batch_and_batches_are_full(lengths, batch_size, window, seed):
    batches = length_grouped_batches(lengths, batch_size, seeded(seed), window)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    full, rest = divmod(len(lengths), batch_size)
    assert sorted(map(len, batches)) == ([rest] if rest else []) + [batch_size] * full


@given(lengths=st.lists(st.integers(1, 60), max_size=60), seed=st.integers(0, 2**32 - 1))
def test_the_same_generator_state_gives_the_same_batches(lengths, seed):
    assert length_grouped_batches(lengths, 4, seeded(seed)) == length_grouped_batches(lengths, 4, seeded(seed))


def test_batches_change_with_seed_and_from_epoch_to_epoch():
    lengths = [7] * 100
    generator = seeded(1)
    epochs = [length_grouped_batches(lengths, 10, generator) for _ in range(2)]
    epochs.append(length_grouped_batches(lengths, 10, seeded(2)))
    together = [{frozenset(batch) for batch in batches} for batches in epochs]
    assert not together[0] & together[1]  # other rows meet, not just the same batches in another order
    assert not together[0] & together[2]


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    batches = length_grouped_batches(range(50), 4, seeded(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    assert length_grouped_batches(range(50), 4, seeded(5)) == batches


def test_batches_of_like_length_come_in_random_order():
    """One window: lengths do not overlap between batches, and the batches are not in order of length."""
    lengths = torch.randperm(200, generator=seeded(0)).tolist()
    batches = [[lengths[row] for row in batch] for batch in length_grouped_batches(lengths, 10, seeded(1))]
    by_length = sorted(batches, key=min)
    assert all(max(shorter) < min(longer) for shorter, longer in pairwise(by_length))
    assert batches not in (by_length, by_length[::-1])


def padding(lengths: list[int], batches: list[list[int]]) -> float:
    """Share of pads in all tokens of the padded batches."""
    padded = sum(len(batch) * max(lengths[row] for row in batch) for batch in batches)
    return 1 - sum(lengths) / padded


def test_grouping_saves_padding_and_a_wider_window_saves_more():
    lengths = torch.randint(3, 60, (2000,), generator=seeded(0)).tolist()
    shares = {window: padding(lengths, length_grouped_batches(lengths, 16, seeded(1), window)) for window in (1, 5, 50)}
    order = torch.randperm(2000, generator=seeded(2)).tolist()
    at_random = padding(lengths, [order[i : i + 16] for i in range(0, 2000, 16)])
    assert at_random > 0.4  # 16 lengths of 3 to 59: the mean is about 31, the longest about 56
    assert shares[1] > 0.4  # a window of one batch sorts only within it
    assert shares[5] < 0.2
    assert shares[50] < 0.05


def test_pad_batch_by_hand():
    ids, mask = pad_batch([[5, 6, 7], [8], [9, 4]], pad_id=3)
    assert ids.tolist() == [[5, 6, 7], [8, 3, 3], [9, 4, 3]]
    assert mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)


@pytest.mark.parametrize("rows", [[[1, 2], [3, 4], [5, 6]], [[7]]])
def test_rows_of_one_length_need_no_mask(rows):
    ids, mask = pad_batch(rows, pad_id=0)
    assert ids.tolist() == rows
    assert mask is None


@given(
    rows=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=7),
    pad_id=st.integers(0, 9),
)
def test_rows_come_back_through_the_mask(rows, pad_id):
    """Also where the pad's id is a real token's too."""
    ids, mask = pad_batch(rows, pad_id)
    mask = torch.ones(ids.shape, dtype=torch.bool) if mask is None else mask
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    assert [ids[i][mask[i]].tolist() for i in range(len(rows))] == rows
    assert (ids[~mask] == pad_id).all()


# -------------------------------------------------------------------------- batches without duplicates


@st.composite
def rows_with_texts(draw) -> list[tuple[int, ...]]:
    """One to three texts a row, of few or many."""
    text = st.integers(0, draw(st.sampled_from([0, 3, 10, 200])))
    return draw(st.lists(st.lists(text, min_size=1, max_size=3).map(tuple), max_size=60))


@given(
    keys=rows_with_texts(),
    batch_size=st.integers(2, 9),
    window=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_text_stands_twice_in_a_batch(keys, batch_size, window, seed):
    lengths = [len(str(texts)) for texts in keys]
    batches = unique_batches(keys, lengths, batch_size, seeded(seed), window)
    for batch in batches:
        assert 2 <= len(batch) <= batch_size + 1
        held = [text for row in batch for text in set(keys[row])]
        assert len(held) == len(set(held))
    found = [row for batch in batches for row in batch]
    assert len(found) == len(set(found))
    for row in set(range(len(keys))) - set(found):  # left out: it could have joined no batch that has room
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
def test_without_duplicates_they_are_the_batches_of_like_length(lengths, batch_size, window, seed):
    keys = [(f"a{i}", f"b{i}") for i in range(len(lengths))]
    batches = unique_batches(keys, lengths, batch_size, seeded(seed), window)
    if len(lengths) % batch_size != 1:
        assert batches == length_grouped_batches(lengths, batch_size, seeded(seed), window)
    elif len(lengths) > 1:  # the row left over has joined another batch
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        assert sorted(map(len, batches)) == [batch_size] * (len(batches) - 1) + [batch_size + 1]


def test_every_premise_three_times_as_in_nli():
    """No row is lost, only the last batches are not full, and there is little padding."""
    lengths = torch.randint(3, 60, (1500,), generator=seeded(0)).tolist()
    keys = [(f"premise {row // 3}", f"hypothesis {row}") for row in range(1500)]
    lengths = [lengths[row // 3] for row in range(1500)]
    batches = unique_batches(keys, lengths, 32, seeded(1))
    assert sorted(row for batch in batches for row in batch) == list(range(1500))
    assert sum(len(batch) < 32 for batch in batches) <= 4
    assert padding(lengths, batches) < 0.08


def test_a_repeated_text_within_one_row_does_no_harm():
    assert sorted(unique_batches([("a", "a"), ("b", "b")], [1, 1], 2, seeded(0))[0]) == [0, 1]


def test_rows_that_all_share_a_text_make_no_batch():
    assert unique_batches([("a", i) for i in range(5)], [1] * 5, 2, seeded(0)) == []
    assert unique_batches([], [], 2, seeded(0)) == []


def test_two_rows_left_alone_join():
    """a and c are both alone behind b, which shares a text with each, in whatever order they come."""
    for seed in range(6):
        batches = unique_batches([("1",), ("1", "2"), ("2",)], [1, 1, 1], 2, seeded(seed))
        assert [sorted(batch) for batch in batches] == [[0, 2]]


def test_unusable_arguments_of_unique_batches():
    with pytest.raises(ValueError, match="a batch of 1 has no negatives"):
        unique_batches([("a",)], [1], 1, seeded(0))
    with pytest.raises(ValueError, match="2 rows of keys, 1 lengths"):
        unique_batches([("a",), ("b",)], [1], 2, seeded(0))
