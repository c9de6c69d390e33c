"""The book's encoder: cosines, loading a folder, vectors in plain padded batches."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.checkpoints import weights
from minisbert.core import InputError
from minisbert.core.encoder import SentenceEncoder, normalize, read_pooling
from minisbert.models import sentence_encoder
from tests.architectures.tiny import alter
from tests.parity import MINILM_VECTOR, PIECE

TEXTS = [  # in no order of length; the third is longer than the tiny model's 16 tokens
    "the cat sits on the mat",
    "a dog",
    "a small child plays the guitar in the park with a happy dog and a sad cat . " * 2,
    "",
    "moon",
]


def test_normalize_by_hand():
    """Several vectors, one of them zero, and a single one."""
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 0.0]], dtype=torch.float64)
    assert normalize(x).tolist() == [[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]]
    assert normalize(x[0]).tolist() == [0.6, 0.8]


def test_a_length_below_eps_counts_as_eps():
    """As in PyTorch: such a vector is rounding, and must not become one of length 1."""
    short = torch.tensor([3e-13, 4e-13], dtype=torch.float64)
    assert normalize(short).tolist() == pytest.approx([0.3, 0.4], abs=1e-15)
    assert normalize(short, eps=1e-11).tolist() == pytest.approx([0.03, 0.04], abs=1e-15)


# --------------------------------------------------------------------------------------------- load


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(tiny, tmp_path / "model")


def test_a_loaded_encoder_is_in_eval_mode_with_the_settings_of_its_folder(tiny):
    """And with the same weights to the bit as the library's."""
    encoder = SentenceEncoder.load(str(tiny))
    assert not any(module.training for module in encoder.modules())
    assert (encoder.pooling.mode, encoder.normalize) == ("mean", True)
    expected = weights.load_transformer(tiny)
    assert encoder.bert.config == expected.config
    for name, parameter in expected.named_parameters():
        assert torch.equal(encoder.bert.get_parameter(name), parameter)


@pytest.mark.parametrize(
    ("max_seq_length", "model_max_length", "expected"),
    [
        (9, 16, 9),
        (20, 16, 20),
        (99, 16, 32),
        (None, 12, 12),
        (None, 10**30, 32),
        (None, None, 32),
        ("no", "files", 32),
    ],
)
def test_the_length_limit_is_the_stated_one_and_at_most_the_position_table(
    folder, max_seq_length, model_max_length, expected
):
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": max_seq_length})
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": model_max_length})
    )
    if model_max_length == "files":
        (folder / "sentence_bert_config.json").unlink()
        (folder / "tokenizer_config.json").unlink()
    for kind in (SentenceEncoder, sentence_encoder.SentenceEncoder):
        assert kind.load(folder).tokenizer.limit == expected


def test_a_folder_without_normalising_and_pooler(folder):
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    path = folder / "model.safetensors"
    save_file(
        {name: x for name, x in load_file(path).items() if not name.startswith("pooler.")}, path
    )
    encoder = SentenceEncoder.load(folder)
    assert encoder.bert.pooler is None
    vectors = encoder.encode(TEXTS)
    lengths = np.linalg.norm(vectors, axis=1)[:, None]
    assert (abs(lengths - 1) > 1e-3).all()
    encoder.normalize = True
    np.testing.assert_allclose(encoder.encode(TEXTS), vectors / lengths, atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["Transformer"], "Transformer, only"),
        (["Transformer", "Pooling", "Dense", "Normalize"], "Transformer, Pooling, Dense, Normali"),
        (["Transformer", "Pooling", "Normalize", "Normalize"], "Normalize, Normalize, only"),
        (["Transformer", "Normalize", "Pooling"], "Transformer, Normalize, Pooling, only"),
        (["SparseStaticEmbedding", "Pooling"], "SparseStaticEmbedding, Pooling, only"),
    ],
)
def test_modules_beyond_the_book_are_refused(folder, kinds, message):
    """Leaving one out would give other vectors."""
    listed = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match=f"does not support the modules .*{message}"):
        SentenceEncoder.load(folder)


def test_a_module_of_somebody_elses_package_is_refused(folder):
    """A class of the same name may compute something else."""
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "their_package.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=r"modules Transformer, their_package\.Pooling, Normalize"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"pooling_mode": ["mean", "cls"]}, "mean and cls"),
        ({"pooling_mode": "first-last"}, "first-last"),
        ({"pooling_mode": "attention"}, "attention"),
        ({"pooling_mode": []}, "none"),
        ({"pooling_mode": [["mean"]]}, r"\['mean'\]"),
        ({}, "none"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "mean and cls"),
        ({"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens"),
    ],
)
def test_poolings_beyond_the_book_are_refused(folder, stated, message):
    """Several would give more columns, and an unknown one other numbers."""
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))
    with pytest.raises(InputError, match=f"does not support the pooling {message}, only one"):
        SentenceEncoder.load(folder)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, "max"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 24}, "mean"),
    ],
)
def test_the_pooling_of_new_and_old_files(tmp_path, stated, expected):
    """New files have its name, old ones a flag for each."""
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert read_pooling(tmp_path) == expected


