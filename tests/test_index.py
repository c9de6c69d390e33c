"""An index is reused while model and texts are the same, rebuilt otherwise, and never replaces another file."""

import errno
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.models.tokenizer import Tokenizer
from minisbert.run.index import corpus_hash, indexed_vectors, model_hash

TEXTS = ["a small dog", "the moon", "rain and snow"]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.safetensors"


@pytest.fixture
def once(monkeypatch):
    """A function that forbids further encoding."""
    return lambda: monkeypatch.setattr(SentenceEncoder, "encode", lambda *_, **__: pytest.fail("it was encoded again"))


def test_an_index_is_reused(encoder, path, tiny, once, capsys):
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert f"kept 3 vectors of width 24 in {path}" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(SentenceEncoder.load(tiny), TEXTS, path), expected)
    assert capsys.readouterr().err == ""
    assert list(path.parent.iterdir()) == [path]


def test_any_safetensors_reader_opens_it(encoder, path):
    indexed_vectors(encoder, TEXTS, path)
    with safe_open(path, "pt") as file:
        assert list(file.keys()) == ["vectors"]
        assert file.get_tensor("vectors").shape == (3, 24)
        assert {*file.metadata()} == {"format", "minisbert", "model", "corpus", "vectors"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [("texts", "another corpus"), ("model", "another model"), ("both", "another model and another corpus")],
)
def test_a_stale_index_is_rebuilt_and_reported(encoder, path, once, capsys, change, reason):
    indexed_vectors(encoder, TEXTS, path)
    texts = TEXTS if change == "model" else [*TEXTS, "a cat"]
    if change != "texts":
        with torch.no_grad():
            encoder.bert.embeddings.word.weight[7, 3] += 0.5
    capsys.readouterr()
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert f"{path} was built from {reason}: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)


def flipped(vectors: torch.Tensor) -> torch.Tensor:
    """One bit of one number is another."""
    vectors.view(torch.uint8)[1, 5] ^= 1
    return vectors


@pytest.mark.parametrize(
    "damage",
    [
        flipped, torch.zeros_like, lambda vectors: vectors[:1], lambda vectors: vectors[:, :12], torch.Tensor.double,
        lambda vectors: vectors.flip(0), lambda vectors: vectors.view(torch.int32), lambda vectors: vectors.flatten(),
        lambda vectors: vectors[:0],
    ],
)  # fmt: skip
def test_a_damaged_index_is_rebuilt_and_reported(encoder, path, once, capsys, damage):
    expected = indexed_vectors(encoder, TEXTS, path).copy()
    with safe_open(path, "pt") as file:
        metadata, vectors = file.metadata(), file.get_tensor("vectors").clone()
    save_file({"vectors": damage(vectors).contiguous()}, path, metadata)
    capsys.readouterr()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert f"{path} is damaged or has no hash: rebuilding it" in capsys.readouterr().err
    once()
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)


@pytest.mark.parametrize("lacking", ["the hash", "the tensor"])
def test_an_index_of_an_older_version_is_rebuilt(encoder, path, capsys, lacking):
    expected = indexed_vectors(encoder, TEXTS, path).copy()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if lacking == "the hash":
        del metadata["vectors"]
    save_file({"vectors" if lacking == "the hash" else "states": torch.from_numpy(expected)}, path, metadata)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    assert "is damaged or has no hash: rebuilding it" in capsys.readouterr().err


def test_a_name_that_safetensors_could_not_open_again(encoder, tmp_path):
    with pytest.raises(InputError, match="the name is not UTF-8"):
        indexed_vectors(encoder, TEXTS, tmp_path / "caf\udce9.safetensors")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_an_index(encoder, path):
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"--index .*index\.safetensors is a folder or a device, a file is needed"):
        indexed_vectors(encoder, TEXTS, path)


@pytest.mark.parametrize("kind", ["text", "empty", "model", "own vectors", "cut short"])
def test_a_file_that_is_not_an_index_is_not_replaced(encoder, path, tiny, once, kind):
    if kind == "model":
        shutil.copy(tiny / "model.safetensors", path)
    elif kind == "own vectors":
        save_file({"vectors": torch.ones(3, 24)}, path, metadata={"model": "mine", "corpus": "mine"})
    elif kind == "cut short":
        indexed_vectors(encoder, TEXTS, path)
        path.write_bytes(path.read_bytes()[:-10])
    else:
        path.write_text("my diary\n" if kind == "text" else "")
    content = path.read_bytes()
    once()
    with pytest.raises(InputError, match=r"is not an index and is not replaced|an index cannot replace it"):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_written_fails_before_the_work(encoder, tmp_path, once):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    once()
    for name in ("file/i.safetensors", "folder.safetensors"):
        with pytest.raises((InputError, OSError)):
            indexed_vectors(encoder, TEXTS, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.safetensors"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_index(encoder, path, monkeypatch, failure):
    indexed_vectors(encoder, TEXTS, path)
    content = path.read_bytes()

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(SentenceEncoder, "encode", fail)
    with pytest.raises(type(failure)):
        indexed_vectors(encoder, TEXTS[:2], path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_truncated_texts_are_reported(encoder, path, capsys):
    indexed_vectors(encoder, ["dog " * 20, "a dog"], path)
    assert "1 of 2 texts were longer than 16 tokens and were cut" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ hashes


def test_the_hash_of_a_model_depends_on_its_content_only(encoder, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    assert model_hash(SentenceEncoder.load(tmp_path / "copy")) == model_hash(encoder)
    assert len(model_hash(encoder)) == 64


@pytest.mark.parametrize("change", ["weight", "pooling", "normalize", "limit", "tokenizer", "float64"])
def test_whatever_changes_the_vectors_changes_the_hash(encoder, tiny, change):
    before = model_hash(encoder)
    if change == "weight":
        with torch.no_grad():
            encoder.bert.layers[1].attention.query.bias[5] += 1e-6
    elif change == "pooling":
        encoder = SentenceEncoder.load(tiny, pooling="cls")
    elif change == "normalize":
        encoder.normalize = not encoder.normalize
    elif change == "limit":
        encoder.tokenizer = Tokenizer.load(tiny, limit=9)
    elif change == "tokenizer":
        encoder.tokenizer.backend.add_tokens(["the moon"])
    else:
        encoder.double()
    assert model_hash(encoder) != before


def test_the_hash_of_texts_depends_on_order_and_boundaries():
    kinds = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab\nc"], ["ab", "c", ""], ['ab"', "c"], ["äb", "c"]]
    assert len({corpus_hash(texts) for texts in kinds}) == len(kinds)
