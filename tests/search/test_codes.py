"""Codes in files: by hand, their scores, how commands search by them, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from minisbert.commands import encode, mine, pairs, search
from minisbert.core import InputError
from minisbert.core.weights import read_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.codes import Bits, Decoded, from_codes, write_codes


def test_int8_by_hand(tmp_path):
    """Columns of ranges 0 to 255 and -10 to 500: steps of 1 and of 2."""
    vectors = np.array([[0, -10], [1.9, 0], [255, 500]], np.float32)
    write_codes(vectors, "int8", tmp_path / "codes.safetensors", {})
    file = load_file(tmp_path / "codes.safetensors")
    assert file["ranges"].tolist() == [[0, -10], [255, 500]]
    assert file["codes"].dtype == np.int8
    assert file["codes"].tolist() == [[-128, -128], [-127, -123], [127, 127]]


def test_int8_codes_come_back_as_the_middles_of_their_steps():
    codes = np.array([[-128, -128], [-127, -123], [127, 127]], np.int8)
    ranges = np.array([[0, -10], [255, 500]], np.float32)
    chosen = Decoded(codes, ranges)[np.array([1, 0])]
    np.testing.assert_allclose(chosen, [[1.5, 1], [0.5, -9]], atol=1e-6, rtol=0)


def test_int8_codes_are_opened_from_a_file(tmp_path):
    vectors = np.array([[0, -10], [1.9, 0], [255, 500]], np.float32)
    write_codes(vectors, "int8", tmp_path / "codes.safetensors", {})
    decoded = from_codes(read_safetensors(tmp_path / "codes.safetensors"), 3, 2)
    np.testing.assert_allclose(decoded[0:2], [[0.5, -9], [1.5, 1]], atol=1e-6, rtol=0)


@pytest.fixture
def bits(tmp_path) -> Bits:
    """Four rows of nine columns, written and read; nine columns are two bytes."""
    signs = np.array([[1, 1, 1], [1, 1, -1], [-1, 1, 1], [-1, -1, -1]], np.float32)
    others = np.tile([0.5, -1, -1, -1, 0, 2], (4, 1))
    vectors = np.concatenate([signs, others], axis=1)
    write_codes(vectors, "binary", tmp_path / "codes.safetensors", {})
    return from_codes(read_safetensors(tmp_path / "codes.safetensors"), 4, 9)


def test_bits_by_hand(bits):
    assert bits.bits.tolist() == [
        [0b11110000, 0b10000000],
        [0b11010000, 0b10000000],
        [0b01110000, 0b10000000],
        [0b00010000, 0b10000000],
    ]


def test_scores_by_bits_are_cosines_of_the_query_and_signs(bits):
    """A sum of signed columns of the query over the lengths 3 and 3."""
    query = np.array([[2, 1, -2, 0, 0, 0, 0, 0, 0]], np.float32)
    # The query's bits are 1100 0000 0, at distances 3, 2, 4 and 4.
    scores, indices = bits.top_k(query, 2, times=2)
    assert indices.tolist() == [[1, 0]]
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9]], atol=1e-7, rtol=0)  # 2 + 1 + 2, 2 + 1 - 2
    scores, indices = bits.top_k(query, 3, times=1)
    assert indices.tolist() == [[1, 0, 2]]  # of two rows as far away the first
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9, -3 / 9]], atol=1e-7, rtol=0)


def rows_of_bits() -> Bits:
    corpus = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], np.uint8)
    return Bits(np.packbits(corpus, axis=1), 4)


@pytest.mark.parametrize(("times", "best"), [(1, 0), (2, 2), (3, 2), (4, 2), (9, 2)])
def test_rescoring_looks_at_so_many_candidates(times, best):
    """The nearest by bits is the last by the float query, so one candidate is too few."""
    query = np.array([[9, 0.1, 0.1, 0.1]], np.float32)  # bits 1111, at distances 1, 3, 2, 2
    _, indices = rows_of_bits().top_k(query, 1, times)
    assert indices.item() == best


def test_the_score_of_the_best_candidate():
    query = np.array([[9, 0.1, 0.1, 0.1]], np.float32)
    scores, _ = rows_of_bits().top_k(query, 1, 4)
    np.testing.assert_allclose(scores, 8.9 / 2 / np.sqrt(81.03), atol=1e-7, rtol=0)


def test_blocks_of_queries_change_no_result():
    """They bound the memory."""
    queries = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    alone = [rows_of_bits().top_k(query[None], 2)[1] for query in queries]
    _, indices = rows_of_bits().top_k(queries, 2, numbers=50)
    np.testing.assert_array_equal(indices, np.concatenate(alone))


@pytest.mark.parametrize(
    "tensors",
    [
        {"codes": torch.zeros(2, 3), "ranges": torch.zeros(2, 3)},
        {"codes": torch.zeros(2, 3, dtype=torch.int8)},
        {"codes": torch.zeros(1, 3, dtype=torch.int8), "ranges": torch.zeros(2, 3)},
        {"codes": torch.zeros(2, 3, dtype=torch.int8), "ranges": torch.zeros(2, 4)},
        {"bits": torch.zeros(6, dtype=torch.uint8)},
        {"bits": torch.zeros(2, 1)},
        {"bits": torch.zeros(2, 1, dtype=torch.bfloat16)},
    ],
)
def test_codes_that_do_not_fit_are_refused(tensors):
    """Of two vectors of three columns."""
    with pytest.raises((ValueError, KeyError)):
        from_codes(tensors, 2, 3)


# --------------------------------------------------------------------------------- in the commands

LINES = [
    "the cat sits on the mat",
    "a dog",
    "a woman eats an apple",
    "moon",
    "a dog",
    "  the sun",
    "a bird",
    "rain and snow",
    "the moon",
    "a cat in the rain",
    "snow",
]
KINDS = ["int8", "binary"]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def codes(tiny, text, tmp_path) -> Callable[..., Path]:
    """A function that encodes the text to codes; their path."""

    def run(kind: str, *flags: str) -> Path:
        out = tmp_path / f"{kind}.safetensors"
        arguments = ["--model", str(tiny), "--file", str(text), "--out", str(out)]
        encode.main([*arguments, "--quantize", kind, *flags])
        return out

    return run


@pytest.fixture
def hits(tiny, text, capsys) -> Callable[..., list[dict]]:
    """A function that searches by an index; of two options alike the last counts."""

    def run(index: Path, *flags: str) -> list[dict]:
        capsys.readouterr()
        arguments = ["--model", str(tiny), "--query", "a dog", "--index", str(index), "--json"]
        search.main([str(text), *arguments, *flags])
        return json.loads(capsys.readouterr().out)["results"][0]["hits"]

    return run


def decoded_by_hand(vectors: np.ndarray, kind: str) -> np.ndarray:
    """Vectors (N, D) as codes have them: signs, or the middles of 255 steps."""
    if kind == "binary":
        return np.where(vectors > 0, 1.0, -1.0)
    low = vectors.min(0)
    high = vectors.max(0)
    steps = np.floor((vectors - low) / (high - low) * 255).clip(0, 255)
    return low + (steps + 0.5) / 255 * (high - low)


@pytest.mark.parametrize("prompt", [None, "the sun "])
@pytest.mark.parametrize("width", [24, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_vectors_with_a_prompt_are_searched(
    tiny, codes, hits, encoded_texts, kind, width, prompt
):
    """Scores by hand from ``encode``: float32 queries with decoded vectors.

    The prompt of the codes need not be said again.
    """
    cut = ["--truncate-dim", str(width)] if width < 24 else []
    with_prompt = ["--prompt", prompt] if prompt else []
    path = codes(kind, *cut, *with_prompt)

    encoder = SentenceEncoder.load(tiny)
    lines = [(prompt or "") + line.strip() for line in LINES]
    vectors = encoder.encode(lines).astype(np.float64)[:, :width]
    query = encoder.encode(["a dog"])[0].astype(np.float64)[:width]
    decoded = decoded_by_hand(vectors, kind)
    cosines = decoded @ query / np.linalg.norm(decoded, axis=1) / np.linalg.norm(query)

    encoded_texts.clear()
    all_candidates = ["--rescore", "99"] if kind == "binary" else []
    results = hits(path, *cut, "--top", "3", *all_candidates)
    assert encoded_texts == ["a dog"]
    scores = [hit["score"] for hit in results]
    # A number at a step's border may have the next code.
    tolerance = 5e-3 if kind == "int8" else 3e-6
    np.testing.assert_allclose(scores, np.sort(cosines)[::-1][:3], atol=tolerance, rtol=0)
    chosen = cosines[[hit["index"] for hit in results]]
    np.testing.assert_allclose(scores, chosen, atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("made", "flags", "message"),
    [
        ([], ["--pooling", "cls"], "pooling 'mean', not 'cls'"),
        ([], ["--max-length", "8"], "max_length"),
        ([], ["--corpus-prompt", "x "], "prompt"),
        (["--truncate-dim", "5"], [], "width"),
    ],
)
def test_other_options_are_refused_by_name(codes, encoded_texts, hits, kind, made, flags, message):
    """Codes are never made anew: it may take a day to encode their corpus."""
    assert_refused(hits, codes(kind, *made), flags, message, encoded_texts)


@pytest.mark.parametrize("kind", KINDS)
def test_another_model_is_refused_by_name(tiny, codes, tmp_path, encoded_texts, hits, kind):
    encoder = SentenceEncoder.load(tiny)
    with torch.no_grad():
        encoder.bert.embeddings.word.weight[7, 3] += 0.5
    encoder.save(tmp_path / "other")
    flags = ["--model", str(tmp_path / "other")]
    assert_refused(hits, codes(kind), flags, "another model", encoded_texts)


@pytest.mark.parametrize("kind", KINDS)
def test_other_texts_are_refused_by_name(text, codes, encoded_texts, hits, kind):
    path = codes(kind)
    text.write_text("\n".join(LINES[:-1]))
    assert_refused(hits, path, [], "other texts", encoded_texts)


def assert_refused(
    hits: Callable, path: Path, flags: list[str], message: str, encoded_texts: list[str]
) -> None:
    """The search is refused before it encodes a text, and all files stay as they are."""
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    before = {file: file.read_bytes() for file in files}
    encoded_texts.clear()
    with pytest.raises(InputError, match=message):
        hits(path, *flags)
    assert encoded_texts == []
    files = [file for file in path.parent.rglob("*") if file.is_file()]
    assert {file: file.read_bytes() for file in files} == before


def test_mine_reads_no_codes(tiny, codes, tmp_path):
    """It needs the vectors' own scores."""
    table = tmp_path / "pairs.tsv"
    table.write_text("anchor\tpositive\nthe cat\ta kitten\n")
    arguments = ["--pairs", str(table), "--out", str(tmp_path / "out.jsonl")]
    with pytest.raises(InputError, match="only search reads"):
        mine.main([*arguments, "--model", str(tiny), "--index", str(codes("int8"))])


def test_pairs_reads_no_codes(tiny, text, codes):
    with pytest.raises(InputError, match="only search reads"):
        pairs.main([str(text), "--model", str(tiny), "--index", str(codes("int8"))])


def test_rescore_is_for_codes(tmp_path, hits):
    with pytest.raises(InputError, match="--rescore"):
        hits(tmp_path / "index.safetensors", "--rescore", "4")


def test_a_folder_is_no_index(tmp_path, hits):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"\.safetensors"):
        hits(tmp_path / "folder")


@pytest.mark.parametrize(
    ("out", "message"), [("v.npy", r"\.safetensors"), ("v.safetensors", "ranges")]
)
def test_what_cannot_be_quantised(tiny, tmp_path, out, message):
    """One array has no place for ranges, and one vector has no ranges."""
    arguments = ["--model", str(tiny), "a cat", "--out", str(tmp_path / out)]
    with pytest.raises(InputError, match=message):
        encode.main([*arguments, "--quantize", "int8"])
    assert not list(tmp_path.iterdir())
