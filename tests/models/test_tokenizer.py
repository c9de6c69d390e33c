"""Tokenizers of every kind of folder, on small vocabularies made here. The reference tests compare the real MiniLM."""

import json
import math
import re
import shutil
import sys
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer
from tokenizers import Tokenizer as Backend

from minisbert.core import InputError
from minisbert.models.tokenizer import Tokenizer

# letters at the start of a word and inside it (##); "e" only at the start, so a word that continues with it is unknown
PIECES = """
    [PAD] [UNK] [CLS] [SEP] [MASK]
    a b c d e ##a ##b ##c ##d A B E ##A ##B
    ab abc abcd bad cab dad bead ##ab ##abc ##bc ##bcd ##cd ##da ##dab
    cat dog sits on the mat ##s ##ting sit ##t run ##ner ##ning
    . , ! ? ' - ( ) 1 2 ##2 中 é ##é
"""
VOCAB = PIECES.split()
IDS = {piece: i for i, piece in enumerate(VOCAB)}
CLS, SEP = IDS["[CLS]"], IDS["[SEP]"]
LIMIT = 16  # of the folders, unless a test changes it

words = st.text("abcdeAB", min_size=1, max_size=9)
texts = st.lists(words | st.sampled_from(list(" .,!'-12中é\t\n")), max_size=12).map("".join)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def vocab_folder(folder: Path, **tokenizer_config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    write_json(folder / "config.json", {"model_type": "bert", "max_position_embeddings": 40, "pad_token_id": 0})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LIMIT})
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    return folder


def baked_folder(folder: Path) -> Path:
    """A folder like published ones: a tokenizer.json with stored padding to 128 and truncation at 128."""
    vocab_folder(folder)
    baked = BertWordPieceTokenizer(vocab=IDS, lowercase=True)
    baked.enable_padding(length=128)
    baked.enable_truncation(128)
    baked.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").unlink()
    return folder


@pytest.fixture(scope="module")
def from_vocab(tmp_path_factory) -> Tokenizer:
    return Tokenizer.load(vocab_folder(tmp_path_factory.mktemp("vocab")), limit=40)


@pytest.fixture(scope="module")
def baked(tmp_path_factory) -> Path:
    return baked_folder(tmp_path_factory.mktemp("baked"))


@pytest.fixture(scope="module")
def from_json(baked) -> Tokenizer:
    return Tokenizer.load(baked, limit=40)


def slow_pieces(text: str, lowercase: bool = True) -> list[str]:
    """BERT's pieces, slowly: lowercase, drop accents, split at spaces and punctuation, greedy longest match."""
    if lowercase:
        decomposed = unicodedata.normalize("NFD", text.lower())
        text = "".join(char for char in decomposed if unicodedata.category(char) != "Mn")
    pieces = []
    for word in re.findall(r"[.,!?'()中-]|[^.,!?'()中\s-]+", text):
        found, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = [end for end in range(len(word), start, -1) if prefix + word[start:end] in IDS]
            if not ends:
                found = ["[UNK]"]
                break
            found.append(prefix + word[start : ends[0]])
            start = ends[0]
        pieces += ["[UNK]"] if len(word) > 100 else found
    return pieces


def slow_ids(text: str, lowercase: bool = True) -> list[int]:
    return [IDS[piece] for piece in slow_pieces(text, lowercase)]


