"""``--index``: a file that is reused or rebuilt, codes that are read as they are, and what is
refused.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import save_file

from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.commands import encode, mine, pairs, search
from minisbert.core import InputError
from minisbert.core.weights import read_safetensors
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.search.index import (
    Bits,
    Decoded,
    differences,
    from_codes,
    indexed_vectors,
    made_from,
    model_hash,
    write_codes,
)

TEXTS = ["a small dog", "the moon", "rain and snow " * 9]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """The texts that are encoded, in order, from the first ``clear`` on."""
    texts, encode = [], SentenceEncoder.encode

    def noted(self, given, *rest, **options):
        texts.extend(given)
        return encode(self, given, *rest, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", noted)
    return texts


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.safetensors"


def test_an_index_is_reused_and_any_safetensors_reader_opens_it(
    encoder, path, tiny, encoded, capsys
):
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    said = capsys.readouterr().err
    assert f"wrote 3 vectors of width 24 to {path}" in said
    assert "1 of 3 texts were longer than 16 tokens and were cut" in said
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["vectors"]
    encoded.clear()
    np.testing.assert_array_equal(
        indexed_vectors(SentenceEncoder.load(tiny), TEXTS, path), expected
    )
    assert capsys.readouterr().err == ""
    assert encoded == []
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "reason"),
    [("texts", "other texts"), ("model", "another model"), ("prompt", "prompt 'the sun '")],
)
def test_a_stale_index_is_rebuilt_and_reported(encoder, path, encoded, capsys, change, reason):
    indexed_vectors(encoder, TEXTS, path, "the sun " if change == "prompt" else "")
    texts = [*TEXTS, "a cat"] if change == "texts" else TEXTS
    if change == "model":
        with torch.no_grad():
            encoder.bert.embeddings.word.weight[7, 3] += 0.5
    capsys.readouterr()
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert reason in capsys.readouterr().err
    encoded.clear()
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert encoded == []


@pytest.mark.parametrize("kind", ["text", "empty", "model", "own vectors", "cut short"])
def test_a_file_that_is_not_an_index_is_not_replaced(encoder, path, tiny, encoded, kind):
    if kind == "model":
        shutil.copy(tiny / "model.safetensors", path)
    elif kind == "own vectors":
        save_file({"vectors": torch.ones(3, 24)}, path, metadata={"model": "mine", "texts": "mine"})
    elif kind == "cut short":
        indexed_vectors(encoder, TEXTS, path)
        path.write_bytes(path.read_bytes()[:-10])
    else:
        path.write_text("my diary\n" if kind == "text" else "")
    content = path.read_bytes()
    encoded.clear()
    with pytest.raises(InputError, match="not an index"):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content
    assert encoded == []


@pytest.mark.parametrize(
    "change",
    [
        lambda vectors: vectors[1:],
        lambda vectors: vectors[:, 1:].contiguous(),
        lambda vectors: vectors[0].clone(),
        lambda vectors: vectors.half(),
        lambda vectors: vectors.clone().fill_(float("inf")),
    ],
)
def test_an_index_with_other_vectors_than_its_header_says_is_refused(encoder, path, change):
    indexed_vectors(encoder, TEXTS, path)
    with safe_open(path, "pt") as file:
        metadata, vectors = file.metadata(), file.get_tensor("vectors")
    save_file({"vectors": change(vectors)}, path, metadata=metadata)
    content = path.read_bytes()
    with pytest.raises(InputError, match="width 24"):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content


def test_everything_that_changes_the_vectors_changes_the_hash_of_the_model(encoder, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    assert model_hash(SentenceEncoder.load(tmp_path / "copy")) == model_hash(
        encoder
    )  # its content only

    def weight(changed: SentenceEncoder) -> None:
        with torch.no_grad():
            changed.bert.layers[1].attention.query.bias[5] += 1e-6

    changes = [
        weight,
        torch.nn.Module.double,
        lambda changed: setattr(changed, "normalize", not changed.normalize),
        lambda changed: setattr(changed, "tokenizer", read_tokenizer(tiny, limit=9)),
        lambda changed: changed.tokenizer.backend.add_tokens(["the moon"]),
    ]
    hashes = {model_hash(encoder), model_hash(SentenceEncoder.load(tiny, pooling="cls"))}
    for change in changes:
        changed = SentenceEncoder.load(tiny)
        change(changed)
        hashes.add(model_hash(changed))
    assert len(hashes) == 2 + len(changes)


def test_the_hash_of_texts_depends_on_order_and_boundaries(encoder):
    kinds = [
        ["ab", "c"],
        ["a", "bc"],
        ["c", "ab"],
        ["ab\nc"],
        ["ab", "c", ""],
        ['ab"', "c"],
        ["äb", "c"],
    ]
    assert len({made_from(encoder, texts, "")["texts"] for texts in kinds}) == len(kinds)
    assert (
        differences({"model": "a", "width": "5"}, {"model": "b", "width": "5"}) == "another model"
    )
    assert (
        differences({"model": "a", "width": "5"}, {"model": "b", "width": "6"})
        == "width '5', not '6'"
    )


# ------------------------------------------------------------------------------------------ codes


def test_int8_by_hand(tmp_path):
    """Columns of ranges 0 to 255 and -10 to 500: steps of 1 and of 2."""
    vectors = np.array([[0, -10], [1.9, 0], [255, 500]], np.float32)
    write_codes(vectors, "int8", tmp_path / "codes.safetensors", {})
    file = load_file(tmp_path / "codes.safetensors")
    assert file["ranges"].tolist() == [[0, -10], [255, 500]]
    assert file["codes"].dtype == np.int8
    assert file["codes"].tolist() == [[-128, -128], [-127, -123], [127, 127]]
    for decoded in (
        Decoded(**file),
        from_codes(read_safetensors(tmp_path / "codes.safetensors"), 3, 2),
    ):
        np.testing.assert_allclose(
            decoded[np.array([1, 0])], [[1.5, 1], [0.5, -9]], atol=1e-6, rtol=0
        )  # the middles


def test_bits_by_hand_and_their_scores(tmp_path):
    """Nine columns are two bytes, and a score is a sum of signed columns of the query over the
    lengths 3 and 3.
    """
    signs = np.array([[1, 1, 1], [1, 1, -1], [-1, 1, 1], [-1, -1, -1]], np.float32)
    vectors = np.concatenate([signs, np.tile([0.5, -1, -1, -1, 0, 2], (4, 1))], axis=1)
    write_codes(vectors, "binary", tmp_path / "codes.safetensors", {})
    bits = from_codes(read_safetensors(tmp_path / "codes.safetensors"), 4, 9)
    # 1111 0000 1, 1101 0000 1, 0111 0000 1, 0001 0000 1
    assert bits.bits.tolist() == [
        [0b11110000, 128],
        [0b11010000, 128],
        [0b01110000, 128],
        [0b00010000, 128],
    ]
    query = np.array(
        [[2, 1, -2, 0, 0, 0, 0, 0, 0]], np.float32
    )  # bits 1100 0000 0, at distances 3, 2, 4, 4
    scores, indices = bits.top_k(query, 2, times=2)
    assert indices.tolist() == [[1, 0]]
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9]], atol=1e-7, rtol=0)  # 2 + 1 + 2, 2 + 1 - 2
    scores, indices = bits.top_k(query, 3, times=1)
    assert indices.tolist() == [[1, 0, 2]]  # of two rows as far away the first
    np.testing.assert_allclose(scores, [[5 / 9, 1 / 9, -3 / 9]], atol=1e-7, rtol=0)


def test_rescoring_looks_at_so_many_candidates(monkeypatch):
    """The nearest by bits is the last by the float query, so one candidate is too few. Blocks of
    queries agree.
    """
    corpus = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0]], np.uint8)
    bits = Bits(np.packbits(corpus, axis=1), 4)
    query = np.array([[9, 0.1, 0.1, 0.1]], np.float32)  # bits 1111, at distances 1, 3, 2, 2
    assert [bits.top_k(query, 1, times)[1].item() for times in (1, 2, 3, 4, 9)] == [0, 2, 2, 2, 2]
    np.testing.assert_allclose(
        bits.top_k(query, 1, 4)[0], 8.9 / 2 / np.sqrt(81.03), atol=1e-7, rtol=0
    )
    queries = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    alone = [bits.top_k(query[None], 2)[1] for query in queries]
    monkeypatch.setattr("minisbert.search.index.BLOCK_NUMBERS", 50)
    np.testing.assert_array_equal(bits.top_k(queries, 2)[1], np.concatenate(alone))


@pytest.mark.parametrize(
    "tensors",
    [
        {"codes": torch.zeros(2, 3), "ranges": torch.zeros(2, 3)}, {"codes": torch.zeros(2, 3, dtype=torch.int8)},
        {"bits": torch.zeros(6, dtype=torch.uint8)}, {"bits": torch.zeros(2, 1)},
        {"codes": torch.zeros(1, 3, dtype=torch.int8), "ranges": torch.zeros(2, 3)},
        {"codes": torch.zeros(2, 3, dtype=torch.int8), "ranges": torch.zeros(2, 4)},
    ],
)  # fmt: skip
def test_codes_that_do_not_fit_are_refused(tensors):
    with pytest.raises((ValueError, KeyError)):
        from_codes(tensors, 2, 3)


LINES = [
    "the cat sits on the mat",
    "a dog",
    "a woman eats an apple",
    "moon",
    "a dog",
    "  the sun",
    "a bird",
]
LINES += ["rain and snow", "the moon", "a cat in the rain", "snow"]
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
        encode.main(
            [
                "--model",
                str(tiny),
                "--file",
                str(text),
                "--out",
                str(out),
                "--quantize",
                kind,
                *flags,
            ]
        )
        return out

    return run


@pytest.fixture
def hits(tiny, text, capsys) -> Callable[..., list[dict]]:
    """A function that searches by an index; of two options alike the last counts."""

    def run(index: Path, *flags: str, model: Path = tiny) -> list[dict]:
        capsys.readouterr()
        named = ["--model", str(model), "--query", "a dog", "--index", str(index), "--json"]
        search.main([str(text), *named, *flags])
        return json.loads(capsys.readouterr().out)["results"][0]["hits"]

    return run


@pytest.mark.parametrize("prompt", [None, "the sun "])
@pytest.mark.parametrize("width", [24, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_vectors_with_a_prompt_are_searched(tiny, codes, hits, encoded, kind, width, prompt):
    """Scores by hand from ``encode``: float32 queries with decoded vectors; the prompt need not be
    said again.
    """
    cut = ["--truncate-dim", str(width)] if width < 24 else []
    path = codes(kind, *cut, *(["--prompt", prompt] if prompt else []))
    encoder = SentenceEncoder.load(tiny)
    lines = [(prompt or "") + line.strip() for line in LINES]
    vectors, query = (
        x.astype(np.float64) for x in (encoder.encode(lines), encoder.encode(["a dog"])[0])
    )
    vectors, query = vectors[:, :width], query[:width]
    low, high = vectors.min(0), vectors.max(0)
    steps = np.floor((vectors - low) / (high - low) * 255).clip(0, 255)
    decoded = low + (steps + 0.5) / 255 * (high - low)
    if kind == "binary":
        decoded = np.where(vectors > 0, 1.0, -1.0)
    cosines = decoded @ query / np.linalg.norm(decoded, axis=1) / np.linalg.norm(query)
    encoded.clear()
    found = hits(path, *cut, "--top", "3", *(["--rescore", "99"] if kind == "binary" else []))
    assert encoded == ["a dog"]
    tolerance = (
        5e-3 if kind == "int8" else 3e-6
    )  # a number at a step's border may have the next code
    np.testing.assert_allclose(
        [hit["score"] for hit in found], np.sort(cosines)[::-1][:3], atol=tolerance, rtol=0
    )
    chosen = cosines[[hit["index"] for hit in found]]
    np.testing.assert_allclose([hit["score"] for hit in found], chosen, atol=tolerance, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("made", "flags", "message"),
    [
        ([], ["--pooling", "cls"], "pooling 'mean', not 'cls'"),
        ([], ["--max-length", "8"], "max_length"),
        ([], ["--corpus-prompt", "x "], "prompt"),
        (["--truncate-dim", "5"], [], "width"),
        ([], ["--model", "OTHER"], "another model"),
        ([], ["--corpus", "SHORT"], "other texts"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_kept(
    tiny, text, codes, tmp_path, encoded, hits, kind, made, flags, message
):
    encoder = SentenceEncoder.load(tiny)
    with torch.no_grad():
        encoder.bert.embeddings.word.weight[7, 3] += 0.5
    encoder.save(tmp_path / "other")
    path = codes(kind, *made)
    if flags == ["--corpus", "SHORT"]:
        text.write_text("\n".join(LINES[:-1]))
        flags = []
    before = {file.name: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    encoded.clear()
    with pytest.raises(InputError, match=message):
        hits(path, *(flag.replace("OTHER", str(tmp_path / "other")) for flag in flags))
    assert encoded == []
    assert {
        file.name: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()
    } == before


def test_codes_are_for_search_alone(tiny, text, codes, tmp_path):
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\nthe cat\ta kitten\n")
    index = ["--model", str(tiny), "--index", str(codes("int8"))]
    mined = ["--pairs", str(tmp_path / "pairs.tsv"), "--out", str(tmp_path / "out.jsonl")]
    for command, arguments in ((mine, mined), (pairs, [str(text)])):
        with pytest.raises(InputError, match="only search reads"):
            command.main([*arguments, *index])


@pytest.mark.parametrize(("name", "flags"), [("i.safetensors", ["--rescore", "4"]), ("folder", [])])
def test_what_is_no_index_of_codes_is_refused(tmp_path, hits, name, flags):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"--rescore|\.safetensors"):
        hits(tmp_path / name, *flags)


def test_what_cannot_be_quantised(tiny, tmp_path):
    for out, flags, message in (
        ("v.npy", ["--quantize", "int8"], r"\.safetensors"),
        ("v.safetensors", ["--quantize", "int8"], "ranges"),
    ):
        with pytest.raises(InputError, match=message):
            encode.main(["--model", str(tiny), "a cat", "--out", str(tmp_path / out), *flags])
    assert not list(tmp_path.iterdir())
