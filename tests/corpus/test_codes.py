"""encode --quantize and search over its files: bytes and scores by hand, recall against the exact search, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import save_file

from minisbert.commands import encode, pairs, search
from minisbert.core import InputError
from minisbert.corpus.codes import Bits, Decoded, read_codes, write_codes
from minisbert.corpus.hashes import corpus_hash, tensors_hash
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.dense import top_k
from tests.toys import NOUNS

CORPUS = [f"{start} {noun}{end}" for noun in NOUNS for start in ("the", "a small") for end in ("", " and rain")]
QUERIES = ["a dog", "the moon and rain", "small cat", "the woman in the park"]


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in CORPUS))
    return path


def written(tiny, corpus: Path, kind: str, *flags: str) -> Path:
    path = corpus.with_name(f"{kind}.safetensors")
    encode.main(["--model", str(tiny), "--file", str(corpus), "--quantize", kind, "--out", str(path), *flags])
    return path


def found(tiny, corpus: Path, capsys, *flags: str, top: int = 5) -> list[dict]:
    capsys.readouterr()
    queries = [flag for query in QUERIES for flag in ("--query", query)]
    search.main([str(corpus), "--model", str(tiny), *queries, "--top", str(top), "--json", *flags])
    return [result["hits"] for result in json.loads(capsys.readouterr().out)["results"]]


# ------------------------------------------------------------------------------------------ by hand


def test_int8_by_hand(tmp_path):
    """Columns of ranges 0 to 255 and -10 to 500: steps of 1 and of 2."""
    vectors = np.array([[0, -10], [1.9, 0], [255, 500]], np.float32)
    write_codes(vectors, ["a", "b", "c"], "int8", "model", tmp_path / "codes.safetensors")
    file = load_file(tmp_path / "codes.safetensors")
    assert file["ranges"].tolist() == [[0, -10], [255, 500]]
    assert file["codes"].dtype == np.int8
    assert file["codes"].tolist() == [[-128, -128], [-127, -123], [127, 127]]
    decoded = Decoded(**file)[np.array([1, 0])]
    np.testing.assert_allclose(decoded, [[1.5, 1], [0.5, -9]], atol=1e-6, rtol=0)  # middles of the steps


def test_bits_by_hand_and_their_scores(tmp_path):
    """Nine columns are two bytes, and a score is a sum of signed columns of the query over the lengths 3 and 3."""
    signs = np.array([[1, 1, 1], [1, 1, -1], [-1, 1, 1], [-1, -1, -1]], np.float32)
    vectors = np.concatenate([signs, np.tile([0.5, -1, -1, -1, 0, 2], (4, 1))], axis=1)
    write_codes(vectors, list("abcd"), "binary", "model", tmp_path / "codes.safetensors")
    file = load_file(tmp_path / "codes.safetensors")
    # 1111 0000 1, 1101 0000 1, 0111 0000 1, 0001 0000 1
    assert file["bits"].tolist() == [[0b11110000, 128], [0b11010000, 128], [0b01110000, 128], [0b00010000, 128]]
    query = np.array([[2, 1, -2, 0, 0, 0, 0, 0, 0]], np.float32)  # bits 1100 0000 0, at distances 3, 2, 4, 4
    scores, indices = Bits(file["bits"], 9).top_k(query, 2, times=2)
    assert indices.tolist() == [[1, 0]]
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9]], atol=1e-7, rtol=0)  # 2 + 1 + 2, 2 + 1 - 2
    scores, indices = Bits(file["bits"], 9).top_k(query, 3, times=1)
    assert indices.tolist() == [[1, 0, 2]]  # of two rows as far away the first
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9, -3 / 9]], atol=1e-7, rtol=0)


def test_rescoring_looks_at_so_many_candidates():
    """The nearest by bits is the last by the float query, so one candidate is too few."""
    corpus = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], np.uint8)
    bits = np.packbits(corpus, axis=1)
    query = np.array([[9, 0.1, 0.1, 0.1]], np.float32)  # bits 1111, at distances 1, 3, 2, 2
    firsts = [Bits(bits, 4).top_k(query, 1, times)[1].item() for times in (1, 2, 3, 4, 9)]
    assert firsts == [0, 2, 2, 2, 2]
    np.testing.assert_allclose(Bits(bits, 4).top_k(query, 1, 4)[0], 8.9 / 2 / np.sqrt(81.03), atol=1e-7, rtol=0)


def test_many_queries_are_rescored_in_blocks(monkeypatch):
    monkeypatch.setattr("minisbert.corpus.codes.BLOCK_NUMBERS", 100)
    rng = np.random.default_rng(0)
    bits, queries = Bits(rng.integers(0, 256, (30, 2), np.uint8), 16), rng.normal(size=(7, 16)).astype(np.float32)
    blocks = bits.top_k(queries, 3)
    alone = [bits.top_k(query[None], 3) for query in queries]
    for i in range(2):
        np.testing.assert_array_equal(blocks[i], np.concatenate([one[i] for one in alone]))


# ------------------------------------------------------------------------------------------ the commands


def test_more_candidates_of_bits_find_more_of_the_exact_neighbours():
    """Of 2,000 vectors in 100 clusters the ten nearest, beside those by float32: chance would find 0.005 of them."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(100, 64))
    corpus = (np.repeat(centres, 20, axis=0) + 0.5 * rng.normal(size=(2000, 64))).astype(np.float32)
    queries = (centres[:40] + 0.5 * rng.normal(size=(40, 64))).astype(np.float32)
    exact = top_k(queries, corpus, 10)[1]
    bits = Bits(np.packbits(corpus > 0, axis=1), 64)
    recalls = [
        np.mean([np.isin(*rows) for rows in zip(exact, bits.top_k(queries, 10, k)[1], strict=True)]) for k in (1, 4)
    ]
    assert 0.5 < recalls[0] < recalls[1]