# ------------------------------------------------------------------------------------- word pieces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sits.", "the cat sits ."),
        ("sitting", "sit ##ting"),
        ("cats runner running", "cat ##s run ##ner run ##ning"),
        ("abcda", "abcd ##a"),  # the longest piece first, not ab ##cd
        ("babcd", "b ##abc ##d"),
        ("be", "[UNK]"),  # a word with an unknown part is unknown as a whole
        ("zebra a", "[UNK] a"),
        ("dog's", "dog ' [UNK]"),  # "s" alone is not a piece
        ("a-b,c", "a - b , c"),
        ("!!", "! !"),
        ("a中b", "a 中 b"),
        ("àb", "ab"),  # without the accent
        ("12 2", "1 ##2 2"),
        ("a [SEP] b[MASK]", "a [SEP] b [MASK]"),  # as in the reference, special tokens in the text are special
        ("a\tb\nc\r\nd", "a b c d"),
        ("  a  ", "a"),
        ("c\x00a\x07t", "cat"),  # control characters are removed without a space
        ("c\ufffda\u200bt", "cat"),
        ("a\x85b", "ab"),
        ("a\u2028b", "a b"),  # but a line separator is a space
        ("\x00", ""),
        ("", ""),
        (" \t\n", ""),
        ("a" * 100, "a" + " ##a" * 99),
        ("a" * 101, "[UNK]"),
    ],
)
def test_word_pieces_by_hand(tmp_path, text, expected):
    for name, make in (("vocab", vocab_folder), ("json", baked_folder)):
        tokenizer = Tokenizer.load(make(tmp_path / name))
        tokenizer.limit = 200
        ids = tokenizer.encode([text]).ids[0]
        assert tokenizer.tokens(ids) == ["[CLS]", *expected.split(), "[SEP]"]
        assert ids == [IDS[piece] for piece in tokenizer.tokens(ids)]


@settings(deadline=None)
@given(text=texts)
def test_word_pieces_equal_slow_greedy_longest_match(from_vocab, from_json, text):
    expected = [CLS, *slow_ids(text)[:38], SEP]
    assert from_vocab.encode([text]).ids == [expected]
    assert from_json.encode([text]).ids == [expected]


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_unicode_text_has_ids_and_both_files_agree(from_vocab, from_json, text):
    encoded = from_vocab.encode([text])
    assert encoded.ids[0][0] == CLS
    assert encoded.ids[0][-1] == SEP
    assert encoded.ids == from_json.encode([text]).ids


def test_do_lower_case_false_keeps_case_and_accents(tmp_path):
    tokenizer = Tokenizer.load(vocab_folder(tmp_path, do_lower_case=False))
    for text in ("A aB Ea aé é ABe", "The cat", "bA, aA"):
        assert tokenizer.encode([text]).ids == [[CLS, *slow_ids(text, lowercase=False), SEP]]
    assert tokenizer.tokens(tokenizer.encode(["aBé The"]).ids[0]) == ["[CLS]", "a", "##B", "##é", "[UNK]", "[SEP]"]


def test_strip_accents_can_be_switched_off_alone(tmp_path):
    tokenizer = Tokenizer.load(vocab_folder(tmp_path, strip_accents=False))
    assert tokenizer.tokens(tokenizer.encode(["Aé"]).ids[0]) == ["[CLS]", "a", "##é", "[SEP]"]


def test_vocabulary_with_windows_line_ends_or_byte_order_mark_or_no_last_line_end(tmp_path):
    expected = [CLS, *slow_ids("the cat é 中"), SEP]
    for content in ("\r\n".join(VOCAB) + "\r\n", "\ufeff" + "\n".join(VOCAB) + "\n", "\n".join(VOCAB)):
        vocab_folder(tmp_path)
        (tmp_path / "vocab.txt").write_bytes(content.encode())
        assert Tokenizer.load(tmp_path).encode(["the cat é 中"]).ids == [expected]


def test_line_separators_in_the_vocabulary_do_not_shift_the_ids_after_them(tmp_path):
    vocab_folder(tmp_path)
    odd = ["x\x85y", "\u2028", "\x0c"]
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB[:5] + odd + VOCAB[5:]) + "\n", encoding="utf-8")
    assert Tokenizer.load(tmp_path).encode(["a cat"]).ids == [[CLS, IDS["a"] + 3, IDS["cat"] + 3, SEP]]


# --------------------------------------------------------------------------- published files


def test_baked_padding_and_truncation_are_cleared(baked):
    naive = Backend.from_file(str(baked / "tokenizer.json"))
    assert len(naive.encode("cat").ids) == 128  # the stored padding
    tokenizer = Tokenizer.load(baked)
    assert tokenizer.encode(["cat"]).ids == [[CLS, IDS["cat"], SEP]]
    tokenizer.limit = 1000
    assert len(tokenizer.encode(["cat " * 200]).ids[0]) == 202


