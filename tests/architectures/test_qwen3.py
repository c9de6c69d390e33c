"""Qwen3: the causal mask, the last token, its size, the heads that a decoder cannot have."""

import pytest
import torch

from minisbert.architectures.modern import rotary
from minisbert.architectures.qwen3 import causal_mask, repeat_heads
from minisbert.core import InputError
from minisbert.models.sentence_encoder import SentenceEncoder
from minisbert.training.named_heads import add_head
from tests.architectures.tiny import (
    batch,
    folder_of,
    random_model,
)
from tests.parity import PIECE, assert_parity
from tests.reference.texts import SENTENCES, TEXTS

FOLDER = folder_of("qwen3")


def test_keys_and_values_for_several_heads():
    heads = torch.tensor([5.0, 7.0])[None, :, None, None]
    assert repeat_heads(heads, 2).flatten().tolist() == [5.0, 5.0, 7.0, 7.0]


@pytest.mark.reference
@pytest.mark.parametrize(("width", "base"), [(128, 1e6), (10, 1000.0), (256, 1e4)])
def test_angles_in_float32_are_the_references_to_the_bit_at_every_position(width, base):
    """Rounded otherwise, they are off by .002 at token 32,768."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    positions = torch.tensor([[0, 1, 4097, 32767]])
    expected = Qwen3RotaryEmbedding(Qwen3Config(head_dim=width, rope_theta=base))(
        torch.zeros(1), positions
    )
    for ours, theirs in zip(rotary(positions, width, base, torch.float32), expected, strict=True):
        assert torch.equal(ours[:, 0], theirs)


def test_a_token_sees_what_is_before_it_and_nothing_after(formulas):
    model, (ids, _) = random_model("qwen3"), batch()
    changed = ids.clone()
    changed[:, 5] = 5 + (ids[:, 5] - 4) % 126
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(dim=-1).all()


def test_the_mask_with_pads_before_and_after_a_text():
    mask = torch.tensor([[False, True, True], [True, True, False]])[:, None, None]
    expected = [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert causal_mask(mask, 3, mask.device).int()[:, 0].tolist() == expected
    assert causal_mask(None, 3, mask.device).int()[0, 0].tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_the_last_token_is_pooled_in_any_batch():
    """Not a pad, not the last column: alone, packed with others, and in a padded batch."""
    encoder = SentenceEncoder.load(FOLDER).double()
    together = encoder.encode(TEXTS, convert_to_tensor=True)
    states = encoder.encode(TEXTS, output_value="token_embeddings", convert_to_tensor=True)
    unit = torch.stack([each[-1] / each[-1].norm() for each in states])
    assert_parity("last token", together, unit, PIECE)
    end = encoder.tokenizer.backend.token_to_id("<|endoftext|>")
    assert {ids[-1] for ids in encoder.tokenizer.encode(TEXTS).ids} == {end}
    rows = encoder.tokenizer.encode(SENTENCES).ids
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.arange(longest) < torch.tensor([*map(len, rows)])[:, None]
    assert_parity(
        "padded", encoder(ids, mask), encoder.encode(SENTENCES, convert_to_tensor=True), PIECE
    )


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("cross-encoder", "joint head"),
        ("classifier", "--head classifier is for bert, .*, not for qwen3"),
    ],
)
def test_a_head_on_the_first_token_of_a_decoder_is_refused(head, message):
    with pytest.raises(InputError, match=message):
        add_head(SentenceEncoder.load(FOLDER), head, "regression")
