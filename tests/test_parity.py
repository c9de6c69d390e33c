"""Every piece equals its reference; ``parity/checks.py`` lists the checks."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import pytest
import torch

from minisbert.checkpoints.tokenizer_files import read_tokenizer
from minisbert.core import bert
from minisbert.core.encoder import load_bert
from tests import parity
from tests.parity import MINILM_HIDDEN, REFERENCE, Comparison, assert_parity, golden
from tests.parity.checks import CHECKS
from tests.reference.texts import SENTENCES, TEXTS

# checks of layers and whole models, which PyTorch's fused operations must pass as well
FUSED = (
    "bert_forward",
    "bert_gradients",
    "cross_heads",
    "distilbert",
    "pair_models",
    "roberta",
    "training_trace",
    "feed_forward",
    "masks_and_ids",
)


def test_the_table_lists_every_check():
    """A check that nobody runs proves nothing."""
    checks = set()
    for file in iter_modules(parity.__path__):
        module = import_module(f"tests.parity.{file.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            signature = inspect.signature(function)
            if signature.return_annotation == Iterator[Comparison] and not signature.parameters:
                checks.add(name)
    assert checks == CHECKS.keys()


def assert_equal(name: str) -> None:
    results = list(CHECKS[name]())
    assert results, "a check without a comparison proves nothing"
    failures = [str(result) for result in results if not result.largest <= result.tolerance]
    assert not failures, "\n".join(failures)


@pytest.mark.usefixtures("written_out")
@pytest.mark.parametrize("name", CHECKS)
def test_parity(name):
    """With the formulas as the book writes them out."""
    assert_equal(name)


@pytest.mark.parametrize("name", FUSED)
def test_fused_operations(name):
    """What runs outside of lessons computes the same numbers."""
    assert bert.FUSED
    assert_equal(name)


@pytest.mark.parametrize("folder", ["tiny-distiluse", "tiny-roberta"])
def test_token_ids_of_other_families(folder):
    """Each family has special tokens of its own, around one text and around two."""
    reference = golden(folder)
    tokenizer = read_tokenizer(REFERENCE / folder)
    singles = tokenizer.encode(SENTENCES).ids
    pairs = tokenizer.encode_pairs(SENTENCES, SENTENCES[::-1]).ids
    for i in range(len(SENTENCES)):
        real = reference["mask"][i]
        assert singles[i] == reference["ids"][i][real].tolist()
        assert pairs[i] == reference[f"pair.{i}"].tolist()


@pytest.mark.weights
def test_every_layer_of_minilm(minilm):
    """Real weights, in the precision in which they are used."""
    reference = golden("minilm")
    with torch.no_grad():
        states = load_bert(minilm).hidden_states(reference["ids"], reference["mask"])
    assert len(states) == 7
    # Only real tokens: pads are never used, and in float32 the reference itself is up to 4.5e-5
    # away from its own float64 result there (2e-6 at real tokens).
    real = reference["mask"]
    for i, state in enumerate(states):
        expected = reference[f"hidden.{i}"][real]
        assert_parity(f"MiniLM hidden state {i}", state[real], expected, MINILM_HIDDEN)


@pytest.mark.weights
def test_token_ids_of_difficult_texts(minilm):
    """Accents, emoji, control characters, a text beyond the limit: alone and in pairs."""
    reference = golden("minilm")
    tokenizer = read_tokenizer(minilm)
    singles = tokenizer.encode(TEXTS)
    pairs = tokenizer.encode_pairs(TEXTS, [TEXTS[i - 1] for i in range(len(TEXTS))])
    for i in range(len(TEXTS)):
        assert singles.ids[i] == reference[f"single.{i}"].tolist(), TEXTS[i]
        assert pairs.ids[i] == reference[f"pair.{i}"].tolist(), TEXTS[i]
        assert pairs.token_types[i] == reference[f"pair_types.{i}"].tolist(), TEXTS[i]
    assert max(len(ids) for ids in singles.ids) == 256
    assert sum(singles.truncated) == 1
