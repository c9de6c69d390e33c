"""``minisbert.load``: the class that fits a folder; arguments of wrong types, and names of the Hub."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

import minisbert
from minisbert import MultiVectorEncoder, PairModel, SentenceEncoder, SparseEncoder, StaticEncoder
from minisbert.core import InputError
from minisbert.core.heads import JointHead, siamese
from minisbert.loading import load_encoder, load_tokenizer, uncompiled
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.static_encoder import distill
from tests.conftest import ROOT
from tests.parity import REFERENCE

TINY = ROOT / "weights" / "tiny"
FAMILIES = REFERENCE / "architectures"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[type, list[Path]]:
    """Folders by the class that opens them."""
    home, encoder = tmp_path_factory.mktemp("folders"), SentenceEncoder.load(TINY)
    PairModel(encoder, siamese(24)).save(home / "siamese")
    PairModel(encoder, ClassifierHead(24), "logit").save(home / "cross-encoder")
    distill(encoder, dim=5, coefficient=0.01).save(home / "static")
    return {
        SentenceEncoder: [TINY, FAMILIES / "tiny-modernbert"],
        SparseEncoder: [FAMILIES / "tiny-splade"],
        MultiVectorEncoder: [FAMILIES / "tiny-colbert"],
        StaticEncoder: [home / "static"],
        PairModel: [home / "siamese", home / "cross-encoder"],
    }


def test_a_folder_is_opened_by_its_class(folders):
    importlib.import_module("minisbert.loading")  # which must not take the function's place
    for kind, paths in folders.items():
        for path in paths:
            assert type(minisbert.load(path)) is kind
            assert load_tokenizer(path, 9).limit == 9
    assert type(load_encoder(folders[PairModel][0])) is SentenceEncoder
    model = minisbert.load(TINY, pooling="cls", max_seq_length=9)
    assert (model.pooling_mode, model.tokenizer.limit) == ("cls", 9)
    assert uncompiled(model) is model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "siamese", "pooling": "cls"}, "pooling"),
        ({"model": TINY, "dtype": "int8"}, "compiled=True"),
        (
            {"model": "siamese", "dtype": "int8"},
            "compiled=True",
        ),  # not ignored: the numbers would be float32's
        ({"model": TINY, "compiled": True, "device": "cuda"}, "cuda"),
        ({"model": "static", "compiled": True}, "StaticEncoder"),
    ],
)
def test_what_cannot_be_loaded(folders, options, message):
    names = {path.name: path for paths in folders.values() for path in paths}
    with pytest.raises(InputError, match=message):
        minisbert.load(**options | {"model": names.get(options["model"], options["model"])})


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
    "max_seq_length": [None],
    "batch_size": [None, 3],
    "normalize_embeddings": [None, True],
    "truncate_dim": [None, 3],
    "dtype": [None],
    "prompt": [None],
    "prompt_name": [None],
    "precision": [None],
}


def test_arguments_of_wrong_types_end_in_an_input_error():
    encoder = minisbert.load(TINY)
    vectors, pairs = encoder.encode(["a cat", "a dog"]), PairModel(encoder, JointHead(24))
    calls = {
        "model": minisbert.load,
        "pooling": lambda value: minisbert.load(TINY, pooling=value),
        "device": lambda value: minisbert.load(TINY, device=value),
        "max_seq_length": lambda value: minisbert.load(TINY, max_seq_length=value),
        "first": lambda value: encoder.similarity(value, vectors),
        "second": lambda value: encoder.similarity(vectors, value),
        "text of a pair": lambda value: pairs.predict([("a cat", value)]),
    }
    for name in ("output_value", *list(RIGHT)[2:]):
        calls[name] = lambda value, name=name: encoder.encode(["a cat"], **{name: value})
    for name, call in calls.items():
        for value in VALUES:
            if not any(value is right for right in RIGHT.get(name, [])):
                with pytest.raises(InputError):
                    pytest.fail(f"{name}={value!r} gives {call(value)}")
    for value in (None, 3, 2.5, object()):
        with pytest.raises(InputError):
            list(encoder.encode_stream(value))
