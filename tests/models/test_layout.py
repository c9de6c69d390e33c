"""The layout of sentence-transformers: the modules after the encoder, read and written."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisbert.core import InputError
from minisbert.models.layout import SentenceConfig, make_pooling, read_sentence_config, write_sentence_config
from minisbert.models.poolings import Dense
from minisbert.models.sentence_encoder import SentenceEncoder
from tests.parity import MINILM_VECTOR, REFERENCE, assert_parity, assert_same_weights
from tests.reference.texts import SENTENCES


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(tiny, tmp_path / "model")


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_new_layout_is_read(tiny):
    assert read_sentence_config(tiny) == (tiny, SentenceConfig("mean", normalize=True))


@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_written_is_read_back(tmp_path, mode, normalize):
    write_sentence_config(SentenceConfig(mode, normalize), 24, 16, tmp_path)
    assert read_sentence_config(tmp_path) == (tmp_path, SentenceConfig(mode, normalize))


def test_old_flags_mean_the_same(folder):
    flags = {"word_embedding_dimension": 24, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert read_sentence_config(folder)[1].pooling == "max"


def test_an_encoder_in_a_subfolder(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert read_sentence_config(folder)[0] == folder / "0_Transformer"


def test_a_plain_encoder_specifies_no_pooling(folder):
    (folder / "modules.json").unlink()
    assert read_sentence_config(folder) == (folder, SentenceConfig(None, normalize=False))


@pytest.mark.parametrize("stated", [["mean", "lasttoken"], "weightedmean", []])
def test_unsupported_poolings_are_refused(folder, stated):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": stated}))
    with pytest.raises(InputError, match="is not supported"):
        read_sentence_config(folder)


def test_an_unknown_module_is_refused(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.LSTM"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="LSTM"):
        read_sentence_config(folder)


def test_a_pooling_config_that_is_missing(folder):
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match=r"config.json does not exist"):
        read_sentence_config(folder)


@pytest.mark.parametrize("content", ["{}", '[{"idx": 0}]', "["])
def test_a_broken_module_list(folder, content):
    (folder / "modules.json").write_text(content)
    with pytest.raises(InputError, match=r"modules.json"):
        read_sentence_config(folder)


def test_several_poolings_at_once_in_both_layouts(folder):
    edit_json(folder / "1_Pooling" / "config.json", pooling_mode=["mean", "cls"])
    assert read_sentence_config(folder)[1].pooling == "mean+cls"
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24} | flags))
    assert read_sentence_config(folder)[1].pooling == "cls+mean"  # flags have one order, whatever the order in the file


@pytest.mark.parametrize("mode", ["cls+max+mean", "mean+cls", "max+mean"])
def test_several_poolings_are_written_in_their_order(tmp_path, mode):
    write_sentence_config(SentenceConfig(mode, normalize=False), 24, 16, tmp_path)
    assert read_sentence_config(tmp_path)[1].pooling == mode


def test_a_dense_layer_is_read_and_written_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    layers = (Dense(24, 7), Dense(7, 5, bias=False, activation="identity"))
    write_sentence_config(SentenceConfig("mean", True, layers), 24, 16, tmp_path)
    _, config = read_sentence_config(tmp_path)
    x = torch.randn(3, 24)
    for found, layer in zip(config.dense, layers, strict=True):
        assert_same_weights(found, layer)
    # weights read from a file have another alignment in memory, which may change the last bit of a product
    found, expected = config.dense[1](config.dense[0](x)), layers[1](layers[0](x))
    assert (found - expected).abs().max() <= MINILM_VECTOR
    assert config.dense[0](x).abs().max() < 1  # with the tanh
    assert [path.name for path in sorted(tmp_path.iterdir()) if path.is_dir()] == [
        "1_Pooling",
        "2_Dense",
        "3_Dense",
        "4_Normalize",
    ]


@pytest.fixture
def dense_folder(tmp_path):
    write_sentence_config(SentenceConfig("mean", True, (Dense(24, 7),)), 24, 16, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.SiLU"}, "SiLU"),
        ({"use_residual": True}, "use_residual"),
        ({"out_features": 8}, r"asks for .*\(8, 24\)"),
        ({"in_features": None}, "does not say in_features"),
    ],
)
def test_a_dense_layer_that_does_not_fit_is_refused(dense_folder, changes, message):
    edit_json(dense_folder / "2_Dense" / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        read_sentence_config(dense_folder)


def test_modules_in_another_order_are_refused(dense_folder):
    modules = json.loads((dense_folder / "modules.json").read_text())
    (dense_folder / "modules.json").write_text(json.dumps([modules[i] for i in (0, 1, 3, 2)]))
    with pytest.raises(InputError, match="modules is Transformer, Pooling, Normalize, Dense; supported is"):
        read_sentence_config(dense_folder)


def test_another_pooling_that_the_dense_layer_cannot_take_is_refused():
    with pytest.raises(InputError, match="a dense layer for 40 columns gets 20"):
        SentenceEncoder.load(REFERENCE / "tiny-distiluse", pooling="max")


@pytest.mark.parametrize("name", ["tiny-distiluse", "tiny-roberta"])
def test_other_families_survive_save_and_load(name, tmp_path):
    encoder = SentenceEncoder.load(REFERENCE / name)
    encoder.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again")
    assert_same_weights(again, encoder)
    # the two files have headers of other lengths, and the alignment of weights may change the last bit of a product
    assert abs(again.encode(SENTENCES) - encoder.encode(SENTENCES)).max() <= MINILM_VECTOR
    assert again.bert.config == encoder.bert.config
    assert again.tokenizer.limit == encoder.tokenizer.limit == 16


@pytest.mark.reference
@pytest.mark.parametrize("name", ["tiny-distiluse", "tiny-roberta"])
def test_other_families_open_in_sentence_transformers(name, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    encoder = SentenceEncoder.load(REFERENCE / name)
    encoder.save(tmp_path / "saved")
    reference = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert abs(reference.encode(SENTENCES) - encoder.encode(SENTENCES)).max() <= MINILM_VECTOR


def spoil_pooling(folder, **tensors):
    save_file(tensors, folder / "1_Pooling" / "model.safetensors")


def trained_attention(tiny, mode: str = "attention") -> SentenceEncoder:
    """The tiny encoder with attention pooling and weights as after training."""
    encoder = SentenceEncoder.load(tiny, pooling=mode)
    torch.nn.init.normal_(encoder.pooling.score.weight, generator=torch.Generator().manual_seed(3))
    torch.nn.init.constant_(encoder.pooling.score.bias, 0.5)
    return encoder


@pytest.mark.parametrize("mode", ["attention", "mean+attention", "first-last", "pooler+cls+first-last+attention"])
def test_poolings_beyond_sentence_transformers_survive_save_and_load_bit_for_bit(tiny, tmp_path, mode):
    learned = "attention" in mode
    encoder = trained_attention(tiny, mode) if learned else SentenceEncoder.load(tiny, pooling=mode)
    encoder.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again")
    assert again.pooling.mode == mode
    for parameter in [*encoder.parameters(), *again.parameters()]:
        parameter.data = parameter.data.clone()  # memory alignment may change the last bit of a product
    assert (again.encode(SENTENCES) == encoder.encode(SENTENCES)).all()
    for one, other in zip(encoder.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert (tmp_path / "again" / "1_Pooling" / "model.safetensors").is_file() == learned
    if learned:
        assert (again.encode(SENTENCES) != SentenceEncoder.load(tiny, pooling=mode).encode(SENTENCES)).any()


def test_learned_pooling_is_kept_by_another_choice_that_includes_it(tiny, tmp_path):
    encoder = trained_attention(tiny)
    encoder.save(tmp_path / "again")
    again = SentenceEncoder.load(tmp_path / "again", pooling="cls+attention")
    assert torch.equal(again.pooling.score.weight, encoder.pooling.score.weight)
    assert SentenceEncoder.load(tmp_path / "again", pooling="mean").pooling.score is None


def test_learned_pooling_that_is_missing_or_does_not_fit_is_refused(tiny, tmp_path):
    folder = tmp_path / "again"
    trained_attention(tiny).save(folder)
    weight, bias = torch.zeros(1, 24), torch.zeros(1)
    for tensors, message in (
        ({"score.weight": weight}, "score.bias"),
        ({"score.weight": weight[:, 1:], "score.bias": bias}, r"\(1, 23\).*\(1, 24\)"),
        ({"score.weight": weight, "score.bias": bias, "more": torch.zeros(2)}, "more"),
        ({"score.weight": weight, "score.bias": bias.long()}, "int64"),
    ):
        spoil_pooling(folder, **tensors)
        with pytest.raises(InputError, match=message):
            SentenceEncoder.load(folder)
    (folder / "1_Pooling" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"1_Pooling/model\.safetensors is missing"):
        SentenceEncoder.load(folder)


def test_the_pooler_of_a_checkpoint_without_one_is_refused():
    with pytest.raises(InputError, match="no pooler weights"):
        SentenceEncoder.load(REFERENCE / "tiny-distiluse", pooling="pooler+max")


@pytest.mark.reference
@pytest.mark.parametrize("mode", ["attention", "mean+attention", "first-last", "pooler"])
def test_sentence_transformers_refuses_poolings_it_does_not_have(tiny, tmp_path, mode):
    """It must not open the folder and compute different vectors."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    SentenceEncoder.load(tiny, pooling=mode).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="Invalid pooling mode"):
        sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu")


