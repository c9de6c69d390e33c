"""The hunt of lessons 07 and 14: a planted mistake is named by its numbers."""

import pytest

from lessons.mistakes import MISTAKES, planted
from lessons.mistakes.hunt import suspects, verdict
from minisbert.diagnosis.tracing import (
    HIDDEN,
    Stage,
    compare_states,
    first_divergence,
    inputs_of,
    our_states,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import REFERENCE, ROOT

TEXTS = [
    "The cat sits on the mat.",
    "A happy child is playing with a small red ball in the garden.",
    "Rain.",
]


class Port:
    """Somebody's port of a model, with a few mistakes."""

    def __init__(self, folder: str, *mistakes: str):
        self.encoder = SentenceEncoder.load(folder)
        self.inputs = inputs_of(self.encoder, TEXTS)
        self.states = self.compute(list(mistakes))

    def compute(self, mistakes: list[str]) -> dict:
        if not mistakes:
            return our_states(self.encoder, self.inputs)
        with planted(MISTAKES[mistakes[0]]):
            return self.compute(mistakes[1:])

    def compared(self) -> list[Stage]:
        """Our states, with whatever is planted now, beside the port's."""
        ours = our_states(self.encoder, self.inputs)
        return compare_states(ours, self.states, self.inputs["mask"], dict.fromkeys(ours, HIDDEN))


@pytest.mark.parametrize(
    ("name", "first", "folder"),
    [
        ("positions from 1", "embeddings", ROOT / "weights" / "tiny"),
        ("LayerNorm eps 1e-5", "embeddings", ROOT / "weights" / "tiny"),
        ("no attention mask", "layers.0.attention", ROOT / "weights" / "tiny"),
        ("1/sqrt(D)", "layers.0.attention", ROOT / "weights" / "tiny"),
        ("heads merged without transposing", "layers.0", ROOT / "weights" / "tiny"),
        ("tanh GELU", "layers.0", ROOT / "weights" / "tiny"),
        ("attention's residual forgotten", "layers.0", ROOT / "weights" / "tiny"),
        ("pooler without tanh", "pooler", ROOT / "weights" / "tiny"),
        ("mean over pads", "pooled", ROOT / "weights" / "tiny"),
        ("one layer short", "pooler", ROOT / "weights" / "tiny"),
        ("no gamma", "embeddings", REFERENCE / "tiny-roberta"),
        ("no gamma", "embeddings", REFERENCE / "tiny-distiluse"),
    ],
)
def test_a_planted_mistake_is_named(name, first, folder):
    """One mistake, and only one, gives these numbers."""
    port = Port(folder, name)
    rows = port.compared()
    assert first_divergence(rows).name == first

    whole, part = suspects(rows, port.compared)
    mistake = MISTAKES[name]
    cause = f"{mistake.meaning} ({name}, {mistake.target})"
    expected = (
        f"{first} is the first to differ: these are exactly the numbers you get when {cause}."
    )
    assert whole == [name]
    assert verdict(rows, whole, part) == expected


def test_two_mistakes_at_once():
    """The first is named, and so is the first tensor that the second changes."""
    port = Port(ROOT / "weights" / "tiny", "1/K", "mean over pads")
    rows = port.compared()
    whole, part = suspects(rows, port.compared)
    assert (whole, part) == ([], {"1/K": "pooled"})
    assert "(1/K, bert.attention). But that is not all" in verdict(rows, whole, part)
    assert "pooled still differs" in verdict(rows, whole, part)


def test_numbers_that_no_known_mistake_gives():
    """A mistake that nobody has described is not given another's name."""
    port = Port(ROOT / "weights" / "tiny")
    port.states["layers.0"] += 0.01
    rows = port.compared()
    whole, part = suspects(rows, port.compared)
    assert (whole, part) == ([], {})
    assert "layers.0 is the first to differ, and no known mistake" in verdict(rows, whole, part)
