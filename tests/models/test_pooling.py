"""Poolings beyond the book and dense layers: formulas, and what is read from folders and written to
them.
"""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.checkpoints.layout import read_folder
from minisbert.core import InputError
from minisbert.core.heads import JointHead
from minisbert.models.cross_encoder import ClassifierHead
from minisbert.models.pair_model import PairModel
from minisbert.models.pooling import (
    POOLINGS,
    Dense,
    ModelPooling,
    first_last_pool,
    load_dense_layer,
)
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.architectures.tiny import alter
from tests.conftest import ROOT
from tests.parity import MINILM_VECTOR, REFERENCE, assert_parity, assert_same_weights
from tests.poolings import MODES, REAL, book_pooling, random_hidden
from tests.reference.texts import SENTENCES

MORE = ("mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def learned(mode: str) -> ModelPooling:
    """A pooling with attention, with the parameters of the book's."""
    found = ModelPooling(mode, 3).double()
    found.load_state_dict(book_pooling("attention").state_dict())
    return found


@pytest.mark.parametrize("name", ["median", "", "MEAN", "cls-max"])
def test_unknown_name_lists_the_known_ones(name):
    """Names are exact: MEAN is none."""
    with pytest.raises(ValueError, match=f"unknown pooling '{name}': choose from mean, cls, max"):
        ModelPooling(name)


def test_every_pooling_is_tested_here():
    """A new one needs its numbers."""
    assert {*POOLINGS, "attention"} == {*MODES, *MORE, "pooler"}


@pytest.mark.parametrize(
    ("name", "pooled"),
    [("mean_sqrt_len_tokens", 8 / math.sqrt(3)), ("weightedmean", 22 / 6), ("lasttoken", 6.0)],
)
def test_the_poolings_of_sentence_transformers_by_hand(name, pooled):
    """Tokens 0, 2, 6 and a pad: 8 over the root of 3; (0 + 4 + 18) / 6 and not over 10; 6."""
    hidden = torch.tensor([[[0.0], [2.0], [6.0], [math.nan]]])
    mask = torch.tensor([[True, True, True, False]])
    for states, real in ((hidden, mask), (hidden[:, :3], None)):
        torch.testing.assert_close(ModelPooling(name)(states, real), torch.tensor([[pooled]]))


def test_first_last_by_hand():
    """Last states 1, 3 and first states 5, 7 give 4; the pad in between does not count."""
    last, first = torch.tensor([[[1.0], [50.0], [3.0]]]), torch.tensor([[[5.0], [-90.0], [7.0]]])
    assert first_last_pool(last, torch.tensor([[True, False, True]]), first).tolist() == [[4.0]]


def test_several_poolings_are_concatenated_in_the_order_of_the_name():
    """Dense layers behind them were trained on that order."""
    states = random_hidden()
    joined = learned("attention+max+lasttoken")
    alone = [learned("attention"), ModelPooling("max"), ModelPooling("lasttoken")]
    vectors = [single(states, REAL) for single in alone]
    assert torch.equal(joined(states, REAL), torch.cat(vectors, dim=-1))
    assert [name for name, _ in joined.named_parameters()] == ["score.weight", "score.bias"]
    assert not list(ModelPooling("mean+lasttoken", 3).parameters())


def test_berts_pooler_is_a_dense_layer_after_cls_and_saved_as_one(tiny, tmp_path):
    """So sentence-transformers opens it. It stands alone, and reads [CLS] whatever the prompt."""
    encoder, bert = SentenceEncoder.load(tiny, pooling="pooler"), SentenceEncoder.load(tiny).bert
    ids = torch.tensor([[2, 40, 3]])
    assert encoder.bert.pooler is None
    assert_parity("pooler", encoder.unscaled(ids)[0], bert.pool(bert(ids))[0], MINILM_VECTOR)
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert (encoder.pooling_mode, again.pooling_mode, len(again.dense)) == ("pooler", "cls", 1)
    assert_parity("saved", again.unscaled(ids)[0], encoder.unscaled(ids)[0], MINILM_VECTOR)
    with pytest.raises(InputError, match="no other beside it"):
        SentenceEncoder.load(tiny, pooling="cls+pooler")
    alter(shutil.copytree(tiny, tmp_path / "cut"), "1_Pooling/config.json", include_prompt=False)
    with pytest.raises(InputError, match="and \\[CLS\\]"):
        SentenceEncoder.load(tmp_path / "cut", pooling="pooler")


# -------------------------------------------------------------------------------------- in folders


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(tiny, tmp_path / "model")


def test_each_json_file_is_opened_once_and_torchs_compiler_is_not_imported(tiny, tmp_path):
    """In a process of its own, whose ``open`` is audited. tokenizer.json is given to the library as
    bytes.

    The compiler takes a second; weights on the device "meta" that are filled with random numbers
    would import it.
    """
    encoder = SentenceEncoder.load(tiny)
    PairModel(encoder, JointHead(24)).save(tmp_path / "pairs")
    PairModel(encoder, ClassifierHead(24), "logit").save(tmp_path / "classifier")
    folders = [tiny, REFERENCE / "tiny-distiluse", tmp_path / "pairs", tmp_path / "classifier"]
    code = """
import collections, json, sys
from minisbert import PairModel, SentenceEncoder
opened = collections.Counter()
sys.addaudithook(lambda event, args: event == "open" and opened.update([str(args[0])]))
encoder = SentenceEncoder.load(sys.argv[1])
SentenceEncoder.load(sys.argv[2])
PairModel.load(sys.argv[3])
PairModel.load(sys.argv[4])
encoder.encode(["a cat"])
assert "torch._dynamo" not in sys.modules
print(json.dumps(opened))
"""
    command = [sys.executable, "-c", code, *map(str, folders)]
    opened = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout)
    for folder in folders:
        found = {name: count for name, count in opened.items() if Path(name).is_relative_to(folder)}
        assert {name for name in found if name.endswith(".json")} == {
            str(path) for path in folder.rglob("*.json")
        }
        assert {*found.values()} == {1}, folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("1_Pooling/config.json", None),
        ("1_Pooling/config.json", '{"pooling_mode_median_tokens": true}'),
        ("modules.json", "[]"),
        ("modules.json", '[{"type": "a.LSTM", "path": ""}]'),
    ],
)
def test_a_missing_or_broken_file_is_named(folder, name, content):
    """By its path, in one line."""
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(InputError, match=f"{folder / name}"):
        SentenceEncoder.load(folder)