def test_tokenizer_json_comes_before_vocab_txt(baked, tmp_path):
    shutil.copytree(baked, tmp_path, dirs_exist_ok=True)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n", encoding="utf-8")
    assert Tokenizer.load(tmp_path).encode(["cat"]).ids == [[CLS, IDS["cat"], SEP]]


@pytest.mark.parametrize(
    ("argument", "max_seq_length", "model_max_length", "table", "expected"),
    [
        (9, 16, 12, 40, 9),
        (20, 16, 12, 40, 20),  # an argument may exceed the stated limit
        (40, 16, 12, 40, 40),
        (None, 16, 12, 40, 16),
        (None, 50, 12, 40, 40),
        (None, None, 12, 40, 12),
        (None, None, 50, 40, 40),
        (None, None, 1e30, 40, 40),
        (None, None, 10**30, 40, 40),
        (None, None, None, 40, 40),
        (None, 16, None, None, 16),
        (None, None, 12, None, 12),
        (30, None, None, None, 30),
    ],
)
def test_limit_precedence(tmp_path, argument, max_seq_length, model_max_length, table, expected):
    vocab_folder(tmp_path, model_max_length=model_max_length)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": max_seq_length})
    write_json(tmp_path / "config.json", {"max_position_embeddings": table})
    tokenizer = Tokenizer.load(tmp_path, argument)
    assert tokenizer.limit == expected
    assert len(tokenizer.encode(["a " * 100]).ids[0]) == expected


@pytest.mark.parametrize("emptied", [False, True])
def test_no_stated_limit_is_an_error_that_names_the_folder(tmp_path, emptied):
    vocab_folder(tmp_path)
    for name in ("sentence_bert_config.json", "config.json", "tokenizer_config.json"):
        if emptied:
            write_json(tmp_path / name, {})
        else:
            (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))} states no maximum length"):
        Tokenizer.load(tmp_path)
    assert Tokenizer.load(tmp_path, 7).limit == 7


@pytest.mark.parametrize(("limit", "message"), [(41, "above the position table .* 40"), (4, "4 is too small.* 5")])
def test_limit_out_of_range(tmp_path, limit, message):
    with pytest.raises(InputError, match=message):
        Tokenizer.load(vocab_folder(tmp_path), limit)


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_of_zero_or_less_is_not_treated_as_none(tmp_path, limit):
    with pytest.raises(InputError, match=f"{limit} is too small"):
        Tokenizer.load(vocab_folder(tmp_path), limit)


