"""Qwen3: the reference's numbers, the causal mask, the last token, packed rows, dropout, export."""

import pytest
import torch

from minisbert.models.modern.decoder import Decoder, causal_mask, repeat_heads, rms_norm, swiglu
from minisbert.models.modern.qwen3 import QWEN3, DecoderConfig
from minisbert.models.modern.rotary import rotary
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import GRADIENT, PIECE, REFERENCE, assert_parity
from tests.reference.states import in_double
from tests.reference.texts import SENTENCES, TEXTS

FOLDER = REFERENCE / "modern" / "tiny-qwen3"
# batch 4, tokens 9, heads 6 and 2, head width 10, width 24, feed-forward 29, layers 3, vocabulary 131
SIZES = {
    "vocab_size": 131,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 29,
    "max_position_embeddings": 40,
    "rope_theta": 1000.0,
    "rms_norm_eps": 1e-2,
}
LENGTHS = torch.tensor([9, 2, 5, 7])
CONFIG = "config.json"


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    return model.double().eval()


def random_model(**changes) -> Decoder:
    return randomise(Decoder(DecoderConfig(**SIZES | changes)))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(131, (4, 9), generator=generator), torch.arange(9) < LENGTHS[:, None]


# ----------------------------------------------------------------------------------------- the numbers


def test_worked_numbers_of_the_docstrings(written_out):
    pair = torch.tensor([1.0, 7.0], dtype=torch.float64)
    assert_parity("rms_norm", rms_norm(pair, torch.ones(2).double(), 1e-30), torch.tensor([0.2, 1.4]).double(), 1e-7)
    assert swiglu(torch.tensor(1.0), torch.tensor(2.0)).item() == pytest.approx(1.4621, abs=5e-5)
    heads = torch.tensor([5.0, 7.0])[None, :, None, None]
    assert repeat_heads(heads, 2).flatten().tolist() == [5.0, 5.0, 7.0, 7.0]


@pytest.mark.reference
@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention_bias": True, "num_attention_heads": 3, "num_key_value_heads": 3},
        {"num_key_value_heads": 1, "head_dim": 4, "rope_theta": 1e6, "num_hidden_layers": 1},
    ],
    ids=["grouped", "with biases", "one head of keys"],
)
def test_random_models_equal_transformers(changes, side):
    """Every layer and every gradient, with pads on either side: of relative positions they move nothing."""
    from transformers import Qwen3Config, Qwen3Model
    from transformers.models.qwen3 import modeling_qwen3

    ids, mask = batch()
    mask = {"left": mask.flip(1), "right": mask, "none": torch.ones_like(mask)}[side]
    with in_double(modeling_qwen3):
        theirs = randomise(Qwen3Model(Qwen3Config(**SIZES | changes, attn_implementation="eager")))
        out = theirs(ids, mask.long(), output_hidden_states=True)
    ours = QWEN3.encoder(QWEN3.read(theirs.config.to_dict()), False).double().eval()
    names, known = QWEN3.names(len(ours.layers), False), theirs.state_dict()
    ours.load_state_dict({name: known[names[name]] for name, _ in ours.named_parameters()})
    assert len(known) == len(ours.state_dict())
    states = ours.hidden_states(ids, None if side == "none" else mask)
    for i, (state, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        assert_parity(f"Qwen3 state {i}", state[mask], expected[mask], PIECE)
    pull = torch.randn_like(states[-1]) * mask[..., None]
    for hidden in (states[-1], out.last_hidden_state):
        (hidden * pull).sum().backward()
    for name, parameter in ours.named_parameters():
        expected = theirs.get_parameter(names[name]).grad
        assert_parity(f"Qwen3 gradient of {name}", parameter.grad, expected, GRADIENT)


@pytest.mark.reference
@pytest.mark.parametrize(("width", "base"), [(128, 1e6), (10, 1000.0), (256, 1e4)])
def test_angles_in_float32_are_the_references_to_the_bit_at_every_position(width, base):
    """Rounded otherwise, they are off by .002 at token 32,768."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    positions = torch.tensor([[0, 1, 4097, 32767]])
    config = Qwen3Config(**SIZES | {"head_dim": width, "rope_theta": base})
    expected = Qwen3RotaryEmbedding(config)(torch.zeros(1), positions)
    for ours, theirs in zip(rotary(positions, width, base, torch.float32), expected, strict=True):
        assert torch.equal(ours[:, 0], theirs)


# ---------------------------------------------------------------------- what a token sees, and packed rows


def test_a_token_sees_what_is_before_it_and_nothing_after():
    model, (ids, _) = random_model(), batch()
    changed = ids.clone()
    changed[:, 5] = (ids[:, 5] + 1) % 131
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(dim=-1).all()


def test_the_mask_with_pads_before_and_after_a_text():
    mask = torch.tensor([[False, True, True], [True, True, False]])
    expected = [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert causal_mask(mask, 3, mask.device).int()[:, 0].tolist() == expected
    assert causal_mask(None, 3, mask.device).int()[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_only_distances_count():
    model, (ids, _) = random_model(), batch()
    moved = model(ids, positions=torch.arange(100, 109)[None].expand(4, -1))
    assert_parity("moved", moved, model(ids), PIECE)


def test_the_last_token_is_pooled_in_any_batch():
    """Not a pad, not the last column: alone, packed with others, and in a padded batch."""
    encoder = SentenceEncoder.load(FOLDER).double()
    together = encoder.encode(TEXTS, convert="tensor")
    states = encoder.encode(TEXTS, output="token", convert="tensor")
    unit = torch.stack([each[-1] / each[-1].norm() for each in states])
    assert_parity("last token", together, unit, PIECE)
    end = encoder.tokenizer.backend.token_to_id("<|endoftext|>")
    assert {ids[-1] for ids in encoder.tokenizer.encode(TEXTS).ids} == {end}
    rows = encoder.tokenizer.encode(SENTENCES).ids
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.arange(longest) < torch.tensor([*map(len, rows)])[:, None]
    assert_parity("padded", encoder(ids, mask), encoder.encode(SENTENCES, convert="tensor"), PIECE)


# --------------------------------------------------------------------------------- training, exporting


def test_a_fresh_model_starts_as_the_book_does():
    torch.manual_seed(0)
    fresh = Decoder(DecoderConfig(**SIZES | {"initializer_range": 0.3, "attention_bias": True}))
    for weight in (
        fresh.embeddings.word.weight,
        fresh.layers[1].attention.key.weight,
        fresh.layers[2].feed_forward.up.weight,
    ):
        assert weight.std().item() == pytest.approx(0.3, rel=0.15)
    assert not fresh.layers[0].attention.value.bias.any()
    assert (fresh.norm.weight == 1).all()


def test_dropout_is_on_the_probabilities_and_only_in_training():
    model, (ids, _) = random_model(attention_probs_dropout_prob=0.5), batch()
    assert torch.equal(model(ids), model(ids))
    assert not torch.equal(model.train()(ids), model(ids))
