"""Names, configs and tensors of a folder; ``test_checkpoint.py`` spoils whole folders."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from minisbert.core import InputError
from minisbert.core.weights import BERT, BertConfig, Family, fill, read_config, read_tensors
from tests.parity import REFERENCE

FAMILY = Family(
    model_type="small",
    architecture="SmallModel",
    tables={"embeddings.word": "words"},
    norms={"layers.{i}.norm": "block.{i}.LayerNorm"},
    linears={"layers.{i}.up": "block.{i}.dense"},
    pooler={"pooler": "head"},
    prefix="small.",
    skipped=frozenset(),
    settings={"hidden_size": "dim", "layer_norm_eps": "eps"},
    constants={"type_vocab_size": 0},
)


def test_the_canonical_name():
    for name, expected in {
        "head.weight": "head.weight",
        "small.head.weight": "head.weight",
        "small.block.0.LayerNorm.gamma": "block.0.LayerNorm.weight",
        "block.0.LayerNorm.beta": "block.0.LayerNorm.bias",
        "block.0.dense.gamma": "block.0.dense.gamma",  # only LayerNorms had these names
        "head.small.weight": "head.small.weight",
    }.items():
        assert FAMILY.canonical(name) == expected


def test_the_heads_of_berts_pre_training_are_skipped(tmp_path):
    """Every name of a ``BertForPreTraining`` that is not the encoder's."""
    heads = [
        "transform.dense.weight",
        "transform.dense.bias",
        "transform.LayerNorm.gamma",
        "transform.LayerNorm.beta",
    ]
    heads = [
        f"cls.predictions.{name}" for name in (*heads, "bias", "decoder.weight", "decoder.bias")
    ]
    heads += [
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
        "bert.embeddings.position_ids",
    ]
    save_file({name: torch.ones(1) for name in (*heads, "bert.pooler.dense.bias")}, tmp_path / "f")
    assert [*read_tensors(tmp_path / "f", BERT)] == ["pooler.dense.bias"]
    save_file(
        {"a.LayerNorm.gamma": torch.ones(1), "a.LayerNorm.weight": torch.ones(1)}, tmp_path / "f"
    )
    with pytest.raises(InputError, match=r"f holds a\.LayerNorm\.weight twice"):
        read_tensors(tmp_path / "f", BERT)


def test_settings_are_renamed_and_constants_filled_in():
    raw = {
        "dim": 6,
        "eps": 1e-5,
        "vocab_size": 7,
        "type_vocab_size": 2,
        "position_offset": 2,
    }  # the last: never stated
    expected = {
        "hidden_size": 6,
        "layer_norm_eps": 1e-5,
        "vocab_size": 7,
        "type_vocab_size": 0,
        "position_offset": 0,
    }
    assert FAMILY.fields(raw) == expected


def test_the_config_of_the_tiny_model(tiny):
    family, config = read_config(tiny)
    assert family is BERT
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (24, 2, 3)
    assert (config.positions, config.pad_token_id) == (32, 0)


def test_a_family_must_be_in_the_table(tiny):
    with pytest.raises(InputError, match="model_type 'distilbert' is not supported; bert are"):
        read_config(REFERENCE / "tiny-distiluse")
    with pytest.raises(InputError, match="model_type 'bert' is not supported; small are"):
        read_config(tiny, {"small": FAMILY})


SMALLEST = BertConfig(
    1, 1, 1, 1, 1, 1, type_vocab_size=0, hidden_dropout_prob=0, attention_probs_dropout_prob=0
)
SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
]


@pytest.mark.parametrize("name", [*SIZES, "type_vocab_size", "position_offset"])
def test_the_limits_of_a_size(name):
    least = 1 if name in SIZES else 0
    assert getattr(SMALLEST, name) == least
    for bad in (least - 1, bool(least), float(least), 2**31):
        with pytest.raises(ValueError, match=f"{name} must be an integer from {least}"):
            dataclasses.replace(SMALLEST, **{name: bad})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act must be gelu, not 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be absolute"),
        (
            {"hidden_size": 16, "num_attention_heads": 3},
            "hidden_size 16 is not a multiple of num_attention_heads",
        ),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps must be above 0"),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps"),
        ({"initializer_range": "0.02"}, "initializer_range must be at least 0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob"),
        (
            {"max_position_embeddings": 7, "position_offset": 7},
            "max_position_embeddings 7 leaves no position for a",
        ),
    ],
)
def test_a_config_that_is_not_bert_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALLEST, **change)
    assert (
        dataclasses.replace(SMALLEST, max_position_embeddings=7, position_offset=6).positions == 1
    )


def test_what_a_config_need_not_state_is_as_in_transformers():
    bert = {
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
        "pad_token_id": 0,
    }
    bert |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu"}
    stated = dataclasses.asdict(BertConfig(*[1] * 6))
    assert {name: stated[name] for name in bert} == bert
    ours = {"position_offset": 0, "position_embedding_type": "absolute", "model_type": "bert"}
    assert stated == dict.fromkeys(SIZES, 1) | bert | ours


# --------------------------------------------------------------------------------------------- fill

NAMES = {"weight": "dense.kernel", "bias": "dense.bias"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_is_filled_as_float32(tmp_path, dtype):
    module = nn.Linear(3, 2).double()
    found = {
        "dense.kernel": torch.arange(6, dtype=dtype).view(2, 3),
        "dense.bias": torch.ones(2, dtype=dtype),
    }
    fill(module, found, tmp_path, NAMES)
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert all(
        parameter.dtype == torch.float32 and parameter.requires_grad
        for parameter in module.parameters()
    )
    fill(
        module, {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}, tmp_path
    )  # under the module's own names
    assert (module.weight.tolist(), module.bias.tolist()) == ([[0, 0, 0]] * 2, [1, 1])


def test_a_module_that_cannot_be_filled_is_left_unchanged(tmp_path):
    module = nn.Linear(3, 2)
    before = [parameter.clone() for parameter in module.parameters()]
    with pytest.raises(InputError) as error:
        fill(
            module,
            {"dense.kernel": torch.zeros(3, 2), "weight": torch.zeros(2, 3)},
            tmp_path / "f",
            NAMES,
        )
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'f'} does not fit")
    for problem in (
        "missing dense.bias (2,)",
        "unexpected weight (2, 3)",
        "misshapen dense.kernel: (3, 2), the config asks for (2, 3)",
    ):
        assert f"\n  {problem}" in message
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_or_no_number_is_refused_by_name(tmp_path, value):
    found = {"weight": torch.ones(2, 3), "bias": torch.ones(2, dtype=torch.int64)}
    found["weight"][1, 0] = value
    with pytest.raises(InputError, match=r"weight holds NaN or infinity\n  bias holds torch.int64"):
        fill(nn.Linear(3, 2), found, tmp_path / "f")
