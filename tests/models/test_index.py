"""``--index``: a file of vectors that is reused or made anew, and what is never replaced."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minisbert.core import InputError
from minisbert.models.index import differences, indexed_vectors, made_from, model_hash
from minisbert.models.sentence_encoder import SentenceEncoder

TEXTS = ["a small dog", "the moon", "rain and snow " * 9]


@pytest.fixture
def encoder(tiny) -> SentenceEncoder:
    return SentenceEncoder.load(tiny)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "index.safetensors"


def test_an_index_is_written_and_reported(encoder, path, capsys):
    """The whole file is there, or none."""
    expected = encoder.encode(TEXTS)
    np.testing.assert_array_equal(indexed_vectors(encoder, TEXTS, path), expected)
    printed = capsys.readouterr().err
    assert f"wrote 3 vectors of width 24 to {path}" in printed
    assert "1 of 3 texts were longer than 16 tokens and were cut" in printed
    assert list(path.parent.iterdir()) == [path]


def test_any_safetensors_reader_opens_an_index(encoder, path):
    vectors = indexed_vectors(encoder, TEXTS, path)
    with safe_open(path, "np") as file:
        assert list(file.keys()) == ["vectors"]
        np.testing.assert_array_equal(file.get_tensor("vectors"), vectors)


def test_an_index_is_reused_without_a_word(encoder, path, tiny, encoded_texts, capsys):
    """By the same model, opened anew."""
    expected = indexed_vectors(encoder, TEXTS, path)
    encoded_texts.clear()
    capsys.readouterr()
    again = indexed_vectors(SentenceEncoder.load(tiny), TEXTS, path)
    np.testing.assert_array_equal(again, expected)
    assert encoded_texts == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [("texts", "other texts"), ("model", "another model"), ("prompt", "prompt 'the sun '")],
)
def test_a_stale_index_is_made_anew_and_reported(
    encoder, path, encoded_texts, capsys, change, reason
):
    """Vectors of other texts would be searched without a sign of it."""
    prompt = "the sun " if change == "prompt" else ""
    indexed_vectors(encoder, TEXTS, path, prompt)
    texts = [*TEXTS, "a cat"] if change == "texts" else TEXTS
    if change == "model":
        with torch.no_grad():
            encoder.bert.embeddings.word.weight[7, 3] += 0.5
    capsys.readouterr()
    expected = encoder.encode(texts)
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert reason in capsys.readouterr().err
    encoded_texts.clear()
    np.testing.assert_array_equal(indexed_vectors(encoder, texts, path), expected)
    assert encoded_texts == []


def assert_kept(encoder: SentenceEncoder, path: Path, message: str) -> None:
    """The file at ``path`` is refused, and stays as it is."""
    content = path.read_bytes()
    with pytest.raises(InputError, match=message):
        indexed_vectors(encoder, TEXTS, path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", ["my diary\n", ""])
def test_a_text_file_is_not_replaced(encoder, path, content, encoded_texts):
    """The mistake is found before the work."""
    path.write_text(content)
    assert_kept(encoder, path, "not an index")
    assert encoded_texts == []


def test_a_model_is_not_replaced(encoder, path, tiny):
    shutil.copy(tiny / "model.safetensors", path)
    assert_kept(encoder, path, "not an index")


def test_vectors_of_somebody_else_are_not_replaced(encoder, path):
    save_file({"vectors": torch.ones(3, 24)}, path, metadata={"model": "mine", "texts": "mine"})
    assert_kept(encoder, path, "not an index")


def test_a_damaged_index_is_not_replaced(encoder, path):
    """It may be something else that was damaged."""
    indexed_vectors(encoder, TEXTS, path)
    path.write_bytes(path.read_bytes()[:-10])
    assert_kept(encoder, path, "not an index")


@pytest.mark.parametrize(
    "vectors",
    [
        torch.zeros(2, 24),
        torch.zeros(3, 23),
        torch.zeros(24),
        torch.zeros(3, 24, dtype=torch.float16),
        torch.full((3, 24), torch.inf),
    ],
    ids=["fewer", "narrower", "one", "float16", "infinite"],
)
def test_an_index_with_other_vectors_than_its_header_says_is_refused(encoder, path, vectors):
    indexed_vectors(encoder, TEXTS, path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    save_file({"vectors": vectors}, path, metadata=metadata)
    assert_kept(encoder, path, "width 24")


# -------------------------------------------------------------------- what vectors are made from


def test_the_hash_of_a_model_does_not_depend_on_its_place(encoder, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "copy")
    assert model_hash(SentenceEncoder.load(tmp_path / "copy")) == model_hash(encoder)


def change_weight(encoder: SentenceEncoder) -> None:
    with torch.no_grad():
        encoder.bert.layers[1].attention.query.bias[5] += 1e-6


def change_type(encoder: SentenceEncoder) -> None:
    encoder.double()


def change_scaling(encoder: SentenceEncoder) -> None:
    encoder.normalize = not encoder.normalize


def change_limit(encoder: SentenceEncoder) -> None:
    encoder.max_seq_length = 9


def change_vocabulary(encoder: SentenceEncoder) -> None:
    encoder.tokenizer.backend.add_tokens(["the moon"])


CHANGES = [change_weight, change_type, change_scaling, change_limit, change_vocabulary]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_vectors_changes_the_hash_of_the_model(encoder, change):
    before = model_hash(encoder)
    change(encoder)
    assert model_hash(encoder) != before


def test_the_pooling_changes_the_hash_of_the_model(encoder, tiny):
    assert model_hash(SentenceEncoder.load(tiny, pooling="cls")) != model_hash(encoder)


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
    hashes = {made_from(encoder, texts, "")["texts"] for texts in kinds}
    assert len(hashes) == len(kinds)


def test_differences_are_named():
    """Another width makes another model, too; only the reason is said."""
    made = {"model": "a", "width": "5"}
    assert differences(made, {"model": "a", "width": "5"}) == ""
    assert differences(made, {"model": "b", "width": "5"}) == "another model"
    assert differences(made, {"model": "b", "width": "6"}) == "width '5', not '6'"
