"""Rows that several texts share: each text has the states that it has alone."""

import pytest
import torch

from minisbert.architectures.distilbert import DistilBert
from minisbert.architectures.offset_encoder import OffsetConfig, OffsetEncoder
from minisbert.architectures.packing import packed_states
from minisbert.core.bert import Bert, BertConfig
from tests.parity import GRADIENT, PIECE, assert_parity

# vocabulary 37, width 15, layers 2, heads 3, feed-forward 22, positions 12
SIZES = (37, 15, 2, 3, 22, 12)
ENCODERS = {
    "bert": (Bert, BertConfig(*SIZES)),
    "roberta": (OffsetEncoder, OffsetConfig(*SIZES, type_vocab_size=1, position_offset=2)),
    "distilbert": (DistilBert, OffsetConfig(*SIZES, type_vocab_size=0)),
}
LENGTHS = (5, 2, 9)


@pytest.fixture(params=ENCODERS)
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    """Random in every parameter, float64, in eval mode."""
    torch.manual_seed(0)
    encoder, config = ENCODERS[request.param]
    model = encoder(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def texts() -> list[torch.Tensor]:
    """The ids (1, T) of each text."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 37, (1, length), generator=generator) for length in LENGTHS]


def test_texts_that_share_a_row_have_the_states_that_they_have_alone(model, formulas):
    """And the same gradients, with the formulas fused and written out."""
    row = torch.cat(texts(), dim=1)  # (1, 16)
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))[None]  # (1, 16)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    mask = owner[:, None, :, None] == owner[:, None, None, :]  # (1, 1, 16, 16)
    pull = torch.randn(1, 16, 15, dtype=torch.float64)
    parameters = [*model.embeddings.parameters()]

    together = packed_states(model, row, mask, positions)
    alone = torch.cat([model(ids) for ids in texts()], dim=1)
    assert_parity("states", together, alone, PIECE)
    found = torch.autograd.grad((together * pull).sum(), parameters)
    expected = torch.autograd.grad((alone * pull).sum(), parameters)
    for gradient, reference in zip(found, expected, strict=True):
        assert_parity("gradient", gradient, reference, GRADIENT)


def test_one_text_a_row_is_the_ordinary_forward_pass(model):
    """To the bit, with pads and without."""
    ids = torch.cat(texts(), dim=1).view(2, 8)
    mask = torch.arange(8) < torch.tensor([[8], [5]])
    for each in (None, mask):
        assert torch.equal(packed_states(model, ids, each, None), model(ids, each))
        positions = torch.arange(8).expand(2, 8)
        assert torch.equal(packed_states(model, ids, each, positions), model(ids, each))


def test_a_mask_of_floats_is_refused(model):
    """An additive mask would be read the wrong way round."""
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="not floats"):
        packed_states(model, ids, torch.zeros(1, 3), torch.arange(3)[None])
