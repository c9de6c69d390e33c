"""``minisbert.load``: the class that fits a folder, read once; arguments of wrong types."""

import importlib
import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import minisbert
from minisbert import MultiVectorEncoder, PairModel, SentenceEncoder, SparseEncoder, StaticEncoder
from minisbert.backends import package
from minisbert.backends.package import About, CompiledEncoder, CompiledPairModel
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.loading import load_encoder, load_tokenizer, uncompiled
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.static_encoder import distill
from tests.conftest import ROOT
from tests.parity import REFERENCE

TINY = ROOT / "weights" / "tiny"
CLASSES = {
    "tiny": SentenceEncoder,
    "modernbert": SentenceEncoder,
    "dense": SentenceEncoder,
    "splade": SparseEncoder,
    "colbert": MultiVectorEncoder,
    "static": StaticEncoder,
    "siamese": PairModel,
    "cross-encoder": PairModel,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder for each name in ``CLASSES``."""
    home = tmp_path_factory.mktemp("folders")
    encoder = SentenceEncoder.load(TINY)
    PairModel(encoder, siamese(24)).save(home / "siamese")
    PairModel(encoder, ClassifierHead(24), "logit").save(home / "cross-encoder")
    distill(encoder, dim=5, coefficient=0.01).save(home / "static")
    return {
        "tiny": TINY,
        "modernbert": REFERENCE / "architectures" / "tiny-modernbert",
        "dense": REFERENCE / "tiny-distiluse",
        "splade": REFERENCE / "architectures" / "tiny-splade",
        "colbert": REFERENCE / "architectures" / "tiny-colbert",
        "static": home / "static",
        "siamese": home / "siamese",
        "cross-encoder": home / "cross-encoder",
    }


# --------------------------------------------------------------------------------- the right class


@pytest.mark.parametrize("name", CLASSES)
def test_a_folder_is_opened_by_its_class(folders, name):
    """A user need not know what kind of model a folder holds."""
    assert type(minisbert.load(folders[name])) is CLASSES[name]


@pytest.mark.parametrize("name", CLASSES)
def test_every_folder_has_a_tokenizer(folders, name):
    """``minisbert inspect`` counts tokens without the weights."""
    assert load_tokenizer(folders[name], 9).limit == 9


def test_a_module_does_not_take_the_functions_place():
    """Importing ``minisbert.loading`` must leave ``minisbert.load`` a function."""
    importlib.import_module("minisbert.loading")
    assert callable(minisbert.load)


def test_the_encoder_of_a_pair_model_is_opened_alone(folders):
    """Who wants vectors need not care that the folder has a head."""
    assert type(load_encoder(folders["siamese"])) is SentenceEncoder


def test_options_reach_the_class():
    """``load`` takes what ``SentenceEncoder.load`` takes."""
    model = minisbert.load(TINY, pooling="cls", max_seq_length=9, truncate_dim=5)
    assert (model.pooling_mode, model.tokenizer.limit, model.truncate_dim) == ("cls", 9, 5)


def test_an_encoder_that_was_not_compiled_is_its_own_original():
    """Only a compiled encoder's weights must be read again."""
    encoder = minisbert.load(TINY)
    assert uncompiled(encoder) is encoder


# ------------------------------------------------------------------------------ a folder, read once


@pytest.fixture
def opened(monkeypatch) -> Counter:
    """How often Python has opened each file, by path."""
    counts: Counter = Counter()
    plain_open = io.open

    def counted_open(file, *arguments, **options):
        counts[str(file)] += 1
        return plain_open(file, *arguments, **options)

    monkeypatch.setattr("io.open", counted_open)
    monkeypatch.setattr("builtins.open", counted_open)
    return counts


def assert_read_once(folder: Path, opened: Counter) -> None:
    counts = {path: count for path, count in opened.items() if path.endswith(".json")}
    assert str(folder / "config.json") in counts or str(folder / "modules.json") in counts
    assert set(counts.values()) == {1}, counts


@pytest.mark.parametrize("name", CLASSES)
def test_load_opens_each_json_file_once(folders, name, opened):
    """What decides the class is handed to it: nothing is found, described or read again."""
    minisbert.load(folders[name])
    assert_read_once(folders[name], opened)


@pytest.mark.parametrize("name", CLASSES)
def test_load_of_a_class_opens_each_json_file_once(folders, name, opened):
    """Who names the class reads no more than who does not."""
    CLASSES[name].load(folders[name])
    assert_read_once(folders[name], opened)


@pytest.mark.parametrize(
    ("name", "compiled_class"), [("tiny", CompiledEncoder), ("cross-encoder", CompiledPairModel)]
)
def test_a_compiled_model_opens_each_json_file_once(
    folders, name, compiled_class, opened, monkeypatch
):
    """The package itself is another's matter: it hashes the files that it was made from."""
    monkeypatch.setattr(package, "open_package", lambda *_: (print, About(width=24)))
    assert type(minisbert.load(folders[name], compiled=True)) is compiled_class
    assert_read_once(folders[name], opened)


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("siamese", {"pooling": "cls"}, "pooling"),
        ("tiny", {"dtype": "int8"}, "compiled=True"),
        # not ignored: the numbers would be float32's
        ("siamese", {"dtype": "int8"}, "compiled=True"),
        ("tiny", {"compiled": True, "device": "cuda"}, "cuda"),
        ("static", {"compiled": True}, "StaticEncoder"),
    ],
)
def test_what_cannot_be_loaded(folders, name, options, message):
    """An option that a model does not have is refused, not ignored."""
    with pytest.raises(InputError, match=message):
        minisbert.load(folders[name], **options)


