"""What holds for each of the newer encoders: golden values, a text alone and among others, the exported graph."""

import pytest
import torch

from minisbert.models.compiled import VectorGraph
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import PIECE, REFERENCE, assert_parity, golden
from tests.reference.texts import SENTENCES

LAYERS = {"modernbert": (1, 3), "qwen3": (0, 2), "gemma": (0, 2)}  # with golden states
NAMES = ["mpnet", *LAYERS]
LENGTHS = torch.tensor([17, 2, 5, 9])  # ModernBERT's and Gemma's windows reach 3 tokens to each side


def load(name: str) -> SentenceEncoder:
    return SentenceEncoder.load(REFERENCE / "modern" / f"tiny-{name}")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, 131, (4, 17), generator=generator), torch.arange(17) < LENGTHS[:, None]


def check_golden(name: str) -> None:
    expected, encoder = golden(f"modern/tiny-{name}"), load(name).double()
    states = encoder.bert.hidden_states(expected["ids"], mask := expected["mask"])
    for i in LAYERS[name]:
        assert_parity(f"{name} layer {i}", states[i + 1][mask], expected[f"layers.{i}"][mask], PIECE)
    for kind, prompt in (("vectors", None), ("queries", "query")):
        ours = encoder.encode(SENTENCES, prompt_name=prompt, convert="tensor")
        assert_parity(f"{name} {kind}", ours, expected[kind], PIECE)
    assert (expected["vectors"] - expected["queries"]).abs().max() > 0.1
    assert name != "modernbert" or mask.sum(dim=1).max() > 4 * 2 + 1, "a text must be longer than a window"


@pytest.mark.parametrize("name", LAYERS)  # MPNet's are compared with its gradients, in test_mpnet.py
def test_golden_values_of_the_fused_operations(name):
    check_golden(name)


@pytest.mark.parametrize("name", LAYERS)
def test_golden_values_as_written_out(name, written_out):
    check_golden(name)


@pytest.mark.parametrize(("name", "side"), [(name, "right") for name in NAMES] + [(name, "left") for name in LAYERS])
def test_a_text_alone_and_in_a_batch(name, side):
    """Pads beyond the window of every real token too: their own states must be numbers, or they spoil the others."""
    model, (ids, mask) = load(name).double().bert, batch()
    mask = mask.flip(1) if side == "left" else mask
    together = model(ids, mask)
    for row, real, states in zip(ids, mask, together, strict=True):
        assert_parity("alone", states[real], model(row[real][None])[0], PIECE)
    assert together.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_share_a_row_do_not_see_each_other(name):
    model, (ids, mask) = load(name).double().bert, batch()
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    owner = torch.repeat_interleave(torch.arange(4), LENGTHS)[None]
    same = owner[:, None, :, None] == owner[:, None, None, :]
    packed = model(ids[mask][None], same, positions=positions)
    assert_parity("packed", packed[0], model(ids, mask)[mask], PIECE)
    assert torch.equal(packed, model(ids[mask][None], same.long(), positions=positions))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_exported_graph_has_the_same_vectors(name):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 0], [0, 1, 0, 1, 2, 3, 4]])
    owner = torch.tensor([[0, 0, 0, 0, 1, 1, -1], [2, 2, 3, 3, 3, 3, 3]])
    places = torch.tensor([[0, 1, 2, 3, -1], [4, 5, -1, -1, -1], [7, 8, -1, -1, -1], [9, 10, 11, 12, 13]])
    inputs = torch.randint(5, 131, owner.shape), positions, owner, places
    vectors, auto = VectorGraph(load(name), "float32"), torch.export.Dim.AUTO
    with torch.no_grad():
        exported = torch.export.export(vectors, inputs, dynamic_shapes=[{0: auto, 1: auto}] * 4).module()
        assert_parity(f"exported {name}", exported(*inputs)[0], vectors(*inputs)[0], 1e-6)  # float32
        longer = [torch.cat([each, each], dim=0) for each in inputs[:3]]
        assert_parity("more rows", exported(*longer, places)[0], vectors(*longer, places)[0], 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_of_floats(name):
    with pytest.raises(ValueError, match=r"mask must be (whole|boolean)"):
        load(name).bert(torch.tensor([[5, 6]]), torch.ones(1, 2))
