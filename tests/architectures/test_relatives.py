"""BERT's relatives: names, settings, and what each computes otherwise."""

import dataclasses

import pytest
import torch

from minisbert.architectures.distilbert import DistilBert
from minisbert.architectures.families import Family
from minisbert.architectures.offset_encoder import OffsetConfig, OffsetEncoder
from minisbert.architectures.relatives import BERT, ENCODER_FAMILIES, ROBERTA, read_config
from minisbert.core import InputError
from minisbert.core.bert import Bert
from minisbert.core.weights import BertConfig, tensor_names
from tests.parity import REFERENCE

SIZES = (37, 15, 2, 3, 22, 12)
SMALL = Family(
    model_type="small",
    architecture="SmallModel",
    config=BertConfig,
    encoder=Bert,
    tables={"embeddings.word": "words"},
    modules={"layers.{i}.norm": "block.{i}.LayerNorm", "layers.{i}.up": "block.{i}.dense"},
    pooler={"pooler": "head"},
    prefix="small.",
    skipped=frozenset(),
    settings={"hidden_size": "dim", "layer_norm_eps": "eps"},
    constants={"type_vocab_size": 0},
)


def test_names_of_every_layer_and_of_the_pooler():
    """A table has a weight, a module a weight and a bias, in each layer if it is a layer's."""
    names = SMALL.names(2, pooler=True)
    assert len(names) == 1 + 2 * 2 * 2 + 2
    assert names["embeddings.word.weight"] == "words.weight"
    assert names["layers.1.up.bias"] == "block.1.dense.bias"
    assert names["pooler.bias"] == "head.bias"
    assert "pooler.bias" not in SMALL.names(2, pooler=False)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("head.weight", "head.weight"),
        ("small.head.weight", "head.weight"),
        ("small.block.0.LayerNorm.gamma", "block.0.LayerNorm.weight"),
        ("block.0.LayerNorm.beta", "block.0.LayerNorm.bias"),
        ("block.0.dense.gamma", "block.0.dense.gamma"),  # only LayerNorms had these names
        ("head.small.weight", "head.small.weight"),
    ],
)
def test_the_canonical_name(stored, expected):
    """Files of one family differ by a prefix, and by TensorFlow's names."""
    assert SMALL.canonical(stored) == expected


def test_settings_are_renamed_and_constants_filled_in():
    """Our name of a setting that the family calls something else is not read."""
    raw = {"dim": 6, "hidden_size": 9, "eps": 1e-5, "vocab_size": 7, "type_vocab_size": 2}
    expected = {"hidden_size": 6, "layer_norm_eps": 1e-5, "vocab_size": 7, "type_vocab_size": 0}
    assert SMALL.fields(raw) == expected


def test_the_librarys_names_of_bert_are_the_books():
    """The book writes its table out, the library has one table for each family."""
    for pooler in (True, False):
        assert BERT.names(12, pooler) == tensor_names(12, pooler)


def test_a_family_must_be_in_the_table(tiny):
    """The message lists those that are."""
    assert read_config(tiny)[0] is BERT
    with pytest.raises(InputError, match="model_type 'bert' is not supported; small are"):
        read_config(tiny, {"small": SMALL})


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "electra"])
@pytest.mark.parametrize(
    "setting", [{"is_decoder": True}, {"add_cross_attention": True}, {"pruned_heads": {"0": [1]}}]
)
def test_settings_that_would_make_another_model_are_refused(name, setting):
    """They would be computed as if they were not there."""
    (key,) = setting
    with pytest.raises(ValueError, match=f"{key} .* is not supported, only"):
        ENCODER_FAMILIES[name].read(setting)


def test_positions_start_after_the_padding():
    """RoBERTa's offset follows from the padding index, and is not in its file."""
    _, config = read_config(REFERENCE / "tiny-roberta")
    assert config.position_offset == config.pad_token_id + 1
    assert config.positions == config.max_position_embeddings - config.position_offset
    assert "position_offset" not in ROBERTA.write(dataclasses.asdict(config))


@pytest.mark.parametrize("offset", [0, 2])
def test_an_offset_shifts_the_position_table_and_nothing_else(offset):
    """The first token has row ``offset``, the second the next one."""
    torch.manual_seed(0)
    model = OffsetEncoder(OffsetConfig(*SIZES, position_offset=offset)).double().eval()
    bert = Bert(BertConfig(*SIZES)).double().eval()
    weights = model.state_dict()
    table = weights["embeddings.position.weight"]
    weights["embeddings.position.weight"] = torch.cat([table[offset:], table[:offset]])
    bert.load_state_dict(weights)
    ids = torch.randint(1, 37, (2, 9))
    assert torch.equal(model(ids), bert(ids))


def test_a_table_of_positions_must_have_a_row_for_a_token():
    """A damaged offset is an error of the config, not of a lookup."""
    with pytest.raises(ValueError, match="max_position_embeddings 12 leaves no position for a"):
        OffsetConfig(*SIZES, position_offset=12)
    with pytest.raises(ValueError, match="position_offset must be an integer from 0"):
        OffsetConfig(*SIZES, position_offset=-1)
    assert OffsetConfig(*SIZES, position_offset=11).positions == 1


@pytest.mark.exact("counts calls of the function in place of dropout")
def test_distilbert_drops_nothing_between_attention_and_the_sum(monkeypatch):
    """Its files come from a model that was trained so: 1 + 2 a layer, where BERT has 1 + 3."""
    calls = []
    real = torch.nn.functional.dropout

    def counting(x, rate, *arguments, **options):
        calls.append((*x.shape, rate))
        return real(x, rate, *arguments, **options)

    config = OffsetConfig(
        *SIZES, type_vocab_size=0, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5
    )
    model = DistilBert(config).train()
    monkeypatch.setattr(torch.nn.functional, "dropout", counting)
    model(torch.ones(4, 9, dtype=torch.long))
    embedded, probabilities, fed = (4, 9, 15, 0.25), (4, 3, 9, 9, 0.5), (4, 9, 15, 0.25)
    assert calls == [embedded, probabilities, fed, probabilities, fed]
