"""docs/from-sentence-transformers.md: both columns of its tables name things that exist."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from docs.tools.replacement_tables import render
from minisbert.train import train
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


def test_the_tables_of_names_are_those_of_the_errors():
    """``python -m docs.tools.replacement_tables`` writes them anew."""
    assert render(PAGE) == PAGE


@pytest.mark.reference
@pytest.mark.parametrize(
    ("option", "ours", "theirs"),
    [
        ("--lr", "lr", "learning_rate"),
        ("--batch-size", "batch_size", "per_device_train_batch_size"),
        ("--epochs", "epochs", "num_train_epochs"),
        ("--warmup", "warmup", "warmup_steps"),
    ],
)
def test_the_defaults_that_differ_are_those_of_both(option, ours, theirs):
    """Whoever ports a script without them would train a twelfth of the steps unawares."""
    arguments = import_module("sentence_transformers").SentenceTransformerTrainingArguments
    row = re.search(rf"`{option}` \| ([\d.e-]+) \| ([\d.e-]+)", PAGE)
    assert float(row[1]) == arguments.__dataclass_fields__[theirs].default
    assert float(row[2]) == inspect.signature(train).parameters[ours].default


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
