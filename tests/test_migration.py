"""docs/from-sentence-transformers.md: both columns of its tables name things that exist."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from minisbert.training.settings import parse

PAGE = (Path(__file__).parents[1] / "docs" / "from-sentence-transformers.md").read_text()
CLASSES = sorted(set(re.findall(r"`(\w+(?:Loss|Evaluator|Trainer))`", PAGE)))
UTILITIES = sorted(set(re.findall(r"`util\.(\w+)`", PAGE)))


@pytest.mark.parametrize("name", re.findall(r"^\| `\w+Loss` \| `([\w-]+)", PAGE, re.MULTILINE))
def test_an_objective_on_the_page_exists(name):
    assert parse(["--objective", name]).objective == name


@pytest.mark.reference
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_sentence_transformers_exists(name):
    package = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    names = ("sentence_transformer.losses", "sentence_transformer.evaluation")
    names += ("sparse_encoder.losses", "multi_vector_encoder.losses")
    rooms = [import_module(f"sentence_transformers.{room}") for room in names]
    assert any(hasattr(room, name) for room in (package, *rooms))


@pytest.mark.reference
@pytest.mark.parametrize("name", UTILITIES)
def test_a_utility_of_sentence_transformers_exists(name):
    util = pytest.importorskip("sentence_transformers.util", reason="needs the reference extra")
    assert hasattr(util, name)
