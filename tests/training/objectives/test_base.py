"""Objectives: what a batch holds, which parameters get which rate, how rows are held out, what an
evaluation says.
"""

from pathlib import Path

import pytest
import torch

from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.objectives import Objective
from minisbert.training.settings import parse
from minisbert.training.train import make_objective
from tests import toys


@pytest.fixture
def make(tiny: Path, files: dict[str, str]):
    """``make("siamese")`` -> the objective on toy rows."""

    def build(objective: str, *flags: str) -> Objective:
        options = parse(toys.flags(files, objective, *flags))
        return make_objective(options, SentenceEncoder.load(tiny, pooling=options.pooling))

    return build


# -------------------------------------------------------------------------------------- an
# objective


@pytest.mark.parametrize(
    ("objective", "columns"),
    [("cosine", 2), ("siamese", 2), ("mnr", 3), ("simcse", 2), ("cross-encoder", 1)],
)
def test_the_tokens_of_a_row_are_those_of_all_its_texts_padded(make, files, objective, columns):
    """The toy words are in the vocabulary: a text has as many tokens as words, and two more; a
    joined pair three.
    """
    task = make(objective)
    rows = Path(files[toys.FORM.get(objective, "triplets")]).read_text().splitlines()
    rows = rows if objective == "simcse" else rows[1:]  # without the header
    for row, length in zip(rows, task.lengths, strict=True):
        words = [len(cell.split()) for cell in row.split("\t")]
        assert length == (
            sum(words[1:]) + 3 if objective == "cross-encoder" else columns * (max(words) + 2)
        )


@pytest.mark.parametrize(
    ("objective", "flags", "outside"),
    [
        ("cosine", [], 0),
        ("cosine", ["--pooling", "attention"], 25),  # 24 weights and a bias
        ("siamese", [], (3 * 24 + 1) * 256 + 257),
        ("binary", ["--pooling", "attention"], 25 + 3 * 24 + 1),
        ("simcse", ["--projection"], 24 * 24 + 24),
    ],
)
def test_the_head_rate_is_for_all_that_follows_the_encoder(make, objective, flags, outside):
    task = make(objective, *flags)
    for head_lr, expected in ((3e-3, 3e-3), (0.0, 0.0), (None, 2e-5)):
        inner, *rest = task.parameter_groups(2e-5, head_lr)
        assert inner["lr"] == 2e-5
        assert [id(p) for p in inner["params"]] == [id(p) for p in task.encoder.bert.parameters()]
        assert [group["lr"] for group in rest] == [expected] * (outside > 0)
        assert sum(p.numel() for group in rest for p in group["params"]) == outside


def test_frozen_parameters_are_in_no_group(make):
    task = make("siamese")
    bert = task.encoder.bert
    bert.embeddings.requires_grad_(False)
    bert.layers.requires_grad_(False)
    inner, head = task.parameter_groups(1e-5, 1e-3)
    assert {id(p) for p in inner["params"]} == {id(p) for p in bert.pooler.parameters()}
    bert.requires_grad_(False)
    assert task.parameter_groups(1e-5, 1e-3) == [head]
    assert head["lr"] == 1e-3


@pytest.mark.parametrize("objective", ["cosine", "cross-encoder"])
def test_batches_go_to_the_models_device(make, objective):
    network, seen = make(objective).network, []

    class Model(torch.nn.Module):
        device = torch.device("meta")

        def forward(
            self, ids: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype
        ) -> torch.Tensor:
            seen.extend((ids.device.type, mask.device.type))
            return ids

    if objective == "cosine":
        network.model = Model()
        network([*range(40)])
    else:
        seen = [
            part.device.type for part in network.model.to("meta").batch(network.encoded[0], [0, 1])
        ]
    assert set(seen) == {"meta"}
