"""Ids, masks and token types that the encoder cannot compute are refused before it runs."""

import pytest
import torch

from minisbert.core.bert import BertConfig
from minisbert.models.guards import check_inputs

CONFIG = BertConfig(37, 15, 2, 3, 22, 12)


def ones(*shape):
    return torch.ones(shape, dtype=torch.long)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((ones(3),), r"ids must have shape"),
        ((ones(2, 0),), r"ids must have shape"),
        ((ones(1, 13),), "13 tokens, but the position table has 12"),
        ((ones(1, 2) * 37,), "from 37 to 37, this model has 37 in its vocabulary"),
        ((ones(1, 2) * -1,), "from -1 to -1"),
        ((ones(2, 3), ones(2, 4)), r"mask must have shape"),
        ((ones(2, 3), None, ones(3)), r"token_types must have shape"),
        ((ones(2, 3), None, ones(2, 3) * -1), "token_types run from -1 to -1, this model has 2 types"),
        ((ones(2, 3), None, ones(2, 3) * 2), "token_types run from 2 to 2, this model has 2 types"),
        ((ones(2, 3), torch.tensor([[1, 1, 0], [0, 0, 0]])), "row 1 of the mask has no real token"),
    ],
)
def test_bad_input_is_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        check_inputs(CONFIG, *inputs)
