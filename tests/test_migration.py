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
    rooms = [
        import_module("sentence_transformers"),
        import_module("sentence_transformers.sentence_transformer.losses"),
        import_module("sentence_transformers.sentence_transformer.evaluation"),
        import_module("sentence_transformers.sparse_encoder.losses"),
        import_module("sentence_transformers.cross_encoder.losses"),
        import_module("sentence_transformers.multi_vector_encoder.losses"),
    ]
    for name in re.findall(r"`(\w+(?:Loss|Evaluator|Trainer))`", PAGE):
        assert any(hasattr(room, name) for room in rooms), name
    for name in re.findall(r"`util\.(\w+)`", PAGE):
        assert hasattr(import_module("sentence_transformers.util"), name), name