def with_dense(tiny) -> SentenceEncoder:
    torch.manual_seed(0)
    plain = SentenceEncoder.load(tiny)
    layers = (Dense(torch.nn.Linear(24, 7)), Dense(torch.nn.Linear(7, 5, bias=False), "identity"))
    return SentenceEncoder(plain.tokenizer, plain.bert, plain.pooling, True, layers)


def test_a_dense_layer_is_read_and_written_bit_for_bit(tiny, tmp_path):
    """With and without bias and activation, in its place."""
    encoder = with_dense(tiny)
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert_same_weights(again, encoder)
    x = torch.randn(3, 24)
    # weights read from a file have another alignment in memory, which may change the last bit of a
    # product
    assert (again.dense(x) - encoder.dense(x)).abs().max() <= MINILM_VECTOR
    assert again.dense[0](x).abs().max() < 1  # with the tanh
    found = [path.name for path in sorted((tmp_path / "saved").iterdir()) if path.is_dir()]
    assert found == ["1_Pooling", "2_Dense", "3_Dense", "4_Normalize"]


@pytest.fixture
def dense_folder(tiny, tmp_path):
    with_dense(tiny).save(tmp_path / "dense")
    return tmp_path / "dense"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out_features": 8}, r"asks for .*\(8, 24\)"),
        ({"in_features": None}, "in_features"),
        ({"in_features": 2**31 - 1, "out_features": 2**31 - 1}, "2_Dense"),
        ({"in_features": 2**31, "out_features": 2**31}, "in_features must be"),
    ],
)
def test_a_dense_layer_that_does_not_fit_is_refused(dense_folder, changes, message):
    """By its file, before memory is taken for it."""
    alter(dense_folder, "2_Dense/config.json", **changes)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(dense_folder)