VALUES = [
    None,
    3,
    -1,
    2.5,
    float("nan"),
    1j,
    True,
    b"x",
    [],
    {},
    [1],
    object(),
    np.ones(3),
    torch.ones(2),
]
RIGHT = {
    "pooling": [None],
    "device": [None],
    "max_seq_length": [None, 3],
    "batch_size": [None, 3],
    "normalize_embeddings": [None, True],
    "truncate_dim": [None, 3],
    "dtype": [None],
    "prompt": [None],
    "prompt_name": [None],
    "precision": [None],
}


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return minisbert.load(TINY)


def wrong_values(name: str) -> list[object]:
    """The values that are not right for an argument."""
    right = RIGHT.get(name, [])
    return [value for value in VALUES if not any(value is each for each in right)]


def test_a_model_is_a_name_or_a_path():
    for value in wrong_values("model"):
        with pytest.raises(InputError):
            minisbert.load(value)


@pytest.mark.parametrize("name", ["pooling", "device", "max_seq_length"])
def test_arguments_of_load_of_wrong_types(name):
    """A user gets one line, not a traceback from within."""
    for value in wrong_values(name):
        with pytest.raises(InputError):
            minisbert.load(TINY, **{name: value})


@pytest.mark.parametrize(
    "name",
    [
        "output_value",
        "batch_size",
        "normalize_embeddings",
        "truncate_dim",
        "dtype",
        "prompt",
        "prompt_name",
        "precision",
    ],
)
def test_arguments_of_encode_of_wrong_types(encoder, name):
    for value in wrong_values(name):
        with pytest.raises(InputError):
            encoder.encode(["a cat"], **{name: value})


def test_vectors_of_wrong_types(encoder):
    vectors = encoder.encode(["a cat", "a dog"])
    for value in VALUES:
        with pytest.raises(InputError):
            encoder.similarity(value, vectors)
        with pytest.raises(InputError):
            encoder.similarity(vectors, value)


def test_texts_of_pairs_of_wrong_types(encoder):
    pairs = PairModel(encoder, JointHead(24))
    for value in VALUES:
        with pytest.raises(InputError):
            pairs.predict([("a cat", value)])


@pytest.mark.parametrize("value", [None, 3, 2.5, object()])
def test_a_stream_that_is_none(encoder, value):
    with pytest.raises(InputError):
        list(encoder.encode_stream(value))
