"""ModernBERT and EmbeddingGemma: gates, windows, kinds of layers."""

import pytest
import torch

from minisbert.architectures.gemma3 import GEMMA, gelu_gate
from minisbert.architectures.modern import rotary
from minisbert.architectures.modernbert import MODERNBERT, geglu, local_mask
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.losses import keep_layers
from tests.architectures.tiny import (
    GLOBAL,
    LOCAL,
    batch,
    folder_of,
    random_model,
    raw_config,
)
from tests.parity import PIECE, assert_parity
from tests.reference.texts import SENTENCES


def test_worked_numbers_of_the_docstrings(written_out):
    pair = torch.tensor([1.0, 2.0])
    assert geglu(pair).item() == pytest.approx(1.6827, abs=5e-5)
    assert geglu(pair, "silu").item() == pytest.approx(1.4621, abs=5e-5)
    assert gelu_gate(*pair).item() == pytest.approx(1.6824, abs=5e-5)
    assert local_mask(torch.tensor([[0, 1, 2]]), None, 1)[0, 0].int().tolist() == [
        [1, 1, 0],
        [1, 1, 1],
        [0, 1, 1],
    ]
    cos, sin = rotary(torch.tensor([[2]]), 4, 10000.0, torch.float64)
    angles = torch.tensor([2, 0.02, 2, 0.02], dtype=torch.float64)
    assert_parity(
        "angles", torch.stack([cos, sin]).flatten(), torch.cat([angles.cos(), angles.sin()]), PIECE
    )


@pytest.mark.parametrize("name", ["modernbert", "gemma"])
@pytest.mark.parametrize(("kinds", "reach"), [([LOCAL], 3), ([LOCAL, LOCAL], 6), ([GLOBAL], 17)])
def test_a_token_sees_both_sides_as_far_as_its_windows_reach(name, kinds, reach):
    model, (ids, _) = random_model(name, num_hidden_layers=len(kinds), layer_types=kinds), batch()
    changed = ids.clone()
    changed[:, 8] = 5 + (ids[:, 8] - 4) % 126
    differ = (model(ids) != model(changed)).any(dim=-1)
    assert torch.equal(differ, ((torch.arange(17) - 8).abs() <= reach).expand(4, -1))


def test_layers_that_see_all_if_kinds_are_not_stated():
    for family, name, spacing, expected in (
        (MODERNBERT, "modernbert", {}, [0, 3, 6, 9, 12]),
        (MODERNBERT, "modernbert", {"global_attn_every_n_layers": 5}, [0, 5, 10]),
        (GEMMA, "gemma", {}, [5, 11]),
        (GEMMA, "gemma", {"sliding_window_pattern": 4}, [3, 7, 11]),
    ):
        kinds = family.read(
            raw_config(name, num_hidden_layers=13, layer_types=..., **spacing)
        ).layer_types
        assert [i for i, kind in enumerate(kinds) if kind == GLOBAL] == expected


def test_a_student_keeps_the_kinds_of_its_layers(tmp_path):
    encoder = SentenceEncoder.load(folder_of("gemma"))
    encoder.bert = keep_layers(encoder.bert, [1, 2])
    encoder.save(tmp_path / "student")
    again = SentenceEncoder.load(tmp_path / "student")
    assert again.bert.config.layer_types == (GLOBAL, LOCAL)
    assert (again.encode(SENTENCES) == encoder.encode(SENTENCES)).all()


def test_in_bfloat16_the_vectors_are_nearly_the_same():
    encoder = SentenceEncoder.load(folder_of("modernbert"))
    with torch.autocast("cpu", torch.bfloat16):
        low = encoder.bert(ids := torch.tensor([encoder.tokenizer.encode(SENTENCES).ids[0]]))
    assert_parity(
        "bfloat16", low.float(), encoder.bert(ids), 0.15
    )  # 8 bits: .4 % of states of up to 7, in 4 layers