@pytest.mark.parametrize("name", ["modules.json", "config.json", "1_Pooling/config.json"])
def test_a_file_that_is_missing_or_does_not_fit_is_named(folder, name):
    alter(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"model\.safetensors does not fit the config"):
        SentenceEncoder.load(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} does not exist"):
        SentenceEncoder.load(folder)


def test_the_encoder_may_be_in_a_folder_of_the_model(tiny, folder):
    """As old versions of sentence-transformers wrote it."""
    shutil.copytree(tiny, folder / "0_Transformer")
    (folder / "config.json").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(
        SentenceEncoder.load(folder).encode(TEXTS), SentenceEncoder.load(tiny).encode(TEXTS)
    )


@pytest.mark.parametrize(
    "content",
    ["{}", "[", '[{"type": "a.Transformer"}]', '["Transformer"]', '[{"type": 3, "path": ""}]'],
)
def test_a_broken_list_of_modules(folder, content):
    (folder / "modules.json").write_text(content)
    with pytest.raises(InputError, match="modules"):
        SentenceEncoder.load(folder)


# ------------------------------------------------------------------------------- encode and compare


def test_vectors_equal_those_of_the_fast_encoder(tiny):
    """Which makes other batches of the same texts."""
    slow = SentenceEncoder.load(tiny)
    fast = sentence_encoder.SentenceEncoder.load(tiny)
    vectors = slow.encode(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((5, 24), np.float32)
    np.testing.assert_allclose(vectors, fast.encode(TEXTS), atol=MINILM_VECTOR, rtol=0)
    np.testing.assert_allclose(
        slow.double().encode(TEXTS), fast.double().encode(TEXTS), atol=PIECE, rtol=0
    )


def test_padding_and_the_batch_size_do_not_matter(tiny):
    """A text's vector is its own, whatever is computed beside it."""
    encoder = SentenceEncoder.load(tiny).double()
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    for batch_size in (1, 2, 3, 32):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size), alone, atol=PIECE, rtol=0)


@torch.no_grad()
def test_anything_may_be_in_a_pad(tiny):
    """The mask alone says what is one, in training too."""
    encoder = SentenceEncoder.load(tiny).double()
    row = encoder.tokenizer.encode(TEXTS).ids[1]
    ids = torch.tensor([[*row, 7, 0, 9]])
    mask = torch.arange(ids.shape[1])[None] < len(row)
    expected = encoder.encode([TEXTS[1]])
    np.testing.assert_allclose(encoder(ids, mask).numpy(), expected, atol=PIECE, rtol=0)


def test_a_row_of_pads_alone_is_refused(tiny):
    """Its attention would be 0/0."""
    encoder = SentenceEncoder.load(tiny)
    ids = torch.tensor([[2, 58, 3], [0, 0, 0]])
    with pytest.raises(ValueError, match="each row of the mask must have a real token"):
        encoder(ids, ids != 0)


def test_each_text_is_computed_once(tiny):
    """In batches of texts of like length, the shortest first."""
    encoder = SentenceEncoder.load(tiny)
    sizes = []
    encoder.bert.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape)))
    encoder.encode(TEXTS, batch_size=2)
    assert sizes == [(2, 3), (2, 8), (1, 16)]


def test_no_texts_have_no_vectors(tiny):
    """But as many columns as others."""
    assert SentenceEncoder.load(tiny).encode([]).shape == (0, 24)


def test_what_is_no_text_is_named(tiny):
    """By its number in the list."""
    with pytest.raises(InputError, match="text 1 is not a string"):
        SentenceEncoder.load(tiny).encode(["a cat", None])


def test_similarity_by_hand(tiny):
    """In the finer dtype of the two; one vector alone is one row."""
    encoder = SentenceEncoder.load(tiny)
    a = np.array([[2.0, 0.0], [3.0, 4.0]], np.float32)
    b = np.array([[0.0, 5.0], [1.0, 0.0], [-3.0, -4.0]], np.float32)
    found = encoder.similarity(a, b)
    expected = [[0.0, 1.0, -0.6], [0.8, 0.6, -1.0]]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)  # float32
    assert found.dtype == np.float32
    assert encoder.similarity(a, b.astype(np.float64)).dtype == np.float64
    assert encoder.similarity(a[0], b).shape == (1, 3)
    with pytest.raises(ValueError, match="b must have shape"):
        encoder.similarity(a, np.ones((1, 3)))


@pytest.mark.parametrize("value", [1e200, np.float32(1e20), np.nan, np.inf])
def test_similarity_refuses_vectors_without_a_finite_length(tiny, value):
    """Their cosine is not a number, and a search would put them anywhere."""
    encoder = SentenceEncoder.load(tiny)
    one = np.ones((2, 3), np.float32)
    bad = np.full((2, 3), value)
    with pytest.raises(ValueError, match="b has a vector whose length is not finite"):
        encoder.similarity(one, bad)
    with pytest.raises(ValueError, match="a has a vector whose length is not finite"):
        encoder.similarity(bad, one)


def test_similarity_of_long_vectors(tiny):
    """The square of each length is a float32, the sum of the squares is not."""
    long = np.full((3, 1), 1.5e19, np.float32)
    found = SentenceEncoder.load(tiny).similarity(long, -long)
    np.testing.assert_allclose(found, np.full((3, 3), -1), rtol=0, atol=2e-6)