def test_the_scores_are_those_of_float32_queries_and_decoded_codes(tiny, corpus, capsys):
    vectors, queries = (SentenceEncoder.load(tiny).encode(texts).astype(np.float64) for texts in (CORPUS, QUERIES))
    low, high = vectors.min(0), vectors.max(0)
    steps = np.floor((vectors - low) / (high - low) * 255).clip(0, 255)
    decoded = {"int8": low + (steps + 0.5) / 255 * (high - low), "binary": np.where(vectors > 0, 1.0, -1.0)}
    said = {"int8": (24, 5e-3), "binary": (3, 2e-6)}  # a number at a step's border may have the next code
    for kind, (width, tolerance) in said.items():
        path = written(tiny, corpus, kind)
        assert f"wrote {len(CORPUS)} vectors of width 24 as {kind} codes to {path}" in capsys.readouterr().err
        assert load_file(path)["codes" if kind == "int8" else "bits"].shape == (len(CORPUS), width)
        unit = decoded[kind] / np.linalg.norm(decoded[kind], axis=1, keepdims=True)
        cosines = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ unit.T
        hits = found(tiny, corpus, capsys, "--index", str(path), "--rescore", "99", top=3)
        for row, own in zip(cosines, hits, strict=True):
            scores, indices = [hit["score"] for hit in own], [hit["index"] for hit in own]
            np.testing.assert_allclose(scores, np.sort(row)[::-1][:3], atol=tolerance, rtol=0)
            np.testing.assert_allclose(scores, row[indices], atol=tolerance)
            assert [hit["text"] for hit in own] == [CORPUS[i] for i in indices]