def test_modules_in_another_order_are_refused(dense_folder):
    """Scaling before a dense layer gives other vectors."""
    modules = json.loads((dense_folder / "modules.json").read_text())
    (dense_folder / "modules.json").write_text(json.dumps([modules[i] for i in (0, 1, 4, 2)]))
    with pytest.raises(
        InputError, match="modules Transformer, Pooling, Normalize, Dense are not supported"
    ):
        SentenceEncoder.load(dense_folder)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [("max", "a dense layer for 40 columns gets 20"), ("pooler", "no pooler weights")],
)
def test_another_pooling_that_the_model_cannot_have_is_refused(pooling, message):
    """The layer behind it was trained for another."""
    with pytest.raises(InputError, match=message):
        SentenceEncoder.load(REFERENCE / "tiny-distiluse", pooling=pooling)


def trained_attention(tiny, mode: str = "attention") -> SentenceEncoder:
    """The tiny encoder with attention pooling and weights as after training."""
    encoder = SentenceEncoder.load(tiny, pooling=mode)
    torch.nn.init.normal_(encoder.pooling.score.weight, generator=torch.Generator().manual_seed(3))
    torch.nn.init.constant_(encoder.pooling.score.bias, 0.5)
    return encoder


@pytest.mark.parametrize("mode", ["attention", "cls+max+attention"])
def test_a_learned_pooling_survives_save_and_load_bit_for_bit(tiny, tmp_path, mode):
    """Also beside other poolings, and if another is chosen at load."""
    encoder = trained_attention(tiny, mode)
    encoder.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again")
    assert again.pooling.mode == mode
    for parameter in [*encoder.parameters(), *again.parameters()]:
        # The alignment in memory may change the last bit of a product.
        parameter.data = parameter.data.clone()
    assert (again.encode(SENTENCES) == encoder.encode(SENTENCES)).all()
    assert_same_weights(again, encoder)
    other = SentenceEncoder.load(tmp_path / "again", pooling="cls+attention")
    assert torch.equal(other.pooling.score.weight, encoder.pooling.score.weight)
    assert SentenceEncoder.load(tmp_path / "again", pooling="mean").pooling.score is None
    assert (
        again.encode(SENTENCES) != SentenceEncoder.load(tiny, pooling=mode).encode(SENTENCES)
    ).any()


def test_learned_pooling_that_is_missing_or_does_not_fit_is_refused(tiny, tmp_path):
    """An untrained one is the mean, which nobody would notice."""
    folder = tmp_path / "again"
    trained_attention(tiny).save(folder)
    weight, bias = torch.zeros(1, 24), torch.zeros(1)
    for tensors, message in (
        ({"score.weight": weight}, "score.bias"),
        ({"score.weight": weight[:, 1:], "score.bias": bias}, r"\(1, 23\).*\(1, 24\)"),
        ({"score.weight": weight, "score.bias": bias, "more": torch.zeros(2)}, "more"),
        ({"score.weight": weight, "score.bias": bias.long()}, "int64"),
    ):
        save_file(tensors, folder / "1_Pooling" / "model.safetensors")
        with pytest.raises(InputError, match=message):
            SentenceEncoder.load(folder)
    (folder / "1_Pooling" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/model\.safetensors is missing"):
        SentenceEncoder.load(folder)


@pytest.mark.reference
def test_sentence_transformers_refuses_poolings_it_does_not_have(tiny, tmp_path):
    """It must not open the folder and compute different vectors."""
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the reference extra"
    )
    for mode in ("mean+attention", "attention"):
        SentenceEncoder.load(tiny, pooling=mode).save(tmp_path / "saved")
        with pytest.raises(ValueError, match="Invalid pooling mode"):
            sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")


@pytest.mark.reference
def test_what_a_dense_layer_does_not_state_has_the_default_of_sentence_transformers(dense_folder):
    """A tanh and a bias."""
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the reference extra"
    )
    stated = {"in_features": 24, "out_features": 7}
    (dense_folder / "2_Dense" / "config.json").write_text(json.dumps(stated))
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    reference = sentence_transformers.models.Dense(**stated)
    reference.load_state_dict(load_file(dense_folder / "2_Dense" / "model.safetensors"))
    expected = reference({"sentence_embedding": x})["sentence_embedding"]
    found = load_dense_layer(read_folder(dense_folder), "2_Dense")
    assert_parity("Dense, defaults", found(x), expected, MINILM_VECTOR)