@pytest.mark.parametrize("value", ["many", [16], math.inf, math.nan])
def test_a_stated_limit_that_is_not_a_number_names_file_and_key(tmp_path, value):
    vocab_folder(tmp_path)
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": value})
    with pytest.raises(InputError, match=r"sentence_bert_config\.json: max_seq_length must be int"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(("stated", "expected"), [({"pad_token_id": 4}, 4), ({"pad_token_id": None}, 0), ({}, 0)])
def test_pad_id_comes_from_the_model_config(tmp_path, stated, expected):
    vocab_folder(tmp_path)
    write_json(tmp_path / "config.json", {"max_position_embeddings": 40, **stated})
    assert Tokenizer.load(tmp_path).pad_id == expected


# ------------------------------------------------------------------------------ cutting and pairs


def test_empty_text_is_cls_sep(from_vocab):
    assert from_vocab.encode([""]).ids == [[CLS, SEP]]
    assert from_vocab.encode_pairs([""], ["a"]).ids == [[CLS, SEP, IDS["a"], SEP]]
    assert from_vocab.encode_pairs([""], [""]).token_types == [[0, 0, 1]]


def test_no_texts_give_no_rows(from_vocab):
    assert from_vocab.encode([]).ids == []
    assert len(from_vocab.encode_pairs([], [])) == 0


def test_rows_keep_their_order_and_own_length(from_vocab):
    many = ["a " * n for n in (3, 0, 7, 1)]
    assert [len(ids) for ids in from_vocab.encode(many).ids] == [5, 2, 9, 3]


def test_pairs_have_token_types_0_and_1(from_json):
    encoded = from_json.encode_pairs(["a cat"], ["the dog sits"])
    expected = ["[CLS]", "a", "cat", "[SEP]", "the", "dog", "sits", "[SEP]"]
    assert from_json.tokens(encoded.ids[0]) == expected
    assert encoded.token_types == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert from_json.encode(["a cat"]).token_types == [[0, 0, 0, 0]]


def test_a_text_at_the_limit_is_whole_and_one_above_is_cut(tmp_path):
    tokenizer = Tokenizer.load(vocab_folder(tmp_path))
    encoded = tokenizer.encode(["a " * 13, "a " * 14, "a " * 14 + "b", "a " * 99, ""])
    assert [len(ids) for ids in encoded.ids] == [15, 16, 16, 16, 2]
    assert encoded.truncated == 2
    assert encoded.ids[2] == [CLS] + 14 * [IDS["a"]] + [SEP]
    assert [len(types) for types in encoded.token_types] == [15, 16, 16, 16, 2]


def test_pairs_that_are_cut_are_counted_once(tmp_path):
    tokenizer = Tokenizer.load(vocab_folder(tmp_path))  # 13 tokens of both together
    encoded = tokenizer.encode_pairs(["a " * 6, "a " * 7, "a " * 50, ""], ["b " * 7, "b " * 7, "b " * 50, "b " * 14])
    assert encoded.truncated == 3
    assert [len(ids) for ids in encoded.ids] == [16, 16, 16, 16]


def test_cut_message():
    tokenizer = Tokenizer(BertWordPieceTokenizer(vocab=IDS)._tokenizer, limit=256)
    assert tokenizer.cut_message(3, 2758) == "3 of 2,758 texts were longer than 256 tokens and were cut"


@pytest.mark.parametrize("limit", [5, 6, 7, 8, 11, 16])
def test_cut_pairs_equal_the_library(baked, limit):
    """Every pair of 0 to 12 tokens per side, against the library's own truncation."""
    library = Backend.from_file(str(baked / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(limit, strategy="longest_first")
    sides = [
        (" ".join("abcdabcdabcd"[:n]), "dog cat dog cat dog cat dog cat dog cat dog cat"[: 4 * n]) for n in range(13)
    ]
    pairs = [(first, second) for first, _ in sides for _, second in sides]
    expected = library.encode_batch(pairs)
    found = Tokenizer.load(baked, limit).encode_pairs(*zip(*pairs, strict=True))
    assert found.ids == [encoding.ids for encoding in expected]
    assert found.token_types == [encoding.type_ids for encoding in expected]
    assert found.truncated == sum(bool(encoding.overflowing) for encoding in expected)


@settings(deadline=None)
@given(first=texts, second=texts, limit=st.integers(5, 20))
def test_any_cut_text_and_pair_equals_the_library(baked, first, second, limit):
    library = Backend.from_file(str(baked / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(limit, strategy="longest_first")
    tokenizer = Tokenizer.load(baked, limit)
    assert tokenizer.encode([first]).ids == [library.encode(first).ids]
    expected = library.encode(first, second)
    assert tokenizer.encode_pairs([first], [second]).ids == [expected.ids]
    assert tokenizer.encode_pairs([first], [second]).token_types == [expected.type_ids]


def peak_memory() -> float:
    """The peak memory of this process in bytes."""
    resource = pytest.importorskip("resource", reason="peak memory is read with a Unix module")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.parametrize(
    ("text", "tokens", "truncated"), [("a " * 500_000, 40, 1), ("a.b," * 250_000, 40, 1), ("ab" * 500_000, 3, 0)]
)
def test_a_million_characters_are_fast_and_small(from_json, text, tokens, truncated):
    """The library's own truncation keeps every combination of the parts of both sides, which exhausts any memory."""
    before, started = peak_memory(), time.perf_counter()
    single, pair = from_json.encode([text]), from_json.encode_pairs([text], [text])
    assert time.perf_counter() - started < 20
    assert peak_memory() - before < 1e9
    assert (len(single.ids[0]), single.truncated) == (tokens, truncated)
    assert (len(pair.ids[0]), pair.truncated) == (40 if truncated else 5, truncated)


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("bad", ["a\ud800b", "\udfff"])
def test_lone_surrogate_names_the_text_and_the_character(from_vocab, bad):
    message = f"text 1 is not valid Unicode: a lone surrogate at character {len(bad) // 2}"
    for call in (
        lambda: from_vocab.encode(["fine", bad]),
        lambda: from_vocab.encode_pairs(["fine", bad], ["a", "b"]),
        lambda: from_vocab.encode_pairs(["a", "b"], ["fine", bad]),
    ):
        with pytest.raises(InputError, match=message) as caught:
            call()
        str(caught.value).encode()  # the message can be printed


@pytest.mark.parametrize(
    ("bad", "kind"), [(None, "NoneType"), (3, "int"), (b"bytes", "bytes"), (["a"], "list"), (math.nan, "float")]
)
def test_a_text_that_is_not_a_string_is_named_with_its_place(from_vocab, bad, kind):
    with pytest.raises(InputError, match=f"text 2 is not a string but {kind}"):
        from_vocab.encode(["a", "b", bad])
    with pytest.raises(InputError, match=f"text 0 is not a string but {kind}"):
        from_vocab.encode_pairs(["a"], [bad])


def test_one_bare_string_is_refused(from_vocab):
    with pytest.raises(InputError, match="put it in brackets"):
        from_vocab.encode("abc")
    with pytest.raises(InputError, match="put it in brackets"):
        from_vocab.encode_pairs(["a"], "b")
    with pytest.raises(InputError, match="put it in brackets"):
        from_vocab.encode_pairs("ab", ["b"])


def test_a_generator_is_refused_and_not_treated_as_no_texts(from_vocab):
    with pytest.raises(InputError, match="a list of texts is needed, not generator"):
        from_vocab.encode(text for text in ["a"])
    with pytest.raises(InputError, match="a list of texts is needed, not NoneType"):
        from_vocab.encode_pairs(["a"], None)


def test_tuples_and_numpy_arrays_are_sequences_too(from_vocab):
    expected = from_vocab.encode(["a", "cat"]).ids
    assert from_vocab.encode(("a", "cat")).ids == expected
    assert from_vocab.encode(np.array(["a", "cat"])).ids == expected


def test_pairs_of_two_lengths_are_refused(from_vocab):
    with pytest.raises(InputError, match="2 first and 1 second"):
        from_vocab.encode_pairs(["a", "b"], ["c"])


def test_folder_without_vocabulary(tmp_path):
    with pytest.raises(InputError, match=r"neither tokenizer\.json nor vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", [b"{broken", b"[]", b"{}", b"", b"\xff\xfe"])
def test_damaged_tokenizer_json_names_the_file(baked, tmp_path, content):
    shutil.copytree(baked, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: "):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "sentence_bert_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{\n"a": }', "line 2: not valid JSON"),
        (b"[1]", "a JSON dict is needed"),
        (b'{"a": "\xff"}', "not UTF-8"),
    ],
)
def test_damaged_config_names_the_file(tmp_path, name, content, message):
    vocab_folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{re.escape(name)}.*{message}"):
        Tokenizer.load(tmp_path)


def test_vocabulary_that_is_not_utf8_names_file_and_line(tmp_path):
    vocab_folder(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n[UNK]\ncaf\xe9\n")
    with pytest.raises(InputError, match=r"vocab\.txt, line 3: not UTF-8"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("piece", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
def test_vocabulary_without_a_special_piece(tmp_path, piece):
    vocab_folder(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(p for p in VOCAB if p != piece), encoding="utf-8")
    with pytest.raises(InputError, match=rf"vocab\.txt has no {re.escape(piece)}:"):
        Tokenizer.load(tmp_path)


# -------------------------------------------------------------------------------------------- save


@pytest.mark.parametrize("make", [vocab_folder, baked_folder])
def test_saved_tokenizer_is_clean_and_gives_the_same_ids(tmp_path, make):
    tokenizer = Tokenizer.load(make(tmp_path / "original"))
    saved = tmp_path / "saved"
    saved.mkdir()
    tokenizer.save(saved)
    spec = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    assert spec["padding"] is None
    assert spec["truncation"] is None
    reloaded = Tokenizer.load(saved, limit=LIMIT)
    many = ["The cat sits.", "é 中 babcd!", "", "a " * 40, "[MASK] [SEP]"]
    assert reloaded.encode(many) == tokenizer.encode(many)
    assert reloaded.encode_pairs(many, many[::-1]) == tokenizer.encode_pairs(many, many[::-1])
    library = Backend.from_file(str(saved / "tokenizer.json"))  # any other reader of the file gives the same
    assert library.encode("cat").ids == [CLS, IDS["cat"], SEP]


def test_save_keeps_the_other_files_byte_for_byte(tmp_path):
    folder = vocab_folder(tmp_path / "original", do_lower_case=False, odd="é")
    saved = tmp_path / "saved"
    saved.mkdir()
    Tokenizer.load(folder).save(saved)
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (saved / name).read_bytes() == (folder / name).read_bytes()
    assert Tokenizer.load(saved, limit=LIMIT).encode(["aBé"]).ids == [[CLS, IDS["a"], IDS["##B"], IDS["##é"], SEP]]


# --------------------------------------------------------------------------------------- reference


@pytest.mark.reference
@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_ids_equal_transformers(tmp_path, options):
    transformers = pytest.importorskip("transformers")
    folder = vocab_folder(tmp_path, tokenizer_class="BertTokenizer", **options)
    tokenizer = Tokenizer.load(folder)
    firsts = ["The cat sits.", "Éa aé 中 aB", "", "a " * 30, "b c " * 9, "c\x00a\u200bt [SEP] [MASK] x", "dog!? (a-b)"]
    seconds = ["a dog", "c " * 20, "b", "d " * 31, "", "AB E\u2028é", "a " * 9]
    for family in (transformers.AutoTokenizer, transformers.BertTokenizerFast):
        reference = family.from_pretrained(folder)
        cut = {"truncation": "longest_first", "max_length": LIMIT, "return_token_type_ids": True}
        singles = reference(firsts, **cut)
        assert tokenizer.encode(firsts).ids == singles["input_ids"]
        assert tokenizer.encode(firsts).token_types == singles["token_type_ids"]
        pairs = reference(firsts, seconds, **cut)
        assert tokenizer.encode_pairs(firsts, seconds).ids == pairs["input_ids"]
        assert tokenizer.encode_pairs(firsts, seconds).token_types == pairs["token_type_ids"]


@pytest.mark.parametrize("make", [vocab_folder, baked_folder])
def test_tokens_beyond_the_embedding_table_are_named_at_load(tmp_path, make):
    folder = make(tmp_path)
    config = {"model_type": "bert", "max_position_embeddings": 40, "vocab_size": len(VOCAB)}
    write_json(folder / "config.json", config)
    assert Tokenizer.load(folder).encode(["the cat"]).ids == [[CLS, IDS["the"], IDS["cat"], SEP]]
    write_json(folder / "config.json", config | {"vocab_size": len(VOCAB) - 5})
    last = ", ".join(repr(f"{piece} ({IDS[piece]})") for piece in VOCAB[-5:-2])
    with pytest.raises(InputError, match=re.escape(f"has {len(VOCAB) - 5} rows, and the tokenizer has {last} and 2")):
        Tokenizer.load(folder)


def test_a_damaged_table_of_characters(tmp_path):
    """The library panics, with what is no ``Exception``, when a text needs the table."""
    folder = baked_folder(tmp_path)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    spec["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "BAAAAGFhYWEA"}  # a length of 4, "aaaa"
    write_json(folder / "tokenizer.json", spec)
    with pytest.raises(InputError, match=r"cannot encode 'the cat'.*index out of bounds"):
        Tokenizer.load(folder).encode(["the cat"])


def test_an_unknown_token_that_is_missing(tmp_path):
    """The library raises a bare Exception only when a text needs the token."""
    folder = baked_folder(tmp_path)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    spec["model"]["unk_token"] = "[NONE]"
    write_json(folder / "tokenizer.json", spec)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(["the cat"]).ids == [[CLS, IDS["the"], IDS["cat"], SEP]]
    with pytest.raises(InputError, match=r"cannot encode 'zebra'.*Missing \[UNK\] token"):
        tokenizer.encode(["zebra"])