def test_pairs_read_int8_and_refuse_bits(tiny, corpus, capsys):
    command = [str(corpus), "--model", str(tiny), "--json", "--top", "3", "--index"]
    pairs.main([*command, str(written(tiny, corpus, "int8"))])
    assert all(pair["score"] > 0.9 for pair in json.loads(capsys.readouterr().out)["pairs"])
    with pytest.raises(InputError, match=r"binary\.safetensors holds bits, which only search reads"):
        pairs.main([*command, str(written(tiny, corpus, "binary"))])


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_codes_that_do_not_fit_are_refused_and_kept(tiny, corpus, capsys, kind):
    for made, asked, message in (
        ([], ["--pooling", "cls"], "was made with another model: give what it was made with, or write it again with"),
        ([], ["--corpus-prompt", "the "], "was made with another model"),
        (["--prompt", "the "], [], "was made with another model"),
        (["--truncate-dim", "8"], [], "was made with another width"),
    ):
        path = written(tiny, corpus, kind, *made)
        before = path.read_bytes()
        with pytest.raises(InputError, match=message):
            found(tiny, corpus, capsys, "--index", str(path), *asked)
        assert path.read_bytes() == before
    path = written(tiny, corpus, kind, "--prompt", "the ")
    assert found(tiny, corpus, capsys, "--index", str(path), "--corpus-prompt", "the ")
    corpus.write_text("another text\n")
    with pytest.raises(InputError, match="another corpus"):
        found(tiny, corpus, capsys, "--index", str(path), "--corpus-prompt", "the ")


def test_rescoring_without_codes_is_refused(tiny, corpus, tmp_path, capsys):
    index = ["--index", str(tmp_path / "float.safetensors")]
    found(tiny, corpus, capsys, *index)
    for flags in ([], index):
        with pytest.raises(InputError, match="--rescore is for an --index that encode --quantize wrote"):
            found(tiny, corpus, capsys, "--rescore", "4", *flags)


@pytest.mark.parametrize("change", [{"codes": torch.zeros(80, 24, dtype=torch.int8)}, {"codes": None}])
def test_damaged_codes_are_refused(tiny, corpus, capsys, change):
    path = written(tiny, corpus, "int8")
    with safe_open(path, "pt") as file:
        tensors, about = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file({name: value for name, value in (tensors | change).items() if value is not None}, path, about)
    with pytest.raises(
        InputError, match=r"int8\.safetensors is damaged .*or write it again with encode --quantize int8"
    ):
        found(tiny, corpus, capsys, "--index", str(path))


@pytest.mark.parametrize(
    "tensors",
    [
        {}, {"codes": torch.zeros(2, 3)}, {"codes": torch.zeros(2, 3, dtype=torch.int8)}, {"bits": torch.zeros(6)},
        {"codes": torch.zeros(1, 3, dtype=torch.int8), "ranges": torch.zeros(2, 3)}, {"bits": torch.zeros(2, 1)},
        {"codes": torch.zeros(2, 3, dtype=torch.int8), "ranges": torch.zeros(2, 4)},
    ],
)  # fmt: skip
def test_forged_codes_are_one_line(tmp_path, tensors):
    """Their hashes are right."""
    path = tmp_path / "codes.safetensors"
    save_file(tensors, path)
    about = {"model": "m", "corpus": corpus_hash(["a", "b"]), "width": "3", "vectors": tensors_hash(tensors)}
    for kind in ({"kind": "int8"}, {"kind": "binary"}, {"kind": "float8"}, {}):
        with pytest.raises(InputError, match=r"codes\.safetensors"):
            read_codes(path, about | kind, ["a", "b"], "m", 3)


def test_what_cannot_be_quantised(tiny, tmp_path):
    for out, flags, message in (
        ("v.npy", ["--quantize", "int8"], r"--quantize and .* need --out F\.safetensors"),
        ("v.safetensors", ["--quantize", "binary", "--output", "token"], "vectors of sentences"),
        ("v.safetensors", ["--quantize", "int8"], "--quantize int8: one vector has no ranges"),
    ):
        with pytest.raises(InputError, match=message):
            encode.main(["--model", str(tiny), "a cat", "--out", str(tmp_path / out), *flags])
    assert not list(tmp_path.iterdir())
