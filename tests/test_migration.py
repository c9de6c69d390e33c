"""docs/from-sentence-transformers.md: both columns of its tables name things that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from minisbert.training.options import NEED_HEAD, parse

PAGE = (Path(__file__).parents[1] / "docs" / "from-sentence-transformers.md").read_text()


@pytest.mark.parametrize("name", re.findall(r"^\| `\w+Loss` \| `([\w-]+)", PAGE, re.MULTILINE))
def test_a_loss_on_the_page_exists(name):
    words = ["--loss", name]
    if name in NEED_HEAD:
        words += ["--head", "cross-encoder"]
    if name == "distillation":
        words += ["--teacher", "all-MiniLM-L6-v2"]
    assert parse(words).loss == name


@pytest.mark.reference
def test_the_names_of_sentence_transformers_exist():
    names = (
        "sentence_transformer.losses",
        "sentence_transformer.evaluation",
        "sparse_encoder.losses",
        "cross_encoder.losses",
    )
    names = ("", *(f".{name}" for name in (*names, "multi_vector_encoder.losses")))
    rooms = [import_module(f"sentence_transformers{name}") for name in names]
    for name in re.findall(r"`(\w+(?:Loss|Evaluator|Trainer))`", PAGE):
        assert any(hasattr(room, name) for room in rooms), name
    for name in re.findall(r"`util\.(\w+)`", PAGE):
        assert hasattr(import_module("sentence_transformers.util"), name), name
