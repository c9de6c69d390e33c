"""The book's names, config and tensors of a folder; ``checkpoints/`` spoils whole folders."""

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from minisbert.core import InputError
from minisbert.core.weights import BertConfig, canonical, fill, read_config, read_tensors
from tests.parity import REFERENCE

SIZES = [
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
]
SMALLEST = BertConfig(
    1, 1, 1, 1, 1, 1, type_vocab_size=0, hidden_dropout_prob=0, attention_probs_dropout_prob=0
)

# ------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("pooler.dense.weight", "pooler.dense.weight"),
        ("bert.pooler.dense.weight", "pooler.dense.weight"),
        ("bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"),
        ("embeddings.LayerNorm.beta", "embeddings.LayerNorm.bias"),
        ("pooler.dense.gamma", "pooler.dense.gamma"),  # only LayerNorms had these names
        ("pooler.bert.weight", "pooler.bert.weight"),
    ],
)
def test_the_canonical_name(stored, expected):
    """Files of BERT differ by a prefix, and by TensorFlow's names."""
    assert canonical(stored) == expected


def test_the_heads_of_berts_pre_training_are_skipped(tmp_path):
    """Every name of a ``BertForPreTraining`` that is not the encoder's."""
    names = [
        "cls.predictions.transform.dense.weight",
        "cls.predictions.transform.dense.bias",
        "cls.predictions.transform.LayerNorm.gamma",
        "cls.predictions.transform.LayerNorm.beta",
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
        "bert.embeddings.position_ids",
        "bert.pooler.dense.bias",
    ]
    save_file({name: torch.ones(1) for name in names}, tmp_path / "f")
    assert [*read_tensors(tmp_path / "f")] == ["pooler.dense.bias"]


def test_one_tensor_under_two_names_is_a_fault(tmp_path):
    """Nobody could say which of the two is right."""
    tensors = {"a.LayerNorm.gamma": torch.ones(1), "a.LayerNorm.weight": torch.ones(1)}
    save_file(tensors, tmp_path / "f")
    with pytest.raises(InputError, match=r"f holds a\.LayerNorm\.weight twice"):
        read_tensors(tmp_path / "f")


# ----------------------------------------------------------------------------------------- config


def test_the_config_of_the_tiny_model(tiny):
    """Sizes as its file states them."""
    config = read_config(tiny)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (24, 2, 3)
    assert (config.positions, config.pad_token_id) == (32, 0)


def test_another_family_is_refused():
    """Its settings have other names, and some are not in BERT."""
    with pytest.raises(InputError, match="model_type 'distilbert' is not supported, only bert is"):
        read_config(REFERENCE / "tiny-distiluse")


def test_a_size_that_is_missing_is_named(tiny, tmp_path):
    """There is no default for a size."""
    content = json.loads((tiny / "config.json").read_text())
    del content["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"config\.json: no key 'hidden_size'"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, True, 1.0, 2**31])
def test_a_size_is_an_integer_from_1(name, value):
    """JSON has one type of number, and a damaged one must not become a tensor's size."""
    assert getattr(SMALLEST, name) == 1
    with pytest.raises(ValueError, match=f"{name} must be an integer from 1"):
        dataclasses.replace(SMALLEST, **{name: value})


@pytest.mark.parametrize("value", [-1, False, 0.0, 2**31])
def test_the_number_of_token_types_is_an_integer_from_0(value):
    """Some relatives of BERT have none."""
    with pytest.raises(ValueError, match="type_vocab_size must be an integer from 0"):
        dataclasses.replace(SMALLEST, type_vocab_size=value)


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
    ],
)
def test_a_config_that_is_not_bert_is_refused(change, message):
    """By name: the encoder would compute something else."""
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALLEST, **change)


def test_what_a_config_need_not_state_is_as_in_transformers():
    """A file without these keys means these values."""
    assert dataclasses.asdict(BertConfig(1, 1, 1, 1, 1, 1)) == {
        "vocab_size": 1,
        "hidden_size": 1,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "model_type": "bert",
    }


# ------------------------------------------------------------------------------------------- fill

NAMES = {"weight": "dense.kernel", "bias": "dense.bias"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_keeps_its_own_dtype(tmp_path, dtype):
    """Whatever the file has, and the numbers are copies of it."""
    module = nn.Linear(3, 2)
    tensors = {
        "dense.kernel": torch.arange(6, dtype=dtype).view(2, 3),
        "dense.bias": torch.ones(2, dtype=dtype),
    }
    fill(module, tensors, tmp_path, NAMES)
    tensors["dense.bias"][0] = 7.0
    assert module.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert module.bias.tolist() == [1, 1]
    for parameter in module.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.requires_grad


def test_a_module_that_cannot_be_filled_is_left_unchanged(tmp_path):
    """And the message lists all problems, not the first."""
    module = nn.Linear(3, 2)
    before = [parameter.clone() for parameter in module.parameters()]
    tensors = {"dense.kernel": torch.zeros(3, 2), "weight": torch.zeros(2, 3)}
    with pytest.raises(InputError) as error:
        fill(module, tensors, tmp_path / "f", NAMES)
    assert str(error.value).splitlines() == [
        f"{tmp_path / 'f'} does not fit the config beside it:",
        "  missing dense.bias (2,)",
        "  unexpected weight (2, 3)",
        "  misshapen dense.kernel: (3, 2), the config asks for (2, 3)",
    ]
    assert all(torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True))