def test_an_average_by_the_root_of_the_length_is_refused_by_name(folder):
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_sqrt_len_tokens": True}))
    with pytest.raises(InputError, match="pooling_mode_mean_sqrt_len_tokens"):
        read_sentence_config(folder)


@pytest.mark.parametrize("size", [0, -1, 2**24 + 1, 2**31 - 1])
def test_sizes_of_a_dense_layer_that_no_layer_has(dense_folder, size):
    edit_json(dense_folder / "2_Dense" / "config.json", in_features=size, out_features=size)
    with pytest.raises(InputError, match=rf"in_features and out_features must be 1 to 16777216, not \[{size}, {size}"):
        read_sentence_config(dense_folder)


def test_a_dense_layer_and_a_pooling_in_float16_come_up_as_float32(tiny, tmp_path):
    encoder = trained_attention(tiny)
    config = SentenceConfig("attention", True, (Dense(24, 7),), encoder.pooling.state_dict())
    write_sentence_config(config, 24, 16, tmp_path)
    for path in tmp_path.glob("*/model.safetensors"):
        save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    found = read_sentence_config(tmp_path)[1]
    pooling = make_pooling("attention", 24, found.learned, tmp_path)
    dtypes = {parameter.dtype for module in (pooling, found.dense[0]) for parameter in module.parameters()}
    assert dtypes == {torch.float32}
    torch.testing.assert_close(found.dense[0].linear.weight, config.dense[0].linear.weight, atol=1e-3, rtol=0)


@pytest.mark.reference
def test_what_a_dense_layer_does_not_state_has_the_default_of_sentence_transformers(dense_folder):
    """A tanh and a bias."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the reference extra")
    edit_json(dense_folder / "2_Dense" / "config.json")
    stated = {"in_features": 24, "out_features": 7}
    (dense_folder / "2_Dense" / "config.json").write_text(json.dumps(stated))
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    reference = sentence_transformers.models.Dense(**stated)
    reference.load_state_dict(load_file(dense_folder / "2_Dense" / "model.safetensors"))
    expected = reference({"sentence_embedding": x})["sentence_embedding"]
    found = read_sentence_config(dense_folder)[1].dense[0]
    assert_parity("Dense, defaults", found(x), expected, MINILM_VECTOR)
